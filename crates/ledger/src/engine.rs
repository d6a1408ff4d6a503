//! The engine's rows: claiming queued workflows, taking over from dead executors.

use cofferdam_contracts::id::ExecutorId;
use sqlx::Row;

use crate::APP_VERSION;
use crate::error::Result;
use crate::executors::LeaderTerm;
use crate::families::Queues;

/// The engine's name of the parent workflow.
pub const RUN_WORKFLOW: &str = "run";
/// The engine's name of a task's workflow.
pub const TASK_WORKFLOW: &str = "task";
/// The engine's name of a gate's escalation.
pub const ESCALATION_WORKFLOW: &str = "escalation";
/// Parents and control.
pub const INTENT_QUEUE: &str = "intentQ";
/// Queue of tasks, one sandbox each.
pub const SBX_QUEUE: &str = "sbxQ";
/// Escalations and other small control work.
pub const CONTROL_QUEUE: &str = "controlQ";
/// Where the workflows of long-lived sandboxes that are up go on, beside all limits.
pub const LIVE_QUEUE: &str = "liveQ";

/// A workflow that this executor now owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowClaim {
    /// Key of the row in `dbos.workflow_status`; a task's workflow has its task key.
    pub workflow_id: String,
    /// The engine's name of the function, such as [`RUN_WORKFLOW`]; empty where the row has none.
    pub name: String,
    /// Its encoded argument.
    pub inputs: Option<String>,
}

/// A workflow to be queued. `parent` is recorded for readers; the engine does not follow it.
#[derive(Debug, Clone)]
pub(crate) struct Enqueue<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub queue: &'a str,
    pub partition: Option<&'a str>,
    pub priority: i32,
}

impl Queues<'_> {
    /// Takes as many queued workflows as the queue's limits leave to a worker that runs `running` of
    /// them already; at most 64 where there is no limit. With them, whether any is left in the queue, which the
    /// limits kept back.
    pub async fn claim(
        self,
        queue: &str,
        executor: &ExecutorId,
        running: i32,
    ) -> Result<(Vec<WorkflowClaim>, bool)> {
        let claim = "SELECT workflow_id, name, inputs FROM app.claim_and_look($1, $2, $3, $4)";
        let rows = sqlx::query(claim)
            .bind(queue)
            .bind(executor.as_str())
            .bind(APP_VERSION)
            .bind(running)
            .fetch_all(self.steady())
            .await?;
        let mut claimed = Vec::with_capacity(rows.len());
        let mut is_any_left = false;
        for row in &rows {
            let Some(workflow_id) = row.try_get("workflow_id")? else {
                is_any_left = true;
                continue;
            };
            let name = row.try_get::<Option<String>, _>("name")?.unwrap_or_default();
            claimed.push(WorkflowClaim { workflow_id, name, inputs: row.try_get("inputs")? });
        }
        Ok((claimed, is_any_left))
    }

    /// Releases workflows whose delay has passed, as the leader.
    pub async fn release_delayed(self, lead: &LeaderTerm) -> Result<u64> {
        let done = sqlx::query(
            "WITH moved AS (
               UPDATE dbos.workflow_status
                  SET status = 'ENQUEUED', delay_until_epoch_ms = NULL
                WHERE status = 'DELAYED' AND application_name = 'cofferdam'
                  AND delay_until_epoch_ms <= app.ms(clock_timestamp()) AND app.leads($1, $2)
               RETURNING queue_name)
             SELECT pg_notify('cofferdam', 'q:' || queue_name) FROM moved GROUP BY queue_name",
        )
        .bind(lead.executor.as_str())
        .bind(lead.term)
        .execute(self.steady())
        .await?;
        Ok(done.rows_affected())
    }

    pub(crate) async fn enqueue_on(
        self,
        conn: &mut sqlx::PgConnection,
        item: &Enqueue<'_>,
    ) -> Result<bool> {
        Ok(sqlx::query_scalar("SELECT app.enqueue($1, $2, 'null', $3, $4, $5, NULL, $6, NULL, 0)")
            .bind(item.id)
            .bind(item.name)
            .bind(item.queue)
            .bind(item.partition)
            .bind(item.priority)
            .bind(APP_VERSION)
            .fetch_one(conn)
            .await?)
    }
}

impl Queues<'_> {
    /// The workflows that this executor owns. Those that the engine took itself, from the queue of
    /// its own, are only among them until it starts them.
    pub async fn claimed(self, executor: &ExecutorId, own: &str) -> Result<Vec<String>> {
        Ok(sqlx::query_scalar(
            "SELECT workflow_uuid FROM dbos.workflow_status
              WHERE executor_id = $1 AND status = 'PENDING'
                AND (queue_name IS DISTINCT FROM $2 OR owner_xid IS NULL)",
        )
        .bind(executor.as_str())
        .bind(own)
        .fetch_all(self.steady())
        .await?)
    }

    /// Gives a claimed workflow back to its queue, if it is still this executor's. The beginning of a life stays this one's to
    /// claim: it was asked for it.
    pub async fn unclaim(self, workflow: &str, executor: &ExecutorId) -> Result<()> {
        sqlx::query(
            "UPDATE dbos.workflow_status w SET status = 'ENQUEUED', started_at_epoch_ms = NULL, owner_xid = NULL,
                    recovery_attempts = CASE WHEN EXISTS (
                      SELECT 1 FROM app.lives l WHERE l.life IN ('requested', 'preparing') AND l.run_id IN (
                             SELECT r.id FROM app.runs r WHERE r.workflow_id = w.workflow_uuid
                             UNION ALL SELECT s.run_id FROM app.sbx_runs s WHERE s.task_key = w.workflow_uuid))
                      THEN 0 ELSE w.recovery_attempts END
              WHERE workflow_uuid = $1 AND executor_id = $2 AND status = 'PENDING'",
        )
        .bind(workflow)
        .bind(executor.as_str())
        .execute(self.pool())
        .await?;
        Ok(())
    }
}
