//! A stream, written into an empty layer.
//!
//! No name of it leads out of the layer: every parent is opened beneath it and through no link. Directories get their modes
//! and times at the end, so that nothing is changed by what follows.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chmodat,
    chownat, ftruncate, linkat, makedev, mkdirat, mknodat, openat, openat2, symlinkat, utimensat,
};
use rustix::io::pwrite;

use super::{
    EntryKind, Head, MAGIC, MAX_ENTRIES, MAX_NAME, MAX_PATH, MAX_VALUE, NO_EXTENT, PIECE,
    attributes, outside, wrong,
};

/// Extended attributes of one file: more than fit into what the kernel lists.
const MAX_ATTRIBUTES: u16 = 4_096;

/// Writes a stream's files into `upper`, which is empty, for owners that begin at `first`.
///
/// # Errors
/// A stream that is cut off or not of this form; what the layer has no room for.
pub(crate) fn unpack(upper: &Path, first: u32, from: &mut dyn Read) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::open(upper, flags, Mode::empty())?;
    let mut unpacking = Unpacking { top, first, from, parent: None, dirs: Vec::new() };
    let mut magic = [0; 8];
    unpacking.from.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Err(wrong("another form, or another version of it"));
    }
    let mut count = 0u64;
    while unpacking.entry()? {
        count = count.saturating_add(1);
        if count > MAX_ENTRIES {
            return Err(wrong("too many entries"));
        }
    }
    if unpacking.wide()? != count {
        return Err(wrong("another number of entries than it says"));
    }
    unpacking.finish()
}

struct Unpacking<'a> {
    top: OwnedFd,
    first: u32,
    from: &'a mut dyn Read,
    /// The directory that the last entry was written into.
    parent: Option<(PathBuf, OwnedFd)>,
    /// Directories with what they get at the end.
    dirs: Vec<(PathBuf, Head)>,
}

impl Unpacking<'_> {
    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn wide(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn number(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn some(&mut self, size: usize, most: usize) -> io::Result<Vec<u8>> {
        if size > most {
            return Err(wrong("a longer text than there can be"));
        }
        let mut bytes = vec![0; size];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn text(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let size = self.array().map(u16::from_le_bytes)?;
        self.some(usize::from(size), most)
    }

    fn path(&mut self) -> io::Result<PathBuf> {
        let bytes = self.text(MAX_PATH)?;
        let path = PathBuf::from(OsStr::from_bytes(&bytes));
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        match plain && !bytes.contains(&0) {
            true => Ok(path),
            false => Err(wrong("a path that leads elsewhere")),
        }
    }

    fn head(&mut self) -> io::Result<Head> {
        let (mode, uid, gid) = (self.number()?, self.number()?, self.number()?);
        let seconds = self.array().map(i64::from_le_bytes)?;
        let nanos = self.number()?;
        let count = self.array().map(u16::from_le_bytes)?;
        if count > MAX_ATTRIBUTES {
            return Err(wrong("too many attributes"));
        }
        let mut attributes = Vec::new();
        for _ in 0..count {
            let name = self.text(MAX_NAME)?;
            let size = usize::try_from(self.number()?).unwrap_or(usize::MAX);
            attributes.push((name, self.some(size, MAX_VALUE)?));
        }
        let (uid, gid) = (outside(uid, self.first)?, outside(gid, self.first)?);
        Ok(Head { mode: mode & 0o7777, uid, gid, seconds, nanos, attributes })
    }

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

    /// Reads and writes one entry; `false`: it was the end.
    fn entry(&mut self) -> io::Result<bool> {
        let [kind] = self.array()?;
        let kind = EntryKind::of(kind).ok_or_else(|| wrong("an entry of no known kind"))?;
        if kind == EntryKind::End {
            return Ok(false);
        }
        let (path, head) = (self.path()?, self.head()?);
        if path.as_os_str().is_empty() {
            if kind != EntryKind::Dir || !self.dirs.is_empty() {
                return Err(wrong("two roots, or one that is not a directory"));
            }
            self.dirs.push((path, head));
            return Ok(true);
        }
        let (_, name) = self.enter(&path)?;
        let target = match kind {
            EntryKind::Link => self.text(MAX_PATH)?,
            EntryKind::Same => self.path()?.into_os_string().as_bytes().to_vec(),
            _ => Vec::new(),
        };
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
                return Ok(true);
            }
            EntryKind::Same => {
                let target = PathBuf::from(OsStr::from_bytes(&target));
                let above = self.open(target.parent().unwrap_or(Path::new("")))?;
                let of = target.file_name().ok_or_else(|| wrong("a link to the root"))?;
                linkat(&above, of, dir, name, AtFlags::empty())?;
                return Ok(true);
            }
            EntryKind::File => self.bytes(name)?,
            EntryKind::End => {}
        }
        self.dress(name, kind, &path, head)?;
        Ok(true)
    }

    fn bytes(&mut self, name: &OsStr) -> io::Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match &self.parent {
            Some((_, dir)) => openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?,
            None => return Err(wrong("a file without a parent")),
        };
        let mut piece = vec![0; PIECE];
        loop {
            let at = self.wide()?;
            if at == NO_EXTENT {
                break;
            }
            let size = usize::try_from(self.number()?).unwrap_or(usize::MAX);
            let bytes = piece.get_mut(..size).ok_or_else(|| wrong("a piece that is too long"))?;
            self.from.read_exact(bytes)?;
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
        Ok(ftruncate(&file, self.wide()?)?)
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

fn put(dir: &OwnedFd, name: &OsStr, kind: EntryKind, head: &Head, first: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(head.uid), Gid::from_raw(head.gid));
    chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    let own = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
    attributes::write(&own, &head.attributes, first)?;
    if kind != EntryKind::Link {
        // No link is here: it was made by ourselves a moment ago.
        chmodat(dir, name, Mode::from_raw_mode(head.mode), AtFlags::empty())?;
    }
    let time = Timespec { tv_sec: head.seconds, tv_nsec: head.nanos.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
