//! `app.wipe_settlements`, and sessions as readers see them.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{SandboxId, TenantId};
use cofferdam_contracts::sandbox::{SessionState, WipeEvidence};
use cofferdam_contracts::session::{SessionView, Settlement, WipeLook, findings};
use serde_json::{Value, json};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::audit::{Audit, append};
use crate::error::{OpResult, Result, id, load};
use crate::families::Sessions;
use crate::sessions::{session_answered, state_of};

const VIEW: &str = "SELECT s.sandbox_id, s.run_id, s.task_key, s.execution_no, s.state, s.class, s.host_id, s.executor_id,
       s.attestation, app.ms(s.last_heartbeat_at) AS beat, s.ended_at IS NULL AND s.wipe_looks = 0 AND EXISTS (
         SELECT 1 FROM app.executors x WHERE x.id = s.executor_id AND x.state = 'live')
         AND coalesce(s.last_heartbeat_at, s.created_at) < clock_timestamp() - interval '10 seconds' AS stale,
       s.wipe_looks, app.ms(s.wipe_next_at) AS next_at, app.ms(s.created_at) AS created, app.ms(s.updated_at) AS updated,
       app.ms(s.ended_at) AS ended, w.evidence, d.terminal_state, d.actor, d.key_id, d.reason, d.evidence_look,
       d.evidence_digest, app.ms(d.settled_at) AS settled
  FROM app.remote_execution_sessions s
  LEFT JOIN app.secure_wipe_evidence w ON w.sandbox_id = s.sandbox_id AND w.look = s.wipe_looks AND w.wipe_status = 'failed'
  LEFT JOIN app.wipe_settlements d ON d.sandbox_id = s.sandbox_id
 WHERE s.tenant_id = $1";

impl Sessions<'_> {
    /// A tenant's sessions, newest first, of one state or all.
    pub async fn list(
        self,
        tenant: &TenantId,
        state: Option<SessionState>,
        limit: i64,
    ) -> Result<Vec<SessionView>> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "{VIEW} AND ($2::text IS NULL OR s.state = $2) ORDER BY s.created_at DESC, s.sandbox_id LIMIT $3"
        )))
        .bind(tenant.as_str())
        .bind(state.map(SessionState::as_str))
        .bind(limit)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(view_of).collect()
    }

    /// One session with every look at its wipe.
    pub async fn get(self, tenant: &TenantId, sandbox: &SandboxId) -> Result<Option<SessionView>> {
        let row = sqlx::query(sqlx::AssertSqlSafe(format!("{VIEW} AND s.sandbox_id = $2")))
            .bind(tenant.as_str())
            .bind(sandbox.as_str())
            .fetch_optional(self.pool())
            .await?;
        let Some(row) = row else { return Ok(None) };
        let mut view = view_of(&row)?;
        let looks = sqlx::query(
            "SELECT look, evidence FROM app.secure_wipe_evidence WHERE sandbox_id = $1 ORDER BY look LIMIT 1000",
        )
        .bind(sandbox.as_str())
        .fetch_all(self.pool())
        .await?;
        for row in &looks {
            view.looks.push(WipeLook {
                look: row.try_get("look")?,
                evidence: load("secure_wipe_evidence.evidence", row.try_get("evidence")?)?,
            });
        }
        Ok(Some(view))
    }

    /// Ends a held session by an operator's decision over its last look: decision, end and audit row
    /// commit together, and the run that waits for it is told.
    pub async fn settle(self, sandbox: &SandboxId, audit: &Audit<'_>) -> OpResult<Settlement> {
        let mut tx = self.pool().begin().await?;
        let state: String = sqlx::query_scalar(
            "SELECT state FROM app.remote_execution_sessions
              WHERE sandbox_id = $1 AND tenant_id = $2 FOR UPDATE",
        )
        .bind(sandbox.as_str())
        .bind(audit.tenant.as_str())
        .fetch_optional(&mut *tx)
        .await?
        .ok_or_else(|| Refusal::not_found("session"))?;
        let row = sqlx::query(
            "WITH d AS (
               INSERT INTO app.wipe_settlements (sandbox_id, run_id, tenant_id, terminal_state, evidence_look,
                 evidence_digest, actor, key_id, reason, origin)
               SELECT s.sandbox_id, s.run_id, s.tenant_id, w.terminal_state, w.look, app.evidence_digest(w.evidence),
                      $2, $3, $4, 'api-shim'
                 FROM app.remote_execution_sessions s
                 JOIN app.secure_wipe_evidence w ON w.sandbox_id = s.sandbox_id AND w.look = s.wipe_looks
                WHERE s.sandbox_id = $1 AND s.state = 'REMOTE_WIPE_VERIFYING' AND s.ended_at IS NULL
                  AND w.wipe_status = 'failed'
               RETURNING *),
             n AS (SELECT pg_notify('cofferdam', 'w:' || run_id) FROM d)
             SELECT d.*, app.ms(d.settled_at) AS settled, (SELECT count(*) FROM n) AS told FROM d",
        )
        .bind(sandbox.as_str())
        .bind(audit.actor)
        .bind(audit.key_id)
        .bind(audit.reason)
        .fetch_optional(&mut *tx)
        .await?
        .ok_or_else(|| not_held(&state))?;
        let settlement = settlement_of(&row)?;
        sqlx::query(
            "UPDATE app.remote_execution_sessions SET state = $2, ended_at = clock_timestamp(), wipe_next_at = NULL
              WHERE sandbox_id = $1",
        )
        .bind(sandbox.as_str())
        .bind(settlement.terminal_state.as_str())
        .execute(&mut *tx)
        .await?;
        append(&mut tx, audit).await?;
        session_answered(&mut tx, sandbox).await?;
        tx.commit().await?;
        Ok(settlement)
    }
}

fn not_held(state: &str) -> Refusal {
    let why =
        format!("only a session whose wipe could not be verified is settled; this one is {state}");
    Refusal::new(ErrorCode::StateConflict, why).with(json!({"state": state}))
}

fn settlement_of(row: &PgRow) -> Result<Settlement> {
    Ok(Settlement {
        sandbox_id: id("sessions.sandbox_id", row.try_get("sandbox_id")?)?,
        terminal_state: state_of(
            "wipe_settlements.terminal_state",
            row.try_get("terminal_state")?,
        )?,
        actor: row.try_get("actor")?,
        key_id: row.try_get("key_id")?,
        reason: row.try_get("reason")?,
        evidence_look: row.try_get("evidence_look")?,
        evidence_digest: id("wipe_settlements.evidence_digest", row.try_get("evidence_digest")?)?,
        settled_at: row.try_get("settled")?,
    })
}

fn view_of(row: &PgRow) -> Result<SessionView> {
    let state = state_of("sessions.state", row.try_get("state")?)?;
    let looks: i32 = row.try_get("wipe_looks")?;
    let settled: Option<i64> = row.try_get("settled")?;
    let failed: Option<Value> = row.try_get("evidence")?;
    let failed: Option<WipeEvidence> =
        failed.map(|value| load("secure_wipe_evidence.evidence", value)).transpose()?;
    Ok(SessionView {
        sandbox_id: id("sessions.sandbox_id", row.try_get("sandbox_id")?)?,
        run_id: id("sessions.run_id", row.try_get("run_id")?)?,
        task_key: id("sessions.task_key", row.try_get("task_key")?)?,
        execution_no: row.try_get("execution_no")?,
        held: state == SessionState::RemoteWipeVerifying && looks > 0,
        state,
        class: row.try_get("class")?,
        attestation: row
            .try_get::<Option<Value>, _>("attestation")?
            .map(|value| load("sessions.attestation", value))
            .transpose()?,
        last_heartbeat_at: row.try_get("beat")?,
        stale: row.try_get("stale")?,
        host_id: row.try_get("host_id")?,
        executor_id: row.try_get("executor_id")?,
        wipe_looks: looks,
        next_look_at: row.try_get("next_at")?,
        created_at: row.try_get("created")?,
        updated_at: row.try_get("updated")?,
        ended_at: row.try_get("ended")?,
        findings: failed.as_ref().map(findings).unwrap_or_default(),
        settlement: settled.map(|_| settlement_of(row)).transpose()?,
        looks: Vec::new(),
    })
}
