//! The sandbox's root in place of the image's.
//!
//! ```text
//! worker's mounts      overlay at <dir>/root, host paths  --clone--> detached mounts, as descriptors
//! container's mounts   image at /   --a thread of ours enters-->  attach the overlay at /sandbox
//!                      move /proc, /dev, /sys into it -> pivot -> detach the image -> attach the paths
//! ```
//! The engine lives in the host's mount namespace and would not see what a worker with mounts of its own
//! has mounted; a detached mount can be carried into any namespace. `pivot_root` changes the root of
//! every process of the namespace that has the old one, which is the agent alone: **the task meets the same
//! root as in the class `container`, and what the engine put into the image's is gone.** Targets are
//! resolved inside, where a link of the root leads nowhere else. On the way the thread gives the container's
//! loopback its IPv6 address back.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{chdir, pivot_root};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use serde_json::Value;

use super::client::EngineError;
use super::image::ROOT;
use crate::host::mounts::mount_with;
use crate::host::traces::Traces;

/// What the engine mounts and the sandbox keeps, with all that is mounted in it.
const KEPT: [&str; 3] = ["/proc", "/dev", "/sys"];
/// What it mounts there besides, of which the class `container` has nothing.
const DROPPED: [&str; 2] = ["/sys/fs/cgroup", "/dev/mqueue"];
/// Mounts in one place: an engine makes its own and a mask.
const MOST_MOUNTS: usize = 8;
/// `/dev` as in the class `container`: room for links, and none for data that no limit would count.
const DEV: &str = "mode=755,size=64k";

fn fault(what: impl Into<String>) -> impl FnOnce(io::Error) -> EngineError {
    let what = what.into();
    |source| EngineError::Root { what, source }
}

/// A mount of the worker's, detached.
struct DetachedMount {
    tree: OwnedFd,
    target: String,
    is_dir: bool,
    flags: MsFlags,
}

/// All that the sandbox is to see.
pub(super) struct Tree {
    root: OwnedFd,
    carried: Vec<DetachedMount>,
}

impl Tree {
    /// Of the root that is mounted, and the mounts of an OCI configuration that name a host path.
    pub(super) fn of(traces: &Traces, mounts: &[Value]) -> Result<Self, EngineError> {
        let root = detached(&traces.root).map_err(fault("its root file system"))?;
        let mut carried = Vec::new();
        for (index, one) in mounts.iter().enumerate() {
            let text = |field: &str| one.get(field).and_then(Value::as_str).unwrap_or_default();
            let target = text("destination").to_owned();
            let options: Vec<&str> = one
                .get("options")
                .and_then(Value::as_array)
                .map(|all| all.iter().filter_map(Value::as_str).collect())
                .unwrap_or_default();
            let source = match text("type") {
                "bind" => PathBuf::from(text("source")),
                "overlay" => {
                    let at = traces.layer.join(format!("over-{index}"));
                    overlay(&at, &options).map_err(fault(target.clone()))?;
                    at
                }
                _ => continue,
            };
            let is_dir = source.is_dir();
            let tree = detached(&source).map_err(fault(source.to_string_lossy()))?;
            carried.push(DetachedMount { tree, target, is_dir, flags: flags(&options) });
        }
        Ok(Self { root, carried })
    }
}

fn overlay(at: &Path, options: &[&str]) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(at)?;
    let named = options.iter().filter(|option| option.contains('='));
    let named: Vec<String> = named.map(|option| (*option).to_owned()).collect();
    Ok(mount_with(at, &named)?)
}

/// A copy of what is mounted there, or of the path, that is mounted nowhere.
fn detached(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(open_tree(CWD, path, flags)?)
}

fn flags(options: &[&str]) -> MsFlags {
    let has = |name: &str, flag| if options.contains(&name) { flag } else { MsFlags::empty() };
    has("ro", MsFlags::MS_RDONLY)
        | has("nosuid", MsFlags::MS_NOSUID)
        | has("nodev", MsFlags::MS_NODEV)
}

/// The namespaces of a container that are set up.
pub(super) struct Inside {
    mounts: File,
    net: File,
}

impl Inside {
    /// Of this process, if it is the container's and has the users of this host.
    pub(super) fn of(pid: u32, container: &str) -> Option<Self> {
        let open = |kind: &str| File::open(format!("/proc/{pid}/ns/{kind}")).ok();
        let (mounts, net) = (open("mnt")?, open("net")?);
        let users = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/user")).ok();
        if users(&pid.to_string()) != users("self") {
            return None;
        }
        // Looked at last: then everything before was this container's.
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        groups.contains(container).then_some(Self { mounts, net })
    }

    /// Gives its processes this tree as their root.
    pub(super) fn show(&self, tree: Tree) -> Result<(), EngineError> {
        // It ends in there: no thread of the worker's ever moves.
        thread::scope(|scope| match scope.spawn(|| self.enter(tree)).join() {
            Ok(shown) => shown,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    fn enter(&self, Tree { root, carried }: Tree) -> Result<(), EngineError> {
        // A thread that shares its root and directory with others may not change namespaces.
        unshare(CloneFlags::CLONE_FS).map_err(os("a thread of its own"))?;
        setns(&self.net, CloneFlags::CLONE_NEWNET).map_err(os("entering its network"))?;
        whole_loopback().map_err(fault("its loopback"))?;
        setns(&self.mounts, CloneFlags::CLONE_NEWNS).map_err(os("entering its mounts"))?;
        attach(&root, ROOT).map_err(fault("attaching"))?;
        let own = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
        mount(None::<&str>, ROOT, None::<&str>, own, None::<&str>).map_err(os("owning"))?;
        for dir in KEPT {
            let to = format!("{ROOT}{dir}");
            mount(Some(dir), to.as_str(), None::<&str>, MsFlags::MS_MOVE, None::<&str>)
                .map_err(os(dir))?;
        }
        for dir in DROPPED {
            drop_mounts(&format!("{ROOT}{dir}")).map_err(fault(dir))?;
        }
        chdir(ROOT).map_err(os("entering"))?;
        // The old root is then mounted on the new one, and goes from there.
        pivot_root(".", ".").map_err(os("pivoting"))?;
        umount2(".", MntFlags::MNT_DETACH).map_err(os("detaching the image"))?;
        chdir("/").map_err(os("entering"))?;
        let strict =
            MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC | MsFlags::MS_STRICTATIME;
        mount(None::<&str>, "/dev", None::<&str>, strict, Some(DEV)).map_err(os("/dev"))?;
        for one in carried {
            one.place().map_err(fault(one.target.clone()))?;
        }
        Ok(())
    }
}

/// The engine takes IPv6 away from a container without a network, and with it `::1`. The files are those
/// of the namespace that the thread is in.
fn whole_loopback() -> io::Result<()> {
    for device in ["all", "lo"] {
        match fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "0") {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            written => written?,
        }
    }
    Ok(())
}

impl DetachedMount {
    /// As an OCI runtime does: what is missing of the target is made, in the layer.
    fn place(&self) -> io::Result<()> {
        let at = Path::new(&self.target);
        if fs::metadata(at).is_err() {
            let dir = if self.is_dir { Some(at) } else { at.parent() };
            if let Some(dir) = dir {
                DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
            }
            if !self.is_dir {
                File::create(at)?;
            }
        }
        attach(&self.tree, &self.target)?;
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | self.flags;
        Ok(mount(None::<&str>, at, None::<&str>, flags, None::<&str>)?)
    }
}

fn attach(tree: &OwnedFd, target: &str) -> io::Result<()> {
    Ok(move_mount(tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Whatever is mounted there, in layers: on version 1 of cgroups an engine masks its tree by another mount.
fn drop_mounts(at: &str) -> io::Result<()> {
    for _ in 0..MOST_MOUNTS {
        match umount2(at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            // None is left, or it is not there at all: an engine may leave it out.
            Err(nix::Error::EINVAL | nix::Error::ENOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other("more mounts in one place than an engine makes"))
}

fn os(what: &'static str) -> impl FnOnce(nix::Error) -> EngineError {
    move |error| fault(what)(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_hold_a_mount_are_flags_and_none_is_made_up() {
        let read_only = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        assert_eq!(flags(&["bind", "ro", "nosuid", "nodev"]), read_only);
        assert_eq!(flags(&["bind", "rw"]), MsFlags::empty());
    }

    #[test]
    fn a_process_that_is_not_the_containers_is_not_entered() {
        assert!(Inside::of(std::process::id(), "no-such-container").is_none());
    }
}
