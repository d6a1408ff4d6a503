//! Device nodes of a sandbox that has ids of its own: inodes that no other sandbox and no program of the host opens.
//!
//! Its root may make no nodes, so a runtime would bind the host's: a watch on them tells what the whole host opens, and
//! a lock on them is a lock on everybody's. The worker makes them, on a file system of each sandbox's own. Which devices they open
//! is the device rules' of its cgroups, as ever.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Uid, chmodat, chownat, makedev, mkdirat, mknodat, openat,
    symlinkat,
};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// What an OCI runtime makes in every `/dev`: name, major and minor number.
const NODES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];
/// What it makes there besides.
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];
/// Where the runtime mounts something.
const DIRS: [&str; 2] = ["pts", "shm"];
const ANYBODYS: u32 = 0o666;
/// As a runtime's own `/dev`.
const SIZE: &str = "64k";

/// A `/dev` of this owner, mounted nowhere yet.
pub(crate) fn make(first: u32) -> io::Result<OwnedFd> {
    let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in [("size", SIZE), ("mode", "755")] {
        fsconfig_set_string(&tmpfs, name, value)?;
    }
    fsconfig_create(&tmpfs)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let dev = fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    let (uid, gid) = (Some(Uid::from_raw(first)), Some(Gid::from_raw(first)));
    let own = |name: &str| chownat(&dev, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
    let mode = Mode::from_raw_mode(ANYBODYS);
    for (name, major, minor) in NODES {
        mknodat(&dev, name, FileType::CharacterDevice, mode, makedev(major, minor))?;
        // Whatever this process takes off the modes of new files.
        chmodat(&dev, name, mode, AtFlags::empty())?;
        own(name)?;
    }
    for (to, name) in LINKS {
        symlinkat(to, &dev, name)?;
        own(name)?;
    }
    for name in DIRS {
        mkdirat(&dev, name, Mode::from_raw_mode(0o755))?;
        own(name)?;
    }
    chownat(&dev, "", uid, gid, AtFlags::EMPTY_PATH)?;
    Ok(dev)
}

/// Whether this worker makes nodes that can be opened. Why not, otherwise.
pub(crate) fn try_one() -> io::Result<()> {
    let dev = make(0)?;
    for (name, ..) in NODES.iter().filter(|(name, ..)| *name != "tty") {
        openat(&dev, *name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    }
    Ok(())
}
