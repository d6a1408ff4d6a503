//! A task's output on its way: whole for the artifact, in chunks for whoever watches.

use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::id::TaskKey;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::streams::StreamEnd;

/// Pending bytes that are worth a statement.
const FLUSH_BYTES: usize = 32 * 1024;
/// A watcher sees output at the latest after this time.
const FLUSH_EVERY: Duration = Duration::from_millis(200);
/// Bytes of one stream that watchers see; the artifact has the rest.
pub const WATCH_BYTES: usize = 1024 * 1024;
/// Bytes of a result's own excerpt.
const EXCERPT_BYTES: usize = 4 * 1024;

/// One stream of one task.
#[derive(Debug)]
pub(crate) struct Output {
    key: &'static str,
    bytes: Vec<u8>,
    sent: usize,
    seq: i32,
    since: Stopwatch,
    /// Bytes of the running command that are still kept.
    room: u64,
    /// Bytes that were written, kept or not.
    written: u64,
}

/// Both streams of one task.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub stdout: Output,
    pub stderr: Output,
}

impl Output {
    pub(crate) fn new(key: &'static str) -> Self {
        let since = Stopwatch::start();
        Self { key, bytes: Vec::new(), sent: 0, seq: 0, since, room: u64::MAX, written: 0 }
    }

    /// One that another worker began to store: its bytes come again from the first, and watchers have those up to this end.
    pub(crate) fn after(key: &'static str, stored: StreamEnd) -> Self {
        let sent = usize::try_from(stored.upto).unwrap_or(0);
        Self { seq: stored.seq, sent, ..Self::new(key) }
    }

    /// A command begins, of which at most so many bytes are kept.
    pub(crate) fn begin(&mut self, limit: u64) {
        self.room = limit;
    }

    /// Takes what the sandbox wrote, and gives how many bytes were written before it.
    pub(crate) fn push(&mut self, chunk: &[u8]) -> u64 {
        let before = self.written;
        let kept = chunk.len().min(usize::try_from(self.room).unwrap_or(usize::MAX));
        self.bytes.extend_from_slice(chunk.get(..kept).unwrap_or_default());
        let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.room = self.room.saturating_sub(wide(kept));
        self.written = self.written.saturating_add(wide(chunk.len()));
        before
    }

    /// Everything so far.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The end, for the result's row.
    pub(crate) fn excerpt(&self) -> String {
        let from = self.bytes.len().saturating_sub(EXCERPT_BYTES);
        String::from_utf8_lossy(self.bytes.get(from..).unwrap_or_default()).replace('\0', "")
    }

    fn pending(&self) -> &[u8] {
        self.bytes.get(self.sent..self.bytes.len().min(WATCH_BYTES)).unwrap_or_default()
    }

    /// The next chunk for watchers, where it is time for one; at the end, whatever is left.
    pub(crate) fn take(&mut self, at_end: bool) -> Option<OutputChunk> {
        let pending = self.pending();
        let due = at_end || pending.len() >= FLUSH_BYTES || self.since.elapsed() >= FLUSH_EVERY;
        if pending.is_empty() || !due {
            return None;
        }
        // Cut at a character, so that no chunk ends in half of one; the rest waits for the next.
        let cut = match std::str::from_utf8(pending) {
            Err(e) if !at_end && e.error_len().is_none() && e.valid_up_to() > 0 => e.valid_up_to(),
            _ => pending.len(),
        };
        let text = String::from_utf8_lossy(pending.get(..cut).unwrap_or_default()).into_owned();
        let seq = self.seq;
        self.sent += cut;
        self.seq += 1;
        self.since = Stopwatch::start();
        let upto = i64::try_from(self.sent).unwrap_or(i64::MAX);
        Some(OutputChunk { key: self.key, seq, text, upto })
    }
}

/// A chunk on its way to watchers.
#[derive(Debug)]
pub(crate) struct OutputChunk {
    key: &'static str,
    seq: i32,
    text: String,
    upto: i64,
}

impl OutputChunk {
    /// Stores it. An adjunct: a failure costs watchers a chunk, nothing else.
    pub(crate) async fn store(self, ledger: &Ledger, task: &TaskKey) {
        let Self { key, seq, text, upto } = self;
        if let Err(error) = ledger.streams().append(task.as_str(), key, seq, &text, upto).await {
            tracing::debug!(%error, %task, "a chunk of output was not stored for watchers");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_never_ends_in_half_a_character() {
        let mut output = Output::new("stdout");
        output.push(&vec![b'a'; FLUSH_BYTES]);
        output.push(&[0xe2, 0x82]);
        let first = output.take(false).unwrap();
        assert_eq!((first.seq, first.text.len()), (0, FLUSH_BYTES));
        output.push(&[0xac]);
        let last = output.take(true).unwrap();
        assert_eq!((last.seq, last.text.as_str()), (1, "\u{20ac}"));
        assert!(output.take(true).is_none());
    }

    #[test]
    fn what_another_worker_stored_is_not_stored_again() {
        let mut first = Output::new("stdout");
        first.push(&vec![b'a'; FLUSH_BYTES]);
        let stored = first.take(false).unwrap();
        let end = StreamEnd { seq: stored.seq + 1, upto: stored.upto };
        let mut second = Output::after("stdout", end);
        second.push(&vec![b'a'; FLUSH_BYTES - 1]);
        assert!(second.take(true).is_none(), "the rest of it is still to come");
        second.push(b"ab");
        let next = second.take(true).unwrap();
        assert_eq!((next.seq, next.text.as_str()), (1, "b"));
        assert_eq!(second.into_bytes().len(), FLUSH_BYTES + 1);
    }

    #[test]
    fn watchers_see_a_bounded_part_and_the_artifact_has_all() {
        let mut output = Output::new("stdout");
        output.push(&vec![b'x'; WATCH_BYTES + 10]);
        assert_eq!(output.take(true).unwrap().text.len(), WATCH_BYTES);
        assert!(output.take(true).is_none());
        assert_eq!(output.excerpt().len(), EXCERPT_BYTES);
        assert_eq!(output.into_bytes().len(), WATCH_BYTES + 10);
    }

    #[test]
    fn r79_what_is_kept_of_a_command_has_a_bound_and_what_it_writes_is_counted() {
        let mut output = Output::new("stdout");
        output.begin(3);
        assert_eq!(output.push(b"abcd"), 0);
        assert_eq!(output.push(b"e"), 4);
        output.begin(3);
        assert_eq!(output.push(b"fgh"), 5);
        assert_eq!(output.into_bytes(), b"abcfgh");
    }
}
