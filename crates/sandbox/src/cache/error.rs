//! Why a base cannot be kept, read or taken away.

use std::io;
use std::path::{Path, PathBuf};

use crate::agent::AgentError;

/// What is wrong with what a build left, or with this host's store of it.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Something that no base may hold.
    #[error("{path:?} {why}")]
    Hostile {
        /// Relative to the cached directory.
        path: String,
        /// What it is.
        why: &'static str,
    },
    /// More than the bounds allow.
    #[error("{what} exceed this host's bound of {limit}")]
    TooLarge {
        /// The exceeded quantity, in words.
        what: &'static str,
        /// Bound on `what`, in bytes or entries.
        limit: u64,
    },
    /// A base whose manifest is not ours.
    #[error("the base's manifest cannot be read: {0}")]
    Manifest(String),
    /// A machine's agent did not give it.
    #[error("the agent did not give what the build left")]
    Agent(#[from] AgentError),
    /// Or took too long.
    #[error("the agent did not give what the build left in time")]
    Silent,
    /// Reading or writing failed, on this host or in the agent's tar.
    #[error("{path:?} cannot be used")]
    Io {
        /// Path of the file concerned.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> CacheError {
    let path = path.to_owned();
    move |source| CacheError::Io { path, source }
}
