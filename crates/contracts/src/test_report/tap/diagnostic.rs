//! What stands behind a test point: a YAML block, or comments. The block is read by lines, without a parser of YAML: what
//! tools write there is often not YAML.

use crate::test_report::collector::ms_of;
use crate::test_report::excerpt::{Excerpt, excerpt};
use crate::test_report::{
    FailureKind, MAX_DETAIL_BYTES, MAX_MESSAGE_BYTES, MAX_NAME_BYTES, TestFailure,
};

/// How far a diagnostic is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Before a block.
    Before,
    Inside,
    /// Behind the block: a second one belongs to nothing.
    Behind,
}

/// A value of several lines that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    /// Spaces before its key; its lines have more.
    indent: usize,
    is_message: bool,
}

/// The diagnostic of one point.
#[derive(Debug, Clone)]
pub(super) struct Diagnostic {
    stage: Stage,
    block: Option<Block>,
    /// Whether the mapping `at:` is open.
    is_at: bool,
    pub(super) took_ms: Option<u64>,
    message: Excerpt,
    detail: Excerpt,
    file: Option<String>,
    line: Option<u32>,
}

impl Default for Diagnostic {
    fn default() -> Self {
        Self {
            stage: Stage::Before,
            block: None,
            is_at: false,
            took_ms: None,
            message: Excerpt::new(MAX_MESSAGE_BYTES),
            detail: Excerpt::new(MAX_DETAIL_BYTES),
            file: None,
            line: None,
        }
    }
}

impl Diagnostic {
    /// Takes a line of the block or a mark of it; `false` for any other line.
    pub(super) fn line(&mut self, line: &str) -> bool {
        match self.stage {
            Stage::Before if line.trim_end() == "  ---" => self.stage = Stage::Inside,
            Stage::Inside if line.trim_end() == "  ..." => self.stage = Stage::Behind,
            // A block without its end is cut by the next line that is not indented.
            Stage::Inside if !line.starts_with("  ") && !line.trim().is_empty() => {
                self.stage = Stage::Behind;
                return false;
            }
            Stage::Inside => self.inner(line.get(2..).unwrap_or_default()),
            Stage::Before | Stage::Behind => return false,
        }
        true
    }

    /// A comment behind the point, as Python's and Perl's tools write them.
    pub(super) fn comment(&mut self, comment: &str) {
        self.detail.push_line(comment.strip_prefix(' ').unwrap_or(comment));
    }

    fn inner(&mut self, line: &str) {
        self.detail.push_line(line);
        let text = line.trim_start();
        let indent = line.len().saturating_sub(text.len());
        if let Some(block) = self.block {
            if text.is_empty() || indent > block.indent {
                if block.is_message {
                    self.message.push_line(text);
                }
                return;
            }
            self.block = None;
        }
        let Some((key, value)) = text.split_once(':') else { return };
        let (value, is_nested) = (value.trim(), indent > 0);
        self.is_at = if is_nested { self.is_at } else { key == "at" };
        let is_message = !is_nested && matches!(key, "message" | "error");
        if value.starts_with(['|', '>']) {
            // The first of `message` and `error` is the message.
            let is_message = is_message && self.message.is_blank();
            self.block = Some(Block { indent, is_message });
            return;
        }
        let value = unquoted(value);
        match key {
            _ if is_message && self.message.is_blank() => self.message.push(&value),
            "duration_ms" if !is_nested => self.took_ms = ms(&value),
            "location" if !is_nested => self.locate(&value),
            "file" | "fileName" if self.is_at || !is_nested => {
                self.file = Some(excerpt(&value, MAX_NAME_BYTES));
            }
            "line" | "lineNumber" if self.is_at || !is_nested => self.line = value.parse().ok(),
            _ => {}
        }
    }

    /// `path:line:column`, as Node writes it.
    fn locate(&mut self, location: &str) {
        let mut parts = location.rsplitn(3, ':');
        let (column, line, path) = (parts.next(), parts.next(), parts.next());
        let is_column = column.is_some_and(|column| column.parse::<u32>().is_ok());
        if let (true, Some(Ok(line)), Some(path)) = (is_column, line.map(str::parse), path) {
            (self.line, self.file) = (Some(line), Some(excerpt(path, MAX_NAME_BYTES)));
        }
    }

    /// The failure of a point; subtests that failed stand before its own detail.
    pub(super) fn failure(self, subtests: &str) -> TestFailure {
        let mut detail = Excerpt::new(MAX_DETAIL_BYTES);
        if !subtests.is_empty() {
            detail.push_line(subtests);
        }
        let message = match self.message.is_blank() {
            true => self.detail.first_line().to_owned(),
            false => self.message.finish(),
        };
        // The first line of comments is the message.
        detail.push(&self.detail.finish());
        TestFailure {
            kind: FailureKind::Failure,
            name: String::new(),
            class: None,
            file: self.file,
            line: self.line,
            message: excerpt(&message, MAX_MESSAGE_BYTES),
            detail: detail.finish(),
        }
    }
}

/// A number of ms, rounded; `None` as for [`ms_of`].
pub(super) fn ms(text: &str) -> Option<u64> {
    let ms: f64 = text.trim().parse().ok()?;
    ms_of(ms / 1_000.0)
}

/// A scalar without its quotes; escapes stay as they are, apart from a doubled `'`.
fn unquoted(value: &str) -> String {
    let inner = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    match (inner('\''), inner('"')) {
        (Some(text), _) => text.replace("''", "'"),
        (None, Some(text)) => text.replace("\\\"", "\""),
        (None, None) => value.to_owned(),
    }
}
