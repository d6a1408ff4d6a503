//! Files of a directory, read by every processor: hashed, and copied in the same reading.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use cofferdam_ambient::clock;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, chmodat, chownat,
    fchmod, fchown, futimens, ioctl_ficlone, linkat, mkdirat, openat, symlinkat, utimensat,
};
use rustix::process::{getegid, geteuid};
use sha2::{Digest as _, Sha256 as Hasher};

use super::allowance::DiskAllowance;
use super::entry::{Entry, EntryKind, FileKey, FileOwner, Sha256, Time};
use super::error::TreeError;
use super::walk::{fault, look};
use crate::host::hostpath::HostHandle;

/// Bytes that are read at once: in the processor's cache while they are hashed and written.
const BUFFER: usize = 256 * 1024;
/// Files that a thread takes at a time.
const CHUNK: usize = 16;
/// More threads than this wait for the file system.
const MAX_THREADS: usize = 16;
/// A file that changed less than this before it was read may change again without another time: within a tick of its file system's clock by
/// `write(2)`, of 10 ms at most, or of two seconds where times have no parts of one; in mapped memory for as long as its page was not
/// written back, which takes the kernel 35 s by default.
pub(super) const SETTLE_MS: i64 = 60_000;

/// A file as it was read.
#[derive(Debug, Clone)]
pub(super) struct FileRead {
    pub sha256: Sha256,
    /// Its key, with the bytes that were read.
    pub key: FileKey,
    /// As it was with this key: a listing is older.
    pub owner: FileOwner,
    /// Whether whoever finds this key again finds this content.
    pub is_settled: bool,
}

/// Where an entry is copied to.
pub(super) struct TreeDraft {
    root: PathBuf,
    /// The directory that is filled; of a tree that is one file, the one that holds it.
    top: OwnedFd,
    allowance: DiskAllowance,
    has_reflinks: AtomicBool,
}

/// Reads of one binding.
pub(super) struct TreeReader<'a> {
    pub source: &'a HostHandle,
    /// Whether times of files that are not new tell of every change, see [`super::times`].
    pub is_local: bool,
    /// Bytes that may still be read: a file may grow after it was looked at.
    pub left: AtomicU64,
}

/// Does the same for each index on all processors, in any order; the first error ends it.
pub(super) fn on_all<T: Send>(
    places: &[usize],
    work: impl Fn(usize, &mut Vec<u8>) -> Result<T, TreeError> + Sync,
) -> Result<Vec<(usize, T)>, TreeError> {
    let next = AtomicUsize::new(0);
    let part = || {
        let (mut done, mut buffer) = (Vec::new(), vec![0; BUFFER]);
        loop {
            let begin = next.fetch_add(CHUNK, Ordering::Relaxed);
            let Some(rest) = places.get(begin..).filter(|rest| !rest.is_empty()) else {
                return Ok(done);
            };
            for place in rest.iter().take(CHUNK) {
                match work(*place, &mut buffer) {
                    Ok(made) => done.push((*place, made)),
                    Err(error) => {
                        next.store(places.len(), Ordering::Relaxed);
                        return Err(error);
                    }
                }
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, |count| count.get().min(MAX_THREADS));
    let threads = threads.min(places.len().div_ceil(CHUNK)).max(1);
    let parts = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(part)).collect();
        let mut parts = vec![part()];
        parts.extend(others.into_iter().map(|other| {
            let lost = || TreeError::of_thread("a thread that read a part of it ended");
            other.join().unwrap_or_else(|_| Err(lost()))
        }));
        parts
    });
    let mut all = Vec::with_capacity(places.len());
    for part in parts {
        all.extend(part?);
    }
    Ok(all)
}

/// What a file's bytes are written to as they are hashed.
#[derive(Clone, Copy)]
struct CopyTarget<'a> {
    file: &'a File,
    allowance: &'a DiskAllowance,
}

impl TreeReader<'_> {
    /// Reads a file; `None`: it is gone. `draft`: copies it there.
    pub(super) fn read(
        &self,
        entry: &Entry,
        draft: Option<&TreeDraft>,
        buffer: &mut [u8],
    ) -> Result<Option<FileRead>, TreeError> {
        let io_fault = |source| TreeError::Io { path: entry.path().to_owned(), source };
        let file = match self.source.file(entry.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(io_fault)?,
        };
        let began = clock::host_ms();
        let before = look(&file).map_err(|errno| fault(entry.path(), errno))?;
        let (key, owner) = before;
        let (sha256, size) = match draft {
            None => self.hash(&file, None, buffer, io_fault)?,
            Some(draft) => {
                draft.allowance.file()?;
                let copy = draft.create(entry).map_err(io_fault)?;
                let read = match draft.is_clone(&copy, &file) {
                    // What was cloned cannot change any more.
                    true => self.hash(&copy, None, buffer, io_fault)?,
                    false => {
                        let target = CopyTarget { file: &copy, allowance: &draft.allowance };
                        self.hash(&file, Some(target), buffer, io_fault)?
                    }
                };
                finish(&copy, owner, key.modified).map_err(io_fault)?;
                read
            }
        };
        let after = look(&file).map_err(|errno| fault(entry.path(), errno))?;
        let is_settled = before == after && size == key.size && self.is_past(&key, began);
        Ok(Some(FileRead { sha256, key: FileKey { size, ..key }, owner, is_settled }))
    }

    fn hash(
        &self,
        mut file: &File,
        copy: Option<CopyTarget<'_>>,
        buffer: &mut [u8],
        io_fault: impl Fn(io::Error) -> TreeError,
    ) -> Result<(Sha256, u64), TreeError> {
        let (mut hasher, mut size) = (Hasher::new(), 0_u64);
        loop {
            let count = match file.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count.map_err(&io_fault)?,
            };
            let bytes = buffer.get(..count).unwrap_or_default();
            if bytes.is_empty() {
                return Ok((hasher.finalize().into(), size));
            }
            let more = u64::try_from(count).unwrap_or(u64::MAX);
            let taken = |left: u64| left.checked_sub(more);
            if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_err() {
                let why = "it grew beyond the bytes that a tree may have";
                return Err(io_fault(io::Error::other(why)));
            }
            size = size.saturating_add(more);
            hasher.update(bytes);
            if let Some(CopyTarget { mut file, allowance }) = copy {
                file.write_all(bytes).map_err(&io_fault)?;
                allowance.written(more)?;
            }
        }
    }

    /// Whether a later write of the file has another time than this key.
    pub(super) fn is_past(&self, key: &FileKey, began_ms: i64) -> bool {
        let newest = key.modified.max(key.changed);
        let newest_ms = newest
            .seconds
            .saturating_mul(1_000)
            .saturating_add(i64::from(newest.nanos / 1_000_000));
        self.is_local && began_ms.saturating_sub(newest_ms) > SETTLE_MS
    }
}

impl TreeDraft {
    /// An empty draft: `root` is made as the directory, or will be the file.
    pub(super) fn new(root: &Path, is_dir: bool, allowance: DiskAllowance) -> io::Result<Self> {
        let dir = match is_dir {
            true => {
                std::fs::create_dir(root)?;
                root
            }
            false => root.parent().unwrap_or(root),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = openat(CWD, dir, flags, Mode::empty())?;
        Ok(Self { root: root.to_owned(), top, allowance, has_reflinks: AtomicBool::new(true) })
    }

    /// Directories and links of the tree.
    pub(super) fn outline(&self, entries: &[Entry]) -> Result<(), TreeError> {
        for entry in entries.iter().filter(|entry| !entry.path.is_empty()) {
            let failed = |errno| fault(entry.path(), errno);
            match &entry.kind {
                EntryKind::Directory => {
                    mkdirat(&self.top, entry.path(), Mode::RWXU).map_err(failed)?;
                }
                EntryKind::Link(target) => {
                    symlinkat(target.as_slice(), &self.top, entry.path()).map_err(failed)?;
                    self.own(entry).map_err(failed)?;
                }
                EntryKind::File(_) => {}
            }
        }
        Ok(())
    }

    /// Permissions and times of the directories, once they are full.
    pub(super) fn close(&self, entries: &[Entry]) -> Result<(), TreeError> {
        let dirs = entries.iter().filter(|entry| entry.kind == EntryKind::Directory);
        for entry in dirs.rev() {
            let path = if entry.path.is_empty() { Path::new(".") } else { entry.path() };
            let failed = |errno| fault(entry.path(), errno);
            self.own(entry).map_err(failed)?;
            let mode = Mode::from_raw_mode(entry.owner.mode);
            chmodat(&self.top, path, mode, AtFlags::empty()).map_err(failed)?;
            utimensat(&self.top, path, &times(entry.modified), AtFlags::empty()).map_err(failed)?;
        }
        Ok(())
    }

    /// A hard link to a file of another copy; whether there is one now.
    pub(super) fn link(&self, entry: &Entry, other_root: &Path, other: &Path) -> bool {
        let from = match other.as_os_str().is_empty() {
            true => other_root.to_owned(),
            false => other_root.join(other),
        };
        linkat(CWD, from, &self.top, self.name(entry), AtFlags::empty()).is_ok()
    }

    fn create(&self, entry: &Entry) -> io::Result<File> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.top, self.name(entry), flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// The tree that is one file has the name of the root.
    fn name<'a>(&'a self, entry: &'a Entry) -> &'a Path {
        match entry.path.is_empty() {
            true => self.root.file_name().map_or(Path::new("root"), Path::new),
            false => entry.path(),
        }
    }

    /// Whether the file system shared the bytes; once it cannot, it is not asked again.
    fn is_clone(&self, copy: &File, file: &File) -> bool {
        if !self.has_reflinks.load(Ordering::Relaxed) {
            return false;
        }
        let is_clone = ioctl_ficlone(copy, file).is_ok();
        if !is_clone {
            self.has_reflinks.store(false, Ordering::Relaxed);
        }
        is_clone
    }

    fn own(&self, entry: &Entry) -> rustix::io::Result<()> {
        let Some((uid, gid)) = other_owner(entry.owner) else { return Ok(()) };
        let path = if entry.path.is_empty() { Path::new(".") } else { entry.path() };
        chownat(&self.top, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// The owner that what this process makes does not have by itself.
fn other_owner(owner: FileOwner) -> Option<(Uid, Gid)> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    ((uid, gid) != (geteuid(), getegid())).then_some((uid, gid))
}

fn finish(copy: impl AsFd, owner: FileOwner, modified: Time) -> io::Result<()> {
    if let Some((uid, gid)) = other_owner(owner) {
        fchown(&copy, Some(uid), Some(gid))?;
    }
    fchmod(&copy, Mode::from_raw_mode(owner.mode))?;
    Ok(futimens(&copy, &times(modified))?)
}

fn times(modified: Time) -> Timestamps {
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let last_modification = Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanos.into() };
    Timestamps { last_access, last_modification }
}
