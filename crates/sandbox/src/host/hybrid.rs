//! A host with both cgroup versions, seen without the second.
//!
//! crun refuses to work where version 2 is mounted beside version 1. Where it is merely unmounted crun takes the
//! directory that is left for one more hierarchy: it makes a directory of each sandbox in it, with a file, which
//! nobody removes and, under the host's mount, nobody sees; 4 KiB of the host's memory each. So there is no such
//! directory.
//!
//! ```text
//! /sys/fs/cgroup, the host's          ours: a tmpfs that is read-only from then on
//!   cpu, memory, ..   version 1  --->   the same hierarchies, the same links
//!   unified           version 2
//! ```

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_remount, move_mount,
    open_tree, unmount,
};

const ROOT: &str = "/sys/fs/cgroup";
/// Where a hybrid host has its version 2 tree.
pub(crate) const UNIFIED: &str = "/sys/fs/cgroup/unified";

/// What is found again in our view.
enum HybridEntry {
    Tree(OwnedFd),
    Link(PathBuf),
}

/// Hides the version 2 tree from this mount namespace, which must be of our own.
pub(crate) fn hide_unified() -> io::Result<()> {
    let mut shown = Vec::new();
    for entry in fs::read_dir(ROOT)? {
        let entry = entry?;
        if entry.path() == Path::new(UNIFIED) {
            continue;
        }
        let what = match entry.file_type()? {
            kind if kind.is_dir() => {
                let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
                HybridEntry::Tree(open_tree(CWD, entry.path(), flags)?)
            }
            kind if kind.is_symlink() => HybridEntry::Link(fs::read_link(entry.path())?),
            _ => continue,
        };
        shown.push((entry.file_name(), what));
    }
    unmount(ROOT, UnmountFlags::DETACH)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", ROOT, "tmpfs", flags, c"size=64k,mode=755")?;
    for (name, what) in shown {
        show(&name, what)?;
    }
    Ok(mount_remount(ROOT, flags | MountFlags::RDONLY, "")?)
}

fn show(name: &OsStr, what: HybridEntry) -> io::Result<()> {
    let path = Path::new(ROOT).join(name);
    match what {
        HybridEntry::Tree(tree) => {
            fs::create_dir(&path)?;
            move_mount(tree, "", CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        }
        HybridEntry::Link(to) => symlink(to, &path)?,
    }
    Ok(())
}
