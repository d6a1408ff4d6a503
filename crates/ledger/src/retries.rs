//! `app.run_retries`: a failed run goes on as itself, from its first step without success.

use std::collections::BTreeSet;

use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::{RunId, StepId};
use cofferdam_contracts::run::RunStatus;
use sqlx::Row;

use crate::APP_VERSION;
use crate::audit::{Audit, append};
use crate::erasures::refuse_erased;
use crate::error::{LedgerError, OpResult, Result, id};
use crate::families::Runs;

/// What asking for a retry did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetryOutcome {
    /// The run is queued again, and this is its first step without success.
    From(String),
    /// The run is in no state that may be repeated.
    NotNow(RunStatus),
    /// The run failed, but its workflow has not ended yet: ask again in a moment.
    NotYet,
    /// The run is a dispatch's, which has retries of its own.
    Dispatch,
    /// Its steps were recorded by this version of the workflow, and no live worker has it.
    Unserved(String),
}

/// What a run has behind it when it is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The last round in which its plan was asked about; 0: never.
    pub last_round: u32,
    /// The highest attempt that any of its tasks had.
    pub attempts: u32,
    /// Its tasks that succeeded, by their steps.
    pub done: BTreeSet<StepId>,
}

/// The first step without success: `$1` is the run.
const FROM_STEP: &str = "SELECT CASE
    WHEN r.plan_digest IS NULL THEN 'CompileST'
    WHEN EXISTS (SELECT 1 FROM app.run_steps s WHERE s.run_id = r.id AND s.step_id = 'CompileST'
                    AND coalesce(jsonb_typeof(s.output->'gate'), 'null') <> 'null')
     AND NOT EXISTS (SELECT 1 FROM app.plan_approvals p
                      WHERE p.run_id = r.id AND p.round = (SELECT max(round) FROM app.plan_approvals WHERE run_id = r.id)
                        AND NOT EXISTS (SELECT 1 FROM app.plan_consents_void v
                                         WHERE v.run_id = p.run_id AND v.round = p.round)) THEN 'DecideST'
    ELSE 'ExecuteST' END
  FROM app.runs r WHERE r.id = $1";

impl Runs<'_> {
    /// Queues a failed run's own workflow again: an explicit repair, recorded with its audit row. What
    /// the run has recorded stays; its workflow replays it and goes on behind it.
    ///
    /// # Errors
    /// `erased` where a content of the run went.
    pub async fn retry(self, run: &RunId, audit: &Audit<'_>) -> OpResult<RetryOutcome> {
        let mut tx = self.pool().begin().await?;
        let row = sqlx::query(
            "SELECT r.status, w.status AS engine, r.recipe_id = 'dispatch' AS dispatch,
                    CASE WHEN w.application_version <> $2 AND NOT EXISTS (
                      SELECT 1 FROM app.executors e WHERE e.state = 'live' AND e.app_version = w.application_version)
                    THEN w.application_version END AS unserved
               FROM app.runs r JOIN dbos.workflow_status w ON w.workflow_uuid = r.workflow_id
              WHERE r.id = $1 FOR UPDATE OF r, w",
        )
        .bind(run.as_str())
        .bind(APP_VERSION)
        .fetch_one(&mut *tx)
        .await?;
        refuse_erased(&mut *tx, run, None).await?;
        let status: String = row.try_get("status")?;
        let status = RunStatus::parse(&status)
            .ok_or(LedgerError::Row { what: "runs.status", why: status })?;
        if !status.is_retryable() {
            return Ok(RetryOutcome::NotNow(status));
        }
        if row.try_get("dispatch")? {
            return Ok(RetryOutcome::Dispatch);
        }
        let engine: String = row.try_get("engine")?;
        if ["PENDING", "ENQUEUED", "DELAYED"].contains(&engine.as_str()) {
            return Ok(RetryOutcome::NotYet);
        }
        if let Some(version) = row.try_get("unserved")? {
            return Ok(RetryOutcome::Unserved(version));
        }
        let from: String =
            sqlx::query_scalar(FROM_STEP).bind(run.as_str()).fetch_one(&mut *tx).await?;
        requeue(&mut tx, run, &from, audit.key_id).await?;
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(RetryOutcome::From(from))
    }

    /// What a run has behind it, read when it goes on.
    pub async fn progress(self, run: &RunId) -> Result<Progress> {
        let row = sqlx::query(
            "SELECT (SELECT coalesce(max(round), 0) FROM app.human_gates
                      WHERE run_id = $1 AND plan_digest IS NOT NULL) AS last_round,
                    (SELECT coalesce(max(attempt), 0) FROM app.sbx_runs WHERE run_id = $1) AS attempts,
                    ARRAY(SELECT DISTINCT step_id FROM app.sbx_runs
                           WHERE run_id = $1 AND err_code = 'NONE') AS done",
        )
        .bind(run.as_str())
        .fetch_one(self.pool())
        .await?;
        let count = |column: &str| -> Result<u32> {
            Ok(u32::try_from(row.try_get::<i32, _>(column)?).unwrap_or(0))
        };
        let done: Vec<String> = row.try_get("done")?;
        Ok(Progress {
            last_round: count("last_round")?,
            attempts: count("attempts")?,
            done: done.iter().map(|t| id("sbx_runs.step_id", t)).collect::<Result<_>>()?,
        })
    }
}

/// The row keeps its version: who goes on replays what is recorded, and that fits the code that recorded it,
/// whatever version the process has that is asked. Any worker of that version may go on with it.
async fn requeue(conn: &mut sqlx::PgConnection, run: &RunId, from: &str, key: &str) -> Result<()> {
    sqlx::query("SELECT set_config('cofferdam.repair', 'on', true)").execute(&mut *conn).await?;
    sqlx::query(
        "WITH n AS (
           INSERT INTO app.run_retries (run_id, n, from_step, key_id, origin)
           SELECT $1, 1 + count(*)::int, $2, $3, $4 FROM app.run_retries WHERE run_id = $1),
         g AS (
           UPDATE app.human_gates SET state = 'canceled', decided_at = clock_timestamp()
            WHERE run_id = $1 AND state = 'open'),
         r AS (
           UPDATE app.runs SET status = 'repairing', next_action = 'NONE', error = NULL, finished_at = NULL,
                  retry_count = retry_count + 1
            WHERE id = $1 RETURNING workflow_id),
         w AS (
           UPDATE dbos.workflow_status
              SET status = 'ENQUEUED', output = NULL, error = NULL, started_at_epoch_ms = NULL, owner_xid = NULL,
                  completed_at = NULL, recovery_attempts = 0, executor_id = NULL,
                  updated_at = app.ms(clock_timestamp())
            WHERE workflow_uuid = (SELECT workflow_id FROM r) RETURNING queue_name)
         SELECT pg_notify('cofferdam', 'q:' || queue_name), pg_notify('cofferdam', 'r:' || $1) FROM w",
    )
    .bind(run.as_str())
    .bind(from)
    .bind(key)
    .bind(Origin::ApiShim.as_str())
    .execute(conn)
    .await?;
    Ok(())
}
