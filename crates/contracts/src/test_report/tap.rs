//! The Test Anything Protocol, versions 12 to 14.
//!
//! ```text
//! 1..N                       the plan, once, before or after all test points; 1..0: everything was skipped
//! [not ]ok [ID] [- name] [# SKIP|TODO reason]
//!   ---                      a YAML block of the point before: message, time, location
//!   ...
//!     ok 1 - inner           a subtest, by its indentation: only its parent, which follows, counts
//! Bail out! reason           the end of all tests
//! ```
//! A plan that is absent, stands twice or does not fit the points is an error by itself, so that output that was cut is not
//! green. Other lines are ignored.

mod diagnostic;
mod point;

use std::io::BufRead;

use super::collector::{CaseEnd, Collector, TestCase};
use super::excerpt::{Excerpt, excerpt};
use super::line_input::LineInput;
use super::{
    FailureKind, MAX_DETAIL_BYTES, ReportBounds, ReportFault, ReportFaultKind, TestFailure,
    TestReport,
};
use diagnostic::Diagnostic;
use point::{Directive, TestPoint};

/// What is read so far.
struct TapDocument {
    collector: Collector,
    planned: Option<u64>,
    /// Whether the plan stands twice.
    is_replanned: bool,
    points: u64,
    largest_id: u64,
    /// The last point, whose diagnostics may follow.
    open: Option<OpenPoint>,
    /// Lines of subtests that failed, before their parent.
    subtests: Excerpt,
    is_failed_subtest: bool,
    bail_out: Option<String>,
}

struct OpenPoint {
    point: TestPoint,
    diagnostic: Diagnostic,
    subtests: Excerpt,
}

/// Reads to the end.
pub(super) fn read(source: &mut dyn BufRead, bounds: &ReportBounds) -> TestReport {
    let mut input = LineInput::new(source, bounds);
    let mut document = TapDocument {
        collector: Collector::new(bounds),
        planned: None,
        is_replanned: false,
        points: 0,
        largest_id: 0,
        open: None,
        subtests: Excerpt::new(MAX_DETAIL_BYTES),
        is_failed_subtest: false,
        bail_out: None,
    };
    document.collector.suite();
    let end = document.read(&mut input);
    let fault = end.err().map(|kind| ReportFault { kind, byte: input.read() });
    document.collector.finish(fault)
}

impl TapDocument {
    fn read(&mut self, input: &mut LineInput<'_>) -> Result<(), ReportFaultKind> {
        while let Some(line) = input.next()? {
            // What comes after it belongs to no test; it is read to see that the report has an end.
            if self.bail_out.is_none() {
                self.line(&line);
            }
        }
        self.close();
        self.check_plan();
        Ok(())
    }

    fn line(&mut self, line: &str) {
        let diagnostic = self.open.as_mut().map(|open| &mut open.diagnostic);
        if diagnostic.is_some_and(|diagnostic| diagnostic.line(line)) {
            return;
        }
        if line.starts_with([' ', '\t']) {
            self.subtest(line);
        } else if let Some(point) = TestPoint::parse(line) {
            self.close();
            self.points = self.points.saturating_add(1);
            self.largest_id = self.largest_id.max(point.id.unwrap_or(0));
            let fresh = Excerpt::new(MAX_DETAIL_BYTES);
            let subtests = std::mem::replace(&mut self.subtests, fresh);
            self.is_failed_subtest = false;
            let diagnostic = Diagnostic::default();
            self.open = Some(OpenPoint { point, diagnostic, subtests });
        } else if let Some(planned) = plan(line) {
            self.close();
            self.is_replanned |= self.planned.is_some();
            self.planned = self.planned.or(Some(planned));
        } else if let Some(reason) = line.strip_prefix("Bail out!") {
            self.close();
            self.bail_out = Some(excerpt(reason, super::MAX_MESSAGE_BYTES));
        } else if line.starts_with("# Subtest") {
            self.close();
        } else if let Some(comment) = line.strip_prefix('#')
            && let Some(open) = &mut self.open
        {
            open.diagnostic.comment(comment);
        }
    }

    /// Of subtests the failed ones with their diagnostics are the detail of their parent.
    fn subtest(&mut self, line: &str) {
        self.close();
        let text = line.trim_start();
        if let Some(point) = TestPoint::parse(text) {
            self.is_failed_subtest = !point.is_ok && point.directive.is_none();
        } else if plan(text).is_some() || text.starts_with("# Subtest") {
            self.is_failed_subtest = false;
        }
        if self.is_failed_subtest {
            self.subtests.push_line(line);
        }
    }

    /// Counts the last point.
    fn close(&mut self) {
        let Some(OpenPoint { point, diagnostic, subtests }) = self.open.take() else { return };
        let took_ms = diagnostic.took_ms.or(point.took_ms);
        let end = match point.directive {
            Some(Directive::Skip) => CaseEnd::Skipped,
            Some(Directive::Todo) if !point.is_ok => CaseEnd::Skipped,
            _ if point.is_ok => CaseEnd::Passed,
            _ => CaseEnd::Failed(diagnostic.failure(&subtests.finish())),
        };
        let id = || point.id.map(|id| format!("test {id}"));
        let name = Some(point.name).filter(|name| !name.is_empty()).or_else(id);
        let name = name.unwrap_or_else(|| format!("test {}", self.points));
        self.collector.case(TestCase { name, class: None, took_ms, end });
    }

    /// An error where the points are not those that were planned.
    fn check_plan(&mut self) {
        let (points, largest) = (self.points, self.largest_id);
        let message = match (&self.bail_out, self.planned) {
            (Some(reason), _) => {
                let reason = reason.clone();
                return self.error(
                    "Bail out!",
                    if reason.is_empty() { "without a reason".to_owned() } else { reason },
                );
            }
            (None, None) => format!("{points} tests ran and no plan says how many there are"),
            (None, Some(planned)) if points < planned => {
                format!("{points} of {planned} planned tests ran")
            }
            (None, Some(planned)) if points > planned => {
                format!("{points} tests ran and {planned} were planned")
            }
            (None, Some(planned)) if largest > planned => {
                format!("test {largest} is outside the plan 1..{planned}")
            }
            (None, Some(_)) if self.is_replanned => "the plan stands twice".to_owned(),
            (None, Some(_)) => return,
        };
        self.error("plan", message);
    }

    fn error(&mut self, name: &str, message: String) {
        let failure = TestFailure {
            kind: FailureKind::Error,
            name: String::new(),
            class: None,
            file: None,
            line: None,
            message,
            detail: String::new(),
        };
        let end = CaseEnd::Failed(failure);
        self.collector.case(TestCase { name: name.to_owned(), class: None, took_ms: None, end });
    }
}

/// How many tests a plan announces: `1..N`, with or without a comment.
fn plan(line: &str) -> Option<u64> {
    let count = line.strip_prefix("1..")?;
    let (count, behind) =
        count.split_at(count.find(|c: char| !c.is_ascii_digit()).unwrap_or(count.len()));
    let is_comment = behind.trim_start().is_empty() || behind.trim_start().starts_with('#');
    count.parse().ok().filter(|_| is_comment)
}

#[cfg(test)]
mod tests;
