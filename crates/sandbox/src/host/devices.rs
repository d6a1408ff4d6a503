//! Device nodes of a sandbox that has ids of its own: inodes that no other sandbox and no program of the host opens.
//!
//! Its root may make no nodes, so a runtime would bind the host's: a watch on them tells what the whole host opens, and
//! a lock on them is a lock on everybody's. The worker makes them, in each sandbox's own layer, whose end is the end of all that
//! a task wrote beside them, too. Which devices they open is the device rules' of its cgroups, as ever.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use cofferdam_guest::devices::{LINKS, NODES};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Uid, chmodat, chownat, makedev, mkdirat, mknodat, openat,
    symlinkat,
};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// What a runtime mounts there, and anybody's shared memory, which is the layer's where that lies in memory: name and mode.
const DIRS: [(&str, u32); 2] = [("pts", 0o755), ("shm", 0o1777)];
const ANYBODYS: u32 = 0o666;

/// Directory of the layer, and of no tenant, in which lies what a runtime binds.
pub(crate) fn beside(layer: &Path) -> PathBuf {
    layer.join("beside")
}

/// An empty directory in it.
pub(crate) fn nothing(beside: &Path) -> PathBuf {
    beside.join("none")
}

/// A directory in it with a place for each group of version 1.
pub(crate) fn groups(beside: &Path) -> PathBuf {
    beside.join("groups")
}

/// A `/dev` in it.
pub(crate) fn dev(beside: &Path) -> PathBuf {
    beside.join("dev")
}

/// Where the `/dev` of a sandbox lies in its layer, if that holds one.
pub(crate) fn of(layer: &Path) -> PathBuf {
    dev(&beside(layer))
}

/// Makes a directory a `/dev` of this owner.
pub(crate) fn furnish(dev: &impl AsFd, first: u32) -> io::Result<()> {
    let (uid, gid) = (Some(Uid::from_raw(first)), Some(Gid::from_raw(first)));
    let own = |name: &str| chownat(dev, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
    let mode = Mode::from_raw_mode(ANYBODYS);
    for (name, major, minor) in NODES {
        mknodat(dev, name, FileType::CharacterDevice, mode, makedev(major, minor))?;
        // Whatever this process takes off the modes of new files.
        chmodat(dev, name, mode, AtFlags::empty())?;
        own(name)?;
    }
    for (to, name) in LINKS {
        symlinkat(to, dev, name)?;
        own(name)?;
    }
    for (name, mode) in DIRS {
        let mode = Mode::from_raw_mode(mode);
        mkdirat(dev, name, mode)?;
        chmodat(dev, name, mode, AtFlags::empty())?;
        own(name)?;
    }
    Ok(chownat(dev, "", uid, gid, AtFlags::EMPTY_PATH)?)
}

/// Whether this worker makes nodes that can be opened. Why not, otherwise.
pub(crate) fn try_one() -> io::Result<()> {
    let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&tmpfs)?;
    let dev = fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    furnish(&dev, 0)?;
    for (name, ..) in NODES.iter().filter(|(name, ..)| *name != "tty") {
        openat(&dev, *name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    }
    Ok(())
}
