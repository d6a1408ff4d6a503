//! A patch: what a task changed in a repository, as data.
//!
//! ```text
//! git in the sandbox --(raw, objects: hostile bytes)--> read -> Patch + contents --(worker)--> artifacts of kind `patch`
//!   patch.json      Patch: base commit, paths, modes, blob ids, sha256 of every content
//!   patch.bin       the contents that the patch writes, one after the other in the order of the paths
//!   changes.patch   the text for people and for `git am`, derived from both
//! artifacts --(open, or of_build: every digest again)--> VerifiedPatch -> receipt at the gate -> `cofferdam apply`
//! ```
//! **The structured patch is the truth: the gate shows it and `apply` writes it. No text of a diff is ever
//! parsed.** What a patch must not hold is listed in it by name ([`PathRefusal`]), and `apply` refuses it then.

mod apply;
mod build;
mod commit;
mod diff;
mod git_ref;
mod mail;
mod object;
mod path;
mod raw;
mod receipt;
mod receipt_text;
mod ref_advert;
mod repo;

use std::collections::BTreeMap;
use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::{self, digest_bytes};
use crate::enum_names::named;
use crate::id::Digest;

pub use apply::{ApplyRecord, ApplyRow};
pub use commit::{COMMIT_EMAIL, COMMIT_NAME, PatchCommit};
pub use git_ref::{GitRef, GitRefs, RefAbsence, packed_refs};
pub use object::{GitId, ObjectFormat};
pub use path::{PatchPath, PathRefusal, why_refused};
pub use raw::{RawChange, RawDiff, RawError, changes, contents, fitting, uncounted, whole_lines};
pub use receipt::{
    APPLY_RECIPE, ReceiptFacts, Target, apply_recipe, is_apply_recipe, is_receipt_of, message_of,
    named_in, receipt,
};
pub use receipt_text::{MAX_MESSAGE, TaskEnd, message_fault};
pub use ref_advert::{AdvertError, MAX_ADVERT, RefAdvert, advert, listed, ls_refs};
pub use repo::{InputRepo, REPO_MOUNT, RepoSpec, check_out, host_of, mount, with_checkout};

/// Version of `patch.json`.
pub const SCHEMA_VERSION: u32 = 1;
/// Files of one patch: what one collection of a task takes. Beyond it no person reads the list.
pub const MAX_FILES: usize = 1_000;
/// Bytes of one file, before and after: source files are smaller, and a diff holds both in memory.
pub const MAX_FILE_BYTES: u64 = 8 * 1024 * 1024;
/// Bytes of all contents after, and of all before. A quarter of what one task's artifacts may have, since
/// a text of binary files is a third larger and lies beside the contents.
pub const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Artifact that holds the [`Patch`].
pub const INDEX: &str = "patch.json";
/// Artifact that holds the contents.
pub const CONTENTS: &str = "patch.bin";
/// Artifact that holds the text.
pub const TEXT: &str = "changes.patch";

named! {
    /// Mode of a file in a tree. Links and submodules have none here: they are refused.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum FileMode {
        /// Regular file without the executable bit.
        Plain = "100644",
        /// A file with the executable bit.
        Executable = "100755",
    }
}

/// One side of a changed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Side {
    /// Git mode of the file, `100644` or `100755`.
    pub mode: FileMode,
    /// Id of its blob.
    pub blob: GitId,
    /// Digest of its bytes.
    pub sha256: Digest,
    /// Its size in bytes.
    pub size: u64,
}

/// One changed file. At least one side is there: added, removed, or changed.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchFile {
    /// Its path from the top of the repository.
    pub path: PatchPath,
    /// As the base commit has it.
    pub before: Option<Side>,
    /// As the patch leaves it.
    pub after: Option<Side>,
}

/// A path that the patch must not hold, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RefusedPath {
    /// Refused path, from the top of the repository.
    pub path: PatchPath,
    /// Rule that keeps the path out of patches.
    pub why: PathRefusal,
}

/// What a task changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Patch {
    /// Version of this document: [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The commit that it starts from.
    pub base: GitId,
    /// Changed files by path, each once.
    #[schemars(length(max = 1_000))]
    pub files: Vec<PatchFile>,
    /// What the task changed beside them and no patch may hold.
    #[schemars(length(max = 1_000))]
    pub refused: Vec<RefusedPath>,
    /// Refused paths beyond those: counted only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unlisted: u64,
    /// Digest of the text that was derived from it.
    pub text: Digest,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Why the bytes of a patch are not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// `patch.json` does not parse.
    #[error("{INDEX}: {0}")]
    Index(String),
    /// `patch.json` is not in its canonical form.
    #[error("{INDEX} is not in canonical form")]
    NotCanonical,
    /// It has another version.
    #[error("{INDEX} has version {0}; this program reads version {SCHEMA_VERSION}")]
    Version(u32),
    /// Beyond a bound.
    #[error("the patch has {observed} {what}; the limit is {limit}")]
    TooLarge {
        /// What is counted.
        what: &'static str,
        /// Largest number that a patch may have of `what`.
        limit: u64,
        /// What it has.
        observed: u64,
    },
    /// Its paths are not strictly ascending, or one is both a file and a directory.
    #[error("{0}: listed twice, out of order, or both a file and a directory")]
    Order(String),
    /// A file that is not changed.
    #[error("{0}: nothing changed")]
    Unchanged(String),
    /// A path that must not be in it.
    #[error("{path}: refused, {}", why.as_str())]
    Refused {
        /// The path, safe to print.
        path: String,
        /// Rule that keeps the path out of patches.
        why: PathRefusal,
    },
    /// An id of another kind than the base's.
    #[error("{0}: its ids have another length than the base commit")]
    Format(String),
    /// The contents have other bytes than the index says.
    #[error("{0}: its content does not have the recorded size, digest and id")]
    Content(String),
    /// The text has another digest.
    #[error("{TEXT} does not have the recorded digest")]
    Text,
}

/// A patch whose every byte was held against its digests and bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedPatch {
    /// Content of `patch.json`, within its bounds.
    pub patch: Patch,
    /// Digest of `patch.json`: what an approval is bound to.
    pub digest: Digest,
    contents: Vec<u8>,
    ranges: Vec<Range<usize>>,
    /// Content of `changes.patch`, for people and `git am`; never parsed.
    pub text: String,
}

impl VerifiedPatch {
    /// Opens the three artifacts of a patch. They are held to nothing but what they say themselves: the
    /// caller compares `digest` with the one that it knows.
    ///
    /// # Errors
    /// [`PatchError`], whatever the bytes are.
    pub fn open(index: &[u8], contents: Vec<u8>, text: Vec<u8>) -> Result<Self, PatchError> {
        let patch: Patch =
            serde_json::from_slice(index).map_err(|e| PatchError::Index(e.to_string()))?;
        let written = canonical::canonical(&patch).map_err(|_| PatchError::NotCanonical)?;
        if written != index {
            return Err(PatchError::NotCanonical);
        }
        patch.check()?;
        if digest_bytes(&text) != patch.text {
            return Err(PatchError::Text);
        }
        let text = String::from_utf8(text).map_err(|_| PatchError::Text)?;
        let (mut ranges, mut at) = (Vec::with_capacity(patch.files.len()), 0_usize);
        for file in &patch.files {
            let wrong = || PatchError::Content(file.path.shown());
            let size = file.after.as_ref().map_or(0, |side| side.size);
            let end = usize::try_from(size).ok().and_then(|size| at.checked_add(size));
            let end = end.ok_or_else(wrong)?;
            let bytes = contents.get(at..end).ok_or_else(wrong)?;
            if file.after.as_ref().is_some_and(|side| !side.holds(bytes)) {
                return Err(wrong());
            }
            ranges.push(at..end);
            at = end;
        }
        if at != contents.len() {
            return Err(PatchError::Content(CONTENTS.to_owned()));
        }
        Ok(Self { patch, digest: digest_bytes(index), contents, ranges, text })
    }

    /// The files, each with the content that it gets; `None` for one that is removed.
    pub fn files(&self) -> impl Iterator<Item = (&PatchFile, Option<&[u8]>)> {
        self.patch.files.iter().zip(&self.ranges).map(|(file, range)| {
            let bytes = self.contents.get(range.clone());
            (file, bytes.filter(|_| file.after.is_some()))
        })
    }
}

impl Side {
    /// A side of these bytes.
    #[must_use]
    pub fn of(mode: FileMode, format: ObjectFormat, bytes: &[u8]) -> Self {
        Self {
            mode,
            blob: GitId::of_blob(format, bytes),
            sha256: digest_bytes(bytes),
            size: u64::try_from(bytes.len()).unwrap_or(u64::MAX),
        }
    }

    /// Whether these are its bytes.
    fn holds(&self, bytes: &[u8]) -> bool {
        *self == Self::of(self.mode, self.blob.format(), bytes)
    }
}

impl Patch {
    /// Whether nothing was changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.refused.is_empty()
    }

    /// A patch of these files with nothing refused. It has no text yet: see [`Self::with_text`].
    fn of_files(base: &GitId, files: Vec<PatchFile>) -> Self {
        let (schema_version, base, refused) = (SCHEMA_VERSION, base.clone(), Vec::new());
        Self { schema_version, base, files, refused, unlisted: 0, text: digest_bytes(b"") }
    }

    /// The patch with its text, the contents that it writes, and that text, from the contents of its blobs. Its bounds are
    /// held before anything is derived from it.
    fn with_text<B: AsRef<[u8]>>(
        mut self,
        blobs: &BTreeMap<GitId, B>,
    ) -> Result<(Self, Vec<u8>, String), PatchError> {
        self.check()?;
        let bytes_of = |side: Option<&Side>| -> &[u8] {
            side.and_then(|side| blobs.get(&side.blob)).map(AsRef::as_ref).unwrap_or_default()
        };
        let text = mail::text(&self, &bytes_of);
        self.text = digest_bytes(text.as_bytes());
        let after = self.files.iter().map(|file| bytes_of(file.after.as_ref()));
        let contents = after.collect::<Vec<_>>().concat();
        Ok((self, contents, text))
    }

    /// Holds the patch to its bounds and to what no patch may hold.
    ///
    /// # Errors
    /// The first [`PatchError`].
    pub fn check(&self) -> Result<(), PatchError> {
        if self.schema_version != SCHEMA_VERSION {
            return Err(PatchError::Version(self.schema_version));
        }
        let count = |list: usize| u64::try_from(list).unwrap_or(u64::MAX);
        let files = count(self.files.len().max(self.refused.len()));
        within("files", count(MAX_FILES), files)?;
        let (mut before, mut after) = (0_u64, 0_u64);
        let mut last: Option<&PatchPath> = None;
        for file in &self.files {
            self.check_file(file)?;
            for (side, sum) in [(&file.before, &mut before), (&file.after, &mut after)] {
                let size = side.as_ref().map_or(0, |side| side.size);
                within("bytes in a file", MAX_FILE_BYTES, size)?;
                *sum = sum.saturating_add(size);
            }
            if last.is_some_and(|last| *last >= file.path) {
                return Err(PatchError::Order(file.path.shown()));
            }
            last = Some(&file.path);
        }
        within("bytes", MAX_BYTES, before.max(after))?;
        self.check_directories()
    }

    fn check_file(&self, file: &PatchFile) -> Result<(), PatchError> {
        if let Some(why) = why_refused(file.path.as_bytes()) {
            return Err(PatchError::Refused { path: file.path.shown(), why });
        }
        let sides = [&file.before, &file.after];
        let format = self.base.format();
        if sides.iter().copied().flatten().any(|side| side.blob.format() != format) {
            return Err(PatchError::Format(file.path.shown()));
        }
        if file.before == file.after {
            return Err(PatchError::Unchanged(file.path.shown()));
        }
        Ok(())
    }

    /// No path that stays is a directory of another one that stays.
    fn check_directories(&self) -> Result<(), PatchError> {
        let stays = self.files.iter().filter(|file| file.after.is_some());
        let stays: std::collections::BTreeSet<&[u8]> =
            stays.map(|file| file.path.as_bytes()).collect();
        for path in &stays {
            for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
                if path.get(..at).is_some_and(|dir| stays.contains(dir)) {
                    return Err(PatchError::Order(path::shown(path)));
                }
            }
        }
        Ok(())
    }
}

fn within(what: &'static str, limit: u64, observed: u64) -> Result<(), PatchError> {
    match observed <= limit {
        true => Ok(()),
        false => Err(PatchError::TooLarge { what, limit, observed }),
    }
}

#[cfg(test)]
mod tests;
