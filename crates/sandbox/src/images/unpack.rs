//! Applying a layer to a root, whatever the layer says.
//!
//! The tar is hostile: it is whatever somebody put into a registry. Every entry's path is taken
//! apart into plain names and walked from the root without following a link, so that an entry that
//! would be written through one is refused; the same holds for the targets of hard links. A symbolic
//! link itself may point anywhere: it is only ever followed inside a sandbox, whose root this is.
//! Devices are refused. Attributes are not taken over: a `trusted.overlay.*` one would steer the
//! overlay. What is there already is taken away first and never written into: it may be a hard link
//! of another root.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown, symlink,
};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use cofferdam_guest::removal::remove_tree;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, mknodat, utimensat};
use tar::{Archive, Entry, EntryType};

use super::error::{ImageError, at};
use super::store::StoreBounds;

const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";
/// Components of a path: the kernel's bound on its length allows no more than this many.
const MAX_DEPTH: usize = 2_048;
/// Bytes between the content of two files: headers, and the long names and attributes of one entry, which are held in memory.
const MAX_HEADERS: u64 = 1 << 20;
/// Bytes of the paths of a layer, which are held while it is applied: those of a full distribution are 10 MiB.
const MAX_PATHS: usize = 128 << 20;

/// What a layer took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerSize {
    /// Of its files.
    pub bytes: u64,
    pub entries: u64,
}

/// A tar of which no more is read at once than the reader has room for.
struct BudgetReader<R> {
    inner: R,
    room: Rc<Cell<u64>>,
}

impl<R: Read> Read for BudgetReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let left = self.room.get().checked_sub(u64::try_from(count).unwrap_or(u64::MAX));
        let left = left.ok_or_else(|| io::Error::other("the headers of an entry exceed 1 MiB"))?;
        self.room.set(left);
        Ok(count)
    }
}

/// Applies a layer's tar to a root.
pub(crate) fn apply(
    root: &Path,
    tar: impl Read,
    bounds: &StoreBounds,
) -> Result<LayerSize, ImageError> {
    let mut layer = LayerTree {
        root,
        own: BTreeSet::new(),
        bytes: bounds.layer_bytes,
        entries: bounds.layer_entries,
        paths: MAX_PATHS,
        bounds,
    };
    let room = Rc::new(Cell::new(MAX_HEADERS));
    let mut archive = Archive::new(BudgetReader { inner: tar, room: Rc::clone(&room) });
    for entry in archive.entries().map_err(broken)? {
        room.set(u64::MAX);
        layer.entry(entry.map_err(broken)?)?;
        room.set(MAX_HEADERS);
    }
    Ok(LayerSize {
        bytes: bounds.layer_bytes.saturating_sub(layer.bytes),
        entries: bounds.layer_entries.saturating_sub(layer.entries),
    })
}

fn broken(error: io::Error) -> ImageError {
    ImageError::malformed("a layer's tar", error.to_string())
}

struct LayerTree<'a> {
    root: &'a Path,
    /// What this very layer brought: its whiteouts do not mean those.
    own: BTreeSet<PathBuf>,
    bytes: u64,
    entries: u64,
    /// Bytes of paths that may still be held.
    paths: usize,
    bounds: &'a StoreBounds,
}

/// A number of a header. One that was left empty is 0, as other readers take it.
fn number(field: &[u8], read: impl FnOnce() -> io::Result<u64>) -> io::Result<u64> {
    match field.iter().all(|byte| matches!(byte, 0 | b' ')) {
        true => Ok(0),
        false => read(),
    }
}

impl LayerTree<'_> {
    fn entry<R: Read>(&mut self, mut entry: Entry<'_, R>) -> Result<(), ImageError> {
        self.entries = self.entries.checked_sub(1).ok_or(ImageError::TooLarge {
            what: "the number of a layer's entries",
            limit: self.bounds.layer_entries,
        })?;
        let raw = PathBuf::from(std::ffi::OsStr::from_bytes(&entry.path_bytes()));
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader) {
            return Ok(());
        }
        let path = plain(&raw)?;
        let held = path.as_os_str().len().saturating_add(self.root.as_os_str().len());
        self.paths = self.paths.checked_sub(held).ok_or(ImageError::TooLarge {
            what: "the bytes of a layer's paths",
            limit: u64::try_from(MAX_PATHS).unwrap_or(u64::MAX),
        })?;
        let Some(name) = path.file_name().map(|name| name.to_string_lossy().into_owned()) else {
            // The root itself: it stays as it was made.
            return Ok(());
        };
        let parent = self.parent(&path)?;
        if name == OPAQUE {
            return self.clear(&parent);
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            if matches!(hidden, "" | "." | "..") {
                return Err(ImageError::hostile(&path, "is a whiteout of nothing"));
            }
            return self.remove(&parent.join(hidden));
        }
        let target = parent.join(path.file_name().unwrap_or_default());
        self.make(&mut entry, kind, &path, &target)?;
        self.own.insert(target);
        Ok(())
    }

    fn make<R: Read>(
        &mut self,
        entry: &mut Entry<'_, R>,
        kind: EntryType,
        path: &Path,
        target: &Path,
    ) -> Result<(), ImageError> {
        let header = entry.header();
        let wrong = |_| ImageError::hostile(path, "has a header that cannot be read");
        let old = header.as_old();
        let mode = number(&old.mode, || header.mode().map(u64::from)).map_err(wrong)?;
        let mode = u32::try_from(mode & 0o7777).unwrap_or(0);
        let owner = (
            id(number(&old.uid, || header.uid()).map_err(wrong)?),
            id(number(&old.gid, || header.gid()).map_err(wrong)?),
        );
        let (Some(uid), Some(gid)) = owner else {
            return Err(ImageError::hostile(path, "has an owner beyond 32 bits"));
        };
        let time = time(number(&old.mtime, || header.mtime()).map_err(wrong)?);
        let time = time.ok_or_else(|| ImageError::hostile(path, "has a time that no clock has"))?;
        let is_dir = |at: &Path| fs::symlink_metadata(at).is_ok_and(|found| found.is_dir());
        if !(kind == EntryType::Directory && is_dir(target)) {
            clear_way(target)?;
        }
        let fault = |error| at(target)(error);
        match kind {
            EntryType::Directory => {
                if !is_dir(target) {
                    DirBuilder::new().mode(0o700).create(target).map_err(fault)?;
                }
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.file(entry, target)?;
            }
            EntryType::Symlink => {
                let to = link(entry, path)?;
                symlink(&to, target).map_err(fault)?;
            }
            EntryType::Link => {
                let to = link(entry, path)?;
                return self.hard_link(path, &to, target);
            }
            EntryType::Fifo => {
                mknodat(CWD, target, FileType::Fifo, Mode::RUSR, 0)
                    .map_err(|error| at(target)(error.into()))?;
            }
            EntryType::Char | EntryType::Block => {
                return Err(ImageError::hostile(path, "is a device"));
            }
            _ => return Err(ImageError::hostile(path, "is of a kind that no root may hold")),
        }
        // The owner first: changing it takes the set-user-id bits away.
        lchown(target, Some(uid), Some(gid)).map_err(fault)?;
        if kind != EntryType::Symlink {
            fs::set_permissions(target, Permissions::from_mode(mode)).map_err(fault)?;
        }
        touch(target, time).map_err(fault)
    }

    fn file<R: Read>(&mut self, entry: &mut Entry<'_, R>, target: &Path) -> Result<(), ImageError> {
        let mut file: File = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(target)
            .map_err(at(target))?;
        // What really comes counts, not what the header says.
        let room = self.bytes;
        let written = io::copy(&mut entry.take(room.saturating_add(1)), &mut file)
            .map_err(|error| broken(io::Error::other(format!("{}: {error}", target.display()))))?;
        self.bytes = room.checked_sub(written).ok_or(ImageError::TooLarge {
            what: "the bytes of a layer's files",
            limit: self.bounds.layer_bytes,
        })?;
        Ok(())
    }

    fn hard_link(&self, path: &Path, to: &Path, target: &Path) -> Result<(), ImageError> {
        let to = plain(to)?;
        let place = match to.file_name() {
            Some(name) => self.walk(&to)?.map(|parent| parent.join(name)),
            None => None,
        };
        let found = place.as_ref().and_then(|place| fs::symlink_metadata(place).ok());
        let source = match (place, found) {
            (Some(place), Some(found)) if found.is_file() || found.is_symlink() => place,
            _ => return Err(ImageError::hostile(path, "is a hard link to what is no file here")),
        };
        fs::hard_link(source, target).map_err(at(target))
    }

    /// The directory that an entry lies in; made, where the layer did not bring it.
    fn parent(&self, path: &Path) -> Result<PathBuf, ImageError> {
        let mut place = self.root.to_owned();
        for name in path.parent().into_iter().flat_map(Path::components) {
            place.push(name);
            match fs::symlink_metadata(&place) {
                Ok(found) if found.is_dir() => {}
                Ok(found) if found.is_symlink() => {
                    return Err(ImageError::hostile(
                        path,
                        "would be written through a symbolic link",
                    ));
                }
                // A layer may put a directory where a file was.
                Ok(_) if !self.own.contains(&place) => {
                    clear_way(&place)?;
                    DirBuilder::new().mode(0o755).create(&place).map_err(at(&place))?;
                }
                Ok(_) => return Err(ImageError::hostile(path, "lies below what is no directory")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    DirBuilder::new().mode(0o755).create(&place).map_err(at(&place))?;
                }
                Err(error) => return Err(at(&place)(error)),
            }
        }
        Ok(place)
    }

    /// The same without making anything; `None` where it is not there.
    fn walk(&self, path: &Path) -> Result<Option<PathBuf>, ImageError> {
        let mut place = self.root.to_owned();
        for name in path.parent().into_iter().flat_map(Path::components) {
            place.push(name);
            match fs::symlink_metadata(&place) {
                Ok(found) if found.is_dir() => {}
                Ok(found) if found.is_symlink() => {
                    return Err(ImageError::hostile(path, "leads through a symbolic link"));
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(place))
    }

    /// Takes away what lower layers left in a directory.
    fn clear(&self, dir: &Path) -> Result<(), ImageError> {
        for entry in fs::read_dir(dir).map_err(at(dir))? {
            self.remove(&entry.map_err(at(dir))?.path())?;
        }
        Ok(())
    }

    /// Takes away what a lower layer left, and keeps what this layer brought.
    fn remove(&self, place: &Path) -> Result<(), ImageError> {
        let brought =
            self.own.range(place.to_owned()..).next().is_some_and(|own| own.starts_with(place));
        if !brought {
            return clear_way(place);
        }
        match fs::symlink_metadata(place) {
            Ok(found) if found.is_dir() => self.clear(place),
            _ => Ok(()),
        }
    }
}

/// A path of plain names; empty for the root itself.
fn plain(raw: &Path) -> Result<PathBuf, ImageError> {
    let mut path = PathBuf::new();
    for (depth, component) in raw.components().enumerate() {
        match component {
            Component::Normal(name) if depth < MAX_DEPTH => path.push(name),
            Component::CurDir => {}
            Component::RootDir => return Err(ImageError::hostile(raw, "is absolute")),
            Component::ParentDir => return Err(ImageError::hostile(raw, "has a `..`")),
            _ => return Err(ImageError::hostile(raw, "is too deep")),
        }
    }
    Ok(path)
}

fn link<R: Read>(entry: &Entry<'_, R>, path: &Path) -> Result<PathBuf, ImageError> {
    match entry.link_name_bytes() {
        Some(name) if !name.is_empty() => Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&name))),
        _ => Err(ImageError::hostile(path, "is a link to nothing")),
    }
}

fn id(wide: u64) -> Option<u32> {
    // The last number means "no change" to the kernel.
    u32::try_from(wide).ok().filter(|id| *id != u32::MAX)
}

fn clear_way(target: &Path) -> Result<(), ImageError> {
    let removed = match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => remove_tree(target),
        Ok(_) => fs::remove_file(target),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(target)(error)),
        _ => Ok(()),
    }
}

/// Seconds since 1970, negative ones in two's complement; `None` beyond 64 bits of nanoseconds, where some
/// constructors of times panic and would end the worker's thread.
fn time(seconds: u64) -> Option<Timespec> {
    let seconds = i64::from_ne_bytes(seconds.to_ne_bytes());
    seconds.checked_mul(1_000_000_000).map(|_| Timespec { tv_sec: seconds, tv_nsec: 0 })
}

fn touch(target: &Path, time: Timespec) -> io::Result<()> {
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(CWD, target, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_one_that_a_clock_has_or_none() {
        assert_eq!(time(1_000).map(|time| time.tv_sec), Some(1_000));
        assert_eq!(time(u64::MAX).map(|time| time.tv_sec), Some(-1));
        for never in [9_223_372_037, 0x7fff_ffff_ffff_ffff, 1 << 63] {
            assert_eq!(time(never), None, "{never}");
        }
    }

    /// A tar of one entry whose long name has this many bytes.
    fn long_name(bytes: usize) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::GNULongName);
        header.set_size(u64::try_from(bytes).unwrap());
        header.set_cksum();
        let mut tar = header.as_bytes().to_vec();
        tar.extend(std::iter::repeat_n(b'a', bytes));
        tar.resize(tar.len().next_multiple_of(512), 0);
        let mut file = tar::Header::new_gnu();
        file.set_size(0);
        file.set_mode(0o644);
        file.set_cksum();
        tar.extend(file.as_bytes());
        tar.extend([0; 1_024]);
        tar
    }

    #[test]
    fn a_name_longer_than_a_mebibyte_is_refused_before_it_is_read_whole() {
        let root = tempfile::tempdir().unwrap();
        let bounds = StoreBounds::default();
        let error = apply(root.path(), long_name(4 << 20).as_slice(), &bounds).unwrap_err();
        assert!(error.to_string().contains("exceed 1 MiB"), "{error}");
        let taken = apply(root.path(), long_name(200).as_slice(), &bounds).unwrap();
        assert_eq!(taken, LayerSize { bytes: 0, entries: 1 });
    }

    #[test]
    fn paths_beyond_the_bound_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let bounds = StoreBounds::default();
        let mut layer = LayerTree {
            root: root.path(),
            own: BTreeSet::new(),
            bytes: 1,
            entries: 10,
            paths: root.path().as_os_str().len() + 100,
            bounds: &bounds,
        };
        let mut archive = Archive::new(std::io::Cursor::new(long_name(101)));
        let entry = archive.entries().unwrap().next().unwrap().unwrap();
        let error = layer.entry(entry).unwrap_err();
        assert!(matches!(error, ImageError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn a_path_is_plain_or_refused() {
        assert_eq!(plain(Path::new("./a/b/")).unwrap(), Path::new("a/b"));
        assert_eq!(plain(Path::new("./")).unwrap(), Path::new(""));
        for bad in ["/a", "../a", "a/../b", "a/.."] {
            assert!(plain(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
