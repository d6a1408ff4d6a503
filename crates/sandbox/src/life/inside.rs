//! Inputs of a sandbox that has ids of its own, mounted in its root before there is anybody in it.
//!
//! A target is resolved within the root, where a link leads nowhere else; what is missing of it is made, as an OCI runtime
//! does, and belongs to the sandbox's root.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, mkdirat, openat, openat2,
};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, move_mount};
use serde_json::Value;

use crate::class::shown::Overlay;
use crate::host::devices;
use crate::host::idrange::{self, IdRanges, Taken, shifted};
use crate::life::error::{BootError, fault};

/// Mounted there by the runtime, later.
const RUNTIMES: [&str; 3] = [DEV, "/proc", "/sys"];
const DEV: &str = "/dev";

/// Mounts one bind of an OCI configuration. What lies in the sandbox's own layer, or is shown through an overlay, has its
/// ids already. A directory to
/// write through shows its owner's files as root's, and what root makes there is its owner's.
pub(crate) fn show(
    (root, layer, overlays): (&Path, &Path, &[Overlay]),
    mount: &Value,
    ranges: &IdRanges,
    taken: &Taken,
) -> Result<(), BootError> {
    let text = |field: &str| mount.get(field).and_then(Value::as_str).unwrap_or_default();
    let (source, target) = (Path::new(text("source")), Path::new(text("destination")));
    let options = mount.get("options").and_then(Value::as_array);
    let readonly = options.is_some_and(|all| all.iter().any(|option| option == "ro"));
    let found = fs::metadata(source).map_err(fault("showing", source))?;
    let has_ids = source.starts_with(layer) || overlays.iter().any(|overlay| overlay.at == source);
    let tree = match (has_ids, readonly) {
        (true, _) => shifted(source, None, readonly),
        (false, true) => shifted(source, Some(&taken.space), true),
        (false, false) => ranges
            .owned(found.uid(), found.gid(), taken.first)
            .and_then(|owned| shifted(source, Some(&owned), false)),
    };
    let tree = tree.map_err(fault("showing with other ids", source))?;
    let placed = if RUNTIMES.iter().any(|dir| target.starts_with(dir)) {
        Err(io::Error::other("the runtime mounts something of its own over it"))
    } else {
        attach(&tree, (root, target), found.is_dir(), taken.first)
    };
    placed.map_err(fault("mounting in the sandbox", target))
}

/// Mounts a `/dev` with nodes of the sandbox's own, which lies in its layer; the runtime takes it as it is.
pub(crate) fn show_devices(root: &Path, layer: &Path, taken: &Taken) -> Result<(), BootError> {
    let (at, dev) = (Path::new(DEV), devices::of(layer));
    let made = (|| {
        fs::create_dir(&dev)?;
        let opened = File::open(&dev)?;
        // Whatever this process takes off the modes of new files.
        opened.set_permissions(Permissions::from_mode(0o755))?;
        devices::furnish(&opened, taken.first)?;
        idrange::with_devices(&dev)
    })();
    let tree = made.map_err(fault("making the nodes of", at))?;
    attach(&tree, (root, at), true, taken.first).map_err(fault("mounting in the sandbox", at))
}

fn attach(
    tree: &OwnedFd,
    (root, target): (&Path, &Path),
    is_dir: bool,
    first: u32,
) -> io::Result<()> {
    let at = place(root, target, is_dir, first)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, "", &at, "", flags)?)
}

/// Opens the target, made where it is missing.
fn place(root: &Path, target: &Path, is_dir: bool, first: u32) -> io::Result<OwnedFd> {
    let top = openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let names: Vec<&OsStr> = target
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let mut path = std::path::PathBuf::new();
    let mut at = top.as_fd().try_clone_to_owned()?;
    for (index, name) in names.iter().enumerate() {
        path.push(name);
        let is_last = index + 1 == names.len();
        let found = within(&top, &path);
        at = match found {
            Err(Errno::NOENT) => {
                make(&at, name, is_dir || !is_last, first)?;
                within(&top, &path)?
            }
            found => found?,
        };
    }
    Ok(at)
}

fn within(top: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(top, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

fn make(at: &OwnedFd, name: &OsStr, is_dir: bool, first: u32) -> io::Result<()> {
    if is_dir {
        mkdirat(at, name, Mode::from_raw_mode(0o755))?;
    } else {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        openat(at, name, flags, Mode::from_raw_mode(0o644))?;
    }
    let (uid, gid) = (Uid::from_raw(first), Gid::from_raw(first));
    Ok(chownat(at, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
}
