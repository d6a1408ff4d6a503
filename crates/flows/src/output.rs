//! A task's output on its way: whole for the artifact, in chunks for whoever watches.

use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::id::{RunId, TaskKey};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::streams::{NewChunk, StreamEnd};

/// Pending bytes that are worth a statement.
const FLUSH_BYTES: usize = 32 * 1024;
/// Between two chunks of one stream, while somebody watches and else. The first is given out at once: a person waits for it.
const FLUSH_WATCHED: Duration = Duration::from_millis(50);
const FLUSH_EVERY: Duration = Duration::from_millis(200);
/// Between two chunks of a stream however much is pending, so that a fast writer costs few statements.
const FLUSH_LEAST: Duration = Duration::from_millis(25);
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

    /// How long pending bytes wait yet; `None` where there are none.
    pub(crate) fn due_in(&self, is_watched: bool) -> Option<Duration> {
        let pending = self.pending().len();
        let wait = wait(pending, self.seq == 0, is_watched);
        (pending > 0).then(|| wait.saturating_sub(self.since.elapsed()))
    }

    /// The next chunk for watchers, where it is time for one; at the end, whatever is left.
    pub(crate) fn take(&mut self, cue: Cue) -> Option<OutputChunk> {
        let at_end = cue == Cue::End;
        let due = at_end || self.due_in(cue == Cue::Watched).is_some_and(|wait| wait.is_zero());
        let pending = self.pending();
        if pending.is_empty() || !due {
            return None;
        }
        // Cut at a character, so that no chunk ends in half of one; the rest waits for the next.
        let cut = match std::str::from_utf8(pending) {
            Err(e) if !at_end && e.error_len().is_none() && e.valid_up_to() > 0 => e.valid_up_to(),
            _ => pending.len(),
        };
        let text = String::from_utf8_lossy(pending.get(..cut).unwrap_or_default()).into_owned();
        let (seq, is_told) = (self.seq, self.seq == 0 || cue != Cue::Unwatched);
        self.sent += cut;
        self.seq += 1;
        self.since = Stopwatch::start();
        let upto = i64::try_from(self.sent).unwrap_or(i64::MAX);
        Some(OutputChunk { key: self.key, seq, text, upto, is_told })
    }
}

/// When chunks are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cue {
    /// While nobody is known to watch.
    Unwatched,
    /// While somebody watches.
    Watched,
    /// The task has ended: everything is due.
    End,
}

/// How long after a chunk the next one is given out. Pure.
fn wait(pending: usize, is_first: bool, is_watched: bool) -> Duration {
    match (is_first, pending >= FLUSH_BYTES, is_watched) {
        (true, _, _) => Duration::ZERO,
        (_, true, _) => FLUSH_LEAST,
        (_, _, true) => FLUSH_WATCHED,
        (_, _, false) => FLUSH_EVERY,
    }
}

/// A chunk on its way to watchers.
#[derive(Debug)]
pub(crate) struct OutputChunk {
    key: &'static str,
    seq: i32,
    text: String,
    upto: i64,
    /// Whether its watchers are woken for it: there may be some.
    is_told: bool,
}

impl OutputChunk {
    /// Stores it. An adjunct: a failure costs watchers a chunk, nothing else.
    pub(crate) async fn store(self, ledger: &Ledger, run: &RunId, task: &TaskKey) {
        let Self { key, seq, text, upto, is_told } = self;
        let wakes = is_told.then(|| run.as_str());
        let chunk = NewChunk { task: task.as_str(), key, seq, text: &text, upto, wakes };
        if let Err(error) = ledger.streams().append(chunk).await {
            tracing::debug!(%error, %task, "a chunk of output was not stored for watchers");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_chunk_is_due_at_once_and_later_ones_sooner_for_a_watcher() {
        assert_eq!(wait(1, true, false), Duration::ZERO);
        assert_eq!(wait(1, false, true), FLUSH_WATCHED);
        assert_eq!(wait(1, false, false), FLUSH_EVERY);
        assert_eq!(
            wait(FLUSH_BYTES, false, false),
            FLUSH_LEAST,
            "a fast writer costs few statements"
        );
        let mut output = Output::new("stdout");
        assert_eq!(output.due_in(true), None, "nothing is pending");
        output.push(b"a");
        assert_eq!(output.due_in(false), Some(Duration::ZERO));
        let first = output.take(Cue::Unwatched).unwrap();
        assert!(first.is_told, "a watcher may have come a moment ago");
        output.push(b"b");
        assert!(output.due_in(true).unwrap() <= FLUSH_WATCHED);
        assert!(output.due_in(false).unwrap() > FLUSH_WATCHED);
        assert!(output.take(Cue::Unwatched).is_none(), "it is not time");
        cofferdam_ambient::clock::sleep_blocking(FLUSH_WATCHED);
        assert!(output.take(Cue::Unwatched).is_none(), "nobody watches");
        assert!(output.take(Cue::Watched).unwrap().is_told);
        output.push(b"c");
        assert!(output.take(Cue::End).unwrap().is_told);
    }

    #[test]
    fn a_chunk_never_ends_in_half_a_character() {
        let mut output = Output::new("stdout");
        output.push(&vec![b'a'; FLUSH_BYTES]);
        output.push(&[0xe2, 0x82]);
        let first = output.take(Cue::Unwatched).unwrap();
        assert_eq!((first.seq, first.text.len()), (0, FLUSH_BYTES));
        output.push(&[0xac]);
        let last = output.take(Cue::End).unwrap();
        assert_eq!((last.seq, last.text.as_str()), (1, "\u{20ac}"));
        assert!(output.take(Cue::End).is_none());
    }

    #[test]
    fn what_another_worker_stored_is_not_stored_again() {
        let mut first = Output::new("stdout");
        first.push(&vec![b'a'; FLUSH_BYTES]);
        let stored = first.take(Cue::Unwatched).unwrap();
        let end = StreamEnd { seq: stored.seq + 1, upto: stored.upto };
        let mut second = Output::after("stdout", end);
        second.push(&vec![b'a'; FLUSH_BYTES - 1]);
        assert!(second.take(Cue::End).is_none(), "the rest of it is still to come");
        second.push(b"ab");
        let next = second.take(Cue::End).unwrap();
        assert_eq!((next.seq, next.text.as_str()), (1, "b"));
        assert_eq!(second.into_bytes().len(), FLUSH_BYTES + 1);
    }

    #[test]
    fn watchers_see_a_bounded_part_and_the_artifact_has_all() {
        let mut output = Output::new("stdout");
        output.push(&vec![b'x'; WATCH_BYTES + 10]);
        assert_eq!(output.take(Cue::End).unwrap().text.len(), WATCH_BYTES);
        assert!(output.take(Cue::End).is_none());
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
