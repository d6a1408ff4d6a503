//! `app.sbx_runs` and `app.sbx_executions`: one effect, one key; every physical start on record.

use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::{ExecutorId, RunId, SandboxId, StepId, TaskKey, TenantId};
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::sandbox::{
    EffectivePolicy, ErrCode, SandboxRequest, SandboxResult, SessionState, WipeEvidence,
};
use cofferdam_contracts::session::Attestation;
use serde_json::Value;
use sqlx::Row;

use crate::artifacts::{NewArtifact, artifacts_insert};
use crate::engine::{SBX_QUEUE, TASK_WORKFLOW};
use crate::error::{LedgerError, Result, id, json, load};
use crate::grants::{answers_take, asks_lock};
use crate::policies::{Granted, NewSnapshot, snapshots_json};
use crate::{APP_VERSION, Ledger};

/// A task attempt to be queued.
#[derive(Debug, Clone)]
pub struct NewTask {
    /// Its key, and its workflow's id.
    pub key: TaskKey,
    /// Its step.
    pub step_id: StepId,
    /// From 1.
    pub attempt: u32,
    /// Its name.
    pub name: String,
    /// What it does.
    pub work: Work,
}

/// How the tasks of a round are queued.
#[derive(Debug, Clone)]
pub struct Round<'a> {
    /// The run.
    pub run: &'a RunId,
    /// Its workflow.
    pub parent: &'a str,
    /// Partition of `sbxQ`.
    pub partition: &'a str,
    /// Lower first.
    pub priority: i32,
    /// The tasks.
    pub tasks: &'a [NewTask],
    /// The run's egress policies, where these may be its first tasks: they commit together.
    pub snapshots: &'a [NewSnapshot],
}

/// An attempt that a worker has to execute.
#[derive(Debug, Clone)]
pub struct TaskContext {
    /// Its key.
    pub key: TaskKey,
    /// Its run.
    pub run: RunId,
    /// Whose.
    pub tenant: TenantId,
    /// Its step.
    pub step_id: StepId,
    /// From 1.
    pub attempt: u32,
    /// What it does.
    pub work: Work,
    /// Whether the host's own admin asked for it: then any host directory may be given to it.
    pub by_host_admin: bool,
    /// Why the tenant may store nothing more, where that is so.
    pub over_quota: Option<String>,
    /// Physical start, from 1.
    pub execution_no: i32,
    /// What its run's sandboxes may reach.
    pub egress: Vec<Granted>,
    /// Whether it ended already; then nothing is executed.
    pub finished: Option<ErrCode>,
}

/// How one attempt ended, as its parent sees it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TaskOutcome {
    /// Its key.
    pub key: TaskKey,
    /// How it ended.
    pub err_code: ErrCode,
    /// Its exit status.
    pub exit: i32,
    /// Why, in words.
    pub cause: Option<String>,
    /// Whether no live worker's host would let another attempt end otherwise.
    pub permanent: bool,
    /// Whether it was canceled with its run, which was resumed since: then it is to be done again.
    pub resumed: bool,
}

/// Who executes, and where.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The worker.
    pub executor: &'a ExecutorId,
    /// Its machine.
    pub host_id: &'a str,
    /// Its state directory.
    pub state_dir: &'a str,
    /// The sandbox that is going to be made, should the task need one.
    pub sandbox: &'a SandboxId,
}

/// Everything that the end of an attempt commits.
#[derive(Debug, Clone)]
pub struct TaskEnd<'a> {
    /// The attempt.
    pub task: &'a TaskContext,
    /// Its result.
    pub result: &'a SandboxResult,
    /// What was enforced.
    pub effective: Option<&'a EffectivePolicy>,
    /// Its artifacts, index first.
    pub artifacts: &'a [NewArtifact],
    /// The wipe, unless it was an engine-only task.
    pub evidence: Option<&'a WipeEvidence>,
    /// What its sandbox really was, if one was made.
    pub attestation: Option<&'a Attestation>,
    /// Whether somebody canceled it.
    pub canceled: bool,
}

impl Ledger {
    /// Writes the attempts and queues their workflows, together. A replay writes nothing.
    pub async fn tasks_enqueue(&self, round: &Round<'_>) -> Result<()> {
        let mut steps = Vec::new();
        let mut keys = Vec::new();
        let mut attempts = Vec::new();
        let mut names = Vec::new();
        let mut providers = Vec::new();
        let mut requests = Vec::new();
        for task in round.tasks {
            steps.push(task.step_id.as_str());
            keys.push(task.key.as_str());
            attempts.push(i32::try_from(task.attempt).unwrap_or(i32::MAX));
            names.push(task.name.as_str());
            providers.push(provider(&task.work));
            requests.push(json("sbx_runs.request", &task.work)?);
        }
        sqlx::query(
            "WITH t AS (
               INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, origin)
               SELECT $1, s, k, a, n, p, r, 'engine-dbos'
                 FROM unnest($2::text[], $3::text[], $4::int[], $5::text[], $6::text[], $7::jsonb[]) AS x(s, k, a, n, p, r)
               ON CONFLICT DO NOTHING),
             e AS (
               INSERT INTO app.egress_policy_snapshots
                 (run_id, phase, policy, policy_digest, source, policy_key, policy_version, approver, origin)
               SELECT $1, phase, policy, app.policy_digest(policy), source, policy_key, policy_version, approver, 'engine-dbos'
                 FROM jsonb_to_recordset($14) AS x(phase text, policy jsonb, source text, policy_key text,
                                                   policy_version integer, approver text)
               ON CONFLICT DO NOTHING)
             SELECT count(app.enqueue(k, $8, 'null', $9, $10, $11, NULL, $12, $13, 0)) FROM unnest($3::text[]) k",
        )
        .bind(round.run.as_str())
        .bind(&steps)
        .bind(&keys)
        .bind(&attempts)
        .bind(&names)
        .bind(&providers)
        .bind(&requests)
        .bind(TASK_WORKFLOW)
        .bind(SBX_QUEUE)
        .bind(round.partition)
        .bind(round.priority)
        .bind(APP_VERSION)
        .bind(round.parent)
        .bind(snapshots_json(round.snapshots)?)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// The outcomes of those attempts that have ended with all their sessions: one whose sandbox is
    /// not provably gone, or settled, has not. `None` once their run was canceled.
    pub async fn round_outcomes(
        &self,
        workflow: &str,
        keys: &[TaskKey],
    ) -> Result<Option<Vec<TaskOutcome>>> {
        let keys: Vec<&str> = keys.iter().map(TaskKey::as_str).collect();
        let rows = sqlx::query(
            "SELECT w.canceled, s.task_key, s.err_code, coalesce((s.response->>'exit')::int, -1) AS exit,
                    s.response->>'cause' AS cause,
                    coalesce((s.response->>'permanent')::boolean, false) AND (
                      coalesce((s.response->>'permanentEverywhere')::boolean, false) OR NOT EXISTS (
                        SELECT 1 FROM app.executors e WHERE e.state = 'live' AND e.host_id NOT IN (
                          SELECT x.host_id FROM app.remote_execution_sessions x WHERE x.task_key = s.task_key))) AS permanent,
                    s.canceled AND EXISTS (
                      SELECT 1 FROM app.audit a JOIN app.runs r ON r.workflow_id = a.target
                       WHERE r.id = s.run_id AND a.op = 'resume' AND a.created_at > s.created_at) AS resumed
               FROM (SELECT EXISTS (SELECT 1 FROM dbos.workflow_status
                                     WHERE workflow_uuid = $1 AND status = 'CANCELLED') AS canceled) w
               LEFT JOIN app.sbx_runs s ON s.task_key = ANY($2) AND s.response IS NOT NULL AND NOT EXISTS (
                    SELECT 1 FROM app.remote_execution_sessions x WHERE x.task_key = s.task_key AND x.ended_at IS NULL)",
        )
        .bind(workflow)
        .bind(&keys)
        .fetch_all(self.pool())
        .await?;
        let mut outcomes = Vec::with_capacity(rows.len());
        for row in &rows {
            if row.try_get("canceled")? {
                return Ok(None);
            }
            // Nothing has ended: the one row says only that the run goes on.
            let Some(key) = row.try_get::<Option<String>, _>("task_key")? else { continue };
            outcomes.push(TaskOutcome {
                key: id("sbx_runs.task_key", &key)?,
                err_code: load("sbx_runs.err_code", Value::String(row.try_get("err_code")?))?,
                exit: row.try_get("exit")?,
                cause: row.try_get("cause")?,
                permanent: row.try_get::<Option<bool>, _>("permanent")?.unwrap_or(false),
                resumed: row.try_get("resumed")?,
            });
        }
        Ok(Some(outcomes))
    }

    /// How an attempt ended, if it has.
    pub async fn task_err_code(&self, key: &TaskKey) -> Result<Option<ErrCode>> {
        let found: Option<Option<String>> =
            sqlx::query_scalar("SELECT err_code FROM app.sbx_runs WHERE task_key = $1")
                .bind(key.as_str())
                .fetch_optional(self.pool())
                .await?;
        found.flatten().map(|code| load("sbx_runs.err_code", Value::String(code))).transpose()
    }

    /// Records a physical start and opens its session, unless the attempt has ended. A sandbox starts
    /// once: whoever says it again, because the answer was lost with the database, finds what it began.
    pub async fn task_begin(
        &self,
        key: &TaskKey,
        place: &Place<'_>,
    ) -> Result<Option<TaskContext>> {
        let row = sqlx::query(
            "WITH t AS (
               SELECT s.*, r.tenant_id,
                      app.has_hosts_reach(r.id, r.key_id, i.key_id) AS by_host_admin
                 FROM app.sbx_runs s JOIN app.runs r ON r.id = s.run_id JOIN app.intents i ON i.id = r.intent_id
                WHERE s.task_key = $1),
             b AS (SELECT execution_no FROM app.sbx_executions WHERE task_key = $1 AND sandbox_id = $3),
             e AS (
               INSERT INTO app.sbx_executions (task_key, execution_no, worker, sandbox_id)
               SELECT task_key, 1 + (SELECT count(*)::int FROM app.sbx_executions x WHERE x.task_key = $1), $2,
                      CASE WHEN provider <> 'engine' THEN $3 END
                 FROM t WHERE response IS NULL AND NOT EXISTS (SELECT FROM b) RETURNING execution_no),
             n AS (
               INSERT INTO app.remote_execution_sessions
                 (sandbox_id, task_key, execution_no, run_id, tenant_id, class, host_id, state_dir, executor_id, state)
               SELECT $3, t.task_key, e.execution_no, t.run_id, t.tenant_id, t.provider, $4, $5, $2, 'PROVISIONING'
                 FROM t, e WHERE t.provider <> 'engine')
             SELECT t.run_id, t.tenant_id, t.step_id, t.attempt, t.request, t.err_code, t.by_host_admin,
                    app.blobs_over_quota(t.tenant_id, $6) AS over_quota,
                    coalesce(e.execution_no, b.execution_no) AS execution_no,
                    (SELECT jsonb_agg(jsonb_build_object('phase', p.phase, 'policy', p.policy,
                              'whole', p.policy_digest = app.policy_digest(p.policy)))
                       FROM app.egress_policy_snapshots p WHERE p.run_id = t.run_id) AS egress
               FROM t LEFT JOIN e ON true LEFT JOIN b ON true",
        )
        .bind(key.as_str())
        .bind(place.executor.as_str())
        .bind(place.sandbox.as_str())
        .bind(place.host_id)
        .bind(place.state_dir)
        .bind(crate::quota::default_mb())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            let finished: Option<String> = row.try_get("err_code")?;
            Ok(TaskContext {
                key: key.clone(),
                run: id("sbx_runs.run_id", row.try_get("run_id")?)?,
                tenant: id("runs.tenant_id", row.try_get("tenant_id")?)?,
                step_id: id("sbx_runs.step_id", row.try_get("step_id")?)?,
                attempt: u32::try_from(row.try_get::<i32, _>("attempt")?).unwrap_or(1),
                work: load("sbx_runs.request", row.try_get("request")?)?,
                by_host_admin: row.try_get("by_host_admin")?,
                over_quota: crate::quota::refusal(row.try_get("over_quota")?)
                    .map(|refusal| refusal.message),
                execution_no: row.try_get::<Option<i32>, _>("execution_no")?.unwrap_or(0),
                egress: row
                    .try_get::<Option<Value>, _>("egress")?
                    .map(|value| load("egress_policy_snapshots", value))
                    .transpose()?
                    .unwrap_or_default(),
                finished: finished
                    .map(|c| load("sbx_runs.err_code", Value::String(c)))
                    .transpose()?,
            })
        })
        .transpose()
    }

    /// Result, artifacts, terminal session and wipe evidence in one transaction. `false`: the
    /// attempt had ended already (another worker was faster), or this execution's worker was declared
    /// dead: then what it saw may be its successor taking its sandbox away, and only the session's
    /// end is written.
    pub async fn task_finish(&self, end: &TaskEnd<'_>) -> Result<bool> {
        let task = end.task;
        self.run_of_mode(end.evidence, end.attestation).await?;
        let mut tx = self.pool().begin().await?;
        let asks = task.work.request().is_some_and(SandboxRequest::asks);
        if asks {
            // Gates before the task, as a cancel of the run locks them.
            asks_lock(&mut tx, &task.key).await?;
        }
        // The notification goes out with the commit, for a session's end too.
        let row = sqlx::query(
            "WITH u AS (
               UPDATE app.sbx_runs SET response = $2, err_code = $3, metrics = $4, effective = $5, canceled = $6,
                      finished_at = clock_timestamp()
                WHERE task_key = $1 AND response IS NULL AND NOT EXISTS (
                      SELECT 1 FROM app.sbx_executions x JOIN app.executors e ON e.id = x.worker
                       WHERE x.task_key = $1 AND x.execution_no = $7 AND e.state = 'dead') RETURNING 1)
             SELECT EXISTS (SELECT FROM u) AS written, pg_notify('cofferdam', 't:' || $8) AS told",
        )
        .bind(task.key.as_str())
        .bind(json("sbx_runs.response", end.result)?)
        .bind(end.result.err_code.as_str())
        .bind(json("sbx_runs.metrics", &end.result.metrics)?)
        .bind(end.effective.map(|e| json("sbx_runs.effective", e)).transpose()?)
        .bind(end.canceled)
        .bind(task.execution_no)
        .bind(task.run.as_str())
        .fetch_one(&mut *tx)
        .await?;
        let written = row.try_get("written")?;
        if written {
            if asks {
                answers_take(&mut tx, &task.key).await?;
            }
            artifacts_insert(&mut tx, task, end.artifacts).await?;
        }
        if let Some(evidence) = end.evidence {
            let terminal = terminal_state(end.canceled, end.result.err_code);
            let (attested, origin) = (end.attestation, Origin::EngineDbos);
            crate::sessions::session_close(&mut tx, evidence, terminal, attested, origin).await?;
        }
        tx.commit().await?;
        Ok(written)
    }

    /// A run's budgeted use so far: sandbox milliseconds and artifact bytes.
    pub async fn tasks_usage(&self, run: &RunId) -> Result<(i64, i64)> {
        let row = sqlx::query(
            "SELECT (SELECT coalesce(sum((metrics->>'wallMs')::bigint), 0)::bigint FROM app.sbx_runs WHERE run_id = $1) AS ms,
                    (SELECT coalesce(sum(size), 0)::bigint FROM app.artifacts WHERE run_id = $1) AS bytes",
        )
        .bind(run.as_str())
        .fetch_one(self.pool())
        .await?;
        Ok((row.try_get("ms")?, row.try_get("bytes")?))
    }

    /// The run that a task belongs to, if the tenant owns it.
    pub async fn task_run(&self, tenant: &TenantId, key: &TaskKey) -> Result<Option<RunId>> {
        let found: Option<String> = sqlx::query_scalar(
            "SELECT s.run_id FROM app.sbx_runs s JOIN app.runs r ON r.id = s.run_id
              WHERE s.task_key = $1 AND r.tenant_id = $2",
        )
        .bind(key.as_str())
        .bind(tenant.as_str())
        .fetch_optional(self.pool())
        .await?;
        found.map(|text| id("sbx_runs.run_id", &text)).transpose()
    }
}

/// The state in which a session ends once its wipe is verified; until then it is held. Pure.
#[must_use]
pub fn terminal_state(canceled: bool, code: ErrCode) -> SessionState {
    match (canceled, code) {
        (true, _) => SessionState::Canceled,
        (false, ErrCode::None) => SessionState::Completed,
        (false, _) => SessionState::Failed,
    }
}

/// Who does the work. A sandbox is of the weakest class that its request accepts: a stronger one
/// serves only where the host lacks that, and then the effective policy says so.
pub(crate) fn provider(work: &Work) -> &'static str {
    match work {
        Work::Sandbox(request) => request.class_min().as_str(),
        Work::Agent(work) => work.request.class_min().as_str(),
        Work::Value(_) => "engine",
    }
}

impl From<cofferdam_contracts::canonical::CanonicalError> for LedgerError {
    fn from(error: cofferdam_contracts::canonical::CanonicalError) -> Self {
        Self::Row { what: "canonical form", why: error.to_string() }
    }
}
