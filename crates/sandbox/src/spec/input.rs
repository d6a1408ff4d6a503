//! What a task finds in its sandbox.

use std::fmt;
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
    /// A toolchain of the host, read-only: the caller has found that the operator gives it.
    Toolchain {
        /// Absolute path inside the sandbox.
        path: String,
        /// Absolute, on the host, links resolved.
        source: HostPath,
    },
}

/// A piece of a file, or why there is no more of it, in words.
pub type InputPiece = Result<Bytes, String>;

type InputSource = Box<dyn FnOnce() -> Receiver<InputPiece> + Send>;

/// Content that comes in pieces. Clones are one content.
#[derive(Clone)]
pub struct InputPieces {
    /// Bytes of all pieces: fewer or more are an error.
    size: u64,
    source: Arc<Mutex<Option<InputSource>>>,
}

impl fmt::Debug for InputPieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputPieces").field("size", &self.size).finish_non_exhaustive()
    }
}

impl InputPieces {
    /// Content of this size. `source` begins to read it, once, when its file is written: of a thousand files one at a time is in
    /// memory.
    #[must_use]
    pub fn new(size: u64, source: impl FnOnce() -> Receiver<InputPiece> + Send + 'static) -> Self {
        Self { size, source: Arc::new(Mutex::new(Some(Box::new(source)))) }
    }

    /// Number of bytes of the whole content.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The pieces; `None` once they were taken.
    pub(crate) fn take(&self) -> Option<Receiver<InputPiece>> {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner).take();
        source.map(|begin| begin())
    }
}

/// One content is equal to itself.
impl PartialEq for InputPieces {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.source, &other.source)
    }
}

impl Eq for InputPieces {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn content_is_read_when_it_is_taken_and_once() {
        let begun = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&begun);
        let content = InputPieces::new(3, move || {
            count.fetch_add(1, Ordering::Relaxed);
            mpsc::channel(1).1
        });
        let clone = content.clone();
        assert_eq!((begun.load(Ordering::Relaxed), &clone), (0, &content));
        assert!(content.take().is_some() && clone.take().is_none());
        assert_eq!(begun.load(Ordering::Relaxed), 1);
    }
}
