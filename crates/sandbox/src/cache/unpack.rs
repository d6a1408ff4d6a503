//! Unpacking a tar that a machine's agent sent, whatever it says.
//!
//! It fills an empty directory that nobody else sees. A name is of plain parts and lies in a directory that
//! this tar made before, so nothing is written through a link; what is there is never written again. Files,
//! directories and symbolic links, nothing else; set-user-id bits and attributes stay behind. Long names
//! are read by us, because they are bounded by nothing but the tar.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown, symlink,
};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use tar::{Archive, Entry, EntryType, Header};

use super::bounds::Usage;
use super::error::{CacheError, at};

/// Bytes of a name or a target, and the zero behind it: the kernel's own bound.
const MAX_NAME_BYTES: u64 = 4_096;
/// Parts of a name: as deep as any base may be.
const MAX_DEPTH: usize = 200;
const DIR_BITS: u32 = 0o1777;
const FILE_BITS: u32 = 0o777;

/// Fills the directory; what comes counts.
pub(super) fn unpack(root: &Path, tar: File, usage: &mut Usage) -> Result<(), CacheError> {
    let mut archive = Archive::new(BufReader::new(tar));
    let (mut name, mut target) = (None, None);
    for entry in archive.entries().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        match entry.header().entry_type() {
            EntryType::GNULongName => name = Some(long(&mut entry)?),
            EntryType::GNULongLink => target = Some(long(&mut entry)?),
            kind => {
                let raw = name.take().unwrap_or_else(|| entry.path_bytes().into_owned());
                let link = target.take().or_else(|| Some(entry.link_name_bytes()?.into_owned()));
                put(root, &mut entry, kind, &raw, link, usage)?;
            }
        }
    }
    Ok(())
}

fn broken(source: io::Error) -> CacheError {
    CacheError::Io { path: "the agent's tar".into(), source }
}

fn hostile(path: &Path, why: &'static str) -> CacheError {
    CacheError::Hostile { path: path.to_string_lossy().into_owned(), why }
}

fn long(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, CacheError> {
    let mut bytes = Vec::new();
    entry.take(MAX_NAME_BYTES + 1).read_to_end(&mut bytes).map_err(broken)?;
    if u64::try_from(bytes.len()).is_ok_and(|count| count > MAX_NAME_BYTES) {
        return Err(hostile(Path::new("a name"), "is too long"));
    }
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

fn put<R: Read>(
    root: &Path,
    entry: &mut Entry<'_, R>,
    kind: EntryType,
    raw: &[u8],
    link: Option<Vec<u8>>,
    usage: &mut Usage,
) -> Result<(), CacheError> {
    let path = plain(Path::new(OsStr::from_bytes(raw)))?;
    let place = place(root, &path)?;
    let is_root = path.as_os_str().is_empty();
    if !is_root {
        usage.add_entry()?;
    }
    let fault = |error| at(&place)(error);
    let bits = match kind {
        EntryType::Directory => {
            if !is_root {
                DirBuilder::new().mode(0o700).create(&place).map_err(fault)?;
            }
            Some(DIR_BITS)
        }
        _ if is_root => return Err(hostile(&path, "is no directory")),
        EntryType::Regular => {
            file(entry, &place, usage)?;
            Some(FILE_BITS)
        }
        EntryType::Symlink => {
            let link = link.filter(|link| !link.is_empty());
            let link = link.ok_or_else(|| hostile(&path, "is a link to nothing"))?;
            symlink(OsStr::from_bytes(&link), &place).map_err(fault)?;
            None
        }
        _ => return Err(hostile(&path, "is of a kind that no base may hold")),
    };
    dress(entry.header(), &path, &place, bits)
}

/// What really comes counts, not what the header says.
fn file<R: Read>(
    entry: &mut Entry<'_, R>,
    place: &Path,
    usage: &mut Usage,
) -> Result<(), CacheError> {
    let mut options = File::options();
    let made = options.write(true).create_new(true).mode(0o600).open(place);
    let mut made = made.map_err(at(place))?;
    let written = io::copy(&mut entry.take(usage.left().bytes.saturating_add(1)), &mut made);
    usage.add_bytes(written.map_err(at(place))?)?;
    let seconds = Duration::from_secs(entry.header().mtime().map_err(broken)?);
    // A time that no clock has is the agent's own affair.
    let time = SystemTime::UNIX_EPOCH.checked_add(seconds).unwrap_or(SystemTime::UNIX_EPOCH);
    made.set_modified(time).map_err(at(place))
}

/// Owner and mode; the owner first, because changing it may change the mode.
fn dress(header: &Header, path: &Path, place: &Path, bits: Option<u32>) -> Result<(), CacheError> {
    // The last number means "no change" to the kernel.
    let id = |wide: u64| u32::try_from(wide).ok().filter(|id| *id != u32::MAX);
    let (uid, gid) = (header.uid().map_err(broken)?, header.gid().map_err(broken)?);
    let (Some(uid), Some(gid)) = (id(uid), id(gid)) else {
        return Err(hostile(path, "has an owner beyond 32 bits"));
    };
    lchown(place, Some(uid), Some(gid)).map_err(at(place))?;
    let Some(bits) = bits else { return Ok(()) };
    let mode = header.mode().map_err(broken)? & bits;
    fs::set_permissions(place, Permissions::from_mode(mode)).map_err(at(place))
}

/// A path of plain names; empty for the directory itself.
fn plain(raw: &Path) -> Result<PathBuf, CacheError> {
    let mut path = PathBuf::new();
    for (depth, part) in raw.components().enumerate() {
        match part {
            Component::Normal(name) if depth <= MAX_DEPTH => path.push(name),
            Component::CurDir => {}
            Component::Normal(_) => return Err(hostile(raw, "lies too deep")),
            _ => return Err(hostile(raw, "leads out of its directory")),
        }
    }
    Ok(path)
}

/// Where it goes; everything above it was made by this very tar.
fn place(root: &Path, path: &Path) -> Result<PathBuf, CacheError> {
    let mut place = root.to_owned();
    for name in path.parent().into_iter().flat_map(Path::components) {
        place.push(name);
        if !fs::symlink_metadata(&place).is_ok_and(|found| found.is_dir()) {
            return Err(hostile(path, "lies below what is no directory"));
        }
    }
    Ok(match path.file_name() {
        Some(name) => place.join(name),
        None => place,
    })
}

#[cfg(test)]
#[path = "unpack/tests.rs"]
mod tests;
