//! The machine's disk and the file systems that are made of it.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use cofferdam_guest::setup::{Setup, Tree};
use rustix::mount::{
    MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_remount, unmount,
};

use super::fault::{Fault, at, make, write};
use crate::agent::sleep_ms;

/// Where the new root is put together.
pub(super) const ROOT: &str = "/root";
const DEVICES: &str = "/sys/bus/virtio/devices";
const BIND: &str = "/sys/bus/virtio/drivers/virtio_blk/bind";
/// The number of a disk in a virtio device's `device` file.
const DISK: &str = "0x0002";
/// The partitions, and where they are seen while the root is made.
const PARTS: [(&str, &str); 2] = [("/dev/vda1", "first"), ("/dev/vda2", "second")];
/// Looks at a partition, a millisecond apart: some 20 ms after a root's last process.
const FREE_TRIES: usize = 5_000;
/// What takes the task's writes.
pub(super) const UPPER: &str = "/layer/root/upper";
/// Inside the new root, for as long as it is made.
const STAGE: &str = "/.cofferdam/stage";

/// Gives the disk to its driver; the partitions' devices are there when this returns.
pub(super) fn bind() -> Result<(), Fault> {
    let entries = fs::read_dir(DEVICES).map_err(at(DEVICES))?;
    let is_disk = |path: &PathBuf| {
        fs::read_to_string(path.join("device")).is_ok_and(|device| device.trim() == DISK)
    };
    let found = entries.flatten().map(|entry| entry.path()).find(is_disk);
    let name = found.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    let name = name.ok_or_else(|| at("no disk")(io::Error::from(io::ErrorKind::NotFound)))?;
    write(BIND, name)
}

/// Waits until nobody has the partitions mounted. What the kernel has read of them is forgotten then: the
/// next mount reads them anew.
pub(super) async fn wait_until_free() -> Result<(), Fault> {
    for (device, _) in PARTS {
        let mut tries = 0;
        // An exclusive opener is refused while a file system has it, which goes a little later than the
        // last process that saw it.
        let exclusive = || OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device);
        while let Err(error) = exclusive() {
            tries += 1;
            if tries > FREE_TRIES || error.kind() != io::ErrorKind::ResourceBusy {
                return Err(at(device)(error));
            }
            sleep_ms(1).await;
        }
    }
    Ok(())
}

/// Mounts the partitions and the writable layer.
pub(super) fn lay(setup: &Setup) -> Result<(), Fault> {
    for dir in ["/disk/first", "/disk/second", "/layer", ROOT] {
        fs::create_dir_all(dir).map_err(at(dir))?;
    }
    for (device, name) in PARTS {
        let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
        let place = Path::new("/disk").join(name);
        mount(device, &place, "erofs", flags, None).map_err(at(device))?;
    }
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    let size = format!("size={}m,mode=0700", setup.disk_mb);
    make("tmpfs", Path::new("/layer"), flags, Some(&size))?;
    fs::create_dir_all(UPPER).map_err(at(UPPER))
}

/// Mounts the root above them.
pub(super) fn assemble(setup: &Setup) -> Result<(), Fault> {
    let lowers: Vec<String> = (0..setup.lowers).map(|n| format!("/disk/first/{n}")).collect();
    overlay(Path::new(ROOT), &lowers.join(":"), Path::new("/layer/root"))?;
    // The trees are put into their places from inside the new root, where its links lead nowhere
    // else.
    let stage = bare_stage().map_err(at(STAGE))?;
    for (from, name) in [("/disk", "disk"), ("/layer", "layer")] {
        let to = stage.join(name);
        fs::create_dir_all(&to).map_err(at(to.display().to_string()))?;
        mount_bind_recursive(from, &to).map_err(at(from))?;
    }
    Ok(())
}

/// The stage, made anew. What an image or a snapshot has in its way may be a link, which would lead out of the new root.
fn bare_stage() -> io::Result<PathBuf> {
    let mut stage = PathBuf::from(ROOT);
    for name in Path::new(STAGE.trim_start_matches('/')) {
        stage.push(name);
        match fs::symlink_metadata(&stage) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                fs::remove_file(&stage)?;
                fs::create_dir(&stage)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir(&stage)?,
            Err(error) => return Err(error),
        }
    }
    // It neither follows links.
    fs::remove_dir_all(&stage)?;
    fs::create_dir(&stage)?;
    Ok(stage)
}

/// Puts the trees into their places in the root, which is `/` by now, and takes the stage away.
pub(super) fn show(trees: &[Tree]) -> Result<(), Fault> {
    let stage = Path::new(STAGE);
    for (number, tree) in trees.iter().enumerate() {
        let from = stage.join("disk").join(tree.source.trim_start_matches('/'));
        let to = Path::new(&tree.target);
        let found = fs::symlink_metadata(&from).map_err(at(&tree.source))?;
        place(to, found.is_dir()).map_err(at(&tree.target))?;
        if tree.writable {
            let work = stage.join("layer").join(format!("tree-{number}"));
            overlay(to, &from.to_string_lossy(), &work)?;
            if let Some(shown) = &tree.changes {
                show_changes(&work.join("upper"), Path::new(shown))?;
            }
        } else {
            mount_bind(&from, to).map_err(at(&tree.target))?;
        }
    }
    for name in ["disk/first", "disk/second", "disk", "layer"] {
        let path = stage.join(name);
        // The mounts that were made of them keep them.
        unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).map_err(at(name))?;
    }
    fs::remove_dir_all(stage).map_err(at(STAGE))
}

/// Shows a directory once more: what is written at one place is there at the other.
pub(super) fn again(target: &Path, second: &Path) -> Result<(), Fault> {
    let name = second.display().to_string();
    place(second, true).map_err(at(&name))?;
    mount_bind(target, second).map_err(at(name))
}

/// Shows an upper layer read-only: an overlay's own may not be written to while it is mounted.
fn show_changes(upper: &Path, shown: &Path) -> Result<(), Fault> {
    let name = shown.display().to_string();
    fs::create_dir_all(shown).map_err(at(&name))?;
    mount_bind(upper, shown).map_err(at(&name))?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
    mount_remount(shown, flags, "").map_err(at(name))
}

/// A directory and those above it. What the files that a sandbox begins with have in its way, such as a link that leads nowhere, gives
/// way: nothing of them runs yet, and the root is the machine's alone.
pub(super) fn dirs(at: &Path) -> io::Result<()> {
    let mut path = PathBuf::new();
    for name in at {
        path.push(name);
        let is_there = fs::symlink_metadata(&path).is_ok();
        if is_there && !path.is_dir() {
            fs::remove_file(&path)?;
        }
    }
    fs::create_dir_all(at)
}

/// What a tree is mounted on.
fn place(at: &Path, dir: bool) -> io::Result<()> {
    if dir {
        return dirs(at);
    }
    if let Some(parent) = at.parent() {
        dirs(parent)?;
    }
    match OpenOptions::new().write(true).create_new(true).open(at) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn overlay(to: &Path, lower: &str, place: &Path) -> Result<(), Fault> {
    let (upper, work) = (place.join("upper"), place.join("work"));
    for dir in [&upper, &work] {
        fs::create_dir_all(dir).map_err(at(dir.display().to_string()))?;
    }
    let data = format!("lowerdir={lower},upperdir={},workdir={}", upper.display(), work.display());
    make("overlay", to, MountFlags::NODEV | MountFlags::NOSUID, Some(&data))
}
