//! What a task finds in its sandbox.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::sandbox::AccessMode;
use tokio::sync::mpsc::Receiver;

use crate::host::hostpath::HostPath;

/// Something that the task finds in its sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A file whose content the caller gives.
    Bytes {
        /// Absolute path inside the sandbox.
        path: String,
        /// Whole content of the file.
        bytes: Vec<u8>,
        /// Its permissions, at most 0777.
        mode: u32,
    },
    /// A file whose content comes in pieces, too large for memory.
    Stream {
        /// Absolute path inside the sandbox.
        path: String,
        /// Its content, which is taken once.
        pieces: InputPieces,
        /// Digest of the whole content.
        sha256: Digest,
        /// Its permissions, at most 0777.
        mode: u32,
    },
    /// A file or directory of the host, inside an allowed root.
    Host {
        /// Absolute path inside the sandbox.
        path: String,
        /// Absolute, on the host.
        source: HostPath,
        /// Read-only or copy-on-write.
        access: AccessMode,
        /// The copy of `trees` that is given in its place; `None`: the source as it is.
        tree: Option<Digest>,
    },
}

/// A piece of a file, or why there is no more of it, in words.
pub type InputPiece = Result<Bytes, String>;

/// Content that comes in pieces. Clones are one content.
#[derive(Debug, Clone)]
pub struct InputPieces {
    /// Bytes of all pieces: fewer or more are an error.
    size: u64,
    pieces: Arc<Mutex<Option<Receiver<InputPiece>>>>,
}

impl InputPieces {
    /// Content of this size.
    #[must_use]
    pub fn new(size: u64, pieces: Receiver<InputPiece>) -> Self {
        Self { size, pieces: Arc::new(Mutex::new(Some(pieces))) }
    }

    /// Number of bytes of the whole content.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The pieces; `None` once they were taken.
    pub(crate) fn take(&self) -> Option<Receiver<InputPiece>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// One content is equal to itself.
impl PartialEq for InputPieces {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pieces, &other.pieces)
    }
}

impl Eq for InputPieces {}
