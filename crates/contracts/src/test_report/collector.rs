//! What a report's cases come to: counts, the first failures and the slowest tests.

use std::time::Duration;

use super::excerpt::excerpt;
use super::{
    MAX_DETAIL_BYTES, MAX_FAILURE_TEXT, MAX_MESSAGE_BYTES, MAX_NAME_BYTES, ReportBounds,
    ReportFault, TestFailure, TestReport, TestTime, TestTotals,
};

/// Largest number that JSON's readers take for a whole one, and rows store.
const MAX_COUNT: u64 = 1 << 53;

/// How a case ended.
#[derive(Debug, Clone)]
pub(super) enum CaseEnd {
    Passed,
    /// Passed when it was repeated.
    Flaky,
    Skipped,
    /// With the failure's kind, file and texts; name and class are the case's.
    Failed(TestFailure),
}

/// One test case as it was read.
#[derive(Debug, Clone)]
pub(super) struct TestCase {
    pub(super) name: String,
    pub(super) class: Option<String>,
    pub(super) took_ms: Option<u64>,
    pub(super) end: CaseEnd,
}

/// The cases so far.
#[derive(Debug)]
pub(super) struct Collector {
    bounds: ReportBounds,
    totals: TestTotals,
    failures: Vec<TestFailure>,
    /// Bytes of messages and details so far.
    text: usize,
    slowest: Vec<TestTime>,
}

impl Collector {
    pub(super) fn new(bounds: &ReportBounds) -> Self {
        Self {
            bounds: *bounds,
            totals: TestTotals::default(),
            failures: Vec::new(),
            text: 0,
            slowest: Vec::new(),
        }
    }

    pub(super) fn suite(&mut self) {
        self.totals.suites = sum(self.totals.suites, 1);
    }

    pub(super) fn case(&mut self, case: TestCase) {
        let TestCase { name, class, took_ms, end } = case;
        let totals = &mut self.totals;
        totals.cases = sum(totals.cases, 1);
        totals.took_ms = sum(totals.took_ms, took_ms.unwrap_or(0));
        match end {
            CaseEnd::Passed => {}
            CaseEnd::Flaky => totals.flaky = sum(totals.flaky, 1),
            CaseEnd::Skipped => totals.skipped = sum(totals.skipped, 1),
            CaseEnd::Failed(failure) => {
                let count = match failure.kind {
                    super::FailureKind::Failure => &mut totals.failed,
                    super::FailureKind::Error => &mut totals.errored,
                };
                *count = sum(*count, 1);
                self.failure(TestFailure { name: name.clone(), class: class.clone(), ..failure });
            }
        }
        self.time(TestTime { name, class, took_ms: took_ms.unwrap_or(0) });
    }

    /// Lists a failure that is counted elsewhere.
    pub(super) fn failure(&mut self, mut failure: TestFailure) {
        if self.failures.len() >= self.bounds.failures {
            return;
        }
        let short = |text: Option<&str>| text.map(|text| excerpt(text, MAX_NAME_BYTES));
        failure.name = excerpt(&failure.name, MAX_NAME_BYTES);
        failure.class = short(failure.class.as_deref());
        failure.file = short(failure.file.as_deref());
        failure.message = excerpt(&failure.message, MAX_MESSAGE_BYTES.min(self.text_left()));
        self.text = self.text.saturating_add(failure.message.len());
        if failure.detail.len() > MAX_DETAIL_BYTES.min(self.text_left()) {
            failure.detail = String::new();
        }
        self.text = self.text.saturating_add(failure.detail.len());
        self.failures.push(failure);
    }

    fn text_left(&self) -> usize {
        MAX_FAILURE_TEXT.saturating_sub(self.text)
    }

    /// Lists a time among the slowest: of equal ones the earlier is first.
    pub(super) fn time(&mut self, mut time: TestTime) {
        let at = self.slowest.partition_point(|other| other.took_ms >= time.took_ms);
        if time.took_ms == 0 || at >= self.bounds.slowest {
            return;
        }
        time.name = excerpt(&time.name, MAX_NAME_BYTES);
        time.class = time.class.as_deref().map(|class| excerpt(class, MAX_NAME_BYTES));
        self.slowest.insert(at, time);
        self.slowest.truncate(self.bounds.slowest);
    }

    /// Adds the counts of another report.
    pub(super) fn add(&mut self, other: &TestTotals) {
        let totals = &mut self.totals;
        for (count, more) in [
            (&mut totals.suites, other.suites),
            (&mut totals.cases, other.cases),
            (&mut totals.failed, other.failed),
            (&mut totals.errored, other.errored),
            (&mut totals.skipped, other.skipped),
            (&mut totals.flaky, other.flaky),
            (&mut totals.took_ms, other.took_ms),
        ] {
            *count = sum(*count, more);
        }
    }

    /// The report: with a fault, failures alone.
    pub(super) fn finish(self, fault: Option<ReportFault>) -> TestReport {
        let failures = self.failures;
        match fault {
            Some(_) => TestReport { failures, fault, ..TestReport::default() },
            None => TestReport {
                totals: Some(self.totals),
                failures,
                slowest: self.slowest,
                ..TestReport::default()
            },
        }
    }
}

fn sum(count: u64, more: u64) -> u64 {
    count.saturating_add(more).min(MAX_COUNT)
}

/// A time in seconds as ms, with or without commas between thousands. `None` for what is negative, infinite or not a number.
pub(super) fn ms_of_seconds(text: &str) -> Option<u64> {
    ms_of(text.trim().replace(',', "").parse().ok()?)
}

/// The same of a number.
pub(super) fn ms_of(seconds: f64) -> Option<u64> {
    let time = Duration::try_from_secs_f64(seconds).ok()?;
    let ms = time.checked_add(Duration::from_micros(500))?.as_millis();
    u64::try_from(ms).ok().filter(|ms| *ms <= MAX_COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_commas_and_is_a_finite_number() {
        for (text, ms) in [
            ("0.0004", Some(0)),
            ("0.0005", Some(1)),
            (" 1.5 ", Some(1_500)),
            ("1,234.567", Some(1_234_567)),
            ("1,234,567", Some(1_234_567_000)),
            ("0", Some(0)),
            ("-0.1", None),
            ("NaN", None),
            ("inf", None),
            ("-inf", None),
            ("1e300", None),
            ("1e15", None),
            ("", None),
            ("1 s", None),
        ] {
            assert_eq!(ms_of_seconds(text), ms, "{text:?}");
        }
    }

    #[test]
    fn of_the_slowest_the_earlier_of_two_equal_ones_is_first() {
        let bounds = ReportBounds { slowest: 3, ..ReportBounds::default() };
        let mut collector = Collector::new(&bounds);
        for (name, took_ms) in [("a", 5), ("b", 0), ("c", 9), ("d", 5), ("e", 5), ("f", 1)] {
            let end = CaseEnd::Passed;
            collector.case(TestCase {
                name: name.into(),
                class: None,
                took_ms: Some(took_ms),
                end,
            });
        }
        let report = collector.finish(None);
        let names: Vec<&str> = report.slowest.iter().map(|time| time.name.as_str()).collect();
        assert_eq!(names, ["c", "a", "d"]);
        assert_eq!(report.totals.unwrap().took_ms, 25);
    }
}
