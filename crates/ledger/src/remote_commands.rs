//! Sessions that outlive their worker: `remote` of `app.remote_execution_sessions`.
//!
//! ```text
//! made -> elsewhere (before each command) -> its worker is gone -> taken over by the next one's execution
//!                                                               '-> nobody in time: an orphan (`sessions`)
//! ```

use cofferdam_contracts::id::{ExecutorId, SandboxId, TaskKey};
use serde_json::json as object;
use sqlx::Row;

use crate::error::{Result, id};
use crate::families::Sessions;
use crate::tasks::WorkerLocation;

/// Where a command goes on without its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteCommand<'a> {
    /// The provider's URL.
    pub provider: &'a str,
    /// The sandbox's name there.
    pub id: &'a str,
    /// The command's name in it.
    pub command: &'a str,
}

/// A session that was taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionTakeover {
    /// Session of the sandbox that the new worker goes on with.
    pub sandbox: SandboxId,
    /// The sandbox's name with its provider.
    pub id: String,
    /// The execution of the task that goes on with it.
    pub execution_no: i32,
}

impl Sessions<'_> {
    /// A command is about to start that goes on without this worker. What a worker that took the session
    /// over wrote is kept.
    pub async fn elsewhere(self, sandbox: &SandboxId, at: &RemoteCommand<'_>) -> Result<()> {
        let place = object!({"provider": at.provider, "id": at.id, "command": at.command});
        sqlx::query(
            "UPDATE app.remote_execution_sessions SET remote = coalesce(remote, '{}') || $2
              WHERE sandbox_id = $1 AND ended_at IS NULL",
        )
        .bind(sandbox.as_str())
        .bind(place)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// The session of a task whose sandbox with this provider outlived its worker: from now on it is this
    /// worker's, in an execution of its own. Whoever asks again, because the answer was lost, finds what they
    /// took; `place.sandbox` is what they are known by.
    pub async fn take_over(
        self,
        key: &TaskKey,
        place: &WorkerLocation<'_>,
        provider: &str,
    ) -> Result<Option<SessionTakeover>> {
        let mut tx = self.pool().begin().await?;
        // Whoever waited here sees what the other one wrote: the next statement has a snapshot of its own.
        sqlx::query("SELECT 1 FROM app.remote_execution_sessions WHERE task_key = $1 AND ended_at IS NULL FOR UPDATE")
            .bind(key.as_str())
            .execute(&mut *tx)
            .await?;
        let row = sqlx::query(
            "WITH f AS (
               SELECT s.sandbox_id, s.remote->>'id' AS id, s.remote->>'token' IS NOT DISTINCT FROM $3 AS is_done
                 FROM app.remote_execution_sessions s
                WHERE s.task_key = $1 AND s.remote IS NOT NULL AND s.ended_at IS NULL AND s.remote->>'provider' = $6
                  AND (s.remote->>'token' = $3 OR app.session_outlives(s))
                  AND EXISTS (SELECT 1 FROM app.executors e WHERE e.id = $2 AND e.state = 'live')
                FOR UPDATE),
             e AS (
               INSERT INTO app.sbx_executions (task_key, execution_no, worker)
               SELECT $1, 1 + (SELECT count(*)::int FROM app.sbx_executions x WHERE x.task_key = $1), $2
                 FROM f WHERE NOT is_done RETURNING execution_no),
             u AS (
               UPDATE app.remote_execution_sessions s SET executor_id = $2, host_id = $4, state_dir = $5,
                      remote = s.remote || jsonb_build_object('token', $3::text,
                        'attached', coalesce((s.remote->>'attached')::int, 0) + 1)
                 FROM f WHERE s.sandbox_id = f.sandbox_id AND NOT f.is_done)
             SELECT f.sandbox_id, f.id, coalesce((SELECT execution_no FROM e),
                    (SELECT max(execution_no) FROM app.sbx_executions x WHERE x.task_key = $1)) AS execution_no FROM f",
        )
        .bind(key.as_str())
        .bind(place.executor.as_str())
        .bind(place.sandbox.as_str())
        .bind(place.host_id)
        .bind(place.state_dir)
        .bind(provider)
        .fetch_optional(&mut *tx)
        .await?;
        tx.commit().await?;
        row.map(|row| {
            Ok(SessionTakeover {
                sandbox: id("sessions.sandbox_id", row.try_get("sandbox_id")?)?,
                id: row.try_get("id")?,
                execution_no: row.try_get("execution_no")?,
            })
        })
        .transpose()
    }

    /// Whether a session is this worker's, and the worker is alive: one that was declared dead ends no
    /// sandbox that another may go on with.
    pub async fn is_of(self, sandbox: &SandboxId, executor: &ExecutorId) -> Result<bool> {
        let found = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM app.remote_execution_sessions s JOIN app.executors e ON e.id = s.executor_id
                             WHERE s.sandbox_id = $1 AND s.executor_id = $2 AND e.state = 'live')",
        )
        .bind(sandbox.as_str())
        .bind(executor.as_str())
        .fetch_one(self.pool())
        .await?;
        Ok(found)
    }
}
