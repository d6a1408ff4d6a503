//! A round of a run: its attempts are written and queued together, and what only keeps a text is over at once.

use cofferdam_contracts::id::TaskKey;
use serde_json::{Value, json};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row};

use crate::APP_VERSION;
use crate::artifacts::inline_rows;
use crate::error::{Result, id, json as column};
use crate::families::Tasks;
use crate::policies::snapshots_json;
use crate::tasks::{NewTask, TaskBatch, TaskEnd};

impl Tasks<'_> {
    /// Writes the attempts and queues their workflows, together; a replay writes nothing. The keys of those
    /// that are over already: their ends came along, and count.
    /// `None`: the run was canceled before, and nothing was written.
    pub async fn enqueue(self, wave: &TaskBatch<'_>) -> Result<Option<Vec<TaskKey>>> {
        // A cancel comes before it, or sees its tasks.
        let query = "SELECT app.round_enqueue($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS kept
               FROM (SELECT status FROM app.runs WHERE id = $1 FOR SHARE) r WHERE r.status <> 'canceled'";
        let row = round_query(query, wave)?.fetch_optional(self.pool()).await?;
        row.as_ref().map(kept).transpose()
    }
}

/// A statement around `app.round_enqueue`: `$1` to `$11` are the round's.
pub(crate) fn round_query<'q>(
    query: &'static str,
    wave: &TaskBatch<'q>,
) -> Result<Query<'q, Postgres, PgArguments>> {
    let tasks: Result<Vec<Value>> = wave.tasks.iter().map(NewTask::row).collect();
    let (values, artifacts) = ends(wave.values)?;
    Ok(sqlx::query(query)
        .bind(wave.run.as_str())
        .bind(wave.parent)
        .bind(wave.partition)
        .bind(wave.priority)
        .bind(APP_VERSION)
        .bind(wave.executor.as_str())
        .bind(crate::quota::default_mb())
        .bind(Value::Array(tasks?))
        .bind(snapshots_json(wave.snapshots)?)
        .bind(values)
        .bind(artifacts))
}

/// The keys of the attempts that were over at once.
pub(crate) fn kept(row: &PgRow) -> Result<Vec<TaskKey>> {
    let kept: Vec<String> = row.try_get("kept")?;
    kept.iter().map(|key| id("sbx_runs.task_key", key)).collect()
}

/// The ends and their artifacts as the statement takes them. An end with a blob is left to a worker.
fn ends(values: &[TaskEnd<'_>]) -> Result<(Value, Value)> {
    let (mut ends, mut artifacts) = (Vec::new(), Vec::new());
    for end in values {
        let Some(rows) = inline_rows(end.task, end.artifacts)? else { continue };
        let response = column("sbx_runs.response", end.result)?;
        ends.push(json!({
            "task_key": end.task.key, "err_code": end.result.err_code,
            // As the engine writes a workflow's result.
            "output": column("workflow_status.output", &end.result.err_code)?.to_string(),
            "metrics": end.result.metrics, "response": response,
        }));
        artifacts.extend(rows);
    }
    Ok((Value::Array(ends), Value::Array(artifacts)))
}
