//! `app.live_sandboxes`: sandboxes that their tenants hold.

use std::collections::BTreeMap;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::{
    ExecutorId, LiveId, RunId, SandboxId, SnapshotId, TenantId, WorkflowId,
};
use cofferdam_contracts::life::LifeState;
use cofferdam_contracts::live::{LiveState, LiveView};
use cofferdam_contracts::sandbox::Limits;
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use crate::error::{Result, id, json, load};
use crate::families::LiveRows;

/// What is recorded at the start.
#[derive(Debug, Clone, Copy)]
pub struct LiveStart<'a> {
    /// The run that holds it.
    pub run: &'a RunId,
    /// Worker that runs the sandbox in this life.
    pub executor: &'a ExecutorId,
    /// Session of this life, from `remote_execution_sessions.sandbox_id`.
    pub sandbox: &'a SandboxId,
    /// The agent's token, of which the hash is kept.
    pub token: &'a str,
    /// What opens its ports, of which the hash is kept where a request resumes it.
    pub traffic: Option<&'a str>,
    /// The key that both tokens were made for.
    pub tokens_of: &'a str,
    /// Limits as enforced.
    pub limits: &'a Limits,
}

/// A sandbox that a request may resume, as it is recorded.
#[derive(Debug, Clone)]
pub struct ResumableSandbox {
    /// Tenant that owns the sandbox.
    pub tenant: TenantId,
    /// The key that its tokens were made for.
    pub key_id: String,
    /// Whether that key is revoked.
    pub is_revoked: bool,
    /// Hash of the token that opens its agent.
    pub envd: String,
    /// Hash of the token that opens its ports; `None`: they are open.
    pub traffic: Option<String>,
    /// What it does.
    pub state: ResumeState,
}

/// The worker that holds a sandbox.
#[derive(Debug, Clone)]
pub struct SandboxWorker {
    /// Executor id of the worker, new at each of its starts.
    pub executor: ExecutorId,
    /// Name of the worker's machine: 16 hex digits.
    pub host: String,
    /// Its process there.
    pub pid: i32,
}

/// Whether a sandbox can be resumed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumeState {
    /// It is paused.
    Paused,
    /// Its next life is being made.
    Starting,
    /// It is on record as running.
    Running,
}

impl ResumeState {
    /// `None`: it is over, or ends.
    const fn of(life: LifeState) -> Option<Self> {
        match life {
            LifeState::Requested | LifeState::Preparing => Some(Self::Starting),
            LifeState::Running => Some(Self::Running),
            LifeState::Pausing | LifeState::Paused => Some(Self::Paused),
            LifeState::Ending | LifeState::Ended => None,
        }
    }
}

/// The snapshot of a pause.
#[derive(Debug, Clone)]
pub struct PauseSnapshot {
    /// Snapshot that the pause made; the next life starts from it.
    pub snapshot: SnapshotId,
    /// The run of its last life, while that is still being wiped.
    pub settles: Option<RunId>,
}

/// Which sandboxes a list shows.
#[derive(Debug, Clone, Default)]
pub struct LiveFilter {
    /// Only those in one of these states; none: all.
    pub states: Vec<LiveState>,
    /// Only those with all of these labels.
    pub metadata: BTreeMap<String, String>,
    /// Only of this template.
    pub template: Option<String>,
    /// Only those that started at this time or later, in ms since the epoch.
    pub started_from: Option<i64>,
    /// By creation, oldest first; default: newest first.
    pub oldest_first: bool,
    /// Only those after this one, in the list's order: its creation in ms since the epoch, and its id.
    pub after: Option<(i64, LiveId)>,
    /// At most so many.
    pub limit: i64,
}

const VIEW: &str = "SELECT * FROM (
    SELECT l.*, app.ms(l.created_at) AS created_ms, app.ms(l.started_at) AS started_ms, app.ms(l.ends_at) AS ends_ms,
           app.ms(l.ended_at) AS ended_ms,
           NOT EXISTS (SELECT 1 FROM app.remote_execution_sessions x WHERE x.run_id = l.run_id AND NOT EXISTS (
                       SELECT 1 FROM app.secure_wipe_evidence w
                        WHERE w.sandbox_id = x.sandbox_id AND w.wipe_status = 'verified')) AS wiped,
           app.ms(l.paused_at) AS paused_ms, app.live_network(l.id, l.egress) AS net
      FROM app.lives l) v";

/// The state that a row of `app.lives` has.
fn life_of(row: &PgRow) -> Result<LifeState> {
    load("lives.life", Value::String(row.try_get("life")?))
}

fn view_of(row: &PgRow) -> Result<LiveView> {
    let limits: Option<Value> = row.try_get("limits")?;
    let limits: Option<Limits> = limits.map(|v| load("live_sandboxes.limits", v)).transpose()?;
    let session: Option<String> = row.try_get("sandbox_id")?;
    Ok(LiveView {
        id: id("live_sandboxes.id", row.try_get("id")?)?,
        template: row.try_get("template")?,
        state: life_of(row)?.shown(),
        metadata: load("live_sandboxes.metadata", row.try_get("metadata")?)?,
        egress: load("live_sandboxes.egress", row.try_get("net")?)?,
        run_id: id("live_sandboxes.run_id", row.try_get("run_id")?)?,
        session: session.map(|text| id("live_sandboxes.sandbox_id", &text)).transpose()?,
        cpu: limits.and_then(|limits| limits.cpu),
        mem_mb: limits.and_then(|limits| limits.mem_mb),
        disk_mb: limits.and_then(|limits| limits.disk_mb),
        created_at: row.try_get("created_ms")?,
        started_at: row.try_get("started_ms")?,
        ends_at: row.try_get("ends_ms")?,
        paused_at: row.try_get("paused_ms")?,
        pause_on_timeout: row.try_get("pauses")?,
        resume_on_traffic: row.try_get("resumes")?,
        ended_at: row.try_get("ended_ms")?,
        end_reason: row.try_get("end_reason")?,
        program_failed: row.try_get("program_failed")?,
        wiped: row.try_get("wiped")?,
    })
}

/// The states of `app.lives` that the API shows as one of these.
fn lives(shown: &[LiveState]) -> Vec<&'static str> {
    shown.iter().flat_map(|one| LifeState::shown_as(*one)).map(LifeState::as_str).collect()
}

impl LiveRows<'_> {
    /// What a tenant's sandbox was paused into, while it is paused.
    pub async fn paused_into(
        self,
        tenant: &TenantId,
        live: &LiveId,
    ) -> Result<Option<PauseSnapshot>> {
        let row = sqlx::query(
            "SELECT snapshot_id, CASE life WHEN 'pausing' THEN run_id END AS settles FROM app.lives
              WHERE id = $1 AND tenant_id = $2 AND life IN ('pausing', 'paused')",
        )
        .bind(live.as_str())
        .bind(tenant.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            let settles: Option<String> = row.try_get("settles")?;
            Ok(PauseSnapshot {
                snapshot: id("live_sandboxes.snapshot_id", row.try_get("snapshot_id")?)?,
                settles: settles.map(|text| id("live_sandboxes.run_id", &text)).transpose()?,
            })
        })
        .transpose()
    }

    /// A sandbox of any tenant that a request may resume; `None`: there is none of this id, or it is over or ending.
    pub async fn door(self, live: &LiveId) -> Result<Option<ResumableSandbox>> {
        let row = sqlx::query(
            "SELECT l.tenant_id, k.key_id, l.door_hash, l.traffic_hash, l.life,
                    EXISTS (SELECT 1 FROM app.api_keys a WHERE a.key_id = k.key_id AND a.revoked_at IS NOT NULL) AS revoked
               FROM app.lives l, LATERAL (SELECT coalesce(l.door_key_id, l.key_id) AS key_id) k
              WHERE l.id = $1 AND l.resumes AND l.door_hash IS NOT NULL",
        )
        .bind(live.as_str())
        .fetch_optional(self.pool())
        .await?;
        let Some(row) = row else { return Ok(None) };
        let Some(state) = ResumeState::of(life_of(&row)?) else { return Ok(None) };
        let door = || -> Result<ResumableSandbox> {
            Ok(ResumableSandbox {
                tenant: id("live_sandboxes.tenant_id", row.try_get("tenant_id")?)?,
                key_id: row.try_get("key_id")?,
                is_revoked: row.try_get("revoked")?,
                envd: row.try_get("door_hash")?,
                traffic: row.try_get("traffic_hash")?,
                state,
            })
        };
        door().map(Some)
    }

    /// Who holds a sandbox of any tenant that runs; `None`: it does not run, or its worker is known to be dead.
    pub async fn holder(self, live: &LiveId) -> Result<Option<SandboxWorker>> {
        let row = sqlx::query(
            "SELECT e.id, e.host_id, e.pid FROM app.lives l JOIN app.executors e ON e.id = l.executor_id
              WHERE l.id = $1 AND l.life = 'running'",
        )
        .bind(live.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            let executor = id("executors.id", row.try_get("id")?)?;
            Ok(SandboxWorker { executor, host: row.try_get("host_id")?, pid: row.try_get("pid")? })
        })
        .transpose()
    }

    /// Why the task of a life ended, in its own words.
    pub async fn cause(self, run: &RunId) -> Result<Option<String>> {
        let query =
            "SELECT response->>'cause' FROM app.sbx_runs WHERE run_id = $1 AND response IS NOT NULL
                      ORDER BY created_at DESC LIMIT 1";
        let found: Option<Option<String>> =
            sqlx::query_scalar(query).bind(run.as_str()).fetch_optional(self.pool()).await?;
        Ok(found.flatten())
    }

    /// What this run waits for, in words: a slot, a quota of its tenant, or memory.
    pub async fn waits_for(self, run: &RunId) -> Result<Option<String>> {
        let query = "SELECT app.run_waits_for(id, workflow_id, status) FROM app.runs WHERE id = $1";
        let found: Option<Option<String>> =
            sqlx::query_scalar(query).bind(run.as_str()).fetch_optional(self.pool()).await?;
        Ok(found.flatten())
    }

    /// Whether the sandbox of this run could not be made for a reason of its host, which may be over a moment later.
    pub async fn failed_to_begin(self, run: &RunId) -> Result<bool> {
        let query = "SELECT EXISTS (SELECT 1 FROM app.sbx_runs WHERE run_id = $1
                       AND err_code IN ('BOOT_FAIL','UPLOAD_FAIL','NET_FAIL') AND response->'permanent' IS NULL)";
        Ok(sqlx::query_scalar(query).bind(run.as_str()).fetch_one(self.pool()).await?)
    }

    /// Whether the sandbox of this run may be made: it is recorded, and has neither started nor ended, nor is it to end.
    pub async fn is_due(self, live: &LiveId, run: &RunId) -> Result<bool> {
        let found: Option<bool> = sqlx::query_scalar(
            "SELECT life IN ('requested', 'preparing') FROM app.lives WHERE id = $1 AND run_id = $2",
        )
        .bind(live.as_str())
        .bind(run.as_str())
        .fetch_optional(self.pool())
        .await?;
        Ok(found.unwrap_or(false))
    }

    /// Records the start, once, and gives the ms until its time is over. `None`: it was started before, has ended or is to end, or its
    /// worker is known to be dead.
    pub async fn started(self, start: &LiveStart<'_>) -> Result<Option<i64>> {
        let left = sqlx::query_scalar(
            "UPDATE app.live_sandboxes
                SET started_at = coalesce(started_at, clock_timestamp()),
                    ends_at = coalesce(ends_at, clock_timestamp() + timeout_ms * interval '1 ms'),
                    executor_id = $2, sandbox_id = $3, token_hash = $4, limits = $5,
                    door_hash = CASE WHEN resumes THEN $4 END, traffic_hash = CASE WHEN resumes THEN $6 END,
                    door_key_id = CASE WHEN resumes THEN $7 END
              WHERE run_id = $1 AND num_nonnulls(ending_at, paused_at, ended_at) = 0 AND (started_at IS NULL OR sandbox_id = $3)
                AND EXISTS (SELECT 1 FROM app.executors e WHERE e.id = $2 AND e.state = 'live')
             RETURNING app.ms(ends_at) - app.ms(clock_timestamp())",
        )
        .bind(start.run.as_str())
        .bind(start.executor.as_str())
        .bind(start.sandbox.as_str())
        .bind(digest_bytes(start.token.as_bytes()).as_str())
        .bind(json("live_sandboxes.limits", start.limits)?)
        .bind(start.traffic.map(|token| digest_bytes(token.as_bytes()).as_str().to_owned()))
        .bind(start.tokens_of)
        .fetch_optional(self.pool())
        .await?;
        Ok(left)
    }

    /// Records that its template's program ended without success while it goes on, once for each life. `false`: it is over.
    pub async fn program_failed(self, run: &RunId, how: &str) -> Result<bool> {
        let done = sqlx::query(
            "UPDATE app.live_sandboxes SET program_failed_at = clock_timestamp(), program_failed = $2
              WHERE run_id = $1 AND program_failed IS NULL AND num_nonnulls(ending_at, paused_at, ended_at) = 0
                AND (SELECT v.life FROM app.lives v WHERE v.run_id = $1) = 'running'",
        )
        .bind(run.as_str())
        .bind(how.replace('\0', ""))
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Sets the end of a running sandbox to so many ms from now; with `longer`, only if that is later. Gives the ms
    /// that are left.
    pub async fn extend(
        self,
        tenant: &TenantId,
        live: &LiveId,
        ms: i64,
        longer: bool,
    ) -> Result<Option<i64>> {
        Ok(sqlx::query_scalar(
            "UPDATE app.live_sandboxes
                SET ends_at = CASE WHEN $4 THEN greatest(ends_at, clock_timestamp() + $3 * interval '1 ms')
                                   ELSE clock_timestamp() + $3 * interval '1 ms' END
              WHERE id = $1 AND tenant_id = $2 AND num_nonnulls(ending_at, paused_at, ended_at) = 0
                AND (SELECT v.life FROM app.lives v WHERE v.id = $1) = 'running'
             RETURNING app.ms(ends_at) - app.ms(clock_timestamp())",
        )
        .bind(live.as_str())
        .bind(tenant.as_str())
        .bind(ms)
        .bind(longer)
        .fetch_optional(self.pool())
        .await?)
    }

    /// A tenant's sandbox.
    pub async fn by_id(self, tenant: &TenantId, live: &LiveId) -> Result<Option<LiveView>> {
        let row = sqlx::query(AssertSqlSafe(format!("{VIEW} WHERE id = $1 AND tenant_id = $2")))
            .bind(live.as_str())
            .bind(tenant.as_str())
            .fetch_optional(self.pool())
            .await?;
        row.as_ref().map(view_of).transpose()
    }

    /// The sandbox that a tenant created with this key; none that ended without ever having run.
    pub async fn by_dedup(self, tenant: &TenantId, dedup: &str) -> Result<Option<LiveView>> {
        let made = "(ended_at IS NULL OR first_started_at IS NOT NULL)";
        let query = format!("{VIEW} WHERE dedup = $1 AND tenant_id = $2 AND {made}");
        let row = sqlx::query(AssertSqlSafe(query))
            .bind(dedup)
            .bind(tenant.as_str())
            .fetch_optional(self.pool())
            .await?;
        row.as_ref().map(view_of).transpose()
    }

    /// A tenant's sandboxes, newest first.
    pub async fn list(self, tenant: &TenantId, filter: &LiveFilter) -> Result<Vec<LiveView>> {
        let (beyond, order) = if filter.oldest_first { (">", "ASC") } else { ("<", "DESC") };
        // In the text and not in a parameter, so that every plan may use the index that reads a page in its order.
        let is_unended = !filter.states.is_empty() && !filter.states.contains(&LiveState::Ended);
        let unended = if is_unended { "AND ended_at IS NULL" } else { "" };
        let after = match filter.after {
            Some(_) => format!("AND (created_ms, id) {beyond} ($5, $6)"),
            None => "AND $5::bigint IS NULL AND $6::text IS NULL".to_owned(),
        };
        let rows = sqlx::query(AssertSqlSafe(format!(
            "{VIEW} WHERE tenant_id = $1 AND ($2::text[] IS NULL OR life = ANY($2)) {unended} AND metadata @> $3
                AND ($4::text IS NULL OR template = $4) {after}
                AND ($8::bigint IS NULL OR started_ms >= $8)
              ORDER BY created_ms {order}, id {order} LIMIT $7"
        )))
        .bind(tenant.as_str())
        .bind((!filter.states.is_empty()).then(|| lives(&filter.states)))
        .bind(json("metadata", &filter.metadata)?)
        .bind(&filter.template)
        .bind(filter.after.as_ref().map(|(at, _)| *at))
        .bind(filter.after.as_ref().map(|(_, id)| id.as_str()))
        .bind(filter.limit)
        .bind(filter.started_from)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(view_of).collect()
    }

    /// How many of a tenant's sandboxes run.
    pub async fn running(self, tenant: &TenantId) -> Result<i64> {
        // As `app.lives` has it, in one join: a page of a list counts thousands. A session of a live worker ends with its sandbox.
        let query =
            "SELECT count(*) FROM app.live_sandboxes l JOIN app.executors e ON e.id = l.executor_id AND e.state = 'live'
              WHERE l.tenant_id = $1 AND l.ended_at IS NULL AND l.paused_at IS NULL AND l.started_at IS NOT NULL
                AND l.ending_at IS NULL";
        Ok(sqlx::query_scalar(query).bind(tenant.as_str()).fetch_one(self.pool()).await?)
    }

    /// How many sandboxes of a worker have not ended.
    pub async fn unended(self, executor: &ExecutorId) -> Result<i64> {
        let query = "SELECT count(*) FROM app.live_sandboxes WHERE executor_id = $1 AND ended_at IS NULL AND paused_at IS NULL";
        Ok(sqlx::query_scalar(query).bind(executor.as_str()).fetch_one(self.pool()).await?)
    }

    /// The workflow that holds a tenant's sandbox, for its cancel.
    pub async fn workflow(self, tenant: &TenantId, live: &LiveId) -> Result<Option<WorkflowId>> {
        let found: Option<String> = sqlx::query_scalar(
            "SELECT r.workflow_id FROM app.live_sandboxes l JOIN app.runs r ON r.id = l.run_id
              WHERE l.id = $1 AND l.tenant_id = $2",
        )
        .bind(live.as_str())
        .bind(tenant.as_str())
        .fetch_optional(self.pool())
        .await?;
        found.map(|text| id("runs.workflow_id", &text)).transpose()
    }
}
