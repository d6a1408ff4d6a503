//! A command's output on its way through the host: heard for words about limits, counted, passed on.

use cofferdam_guest::wire::{ALL_BYTES, ExecEnd};

use crate::agent::{OutputSink, Stream};
use crate::life::limit_watch::Words;

/// Counts the output of one command for its sandbox.
#[derive(Debug)]
pub(crate) struct OutputMeter<S> {
    pub words: Words,
    sink: S,
    /// Bytes of each stream that are kept.
    limit: u64,
    stdout: u64,
    stderr: u64,
}

impl<S: OutputSink> OutputMeter<S> {
    pub(crate) fn new(sink: S, limit: u64) -> Self {
        Self { words: Words::default(), sink, limit, stdout: 0, stderr: 0 }
    }

    /// Bytes of each stream that its agent sends. A command that goes on without this worker keeps its output for the next one,
    /// so it keeps to the limit.
    pub(crate) fn asked(&self, goes_on: bool) -> u64 {
        if self.sink.wants_all() && !goes_on { ALL_BYTES } else { self.limit }
    }

    /// Counts what is not kept as left out.
    pub(crate) fn count(&self, end: &mut ExecEnd) {
        let beyond = |seen: u64| seen.saturating_sub(self.limit);
        end.dropped_stdout = end.dropped_stdout.saturating_add(beyond(self.stdout));
        end.dropped_stderr = end.dropped_stderr.saturating_add(beyond(self.stderr));
    }
}

impl<S: OutputSink> OutputSink for &mut OutputMeter<S> {
    fn take(&mut self, stream: Stream, bytes: &[u8]) {
        self.words.hear(stream, bytes);
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let seen = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        *seen = seen.saturating_add(length);
        self.sink.take(stream, bytes);
    }

    async fn room(&mut self) {
        self.sink.room().await;
    }
}
