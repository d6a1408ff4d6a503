//! A stream, written into an empty layer.
//!
//! No name of it leads out of the layer: every parent is opened beneath it and through no link. Directories get their modes
//! and times at the end, so that nothing is changed by what follows.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, ftruncate, linkat, makedev, mkdirat, mknodat,
    openat, openat2, symlinkat,
};
use rustix::io::pwrite;

use super::super::{EntryKind, Head, PIECE, put, wrong};
use super::read::{FirstEntry, FirstExtent, FirstReader};

/// Writes a stream's files, from behind its first bytes, into `upper`, which is empty, for owners that begin at `first`.
pub(in super::super) fn unpack(upper: &Path, first: u32, from: &mut dyn Read) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::open(upper, flags, Mode::empty())?;
    let mut entries = FirstReader::begin(from, first);
    let mut unpacking = FirstUnpacking { top, first, parent: None, dirs: Vec::new() };
    while let Some(entry) = entries.entry()? {
        unpacking.entry(entry, &mut entries)?;
    }
    unpacking.finish()
}

struct FirstUnpacking {
    top: OwnedFd,
    first: u32,
    /// The directory that the last entry was written into.
    parent: Option<(PathBuf, OwnedFd)>,
    /// Directories with what they get at the end.
    dirs: Vec<(PathBuf, Head)>,
}

impl FirstUnpacking {
    /// Opens the directory of an entry, once for all that follow each other in it.
    fn enter(&mut self, path: &Path) -> io::Result<(i32, Vec<u8>)> {
        let name = path.file_name().ok_or_else(|| wrong("an entry without a name"))?;
        let above = path.parent().unwrap_or(Path::new(""));
        if self.parent.as_ref().is_none_or(|(known, _)| known != above) {
            self.parent = Some((above.to_owned(), self.open(above)?));
        }
        let fd = self.parent.as_ref().map_or(-1, |(_, fd)| fd.as_raw_fd());
        Ok((fd, name.as_bytes().to_vec()))
    }

    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let name = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat2(&self.top, name, flags, Mode::empty(), resolve)?)
    }

    /// Writes one entry, with the bytes that follow it.
    fn entry(&mut self, entry: FirstEntry, from: &mut FirstReader<'_>) -> io::Result<()> {
        let FirstEntry { kind, path, head, target } = entry;
        if path.as_os_str().is_empty() {
            self.dirs.push((path, head));
            return Ok(());
        }
        let (_, name) = self.enter(&path)?;
        let name = OsStr::from_bytes(&name);
        let Some((_, dir)) = &self.parent else { return Err(wrong("an entry without a parent")) };
        let node = |kind, mode, device| mknodat(dir, name, kind, mode, device);
        let private = Mode::RUSR | Mode::WUSR;
        match kind {
            EntryKind::Dir => mkdirat(dir, name, Mode::RWXU)?,
            EntryKind::Link => symlinkat(OsStr::from_bytes(&target), dir, name)?,
            EntryKind::Fifo => node(FileType::Fifo, private, 0)?,
            EntryKind::Socket => node(FileType::Socket, private, 0)?,
            EntryKind::Whiteout => {
                node(FileType::CharacterDevice, Mode::empty(), makedev(0, 0))?;
                return Ok(());
            }
            EntryKind::Same => {
                let target = PathBuf::from(OsStr::from_bytes(&target));
                let above = self.open(target.parent().unwrap_or(Path::new("")))?;
                let of = target.file_name().ok_or_else(|| wrong("a link to the root"))?;
                linkat(&above, of, dir, name, AtFlags::empty())?;
                return Ok(());
            }
            EntryKind::File => self.bytes(name, from)?,
            EntryKind::End | EntryKind::Up => {}
        }
        self.dress(name, kind, &path, head)
    }

    fn bytes(&self, name: &OsStr, from: &mut FirstReader<'_>) -> io::Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match &self.parent {
            Some((_, dir)) => openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?,
            None => return Err(wrong("a file without a parent")),
        };
        let mut piece = vec![0; PIECE];
        loop {
            let (at, size) = match from.extent(&mut piece)? {
                FirstExtent::Bytes(at, size) => (at, size),
                FirstExtent::End(size) => return Ok(ftruncate(&file, size)?),
            };
            let bytes = piece.get(..size).unwrap_or_default();
            let mut done = 0;
            while done < size {
                let offset = at.saturating_add(u64::try_from(done).unwrap_or(0));
                let wrote = pwrite(&file, bytes.get(done..).unwrap_or_default(), offset)?;
                if wrote == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                done = done.saturating_add(wrote);
            }
        }
    }

    /// Owner, attributes, mode and time, in this order: a change of the owner takes set-id bits and capabilities away.
    fn dress(&mut self, name: &OsStr, kind: EntryKind, path: &Path, head: Head) -> io::Result<()> {
        if kind == EntryKind::Dir {
            self.dirs.push((path.to_owned(), head));
            return Ok(());
        }
        match &self.parent {
            Some((_, dir)) => put(dir, name, kind, &head, self.first),
            None => Err(wrong("an entry without a parent")),
        }
    }

    /// Directories, the deepest last made first.
    fn finish(&mut self) -> io::Result<()> {
        for (path, head) in std::mem::take(&mut self.dirs).into_iter().rev() {
            let dir = self.open(&path)?;
            put(&dir, OsStr::new("."), EntryKind::Dir, &head, self.first)?;
        }
        Ok(())
    }
}
