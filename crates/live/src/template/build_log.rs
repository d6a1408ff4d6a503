//! What the steps of a build say, in entries of the ledger, within bounds.

use std::collections::VecDeque;

use cofferdam_ambient::clock;
use cofferdam_ambient::own;
use cofferdam_contracts::id::BuildId;
use cofferdam_contracts::template_build::{MAX_LOG_BYTES, MAX_LOG_ENTRIES, MAX_LOG_TOTAL};
use cofferdam_ledger::builds::LogEntry;
use cofferdam_sandbox::Stream;

use crate::live::Live;

/// Lines that the reason of a failed step repeats, and letters of each: a person reads them in an exception.
const LAST_LINES: usize = 3;
const LAST_LETTERS: usize = 200;
/// Entries that are written at once.
const BATCH: usize = 100;

/// A build's log while it is written.
pub(crate) struct BuildLog {
    build: BuildId,
    /// The step that is under way.
    step: String,
    written: usize,
    bytes: usize,
    held: Vec<LogEntry>,
    /// Beginnings of lines, by stream.
    open: [Vec<u8>; 2],
    is_full: bool,
    /// What the step said last on standard error.
    last: VecDeque<String>,
}

impl BuildLog {
    pub(crate) fn new(build: BuildId) -> Self {
        let step = "base".to_owned();
        Self {
            build,
            step,
            written: 0,
            bytes: 0,
            held: Vec::new(),
            open: [const { Vec::new() }; 2],
            is_full: false,
            last: VecDeque::new(),
        }
    }

    /// From now on entries are of this step.
    pub(crate) fn enter(&mut self, step: impl Into<String>) {
        self.ends();
        self.step = step.into();
        self.last.clear();
    }

    /// The end of a sentence about a step that failed: what it said last on standard error, if anything.
    pub(crate) fn last_words(&self) -> String {
        let words: Vec<&str> = self.last.iter().map(String::as_str).collect();
        if words.is_empty() { String::new() } else { format!(": {}", words.join("; ")) }
    }

    pub(crate) fn say(&mut self, level: &str, message: &str) {
        let room = MAX_LOG_ENTRIES.saturating_sub(self.written.saturating_add(self.held.len()));
        // What went wrong is said in any case.
        if self.is_full && level != "error" {
            return;
        }
        let message = own::hidden(message);
        let message = cut(&message);
        self.bytes = self.bytes.saturating_add(message.len());
        let is_last = room <= 1 || self.bytes > MAX_LOG_TOTAL;
        let (level, message) = match is_last && level != "error" {
            // The last one says so.
            true => {
                self.is_full = true;
                let why = format!(
                    "more than {MAX_LOG_ENTRIES} entries or {MAX_LOG_TOTAL} bytes: the rest is left out"
                );
                ("warn", why)
            }
            false => (level, message),
        };
        let step = Some(self.step.clone());
        self.held.push(LogEntry { at_ms: clock::now_ms(), level: level.to_owned(), step, message });
    }

    /// A piece of a command's output.
    pub(crate) fn feed(&mut self, stream: Stream, piece: &[u8]) {
        if self.is_full {
            return;
        }
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let open = self.open_of(stream);
            open.extend_from_slice(part);
            if part.ends_with(b"\n") || open.len() >= MAX_LOG_BYTES {
                let line = std::mem::take(open);
                self.line(stream, &line);
            }
        }
    }

    fn open_of(&mut self, stream: Stream) -> &mut Vec<u8> {
        let [out, err] = &mut self.open;
        match stream {
            Stream::Stdout => out,
            Stream::Stderr => err,
        }
    }

    fn line(&mut self, stream: Stream, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let level = if stream == Stream::Stderr { "warn" } else { "info" };
        // A NUL cannot be stored.
        let text = text.trim_end_matches(['\n', '\r']).replace('\0', "\u{fffd}");
        if stream == Stream::Stderr && !text.trim().is_empty() {
            if self.last.len() >= LAST_LINES {
                self.last.pop_front();
            }
            self.last.push_back(text.chars().take(LAST_LETTERS).collect());
        }
        self.say(level, &text);
    }

    /// What has no end of a line yet has one now.
    pub(crate) fn ends(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let rest = std::mem::take(self.open_of(stream));
            if !rest.is_empty() {
                self.line(stream, &rest);
            }
        }
    }

    /// Whether there is enough for a write.
    pub(crate) fn is_due(&self) -> bool {
        self.held.len() >= BATCH
    }

    /// Writes what is held. What cannot be written is left out: the build's end counts, and is on record by itself.
    pub(crate) async fn flush(&mut self, live: &Live) {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return;
        }
        let from = i32::try_from(self.written).unwrap_or(i32::MAX);
        match live.0.ledger.builds().log_append(&self.build, from, &held).await {
            Ok(()) => self.written = self.written.saturating_add(held.len()),
            Err(error) => {
                tracing::warn!(build = %self.build, %error, "a build's log is not written")
            }
        }
    }
}

/// A text within the bound of an entry.
fn cut(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_LOG_BYTES)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> BuildLog {
        BuildLog::new(BuildId::parse("00000000-0000-0000-0000-000000000000").unwrap())
    }

    #[test]
    fn output_is_cut_into_lines_of_its_stream() {
        let mut log = log();
        log.enter("1");
        log.feed(Stream::Stdout, b"one\ntw");
        log.feed(Stream::Stderr, b"err\0or\n");
        log.feed(Stream::Stdout, b"o\r\nthree");
        log.ends();
        let said: Vec<_> =
            log.held.iter().map(|e| (e.level.as_str(), e.message.as_str())).collect();
        let wanted =
            [("info", "one"), ("warn", "err\u{fffd}or"), ("info", "two"), ("info", "three")];
        assert_eq!(said, wanted);
        assert!(log.held.iter().all(|entry| entry.step.as_deref() == Some("1")));
        assert_eq!(log.last_words(), ": err\u{fffd}or");
        log.feed(Stream::Stderr, b"a\nb\n\nc\n");
        assert_eq!(log.last_words(), ": a; b; c");
        log.enter("2");
        assert_eq!(log.last_words(), "");
    }

    #[test]
    fn a_log_has_a_bound_and_says_so_once() {
        let mut log = log();
        log.feed(Stream::Stdout, "x\n".repeat(MAX_LOG_ENTRIES + 50).as_bytes());
        assert_eq!(log.held.len(), MAX_LOG_ENTRIES);
        assert!(log.held.last().unwrap().message.contains("left out"));
        log.say("error", "the end");
        assert_eq!(log.held.last().unwrap().message, "the end");
        let mut log = self::log();
        log.feed(Stream::Stdout, format!("{}\n", "x".repeat(4_000)).repeat(500).as_bytes());
        let bytes: usize = log.held.iter().map(|entry| entry.message.len()).sum();
        assert!(log.is_full && bytes < MAX_LOG_TOTAL + 200, "{bytes}");
        let mut log = self::log();
        log.feed(Stream::Stdout, &vec![b'y'; 3 * MAX_LOG_BYTES]);
        log.ends();
        assert!(log.held.iter().all(|entry| entry.message.len() <= MAX_LOG_BYTES));
    }
}
