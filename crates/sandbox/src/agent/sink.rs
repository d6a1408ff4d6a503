//! Where a command's output goes.

use std::future::Future;

/// A standard stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output; of a command with a terminal, all of its output.
    Stdout,
    /// Standard error; a command with a terminal has none of its own.
    Stderr,
}

/// Takes a command's output, piece by piece. A closure takes at most the limit on output, at once.
pub trait OutputSink: Send {
    /// Takes a piece.
    fn take(&mut self, stream: Stream, bytes: &[u8]);

    /// Whether it takes all output and keeps to the limit itself.
    fn wants_all(&self) -> bool {
        false
    }

    /// Until it can take another piece. The command waits that long, once its pipes are full.
    fn room(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

impl<F: FnMut(Stream, &[u8]) + Send> OutputSink for F {
    fn take(&mut self, stream: Stream, bytes: &[u8]) {
        self(stream, bytes);
    }
}
