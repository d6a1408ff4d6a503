//! A fork: what a run takes from the one that it repeats, and from which step on it may.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{RunId, WorkflowId};
use sqlx::Row;

use crate::error::{OpResult, Result};
use crate::runs::NewRun;

/// A gate is asked and answered within one run. So a fork from the middle of one starts where the
/// gate is opened, and asks again: its steps hold the ids of the run that was forked.
pub(crate) async fn before_gate(
    conn: &mut sqlx::PgConnection,
    from: &WorkflowId,
    step_n: i32,
) -> Result<i32> {
    let row = sqlx::query(
        "SELECT min(function_id) FILTER (WHERE function_name = 'gate.open') AS opened,
                max(function_id) FILTER (WHERE function_name = 'gate.resolve') AS resolved
           FROM dbos.operation_outputs WHERE workflow_uuid = $1",
    )
    .bind(from.as_str())
    .fetch_one(conn)
    .await?;
    let (opened, resolved): (Option<i32>, Option<i32>) =
        (row.try_get("opened")?, row.try_get("resolved")?);
    Ok(match opened {
        Some(opened) if step_n > opened && resolved.is_none_or(|resolved| step_n <= resolved) => {
            opened
        }
        _ => step_n,
    })
}

/// Whether this version's code can go on behind the recorded steps that a fork copies: only what it recorded
/// itself fits it.
pub(crate) async fn replayable(
    conn: &mut sqlx::PgConnection,
    workflow: &WorkflowId,
    step_n: i32,
) -> OpResult<()> {
    let version: Option<String> = sqlx::query_scalar(
        "SELECT application_version FROM dbos.workflow_status WHERE workflow_uuid = $1",
    )
    .bind(workflow.as_str())
    .fetch_one(conn)
    .await?;
    match version.filter(|version| step_n > 0 && version != crate::APP_VERSION) {
        Some(version) => {
            let why = format!("its steps are recorded by version {version}: fork it from step 0");
            Err(Refusal::new(ErrorCode::StateConflict, why).into())
        }
        None => Ok(()),
    }
}

/// A plan that an agent made belongs to the conversation of its run, and its patch to that run's build: a fork has its own
/// from the beginning.
pub(crate) async fn planned_anew(
    conn: &mut sqlx::PgConnection,
    run: &RunId,
    step_n: i32,
) -> OpResult<()> {
    let is_planned: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM app.sbx_runs WHERE run_id = $1 AND request ? 'opencode')",
    )
    .bind(run.as_str())
    .fetch_one(conn)
    .await?;
    match is_planned && step_n > 0 {
        true => {
            let why = "an agent's plan belongs to its run: fork it from step 0, which plans anew";
            Err(Refusal::new(ErrorCode::StateConflict, why).into())
        }
        false => Ok(()),
    }
}

/// What a statement about a fork needs to know, in the order of its parameters.
#[derive(Debug, Clone, Copy)]
enum Need {
    /// The workflow that is forked.
    From,
    /// The fork's workflow.
    To,
    /// The run that is forked.
    FromRun,
    /// The fork's run.
    ToRun,
    /// The first step that the fork does itself.
    Step,
}

/// What a fork inherits: the engine's rows before the step, the compiled plan and, where the gate
/// was passed before the step, the consent to it.
const INHERITED: &[(&str, &[Need])] = {
    use Need::{From, FromRun, Step, To, ToRun};
    &[
        (
            "INSERT INTO dbos.operation_outputs (workflow_uuid, function_id, function_name, output, error, child_workflow_id,
               started_at_epoch_ms, completed_at_epoch_ms, serialization)
             SELECT $2, function_id, function_name, output, error, child_workflow_id, started_at_epoch_ms,
                    completed_at_epoch_ms, serialization
               FROM dbos.operation_outputs WHERE workflow_uuid = $1 AND function_id < $3",
            &[From, To, Step],
        ),
        (
            "WITH h AS (
               INSERT INTO dbos.workflow_events_history (workflow_uuid, function_id, key, value, serialization)
               SELECT $2, function_id, key, value, serialization FROM dbos.workflow_events_history
                WHERE workflow_uuid = $1 AND function_id < $3 RETURNING function_id, key, value, serialization)
             INSERT INTO dbos.workflow_events (workflow_uuid, key, value, serialization)
             SELECT DISTINCT ON (key) $2, key, value, serialization FROM h ORDER BY key, function_id DESC",
            &[From, To, Step],
        ),
        (
            "INSERT INTO app.run_steps (run_id, step_id, attempt, status, output, error, origin)
             SELECT $2, step_id, attempt, status, output, error, origin FROM app.run_steps
              WHERE run_id = $1 AND step_id = 'CompileST' AND $3 > 0",
            &[FromRun, ToRun, Step],
        ),
        (
            "INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, inline, sha256, size, origin)
             SELECT $2, step_id, task_key, attempt, idx, kind, name, replace(uri, $1, $2), inline, sha256, size, origin
               FROM app.artifacts WHERE run_id = $1 AND step_id = 'CompileST' AND $3 > 0",
            &[FromRun, ToRun, Step],
        ),
        (
            "INSERT INTO app.plan_approvals (run_id, intent_id, plan_digest, approved_by, key_id, notes, origin, gate_key, round,
               sandbox_digest, egress_digest, image_digest, budget_digest, parts)
             SELECT $2, intent_id, plan_digest, approved_by, key_id, 'inherited by fork from ' || $1, origin, gate_key, round,
                    sandbox_digest, egress_digest, image_digest, budget_digest, parts
               FROM app.plan_approvals WHERE run_id = $1 AND EXISTS (
                 SELECT 1 FROM dbos.operation_outputs o
                  WHERE o.workflow_uuid = $3 AND o.function_name = 'gate.resolve' AND o.function_id < $4)",
            &[FromRun, ToRun, To, Step],
        ),
        (
            "INSERT INTO app.plan_consents_void (run_id, round, bindings, difference)
             SELECT $2, round, bindings, difference FROM app.plan_consents_void
              WHERE run_id = $1 AND $3 > 0 AND EXISTS (
                    SELECT 1 FROM app.plan_approvals p WHERE p.run_id = $2 AND p.round = plan_consents_void.round)",
            &[FromRun, ToRun, Step],
        ),
        // A workflow passes a recorded failure where a retry says so.
        (
            "INSERT INTO app.run_retries (run_id, n, from_step, key_id, origin)
             SELECT $2, t.n, t.from_step, t.key_id, t.origin FROM app.run_retries t
              WHERE t.run_id = $1 AND EXISTS (
                SELECT 1 FROM dbos.operation_outputs o
                 WHERE o.workflow_uuid = $3 AND o.function_name = 'retry#' || t.n AND o.function_id <= $4)",
            &[FromRun, ToRun, From, Step],
        ),
        (
            "UPDATE app.runs n SET plan_digest = o.plan_digest FROM app.runs o
              WHERE o.id = $1 AND n.id = $2 AND $3 > 0",
            &[FromRun, ToRun, Step],
        ),
        (
            "UPDATE dbos.workflow_status SET forked_from = $1 WHERE workflow_uuid = $2",
            &[From, To],
        ),
    ]
};

pub(crate) async fn fork_rows(
    conn: &mut sqlx::PgConnection,
    from: &WorkflowId,
    from_run: &RunId,
    new: &NewRun,
    step_n: i32,
) -> Result<()> {
    for (statement, needs) in INHERITED {
        let mut query = sqlx::query(*statement);
        for need in *needs {
            query = match need {
                Need::From => query.bind(from.as_str()),
                Need::To => query.bind(new.workflow_id.as_str()),
                Need::FromRun => query.bind(from_run.as_str()),
                Need::ToRun => query.bind(new.id.as_str()),
                Need::Step => query.bind(step_n),
            };
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}
