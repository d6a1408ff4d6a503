//! `app.runs`: starting, reading and ending runs. A run and its workflow's row commit together.
//!
//! One file: a run and its workflow commit together, by statements that are read together.

use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::{Digest, IntentId, RecipeId, RunId, TenantId, WorkflowId};
use cofferdam_contracts::recipe::RecipeRef;
use cofferdam_contracts::run::{
    Budget, Constraints, ExecutionMode, NextAction, RunHeader, RunStatus,
};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::APP_VERSION;
use crate::dispatch_end::{RECIPE, dispatch_settle};
use crate::engine::{INTENT_QUEUE, RUN_WORKFLOW};
use crate::error::{LedgerError, Result, id, json, load};
use crate::executors::LeaderTerm;
use crate::families::Runs;
use crate::intents::{INTENT, NewIntent, intent_bind};
use crate::trees::{BOUND_BY_RUN, IntentTree};

/// A run to be started.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// New id: `rn_` and 32 hex digits.
    pub id: RunId,
    /// Intent that the run executes; a fork has the intent of its source.
    pub intent_id: IntentId,
    /// The engine's id of the run's workflow; the intent's id for a first run.
    pub workflow_id: WorkflowId,
    /// Tenant that owns it.
    pub tenant: TenantId,
    /// Id and version of the recipe; `recipe_hash` pins the content.
    pub recipe: RecipeRef,
    /// SHA-256 of the recipe's canonical form; a later import changes nothing.
    pub recipe_hash: Digest,
    /// The intent's hash, for recipe runs.
    pub intent_hash: Option<Digest>,
    /// The caller's trace.
    pub trace_id: Option<String>,
    /// Bounds of this run: fan-out, minutes, artifacts, retries, wall clock.
    pub budget: Option<Budget>,
    /// Wall time of the run in ms, waits included; `None`: only the budget bounds it.
    pub timeout_ms: Option<u64>,
    /// Partition of `sbxQ`.
    pub partition_key: String,
    /// Order in the queues, lower first; 1 for `interactive`, 1000 for `batch` by default.
    pub priority: i32,
    /// Refuses a second live run.
    pub dedup: Option<String>,
    /// Where its sandboxes are to be.
    pub mode_wanted: Option<ExecutionMode>,
    /// 0 for the first run of an intent.
    pub retry_count: i32,
    /// The run that this one repeats.
    pub retry_of: Option<RunId>,
    /// Source to record for the run, such as `api-shim`.
    pub origin: Origin,
    /// Whose rights it has; a fork keeps those of the run that it repeats.
    pub key_id: String,
    /// Who asked for a retry or a fork: without the host's admin it has no reach of the host's.
    pub asked_by: Option<String>,
}

/// What a workflow needs to know of its run.
#[derive(Debug, Clone)]
pub struct RunContext {
    /// Id of the run: `rn_` and 32 hex digits.
    pub id: RunId,
    /// Intent that the run executes; its row never changes.
    pub intent_id: IntentId,
    /// Tenant that owns it.
    pub tenant: TenantId,
    /// Id of the recipe without its version; `recipe_hash` pins the content.
    pub recipe_id: RecipeId,
    /// SHA-256 of the recipe's canonical form, by which the content is read.
    pub recipe_hash: Digest,
    /// Bounds of this run: fan-out, minutes, artifacts, retries, wall clock.
    pub budget: Budget,
    /// Wall time in ms from `began_at`; `None`: only the budget bounds it.
    pub timeout_ms: Option<u64>,
    /// Partition of `sbxQ`.
    pub partition_key: String,
    /// Order of its tasks in `sbxQ`, lower first.
    pub priority: i32,
    /// The intent's inputs.
    pub inputs: Value,
    /// The intent's constraints.
    pub constraints: Constraints,
    /// The key that started it.
    pub key_id: String,
    /// Whether the host's own admin wrote the intent and started the run: then any host directory may be read for it.
    pub by_host_admin: bool,
    /// When it was started or last retried, ms since the epoch: its wall time counts from here.
    pub began_at: i64,
    /// How often it was retried: constant while its workflow runs.
    pub retries: u32,
}

impl RunContext {
    /// Whether it is a dispatch's run.
    #[must_use]
    pub fn is_dispatch(&self) -> bool {
        self.recipe_id.as_str() == RECIPE
    }
}

/// What a start did.
#[derive(Debug, Clone)]
pub enum StartOutcome {
    /// The run is new.
    Created(Box<RunHeader>),
    /// The workflow had a run already.
    Existing(Box<ExistingRun>),
}

/// A run that was there before, with everything a replay is compared on.
#[derive(Debug, Clone)]
pub struct ExistingRun {
    /// The existing run as the API shows it; a replay is answered with it.
    pub header: RunHeader,
    /// Tenant that owns it.
    pub tenant: TenantId,
    /// Partition of `sbxQ`; a replay must ask for the same one.
    pub partition_key: String,
    /// Bounds that the first request stated; a replay must state the same.
    pub budget: Option<Budget>,
    /// Where its sandboxes are to be.
    pub mode_wanted: Option<ExecutionMode>,
}

pub(crate) fn mode_of(text: Option<String>) -> Result<Option<ExecutionMode>> {
    let parsed = |text: String| {
        ExecutionMode::parse(&text).ok_or(LedgerError::Row { what: "runs.mode_wanted", why: text })
    };
    text.map(parsed).transpose()
}

/// The status as readers see it: a run is queued until the first of its tasks is more than that.
macro_rules! shown_status {
    () => {
        "CASE WHEN r.status = 'running' AND NOT app.run_has_begun(r.id)
              AND app.run_waits_for(r.id, r.workflow_id, r.status) IS NOT NULL THEN 'queued' ELSE r.status END"
    };
}

pub(crate) const STATUS: &str = shown_status!();
pub(crate) const HEADER: &str = concat!(
    "r.id, r.intent_id, r.workflow_id, r.tenant_id, ",
    shown_status!(),
    " AS status, app.run_waits_for(r.id, r.workflow_id, r.status) AS waits_for, r.next_action, r.recipe_id,
    r.recipe_v, r.recipe_hash, r.intent_hash, r.trace_id, r.last_step, r.error, r.retry_count, r.app_version,
    r.execution_mode, r.partition_key, r.budget, app.ms(r.created_at) AS created, app.ms(r.updated_at) AS updated,
    w.status AS durable, (SELECT count(*) FROM app.held_sessions h WHERE h.run_id = r.id) AS held"
);

pub(crate) fn header_of(row: &PgRow) -> Result<RunHeader> {
    let status: String = row.try_get("status")?;
    let status =
        RunStatus::parse(&status).ok_or(LedgerError::Row { what: "runs.status", why: status })?;
    let optional = |name: &str| row.try_get::<Option<String>, _>(name);
    let mode: String = row.try_get("execution_mode")?;
    let execution_mode = ExecutionMode::parse(&mode)
        .ok_or(LedgerError::Row { what: "runs.execution_mode", why: mode })?;
    Ok(RunHeader {
        workflow_id: id("runs.workflow_id", row.try_get("workflow_id")?)?,
        run_id: id("runs.id", row.try_get("id")?)?,
        intent_id: id("runs.intent_id", row.try_get("intent_id")?)?,
        status,
        workflow_name: RUN_WORKFLOW.to_owned(),
        created_at: row.try_get("created")?,
        updated_at: row.try_get("updated")?,
        recipe_ref: Some(RecipeRef {
            id: id("runs.recipe_id", row.try_get("recipe_id")?)?,
            v: row.try_get("recipe_v")?,
        }),
        recipe_hash: Some(id("runs.recipe_hash", row.try_get("recipe_hash")?)?),
        intent_hash: optional("intent_hash")?.map(|t| id("runs.intent_hash", &t)).transpose()?,
        trace_id: optional("trace_id")?,
        next_action: NextAction::of(status),
        last_step: optional("last_step")?,
        error: optional("error")?,
        app_version: row.try_get("app_version")?,
        durable_status: optional("durable")?,
        execution_mode,
        retry_count: row.try_get("retry_count")?,
        held_sessions: row.try_get("held")?,
        waits_for: optional("waits_for")?,
        is_replay: None,
        tenant_id: None,
    })
}

fn budget_of(value: Option<Value>) -> Result<Option<Budget>> {
    value.map(|v| load("runs.budget", v)).transpose()
}

/// What [`context_of`] reads, of the run of workflow `$1`.
pub(crate) const CONTEXT: &str = "SELECT r.id, r.intent_id, r.tenant_id, r.recipe_id, r.recipe_hash, r.budget, r.timeout_ms,
                    r.partition_key, r.priority, r.key_id, app.ms(coalesce(t.last, r.created_at)) AS began, t.retries,
                    i.inputs, i.constraints, app.has_hosts_reach(r.id, r.key_id, i.key_id) AS by_host_admin
               FROM app.runs r JOIN app.intents i ON i.id = r.intent_id
               CROSS JOIN LATERAL (SELECT count(*)::int AS retries, max(x.created_at) AS last
                                     FROM app.run_retries x WHERE x.run_id = r.id) t
              WHERE r.workflow_id = $1";

pub(crate) fn context_of(row: &PgRow) -> Result<RunContext> {
    Ok(RunContext {
        id: id("runs.id", row.try_get("id")?)?,
        intent_id: id("runs.intent_id", row.try_get("intent_id")?)?,
        tenant: id("runs.tenant_id", row.try_get("tenant_id")?)?,
        recipe_id: id("runs.recipe_id", row.try_get("recipe_id")?)?,
        recipe_hash: id("runs.recipe_hash", row.try_get("recipe_hash")?)?,
        budget: budget_of(row.try_get("budget")?)?.unwrap_or_default(),
        timeout_ms: row
            .try_get::<Option<i64>, _>("timeout_ms")?
            .and_then(|ms| u64::try_from(ms).ok()),
        partition_key: row.try_get("partition_key")?,
        priority: row.try_get("priority")?,
        inputs: row.try_get("inputs")?,
        constraints: load("intents.constraints", row.try_get("constraints")?)?,
        key_id: row.try_get("key_id")?,
        by_host_admin: row.try_get("by_host_admin")?,
        began_at: row.try_get("began")?,
        retries: u32::try_from(row.try_get::<i32, _>("retries")?).unwrap_or(0),
    })
}

impl Runs<'_> {
    /// Writes the run, with its intent where that is new too and what it bound of its host, and queues its workflow, together or not
    /// at all. A workflow id that has a run already writes nothing.
    pub async fn start(
        self,
        new: &NewRun,
        intent: Option<&NewIntent<'_>>,
        trees: &[IntentTree],
    ) -> Result<StartOutcome> {
        if let Some(header) = run_start(self.pool(), new, intent, trees).await? {
            return Ok(StartOutcome::Created(Box::new(header)));
        }
        let existing = self.existing(&new.workflow_id).await?.ok_or(LedgerError::Row {
            what: "runs",
            why: format!("{} conflicts with a run that is not there", new.workflow_id),
        })?;
        Ok(StartOutcome::Existing(Box::new(existing)))
    }

    /// Whether a run that a key would start has the reach of the host's own admin: as `app.has_hosts_reach` finds once it is there.
    pub async fn has_reach(self, new: &NewRun) -> Result<bool> {
        let found = sqlx::query_scalar(
            "SELECT app.is_host_admin($1)
                AND coalesce((SELECT app.is_host_admin(i.key_id) FROM app.intents i WHERE i.id = $2), true)
                AND NOT EXISTS (SELECT FROM app.recipe_versions v
                                 WHERE v.tenant_id = $3 AND v.id = $4 AND v.hash = $5 AND NOT v.is_host_admins)",
        )
        .bind(&new.key_id)
        .bind(new.intent_id.as_str())
        .bind(new.tenant.as_str())
        .bind(new.recipe.id.as_str())
        .bind(new.recipe_hash.as_str())
        .fetch_one(self.pool())
        .await?;
        Ok(found)
    }

    async fn existing(self, workflow: &WorkflowId) -> Result<Option<ExistingRun>> {
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {HEADER}, r.mode_wanted FROM app.runs r
               LEFT JOIN dbos.workflow_status w ON w.workflow_uuid = r.workflow_id WHERE r.workflow_id = $1"
        )))
        .bind(workflow.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            Ok(ExistingRun {
                mode_wanted: mode_of(row.try_get("mode_wanted")?)?,
                header: header_of(&row)?,
                tenant: id("runs.tenant_id", row.try_get("tenant_id")?)?,
                partition_key: row.try_get("partition_key")?,
                budget: budget_of(row.try_get("budget")?)?,
            })
        })
        .transpose()
    }

    /// A tenant's run by its id or its workflow's.
    pub async fn header(
        self,
        tenant: &TenantId,
        run_or_workflow: &str,
    ) -> Result<Option<RunHeader>> {
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {HEADER} FROM app.runs r LEFT JOIN dbos.workflow_status w ON w.workflow_uuid = r.workflow_id
              WHERE (r.id = $1 OR r.workflow_id = $1) AND r.tenant_id = $2"
        )))
        .bind(run_or_workflow)
        .bind(tenant.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.as_ref().map(header_of).transpose()
    }

    /// Whether a tenant's run is over, or is none: one row, for who asks often.
    pub async fn is_over(self, tenant: &TenantId, run: &RunId) -> Result<bool> {
        let status: Option<String> =
            sqlx::query_scalar("SELECT status FROM app.runs WHERE id = $1 AND tenant_id = $2")
                .bind(run.as_str())
                .bind(tenant.as_str())
                .fetch_optional(self.pool())
                .await?;
        let Some(status) = status else { return Ok(true) };
        RunStatus::parse(&status)
            .map(RunStatus::is_terminal)
            .ok_or(LedgerError::Row { what: "runs.status", why: status })
    }

    /// The run of a workflow, with its intent: what a workflow reads first.
    pub async fn context(self, workflow: &str) -> Result<Option<RunContext>> {
        let row = sqlx::query(CONTEXT).bind(workflow).fetch_optional(self.pool()).await?;
        row.as_ref().map(context_of).transpose()
    }

    /// What a fork copies of its source.
    pub async fn template(self, tenant: &TenantId, run: &RunId) -> Result<Option<NewRun>> {
        let row = sqlx::query(
            "SELECT intent_id, workflow_id, recipe_id, recipe_v, recipe_hash, intent_hash, trace_id, budget,
                    timeout_ms, partition_key, priority, retry_count, key_id, mode_wanted
               FROM app.runs WHERE id = $1 AND tenant_id = $2",
        )
        .bind(run.as_str())
        .bind(tenant.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            Ok(NewRun {
                id: run.clone(),
                intent_id: id("runs.intent_id", row.try_get("intent_id")?)?,
                workflow_id: id("runs.workflow_id", row.try_get("workflow_id")?)?,
                tenant: tenant.clone(),
                recipe: RecipeRef {
                    id: id("runs.recipe_id", row.try_get("recipe_id")?)?,
                    v: row.try_get("recipe_v")?,
                },
                recipe_hash: id("runs.recipe_hash", row.try_get("recipe_hash")?)?,
                intent_hash: row
                    .try_get::<Option<String>, _>("intent_hash")?
                    .map(|t| id("runs.intent_hash", &t))
                    .transpose()?,
                trace_id: row.try_get("trace_id")?,
                budget: budget_of(row.try_get("budget")?)?,
                timeout_ms: row
                    .try_get::<Option<i64>, _>("timeout_ms")?
                    .and_then(|ms| u64::try_from(ms).ok()),
                partition_key: row.try_get("partition_key")?,
                priority: row.try_get("priority")?,
                dedup: None,
                mode_wanted: mode_of(row.try_get("mode_wanted")?)?,
                retry_count: row.try_get("retry_count")?,
                retry_of: None,
                asked_by: None,
                origin: Origin::ApiShim,
                key_id: row.try_get("key_id")?,
            })
        })
        .transpose()
    }

    /// The digest of the plan that CompileST left.
    pub async fn plan_digest(self, run: &RunId) -> Result<Option<Digest>> {
        let found = sqlx::query_scalar::<_, Option<String>>(
            "SELECT plan_digest FROM app.runs WHERE id = $1",
        )
        .bind(run.as_str())
        .fetch_optional(self.pool())
        .await?
        .flatten();
        found.map(|text| id("runs.plan_digest", &text)).transpose()
    }

    /// Ends a run: its status, its `ExecuteST` row and the status stream, together. `false` where
    /// it had ended already.
    /// `is_dispatch`: whether it may be a dispatch's, which ends with it: one statement for every other run.
    pub async fn finish(
        self,
        run: &RunId,
        status: RunStatus,
        error: Option<&str>,
        step: &str,
        output: &Value,
        is_dispatch: bool,
    ) -> Result<bool> {
        let end = finish_query(run, status, error).bind(step.to_owned()).bind(output.clone());
        self.finish_by(end.bind(false), run, is_dispatch).await
    }

    /// Ends a run that its workflow left open when it ended, by any end of its own. `false` where the run had ended already,
    /// and where its workflow goes on, because somebody had the run retried meanwhile: that life is not ended by the one before.
    pub async fn finish_left_open(
        self,
        run: &RunId,
        status: RunStatus,
        error: &str,
        is_dispatch: bool,
    ) -> Result<bool> {
        let end = finish_query(run, status, Some(error)).bind("ExecuteST").bind(Value::Null);
        self.finish_by(end.bind(true), run, is_dispatch).await
    }

    async fn finish_by(self, finish: Query, run: &RunId, is_dispatch: bool) -> Result<bool> {
        if !is_dispatch {
            return Ok(finish.execute(self.pool()).await?.rows_affected() == 1);
        }
        let mut tx = self.pool().begin().await?;
        let moved = finish.execute(&mut *tx).await?.rows_affected() == 1;
        if moved {
            dispatch_settle(&mut tx, run).await?;
        }
        tx.commit().await?;
        Ok(moved)
    }

    /// Runs that the engine calls over and the ledger does not, for longer than a worker takes to end its
    /// own: whoever should have ended them could not reach the database, or died. Only for the leader.
    pub async fn unclosed(self, lead: &LeaderTerm, grace_ms: i64) -> Result<Vec<StaleRun>> {
        let rows = sqlx::query(
            "SELECT r.id, coalesce(w.status, 'GONE') AS status,
                    EXISTS (SELECT 1 FROM app.sbx_runs s WHERE s.run_id = r.id AND s.response IS NULL)
                    OR EXISTS (SELECT 1 FROM app.remote_execution_sessions x
                                WHERE x.run_id = r.id AND x.ended_at IS NULL) AS works
               FROM app.runs r LEFT JOIN dbos.workflow_status w ON w.workflow_uuid = r.workflow_id
              WHERE NOT app.is_over(r.status)
                AND (w.status IS NULL OR w.status IN ('SUCCESS','ERROR','CANCELLED','MAX_RECOVERY_ATTEMPTS_EXCEEDED'))
                AND coalesce(w.updated_at, app.ms(r.created_at)) < app.ms(clock_timestamp()) - $3 AND app.leads($1, $2)
              LIMIT 100",
        )
        .bind(lead.executor.as_str())
        .bind(lead.term)
        .bind(grace_ms)
        .fetch_all(self.steady())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(StaleRun {
                    run: id("runs.id", row.try_get("id")?)?,
                    engine: row.try_get("status")?,
                    works: row.try_get("works")?,
                })
            })
            .collect()
    }
}

/// A run whose workflow is over and which nobody ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleRun {
    /// Id of the run.
    pub run: RunId,
    /// How the engine calls its workflow; `GONE`: it has none.
    pub engine: String,
    /// Whether a task or a sandbox of it is still open.
    pub works: bool,
}

/// Ends a run that is not over. `$6` and `$7`: its step and what that gave; `$8`: only if its workflow is over.
const FINISH: &str = "WITH u AS (
       UPDATE app.runs SET status = $2, next_action = $3, last_step = $6, error = $4, finished_at = clock_timestamp()
        WHERE id = $1 AND NOT app.is_over(status)
          AND NOT ($8 AND EXISTS (SELECT 1 FROM dbos.workflow_status w WHERE w.workflow_uuid = workflow_id
                                     AND w.status IN ('PENDING', 'ENQUEUED', 'DELAYED')))
        RETURNING id),
     st AS (
       INSERT INTO app.run_steps (run_id, step_id, attempt, status, output, error, origin)
       SELECT id, $6, 1 + (SELECT count(*)::int FROM app.run_steps WHERE run_id = $1 AND step_id = $6),
              $5, $7, $4, 'engine-dbos' FROM u ON CONFLICT DO NOTHING)
     SELECT pg_notify('cofferdam', 'r:' || id) FROM u";

fn finish_query(run: &RunId, status: RunStatus, error: Option<&str>) -> Query {
    let step_status = match status {
        RunStatus::Succeeded => "ok",
        RunStatus::Canceled => "canceled",
        _ => "failed",
    };
    sqlx::query(FINISH)
        .bind(run.to_string())
        .bind(status.as_str())
        .bind(next_action(status))
        .bind(error.map(str::to_owned))
        .bind(step_status)
}

fn next_action(status: RunStatus) -> &'static str {
    match NextAction::of(status) {
        NextAction::ApprovePlan => "APPROVE_PLAN",
        NextAction::Repair => "REPAIR",
        NextAction::None => "NONE",
    }
}

/// The run's row. `$21`: its workflow is queued with it.
const INSERT: &str = "INSERT INTO app.runs (id, intent_id, workflow_id, tenant_id, execution_mode, recipe_id, recipe_v,
         recipe_hash, intent_hash, trace_id, budget, timeout_ms, partition_key, priority, retry_count,
         retry_of, app_version, origin, key_id, asked_by, mode_wanted)
       VALUES ($1, $2, $3, $4, coalesce($24, 'LOCAL_NATIVE'), $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $22, $23, $24)
       ON CONFLICT (workflow_id) DO NOTHING RETURNING *";
const ENQUEUE: &str = "CASE WHEN $21 THEN app.enqueue(r.workflow_id, $18, 'null', $19, $4, $13, $20, $16, NULL, 0) END";

/// A statement with what it is bound to.
pub(crate) type Query = sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments>;

fn run_query(text: String, new: &NewRun, enqueue: bool) -> Result<Query> {
    Ok(sqlx::query(sqlx::AssertSqlSafe(text))
        .bind(new.id.to_string())
        .bind(new.intent_id.to_string())
        .bind(new.workflow_id.to_string())
        .bind(new.tenant.to_string())
        .bind(new.recipe.id.to_string())
        .bind(new.recipe.v.clone())
        .bind(new.recipe_hash.to_string())
        .bind(new.intent_hash.as_ref().map(|digest| digest.as_str().to_owned()))
        .bind(new.trace_id.clone())
        .bind(new.budget.as_ref().map(|b| json("runs.budget", b)).transpose()?)
        .bind(new.timeout_ms.and_then(|ms| i64::try_from(ms).ok()))
        .bind(new.partition_key.clone())
        .bind(new.priority)
        .bind(new.retry_count)
        .bind(new.retry_of.as_ref().map(|run| run.as_str().to_owned()))
        .bind(APP_VERSION)
        .bind(new.origin.as_str())
        .bind(RUN_WORKFLOW)
        .bind(INTENT_QUEUE)
        // The engine's key is a queue's, and all tenants share the queue; a tenant id has no colon.
        .bind(new.dedup.as_ref().map(|dedup| format!("{}:{dedup}", new.tenant)))
        .bind(enqueue)
        .bind(new.key_id.clone())
        .bind(new.asked_by.clone())
        .bind(new.mode_wanted.map(ExecutionMode::as_str)))
}

impl NewRun {
    /// Its row, for a statement that takes it whole.
    pub(crate) fn row(&self) -> Result<Value> {
        let mode = self.mode_wanted.map(ExecutionMode::as_str);
        Ok(serde_json::json!({
            "id": self.id, "intent_id": self.intent_id, "workflow_id": self.workflow_id, "tenant_id": self.tenant,
            "execution_mode": mode.unwrap_or(ExecutionMode::LocalNative.as_str()), "mode_wanted": mode,
            "recipe_id": self.recipe.id, "recipe_v": self.recipe.v, "recipe_hash": self.recipe_hash,
            "intent_hash": self.intent_hash, "trace_id": self.trace_id,
            "budget": json("runs.budget", &self.budget)?, "timeout_ms": self.timeout_ms,
            "partition_key": self.partition_key, "priority": self.priority, "retry_count": self.retry_count,
            "retry_of": self.retry_of, "app_version": APP_VERSION, "origin": self.origin.as_str(),
            "key_id": self.key_id, "asked_by": self.asked_by,
        }))
    }
}

/// A run with its intent and its queued workflow, in one statement; `None` where the workflow has a run.
pub(crate) async fn run_start(
    on: impl sqlx::PgExecutor<'_>,
    new: &NewRun,
    intent: Option<&NewIntent<'_>>,
    trees: &[IntentTree],
) -> Result<Option<RunHeader>> {
    // What HEADER reads besides the run: its workflow was queued a moment ago.
    let text = format!(
        "WITH i AS ({INTENT}), r AS ({INSERT}), t AS ({BOUND_BY_RUN})
         SELECT {HEADER}, {ENQUEUE} AS queued FROM r CROSS JOIN (SELECT 'ENQUEUED'::text AS status) w"
    );
    let query = intent_bind(run_query(text, new, true)?, intent)?;
    let row = query.bind(json("intent_trees", &trees)?).fetch_optional(on).await?;
    row.as_ref().map(header_of).transpose()
}

/// The run's row and, with `enqueue`, its workflow, in the caller's transaction.
pub(crate) async fn run_insert(
    conn: &mut sqlx::PgConnection,
    new: &NewRun,
    enqueue: bool,
) -> Result<bool> {
    let text = format!("WITH r AS ({INSERT}) SELECT {ENQUEUE} FROM r");
    let created = run_query(text, new, enqueue)?.execute(conn).await?;
    Ok(created.rows_affected() == 1)
}
