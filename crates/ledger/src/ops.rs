//! One file: each action is one statement with its audit row, and they share their locks.
//!
//! Workflow operations: reading and steering the engine's workflows. An action on a run acts on everything that belongs to it.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::gate::GateMessage;
use cofferdam_contracts::id::{RunId, TaskKey, TenantId, WorkflowId};
use cofferdam_contracts::instant::Instant;
use cofferdam_contracts::ops::{OpsAudit, OpsStep, OpsWorkflow};
use serde_json::{Value, json};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::audit::{Audit, append};
use crate::dispatch_end::{canceled_answer, dispatch_settle};
use crate::erasures::refuse_erased;
use crate::error::{OpError, OpResult, Result, id};
use crate::families::Ops;
use crate::forks::{before_gate, fork_rows, planned_anew, replayable};
use crate::gates::deliver;
use crate::runs::{NewRun, run_insert};

/// Which workflows are a tenant's: its runs', their tasks' and their escalations'.
const OWNED: &str = "SELECT w.workflow_uuid, w.name, w.status, w.queue_name, w.queue_partition_key, w.executor_id,
       w.recovery_attempts, w.created_at, w.updated_at
  FROM dbos.workflow_status w
 WHERE (EXISTS (SELECT 1 FROM app.runs r WHERE r.workflow_id = w.workflow_uuid AND r.tenant_id = $1)
     OR EXISTS (SELECT 1 FROM app.sbx_runs s JOIN app.runs r ON r.id = s.run_id
                 WHERE s.task_key = w.workflow_uuid AND r.tenant_id = $1)
     OR EXISTS (SELECT 1 FROM app.human_gates g WHERE g.escalation_workflow_id = w.workflow_uuid AND g.tenant_id = $1))";

/// The workflow that an operation is for.
struct OpsTarget {
    status: String,
    run: RunId,
    is_parent: bool,
    /// A run's own or a task's, rather than an escalation.
    is_work: bool,
    /// The key that submitted the run.
    key_id: String,
}

/// Whose runs a caller may cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancels {
    /// Every one of its tenant.
    All,
    /// Those that its own key submitted.
    Own,
}

impl Ops<'_> {
    /// A tenant's workflows, newest first.
    pub async fn list(
        self,
        tenant: &TenantId,
        status: Option<&str>,
        name: Option<&str>,
        limit: i64,
    ) -> Result<Vec<OpsWorkflow>> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "{OWNED} AND ($2::text IS NULL OR w.status = $2) AND ($3::text IS NULL OR w.name = $3)
             ORDER BY w.created_at DESC, w.workflow_uuid LIMIT $4"
        )))
        .bind(tenant.as_str())
        .bind(status)
        .bind(name)
        .bind(limit)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(workflow_of).collect()
    }

    /// One workflow with its audit.
    pub async fn get(
        self,
        tenant: &TenantId,
        workflow: &WorkflowId,
    ) -> Result<Option<OpsWorkflow>> {
        let row = sqlx::query(sqlx::AssertSqlSafe(format!("{OWNED} AND w.workflow_uuid = $2")))
            .bind(tenant.as_str())
            .bind(workflow.as_str())
            .fetch_optional(self.pool())
            .await?;
        let Some(row) = row else { return Ok(None) };
        let mut found = workflow_of(&row)?;
        found.audit = Some(self.audit(workflow).await?);
        Ok(Some(found))
    }

    async fn audit(self, workflow: &WorkflowId) -> Result<Vec<OpsAudit>> {
        let rows = sqlx::query(
            "SELECT op, actor, reason, app.ms(created_at) AS at, target, detail->>'forkedWorkflowID' AS forked
               FROM app.audit WHERE target = $1 ORDER BY id DESC LIMIT 500",
        )
        .bind(workflow.as_str())
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                let at_ms = row.try_get("at")?;
                Ok(OpsAudit {
                    op: row.try_get("op")?,
                    actor: row.try_get("actor")?,
                    reason: row.try_get("reason")?,
                    at: Instant::from_ms(at_ms),
                    at_ms,
                    target_workflow_id: row.try_get("target")?,
                    forked_workflow_id: row.try_get("forked")?,
                })
            })
            .collect()
    }

    /// A workflow's recorded steps.
    pub async fn steps(self, workflow: &WorkflowId) -> Result<Vec<OpsStep>> {
        let rows = sqlx::query(
            "SELECT function_id, function_name, output, error, child_workflow_id FROM dbos.operation_outputs
              WHERE workflow_uuid = $1 ORDER BY function_id LIMIT 10000",
        )
        .bind(workflow.as_str())
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                let value = |column: &str| -> Result<Option<Value>> {
                    let text: Option<String> = row.try_get(column)?;
                    Ok(text.map(|t| serde_json::from_str(&t).unwrap_or(Value::String(t))))
                };
                Ok(OpsStep {
                    step_n: row.try_get("function_id")?,
                    name: row.try_get("function_name")?,
                    output: value("output")?,
                    error: value("error")?,
                    child_workflow_id: row.try_get("child_workflow_id")?,
                })
            })
            .collect()
    }

    /// Cancels a workflow; a run's with its gates, its tasks and its sandboxes.
    pub async fn cancel(
        self,
        workflow: &WorkflowId,
        whose: Cancels,
        audit: &Audit<'_>,
    ) -> OpResult<()> {
        let mut tx = self.pool().begin().await?;
        let target = target_lock(&mut tx, audit.tenant, workflow).await?;
        let is_own = target.is_work && target.key_id == audit.key_id;
        if whose == Cancels::Own && !is_own {
            let why =
                "this run was submitted with another key: canceling it needs the role operator";
            return Err(Refusal::new(ErrorCode::Forbidden, why).into());
        }
        if !["PENDING", "ENQUEUED", "DELAYED"].contains(&target.status.as_str()) {
            return Err(wrong_state("cancel", &target.status, "running or queued"));
        }
        if target.is_parent {
            held_refuse(&mut tx, &target.run).await?;
            // Its workflow is about to end as the run did: a cancel would have the engine say another end.
            if !cancel_run(&mut tx, &target.run, workflow).await? {
                let status = sqlx::query_scalar("SELECT status FROM app.runs WHERE id = $1");
                let status: String = status.bind(target.run.as_str()).fetch_one(&mut *tx).await?;
                return Err(wrong_state("cancel", &status, "running or queued"));
            }
        }
        let tasks_of = target.is_parent.then_some(&target.run);
        cancel_workflows(&mut tx, Some(workflow), tasks_of, &target.run).await?;
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Cancels whatever of a run's tasks has not ended; the run itself goes on to its own end.
    pub async fn tasks_cancel(self, run: &RunId) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        cancel_workflows(&mut tx, None, Some(run), run).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Cancels attempts of a run that have not ended; the run itself and its other tasks go on.
    pub async fn attempts_cancel(self, run: &RunId, keys: &[TaskKey]) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        // In the order in which a cancel of the whole run locks them.
        let keys: std::collections::BTreeSet<&TaskKey> = keys.iter().collect();
        for key in keys {
            let workflow = id("sbx_runs.task_key", key.as_str())?;
            cancel_workflows(&mut tx, Some(&workflow), None, run).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// Puts a canceled workflow back on its queue: for a run an explicit, recorded repair. Its plan's gate
    /// waits again, so do those before tasks of its graph, and of what its tasks asked, the questions of those that will run again.
    pub async fn resume(self, workflow: &WorkflowId, audit: &Audit<'_>) -> OpResult<()> {
        let mut tx = self.pool().begin().await?;
        let target = target_lock(&mut tx, audit.tenant, workflow).await?;
        refuse_erased(&mut *tx, &target.run, None).await?;
        if !["CANCELLED", "ENQUEUED"].contains(&target.status.as_str()) {
            return Err(wrong_state("resume", &target.status, "canceled"));
        }
        if target.is_parent && target.status == "CANCELLED" {
            sqlx::query("SELECT set_config('cofferdam.repair', 'on', true)")
                .execute(&mut *tx)
                .await?;
            sqlx::query(
                "WITH g AS (UPDATE app.human_gates SET state = 'open', decided_at = NULL
                             WHERE run_id = $1 AND state = 'canceled' AND plan_digest IS NOT NULL RETURNING gate_key),
                      a AS (UPDATE app.human_gates g SET state = 'open', decided_at = NULL
                              FROM (SELECT run_id, task_key, gate_key FROM app.egress_asks
                                    UNION ALL SELECT run_id, task_key, gate_key FROM app.model_asks) a
                              JOIN app.sbx_runs s ON s.task_key = a.task_key
                             WHERE a.run_id = $1 AND g.run_id = $1 AND g.gate_key = a.gate_key
                               AND g.state = 'canceled' AND s.response IS NULL),
                      b AS (UPDATE app.human_gates g SET state = 'open', decided_at = NULL
                              FROM app.graph_gates_waiting($1) e
                             WHERE g.run_id = $1 AND g.gate_key = e.gate_key AND g.state = 'canceled'),
                      n AS (DELETE FROM dbos.notifications WHERE destination_uuid = $2 AND NOT consumed
                              AND message LIKE '%\"sys\":\"sys:cancel\"%')
                 UPDATE app.runs SET error = NULL, finished_at = NULL,
                        status = CASE WHEN EXISTS (SELECT FROM g) THEN 'waiting_input' ELSE 'repairing' END,
                        next_action = CASE WHEN EXISTS (SELECT FROM g) THEN 'APPROVE_PLAN' ELSE 'NONE' END
                  WHERE id = $1 AND status = 'canceled'",
            )
            .bind(target.run.as_str())
            .bind(workflow.as_str())
            .execute(&mut *tx)
            .await?;
        }
        if target.status == "CANCELLED" {
            // What runs again reads again: at the word of who puts it back.
            sqlx::query("UPDATE app.runs SET asked_by = $2 WHERE id = $1")
                .bind(target.run.as_str())
                .bind(audit.key_id)
                .execute(&mut *tx)
                .await?;
        }
        sqlx::query(
            "WITH w AS (
               UPDATE dbos.workflow_status
                  SET status = 'ENQUEUED', started_at_epoch_ms = NULL, owner_xid = NULL, completed_at = NULL,
                      updated_at = app.ms(clock_timestamp())
                WHERE status = 'CANCELLED' AND (workflow_uuid = $1 OR ($2 AND workflow_uuid IN (
                        SELECT task_key FROM app.sbx_runs WHERE run_id = $3 AND response IS NULL)))
               RETURNING queue_name)
             SELECT pg_notify('cofferdam', 'q:' || queue_name) FROM w GROUP BY queue_name",
        )
        .bind(workflow.as_str())
        .bind(target.is_parent)
        .bind(target.run.as_str())
        .execute(&mut *tx)
        .await?;
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Repeats a run from one of its recorded steps as a new run; the original is only read.
    pub async fn fork(
        self,
        workflow: &WorkflowId,
        step_n: i32,
        new: &NewRun,
        audit: &Audit<'_>,
    ) -> OpResult<()> {
        let mut tx = self.pool().begin().await?;
        // Before the run, as an erasure does: that of the prompt takes every run of the intent, and this is one more.
        sqlx::query("SELECT FROM app.intents WHERE id = $1 FOR SHARE")
            .bind(new.intent_id.as_str())
            .execute(&mut *tx)
            .await?;
        let target = target_lock(&mut tx, audit.tenant, workflow).await?;
        if !target.is_parent {
            return Err(Refusal::new(ErrorCode::StateConflict, "fork the run, not its task").into());
        }
        refuse_erased(&mut *tx, &target.run, None).await?;
        let last: Option<i32> = sqlx::query_scalar(
            "SELECT max(function_id) FROM dbos.operation_outputs WHERE workflow_uuid = $1",
        )
        .bind(workflow.as_str())
        .fetch_one(&mut *tx)
        .await?;
        let last = last.unwrap_or(-1);
        if step_n < 0 || step_n > last {
            let why = match last {
                ..0 => "no step is recorded yet: there is nothing to fork from".to_owned(),
                _ => format!(
                    "step {step_n} is not recorded: 0 to {last} are (show --steps lists them)"
                ),
            };
            return Err(Refusal::new(ErrorCode::StateConflict, why)
                .with(json!({"stepN": step_n, "recorded": last + 1}))
                .into());
        }
        let step_n = before_gate(&mut tx, workflow, step_n).await?;
        replayable(&mut tx, workflow, step_n).await?;
        planned_anew(&mut tx, &target.run, step_n).await?;
        if !run_insert(&mut tx, new, true).await? {
            return Err(Refusal::new(ErrorCode::Conflict, "the fork exists already").into());
        }
        fork_rows(&mut tx, workflow, &target.run, new, step_n).await?;
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(())
    }

    /// How many forks and retries an intent's workflow has: numbers the next.
    pub async fn forks(self, workflow: &WorkflowId) -> Result<i64> {
        Ok(sqlx::query_scalar("SELECT count(*) FROM app.audit WHERE target = $1 AND op = 'fork'")
            .bind(workflow.as_str())
            .fetch_one(self.pool())
            .await?)
    }

    /// The run behind a parent workflow.
    pub async fn run(self, tenant: &TenantId, workflow: &WorkflowId) -> Result<Option<RunId>> {
        let found: Option<String> =
            sqlx::query_scalar("SELECT id FROM app.runs WHERE workflow_id = $1 AND tenant_id = $2")
                .bind(workflow.as_str())
                .bind(tenant.as_str())
                .fetch_optional(self.pool())
                .await?;
        found.map(|text| id("runs.id", &text)).transpose()
    }

    /// Whether a task's workflow was canceled: what its worker asks when it is woken.
    pub async fn workflow_is_canceled(self, workflow: &str) -> Result<bool> {
        Ok(sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM dbos.workflow_status WHERE workflow_uuid = $1 AND status = 'CANCELLED')",
        )
        .bind(workflow)
        .fetch_one(self.pool())
        .await?)
    }
}

/// The run and its workflow, locked. What refers to them does not wait: a task that ends holds its row, which a cancel waits for, and
/// refers to its run. What must not come beside a cancel (a round's tasks, a task's gate) locks the run `FOR SHARE` before it is written.
async fn target_lock(
    conn: &mut sqlx::PgConnection,
    tenant: &TenantId,
    workflow: &WorkflowId,
) -> OpResult<OpsTarget> {
    let row = sqlx::query(
        "SELECT w.status, coalesce(p.id, t.run_id, g.run_id) AS run_id, p.id IS NOT NULL AS is_parent,
                coalesce(p.id, t.run_id) IS NOT NULL AS is_work, r.key_id
           FROM dbos.workflow_status w
           LEFT JOIN app.runs p ON p.workflow_id = w.workflow_uuid
           LEFT JOIN app.sbx_runs t ON t.task_key = w.workflow_uuid
           LEFT JOIN app.human_gates g ON g.escalation_workflow_id = w.workflow_uuid
           JOIN app.runs r ON r.id = coalesce(p.id, t.run_id, g.run_id)
          WHERE w.workflow_uuid = $1 AND r.tenant_id = $2 FOR NO KEY UPDATE OF w, r",
    )
    .bind(workflow.as_str())
    .bind(tenant.as_str())
    .fetch_optional(conn)
    .await?
    .ok_or_else(|| Refusal::not_found("workflow"))?;
    Ok(OpsTarget {
        status: row.try_get("status")?,
        run: id("runs.id", row.try_get("run_id")?)?,
        is_parent: row.try_get("is_parent")?,
        is_work: row.try_get("is_work")?,
        key_id: row.try_get("key_id")?,
    })
}

fn wrong_state(op: &str, status: &str, wanted: &str) -> OpError {
    Refusal::new(
        ErrorCode::StateConflict,
        format!("cannot {op} what is {}: it must be {wanted}", said(status)),
    )
    .with(json!({"status": status}))
    .into()
}

/// The engine's word for a state in the words of this program.
fn said(status: &str) -> &str {
    match status {
        "PENDING" => "running",
        "ENQUEUED" | "DELAYED" => "queued",
        "SUCCESS" => "over",
        "ERROR" => "failed",
        "CANCELLED" => "canceled",
        "MAX_RECOVERY_ATTEMPTS_EXCEEDED" => "given up",
        other => other,
    }
}

/// A held run ends by its sessions' wipes or settlements: cancelling it would hide that one of its
/// sandboxes may still be there.
async fn held_refuse(conn: &mut sqlx::PgConnection, run: &RunId) -> OpResult<()> {
    let held: Vec<String> = sqlx::query_scalar(
        "SELECT sandbox_id FROM app.held_sessions WHERE run_id = $1 ORDER BY sandbox_id LIMIT 50",
    )
    .bind(run.as_str())
    .fetch_all(conn)
    .await?;
    if held.is_empty() {
        return Ok(());
    }
    let why =
        "the run is held: the wipe of a sandbox could not be verified; settle its session first";
    Err(Refusal::new(ErrorCode::StateConflict, why).with(json!({"heldSessions": held})).into())
}

/// The run is over at once, and so are its gates; a parked wait is woken by a `sys:cancel` message.
async fn cancel_run(
    conn: &mut sqlx::PgConnection,
    run: &RunId,
    workflow: &WorkflowId,
) -> Result<bool> {
    let canceled = sqlx::query(
        "UPDATE app.runs SET status = 'canceled', next_action = 'NONE', error = 'canceled',
                finished_at = clock_timestamp()
          WHERE id = $1 AND NOT app.is_over(status)",
    )
    .bind(run.as_str())
    .execute(&mut *conn)
    .await?;
    if canceled.rows_affected() == 0 {
        return Ok(false);
    }
    // A workflow waits at its plan's gate only.
    let topics: Vec<Option<String>> = sqlx::query_scalar(
        "UPDATE app.human_gates SET state = 'canceled', decided_at = clock_timestamp()
          WHERE run_id = $1 AND state = 'open' RETURNING CASE WHEN plan_digest IS NOT NULL THEN topic END",
    )
    .bind(run.as_str())
    .fetch_all(&mut *conn)
    .await?;
    let message = GateMessage {
        payload: None,
        payload_hash: None,
        at: cofferdam_ambient::clock::now_ms(),
        sys: Some("sys:cancel".into()),
    };
    for topic in topics.into_iter().flatten() {
        deliver(conn, workflow.as_str(), &topic, &message).await?;
    }
    Ok(true)
}

/// The engine's rows, and the answers of tasks that will now never start, the claimed ones without
/// a recorded start included: of one workflow, and of all open tasks of `tasks_of`.
async fn cancel_workflows(
    conn: &mut sqlx::PgConnection,
    workflow: Option<&WorkflowId>,
    tasks_of: Option<&RunId>,
    run: &RunId,
) -> Result<()> {
    // A worker begins one of these attempts before or after: a statement that has waited looks again.
    sqlx::query(
        "SELECT 1 FROM app.sbx_runs WHERE (task_key = $1 OR run_id = $2) AND response IS NULL
          ORDER BY task_key FOR NO KEY UPDATE",
    )
    .bind(workflow.map(WorkflowId::as_str))
    .bind(tasks_of.map(RunId::as_str))
    .execute(&mut *conn)
    .await?;
    sqlx::query(
        "WITH ids AS (
           SELECT $1::text AS id UNION SELECT task_key FROM app.sbx_runs WHERE run_id = $2 AND response IS NULL),
         queued AS (
           SELECT w.workflow_uuid AS id FROM dbos.workflow_status w
            WHERE w.workflow_uuid IN (SELECT id FROM ids)
              AND (w.status IN ('ENQUEUED','DELAYED') OR (w.status = 'PENDING' AND NOT EXISTS (
                     SELECT 1 FROM app.sbx_executions e WHERE e.task_key = w.workflow_uuid)))),
         answered AS (
           UPDATE app.sbx_runs SET err_code = 'CMD_NONZERO', canceled = true, finished_at = clock_timestamp(),
                  response = $4 || jsonb_build_object('taskKey', task_key)
            WHERE task_key IN (SELECT id FROM queued) AND response IS NULL),
         w AS (
           UPDATE dbos.workflow_status SET status = 'CANCELLED', deduplication_id = NULL,
                  updated_at = app.ms(clock_timestamp()), completed_at = app.ms(clock_timestamp())
            WHERE workflow_uuid IN (SELECT id FROM ids) AND status IN ('PENDING','ENQUEUED','DELAYED')
           RETURNING workflow_uuid)
         SELECT pg_notify('cofferdam', 'x:' || workflow_uuid), pg_notify('cofferdam', 't:' || $3),
                pg_notify('cofferdam', 'r:' || $3), pg_notify('cofferdam', 'g:' || $3) FROM w",
    )
    .bind(workflow.map(WorkflowId::as_str))
    .bind(tasks_of.map(RunId::as_str))
    .bind(run.as_str())
    .bind(canceled_answer("canceled before it started")?)
    .execute(&mut *conn)
    .await?;
    dispatch_settle(conn, run).await
}

fn workflow_of(row: &PgRow) -> Result<OpsWorkflow> {
    Ok(OpsWorkflow {
        workflow_id: id("workflow_status.workflow_uuid", row.try_get("workflow_uuid")?)?,
        name: row.try_get::<Option<String>, _>("name")?.unwrap_or_default(),
        status: row.try_get::<Option<String>, _>("status")?.unwrap_or_default(),
        queue_name: row.try_get("queue_name")?,
        queue_partition_key: row.try_get("queue_partition_key")?,
        executor_id: row.try_get("executor_id")?,
        recovery_attempts: row.try_get::<Option<i64>, _>("recovery_attempts")?.unwrap_or(0),
        created_at: row.try_get("created_at")?,
        updated_at: row.try_get("updated_at")?,
        audit: None,
    })
}
