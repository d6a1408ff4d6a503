//! What a directory has, by its descriptor: no link is followed, nothing recurses, and what is mounted below is an empty directory, as
//! in a share. Sockets, pipes and devices are left out: a task could do nothing with them.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, Statx, StatxFlags, makedev, openat, openat2, readlinkat, statx,
};
use rustix::io::Errno;

use super::bounds::TreeBounds;
use super::entry::{Entry, EntryKind, FileKey, FileOwner, Time};
use super::error::TreeError;
use crate::host::hostpath::{HostHandle, is_state};
use crate::host::open_flags::{DIRECTORY, WITHIN};

const LOOK: AtFlags =
    AtFlags::EMPTY_PATH.union(AtFlags::SYMLINK_NOFOLLOW).union(AtFlags::NO_AUTOMOUNT);
/// The kernel's own bound of a path.
const MAX_PATH_BYTES: usize = 4_095;

/// Bytes of the paths and of the targets of links of one tree, which are in memory while it is bound: 500,000 entries with twice the
/// length that is usual. Deep directories could have as many with gigabytes.
pub(super) const MAX_NAME_BYTES: usize = 128 * 1024 * 1024;

/// Everything in the order of its path's bytes, the tree itself first.
pub(super) fn walk(top: &HostHandle, bounds: TreeBounds) -> Result<Vec<Entry>, TreeError> {
    walk_within(top, bounds, MAX_NAME_BYTES)
}

/// The same with at most so many bytes of paths and targets.
pub(super) fn walk_within(
    top: &HostHandle,
    bounds: TreeBounds,
    names_left: usize,
) -> Result<Vec<Entry>, TreeError> {
    let at_top = |errno: Errno| fault(Path::new(""), errno);
    let root = statx(top, "", LOOK, wanted()).map_err(at_top)?;
    let mut walk =
        TreeWalk { entries: Vec::new(), bounds, bytes: 0, names_left, mount: root.stx_mnt_id };
    if top.is_file() {
        let kind = EntryKind::File(key_of(&root));
        walk.take(entry(Vec::new(), kind, &root))?;
        return Ok(walk.entries);
    }
    if !top.is_dir() {
        return Err(TreeError::Kind);
    }
    walk.take(entry(Vec::new(), EntryKind::Directory, &root))?;
    let top = openat(top, ".", DIRECTORY, Mode::empty()).map_err(at_top)?;
    let mut open = vec![Vec::new()];
    while let Some(dir) = open.pop() {
        walk.dir(&top, &dir, &mut open)?;
    }
    walk.entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(walk.entries)
}

/// Number of the entries, bytes of the files so far.
struct TreeWalk {
    entries: Vec<Entry>,
    bounds: TreeBounds,
    bytes: u64,
    names_left: usize,
    /// The mount that the directory itself is reached by.
    mount: u64,
}

impl TreeWalk {
    fn dir(
        &mut self,
        top: &OwnedFd,
        path: &[u8],
        open: &mut Vec<Vec<u8>>,
    ) -> Result<(), TreeError> {
        let shown = Path::new(OsStr::from_bytes(path));
        let opened = match path.is_empty() {
            true => openat(top, ".", DIRECTORY, Mode::empty()),
            false => openat2(top, path, DIRECTORY, Mode::empty(), WITHIN),
        };
        let dir = match opened {
            // Mounted since, or gone.
            Err(Errno::XDEV | Errno::NOENT) => return Ok(()),
            opened => opened.map_err(|errno| fault(shown, errno))?,
        };
        let is_hidden =
            is_state(&dir).map_err(|source| TreeError::Io { path: shown.to_owned(), source })?;
        if is_hidden && !path.is_empty() {
            return Ok(());
        }
        let list = Dir::read_from(&dir).map_err(|errno| fault(shown, errno))?;
        for found in list {
            let found = found.map_err(|errno| fault(shown, errno))?;
            let name = found.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            // What went away meanwhile was not there.
            let Ok(stat) = statx(&dir, name, LOOK, wanted()) else { continue };
            let mut below = path.to_vec();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(name.to_bytes());
            if below.len() > MAX_PATH_BYTES {
                return Err(TreeError::Long(PathBuf::from(OsStr::from_bytes(&below))));
            }
            let is_here = stat.stx_mnt_id == self.mount;
            let kind = match FileType::from_raw_mode(u32::from(stat.stx_mode)) {
                FileType::Directory => {
                    if is_here {
                        open.push(below.clone());
                    }
                    EntryKind::Directory
                }
                FileType::RegularFile if is_here => EntryKind::File(key_of(&stat)),
                FileType::Symlink => match readlinkat(&dir, name, Vec::new()) {
                    Ok(target) => EntryKind::Link(target.into_bytes()),
                    Err(_) => continue,
                },
                _ => continue,
            };
            self.take(entry(below, kind, &stat))?;
        }
        Ok(())
    }

    fn take(&mut self, entry: Entry) -> Result<(), TreeError> {
        let target = match &entry.kind {
            EntryKind::Link(target) => target.len(),
            _ => 0,
        };
        let left = self.names_left.checked_sub(entry.path.len() + target);
        self.names_left = left.ok_or(TreeError::Names(MAX_NAME_BYTES))?;
        let size = entry.key().map_or(0, |key| key.size);
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.bounds.bytes {
            return Err(TreeError::Bytes(self.bounds.bytes));
        }
        if self.entries.len() >= self.bounds.entries {
            return Err(TreeError::Entries(self.bounds.entries));
        }
        self.entries.push(entry);
        Ok(())
    }
}

fn wanted() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::MNT_ID
}

fn entry(path: Vec<u8>, kind: EntryKind, found: &Statx) -> Entry {
    let owner = match kind {
        EntryKind::Link(_) => FileOwner { mode: 0o777, ..owner_of(found) },
        _ => owner_of(found),
    };
    Entry { path, kind, owner, modified: key_of(found).modified, links: found.stx_nlink }
}

fn owner_of(found: &Statx) -> FileOwner {
    let mode = u32::from(found.stx_mode) & 0o777;
    FileOwner { mode, uid: found.stx_uid, gid: found.stx_gid }
}

/// As `statx` says it.
fn key_of(found: &Statx) -> FileKey {
    FileKey {
        device: makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        size: found.stx_size,
        modified: Time { seconds: found.stx_mtime.tv_sec, nanos: found.stx_mtime.tv_nsec },
        changed: Time { seconds: found.stx_ctime.tv_sec, nanos: found.stx_ctime.tv_nsec },
    }
}

/// Both of a file that is open, as they were at one time.
pub(super) fn look(file: &std::fs::File) -> rustix::io::Result<(FileKey, FileOwner)> {
    statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
        .map(|found| (key_of(&found), owner_of(&found)))
}

pub(super) fn fault(path: &Path, errno: Errno) -> TreeError {
    TreeError::Io { path: path.to_owned(), source: errno.into() }
}
