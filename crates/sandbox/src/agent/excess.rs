//! Files that are more than one collection takes: which bound, by how much, where it was left, and what to do.

use std::collections::BTreeSet;

use cofferdam_contracts::artifact::{ArtifactBound, FileOmission};
use cofferdam_guest::wire::{CollectExcess, CollectOmission, CollectRequest};

/// Characters of a path that are shown: a task chose it.
const MAX_SHOWN: usize = 200;

/// A bound of a collection that a task's files do not keep. None of them is kept: a part would look like the whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// More files match `artifacts` than one collection keeps.
    #[error(
        "{found} files match `artifacts` and at most {most} are kept (the first too many: {path:?}), so none was kept: \
         match fewer, or pack them into one archive"
    )]
    Files {
        /// That are kept at most.
        most: u64,
        /// Number of files that match.
        found: u64,
        /// The first beyond the bound.
        path: String,
    },
    /// The files that match have more bytes together than one collection keeps.
    #[error(
        "the files that match `artifacts` hold {found} bytes up to {path:?} and at most {most} are kept, so none was \
         kept: match fewer, compress them, or split the task"
    )]
    Bytes {
        /// That are kept at most.
        most: u64,
        /// Up to this file, it included.
        found: u64,
        /// The first that does not fit.
        path: String,
    },
    /// Too much to look through.
    #[error(
        "`artifacts` has more than {most} directory entries to look through (in {path:?} at last), so none was kept: \
         name the directories that hold the files"
    )]
    Entries {
        /// That are looked at.
        most: u64,
        /// Where that was.
        path: String,
    },
}

/// As much of a path as is shown. An agent may name any; no record takes a NUL.
fn shown(path: String) -> String {
    let kept = |c: char| if c == '\0' { char::REPLACEMENT_CHARACTER } else { c };
    path.chars().take(MAX_SHOWN).map(kept).collect()
}

/// What an agent says beside the files, which of the globs matched nothing and what is left out: nothing where it was not asked for.
/// Pure.
pub(crate) fn beside(
    request: &CollectRequest,
    unmatched: Vec<u32>,
    omitted: Option<CollectOmission>,
) -> (Vec<usize>, Option<FileOmission>) {
    let unmatched = unmatched.into_iter().filter_map(|index| usize::try_from(index).ok());
    let unmatched: BTreeSet<usize> =
        unmatched.filter(|index| request.exact && *index < request.globs.len()).collect();
    let omitted = omitted.filter(|omission| request.exact && omission.files > 0);
    let omitted = omitted.map(|CollectOmission { files, bytes, first, beyond_files }| {
        let (bound, most) = match beyond_files {
            true => (ArtifactBound::Files, request.max_files),
            false => (ArtifactBound::Bytes, request.max_bytes),
        };
        FileOmission { files, bytes, first: shown(first), bound, most }
    });
    (unmatched.into_iter().collect(), omitted)
}

impl From<CollectExcess> for Excess {
    fn from(over: CollectExcess) -> Self {
        match over {
            CollectExcess::Files { most, found, path } => {
                Self::Files { most, found, path: shown(path) }
            }
            CollectExcess::Bytes { most, found, path } => {
                Self::Bytes { most, found, path: shown(path) }
            }
            CollectExcess::Entries { most, path } => Self::Entries { most, path: shown(path) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_says_of_globs_and_of_the_rest_is_held_to_the_request() {
        let request = |exact| CollectRequest {
            root: "/work".into(),
            globs: vec!["a".into(), "b".into()],
            max_bytes: 10,
            max_files: 2,
            exact,
        };
        let omission = |files| {
            Some(CollectOmission { files, bytes: 7, first: "x".repeat(999), beyond_files: true })
        };
        let (unmatched, omitted) = beside(&request(true), vec![1, 7, 1], omission(3));
        assert_eq!(unmatched, [1]);
        let omitted = omitted.unwrap();
        assert_eq!((omitted.files, omitted.bound, omitted.most), (3, ArtifactBound::Files, 2));
        assert_eq!(omitted.first.len(), MAX_SHOWN);
        assert_eq!(beside(&request(true), Vec::new(), omission(0)).1, None);
        let plain = beside(&request(false), vec![0], omission(1));
        assert_eq!(plain, (Vec::new(), None), "it was not asked");
    }
}
