//! Several reports as one: those of a task, or of all shards of a run.

use super::collector::Collector;
use super::{Coverage, LineSet, ReportBounds, ReportContent, ReportFault, TestReport};

/// A report of several, as their sum needs it.
#[derive(Debug, Clone, Copy)]
pub struct ReportPart<'a> {
    /// What it says.
    pub report: &'a TestReport,
    /// Lines of its coverage: `None` where it has none, or where only its totals were stored.
    pub lines: Option<&'a LineSet>,
}

impl<'a> From<&'a ReportContent> for ReportPart<'a> {
    fn from(content: &'a ReportContent) -> Self {
        Self { report: &content.report, lines: content.lines.as_ref() }
    }
}

/// The sum of reports. Counts are added, failures and slowest tests bounded again, and coverage is the union by file and line.
///
/// One report with a fault makes it the fault of all, without totals or coverage: a sum without it would look like the whole.
/// Without the lines of each of several coverages theirs is unknown, and absent.
#[must_use]
pub fn merged<'a>(
    parts: impl IntoIterator<Item = impl Into<ReportPart<'a>>>,
    bounds: &ReportBounds,
) -> TestReport {
    let parts: Vec<ReportPart<'a>> = parts.into_iter().map(Into::into).collect();
    let reports = || parts.iter().map(|part| part.report);
    let mut collector = Collector::new(bounds);
    for report in reports() {
        report.failures.iter().for_each(|failure| collector.failure(failure.clone()));
        report.slowest.iter().for_each(|time| collector.time(time.clone()));
        if let Some(totals) = &report.totals {
            collector.add(totals);
        }
    }
    let coverage = coverage(&parts, bounds);
    let fault = reports().find_map(|report| report.fault).or(coverage.as_ref().err().copied());
    let mut merged = collector.finish(fault);
    merged.totals = merged.totals.filter(|_| reports().any(|report| report.totals.is_some()));
    merged.coverage = coverage.ok().flatten().filter(|_| fault.is_none());
    merged
}

/// # Errors
/// A union with more files or lines than the bounds allow.
fn coverage(
    parts: &[ReportPart<'_>],
    bounds: &ReportBounds,
) -> Result<Option<Coverage>, ReportFault> {
    let with = parts.iter().filter(|part| part.report.coverage.is_some());
    let with: Vec<&ReportPart<'_>> = with.collect();
    if let [only] = with.as_slice() {
        return Ok(only.report.coverage.clone());
    }
    let lines: Option<Vec<&LineSet>> = with.iter().map(|part| part.lines).collect();
    match lines {
        Some(lines) if !lines.is_empty() => LineSet::union(&lines, bounds)
            .map(|union| Some(union.coverage()))
            .map_err(|kind| ReportFault { kind, byte: 0 }),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_report::{Ratio, ReportFaultKind, read};

    fn content(text: &str) -> ReportContent {
        read(&mut text.as_bytes(), None, &ReportBounds::default())
    }

    fn all(contents: &[ReportContent]) -> TestReport {
        merged(contents, &ReportBounds::default())
    }

    #[test]
    fn counts_are_added_and_lists_are_bounded_again() {
        let one =
            content("<testsuite><testcase name='a' time='1'><failure/></testcase></testsuite>");
        let two = content("1..2\nnot ok 1 - b\nok 2 - c # SKIP\n");
        let bounds = ReportBounds { failures: 1, slowest: 2, ..ReportBounds::default() };
        let merged = merged(&[one.clone(), two, one], &bounds);
        let totals = merged.totals.unwrap();
        assert_eq!((totals.suites, totals.cases, totals.failed, totals.skipped), (3, 4, 3, 1));
        assert_eq!(totals.took_ms, 2_000);
        assert_eq!((merged.failures.len(), merged.slowest.len()), (1, 2));
        assert_eq!(all(&[]), TestReport::default());
    }

    #[test]
    fn coverage_is_a_union_and_not_a_sum() {
        let one = content("SF:a\nDA:1,1\nDA:2,0\nend_of_record\n");
        let two = content(
            "<coverage line-rate='0'><class filename='a'><line number='2' hits='1'/></class></coverage>",
        );
        let lines = |contents: &[ReportContent]| all(contents).coverage.map(|all| all.lines);
        let whole = Some(Ratio { total: 2, covered: 2 });
        assert_eq!(lines(&[one.clone(), two.clone()]), whole);
        assert_eq!(lines(std::slice::from_ref(&one)), Some(Ratio { total: 2, covered: 1 }));
        let stored = ReportContent { lines: None, ..two.clone() };
        assert_eq!(lines(std::slice::from_ref(&stored)), Some(Ratio { total: 1, covered: 1 }));
        assert_eq!(lines(&[one.clone(), stored]), None, "it is unknown which lines");
        assert_eq!(all(&[one.clone(), two.clone()]).totals, None);
        let bounds = ReportBounds { lines: 1, ..ReportBounds::default() };
        let merged = merged(&[one, two], &bounds);
        assert_eq!(merged.fault.unwrap().kind, ReportFaultKind::TooMany);
        assert_eq!(merged.coverage, None);
    }

    #[test]
    fn a_fault_of_one_is_the_fault_of_all() {
        let good = content("1..1\nok 1\n");
        let cut = content("<testsuite><testcase name='a'><failure/></testcase>");
        let coverage = content("SF:a\nDA:1,1\nend_of_record\n");
        let merged = all(&[good, coverage, cut]);
        assert_eq!(merged.fault.unwrap().kind, ReportFaultKind::Truncated);
        assert_eq!((merged.totals, merged.coverage), (None, None));
        assert_eq!(merged.failures.len(), 1, "what failed has failed");
    }
}
