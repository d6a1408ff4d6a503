//! The digests of a directory's files as they were read last, and the copy that has them.
//!
//! One file for each directory, written as a whole beside its name and renamed; its last 32 bytes are the SHA-256 of all before them. One
//! that is cut, changed or of another version is no index: everything is read again. So is each file after another boot of the host: a
//! power cut may leave a file its times and another content.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use cofferdam_ambient::random;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::Digest;
use rustix::fs::fstat;
use sha2::{Digest as _, Sha256 as Hasher};

use super::entry::{FileKey, Sha256, Time};
use crate::host::hostpath::HostHandle;

const VERSION: &[u8] = b"cofferdam-tree-index 1\n";
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// What is known of a file since it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileRecord {
    pub key: FileKey,
    pub sha256: Sha256,
    /// Whether the same key means the same content: the clock of the file system had gone on when it was read.
    pub is_settled: bool,
    /// Where it is in the copy.
    pub path: Vec<u8>,
}

/// Files of the last binding of a directory.
#[derive(Debug, Default)]
pub(super) struct TreeIndex {
    /// The copy that holds them.
    pub copy: Option<Digest>,
    files: HashMap<(u64, u64), FileRecord>,
}

/// Where the index of a directory lies: whatever it is called, it is itself by device and inode.
pub(super) fn place(dir: &Path, opened: &HostHandle) -> io::Result<PathBuf> {
    let found = fstat(opened)?;
    let name = format!("{} {}", found.st_dev, found.st_ino);
    Ok(dir.join(digest_bytes(name.as_bytes()).as_str()))
}

impl TreeIndex {
    pub(super) fn read(at: &Path) -> Self {
        fs::read(at).ok().and_then(|bytes| parse(&bytes)).unwrap_or_default()
    }

    /// A file with this key, where the index has one.
    pub(super) fn find(&self, key: &FileKey) -> Option<&FileRecord> {
        self.files.get(&(key.device, key.inode)).filter(|known| known.key == *key)
    }
}

/// Writes what is known now.
pub(super) fn write<'a>(
    at: &Path,
    copy: &Digest,
    files: impl Iterator<Item = &'a FileRecord>,
) -> io::Result<()> {
    let mut bytes = VERSION.to_vec();
    bytes.extend_from_slice(copy.as_str().as_bytes());
    bytes.extend_from_slice(&boot_digest());
    for file in files {
        let Ok(length) = u16::try_from(file.path.len()) else { continue };
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&file.path);
        for number in [file.key.device, file.key.inode, file.key.size] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for time in [file.key.modified, file.key.changed] {
            bytes.extend_from_slice(&time.seconds.to_le_bytes());
            bytes.extend_from_slice(&time.nanos.to_le_bytes());
        }
        bytes.push(u8::from(file.is_settled));
        bytes.extend_from_slice(&file.sha256);
    }
    let seal = Hasher::digest(&bytes);
    bytes.extend_from_slice(&seal);
    let draft = at.with_extension(random::secret_hex(8));
    fs::write(&draft, &bytes)?;
    fs::rename(&draft, at)
}

fn parse(bytes: &[u8]) -> Option<TreeIndex> {
    let (body, seal) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
    if Hasher::digest(body).as_slice() != seal {
        return None;
    }
    let mut rest = Remainder(body.strip_prefix(VERSION)?);
    let copy = Digest::parse(std::str::from_utf8(rest.take(64)?).ok()?).ok()?;
    let is_of_this_boot = rest.take(32)? == boot_digest();
    let mut files = HashMap::with_capacity(rest.0.len() / 128);
    while !rest.0.is_empty() {
        let length = usize::from(u16::from_le_bytes(rest.array()?));
        let path = rest.take(length)?.to_vec();
        let [device, inode, size] = [rest.number()?, rest.number()?, rest.number()?];
        let (modified, changed) = (rest.time()?, rest.time()?);
        let is_settled = rest.take(1)? == [1] && is_of_this_boot;
        let sha256 = rest.array()?;
        let key = FileKey { device, inode, size, modified, changed };
        files.insert((device, inode), FileRecord { key, sha256, is_settled, path });
    }
    Some(TreeIndex { copy: Some(copy), files })
}

/// The host's boot, as the kernel names it; empty: it does not.
pub(super) fn boot() -> Vec<u8> {
    fs::read(BOOT).unwrap_or_default()
}

fn boot_digest() -> Sha256 {
    Hasher::digest(boot()).into()
}

/// The copy that an index names, read from its beginning alone.
pub(super) fn copy_of(at: &Path) -> Option<Digest> {
    let mut head = vec![0; VERSION.len() + 64];
    fs::File::open(at).ok()?.read_exact(&mut head).ok()?;
    let name = head.strip_prefix(VERSION)?;
    Digest::parse(std::str::from_utf8(name).ok()?).ok()
}

/// Bytes that are still to be read.
struct Remainder<'a>(&'a [u8]);

impl<'a> Remainder<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn time(&mut self) -> Option<Time> {
        let seconds = i64::from_le_bytes(self.array()?);
        Some(Time { seconds, nanos: u32::from_le_bytes(self.array()?) })
    }
}
