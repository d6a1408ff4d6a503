//! How far a directory is on its way to a server: one live line on a terminal, elsewhere a line now and then.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::printable;
use indicatif::ProgressBar;

use super::super::cells::cut;
use super::super::file_transfer::byte_count;
use super::super::output;
use super::mode::Mode;
use super::screen::{HZ, bar, columns, mode_here};

/// Between two lines that stay, and before the first.
const STAYS_MS: u64 = 10_000;
/// Before that, a rate says nothing.
const RATED_MS: u64 = 1_000;

/// Progress of one directory on stderr. Dropped, it leaves a terminal without a live line.
#[derive(Debug)]
pub(crate) struct TransferScreen {
    mode: Mode,
    /// Name of the directory, without those above it.
    name: String,
    began: Stopwatch,
    drawn: Mutex<TransferLine>,
}

#[derive(Debug, Default)]
struct TransferLine {
    at_ms: u64,
    /// When the first byte was sent.
    sending_ms: Option<u64>,
    bar: Option<ProgressBar>,
}

impl TransferScreen {
    /// Decides by the environment how it shows a directory.
    pub(crate) fn new(dir: &Path, is_quiet: bool, is_refused: bool) -> Self {
        let name = dir.file_name().unwrap_or(dir.as_os_str());
        Self {
            mode: mode_here(is_quiet, is_refused),
            name: printable::line(&name.to_string_lossy()).into_owned(),
            began: Stopwatch::start(),
            drawn: Mutex::default(),
        }
    }

    /// So many of its files were read.
    pub(crate) fn reading(&self, files: u64, bytes: u64) {
        self.show(&mut self.drawn(), &reading(files, bytes));
    }

    /// So much of what the server lacks was sent.
    pub(crate) fn sending(&self, sent: u64, of: u64) {
        let (now, mut drawn) = (self.began.elapsed_ms(), self.drawn());
        let since = *drawn.sending_ms.get_or_insert(now);
        self.show(&mut drawn, &sending(sent, of, now.saturating_sub(since)));
    }

    /// The server did not take something, and is asked again.
    pub(crate) fn waiting(&self) {
        self.show(&mut self.drawn(), "the server does not answer; trying again for a minute");
    }

    /// What stays of it.
    pub(crate) fn note(&self, text: &str) {
        if let Some(bar) = self.drawn().bar.take() {
            bar.finish_and_clear();
        }
        if self.mode != Mode::Silent {
            output::note(text);
        }
    }

    fn show(&self, drawn: &mut TransferLine, words: &str) {
        let now = self.began.elapsed_ms();
        let every = if self.mode == Mode::Live { 1_000 / u64::from(HZ) } else { STAYS_MS };
        if now.saturating_sub(drawn.at_ms) < every {
            return;
        }
        drawn.at_ms = now;
        match self.mode {
            Mode::Silent => {}
            Mode::Lines => output::note(&format!("{}: {words}", self.name)),
            Mode::Live => {
                drawn.bar.get_or_insert_with(bar).set_message(line(&self.name, words, columns()))
            }
        }
    }

    fn drawn(&self) -> MutexGuard<'_, TransferLine> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TransferScreen {
    fn drop(&mut self) {
        if let Some(bar) = self.drawn().bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// What fits into a line; one of the whole width would wrap on some terminals. Pure.
fn line(name: &str, words: &str, width: usize) -> String {
    cut(&format!("{}: {words}", cut(name, width / 3)), width.saturating_sub(1))
}

/// How far the directory is read, in words. Pure.
fn reading(files: u64, bytes: u64) -> String {
    format!("reading, {files} files, {}", byte_count(bytes))
}

/// How far it is sent, in words, with rate and time left once they mean something. Pure.
fn sending(sent: u64, of: u64, elapsed_ms: u64) -> String {
    let percent = sent.saturating_mul(100).checked_div(of).unwrap_or(100);
    let text = format!("sending {} of {}, {percent} %", byte_count(sent), byte_count(of));
    let rate = sent.saturating_mul(1_000).checked_div(elapsed_ms).unwrap_or(0);
    if elapsed_ms < RATED_MS || rate == 0 {
        return text;
    }
    let left = match of.saturating_sub(sent).div_ceil(rate) {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    };
    format!("{text}, {}/s, {left} left", byte_count(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_leaves_room_for_the_words() {
        assert_eq!(line("src", "sending", 80), "src: sending");
        let long = line(&"n".repeat(90), "sending 500.0 kB of 2.0 MB", 40);
        assert_eq!(long, "nnnnnnnnnnnn…: sending 500.0 kB of 2.0…");
        assert_eq!(long.chars().count(), 39);
    }

    #[test]
    fn a_rate_is_said_once_it_means_something() {
        assert_eq!(reading(12, 3_400_000), "reading, 12 files, 3.4 MB");
        assert_eq!(sending(0, 0, 0), "sending 0 bytes of 0 bytes, 100 %");
        assert_eq!(sending(500_000, 2_000_000, 999), "sending 500.0 kB of 2.0 MB, 25 %");
        let rated = sending(500_000, 2_000_000, 2_000);
        assert_eq!(rated, "sending 500.0 kB of 2.0 MB, 25 %, 250.0 kB/s, 6 s left");
        let long = sending(1_000_000, 4_000_000_000, 1_000);
        assert_eq!(long, "sending 1.0 MB of 4.0 GB, 0 %, 1.0 MB/s, 67 min left");
        assert!(sending(0, 2_000_000, 60_000).ends_with("0 %"), "nothing arrived");
    }
}
