//! `app.test_reports`: what the reports of a task's tests say, written with its end.

use std::collections::BTreeMap;

use cofferdam_contracts::id::{Digest, RunId, StepId};
use cofferdam_contracts::test_report::{
    MAX_REPORTS, MAX_RUN_REPORT_BYTES, MAX_RUN_REPORTS, MAX_TASK_REPORT_BYTES, ReportKind,
    ReportRow, RunReports, TaskReports, TestReport,
};
use serde_json::Value;
use sqlx::Row;

use crate::error::{LedgerError, Result, id, load};
use crate::families::Artifacts;

/// A report to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReport {
    /// Path of its file, as the artifact's name has it, or the glob whose files could not be collected.
    pub path: String,
    /// Its kind, where it has one.
    pub kind: Option<ReportKind>,
    /// Digest of its file; `None` with a fault only.
    pub sha256: Option<Digest>,
    /// What it says; beyond [`MAX_TASK_REPORT_BYTES`] of an attempt its lists are left out.
    pub report: TestReport,
}

/// Reports column by column, as `unnest` takes them.
#[derive(Debug, Default)]
pub(crate) struct ReportColumns<'a> {
    pub paths: Vec<&'a str>,
    pub kinds: Vec<Option<&'static str>>,
    pub reports: Vec<String>,
    pub digests: Vec<Option<&'a str>>,
}

impl<'a> ReportColumns<'a> {
    /// The first [`MAX_REPORTS`] of them.
    pub(crate) fn of(reports: &'a [NewReport]) -> Result<Self> {
        let mut columns = Self::default();
        let mut left = MAX_TASK_REPORT_BYTES;
        for new in reports.iter().take(MAX_REPORTS) {
            let text = new.report.fit(&mut left).map_err(|e| LedgerError::Row {
                what: "test_reports.report",
                why: e.to_string(),
            })?;
            columns.paths.push(&new.path);
            columns.kinds.push(new.kind.map(ReportKind::as_str));
            columns.reports.push(text);
            columns.digests.push(new.sha256.as_ref().map(Digest::as_str));
        }
        Ok(columns)
    }
}

/// Tasks of a run whose last ended attempt has reports, or entries of `reports` that matched nothing; a row for each report. Of reports
/// beyond `$2` bytes the totals are read alone.
const OF_RUN: &str = "WITH t AS (
       SELECT s.task_key, s.step_id, s.task_name, s.attempt, s.created_at,
              s.response -> 'unmatchedReports' AS unmatched
         FROM app.last_ended_attempts s WHERE s.run_id = $1),
     r AS (
       SELECT r.task_key, r.idx, r.path, r.kind, r.sha256, r.report,
              sum(octet_length(r.report::text)) OVER (ORDER BY t.created_at, t.step_id, r.idx) AS bytes
         FROM app.test_reports r JOIN t USING (task_key) WHERE r.run_id = $1 AND NOT r.report ? 'erased')
     SELECT t.task_key, t.step_id, t.task_name, t.attempt, t.unmatched, r.path, r.kind, r.sha256,
            CASE WHEN r.bytes <= $2 THEN r.report ELSE r.report - 'failures' - 'slowest' END AS report
       FROM t LEFT JOIN r USING (task_key)
      WHERE r.idx IS NOT NULL OR jsonb_array_length(t.unmatched) > 0
      ORDER BY t.created_at, t.step_id, r.idx LIMIT $3";

impl Artifacts<'_> {
    /// A run's reports and their sum.
    pub async fn reports(self, run: &RunId) -> Result<RunReports> {
        let most = i64::try_from(MAX_RUN_REPORTS).unwrap_or(i64::MAX);
        let rows = sqlx::query(OF_RUN)
            .bind(run.as_str())
            .bind(i64::try_from(MAX_RUN_REPORT_BYTES).unwrap_or(i64::MAX))
            .bind(most.saturating_add(1))
            .fetch_all(self.pool())
            .await?;
        let mut tasks: Vec<TaskReports> = Vec::new();
        let mut places: BTreeMap<StepId, usize> = BTreeMap::new();
        for row in rows.iter().take(MAX_RUN_REPORTS) {
            let step_id: StepId = id("sbx_runs.step_id", row.try_get("step_id")?)?;
            let place = match places.get(&step_id) {
                Some(place) => *place,
                None => {
                    places.insert(step_id.clone(), tasks.len());
                    tasks.push(task_of(row, step_id)?);
                    tasks.len() - 1
                }
            };
            if let (Some(report), Some(task)) = (report_of(row)?, tasks.get_mut(place)) {
                task.reports.push(report);
            }
        }
        Ok(RunReports::of(tasks, rows.len() > MAX_RUN_REPORTS))
    }
}

fn task_of(row: &sqlx::postgres::PgRow, step_id: StepId) -> Result<TaskReports> {
    let unmatched = row.try_get::<Option<Value>, _>("unmatched")?;
    Ok(TaskReports {
        name: row.try_get("task_name")?,
        step_id,
        task_key: id("sbx_runs.task_key", row.try_get("task_key")?)?,
        attempt: row.try_get("attempt")?,
        reports: Vec::new(),
        unmatched: unmatched
            .map(|value| load("sbx_runs.response", value))
            .transpose()?
            .unwrap_or_default(),
    })
}

fn report_of(row: &sqlx::postgres::PgRow) -> Result<Option<ReportRow>> {
    let Some(path) = row.try_get("path")? else { return Ok(None) };
    let kind: Option<String> = row.try_get("kind")?;
    let sha256: Option<String> = row.try_get("sha256")?;
    Ok(Some(ReportRow {
        path,
        kind: kind.map(|kind| load("test_reports.kind", Value::String(kind))).transpose()?,
        sha256: sha256.map(|text| id("test_reports.sha256", &text)).transpose()?,
        report: load("test_reports.report", row.try_get("report")?)?,
    }))
}
