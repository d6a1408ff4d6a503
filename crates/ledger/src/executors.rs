//! Workers: heartbeats, the leader, and takeover from the dead.

use cofferdam_contracts::id::{ExecutorId, SandboxId};

use crate::error::{Result, id};
use crate::{APP_VERSION, Ledger};

/// The advisory lock that its holder leads with.
const LEADER_LOCK: i64 = 0x00c0_ffe2_1ead;

/// A worker as it announces itself.
#[derive(Debug, Clone)]
pub struct NewExecutor<'a> {
    /// Unique for every start.
    pub id: &'a ExecutorId,
    /// The machine.
    pub host_id: &'a str,
    /// The process.
    pub pid: i32,
}

impl Ledger {
    /// Announces a worker.
    pub async fn executor_join(&self, new: &NewExecutor<'_>) -> Result<()> {
        sqlx::query(
            "INSERT INTO app.executors (id, host_id, pid, app_version) VALUES ($1, $2, $3, $4)",
        )
        .bind(new.id.as_str())
        .bind(new.host_id)
        .bind(new.pid)
        .bind(APP_VERSION)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// One heartbeat, of the worker and of those of its sandboxes that it sees alive, in one statement.
    /// `false`: this executor was declared dead, so its work is somebody else's now.
    pub async fn executor_beat(&self, executor: &ExecutorId, alive: &[SandboxId]) -> Result<bool> {
        let alive: Vec<&str> = alive.iter().map(SandboxId::as_str).collect();
        // A session that is being written at this moment needs no beat, and must not delay the worker's.
        let beaten: i64 = sqlx::query_scalar(
            "WITH e AS (
               UPDATE app.executors SET heartbeat_at = clock_timestamp() WHERE id = $1 AND state = 'live' RETURNING id),
             s AS (
               UPDATE app.remote_execution_sessions SET last_heartbeat_at = clock_timestamp()
                WHERE sandbox_id IN (
                      SELECT x.sandbox_id FROM app.remote_execution_sessions x, e
                       WHERE x.sandbox_id = ANY($2) AND x.executor_id = e.id AND x.ended_at IS NULL
                         FOR UPDATE OF x SKIP LOCKED))
             SELECT count(*) FROM e",
        )
        .bind(executor.as_str())
        .bind(&alive)
        .fetch_one(self.steady())
        .await?;
        Ok(beaten == 1)
    }

    /// A worker leaves in good order: what it still held goes back to its queues.
    pub async fn executor_leave(&self, executor: &ExecutorId) -> Result<u64> {
        self.executor_end(executor, "left").await
    }

    /// Executors whose heartbeat is older than `dead_after_ms`, the asking one excepted.
    pub async fn executors_silent(
        &self,
        me: &ExecutorId,
        dead_after_ms: i64,
    ) -> Result<Vec<ExecutorId>> {
        let rows: Vec<String> = sqlx::query_scalar(
            "SELECT id FROM app.executors
              WHERE state = 'live' AND id <> $1
                AND heartbeat_at < clock_timestamp() - make_interval(secs => $2::float8 / 1000)",
        )
        .bind(me.as_str())
        .bind(dead_after_ms)
        .fetch_all(self.steady())
        .await?;
        rows.iter().map(|text| id("executors.id", text)).collect()
    }

    /// Declares an executor dead and re-enqueues its workflows, in one transaction: an executor
    /// that comes back finds itself dead at its next heartbeat and stops.
    pub async fn executor_take_over(&self, dead: &ExecutorId) -> Result<u64> {
        self.executor_end(dead, "dead").await
    }

    async fn executor_end(&self, executor: &ExecutorId, state: &str) -> Result<u64> {
        let mut tx = self.pool().begin().await?;
        let ended = sqlx::query(
            "UPDATE app.executors SET state = $2, ended_at = clock_timestamp() WHERE id = $1 AND state = 'live'",
        )
        .bind(executor.as_str())
        .bind(state)
        .execute(&mut *tx)
        .await?;
        if ended.rows_affected() == 0 {
            return Ok(0);
        }
        let queues: Vec<String> = sqlx::query_scalar(
            "UPDATE dbos.workflow_status
                SET status = 'ENQUEUED', started_at_epoch_ms = NULL, owner_xid = NULL,
                    updated_at = app.ms(clock_timestamp())
              WHERE status = 'PENDING' AND executor_id = $1 AND queue_name IS NOT NULL
             RETURNING queue_name",
        )
        .bind(executor.as_str())
        .fetch_all(&mut *tx)
        .await?;
        sqlx::query(
            "SELECT pg_notify('cofferdam', 'q:' || q) FROM unnest($1::text[]) q GROUP BY q",
        )
        .bind(&queues)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(u64::try_from(queues.len()).unwrap_or(u64::MAX))
    }

    /// Whether this process leads, or does from now on; never waits. The lock belongs to the one
    /// steady connection and falls with it, so that a killed leader loses it at once.
    pub async fn leads(&self) -> Result<bool> {
        Ok(sqlx::query_scalar(
            "SELECT CASE WHEN EXISTS (
                      SELECT 1 FROM pg_locks
                       WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objsubid = 1
                         AND (classid::bigint << 32) | objid::bigint = $1)
                    THEN true ELSE pg_try_advisory_lock($1) END",
        )
        .bind(LEADER_LOCK)
        .fetch_one(self.steady())
        .await?)
    }

    /// Lets another process lead.
    pub async fn resign(&self) -> Result<()> {
        sqlx::query("SELECT pg_advisory_unlock_all()").execute(self.steady()).await?;
        Ok(())
    }

    /// Whether any worker is alive, for `/healthz`.
    pub async fn executors_live(&self) -> Result<i64> {
        Ok(sqlx::query_scalar("SELECT count(*) FROM app.executors WHERE state = 'live'")
            .fetch_one(self.pool())
            .await?)
    }
}
