//! Why a directory is not bound, or a copy is not given.

use std::io;
use std::path::PathBuf;

use cofferdam_contracts::id::Digest;

/// Why a directory is not bound, or a copy is not given.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// More files, directories and links than a bound tree may have.
    #[error(
        "it has more than {0} entries: name a directory with fewer, or give it as it is with `live: true`"
    )]
    Entries(usize),
    /// More bytes than a bound tree may have.
    #[error(
        "it has more than {0} bytes: name a directory with fewer, or give it as it is with `live: true`"
    )]
    Bytes(u64),
    /// More bytes of names than a bound tree may have.
    #[error(
        "its paths and the targets of its links have more than {0} bytes: name a directory with fewer, or give it as it is with \
         `live: true`"
    )]
    Names(usize),
    /// A path that no system call takes.
    #[error("{0:?}: its path is longer than 4,095 bytes")]
    Long(PathBuf),
    /// Neither a file nor a directory was named.
    #[error("it is neither a file nor a directory")]
    Kind,
    /// The disk of the state directory would be full.
    #[error(
        "its copy of {wanted} bytes and {entries} entries does not fit: {left} bytes and {inodes} inodes are left below {dir:?}, and 1 GiB \
         and 10,000 stay free; free some, or give it as it is with `live: true`"
    )]
    Room {
        /// Bytes that are still to be written.
        wanted: u64,
        /// Files, directories and links that are still to be made.
        entries: u64,
        /// Bytes that the file system has left.
        left: u64,
        /// Inodes that it has left.
        inodes: u64,
        /// Where the copy would lie.
        dir: PathBuf,
    },
    /// The tenant would have more than its share of the disk.
    #[error(
        "its copy takes {new} bytes, and the tenant's other copies on this server take {held}, of {quota} together by its quota \
         `quota.trees_mb`: those of runs that go on stay, and so does what was used within ten minutes; wait for these runs, or give it \
         as it is with `live: true`"
    )]
    Share {
        /// Bytes that the copy takes beside the others.
        new: u64,
        /// Bytes that the tenant's copies take now.
        held: u64,
        /// Bytes that they may take.
        quota: u64,
    },
    /// The kernel does not read or write a part of it.
    #[error("{path:?} cannot be read or copied: {source}")]
    Io {
        /// From the directory.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The copy is not in this state directory.
    #[error("its copy {0} is not on this host any more: start a new run")]
    Gone(Digest),
    /// The copy's files are not those that were bound.
    #[error("its copy {0} is damaged: start a new run")]
    Damaged(Digest),
}

impl TreeError {
    /// The thread that read the tree ended before its end.
    #[must_use]
    pub fn of_thread(why: &str) -> Self {
        Self::Io { path: PathBuf::from("."), source: io::Error::other(why.to_owned()) }
    }

    /// Whether the same directory would be refused a moment later, too.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Io { .. } | Self::Room { .. } | Self::Share { .. } => false,
            Self::Entries(_)
            | Self::Bytes(_)
            | Self::Names(_)
            | Self::Long(_)
            | Self::Kind
            | Self::Gone(_)
            | Self::Damaged(_) => true,
        }
    }
}
