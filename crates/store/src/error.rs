//! Why a store gives or takes no bytes.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_contracts::object::ObjectFault;

/// Why bytes were not stored or not read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No space beyond what is left to others, or no quota of the file system.
    #[error(
        "the artifact store is full (a tenth of its disk, at most 1 GiB, is left to others): free space on its disk"
    )]
    Full,
    /// No file for an object on record.
    #[error("the file of object {0} is missing from the artifact store")]
    Missing(String),
    /// A file of another length than its object has.
    #[error("the file of object {object} has {found} bytes instead of {wanted}")]
    Cut {
        /// Name of the file: digest and id.
        object: String,
        /// Its bytes now.
        found: u64,
        /// Its bytes when it was sealed.
        wanted: u64,
    },
    /// A file whose pieces do not open.
    #[error("the file of object {0} has other bytes than were stored")]
    Changed(String),
    /// An operation that took too long.
    #[error("the artifact store did not answer within {} s", .0.as_secs())]
    Slow(Duration),
    /// A file or directory that cannot be used.
    #[error("cannot use {path} of the artifact store")]
    File {
        /// Where it is.
        path: PathBuf,
        /// Error of the file system for this path.
        #[source]
        source: io::Error,
    },
    /// An operation that failed for another reason.
    #[error("the artifact store failed")]
    Failed(#[source] object_store::Error),
    /// The cipher refused, or a task of ours ended.
    #[error("the artifact store failed: {0}")]
    Broken(&'static str),
}

impl StoreError {
    /// Which kind of fault it is, for a code and for whether to try again.
    #[must_use]
    pub const fn fault(&self) -> ObjectFault {
        match self {
            Self::Full => ObjectFault::Full,
            Self::Missing(_) => ObjectFault::Missing,
            Self::Cut { .. } => ObjectFault::Cut,
            Self::Changed(_) => ObjectFault::Changed,
            Self::Slow(_) => ObjectFault::Slow,
            Self::File { .. } | Self::Failed(_) | Self::Broken(_) => ObjectFault::Failed,
        }
    }

    /// By the kind of the system's error, never by its words.
    pub(crate) fn of(error: object_store::Error, object: &str) -> Self {
        if matches!(error, object_store::Error::NotFound { .. }) {
            return Self::Missing(object.to_owned());
        }
        match system_kind(&error) {
            Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => Self::Full,
            Some(io::ErrorKind::NotFound) => Self::Missing(object.to_owned()),
            Some(io::ErrorKind::UnexpectedEof) => Self::Changed(object.to_owned()),
            _ => Self::Failed(error),
        }
    }

    /// Of a file of ours.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::File { path, source },
        }
    }
}

/// The kind of the innermost error of the system.
fn system_kind(error: &object_store::Error) -> Option<io::ErrorKind> {
    let mut next = error.source();
    let mut found = None;
    while let Some(error) = next {
        found = error.downcast_ref::<io::Error>().map(io::Error::kind).or(found);
        next = error.source();
    }
    found
}
