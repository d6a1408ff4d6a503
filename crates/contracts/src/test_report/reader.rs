//! Reads one report of any kind.

use std::io::{BufRead, Read};

use super::kind::{self, HEAD_BYTES};
use super::{
    LineSet, ReportBounds, ReportFault, ReportFaultKind, ReportKind, TestReport, cobertura, junit,
    lcov, tap,
};

/// One report with what only several of them together need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportContent {
    /// Its kind; `None` where its content fits no kind.
    pub kind: Option<ReportKind>,
    /// What it says.
    pub report: TestReport,
    /// Lines of its coverage: `None` where it has none, or where only its totals were stored.
    pub lines: Option<LineSet>,
}

/// Reads a report to its end, as the kind that the recipe states or else the one that its first 4 KiB have. What is wrong with
/// it is its fault.
#[must_use]
pub fn read(
    mut source: &mut dyn BufRead,
    stated: Option<ReportKind>,
    bounds: &ReportBounds,
) -> ReportContent {
    let mut head = Vec::new();
    let begun = Read::by_ref(&mut source)
        .take(u64::try_from(HEAD_BYTES).unwrap_or(u64::MAX))
        .read_to_end(&mut head)
        .map_err(|_| ReportFaultKind::Unreadable);
    let found = begun.and_then(|_| match stated {
        Some(kind) => kind::check(&head).map(|()| kind),
        None => kind::find(&head),
    });
    let kind = match found {
        Ok(kind) => kind,
        Err(fault) => {
            let byte = u64::try_from(head.len()).unwrap_or(u64::MAX);
            return faulty(stated, ReportFault { kind: fault, byte });
        }
    };
    let mut whole = head.as_slice().chain(source);
    let lines = match kind {
        ReportKind::Junit => return tests(kind, junit::read(&mut whole, bounds)),
        ReportKind::Tap => return tests(kind, tap::read(&mut whole, bounds)),
        ReportKind::Lcov => lcov::read(&mut whole, bounds),
        ReportKind::Cobertura => cobertura::read(&mut whole, bounds),
    };
    match lines {
        Ok(lines) => {
            let coverage = Some(lines.coverage());
            let report = TestReport { coverage, ..TestReport::default() };
            ReportContent { kind: Some(kind), report, lines: Some(lines) }
        }
        Err(fault) => faulty(Some(kind), fault),
    }
}

fn tests(kind: ReportKind, report: TestReport) -> ReportContent {
    ReportContent { kind: Some(kind), report, lines: None }
}

fn faulty(kind: Option<ReportKind>, fault: ReportFault) -> ReportContent {
    let report = TestReport { fault: Some(fault), ..TestReport::default() };
    ReportContent { kind, report, lines: None }
}
