//! Bounds of one report and of what is kept of it.

/// Bytes read of a report. JUnit's of 100,000 cases have 20 MB; beyond it a file is mostly captured output.
pub const MAX_REPORT_BYTES: u64 = 64 * 1024 * 1024;
/// Failures that a report lists: more than a person reads. The totals count all of them.
pub const MAX_FAILURES: usize = 1_000;
/// Slowest tests that a report lists: one screen.
pub const MAX_SLOWEST: usize = 20;
/// Bytes of a failure's message: a screen of text.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024;
/// Bytes of a failure's detail: a stack of 200 frames.
pub const MAX_DETAIL_BYTES: usize = 16 * 1024;
/// Bytes of all messages and details of a report, which is a row and part of answers.
pub const MAX_FAILURE_TEXT: usize = 1024 * 1024;
/// Bytes of the name of a case, class or file.
pub const MAX_NAME_BYTES: usize = 1024;
/// Elements within each other. Real reports have eight.
pub const MAX_DEPTH: usize = 64;
/// Bytes of one attribute, text or line; what is longer is cut there, which loses nothing that is kept.
pub const MAX_VALUE_BYTES: usize = 64 * 1024;
/// Bytes of one tag with its attributes, which is in memory as a whole.
pub const MAX_TAG_BYTES: usize = 1024 * 1024;
/// Elements, texts and lines of one report: a few seconds of one core.
pub const MAX_EVENTS: u64 = 20_000_000;
/// Source files of a coverage: twice those of a large monorepo.
pub const MAX_FILES: usize = 50_000;
/// Lines of code of a coverage, at 4 bytes each. A line with branches counts as four.
pub const MAX_LINES: usize = 10_000_000;

/// Bounds that one reader obeys; [`Default`] gives the constants.
#[derive(Debug, Clone, Copy)]
pub struct ReportBounds {
    /// Bytes read; beyond it the report has a fault.
    pub bytes: u64,
    /// Failures that are listed; all are counted.
    pub failures: usize,
    /// Slowest tests that are listed.
    pub slowest: usize,
    /// Elements within each other; beyond it the report has a fault.
    pub depth: usize,
    /// Elements, texts and lines; beyond it the report has a fault.
    pub events: u64,
    /// Source files of a coverage; beyond it the report has a fault.
    pub files: usize,
    /// Lines of a coverage; beyond it the report has a fault.
    pub lines: usize,
}

impl Default for ReportBounds {
    fn default() -> Self {
        Self {
            bytes: MAX_REPORT_BYTES,
            failures: MAX_FAILURES,
            slowest: MAX_SLOWEST,
            depth: MAX_DEPTH,
            events: MAX_EVENTS,
            files: MAX_FILES,
            lines: MAX_LINES,
        }
    }
}
