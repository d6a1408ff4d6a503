//! A layer, read into a stream.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Stat, fstat, major, minor,
    openat, openat2, readlinkat, seek, statat,
};
use rustix::io::{Errno, pread};

use super::{
    EntryKind, Head, MAGIC, MAX_ATTRIBUTE_BYTES, MAX_ENTRIES, MAX_PATH, NO_EXTENT, PIECE,
    attributes, inside,
};

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
    let top = rustix::fs::open(upper, DIRECTORY, Mode::empty())?;
    let mut packing = Packing {
        top,
        first,
        out,
        goes_on,
        count: 0,
        attribute_bytes: 0,
        seen: HashMap::new(),
        piece: vec![0; PIECE],
    };
    packing.out.write_all(MAGIC)?;
    packing.all()?;
    packing.out.write_all(&[EntryKind::End.byte()])?;
    packing.out.write_all(&packing.count.to_le_bytes())
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

struct Packing<'a> {
    top: OwnedFd,
    first: u32,
    out: &'a mut dyn Write,
    goes_on: &'a dyn Fn() -> bool,
    count: u64,
    attribute_bytes: usize,
    /// Files with more than one name, by device and inode: the first name.
    seen: HashMap<(u64, u64), PathBuf>,
    piece: Vec<u8>,
}

impl Packing<'_> {
    fn all(&mut self) -> io::Result<()> {
        let found = fstat(&self.top)?;
        let own = PathBuf::from(format!("/proc/self/fd/{}/.", self.top.as_raw_fd()));
        self.head(EntryKind::Dir, Path::new(""), &found, &own)?;
        let mut open = vec![PathBuf::new()];
        while let Some(path) = open.pop() {
            let below = self.directory(&path).map_err(|error| at(&path, error))?;
            open.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// Writes what a directory has; gives the directories in it, which follow.
    fn directory(&mut self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let name = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let dir = openat2(&self.top, name, DIRECTORY, Mode::empty(), resolve)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(name.to_vec());
            }
        }
        names.sort_unstable();
        let mut below = Vec::new();
        for name in names {
            let name = OsStr::from_bytes(&name);
            let inner = path.join(name);
            let is_dir = self.entry(&dir, name, &inner).map_err(|error| at(&inner, error))?;
            if is_dir {
                below.push(inner);
            }
        }
        Ok(below)
    }

    /// Writes one entry; whether it is a directory.
    fn entry(&mut self, dir: &OwnedFd, name: &OsStr, path: &Path) -> io::Result<bool> {
        let found = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let own = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
        let kind = match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => EntryKind::Dir,
            FileType::RegularFile => EntryKind::File,
            FileType::Symlink => EntryKind::Link,
            FileType::Fifo => EntryKind::Fifo,
            FileType::Socket => EntryKind::Socket,
            FileType::CharacterDevice if major(found.st_rdev) == 0 && minor(found.st_rdev) == 0 => {
                EntryKind::Whiteout
            }
            _ => return Err(io::Error::other("it is a device")),
        };
        if kind != EntryKind::Dir && kind != EntryKind::Whiteout && found.st_nlink > 1 {
            let id = (found.st_dev, found.st_ino);
            if let Some(same) = self.seen.get(&id).cloned() {
                self.head(EntryKind::Same, path, &found, &own)?;
                self.text(same.as_os_str().as_bytes())?;
                return Ok(false);
            }
            self.seen.insert(id, path.to_owned());
        }
        self.head(kind, path, &found, &own)?;
        match kind {
            EntryKind::File => self.bytes(dir, name, &found)?,
            EntryKind::Link => {
                let target = readlinkat(dir, name, Vec::new())?;
                self.text(target.to_bytes())?;
            }
            _ => {}
        }
        Ok(kind == EntryKind::Dir)
    }

    fn head(&mut self, kind: EntryKind, path: &Path, found: &Stat, own: &Path) -> io::Result<()> {
        if !(self.goes_on)() {
            return Err(io::Error::other("the sandbox ends"));
        }
        self.count = self.count.saturating_add(1);
        if self.count > MAX_ENTRIES {
            return Err(io::Error::other(format!("there are more than {MAX_ENTRIES} files")));
        }
        let head = match kind {
            // The file that it is has them, or there is none.
            EntryKind::Same | EntryKind::Whiteout => Head::default(),
            _ => Head {
                mode: found.st_mode & 0o7777,
                uid: inside(found.st_uid, self.first),
                gid: inside(found.st_gid, self.first),
                seconds: found.st_mtime,
                nanos: u32::try_from(found.st_mtime_nsec).unwrap_or(0),
                attributes: attributes::read(own, self.first)?,
            },
        };
        self.out.write_all(&[kind.byte()])?;
        self.text(path.as_os_str().as_bytes())?;
        for number in [head.mode, head.uid, head.gid] {
            self.out.write_all(&number.to_le_bytes())?;
        }
        self.out.write_all(&head.seconds.to_le_bytes())?;
        self.out.write_all(&head.nanos.to_le_bytes())?;
        let count = u16::try_from(head.attributes.len());
        let count = count.map_err(|_| io::Error::other("it has too many attributes"))?;
        self.out.write_all(&count.to_le_bytes())?;
        for (name, value) in &head.attributes {
            self.attribute_bytes =
                self.attribute_bytes.saturating_add(name.len().saturating_add(value.len()));
            if self.attribute_bytes > MAX_ATTRIBUTE_BYTES {
                return Err(io::Error::other("all attributes together have too many bytes"));
            }
            self.text(name)?;
            self.long(value)?;
        }
        Ok(())
    }

    fn text(&mut self, bytes: &[u8]) -> io::Result<()> {
        let size = u16::try_from(bytes.len()).ok().filter(|size| usize::from(*size) < MAX_PATH);
        let size = size.ok_or_else(|| io::Error::other("its path is too long"))?;
        self.out.write_all(&size.to_le_bytes())?;
        self.out.write_all(bytes)
    }

    fn long(&mut self, bytes: &[u8]) -> io::Result<()> {
        let size = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.out.write_all(&size.to_le_bytes())?;
        self.out.write_all(bytes)
    }

    /// The parts of a file that are not holes.
    fn bytes(&mut self, dir: &OwnedFd, name: &OsStr, found: &Stat) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(dir, name, flags, Mode::empty())?;
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
                let got = pread(&file, self.piece.get_mut(..most).unwrap_or_default(), at)?;
                if got == 0 {
                    return Err(io::Error::other("it became shorter while it was read"));
                }
                self.out.write_all(&at.to_le_bytes())?;
                let count = u32::try_from(got).map_err(io::Error::other)?;
                self.out.write_all(&count.to_le_bytes())?;
                self.out.write_all(self.piece.get(..got).unwrap_or_default())?;
                at = at.saturating_add(u64::from(count));
                if !(self.goes_on)() {
                    return Err(io::Error::other("the sandbox ends"));
                }
            }
        }
        self.out.write_all(&NO_EXTENT.to_le_bytes())?;
        self.out.write_all(&size.to_le_bytes())
    }
}

/// Which of the sandbox's files it was.
fn at(path: &Path, error: io::Error) -> io::Error {
    if error.to_string().starts_with('/') {
        return error;
    }
    let shown: String = path.to_string_lossy().chars().take(256).collect();
    io::Error::new(error.kind(), format!("/{shown}: {error}"))
}
