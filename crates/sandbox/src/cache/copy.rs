//! Copying what a build left, whatever it left; and describing what was copied.
//!
//! The tree belongs to somebody who may still be changing it: a service of the task runs on. So each
//! entry is opened by its plain name in a directory that is open already, never through a link, and
//! looked at again once it is open. What counts against the bounds is what was really read, and what a
//! file claims to be where that is more: a sparse file is refused before it is read.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chownat, fchmod,
    fchown, fstat, futimens, mkdirat, openat, readlinkat, statat, symlinkat,
};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::bounds::{Bounds, Usage};
use super::error::CacheError;
use crate::host::open_flags::DIRECTORY;

/// Directories within directories: four times what package managers nest, and each costs one open
/// descriptor while it is walked.
const MAX_DEPTH: usize = 200;
/// Read and written at a time.
const CHUNK: usize = 128 * 1024;
/// What a directory keeps of its mode; files keep less. Set-user-id and set-group-id go.
const DIR_BITS: u32 = 0o1777;
const FILE_BITS: u32 = 0o777;
/// Whom the kernel shows for an id that it does not know.
const NOBODY: u32 = 65_534;

/// Walks trees and adds up what it met.
pub(super) struct Walk {
    content: Sha256,
    /// The owner that is root.
    first: u32,
    pub usage: Usage,
}

impl Walk {
    pub fn new(bounds: Bounds) -> Self {
        Self { content: Sha256::new(), first: 0, usage: Usage::new(bounds) }
    }

    /// The same of a tree whose owners begin at `first`.
    pub fn of(self, first: u32) -> Self {
        Self { first, ..self }
    }

    /// Digest of every path, mode, owner and byte that was met.
    pub fn content(self) -> String {
        self.content.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Copies a directory's entries into an empty one, or only looks at them where there is none.
    pub fn tree(&mut self, from: &Path, to: Option<&Path>) -> Result<(), CacheError> {
        let fault = |errno| broken("", errno);
        let open = |path: &Path| rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(fault);
        let (from, to) = (open(from)?, to.map(open).transpose()?);
        self.directory(&from, to.as_ref(), "", 0)
    }

    fn directory(
        &mut self,
        from: &OwnedFd,
        to: Option<&OwnedFd>,
        path: &str,
        depth: usize,
    ) -> Result<(), CacheError> {
        if depth > MAX_DEPTH {
            return Err(hostile(path, "lies too deep"));
        }
        let fault = |errno| broken(path, errno);
        for name in self.names(from, path)? {
            let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            let found = statat(from, &name, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|errno| broken(&below, errno))?;
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => {
                    let inner = openat(from, &name, DIRECTORY, Mode::empty())
                        .map_err(|errno| broken(&below, errno))?;
                    let copy = match to {
                        None => None,
                        Some(to) => {
                            mkdirat(to, &name, Mode::RWXU).map_err(fault)?;
                            Some(openat(to, &name, DIRECTORY, Mode::empty()).map_err(fault)?)
                        }
                    };
                    self.directory(&inner, copy.as_ref(), &below, depth + 1)?;
                }
                FileType::RegularFile => self.file(from, to, &name, &below)?,
                FileType::Symlink => self.link(from, to, &name, &below)?,
                _ => return Err(hostile(&below, "is a device, a pipe or a socket")),
            }
        }
        // Last: its own mode may not let anybody write into it.
        let found = fstat(from).map_err(fault)?;
        self.note("dir", path, &found, DIR_BITS, "");
        match to {
            Some(to) => self.dress(to, &found, DIR_BITS).map_err(fault),
            None => Ok(()),
        }
    }

    /// The names in a directory, sorted, each counted.
    fn names(&mut self, dir: &OwnedFd, path: &str) -> Result<Vec<String>, CacheError> {
        let fault = |errno| broken(path, errno);
        let mut names = Vec::new();
        for entry in Dir::read_from(dir).map_err(fault)? {
            let entry = entry.map_err(fault)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            self.usage.add_entry()?;
            match std::str::from_utf8(name) {
                Ok(name) => names.push(name.to_owned()),
                Err(_) => return Err(hostile(path, "holds a name that is not UTF-8")),
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn file(
        &mut self,
        from: &OwnedFd,
        to: Option<&OwnedFd>,
        name: &str,
        path: &str,
    ) -> Result<(), CacheError> {
        let fault = |errno| broken(path, errno);
        // What became a pipe since it was looked at must not be waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = openat(from, name, flags, Mode::empty()).map_err(fault)?;
        let found = fstat(&opened).map_err(fault)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(hostile(path, "is no longer a regular file"));
        }
        self.usage.fits(u64::try_from(found.st_size).unwrap_or(u64::MAX))?;
        let mut copy = match to {
            None => None,
            Some(to) => {
                let flags = OFlags::WRONLY
                    | OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                Some(File::from(openat(to, name, flags, Mode::RUSR | Mode::WUSR).map_err(fault)?))
            }
        };
        let mut file = File::from(opened);
        let mut digest = Sha256::new();
        let mut chunk = vec![0; CHUNK];
        let io = |source| CacheError::Io { path: path.into(), source };
        loop {
            let count = file.read(&mut chunk).map_err(io)?;
            let Some(read) = chunk.get(..count).filter(|read| !read.is_empty()) else { break };
            self.usage.add_bytes(u64::try_from(count).unwrap_or(u64::MAX))?;
            digest.update(read);
            if let Some(copy) = &mut copy {
                copy.write_all(read).map_err(io)?;
            }
        }
        let sum: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        self.note("file", path, &found, FILE_BITS, &sum);
        let Some(copy) = copy else { return Ok(()) };
        let copy = OwnedFd::from(copy);
        self.dress(&copy, &found, FILE_BITS).map_err(fault)?;
        // Compiled Python is only used while its source has the time that it had then.
        let time = Timespec { tv_sec: found.st_mtime, tv_nsec: nanos(&found) };
        let times = Timestamps { last_access: time, last_modification: time };
        futimens(&copy, &times).map_err(fault)
    }

    fn link(
        &mut self,
        from: &OwnedFd,
        to: Option<&OwnedFd>,
        name: &str,
        path: &str,
    ) -> Result<(), CacheError> {
        let fault = |errno| broken(path, errno);
        let target = readlinkat(from, name, Vec::new()).map_err(fault)?;
        self.usage.add_bytes(u64::try_from(target.as_bytes().len()).unwrap_or(u64::MAX))?;
        let found = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(fault)?;
        let text = String::from_utf8_lossy(target.as_bytes()).into_owned();
        self.note("link", path, &found, 0, &text);
        let Some(to) = to else { return Ok(()) };
        // It may point anywhere: it is only ever followed inside a sandbox.
        symlinkat(target.as_c_str(), to, name).map_err(fault)?;
        let (uid, gid) = self.owner(&found);
        chownat(to, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(fault)
    }

    fn note(&mut self, kind: &str, path: &str, found: &Stat, bits: u32, what: &str) {
        let (mode, uid, gid) = (found.st_mode & bits, self.id(found.st_uid), self.id(found.st_gid));
        self.content.update(format!("{kind} {mode:o} {uid} {gid} {path}\0{what}\n").as_bytes());
    }
}

impl Walk {
    /// As the sandbox has it. Below its first id nobody of it is.
    fn id(&self, id: u32) -> u32 {
        id.checked_sub(self.first).unwrap_or(NOBODY)
    }

    /// Owner and mode; the owner first, because changing it may change the mode.
    fn dress(&self, copy: &OwnedFd, found: &Stat, bits: u32) -> Result<(), Errno> {
        let (uid, gid) = self.owner(found);
        fchown(copy, uid, gid)?;
        fchmod(copy, Mode::from_raw_mode(found.st_mode & bits))
    }

    fn owner(&self, found: &Stat) -> (Option<Uid>, Option<Gid>) {
        let (uid, gid) = (self.id(found.st_uid), self.id(found.st_gid));
        (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
    }
}

fn nanos(found: &Stat) -> i64 {
    i64::try_from(found.st_mtime_nsec).unwrap_or(0)
}

fn hostile(path: &str, why: &'static str) -> CacheError {
    CacheError::Hostile { path: path.to_owned(), why }
}

fn broken(path: &str, errno: Errno) -> CacheError {
    CacheError::Io { path: path.into(), source: errno.into() }
}
