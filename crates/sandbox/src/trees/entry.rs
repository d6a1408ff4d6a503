//! Entries of a tree, and the two texts that its digests are of.
//!
//! The text of the content has a line for each entry, in the order of the paths' bytes, after a line that names the format:
//! ```text
//! cofferdam-tree 1
//! d 755 0 - 0 ␣
//! f 644 5 <sha256> 5 a.txt
//! l 777 0 - 4 link 5 a.txt
//! ```
//! kind, permissions in octal, bytes, SHA-256, length and bytes of the path, and of a link length and bytes of its target. Lengths come
//! first, so a name with blanks or newlines is one reading. The tree itself is the entry with an empty path. A copy's text adds
//! owner and group, and of files the time of their last change.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::Digest;

/// SHA-256 of a file's bytes.
pub(super) type Sha256 = [u8; 32];

/// What tells whether a file was written since it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct FileKey {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
    pub modified: Time,
    /// Set by the kernel alone: a program that sets `modified` back moves this.
    pub changed: Time,
}

/// Seconds and nanoseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct Time {
    pub seconds: i64,
    pub nanos: u32,
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EntryKind {
    Directory,
    File(FileKey),
    /// A link and where it leads, which is never followed.
    Link(Vec<u8>),
}

/// One file, directory or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// From the tree; empty: the tree itself.
    pub path: Vec<u8>,
    pub kind: EntryKind,
    /// Permissions, at most 0777.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// When it was last written.
    pub modified: Time,
}

impl Entry {
    pub(super) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    pub(super) fn key(&self) -> Option<&FileKey> {
        match &self.kind {
            EntryKind::File(key) => Some(key),
            _ => None,
        }
    }
}

/// The two digests of a tree.
pub(super) struct TreeDigests {
    pub content: Digest,
    pub copy: Digest,
}

/// Digests of entries in order, and of their files in the same places; other kinds have any.
pub(super) fn digests(entries: &[Entry], files: &[Sha256]) -> TreeDigests {
    let mut content = b"cofferdam-tree 1\n".to_vec();
    let mut copy = b"cofferdam-copy 1\n".to_vec();
    for (entry, sha256) in entries.iter().zip(files) {
        let begin = content.len();
        let (kind, size) = match &entry.kind {
            EntryKind::Directory => ('d', 0),
            EntryKind::File(key) => ('f', key.size),
            EntryKind::Link(_) => ('l', 0),
        };
        content.extend_from_slice(format!("{kind} {:o} {size} ", entry.mode).as_bytes());
        match entry.kind {
            EntryKind::File(_) => hex(sha256, &mut content),
            _ => content.push(b'-'),
        }
        sized(&entry.path, &mut content);
        if let EntryKind::Link(target) = &entry.kind {
            sized(target, &mut content);
        }
        copy.extend_from_slice(content.get(begin..).unwrap_or_default());
        let of_file = match entry.kind {
            EntryKind::File(_) => entry.modified,
            _ => Time::default(),
        };
        let owner = format!(" {} {} {}.{}\n", entry.uid, entry.gid, of_file.seconds, of_file.nanos);
        copy.extend_from_slice(owner.as_bytes());
        content.push(b'\n');
    }
    TreeDigests { content: digest_bytes(&content), copy: digest_bytes(&copy) }
}

fn sized(bytes: &[u8], text: &mut Vec<u8>) {
    text.extend_from_slice(format!(" {} ", bytes.len()).as_bytes());
    text.extend_from_slice(bytes);
}

fn hex(bytes: &[u8], text: &mut Vec<u8>) {
    let digit = |half: u8| if half < 10 { b'0' + half } else { b'a' + half - 10 };
    for byte in bytes {
        text.extend_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
}
