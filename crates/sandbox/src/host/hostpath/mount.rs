//! What was opened, mounted at a place of ours: from then on a runtime finds it by a path that nobody
//! else can change.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{CWD, StatVfsMountFlags, fstatvfs};
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, mount_remount, move_mount, open_tree,
};

use super::HostHandle;

/// Makes `target`, which must not be there, and mounts a copy of the opened file or directory on it,
/// without what is mounted below. The copy is attached only after its descriptor was cloned, so a name
/// that was exchanged meanwhile is never looked at.
pub(crate) fn mount_at(opened: &HostHandle, target: &Path, readonly: bool) -> io::Result<()> {
    match opened.is_dir() {
        true => DirBuilder::new().mode(0o700).create(target)?,
        false => {
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(target).map(drop)?;
        }
    }
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(opened, "", clone)?;
    let kept = kept(fstatvfs(&tree)?.f_flag);
    move_mount(&tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    let read = if readonly { MountFlags::RDONLY } else { MountFlags::empty() };
    let flags = MountFlags::NOSUID | MountFlags::NODEV | read | kept;
    Ok(mount_remount(target, MountFlags::BIND | flags, "")?)
}

/// What the host's own mount of it refuses is refused on: a remount would forget it.
fn kept(found: StatVfsMountFlags) -> MountFlags {
    let has = |one, flag| if found.contains(one) { flag } else { MountFlags::empty() };
    has(StatVfsMountFlags::RDONLY, MountFlags::RDONLY)
        | has(StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC)
}
