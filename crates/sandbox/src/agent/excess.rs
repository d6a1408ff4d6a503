//! Files that are more than one collection takes: which bound, by how much, where it was left, and what to do.

use cofferdam_guest::wire::CollectExcess;

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

impl From<CollectExcess> for Excess {
    fn from(over: CollectExcess) -> Self {
        let shown = |path: String| path.chars().take(MAX_SHOWN).collect::<String>();
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
