//! What git in a sandbox says: hostile bytes, since a task may have replaced git.
//!
//! ```text
//! changes   git diff-tree -r -z --raw --no-renames --no-abbrev BASE TREE
//! fitting   git cat-file --batch-check      one line for each blob that was asked for
//! contents  git cat-file --batch            each content, whose id is computed again
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::path::why_refused;
use super::{
    FileMode, GitId, MAX_BYTES, MAX_FILE_BYTES, MAX_FILES, ObjectFormat, Patch, PatchError,
    PatchFile, PatchPath, PathRefusal, RefusedPath, Side,
};

/// Why an answer of git is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RawError {
    /// Not the format that was asked for.
    #[error("git in the sandbox answered {0}")]
    Malformed(&'static str),
    /// Beyond a bound, or not a patch.
    #[error(transparent)]
    Patch(#[from] PatchError),
}

/// One side of a line of a raw diff.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RawSide {
    mode: FileMode,
    blob: GitId,
}

/// One line of a raw diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawChange {
    path: PatchPath,
    before: Option<RawSide>,
    after: Option<RawSide>,
}

/// A raw diff: what a patch may hold, and what it may not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawDiff {
    /// Files by path.
    pub files: Vec<RawChange>,
    /// The rest, by path, at most [`MAX_FILES`].
    pub refused: Vec<RefusedPath>,
    /// More of the rest, counted only.
    pub unlisted: u64,
}

impl RawDiff {
    /// The blobs whose contents a patch needs, each once.
    #[must_use]
    pub fn blobs(&self) -> BTreeSet<&GitId> {
        let sides = self.files.iter().flat_map(|file| [&file.before, &file.after]);
        sides.flatten().map(|side| &side.blob).collect()
    }

    fn refuse(&mut self, path: PatchPath, why: PathRefusal) {
        match self.refused.len() < MAX_FILES {
            true => self.refused.push(RefusedPath { path, why }),
            false => self.unlisted = self.unlisted.saturating_add(1),
        }
    }

    /// By path, each refused one once.
    fn sorted(mut self) -> Self {
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        self.refused.sort_by(|a, b| a.path.cmp(&b.path));
        self.refused.dedup_by(|a, b| a.path == b.path);
        self
    }
}

impl Patch {
    /// The first path at which a raw diff says anything but this patch, if there is one: a path of the diff that the
    /// patch does not hold, or a mode or id of either side.
    #[must_use]
    pub fn differs(&self, changed: &RawDiff) -> Option<String> {
        if let Some(more) = changed.refused.first() {
            return Some(more.path.shown());
        }
        let held = self.files.iter().map(|file| {
            let half = |side: &Option<Side>| {
                side.as_ref().map(|side| RawSide { mode: side.mode, blob: side.blob.clone() })
            };
            RawChange {
                path: file.path.clone(),
                before: half(&file.before),
                after: half(&file.after),
            }
        });
        let held: Vec<RawChange> = held.collect();
        let mut pairs = held.iter().zip(&changed.files);
        if let Some((ours, _)) = pairs.find(|(ours, theirs)| ours != theirs) {
            return Some(ours.path.shown());
        }
        let (ours, theirs) = (held.len(), changed.files.len());
        let more = held.get(theirs).or_else(|| changed.files.get(ours));
        more.map(|more| more.path.shown())
    }
}

/// What of an answer that was cut are whole lines of a raw diff, each of which has two ends.
#[must_use]
pub fn whole_lines(raw: &[u8]) -> &[u8] {
    let mut ends = raw.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at);
    let mut whole = 0;
    while let (Some(_), Some(end)) = (ends.next(), ends.next()) {
        whole = end.saturating_add(1);
    }
    raw.get(..whole).unwrap_or_default()
}

/// One side of a line, or nothing.
type Half = Result<Option<RawSide>, PathRefusal>;

/// How many lines a raw diff has beyond these whole ones, by its count of all.
///
/// # Errors
/// A count that is not one.
pub fn uncounted(count: &[u8], raw: &[u8]) -> Result<u64, RawError> {
    let wrong = || RawError::Malformed("a count of lines that is not one");
    let all: u64 =
        std::str::from_utf8(count).map_err(|_| wrong())?.trim().parse().map_err(|_| wrong())?;
    let ends = raw.iter().filter(|byte| **byte == 0).count();
    Ok(all.saturating_sub(u64::try_from(ends / 2).unwrap_or(u64::MAX)))
}

/// Reads a raw diff. Beyond [`MAX_FILES`] files the rest are refused by [`PathRefusal::Bounds`].
///
/// # Errors
/// Bytes that are not one.
pub fn changes(raw: &[u8], format: ObjectFormat) -> Result<RawDiff, RawError> {
    let mut changed = RawDiff::default();
    let mut fields = raw.split(|byte| *byte == 0);
    while let Some(head) = fields.next().filter(|head| !head.is_empty()) {
        let path = fields.next().ok_or(RawError::Malformed("a line without a path"))?;
        let path = PatchPath::new(path).map_err(|_| RawError::Malformed("an impossible path"))?;
        let (before, after) = halves(head, format)?;
        let why = why_refused(path.as_bytes());
        match (why, before, after) {
            (None, Ok(before), Ok(after)) if changed.files.len() < MAX_FILES => {
                changed.files.push(RawChange { path, before, after });
            }
            (None, Ok(_), Ok(_)) => changed.refuse(path, PathRefusal::Bounds),
            (Some(why), _, _) | (None, Err(why), _) | (None, _, Err(why)) => {
                changed.refuse(path, why);
            }
        }
    }
    if fields.next().is_some() {
        return Err(RawError::Malformed("an empty line"));
    }
    Ok(changed.sorted())
}

/// `:OLDMODE NEWMODE OLDID NEWID STATUS`.
fn halves(head: &[u8], format: ObjectFormat) -> Result<(Half, Half), RawError> {
    let wrong = RawError::Malformed("a line that is not a raw diff's");
    let head = std::str::from_utf8(head).map_err(|_| wrong.clone())?;
    let words: Vec<&str> = head.strip_prefix(':').ok_or(wrong.clone())?.split(' ').collect();
    let [old_mode, new_mode, old, new, status] = words.as_slice() else { return Err(wrong) };
    if !matches!(*status, "A" | "D" | "M" | "T") {
        return Err(wrong);
    }
    Ok((half(old_mode, old, format)?, half(new_mode, new, format)?))
}

fn half(mode: &str, id: &str, format: ObjectFormat) -> Result<Half, RawError> {
    let wrong = RawError::Malformed("a mode or an id that is not one");
    if mode == "000000" {
        return if id == format.none() { Ok(Ok(None)) } else { Err(wrong) };
    }
    let blob = GitId::parse(id).ok().filter(|id| id.format() == format).ok_or(wrong)?;
    Ok(match FileMode::parse(mode) {
        Some(mode) => Ok(Some(RawSide { mode, blob })),
        None if mode == "120000" => Err(PathRefusal::Link),
        None if mode == "160000" => Err(PathRefusal::Submodule),
        None => Err(PathRefusal::Mode),
    })
}

/// What of the changes fits into a patch, by the sizes of their blobs: each side of a file, and all of each kind. The rest is
/// refused by [`PathRefusal::Bounds`]. With it the bytes that the contents of the blobs have in one answer, heads included.
///
/// # Errors
/// Another answer than one line a blob, or a blob without one.
pub fn fitting(answer: &[u8], changed: RawDiff) -> Result<(RawDiff, u64), RawError> {
    let wrong = || RawError::Malformed("no size for a blob");
    let answer = std::str::from_utf8(answer).map_err(|_| wrong())?;
    let mut told = BTreeMap::new();
    for line in answer.lines() {
        let (id, size) = line.split_once(" blob ").ok_or_else(wrong)?;
        let size: u64 = size.parse().map_err(|_| wrong())?;
        // The line, the content, and the newline behind each.
        let line = u64::try_from(line.len()).unwrap_or(u64::MAX).saturating_add(2);
        if told.insert(id, (size, size.saturating_add(line))).is_some() {
            return Err(wrong());
        }
    }
    let of = |side: &Option<RawSide>| match side {
        Some(side) => told.get(side.blob.as_str()).map(|(size, _)| *size).ok_or_else(wrong),
        None => Ok(0),
    };
    let RawDiff { files, refused, unlisted } = changed;
    let mut kept = RawDiff { files: Vec::new(), refused, unlisted };
    let (mut all_before, mut all_after) = (0_u64, 0_u64);
    for file in files {
        let (before, after) = (of(&file.before)?, of(&file.after)?);
        let sums = (all_before.saturating_add(before), all_after.saturating_add(after));
        match before.max(after) <= MAX_FILE_BYTES && sums.0.max(sums.1) <= MAX_BYTES {
            true => {
                (all_before, all_after) = sums;
                kept.files.push(file);
            }
            false => kept.refuse(file.path, PathRefusal::Bounds),
        }
    }
    let blobs = kept.blobs();
    let bytes = blobs.iter().filter_map(|id| told.get(id.as_str())).map(|(_, bytes)| *bytes);
    let whole = bytes.fold(0_u64, u64::saturating_add);
    Ok((kept.sorted(), whole))
}

/// The patch, the contents that it writes and its text, from what git said of the blobs. Every id is computed
/// again.
///
/// # Errors
/// An answer that is not one, a content that does not have its id, or a patch that [`Patch::check`] refuses.
pub fn contents(
    answer: &[u8],
    changed: &RawDiff,
    base: &GitId,
) -> Result<(Patch, Vec<u8>, String), RawError> {
    let blobs = read(answer, base.format())?;
    let side = |half: &Option<RawSide>| -> Result<Option<Side>, RawError> {
        let Some(RawSide { mode, blob }) = half else { return Ok(None) };
        let bytes = blobs.get(blob).ok_or(RawError::Malformed("a blob too few"))?;
        Ok(Some(Side::of(*mode, base.format(), bytes)))
    };
    let mut files = Vec::with_capacity(changed.files.len());
    for file in &changed.files {
        let (before, after) = (side(&file.before)?, side(&file.after)?);
        files.push(PatchFile { path: file.path.clone(), before, after });
    }
    let (refused, unlisted) = (changed.refused.clone(), changed.unlisted);
    let patch = Patch { refused, unlisted, ..Patch::of_files(base, files) };
    Ok(patch.with_text(&blobs)?)
}

/// `ID blob SIZE\n`, that many bytes, `\n`; again and again.
fn read(answer: &[u8], format: ObjectFormat) -> Result<BTreeMap<GitId, &[u8]>, RawError> {
    let wrong = || RawError::Malformed("contents that are not a batch's");
    let mut blobs = BTreeMap::new();
    let mut rest = answer;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or_else(wrong)?;
        let (head, behind) = rest.split_at_checked(end).ok_or_else(wrong)?;
        let head = std::str::from_utf8(head).map_err(|_| wrong())?;
        let (id, size) = head.split_once(" blob ").ok_or_else(wrong)?;
        let size: usize = size.parse().map_err(|_| wrong())?;
        let behind = behind.get(1..).ok_or_else(wrong)?;
        let (bytes, behind) = behind.split_at_checked(size).ok_or_else(wrong)?;
        if GitId::of_blob(format, bytes).as_str() != id {
            return Err(RawError::Malformed("a content that does not have its id"));
        }
        blobs.insert(GitId::of_blob(format, bytes), bytes);
        rest = behind.strip_prefix(b"\n").ok_or_else(wrong)?;
    }
    Ok(blobs)
}
