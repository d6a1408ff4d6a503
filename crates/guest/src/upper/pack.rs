//! A layer, read into a stream.
//!
//! It is walked by descriptors: one directory is open at a time, and the way up is checked to be the one that led down, so no
//! depth is too deep for it and nothing leads out of it.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat, fstat, major, minor, openat, readlinkat,
    seek, statat,
};
use rustix::io::{Errno, pread};

use super::{
    EntryKind, MAGIC, MAX_DEPTH, MAX_ENTRIES, MAX_NAME, MAX_TARGET, NO_EXTENT, NodeId, PIECE,
    attributes, inside, node_id, path_of,
};

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Names of one directory that are looked at together, in their order.
const NAMES: usize = 16 * 1024;
/// Bytes that are held of directories that are still to be looked into, of the way up, and of files with more names to come. In
/// the layer each of them takes four times as many.
const MAX_HELD: usize = 256 * 1024 * 1024;
/// What a name takes beside its bytes.
const NAME: usize = 48;
/// Bytes of a path that an error tells.
const MAX_TOLD: usize = 256;

/// Writes everything below `upper`, whose owners begin at `first`. It is to stand still meanwhile. Once `goes_on` says no, it
/// is an error.
///
/// # Errors
/// What cannot be read, by its path in the sandbox; what cannot be written; a layer beyond the bounds.
pub fn pack(
    upper: &Path,
    first: u32,
    out: &mut dyn Write,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<()> {
    walk(upper, first, true, out, goes_on)
}

/// Bytes that [`pack`] would write, without a look at what files have in them.
///
/// # Errors
/// Those of [`pack`], but for files that cannot be read.
pub fn measure(upper: &Path, first: u32, goes_on: &dyn Fn() -> bool) -> io::Result<u64> {
    let mut counted = SizeCounter(0);
    walk(upper, first, false, &mut counted, goes_on)?;
    Ok(counted.0)
}

/// Bytes that were written.
struct SizeCounter(u64);

impl Write for SizeCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn walk(
    upper: &Path,
    first: u32,
    reads: bool,
    out: &mut dyn Write,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<()> {
    let at = rustix::fs::open(upper, DIRECTORY, Mode::empty())?;
    let place = node_id(&fstat(&at)?);
    let mut packing = LayerPacker {
        at,
        way: vec![WayLevel { place, name: OsString::new(), below: Vec::new() }],
        device: place.device,
        first,
        out,
        goes_on,
        reads,
        count: 1,
        held: 0,
        shared: HashMap::new(),
        numbers: 0,
        piece: vec![0; PIECE],
    };
    packing.out.write_all(MAGIC)?;
    packing.all()?;
    packing.out.write_all(&packing.count.to_le_bytes())
}

/// A directory on the way to the one that is open.
struct WayLevel {
    place: NodeId,
    name: OsString,
    /// Directories in it that are still to be looked into, the next one last.
    below: Vec<OsString>,
}

struct LayerPacker<'a> {
    /// The directory that is open: the last of the way.
    at: OwnedFd,
    way: Vec<WayLevel>,
    device: u64,
    first: u32,
    out: &'a mut dyn Write,
    goes_on: &'a dyn Fn() -> bool,
    /// Whether the bytes of files are read, and not only counted.
    reads: bool,
    count: u64,
    held: usize,
    /// Files of which more names are to come: their number, and how many.
    shared: HashMap<NodeId, (u32, u64)>,
    numbers: u32,
    piece: Vec<u8>,
}

impl LayerPacker<'_> {
    fn all(&mut self) -> io::Result<()> {
        self.files().map_err(|error| self.told(None, error))?;
        loop {
            let Some(level) = self.way.last_mut() else { return Ok(()) };
            match level.below.pop() {
                Some(name) => {
                    self.held = self.held.saturating_sub(name.len().saturating_add(NAME));
                    self.down(&name).map_err(|error| self.told(Some(&name), error))?;
                    self.files().map_err(|error| self.told(None, error))?;
                }
                None => self.up().map_err(|error| self.told(None, error))?,
            }
        }
    }

    fn down(&mut self, name: &OsStr) -> io::Result<()> {
        self.begin(EntryKind::Dir, name)?;
        if self.way.len() > MAX_DEPTH {
            let why = format!("more than {MAX_DEPTH} directories lie below each other");
            return Err(io::Error::other(why));
        }
        let dir = openat(&self.at, name, DIRECTORY, Mode::empty())?;
        let place = node_id(&fstat(&dir)?);
        if place.device != self.device {
            return Err(io::Error::other("another file system is mounted there"));
        }
        self.hold(name.len())?;
        self.way.push(WayLevel { place, name: name.to_owned(), below: Vec::new() });
        self.at = dir;
        Ok(())
    }

    /// Ends the directory that is open, and opens the one above it.
    fn up(&mut self) -> io::Result<()> {
        self.goes_on()?;
        let found = fstat(&self.at)?;
        self.out.write_all(&[EntryKind::Up.byte()])?;
        self.head(&found)?;
        self.attributes(OsStr::new("."))?;
        if let Some(left) = self.way.pop() {
            self.held = self.held.saturating_sub(left.name.len().saturating_add(NAME));
        }
        let Some(above) = self.way.last() else { return Ok(()) };
        let dir = openat(&self.at, "..", DIRECTORY, Mode::empty())?;
        if node_id(&fstat(&dir)?) != above.place {
            return Err(io::Error::other("it was moved while it was read"));
        }
        self.at = dir;
        Ok(())
    }

    /// Writes what is in the directory that is open but for its directories, which are noted.
    fn files(&mut self) -> io::Result<()> {
        let mut below = Vec::new();
        let mut entries = Dir::read_from(&self.at)?;
        loop {
            let mut names = Vec::new();
            for entry in entries.by_ref() {
                let name = entry?.file_name().to_bytes().to_vec();
                if !matches!(name.as_slice(), b"." | b"..") {
                    names.push(OsString::from_vec(name));
                }
                if names.len() >= NAMES {
                    break;
                }
            }
            if names.is_empty() {
                break;
            }
            names.sort_unstable();
            for name in names {
                let is_dir = self.entry(&name).map_err(|error| self.told(Some(&name), error))?;
                if is_dir {
                    self.hold(name.len())?;
                    below.push(name);
                }
            }
        }
        below.reverse();
        if let Some(level) = self.way.last_mut() {
            level.below = below;
        }
        Ok(())
    }

    fn hold(&mut self, bytes: usize) -> io::Result<()> {
        self.held = self.held.saturating_add(bytes.saturating_add(NAME));
        match self.held > MAX_HELD {
            true => Err(io::Error::other(
                "too many directories lie beside each other, or too many files have more than one name",
            )),
            false => Ok(()),
        }
    }

    /// Writes one entry, unless it is a directory, which it says.
    fn entry(&mut self, name: &OsStr) -> io::Result<bool> {
        let found = statat(&self.at, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => return Ok(true),
            FileType::RegularFile => EntryKind::File,
            FileType::Symlink => EntryKind::Link,
            FileType::Fifo => EntryKind::Fifo,
            FileType::Socket => EntryKind::Socket,
            FileType::CharacterDevice if major(found.st_rdev) == 0 && minor(found.st_rdev) == 0 => {
                self.begin(EntryKind::Whiteout, name)?;
                return Ok(false);
            }
            _ => return Err(io::Error::other("it is a device")),
        };
        let mut names = 1;
        if found.st_nlink > 1 {
            let place = node_id(&found);
            if let Some((number, left)) = self.shared.get_mut(&place) {
                let number = *number;
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.shared.remove(&place);
                    self.held = self.held.saturating_sub(NAME.saturating_mul(2));
                }
                self.begin(EntryKind::Same, name)?;
                self.out.write_all(&number.to_le_bytes())?;
                return Ok(false);
            }
            names = u32::try_from(found.st_nlink).unwrap_or(u32::MAX);
            self.hold(NAME)?;
            self.shared.insert(place, (self.numbers, found.st_nlink.saturating_sub(1)));
            self.numbers = self.numbers.saturating_add(1);
        }
        self.begin(kind, name)?;
        self.out.write_all(&names.to_le_bytes())?;
        self.head(&found)?;
        match kind {
            EntryKind::File => self.bytes(name, &found)?,
            EntryKind::Link => {
                let target = readlinkat(&self.at, name, Vec::new())?;
                self.text(target.to_bytes(), MAX_TARGET)?;
            }
            _ => {}
        }
        self.attributes(name)?;
        Ok(false)
    }

    /// Writes an entry's kind and name.
    fn begin(&mut self, kind: EntryKind, name: &OsStr) -> io::Result<()> {
        self.goes_on()?;
        self.count = self.count.saturating_add(1);
        if self.count > MAX_ENTRIES {
            return Err(io::Error::other(format!("there are more than {MAX_ENTRIES} files")));
        }
        self.out.write_all(&[kind.byte()])?;
        self.text(name.as_encoded_bytes(), MAX_NAME)
    }

    fn goes_on(&self) -> io::Result<()> {
        match (self.goes_on)() {
            true => Ok(()),
            false => Err(io::Error::other("the sandbox ends")),
        }
    }

    fn head(&mut self, found: &Stat) -> io::Result<()> {
        let (uid, gid) = (inside(found.st_uid, self.first), inside(found.st_gid, self.first));
        for number in [found.st_mode & 0o7777, uid, gid] {
            self.out.write_all(&number.to_le_bytes())?;
        }
        self.out.write_all(&found.st_mtime.to_le_bytes())?;
        let nanos = u32::try_from(found.st_mtime_nsec).unwrap_or(0);
        self.out.write_all(&nanos.to_le_bytes())
    }

    fn attributes(&mut self, name: &OsStr) -> io::Result<()> {
        let path = path_of(&self.at, name);
        let names = attributes::names(&path)?;
        let count = u16::try_from(names.len());
        let count = count.map_err(|_| io::Error::other("it has too many attributes"))?;
        self.out.write_all(&count.to_le_bytes())?;
        for name in names {
            let value = attributes::value(&path, &name, self.first)?;
            self.text(&name, MAX_NAME)?;
            self.out.write_all(&u32::try_from(value.len()).unwrap_or(0).to_le_bytes())?;
            self.out.write_all(&value)?;
        }
        Ok(())
    }

    fn text(&mut self, bytes: &[u8], most: usize) -> io::Result<()> {
        let size = u16::try_from(bytes.len()).ok().filter(|size| usize::from(*size) <= most);
        let size = size.ok_or_else(|| io::Error::other("its name is too long"))?;
        self.out.write_all(&size.to_le_bytes())?;
        self.out.write_all(bytes)
    }

    /// The parts of a file that are not holes.
    fn bytes(&mut self, name: &OsStr, found: &Stat) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.at, name, flags, Mode::empty())?;
        let size = u64::try_from(found.st_size).unwrap_or(0);
        let mut at = 0;
        while at < size {
            let start = match seek(&file, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => break,
                start => start?,
            };
            let end = seek(&file, SeekFrom::Hole(start))?.min(size);
            at = start;
            while at < end {
                let most = usize::try_from(end.saturating_sub(at)).unwrap_or(PIECE).min(PIECE);
                let got = match self.reads {
                    true => pread(&file, self.piece.get_mut(..most).unwrap_or_default(), at)?,
                    false => most,
                };
                if got == 0 {
                    return Err(io::Error::other("it became shorter while it was read"));
                }
                self.out.write_all(&at.to_le_bytes())?;
                let count = u32::try_from(got).map_err(io::Error::other)?;
                self.out.write_all(&count.to_le_bytes())?;
                self.out.write_all(self.piece.get(..got).unwrap_or_default())?;
                at = at.saturating_add(u64::from(count));
                self.goes_on()?;
            }
        }
        self.out.write_all(&NO_EXTENT.to_le_bytes())?;
        self.out.write_all(&size.to_le_bytes())
    }

    /// Which of the sandbox's files it was.
    fn told(&self, name: Option<&OsStr>, error: io::Error) -> io::Error {
        if error.to_string().starts_with('/') {
            return error;
        }
        let mut path = PathBuf::from("/");
        for level in &self.way {
            if path.as_os_str().len() > MAX_TOLD {
                break;
            }
            path.push(&level.name);
        }
        path.extend(name);
        let shown: String = path.to_string_lossy().chars().take(MAX_TOLD).collect();
        io::Error::new(error.kind(), format!("{shown}: {error}"))
    }
}
