//! Directories that clients send to a server elsewhere.
//!
//! ```text
//! PUT manifest, in pieces -> `files`, with the files that lack -> PUT files, several a body -> `whole` -> an input `tree:SHA256`
//! ```
//! **What lacks is compared with the tenant's own files alone.**

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;
use crate::id::Digest;

/// Files, directories and links of one sent directory by default: a large project without what its package
/// manager brought.
pub const DEFAULT_TREE_ENTRIES: u64 = 100_000;

/// MiB of one sent directory by default: sources with the data of their tests.
pub const DEFAULT_TREE_MB: u64 = 4_096;

/// MiB of sent files that a tenant may have on a server by default, and of copies of host directories: several projects, on a disk that
/// others use.
pub const DEFAULT_TREES_MB: u64 = 32_768;

/// Bytes of one body of a manifest or of files: what a slow line sends within the patience of a request.
pub const MAX_PIECE_BYTES: usize = 2 * 1024 * 1024;
/// Gaps of one answer: 1 MiB of JSON.
pub const MAX_GAPS: usize = 10_000;
/// What an input that names a sent directory begins with.
const SCHEME: &str = "tree:";

named! {
    /// How far a directory has come.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum UploadState {
        /// Its manifest lacks bytes, from `manifestBytes` on.
        Manifest = "manifest",
        /// Files of its manifest lack.
        Files = "files",
        /// A run can name it.
        Whole = "whole",
    }
}

/// A directory on its way to a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TreeUpload {
    /// SHA-256 of its manifest, which is the digest of the directory's content.
    pub tree: Digest,
    /// What is to be sent next.
    pub state: UploadState,
    /// Bytes of its manifest that arrived.
    pub manifest_bytes: u64,
    /// Files, directories and links; 0 before its manifest is whole.
    pub entries: u64,
    /// Bytes of its files; 0 before its manifest is whole.
    pub bytes: u64,
    /// Different files that lack.
    pub lacking_files: u64,
    /// Bytes of them that lack.
    pub lacking_bytes: u64,
    /// The first 10,000 files that lack, in the order of their digests.
    pub gaps: Vec<FileGap>,
}

/// A file that lacks, and the byte from which on it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileGap {
    /// SHA-256 of the whole file.
    pub sha256: Digest,
    /// Bytes of the whole file.
    pub size: u64,
    /// Bytes that arrived before.
    pub from: u64,
}

/// What a body of files brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UploadReceipt {
    /// Files that are whole now.
    pub files: u64,
    /// Bytes that were taken.
    pub bytes: u64,
}

/// A part of a file in a body: the line `SHA256 FROM LENGTH`, then so many bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePiece<'a> {
    /// SHA-256 of the whole file.
    pub sha256: Digest,
    /// Position of its first byte in the file.
    pub from: u64,
    /// Bytes of the file from there on.
    pub bytes: &'a [u8],
}

impl FilePiece<'_> {
    /// Appends it to a body.
    pub fn push(&self, body: &mut Vec<u8>) {
        let line = format!("{} {} {}\n", self.sha256, self.from, self.bytes.len());
        body.extend_from_slice(line.as_bytes());
        body.extend_from_slice(self.bytes);
    }

    /// Bytes of the longest line before a piece.
    pub const MAX_LINE: usize = 64 + 1 + 20 + 1 + 20 + 1;
}

/// The pieces of a body; `None`: it is malformed or cut.
#[must_use]
pub fn pieces(mut body: &[u8]) -> Option<Vec<FilePiece<'_>>> {
    let mut pieces = Vec::new();
    while !body.is_empty() {
        let window = body.get(..body.len().min(FilePiece::MAX_LINE))?;
        let end = window.iter().position(|byte| *byte == b'\n')?;
        let line = std::str::from_utf8(body.get(..end)?).ok()?;
        let mut fields = line.split(' ');
        let sha256 = fields.next()?.parse().ok()?;
        let from = fields.next()?.parse().ok()?;
        let length: usize = fields.next()?.parse().ok()?;
        if fields.next().is_some() {
            return None;
        }
        let (bytes, after) = body.get(end.checked_add(1)?..)?.split_at_checked(length)?;
        pieces.push(FilePiece { sha256, from, bytes });
        body = after;
    }
    Some(pieces)
}

/// The directory that an input `tree:SHA256` names; `None`: it is another text.
#[must_use]
pub fn named_by(input: &str) -> Option<Digest> {
    Digest::parse(input.strip_prefix(SCHEME)?).ok()
}

/// The input that names a sent directory.
#[must_use]
pub fn input_of(tree: &Digest) -> String {
    format!("{SCHEME}{tree}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::digest_bytes;

    #[test]
    fn a_body_is_read_as_it_was_written_and_refused_where_it_is_cut() {
        let (a, b) = (digest_bytes(b"a\n0 1"), digest_bytes(b""));
        let pushed = [
            FilePiece { sha256: a, from: 7, bytes: b"a\n0 1" },
            FilePiece { sha256: b, from: 0, bytes: b"" },
        ];
        let mut body = Vec::new();
        pushed.iter().for_each(|piece| piece.push(&mut body));
        assert_eq!(pieces(&body).unwrap(), pushed);
        assert_eq!(pieces(b"").unwrap(), []);
        let first = body.len() - (64 + " 0 0\n".len());
        for end in (1..body.len()).filter(|end| *end != first) {
            assert_eq!(pieces(&body[..end]), None, "cut at {end}");
        }
        let sum = "a".repeat(64);
        for bad in [
            "x 0 0\n",
            &format!("{sum} 0\n"),
            &format!("{sum} 0 1 2\nx"),
            &format!("{sum} -1 0\n"),
            &format!("{sum} 0 9\nx"),
        ] {
            assert_eq!(pieces(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn an_input_names_a_tree_by_its_whole_digest() {
        let tree = digest_bytes(b"t");
        assert_eq!(named_by(&input_of(&tree)), Some(tree));
        for other in ["tree:", "tree:abc", "/tree:", "", "Tree:aa"] {
            assert_eq!(named_by(other), None, "{other}");
        }
    }
}
