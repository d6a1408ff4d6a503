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
    AtFlags, FileType, Mode, OFlags, ResolveFlags, linkat, makedev, mkdirat, mknodat, openat2,
    symlinkat,
};

use super::super::words::fill;
use super::super::{EntryKind, Head, PIECE, attributes, close, own, path_of, wrong};
use super::read::{FirstAttribute, FirstEntry, FirstReader};

/// Bytes of the paths of all directories, which are held until the last entry was written; what one takes besides.
const MAX_PATHS: usize = 64 * 1024 * 1024;
const PATH: usize = 128;

/// Writes a stream's files, from behind its first bytes, into `upper`, which is empty, for owners that begin at `first`.
pub(in super::super) fn unpack(upper: &Path, first: u32, from: &mut dyn Read) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::open(upper, flags, Mode::empty())?;
    let mut entries = FirstReader::begin(from, first);
    let mut unpacking = FirstUnpacker { top, first, parent: None, dirs: Vec::new(), held: 0 };
    while let Some(entry) = entries.entry()? {
        unpacking.entry(entry, &mut entries)?;
    }
    unpacking.finish()
}

struct FirstUnpacker {
    top: OwnedFd,
    first: u32,
    /// The directory that the last entry was written into.
    parent: Option<(PathBuf, OwnedFd)>,
    /// Directories with what they get at the end.
    dirs: Vec<(PathBuf, Head, Vec<FirstAttribute>)>,
    /// Bytes that their paths take.
    held: usize,
}

impl FirstUnpacker {
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
        let FirstEntry { kind, path, head, attributes, target } = entry;
        if path.as_os_str().is_empty() {
            self.dirs.push((path, head, attributes));
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
            EntryKind::File => fill(dir, name, &mut vec![0; PIECE], |piece| from.extent(piece))?,
            EntryKind::End | EntryKind::Up => {}
        }
        if kind == EntryKind::Dir {
            self.held = self.held.saturating_add(path.as_os_str().len().saturating_add(PATH));
            if self.held > MAX_PATHS {
                return Err(wrong(
                    "an earlier form, and more bytes of directories' paths than are read of that",
                ));
            }
            self.dirs.push((path, head, attributes));
            return Ok(());
        }
        put(dir, name, kind, &head, attributes, self.first)
    }

    /// Directories, the deepest last made first.
    fn finish(&mut self) -> io::Result<()> {
        for (path, head, attributes) in std::mem::take(&mut self.dirs).into_iter().rev() {
            let dir = self.open(&path)?;
            put(&dir, OsStr::new("."), EntryKind::Dir, &head, attributes, self.first)?;
        }
        Ok(())
    }
}

/// Owner, attributes, mode and time, in this order: a change of the owner takes set-id bits and capabilities away.
fn put(
    dir: &OwnedFd,
    name: &OsStr,
    kind: EntryKind,
    head: &Head,
    attributes: Vec<FirstAttribute>,
    first: u32,
) -> io::Result<()> {
    own(dir, name, head)?;
    let at = path_of(dir, name);
    for FirstAttribute { name, value } in attributes {
        attributes::write(&at, &name, value, first)?;
    }
    close(dir, name, kind, head)
}
