//! `app.remote_execution_sessions` and `app.secure_wipe_evidence`: a session ends in the very
//! transaction that writes its verified wipe, or an operator's settlement (`settlements`).
//!
//! ```text
//! lost or failed -> look -> verified: ended
//!                    |  ^-- after 1, 2, 4, .. s
//!                  failed: held (REMOTE_WIPE_VERIFYING) -> settled by an operator: ended
//! ```

use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::{RunId, SandboxId};
use cofferdam_contracts::sandbox::{SessionState, WipeEvidence, WipeStatus};
use cofferdam_contracts::session::{Attestation, WipeView, findings};
use serde_json::{Value, json as object};
use sqlx::Row;

use crate::dispatch_end::{canceled_answer, dispatch_settle};
use crate::error::{LedgerError, Result, id, json, load, load_all};
use crate::executors::LeaderTerm;
use crate::families::Sessions;
use crate::tasks::TaskEnd;

/// Looks at a wipe that fails follow each other after 1, 2, 4, .. seconds, and never later than this:
/// what goes away by itself does so in seconds, and an operator who mended something waits no longer.
const MAX_LOOK_PAUSE_S: i32 = 3_600;
/// The modes of runs whose sessions are not native, by the runtime that their attestation names: a Docker
/// engine, and a provider elsewhere.
const MODES: [(&str, &str); 2] = [("docker", "LOCAL_DOCKER"), ("remote", "REMOTE_SANDBOX")];

/// Where a live session is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionMove {
    /// Id of the sandbox, which is the key of its session.
    pub sandbox: SandboxId,
    /// State to record; a session that ended, or has wipe evidence, keeps its own.
    pub state: SessionState,
    /// What it really is, where that is known by now.
    pub attestation: Option<Attestation>,
}

pub(crate) fn attestation_json(attestation: Option<&Attestation>) -> Result<Option<Value>> {
    attestation.map(|facts| json("sessions.attestation", facts)).transpose()
}

/// A session of this host that somebody has to look at: its worker is gone, or its wipe failed before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueSession {
    /// Sandbox whose wipe has to be verified.
    pub sandbox: SandboxId,
    /// Where its worker kept its files.
    pub state_dir: String,
    /// The last look, and the state that the session will end in; `None` before the first.
    pub last: Option<(WipeEvidence, SessionState)>,
}

/// A session whose host has nobody to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreachableSession {
    /// Sandbox on a host without a living worker.
    pub sandbox: SandboxId,
    /// Name of the machine that the sandbox was on.
    pub host_id: String,
}

impl Sessions<'_> {
    /// Moves live sessions on, all in one statement. One that has ended, or whose wipe is on record
    /// already, stays as it is. A run that has a session of another mode's class has that mode.
    pub async fn advance(self, moves: &[SessionMove]) -> Result<()> {
        let mut ids = Vec::with_capacity(moves.len());
        let mut states = Vec::with_capacity(moves.len());
        let mut facts = Vec::with_capacity(moves.len());
        for one in moves {
            ids.push(one.sandbox.as_str());
            states.push(one.state.as_str());
            facts.push(attestation_json(one.attestation.as_ref())?);
        }
        sqlx::query(
            "UPDATE app.remote_execution_sessions s SET state = x.state, attestation = coalesce(x.facts, s.attestation),
                    class = coalesce(x.facts->>'class', s.class), runtime = coalesce(x.facts->>'runtime', s.runtime),
                    runtime_version = coalesce(x.facts->>'runtimeVersion', s.runtime_version)
               FROM unnest($1::text[], $2::text[], $3::jsonb[]) AS x(id, state, facts)
              WHERE s.sandbox_id = x.id AND s.ended_at IS NULL AND NOT EXISTS (
                    SELECT 1 FROM app.secure_wipe_evidence w WHERE w.sandbox_id = s.sandbox_id)",
        )
        .bind(&ids)
        .bind(&states)
        .bind(&facts)
        .execute(self.pool())
        .await?;
        for (runtime, mode) in MODES {
            let held = |one: &&SessionMove| {
                one.attestation.as_ref().is_some_and(|facts| facts.runtime == runtime)
            };
            let held: Vec<&str> =
                moves.iter().filter(held).map(|one| one.sandbox.as_str()).collect();
            self.runs_of_mode(mode, &held, false).await?;
        }
        Ok(())
    }

    /// The same for a session that is about to end: by what its sandbox was. Where none was made, by what the worker would have
    /// made, unless another session of the run had one.
    pub(crate) async fn run_of_mode(self, end: &TaskEnd<'_>) -> Result<()> {
        let Some(evidence) = end.evidence else { return Ok(()) };
        let id = evidence.sandbox_id.as_str();
        let made = end.attestation.map(|facts| facts.runtime.as_str());
        let mode = |runtime: &str| MODES.iter().find(|(known, _)| *known == runtime);
        match (made, end.runtime.and_then(mode)) {
            (Some(runtime), _) => match mode(runtime) {
                Some((_, mode)) => self.runs_of_mode(mode, &[id], false).await,
                None if end.task.attempt > 1 => self.run_is_native(&end.task.run).await,
                None => Ok(()),
            },
            (None, Some((_, mode))) => self.runs_of_mode(mode, &[id], true).await,
            (None, None) => Ok(()),
        }
    }

    /// A native sandbox was made where another worker had made none before.
    async fn run_is_native(self, run: &RunId) -> Result<()> {
        sqlx::query(
            "UPDATE app.runs SET execution_mode = 'LOCAL_NATIVE'
              WHERE id = $1 AND execution_mode <> 'LOCAL_NATIVE' AND NOT EXISTS (
                    SELECT 1 FROM app.remote_execution_sessions s
                     WHERE s.run_id = $1 AND s.attestation->>'runtime' IN ('docker', 'remote'))",
        )
        .bind(run.as_str())
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// What a session's task waits for on its worker, in words; `None`: it waits no more, and has room from now on.
    pub async fn waits(self, sandbox: &SandboxId, what: Option<&str>) -> Result<()> {
        sqlx::query(
            "UPDATE app.remote_execution_sessions
                SET waits_for = $2, admitted_at = CASE WHEN $2 IS NULL THEN clock_timestamp() ELSE admitted_at END
              WHERE sandbox_id = $1 AND ended_at IS NULL",
        )
        .bind(sandbox.as_str())
        .bind(what)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// The runs of these sessions, which are not native; `is_first`: where no sandbox of theirs was made yet. A statement of its own: it holds no session while
    /// it waits for a run.
    async fn runs_of_mode(self, mode: &str, sandboxes: &[&str], is_first: bool) -> Result<()> {
        if sandboxes.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "UPDATE app.runs SET execution_mode = $2
              WHERE execution_mode = 'LOCAL_NATIVE' AND id IN (
                    SELECT run_id FROM app.remote_execution_sessions WHERE sandbox_id = ANY($1))
                AND NOT ($3 AND EXISTS (SELECT 1 FROM app.remote_execution_sessions s
                                         WHERE s.run_id = app.runs.id AND s.attestation IS NOT NULL))",
        )
        .bind(sandboxes)
        .bind(mode)
        .bind(is_first)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Sessions of this host that have not ended and are to be looked at now: those without a look
    /// whose worker is no longer alive or whose task's workflow failed a while ago, and those whose next look is due.
    pub async fn due(self, host_id: &str) -> Result<Vec<DueSession>> {
        let rows = sqlx::query(
            "SELECT s.sandbox_id, s.state_dir, w.evidence, w.terminal_state FROM app.remote_execution_sessions s
               LEFT JOIN app.executors e ON e.id = s.executor_id
               LEFT JOIN app.secure_wipe_evidence w ON w.sandbox_id = s.sandbox_id AND w.look = s.wipe_looks
              WHERE s.host_id = $1
                AND NOT app.session_is_over(s.state)
                AND CASE WHEN s.wipe_looks = 0 THEN e.state IS DISTINCT FROM 'live' OR EXISTS (
                              -- Answered by the leader: the worker whose step failed goes on with nothing.
                              SELECT 1 FROM app.sbx_runs t LEFT JOIN dbos.workflow_status k ON k.workflow_uuid = t.task_key
                               WHERE t.task_key = s.task_key AND t.response IS NOT NULL
                                 AND (k.status IS NULL OR k.status IN ('ERROR','MAX_RECOVERY_ATTEMPTS_EXCEEDED')))
                         ELSE s.wipe_next_at <= clock_timestamp() END
                AND (s.remote IS NULL OR NOT app.session_outlives(s))
              LIMIT 1000",
        )
        .bind(host_id)
        .fetch_all(self.steady())
        .await?;
        rows.iter()
            .map(|row| {
                let evidence: Option<Value> = row.try_get("evidence")?;
                let terminal: Option<String> = row.try_get("terminal_state")?;
                let last = match (evidence, terminal) {
                    (Some(evidence), Some(terminal)) => Some((
                        load("secure_wipe_evidence.evidence", evidence)?,
                        state_of("secure_wipe_evidence.terminal_state", &terminal)?,
                    )),
                    _ => None,
                };
                Ok(DueSession {
                    sandbox: id("sessions.sandbox_id", row.try_get("sandbox_id")?)?,
                    state_dir: row.try_get("state_dir")?,
                    last,
                })
            })
            .collect()
    }

    /// Sessions that nobody looked at, whose worker has been gone for so long, on hosts where no
    /// worker is alive. Only for the leader.
    pub async fn unreachable(
        self,
        lead: &LeaderTerm,
        gone_for_ms: i64,
    ) -> Result<Vec<UnreachableSession>> {
        let rows = sqlx::query(
            "SELECT s.sandbox_id, s.host_id FROM app.remote_execution_sessions s
               LEFT JOIN app.executors e ON e.id = s.executor_id
              WHERE NOT app.session_is_over(s.state)
                AND s.wipe_looks = 0 AND e.state IS DISTINCT FROM 'live'
                AND coalesce(e.ended_at, s.updated_at) < clock_timestamp() - make_interval(secs => $1::float8 / 1000)
                AND NOT EXISTS (SELECT 1 FROM app.executors l WHERE l.host_id = s.host_id AND l.state = 'live')
                AND (s.remote IS NULL OR NOT app.session_outlives(s))
                AND app.leads($2, $3)
              LIMIT 1000",
        )
        .bind(gone_for_ms)
        .bind(lead.executor.as_str())
        .bind(lead.term)
        .fetch_all(self.steady())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(UnreachableSession {
                    sandbox: id("sessions.sandbox_id", row.try_get("sandbox_id")?)?,
                    host_id: row.try_get("host_id")?,
                })
            })
            .collect()
    }

    /// Whether a run's sandbox was on a host that is lost: the worker that held it is known to be dead, no other one is alive
    /// there, and nobody has seen that nothing is left of it.
    pub async fn is_on_a_lost_host(self, run: &RunId) -> Result<bool> {
        let query = "SELECT EXISTS (
            SELECT 1 FROM app.remote_execution_sessions s JOIN app.executors e ON e.id = s.executor_id AND e.state <> 'live'
             WHERE s.run_id = $1 AND NOT app.session_is_over(s.state) AND s.remote IS NULL
               AND NOT EXISTS (SELECT 1 FROM app.executors l WHERE l.host_id = s.host_id AND l.state = 'live'))";
        Ok(sqlx::query_scalar(query).bind(run.as_str()).fetch_one(self.pool()).await?)
    }

    /// The ids of sessions that have not ended, for a host's own reconciliation. One elsewhere may be
    /// another host's by now, or nobody's yet.
    pub async fn open(self, host_id: &str) -> Result<Vec<SandboxId>> {
        let rows: Vec<String> = sqlx::query_scalar(
            "SELECT s.sandbox_id FROM app.remote_execution_sessions s JOIN app.executors e ON e.id = s.executor_id
              WHERE (s.host_id = $1 OR s.remote IS NOT NULL) AND s.ended_at IS NULL
                AND (e.state = 'live' OR (s.remote IS NOT NULL AND app.session_outlives(s)))",
        )
        .bind(host_id)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(|text| id("sessions.sandbox_id", text)).collect()
    }

    /// Records a look at a session that nobody executes any more. Verified: it ends in `terminal`.
    /// Failed: it is held, and looked at again. What ended is told to its run, which waits for it.
    pub async fn look(self, evidence: &WipeEvidence, terminal: SessionState) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        session_close(&mut tx, evidence, terminal, None, Origin::EngineDbos).await?;
        session_answered(&mut tx, &evidence.sandbox_id).await?;
        tx.commit().await?;
        Ok(())
    }

    /// The same for a session whose host has nobody to look; only the leader says so.
    pub async fn unreached(self, lead: &LeaderTerm, evidence: &WipeEvidence) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        let leads: bool = sqlx::query_scalar("SELECT app.leads($1, $2)")
            .bind(lead.executor.as_str())
            .bind(lead.term)
            .fetch_one(&mut *tx)
            .await?;
        if leads {
            let terminal = SessionState::Orphaned;
            session_close(&mut tx, evidence, terminal, None, Origin::EngineDbos).await?;
            session_answered(&mut tx, &evidence.sandbox_id).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// A run's wipes, oldest first.
    pub async fn wipes(self, run: &RunId) -> Result<Vec<WipeView>> {
        let rows = sqlx::query(
            "SELECT s.sandbox_id, s.task_key, s.state, w.terminal_state, w.wipe_status, w.reason, w.method, w.evidence,
                    app.ms(w.wipe_timestamp) AS at, s.wipe_looks,
                    CASE WHEN d.sandbox_id IS NOT NULL THEN jsonb_build_object('actor', d.actor, 'reason', d.reason,
                      'evidenceDigest', d.evidence_digest, 'settledAt', app.ms(d.settled_at)) END AS settlement
               FROM app.remote_execution_sessions s
               LEFT JOIN app.secure_wipe_evidence w ON w.sandbox_id = s.sandbox_id AND w.look = s.wipe_looks
               LEFT JOIN app.wipe_settlements d ON d.sandbox_id = s.sandbox_id
              WHERE s.run_id = $1 ORDER BY s.created_at, s.sandbox_id LIMIT 20000",
        )
        .bind(run.as_str())
        .fetch_all(self.pool())
        .await?;
        load_all("secure_wipe_evidence", &rows, |row| {
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
                "looks": row.try_get::<i32, _>("wipe_looks")?,
                "settlement": row.try_get::<Option<Value>, _>("settlement")?,
            }))
        })
    }
}

/// One look and the session in the caller's transaction. Verified: the session ends in `terminal`.
/// Failed: it is held, which an audit row and a notification say at the first look.
pub(crate) async fn session_close(
    conn: &mut sqlx::PgConnection,
    evidence: &WipeEvidence,
    terminal: SessionState,
    attestation: Option<&Attestation>,
    origin: Origin,
) -> Result<()> {
    let is_verified = evidence.status == WipeStatus::Verified;
    let state = if is_verified { terminal } else { SessionState::RemoteWipeVerifying };
    let look: Option<i32> = sqlx::query_scalar(
        "WITH s AS (
           UPDATE app.remote_execution_sessions
              SET state = $2, ended_at = CASE WHEN $8 THEN clock_timestamp() END, wipe_looks = wipe_looks + 1,
                  attestation = coalesce($12, attestation), class = coalesce($12->>'class', class),
                  runtime = coalesce($12->>'runtime', runtime),
                  runtime_version = coalesce($12->>'runtimeVersion', runtime_version),
                  wipe_next_at = CASE WHEN NOT $8 THEN
                    clock_timestamp() + make_interval(secs => least(power(2, wipe_looks), $11)) END
            WHERE sandbox_id = $1 AND ended_at IS NULL RETURNING sandbox_id, run_id, task_key, wipe_looks)
         INSERT INTO app.secure_wipe_evidence
           (sandbox_id, run_id, task_key, look, terminal_state, wipe_timestamp, wipe_status, reason, method, evidence, origin)
         SELECT sandbox_id, run_id, task_key, wipe_looks, $3, to_timestamp($4::float8 / 1000), $5, $6, $7, $9, $10 FROM s
         RETURNING look",
    )
    .bind(evidence.sandbox_id.as_str())
    .bind(state.as_str())
    .bind(terminal.as_str())
    .bind(evidence.wiped_at_ms)
    .bind(evidence.status.as_str())
    .bind(&evidence.reason)
    .bind(evidence.method.as_str())
    .bind(is_verified)
    .bind(json("secure_wipe_evidence.evidence", evidence)?)
    .bind(origin.as_str())
    .bind(MAX_LOOK_PAUSE_S)
    .bind(attestation_json(attestation)?)
    .fetch_optional(&mut *conn)
    .await?;
    match (look, is_verified) {
        (Some(1), false) => session_alert(conn, evidence, "wipe.held").await,
        (Some(2..), true) => session_alert(conn, evidence, "wipe.verified").await,
        _ => Ok(()),
    }
}

/// Says on record, and to whoever listens, that a session is held or no longer is.
async fn session_alert(
    conn: &mut sqlx::PgConnection,
    evidence: &WipeEvidence,
    op: &str,
) -> Result<()> {
    let found = findings(evidence).join("; ");
    let reason = match evidence.status {
        WipeStatus::Failed => format!("the wipe could not be verified: {found}"),
        WipeStatus::Verified => "a later look verified the wipe".to_owned(),
    };
    sqlx::query(
        "WITH s AS (SELECT run_id, tenant_id, executor_id FROM app.remote_execution_sessions WHERE sandbox_id = $1),
         a AS (INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason, origin)
               SELECT tenant_id, 'worker', executor_id, $2, $1, $3, 'engine-dbos' FROM s)
         SELECT pg_notify('cofferdam', 'w:' || run_id) FROM s",
    )
    .bind(evidence.sandbox_id.as_str())
    .bind(op)
    .bind(reason)
    .execute(conn)
    .await?;
    Ok(())
}

/// What follows a session that nobody executes any more: a canceled task whose worker died is queued
/// for nobody, so its answer is given here; and the run is told, since it waits for its sessions.
pub(crate) async fn session_answered(
    conn: &mut sqlx::PgConnection,
    sandbox: &SandboxId,
) -> Result<()> {
    // Another worker may be about to begin the same attempt: one of both comes first.
    sqlx::query(
        "SELECT 1 FROM app.sbx_runs s JOIN app.remote_execution_sessions x USING (task_key)
          WHERE x.sandbox_id = $1 AND s.response IS NULL FOR NO KEY UPDATE OF s",
    )
    .bind(sandbox.as_str())
    .execute(&mut *conn)
    .await?;
    let told: Vec<(String, bool)> = sqlx::query_as(
        "WITH r AS (SELECT run_id, task_key, ended_at FROM app.remote_execution_sessions WHERE sandbox_id = $1),
         answered AS (
           UPDATE app.sbx_runs s SET err_code = 'CMD_NONZERO', canceled = true, finished_at = clock_timestamp(),
                  response = $2 || jsonb_build_object('taskKey', s.task_key)
             FROM r, dbos.workflow_status w
            WHERE s.task_key = r.task_key AND s.response IS NULL
              AND w.workflow_uuid = s.task_key AND w.status = 'CANCELLED' AND NOT EXISTS (
                  SELECT 1 FROM app.remote_execution_sessions x
                   WHERE x.task_key = s.task_key AND x.sandbox_id <> $1 AND x.ended_at IS NULL)
           RETURNING s.run_id)
         SELECT run_id, run_id IN (SELECT run_id FROM answered)
           FROM (SELECT run_id FROM answered UNION SELECT run_id FROM r WHERE ended_at IS NOT NULL) x
          CROSS JOIN LATERAL pg_notify('cofferdam', 't:' || run_id)",
    )
    .bind(sandbox.as_str())
    .bind(canceled_answer("canceled, and its worker was lost")?)
    .fetch_all(&mut *conn)
    .await?;
    for (run, is_answered) in told {
        if is_answered {
            dispatch_settle(conn, &id("sbx_runs.run_id", &run)?).await?;
        }
    }
    Ok(())
}

/// Reads a state back.
pub(crate) fn state_of(what: &'static str, text: &str) -> Result<SessionState> {
    SessionState::parse(text).ok_or_else(|| LedgerError::Row { what, why: text.to_owned() })
}
