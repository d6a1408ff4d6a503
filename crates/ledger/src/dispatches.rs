//! `app.dispatches` and `app.dispatch_runs`: agents that were sent off. A dispatch, its intent, its
//! run and the run's workflow are written together; its end is written by the run's own transactions
//! (`dispatch_end`).

use cofferdam_contracts::dispatch::{DispatchStatus, DispatchTokens, DispatchView, SpawnRequest};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, DispatchId, IntentId, RunId, TaskKey, TenantId, WorkflowId};
use cofferdam_contracts::sandbox::AccessMode;
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use crate::audit::Audit;
use crate::error::{LedgerError, OpError, OpResult, Result, id, json, load};
use crate::families::Dispatches;
use crate::intents::NewIntent;
use crate::runs::{NewRun, run_insert};

/// Raised by `app.dispatch_limits`: too deep, too many in the scope, no such parent.
const LIMITS: &[&str] = &["CF001", "CF002"];
const NO_PARENT: &str = "CF003";

/// A dispatch to be written.
#[derive(Debug, Clone)]
pub struct NewDispatch<'a> {
    /// New id of eight lower-case letters and digits.
    pub id: &'a DispatchId,
    /// What was asked for; kept for a retry.
    pub request: &'a SpawnRequest,
    /// The beginning of the hash of the prompt.
    pub prompt_hash: &'a str,
    /// The spec in canonical form with its hash.
    pub spec: Option<(&'a str, &'a Digest)>,
    /// Below its parent.
    pub spawn_depth: i64,
    /// The dispatch that this one repeats, and how often that was done before.
    pub retry_of: Option<(&'a DispatchId, i64)>,
    /// Intent of the run, written in the same transaction.
    pub intent: &'a NewIntent<'a>,
    /// Run that executes the dispatch, written in the same transaction.
    pub run: &'a NewRun,
}

/// What steering a dispatch needs of it.
#[derive(Debug, Clone)]
pub struct DispatchContext {
    /// Where it is.
    pub status: DispatchStatus,
    /// Its run's workflow; absent where it was imported.
    pub workflow: Option<WorkflowId>,
    /// What was asked for.
    pub request: Option<SpawnRequest>,
    /// Below its parent.
    pub spawn_depth: i64,
    /// How often it was repeated before.
    pub retry_count: i64,
    /// Its intent and the key that wrote it, where it was not imported.
    pub intent: Option<(IntentId, String)>,
    /// Whether that is the host's own admin's.
    pub by_host_admin: bool,
}

/// Which dispatches a list shows.
#[derive(Debug, Clone, Copy, Default)]
pub struct DispatchFilter<'a> {
    /// Only dispatches with this status; `None`: any status.
    pub status: Option<DispatchStatus>,
    /// Only those that are not over.
    pub active: bool,
    /// Only this scope's.
    pub scope: Option<&'a str>,
    /// At most so many.
    pub limit: i64,
}

const VIEW: &str =
    "SELECT d.*, m.run_id FROM app.dispatches d JOIN app.dispatch_runs m ON m.dispatch_id = d.id";

fn view_of(row: &PgRow) -> Result<DispatchView> {
    let text = |name: &str| row.try_get::<Option<String>, _>(name);
    let number = |name: &str| row.try_get::<Option<i64>, _>(name);
    let status: String = row.try_get("status")?;
    Ok(DispatchView {
        id: id("dispatches.id", row.try_get("id")?)?,
        agent_type: row.try_get("agent_type")?,
        status: DispatchStatus::parse(&status)
            .ok_or(LedgerError::Row { what: "dispatches.status", why: status })?,
        project_dir: row.try_get("project_dir")?,
        turns: row.try_get("turns")?,
        commands: row.try_get("commands")?,
        messages: row.try_get("messages")?,
        in_tokens: row.try_get("input_tokens")?,
        out_tokens: row.try_get("output_tokens")?,
        cache_hits: row.try_get("cache_hits")?,
        created_at: row.try_get("created_at")?,
        started_at: number("started_at")?,
        completed_at: number("completed_at")?,
        prompt_file: text("prompt_file")?,
        prompt_hash: text("prompt_hash")?,
        output_file: text("output_file")?,
        verdict_file: text("verdict_file")?,
        pid: number("pid")?,
        exit_code: number("exit_code")?,
        name: text("name")?,
        model: text("model")?,
        sandbox: text("sandbox")?.unwrap_or_default(),
        sandbox_spec: row.try_get("sandbox_spec")?,
        sandbox_effective: row.try_get("sandbox_effective")?,
        timeout_sec: number("timeout_sec")?,
        verdict_status: text("verdict_status")?,
        verdict_summary: text("verdict_summary")?,
        error_message: text("error_message")?,
        scope_id: text("scope_id")?,
        parent_id: text("parent_id")?,
        base_repo_commit: text("base_repo_commit")?,
        retry_count: row.try_get("retry_count")?,
        conflict_type: text("conflict_type")?,
        quarantine_reason: text("quarantine_reason")?,
        spawn_depth: row.try_get("spawn_depth")?,
        parent_dispatch_id: text("parent_dispatch_id")?,
        run_id: text("run_id")?.map(|t| id("dispatch_runs.run_id", &t)).transpose()?,
    })
}

/// What our own triggers raise has codes of its own; the caller may know what they say.
fn limited(error: LedgerError) -> OpError {
    if let LedgerError::Statement(sqlx::Error::Database(db)) = &error {
        let code = db.code().unwrap_or_default();
        if LIMITS.contains(&code.as_ref()) {
            let why = format!("limit reached: {}", db.message());
            return Refusal::new(ErrorCode::StateConflict, why).into();
        }
        if code == NO_PARENT {
            return Refusal::not_found("the parent dispatch").into();
        }
    }
    error.into()
}

impl Dispatches<'_> {
    /// Writes a dispatch with its intent, its run and its workflow, or nothing at all.
    pub async fn spawn(self, new: &NewDispatch<'_>, audit: Option<&Audit<'_>>) -> OpResult<()> {
        let mut tx = self.pool().begin().await?;
        crate::intents::intent_insert(&mut tx, new.intent).await?;
        let request = new.request;
        sqlx::query(
            "INSERT INTO app.dispatches (id, agent_type, project_dir, prompt_file, prompt_hash, output_file, name,
               model, sandbox, sandbox_spec, timeout_sec, scope_id, parent_id, retry_count, spawn_depth,
               parent_dispatch_id)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::jsonb, $11, $12, $13, $14, $15, $16)",
        )
        .bind(new.id.as_str())
        .bind(request.agent_type.as_str())
        .bind(&request.project_dir)
        .bind(&request.prompt_file)
        .bind(new.prompt_hash)
        .bind(&request.output_file)
        .bind(&request.name)
        .bind(&request.model)
        .bind(request.sandbox.unwrap_or(AccessMode::WorkspaceWrite).as_str())
        .bind(new.spec.map(|(text, _)| text))
        .bind(request.timeout_sec.and_then(|s| i64::try_from(s).ok()))
        .bind(&request.scope_id)
        .bind(request.parent_id.as_ref().map(DispatchId::as_str))
        .bind(new.retry_of.map_or(0, |(_, n)| n + 1))
        .bind(new.spawn_depth)
        .bind(new.retry_of.map(|(of, _)| of.as_str()))
        .execute(&mut *tx)
        .await?;
        if !run_insert(&mut tx, new.run, true).await? {
            return Err(Refusal::new(ErrorCode::Conflict, "the run exists already").into());
        }
        sqlx::query(
            "INSERT INTO app.dispatch_runs (dispatch_id, tenant_id, run_id, key_id, origin, spec_canonical, spec_hash, request)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(new.id.as_str())
        .bind(new.run.tenant.as_str())
        .bind(new.run.id.as_str())
        .bind(&new.run.key_id)
        .bind(new.run.origin.as_str())
        .bind(new.spec.map(|(text, _)| text))
        .bind(new.spec.map(|(_, hash)| hash.as_str()))
        .bind(json("dispatch_runs.request", request)?)
        .execute(&mut *tx)
        .await
        .map_err(|e| limited(e.into()))?;
        if let Some(audit) = audit {
            crate::audit::append(&mut tx, audit).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// A tenant's dispatch.
    pub async fn by_id(
        self,
        tenant: &TenantId,
        dispatch: &DispatchId,
    ) -> Result<Option<DispatchView>> {
        let row =
            sqlx::query(AssertSqlSafe(format!("{VIEW} WHERE d.id = $1 AND m.tenant_id = $2")))
                .bind(dispatch.as_str())
                .bind(tenant.as_str())
                .fetch_optional(self.pool())
                .await?;
        row.as_ref().map(view_of).transpose()
    }

    /// A tenant's dispatches, newest first.
    pub async fn list(
        self,
        tenant: &TenantId,
        filter: &DispatchFilter<'_>,
    ) -> Result<Vec<DispatchView>> {
        let rows = sqlx::query(AssertSqlSafe(format!(
            "{VIEW} WHERE m.tenant_id = $1 AND ($2::text IS NULL OR d.status = $2)
               AND (NOT $3 OR d.status IN ('spawned','running')) AND ($4::text IS NULL OR d.scope_id = $4)
             ORDER BY d.created_at DESC, m.created_at DESC, d.id LIMIT $5"
        )))
        .bind(tenant.as_str())
        .bind(filter.status.map(DispatchStatus::as_str))
        .bind(filter.active)
        .bind(filter.scope)
        .bind(filter.limit)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(view_of).collect()
    }

    /// What steering it needs.
    pub async fn context(
        self,
        tenant: &TenantId,
        dispatch: &DispatchId,
    ) -> Result<Option<DispatchContext>> {
        let row = sqlx::query(
            "SELECT d.status, r.workflow_id, CASE WHEN NOT m.request ? 'erased' THEN m.request END AS request, d.spawn_depth, d.retry_count, i.id AS intent, i.key_id AS intent_key,
                    coalesce(app.is_host_admin(i.key_id), false) AS by_host_admin
               FROM app.dispatches d JOIN app.dispatch_runs m ON m.dispatch_id = d.id
               LEFT JOIN app.runs r ON r.id = m.run_id LEFT JOIN app.intents i ON i.id = r.intent_id
              WHERE d.id = $1 AND m.tenant_id = $2",
        )
        .bind(dispatch.as_str())
        .bind(tenant.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            let status: String = row.try_get("status")?;
            let workflow: Option<String> = row.try_get("workflow_id")?;
            let request: Option<Value> = row.try_get("request")?;
            let intent: Option<String> = row.try_get("intent")?;
            let intent_key: Option<String> = row.try_get("intent_key")?;
            Ok(DispatchContext {
                status: DispatchStatus::parse(&status)
                    .ok_or(LedgerError::Row { what: "dispatches.status", why: status })?,
                workflow: workflow.map(|t| id("runs.workflow_id", &t)).transpose()?,
                request: request.map(|v| load("dispatch_runs.request", v)).transpose()?,
                spawn_depth: row.try_get("spawn_depth")?,
                retry_count: row.try_get("retry_count")?,
                intent: intent
                    .zip(intent_key)
                    .map(|(intent, key)| Ok::<_, LedgerError>((id("intents.id", &intent)?, key)))
                    .transpose()?,
                by_host_admin: row.try_get("by_host_admin")?,
            })
        })
        .transpose()
    }

    /// Notes the process of a dispatch's sandbox on its host, for operators.
    pub async fn pid(self, task: &TaskKey, pid: u32) -> Result<()> {
        sqlx::query(
            "UPDATE app.dispatches d SET pid = $2 FROM app.dispatch_runs m, app.sbx_runs s
              WHERE s.task_key = $1 AND m.run_id = s.run_id AND d.id = m.dispatch_id
                AND d.status IN ('spawned','running')",
        )
        .bind(task.as_str())
        .bind(i64::from(pid))
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Removes ended dispatches that are older, with the record of who did it.
    pub async fn prune(
        self,
        tenant: &TenantId,
        older_than_sec: u64,
        audit: &Audit<'_>,
    ) -> Result<u64> {
        let mut tx = self.pool().begin().await?;
        let done = sqlx::query(
            "DELETE FROM app.dispatches d USING app.dispatch_runs m
              WHERE m.dispatch_id = d.id AND m.tenant_id = $1
                AND d.status IN ('completed','failed','timeout','cancelled')
                AND coalesce(d.completed_at, d.created_at) <= extract(epoch FROM clock_timestamp()) - $2::bigint",
        )
        .bind(tenant.as_str())
        .bind(i64::try_from(older_than_sec).unwrap_or(i64::MAX))
        .execute(&mut *tx)
        .await?;
        if done.rows_affected() > 0 {
            crate::audit::append(&mut tx, audit).await?;
        }
        tx.commit().await?;
        Ok(done.rows_affected())
    }

    /// Tokens of a tenant's dispatches: of one, of a scope, or of all.
    pub async fn tokens(
        self,
        tenant: &TenantId,
        dispatch: Option<&DispatchId>,
        scope: Option<&str>,
    ) -> Result<DispatchTokens> {
        let row = sqlx::query(
            "SELECT count(*) AS n, coalesce(sum(d.input_tokens), 0)::bigint AS i,
                    coalesce(sum(d.output_tokens), 0)::bigint AS o, coalesce(sum(d.cache_hits), 0)::bigint AS c
               FROM app.dispatches d JOIN app.dispatch_runs m ON m.dispatch_id = d.id
              WHERE m.tenant_id = $1 AND ($2::text IS NULL OR d.id = $2) AND ($3::text IS NULL OR d.scope_id = $3)",
        )
        .bind(tenant.as_str())
        .bind(dispatch.map(DispatchId::as_str))
        .bind(scope)
        .fetch_one(self.pool())
        .await?;
        let (input, output): (i64, i64) = (row.try_get("i")?, row.try_get("o")?);
        Ok(DispatchTokens {
            dispatches: row.try_get("n")?,
            in_tokens: input,
            out_tokens: output,
            cache_hits: row.try_get("c")?,
            total: input.saturating_add(output),
        })
    }

    /// The artifact with a run's output.
    pub async fn output(self, run: &RunId) -> Result<Option<String>> {
        Ok(sqlx::query_scalar(
            "SELECT uri FROM app.artifacts WHERE run_id = $1 AND kind = 'stdout'
              ORDER BY attempt DESC LIMIT 1",
        )
        .bind(run.as_str())
        .fetch_optional(self.pool())
        .await?)
    }
}

/// A row of another database, with every column.
#[derive(Debug, Clone)]
pub struct ImportRow {
    /// Its id, which it keeps.
    pub id: DispatchId,
    /// JSON object whose members are the columns of `app.dispatches`.
    pub record: Value,
    /// Its spec in canonical form, with the hash.
    pub spec: Option<(String, Digest)>,
}

/// What became of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportOutcome {
    /// It is new here.
    New,
    /// It was here, the same.
    Same,
    /// Its id is another's.
    Other,
    /// A rule of the table refuses it.
    Refused(String),
}

impl Dispatches<'_> {
    /// Takes a row over as it is; it has no run and never will.
    pub async fn import(
        self,
        tenant: &TenantId,
        key_id: &str,
        row: &ImportRow,
    ) -> Result<ImportOutcome> {
        let mut tx = self.pool().begin().await?;
        let same: Option<bool> = sqlx::query_scalar(
            "SELECT m.tenant_id = $3 AND to_jsonb(d) = to_jsonb(jsonb_populate_record(NULL::app.dispatches, $2))
               FROM app.dispatches d JOIN app.dispatch_runs m ON m.dispatch_id = d.id WHERE d.id = $1",
        )
        .bind(row.id.as_str())
        .bind(&row.record)
        .bind(tenant.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        match same {
            Some(true) => return Ok(ImportOutcome::Same),
            Some(false) => return Ok(ImportOutcome::Other),
            None => {}
        }
        let written = sqlx::query(
            "INSERT INTO app.dispatches SELECT * FROM jsonb_populate_record(NULL::app.dispatches, $1)
             ON CONFLICT (id) DO NOTHING",
        )
        .bind(&row.record)
        .execute(&mut *tx)
        .await;
        match written.map_err(LedgerError::from) {
            Ok(done) if done.rows_affected() == 0 => return Ok(ImportOutcome::Other),
            Ok(_) => {}
            Err(LedgerError::Refused(why, _)) => return Ok(ImportOutcome::Refused(why)),
            Err(error) => return Err(error),
        }
        sqlx::query(
            "INSERT INTO app.dispatch_runs (dispatch_id, tenant_id, key_id, origin, spec_canonical, spec_hash)
             VALUES ($1, $2, $3, 'external', $4, $5)",
        )
        .bind(row.id.as_str())
        .bind(tenant.as_str())
        .bind(key_id)
        .bind(row.spec.as_ref().map(|(text, _)| text))
        .bind(row.spec.as_ref().map(|(_, hash)| hash.as_str()))
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(ImportOutcome::New)
    }
}
