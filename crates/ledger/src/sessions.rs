//! `app.remote_execution_sessions` and `app.secure_wipe_evidence`: a session ends in the very
//! transaction that writes its verified wipe.

use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::{RunId, SandboxId};
use cofferdam_contracts::sandbox::{SessionState, WipeEvidence, WipeStatus};
use serde_json::{Value, json as object};
use sqlx::Row;

use crate::Ledger;
use crate::error::{Result, id, json};

/// A session whose worker is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostSession {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Where its worker kept its files.
    pub state_dir: String,
}

impl Ledger {
    /// Moves live sessions on, all in one statement. One that has ended, or whose wipe is on record
    /// already, stays as it is.
    pub async fn sessions_advance(&self, states: &[(SandboxId, SessionState)]) -> Result<()> {
        let (ids, states): (Vec<&str>, Vec<&str>) =
            states.iter().map(|(id, state)| (id.as_str(), state.as_str())).unzip();
        sqlx::query(
            "UPDATE app.remote_execution_sessions s SET state = x.state
               FROM unnest($1::text[], $2::text[]) AS x(id, state)
              WHERE s.sandbox_id = x.id AND s.ended_at IS NULL AND NOT EXISTS (
                    SELECT 1 FROM app.secure_wipe_evidence w WHERE w.sandbox_id = s.sandbox_id)",
        )
        .bind(&ids)
        .bind(&states)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Sessions of this host that have not ended and whose worker is no longer alive.
    pub async fn sessions_lost(&self, host_id: &str) -> Result<Vec<LostSession>> {
        let rows = sqlx::query(
            "SELECT s.sandbox_id, s.state_dir FROM app.remote_execution_sessions s
               LEFT JOIN app.executors e ON e.id = s.executor_id
              WHERE s.host_id = $1 AND e.state IS DISTINCT FROM 'live'
                AND s.state IN ('PROVISIONING','BUILDING','EXECUTING','COLLECTING','REMOTE_WIPE_VERIFYING')
                AND NOT EXISTS (SELECT 1 FROM app.secure_wipe_evidence w WHERE w.sandbox_id = s.sandbox_id)
              LIMIT 1000",
        )
        .bind(host_id)
        .fetch_all(self.steady())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(LostSession {
                    sandbox: id("sessions.sandbox_id", row.try_get("sandbox_id")?)?,
                    state_dir: row.try_get("state_dir")?,
                })
            })
            .collect()
    }

    /// The ids of sessions that have not ended, for a host's own reconciliation.
    pub async fn sessions_open(&self, host_id: &str) -> Result<Vec<SandboxId>> {
        let rows: Vec<String> = sqlx::query_scalar(
            "SELECT s.sandbox_id FROM app.remote_execution_sessions s JOIN app.executors e ON e.id = s.executor_id
              WHERE s.host_id = $1 AND s.ended_at IS NULL AND e.state = 'live'",
        )
        .bind(host_id)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(|text| id("sessions.sandbox_id", text)).collect()
    }

    /// Ends an orphan's session with its evidence. An unverified wipe holds it where it is.
    pub async fn session_orphaned(&self, evidence: &WipeEvidence) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        let state = match evidence.status {
            WipeStatus::Verified => SessionState::Orphaned,
            WipeStatus::Failed => SessionState::RemoteWipeVerifying,
        };
        session_close(&mut tx, evidence, state, Origin::EngineDbos).await?;
        // A canceled task whose worker died is queued for nobody: its answer is given here.
        sqlx::query(
            "WITH answered AS (
               UPDATE app.sbx_runs s SET err_code = 'CMD_NONZERO', canceled = true, finished_at = clock_timestamp(),
                      response = app.canceled_response(s.task_key, 'canceled, and its worker was lost')
                 FROM app.remote_execution_sessions r, dbos.workflow_status w
                WHERE r.sandbox_id = $1 AND s.task_key = r.task_key AND s.response IS NULL
                  AND w.workflow_uuid = s.task_key AND w.status = 'CANCELLED' RETURNING s.run_id)
             SELECT pg_notify('cofferdam', 't:' || run_id) FROM answered",
        )
        .bind(evidence.sandbox_id.as_str())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// A run's wipes, oldest first.
    pub async fn wipe_list(&self, run: &RunId) -> Result<Vec<Value>> {
        let rows = sqlx::query(
            "SELECT s.sandbox_id, s.task_key, s.state, w.terminal_state, w.wipe_status, w.reason, w.method, w.evidence,
                    app.ms(w.wipe_timestamp) AS at
               FROM app.remote_execution_sessions s LEFT JOIN app.secure_wipe_evidence w USING (sandbox_id)
              WHERE s.run_id = $1 ORDER BY s.created_at, s.sandbox_id LIMIT 20000",
        )
        .bind(run.as_str())
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(object!({
                    "sandboxId": row.try_get::<String, _>("sandbox_id")?,
                    "taskKey": row.try_get::<String, _>("task_key")?,
                    "state": row.try_get::<String, _>("state")?,
                    "terminalState": row.try_get::<Option<String>, _>("terminal_state")?,
                    "status": row.try_get::<Option<String>, _>("wipe_status")?,
                    "reason": row.try_get::<Option<String>, _>("reason")?,
                    "method": row.try_get::<Option<String>, _>("method")?,
                    "at": row.try_get::<Option<i64>, _>("at")?,
                    "evidence": row.try_get::<Option<Value>, _>("evidence")?,
                }))
            })
            .collect()
    }
}

/// Evidence and session in the caller's transaction.
pub(crate) async fn session_close(
    conn: &mut sqlx::PgConnection,
    evidence: &WipeEvidence,
    state: SessionState,
    origin: Origin,
) -> Result<()> {
    let terminal = match state {
        SessionState::RemoteWipeVerifying => SessionState::Failed,
        other => other,
    };
    let ended = !matches!(state, SessionState::RemoteWipeVerifying);
    sqlx::query(
        "WITH s AS (
           UPDATE app.remote_execution_sessions
              SET state = $2, ended_at = CASE WHEN $8 THEN clock_timestamp() END
            WHERE sandbox_id = $1 AND ended_at IS NULL RETURNING sandbox_id, run_id, task_key)
         INSERT INTO app.secure_wipe_evidence
           (sandbox_id, run_id, task_key, terminal_state, wipe_timestamp, wipe_status, reason, method, evidence, origin)
         SELECT sandbox_id, run_id, task_key, $3, to_timestamp($4::float8 / 1000), $5, $6, $7, $9, $10 FROM s
         ON CONFLICT (sandbox_id) DO NOTHING",
    )
    .bind(evidence.sandbox_id.as_str())
    .bind(state.as_str())
    .bind(terminal.as_str())
    .bind(evidence.wiped_at_ms)
    .bind(match evidence.status {
        WipeStatus::Verified => "verified",
        WipeStatus::Failed => "failed",
    })
    .bind(&evidence.reason)
    .bind(&evidence.method)
    .bind(ended)
    .bind(json("secure_wipe_evidence.evidence", evidence)?)
    .bind(origin.as_str())
    .execute(conn)
    .await?;
    Ok(())
}
