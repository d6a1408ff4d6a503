//! A dispatch ends with its run, in the run's own transactions: when the run is over and every attempt has
//! answered, since only then is known what was enforced. What its row says then is decided in
//! `contracts::dispatch`.
//!
//! The two may happen at once; the one that takes the dispatch's row second reads what the first has
//! committed. A deferred trigger refuses a commit that leaves a dispatch behind its run.

use cofferdam_contracts::dispatch::{DispatchEndFacts, ended};
use cofferdam_contracts::id::{RunId, TaskKey};
use cofferdam_contracts::run::RunStatus;
use cofferdam_contracts::sandbox::{AccessMode, SandboxResult};
use serde_json::Value;
use sqlx::Row;

use crate::error::{LedgerError, Result, json, load};

/// The recipe whose runs are dispatches.
pub(crate) const RECIPE: &str = "dispatch";

/// Ends the run's dispatch, if it has one that is not over, and if the time has come.
pub(crate) async fn dispatch_settle(conn: &mut sqlx::PgConnection, run: &RunId) -> Result<()> {
    let dispatch = sqlx::query(
        "SELECT d.id, d.project_dir, d.sandbox, d.sandbox_spec
           FROM app.dispatches d JOIN app.dispatch_runs m ON m.dispatch_id = d.id
          WHERE m.run_id = $1 AND NOT app.dispatch_is_over(d.status) FOR UPDATE OF d",
    )
    .bind(run.as_str())
    .fetch_optional(&mut *conn)
    .await?;
    let Some(dispatch) = dispatch else { return Ok(()) };
    // A statement of its own: it sees what was committed while the one before waited for the row.
    let over = sqlx::query(
        "SELECT r.status, r.error, s.response
           FROM app.runs r LEFT JOIN LATERAL (
             SELECT x.response FROM app.sbx_runs x WHERE x.run_id = r.id ORDER BY x.attempt DESC LIMIT 1) s ON true
          WHERE r.id = $1 AND app.is_over(r.status)
            AND NOT EXISTS (SELECT 1 FROM app.sbx_runs x WHERE x.run_id = r.id AND x.response IS NULL)",
    )
    .bind(run.as_str())
    .fetch_optional(&mut *conn)
    .await?;
    let Some(over) = over else { return Ok(()) };
    let last: Option<Value> = over.try_get("response")?;
    let last: Option<SandboxResult> =
        last.map(|value| load("sbx_runs.response", value)).transpose()?;
    let (spec, error): (Option<Value>, Option<String>) =
        (dispatch.try_get("sandbox_spec")?, over.try_get("error")?);
    let sandbox: Option<String> = dispatch.try_get("sandbox")?;
    let project_dir: String = dispatch.try_get("project_dir")?;
    let end = ended(DispatchEndFacts {
        run: load::<RunStatus>("runs.status", Value::String(over.try_get("status")?))?,
        error: error.as_deref(),
        last: last.as_ref(),
        spec: spec.as_ref(),
        sandbox: sandbox.as_deref().and_then(AccessMode::parse),
        project_dir: &project_dir,
    })
    .map_err(|e| LedgerError::Row { what: "dispatches.sandbox_effective", why: e.to_string() })?;
    let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    sqlx::query(
        "UPDATE app.dispatches SET status = $2, completed_at = floor(extract(epoch FROM clock_timestamp()))::bigint,
                exit_code = $3, error_message = $4, turns = $5, commands = $6, messages = $7, input_tokens = $8,
                output_tokens = $9, cache_hits = $10, sandbox_effective = $11, base_repo_commit = $12,
                conflict_type = $13, verdict_status = $14, verdict_summary = $15
          WHERE id = $1",
    )
    .bind(dispatch.try_get::<String, _>("id")?)
    .bind(end.status.as_str())
    .bind(end.exit_code.map(i64::from))
    .bind(end.error_message)
    .bind(count(end.tally.turns))
    .bind(count(end.tally.commands))
    .bind(count(end.tally.messages))
    .bind(count(end.tally.input_tokens))
    .bind(count(end.tally.output_tokens))
    .bind(count(end.tally.cache_hits))
    .bind(end.effective)
    .bind(end.findings.base_repo_commit)
    .bind(end.findings.conflict_type)
    .bind(end.findings.verdict_status)
    .bind(end.findings.verdict_summary)
    .execute(&mut *conn)
    .await?;
    sqlx::query("SELECT pg_notify('cofferdam', 'r:' || $1)")
        .bind(run.as_str())
        .execute(conn)
        .await?;
    Ok(())
}

/// The answer of attempts that were canceled and that no worker will give any more; each row adds its own
/// `taskKey`.
pub(crate) fn canceled_answer(cause: &str) -> Result<Value> {
    let key = TaskKey::parse(&"0".repeat(64))
        .map_err(|e| LedgerError::Row { what: "sbx_runs.response", why: e.to_string() })?;
    json("sbx_runs.response", &SandboxResult::unanswered(key, Some(cause.to_owned())))
}
