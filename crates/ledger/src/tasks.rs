//! `app.sbx_runs` and `app.sbx_executions`: one effect, one key; every physical start on record.

use cofferdam_contracts::floor::{self, ClassFloor};
use cofferdam_contracts::id::{ExecutorId, RunId, SandboxId, StepId, TaskKey, TenantId};
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::run::ExecutionMode;
use cofferdam_contracts::sandbox::{
    EffectivePolicy, ErrCode, SandboxResult, SessionState, WipeEvidence,
};
use cofferdam_contracts::session::Attestation;
use cofferdam_contracts::task_outputs::TaskOutputs;
use serde_json::Value;
use sqlx::Row;

use crate::artifacts::NewArtifact;
use crate::error::{LedgerError, Result, id, json, load};
use crate::families::Tasks;
use crate::policies::{NewPolicySnapshot, PhasePolicy};
use crate::test_reports::NewReport;

/// A task attempt to be queued.
#[derive(Debug, Clone)]
pub struct NewTask {
    /// Its key, and its workflow's id.
    pub key: TaskKey,
    /// Step of the attempt; step and `attempt` are unique in the run.
    pub step_id: StepId,
    /// Number of the deliberate try of its step, from 1.
    pub attempt: u32,
    /// Name of the task in the plan, for readers.
    pub name: String,
    /// What it does.
    pub work: Work,
}

impl NewTask {
    /// Its row, for the statements that queue it.
    pub(crate) fn row(&self) -> Result<Value> {
        Ok(serde_json::json!({
            "step_id": self.step_id, "task_key": self.key, "attempt": self.attempt, "task_name": self.name,
            "provider": provider(&self.work), "request": json("sbx_runs.request", &self.work)?,
        }))
    }
}

/// How the tasks of a round are queued.
#[derive(Debug, Clone)]
pub struct TaskBatch<'a> {
    /// Run whose tasks are queued.
    pub run: &'a RunId,
    /// Workflow of the run, recorded as the parent of each task's workflow.
    pub parent: &'a str,
    /// Partition of `sbxQ`.
    pub partition: &'a str,
    /// Order in `sbxQ`, lower first; the run's own.
    pub priority: i32,
    /// Attempts to queue; those on record already are left as they are.
    pub tasks: &'a [NewTask],
    /// The run's egress policies, where these may be its first tasks: they commit together.
    pub snapshots: &'a [NewPolicySnapshot],
    /// The ends of those that only keep a text.
    pub values: &'a [TaskEnd<'a>],
    /// The worker that says so.
    pub executor: &'a ExecutorId,
}

/// An attempt that a worker has to execute.
#[derive(Debug, Clone)]
pub struct TaskContext {
    /// Hash of intent, run, step, attempt and request; id of the task's workflow.
    pub key: TaskKey,
    /// Run that waits for the end of the attempt.
    pub run: RunId,
    /// Tenant that owns it.
    pub tenant: TenantId,
    /// Step of the run that the attempt is for.
    pub step_id: StepId,
    /// Number of the deliberate try, from 1; `execution_no` counts physical starts.
    pub attempt: u32,
    /// What it does.
    pub work: Work,
    /// Whether the host's own admin asked for it: then any host directory may be given to it.
    pub by_host_admin: bool,
    /// Why the tenant may store nothing more, or what the task asks for that its quotas never hold, where that is so.
    pub over_quota: Option<String>,
    /// Physical start, from 1.
    pub execution_no: i32,
    /// Where its run's sandboxes are to be.
    pub mode_wanted: Option<ExecutionMode>,
    /// What its run's sandboxes may reach.
    pub egress: Vec<PhasePolicy>,
    /// The least isolation class that binds its tenant now.
    pub class_floor: Option<ClassFloor>,
    /// Whether it ended already; then nothing is executed.
    pub finished: Option<ErrCode>,
}

/// How one attempt ended, as its parent sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskOutcome {
    /// Key of the attempt that ended.
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
    /// Its outputs, where it has some.
    pub outputs: Option<TaskOutputs>,
}

impl TaskOutcome {
    /// An attempt that is known to have succeeded.
    #[must_use]
    pub fn succeeded(key: TaskKey) -> Self {
        let (exit, cause) = (0, None);
        let err_code = ErrCode::None;
        Self { key, err_code, exit, cause, permanent: false, resumed: false, outputs: None }
    }
}

/// Who executes, and where.
#[derive(Debug, Clone, Copy)]
pub struct WorkerLocation<'a> {
    /// Worker that begins the attempt.
    pub executor: &'a ExecutorId,
    /// Name of the worker's machine: 16 hex digits.
    pub host_id: &'a str,
    /// Its state directory.
    pub state_dir: &'a str,
    /// The sandbox that is going to be made, should the task need one.
    pub sandbox: &'a SandboxId,
}

/// Everything that the end of an attempt commits.
#[derive(Debug, Clone)]
pub struct TaskEnd<'a> {
    /// Attempt that ends, as its start read it.
    pub task: &'a TaskContext,
    /// Exit status, error code, metrics and ends of the output.
    pub result: &'a SandboxResult,
    /// What was enforced.
    pub effective: Option<&'a EffectivePolicy>,
    /// Artifacts that the task left, without their index.
    pub artifacts: &'a [NewArtifact],
    /// What its test reports say, each of a file among the artifacts.
    pub reports: &'a [NewReport],
    /// The wipe, unless it was an engine-only task.
    pub evidence: Option<&'a WipeEvidence>,
    /// What its sandbox really was, if one was made.
    pub attestation: Option<&'a Attestation>,
    /// The runtime of the worker that ends it: where the sandbox would have been, if none was made.
    pub runtime: Option<&'a str>,
    /// Whether somebody canceled it.
    pub canceled: bool,
}

/// The keys of the least isolation classes.
const FLOOR_KEYS: [&str; 2] = [floor::CLASS_MIN, floor::TENANTS];

/// How often a start may lose to another start of its task that committed first.
const MOST_TWINS: u32 = 8;

impl Tasks<'_> {
    /// The outcomes of those attempts that have ended with all their sessions: one whose sandbox is
    /// not provably gone, or settled, has not. `None` once their run was canceled.
    pub async fn round_outcomes(
        self,
        workflow: &str,
        keys: &[TaskKey],
    ) -> Result<Option<Vec<TaskOutcome>>> {
        let keys: Vec<&str> = keys.iter().map(TaskKey::as_str).collect();
        let rows = sqlx::query(
            "SELECT w.canceled, s.task_key, s.err_code, coalesce((s.response->>'exit')::int, -1) AS exit,
                    s.response->>'cause' AS cause, s.response->'outputs' AS outputs,
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
                outputs: row
                    .try_get::<Option<Value>, _>("outputs")?
                    .map(|value| load("sbx_runs.response", value))
                    .transpose()?,
            });
        }
        Ok(Some(outcomes))
    }

    /// How an attempt ended, if it has.
    pub async fn err_code(self, key: &TaskKey) -> Result<Option<ErrCode>> {
        let found: Option<Option<String>> =
            sqlx::query_scalar("SELECT err_code FROM app.sbx_runs WHERE task_key = $1")
                .bind(key.as_str())
                .fetch_optional(self.pool())
                .await?;
        found.flatten().map(|code| load("sbx_runs.err_code", Value::String(code))).transpose()
    }

    /// Records a physical start and opens its session, unless the attempt has ended. A sandbox starts
    /// once: whoever says it again, because the answer was lost with the database, finds what it began.
    ///
    /// A copy of this statement may be under way in another backend, of this process or of one before it. The one that loses to it at the
    /// unique key wrote nothing, and asked once more sees its rows.
    pub async fn begin(
        self,
        key: &TaskKey,
        place: &WorkerLocation<'_>,
    ) -> Result<Option<TaskContext>> {
        let mut twins = 0;
        loop {
            match self.begin_once(key, place).await {
                Err(error) if twins < MOST_TWINS && error.is_unique_violation() => twins += 1,
                other => return other,
            }
        }
    }

    async fn begin_once(
        self,
        key: &TaskKey,
        place: &WorkerLocation<'_>,
    ) -> Result<Option<TaskContext>> {
        let floors = crate::config::rows_json("$7", "t.tenant_id", "$8");
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "WITH t AS (
               SELECT s.*, r.tenant_id, r.mode_wanted,
                      app.has_hosts_reach(r.id, r.key_id, i.key_id) AS by_host_admin
                 FROM app.sbx_runs s JOIN app.runs r ON r.id = s.run_id JOIN app.intents i ON i.id = r.intent_id
                WHERE s.task_key = $1
                  -- Whatever answers an attempt that has not begun holds its row, too: one of both comes first.
                  FOR NO KEY UPDATE OF s),
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
             SELECT t.run_id, t.tenant_id, t.step_id, t.attempt, t.request, t.err_code, t.by_host_admin, t.mode_wanted,
                    app.blobs_over_quota(t.tenant_id, $6) AS over_quota, app.quota_never(t.tenant_id, t.cpu, t.disk_mb) AS never,
                    coalesce(e.execution_no, b.execution_no) AS execution_no, {floors} AS floors,
                    (SELECT jsonb_agg(jsonb_build_object('phase', p.phase, 'policy', p.policy,
                              'whole', p.policy_digest = app.policy_digest(p.policy)))
                       FROM app.egress_policy_snapshots p WHERE p.run_id = t.run_id) AS egress
               FROM t LEFT JOIN e ON true LEFT JOIN b ON true",
        )))
        .bind(key.as_str())
        .bind(place.executor.as_str())
        .bind(place.sandbox.as_str())
        .bind(place.host_id)
        .bind(place.state_dir)
        .bind(crate::quota::default_mb())
        .bind(crate::config::host())
        .bind(FLOOR_KEYS.map(str::to_owned).to_vec())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            let tenant: TenantId = id("runs.tenant_id", row.try_get("tenant_id")?)?;
            let rows = crate::config::rows_of(row.try_get("floors")?)?;
            let floors = floor::floors(&rows, &tenant).map_err(|e| LedgerError::Row {
                what: "dynamic_config.value",
                why: e.to_string(),
            })?;
            let finished: Option<String> = row.try_get("err_code")?;
            Ok(TaskContext {
                key: key.clone(),
                run: id("sbx_runs.run_id", row.try_get("run_id")?)?,
                tenant,
                class_floor: floor::strongest(&floors).cloned(),
                step_id: id("sbx_runs.step_id", row.try_get("step_id")?)?,
                attempt: u32::try_from(row.try_get::<i32, _>("attempt")?).unwrap_or(1),
                work: load("sbx_runs.request", row.try_get("request")?)?,
                by_host_admin: row.try_get("by_host_admin")?,
                over_quota: crate::quota::refusal(row.try_get("over_quota")?)
                    .or(crate::quota::never(row.try_get("never")?))
                    .map(|refusal| refusal.message),
                execution_no: row.try_get::<Option<i32>, _>("execution_no")?.unwrap_or(0),
                mode_wanted: crate::runs::mode_of(row.try_get("mode_wanted")?)?,
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

    /// A run's budgeted use so far: sandbox milliseconds and artifact bytes.
    pub async fn usage(self, run: &RunId) -> Result<(i64, i64)> {
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
    pub async fn run(self, tenant: &TenantId, key: &TaskKey) -> Result<Option<RunId>> {
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
        Work::Live(live) => live.request.class_min().as_str(),
        Work::Opencode(work) => work.request.class_min().as_str(),
        Work::Patched(work) => work.request.class_min().as_str(),
        Work::Value(_) => "engine",
    }
}
