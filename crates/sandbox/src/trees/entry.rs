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

use cofferdam_contracts::canonical::digest_of;
use cofferdam_contracts::id::Digest;
use sha2::{Digest as _, Sha256 as Hasher};

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

/// Who a file belongs to, and what may be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FileOwner {
    /// Permissions, at most 0777.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
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
    pub owner: FileOwner,
    /// When it was last written.
    pub modified: Time,
    /// Names that its file has, in this tree and others.
    pub links: u32,
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

/// Digests of entries in order, and of their files in the same places; other kinds have any. One line is in memory at a time.
pub(super) fn digests(entries: &[Entry], files: &[Sha256]) -> TreeDigests {
    let mut content = Hasher::new_with_prefix("cofferdam-tree 1\n");
    let mut copy = Hasher::new_with_prefix("cofferdam-copy 1\n");
    let mut line = Vec::new();
    for (entry, sha256) in entries.iter().zip(files) {
        line.clear();
        let (kind, size) = match &entry.kind {
            EntryKind::Directory => ('d', 0),
            EntryKind::File(key) => ('f', key.size),
            EntryKind::Link(_) => ('l', 0),
        };
        line.extend_from_slice(format!("{kind} {:o} {size} ", entry.owner.mode).as_bytes());
        match entry.kind {
            EntryKind::File(_) => hex(sha256, &mut line),
            _ => line.push(b'-'),
        }
        sized(&entry.path, &mut line);
        if let EntryKind::Link(target) = &entry.kind {
            sized(target, &mut line);
        }
        copy.update(&line);
        line.push(b'\n');
        content.update(&line);
        let of_file = match entry.kind {
            EntryKind::File(_) => entry.modified,
            _ => Time::default(),
        };
        let FileOwner { uid, gid, .. } = entry.owner;
        copy.update(format!(" {uid} {gid} {}.{}\n", of_file.seconds, of_file.nanos));
    }
    let [content, copy] = [content, copy].map(|text| digest_of(text.finalize().as_slice()));
    TreeDigests { content, copy }
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

#[cfg(test)]
mod tests {
    use cofferdam_contracts::canonical::digest_bytes;

    use super::*;

    #[test]
    fn the_two_texts_are_as_they_are_specified() {
        let entry = |path: &str, kind: EntryKind, mode| Entry {
            path: path.into(),
            kind,
            owner: FileOwner { mode, uid: 1, gid: 2 },
            modified: Time { seconds: 3, nanos: 4 },
            links: 1,
        };
        let file = EntryKind::File(FileKey { size: 5, ..FileKey::default() });
        let entries = [
            entry("", EntryKind::Directory, 0o755),
            entry("a", file, 0o644),
            entry("b", EntryKind::Link(b"to".to_vec()), 0o777),
        ];
        let TreeDigests { content, copy } = digests(&entries, &[[0; 32], [0xab; 32], [0; 32]]);
        let sha256 = "ab".repeat(32);
        let text =
            format!("cofferdam-tree 1\nd 755 0 - 0 \nf 644 5 {sha256} 1 a\nl 777 0 - 1 b 2 to\n");
        assert_eq!(content, digest_bytes(text.as_bytes()));
        let text = format!(
            "cofferdam-copy 1\nd 755 0 - 0  1 2 0.0\nf 644 5 {sha256} 1 a 1 2 3.4\nl 777 0 - 1 b 2 to 1 2 0.0\n"
        );
        assert_eq!(copy, digest_bytes(text.as_bytes()));
    }
}
