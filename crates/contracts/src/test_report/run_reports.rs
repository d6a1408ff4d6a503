//! Reports of a run: each task's as they are stored, and their sum.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    MAX_REPORT_SPECS, MAX_REPORTS, ReportBounds, ReportFault, ReportFaultKind, ReportKind,
    ReportPart, TestReport, merged,
};
use crate::id::{Digest, StepId, TaskKey};

/// JSON bytes of the reports of one task. Of those beyond it the totals are stored without failures and slowest tests.
pub const MAX_TASK_REPORT_BYTES: usize = 8 * 1024 * 1024;
/// Reports of a run that an answer has.
pub const MAX_RUN_REPORTS: usize = 10_000;
/// JSON bytes of the reports of a run that an answer has with failures and slowest tests; of the others it has the totals.
pub const MAX_RUN_REPORT_BYTES: usize = 16 * 1024 * 1024;

/// Reports of a run.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunReports {
    /// Tasks with reports, or with entries of `reports` that matched no file: the last attempt of each that ended.
    pub tasks: Vec<TaskReports>,
    /// Sum of all reports, of shards too; absent where there is none. The coverage of several reports is not added up, and absent.
    pub total: Option<TestReport>,
}

/// Reports of one attempt of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskReports {
    /// The task's name.
    pub name: String,
    /// The step of the task.
    pub step_id: StepId,
    /// The attempt's key.
    pub task_key: TaskKey,
    /// Which attempt, from 1.
    #[schemars(range(min = 1))]
    pub attempt: i32,
    /// What was read, in the order of the task's `reports`.
    #[schemars(length(max = MAX_REPORTS))]
    pub reports: Vec<ReportRow>,
    /// Entries of the task's `reports` that matched no file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_REPORT_SPECS))]
    pub unmatched: Vec<String>,
}

/// One report of a task, as it was read.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReportRow {
    /// Path relative to the working directory; the entry's glob where its files could not be collected.
    pub path: String,
    /// Its kind. Absent where its content fits none.
    pub kind: Option<ReportKind>,
    /// Digest of the file, which is an artifact of the task; absent where the file could not be collected.
    pub sha256: Option<Digest>,
    /// What it says.
    pub report: TestReport,
}

impl RunReports {
    /// With their sum. `is_cut`: there are more reports than `tasks` has, so that a sum of these would look like the whole.
    #[must_use]
    pub fn of(tasks: Vec<TaskReports>, is_cut: bool) -> Self {
        let rows = tasks.iter().flat_map(|task| &task.reports);
        let mut parts = rows.map(|row| ReportPart { report: &row.report, lines: None }).peekable();
        let total = parts.peek().is_some().then(|| {
            let total = merged(parts, &ReportBounds::default());
            match is_cut {
                true => TestReport {
                    failures: total.failures,
                    ..TestReport::faulty(ReportFaultKind::TooMany)
                },
                false => total,
            }
        });
        Self { tasks, total }
    }

    /// All reports, each with its task.
    pub fn reports(&self) -> impl Iterator<Item = (&TaskReports, &ReportRow)> {
        self.tasks.iter().flat_map(|task| task.reports.iter().map(move |row| (task, row)))
    }
}

impl TestReport {
    /// A report that could not be read.
    #[must_use]
    pub fn faulty(kind: ReportFaultKind) -> Self {
        Self { fault: Some(ReportFault { kind, byte: 0 }), ..Self::default() }
    }

    /// Its JSON within what is left of a bound on several: without failures and slowest tests where they do not fit.
    ///
    /// # Errors
    /// What the serializer says.
    pub fn fit(&self, left: &mut usize) -> Result<String, serde_json::Error> {
        let whole = serde_json::to_string(self)?;
        if let Some(after) = left.checked_sub(whole.len()) {
            *left = after;
            return Ok(whole);
        }
        let Self { totals, coverage, fault, .. } = self;
        let (totals, coverage, fault) = (totals.clone(), coverage.clone(), *fault);
        serde_json::to_string(&Self { totals, coverage, fault, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_report::{ReportContent, read};

    fn row(path: &str, text: &str) -> ReportRow {
        let content = read(&mut text.as_bytes(), None, &ReportBounds::default());
        let ReportContent { kind, report, .. } = content;
        ReportRow { path: path.to_owned(), kind, sha256: None, report }
    }

    fn task(name: &str, reports: Vec<ReportRow>) -> TaskReports {
        TaskReports {
            name: name.to_owned(),
            step_id: StepId::parse(&format!("ExecuteST:{name}")).unwrap(),
            task_key: TaskKey::parse(&"a".repeat(64)).unwrap(),
            attempt: 1,
            reports,
            unmatched: Vec::new(),
        }
    }

    const SHARD: &str =
        "<testsuite><testcase name='a'/><testcase name='b'><failure/></testcase></testsuite>";
    const LCOV: &str = "SF:a\nDA:1,1\nDA:2,0\nend_of_record\n";

    #[test]
    fn shards_are_one_sum_and_coverage_of_several_is_none() {
        let shards = vec![
            task("s-0", vec![row("junit.xml", SHARD), row("lcov.info", LCOV)]),
            task("s-1", vec![row("junit.xml", SHARD)]),
        ];
        let reports = RunReports::of(shards.clone(), false);
        let total = reports.total.clone().unwrap();
        let totals = total.totals.unwrap();
        assert_eq!((totals.cases, totals.failed, total.failures.len()), (4, 2, 2));
        assert_eq!(total.coverage.unwrap().lines.total, 2, "there is one");
        assert_eq!(reports.reports().count(), 3);
        let more = task("s-2", vec![row("lcov.info", LCOV)]);
        let several = RunReports::of([shards.clone(), vec![more]].concat(), false);
        assert_eq!(several.total.unwrap().coverage, None, "a sum of lines would count some twice");
        let cut = RunReports::of(shards, true).total.unwrap();
        assert_eq!((cut.totals, cut.coverage), (None, None), "a part is not shown as the whole");
        assert_eq!(cut.fault.unwrap().kind, ReportFaultKind::TooMany);
        assert_eq!(cut.failures.len(), 2);
        assert_eq!(RunReports::of(vec![task("t", Vec::new())], false).total, None);
    }

    #[test]
    fn what_does_not_fit_is_stored_by_its_totals() {
        let report = row("junit.xml", SHARD).report;
        let size = serde_json::to_string(&report).unwrap().len();
        let mut left = size + 10;
        let (first, second) = (report.clone(), report.clone());
        first.fit(&mut left).unwrap();
        assert_eq!((first, left), (report.clone(), 10));
        let text = second.fit(&mut left).unwrap();
        assert_eq!((second.failures.len(), second.slowest.len(), left), (0, 0, 10));
        assert_eq!(second.totals, report.totals);
        assert_eq!(serde_json::from_str::<TestReport>(&text).unwrap(), second);
    }
}
