//! `app.erasures`: contents that went, by whom and why; retention, and what is left of whom.
//!
//! What goes and what stays in its place is written in one function, `app.erase_runs`; triggers let nothing else through.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{RunId, SecretName, TenantId};
use cofferdam_contracts::instant::Instant;
use cofferdam_contracts::retention::{
    Content, Erasable, ErasureCause, ErasureRow, ErasureTotals, GcDue, Retention, StoredBytes,
};
use serde_json::json;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::audit::{Audit, append};
use crate::error::{LedgerError, OpResult, Result, id};
use crate::families::Erasures;

/// Runs of one transaction: a fifth of a second, for which a run that somebody cancels would wait.
const BATCH: usize = 250;
/// Runs of one page, of which two batches are taken at once.
const RUNS: i32 = 500;
/// Stored files that one look goes through.
const PAGE: i32 = 1_000;
/// Runs of one intent that an erasure takes: a run with its forks has far fewer.
const MAX_FAMILY: i64 = 1_000;
/// Erasures of a run: one of each content.
const MAX_ERASURES: i64 = 10;

/// Until when runs are due, and by which rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueRuns {
    /// As the database writes it: an instant of a finer grain than milliseconds.
    until: String,
    /// The same, ms since the epoch.
    pub until_ms: i64,
    /// The rule that takes most.
    pub cause: ErasureCause,
}

/// A batch of a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectedBatch {
    /// The last that was looked at; `None`: none was left.
    pub last: Option<String>,
    /// Runs whose content went, with its bytes.
    pub erased: ErasureTotals,
}

pub(crate) fn count(row: &PgRow, column: &'static str) -> Result<u64> {
    Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0))
}

fn totals(row: &PgRow) -> Result<ErasureTotals> {
    Ok(ErasureTotals {
        runs: count(row, "runs")?,
        bytes: count(row, "bytes")?,
        blobs: count(row, "blobs")?,
    })
}

pub(crate) fn stored(
    row: &PgRow,
    counted: &'static str,
    bytes: &'static str,
) -> Result<StoredBytes> {
    Ok(StoredBytes { count: count(row, counted)?, bytes: count(row, bytes)? })
}

fn cause(row: &PgRow) -> Result<ErasureCause> {
    let text: String = row.try_get("cause")?;
    ErasureCause::parse(&text).ok_or(LedgerError::Row { what: "erasures.cause", why: text })
}

const ROW: &str = "SELECT e.content, e.cause, e.key_id, e.reason, e.bytes, e.removed, app.ms(e.created_at) AS at FROM app.erasures e";

fn erasure(row: &PgRow) -> Result<ErasureRow> {
    Ok(ErasureRow {
        content: row.try_get("content")?,
        cause: cause(row)?,
        key_id: row.try_get("key_id")?,
        why: row.try_get("reason")?,
        bytes: count(row, "bytes")?,
        removed: row.try_get("removed")?,
        at: row.try_get("at")?,
    })
}

/// What a reader of a content that went is told.
fn gone(row: &ErasureRow) -> Refusal {
    let at = Instant::from_ms(row.at);
    let why = format!(
        "the {} was erased at {at} by {}: {} ({} bytes; its record and hashes stay)",
        row.content, row.key_id, row.why, row.bytes
    );
    Refusal::new(ErrorCode::Erased, why).with(json!(row))
}

impl Erasures<'_> {
    /// What went of a run.
    pub async fn of(self, run: &RunId) -> Result<Vec<ErasureRow>> {
        let query = format!("{ROW} WHERE e.run_id = $1 ORDER BY e.id LIMIT $2");
        let rows = sqlx::query(sqlx::AssertSqlSafe(query))
            .bind(run.as_str())
            .bind(MAX_ERASURES)
            .fetch_all(self.pool())
            .await?;
        rows.iter().map(erasure).collect()
    }

    /// Refuses where the content of the run went; without a content, where either did.
    ///
    /// # Errors
    /// `erased`, or the ledger does not answer.
    pub async fn refuse(self, run: &RunId, content: Option<Content>) -> OpResult<()> {
        let is_it =
            |row: &ErasureRow| content.is_none_or(|content| row.content == content.as_str());
        match self.of(run).await?.iter().find(|row| is_it(row)) {
            Some(row) => Err(gone(row).into()),
            None => Ok(()),
        }
    }

    /// What a reader of an artifact that is not there is told: that its bytes went, or that there was none.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn missing_artifact(self, tenant: &TenantId, uri: &str) -> Result<Refusal> {
        let query = format!(
            "{ROW} JOIN app.artifacts a ON a.erased_in = e.id JOIN app.runs r ON r.id = a.run_id
              WHERE a.uri = $1 AND r.tenant_id = $2 ORDER BY a.attempt DESC LIMIT 1"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(query))
            .bind(uri)
            .bind(tenant.as_str())
            .fetch_optional(self.pool())
            .await?;
        let found = row.as_ref().map(erasure).transpose()?;
        Ok(found.as_ref().map_or_else(|| Refusal::not_found("artifact"), gone))
    }

    /// Erases a run's content with its record, in one transaction. A prompt is that of every run of its intent.
    ///
    /// # Errors
    /// `erased` where nothing of it is left, `state_conflict` where a run is not at rest.
    pub async fn erase(
        self,
        run: &RunId,
        what: Erasable,
        audit: &Audit<'_>,
    ) -> OpResult<ErasureTotals> {
        let mut tx = self.patient().begin().await?;
        let family: Vec<(String, bool)> = sqlx::query_as(
            "SELECT r.id, app.is_at_rest(r.id) FROM app.runs r JOIN app.runs o ON o.id = $1
              WHERE r.id = o.id OR ($2 AND r.intent_id = o.intent_id) ORDER BY r.id LIMIT $3",
        )
        .bind(run.as_str())
        .bind(what != Erasable::Output)
        .bind(MAX_FAMILY.saturating_add(1))
        .fetch_all(&mut *tx)
        .await?;
        if let Some((busy, _)) = family.iter().find(|(_, is_at_rest)| !is_at_rest) {
            let why = format!(
                "run {busy} is not at rest: it, a task, a sandbox, a wipe or a webhook of it is open; cancel it or wait"
            );
            return Err(Refusal::new(ErrorCode::StateConflict, why).into());
        }
        if i64::try_from(family.len()).unwrap_or(i64::MAX) > MAX_FAMILY {
            let why = format!("more than {MAX_FAMILY} runs share this prompt");
            return Err(Refusal::new(ErrorCode::PolicyViolation, why).into());
        }
        let all: Vec<String> = family.into_iter().map(|(run, _)| run).collect();
        let own = vec![run.as_str().to_owned()];
        let parts = match what {
            Erasable::Prompt => vec![(all, Content::Prompt)],
            Erasable::Output => vec![(own, Content::Output)],
            Erasable::Run => vec![(own, Content::Output), (all, Content::Prompt)],
        };
        let mut erased = ErasureTotals::default();
        for (runs, content) in parts {
            let row = sqlx::query(
                "SELECT runs, bytes, blobs FROM app.erase_runs($1, ARRAY[$2], 'asked', $3, $4, 'api-shim')",
            )
            .bind(&runs)
            .bind(content.as_str())
            .bind(audit.key_id)
            .bind(audit.reason)
            .fetch_one(&mut *tx)
            .await?;
            let part = totals(&row)?;
            erased = ErasureTotals { runs: erased.runs.max(part.runs), ..erased.plus(part) };
        }
        if erased.runs == 0 {
            drop(tx);
            let content = match what {
                Erasable::Prompt => Some(Content::Prompt),
                Erasable::Output => Some(Content::Output),
                Erasable::Run => None,
            };
            self.refuse(run, content).await?;
            return Err(Refusal::not_found("content").into());
        }
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(erased)
    }

    /// Destroys the bytes of a secret in force, and puts their hash on record.
    ///
    /// # Errors
    /// `erased` where it was erased before, `not_found` where there is none.
    pub async fn erase_secret(
        self,
        tenant: &TenantId,
        name: &SecretName,
        audit: &Audit<'_>,
    ) -> OpResult<ErasureTotals> {
        let mut tx = self.pool().begin().await?;
        let bytes: Option<i64> = sqlx::query_scalar(
            "WITH held AS (
               SELECT version, sealed FROM app.secrets
                WHERE tenant_id = $1 AND name = $2 AND retired_at IS NULL FOR UPDATE),
             gone AS (
               UPDATE app.secrets s SET sealed = NULL, retired_at = clock_timestamp() FROM held h
                WHERE s.tenant_id = $1 AND s.name = $2 AND s.version = h.version)
             INSERT INTO app.erasures (tenant_id, content, secret, cause, key_id, reason, bytes, removed, origin)
             SELECT $1, 'secret', $2, 'asked', $3, $4, octet_length(h.sealed),
                    jsonb_build_object('version', h.version, 'bytes', octet_length(h.sealed),
                                       'sha256', encode(sha256(h.sealed), 'hex')), 'api-shim'
               FROM held h RETURNING bytes",
        )
        .bind(tenant.as_str())
        .bind(name.as_str())
        .bind(audit.key_id)
        .bind(audit.reason)
        .fetch_optional(&mut *tx)
        .await?;
        let Some(bytes) = bytes else {
            drop(tx);
            let query = format!(
                "{ROW} WHERE e.tenant_id = $1 AND e.secret = $2 ORDER BY e.id DESC LIMIT 1"
            );
            let row = sqlx::query(sqlx::AssertSqlSafe(query))
                .bind(tenant.as_str())
                .bind(name.as_str())
                .fetch_optional(self.pool())
                .await?;
            let found = row.as_ref().map(erasure).transpose()?;
            return Err(found.as_ref().map_or_else(|| Refusal::not_found("secret"), gone).into());
        };
        append(&mut tx, audit).await?;
        tx.commit().await?;
        let bytes = u64::try_from(bytes).unwrap_or(0);
        Ok(ErasureTotals { runs: 0, bytes, blobs: 0 })
    }

    /// Tenants that have runs, by name.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn tenants(self) -> Result<Vec<TenantId>> {
        // From one to the next by the index: a tenant may have a million runs.
        let names: Vec<String> = sqlx::query_scalar(
            "WITH RECURSIVE t AS (
               (SELECT tenant_id FROM app.runs ORDER BY tenant_id LIMIT 1)
               UNION ALL
               SELECT (SELECT r.tenant_id FROM app.runs r WHERE r.tenant_id > t.tenant_id ORDER BY r.tenant_id LIMIT 1)
                 FROM t WHERE t.tenant_id IS NOT NULL)
             SELECT tenant_id FROM t WHERE tenant_id IS NOT NULL",
        )
        .fetch_all(self.patient())
        .await?;
        names.iter().map(|name| id("runs.tenant_id", name)).collect()
    }

    /// Until when runs of a tenant are due; `None`: no rule, or none are.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn due(self, tenant: &TenantId, rules: &Retention) -> Result<Option<DueRuns>> {
        let number = |n: Option<u32>| n.map(i64::from);
        let row = sqlx::query(
            "SELECT d.until::text AS until, app.ms(d.until) AS ms, d.cause
               FROM app.retention_due($1, make_interval(days => $2), $3, $4) d WHERE d.until IS NOT NULL",
        )
        .bind(tenant.as_str())
        .bind(rules.age_days.map(|days| i32::try_from(days).unwrap_or(i32::MAX)))
        .bind(number(rules.runs))
        .bind(number(rules.content_mb).map(|mb| mb.saturating_mul(1024 * 1024)))
        .fetch_optional(self.patient())
        .await?;
        row.map(|row| {
            Ok(DueRuns {
                until: row.try_get("until")?,
                until_ms: row.try_get("ms")?,
                cause: cause(&row)?,
            })
        })
        .transpose()
    }

    /// How many runs that is, and the bytes of their artifacts.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn due_totals(
        self,
        tenant: &TenantId,
        retention: Retention,
        due: Option<DueRuns>,
    ) -> Result<GcDue> {
        let row = sqlx::query(
            "SELECT count(*) AS runs, coalesce(sum(a.bytes), 0)::bigint AS bytes
               FROM app.runs r CROSS JOIN LATERAL (
                    SELECT sum(x.size) AS bytes FROM app.artifacts x WHERE x.run_id = r.id AND x.erased_in IS NULL) a
              WHERE r.tenant_id = $1 AND r.erased_at IS NULL AND r.finished_at IS NOT NULL AND r.finished_at <= $2::timestamptz",
        )
        .bind(tenant.as_str())
        .bind(due.as_ref().map(|due| due.until.as_str()))
        .fetch_one(self.patient())
        .await?;
        Ok(GcDue {
            tenant: tenant.clone(),
            retention,
            cause: due.as_ref().map(|due| due.cause),
            until: due.as_ref().map(|due| due.until_ms),
            runs: count(&row, "runs")?,
            bytes: count(&row, "bytes")?,
        })
    }

    /// Erases a page of what is due, oldest first behind `after`, in two transactions at once. Two that do so at once take other runs.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn collect_runs(
        self,
        tenant: &TenantId,
        due: &DueRuns,
        after: Option<&str>,
        key: &str,
        rule: &str,
    ) -> Result<CollectedBatch> {
        let page: Vec<String> =
            sqlx::query_scalar("SELECT app.retention_page($1, $2::timestamptz, $3, $4)")
                .bind(tenant.as_str())
                .bind(&due.until)
                .bind(after)
                .bind(RUNS)
                .fetch_one(self.patient())
                .await?;
        let (first, second) = page.split_at(page.len().min(BATCH));
        let (first, second) = tokio::try_join!(
            self.collect_batch(first, due.cause, key, rule),
            self.collect_batch(second, due.cause, key, rule)
        )?;
        Ok(CollectedBatch { last: page.last().cloned(), erased: first.plus(second) })
    }

    async fn collect_batch(
        self,
        runs: &[String],
        cause: ErasureCause,
        key: &str,
        rule: &str,
    ) -> Result<ErasureTotals> {
        if runs.is_empty() {
            return Ok(ErasureTotals::default());
        }
        let row = sqlx::query("SELECT runs, bytes, blobs FROM app.retention_batch($1, $2, $3, $4)")
            .bind(runs)
            .bind(cause.as_str())
            .bind(key)
            .bind(rule)
            .fetch_one(self.patient())
            .await?;
        totals(&row)
    }

    /// Removes stored files that no run has, of a page of them behind `after`.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn collect_blobs(self, after: Option<&str>) -> Result<CollectedBatch> {
        let row = sqlx::query("SELECT last, 0::bigint AS runs, 0::bigint AS bytes, blobs FROM app.blobs_sweep($1, $2)")
            .bind(after.unwrap_or(""))
            .bind(PAGE)
            .fetch_one(self.patient())
            .await?;
        Ok(CollectedBatch { last: row.try_get("last")?, erased: totals(&row)? })
    }

    /// Destroys the keys of objects that no run has; how many. Their files are then removed by whoever reaches their store.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn collect_objects(self) -> Result<u64> {
        let mut all = 0_u64;
        loop {
            let count: i64 = sqlx::query_scalar("SELECT app.objects_sweep($1)")
                .bind(PAGE)
                .fetch_one(self.patient())
                .await?;
            let Ok(count @ 1..) = u64::try_from(count) else { return Ok(all) };
            all = all.saturating_add(count);
        }
    }

    /// Stored files that no run has.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn blobs_unreferenced(self) -> Result<StoredBytes> {
        let row = sqlx::query(
            "SELECT count(*) AS n, coalesce(sum(x.bytes), 0)::bigint AS bytes FROM (
               SELECT octet_length(b.bytes)::bigint AS bytes FROM app.blobs b
                WHERE b.created_at < clock_timestamp() - interval '10 minutes'
                  AND NOT EXISTS (SELECT FROM app.artifacts a
                                   WHERE a.sha256 = b.sha256 AND a.inline IS NULL AND a.object_id IS NULL AND a.erased_in IS NULL)
               UNION ALL SELECT o.size FROM app.objects_unreferenced() o) x",
        )
        .fetch_one(self.patient())
        .await?;
        stored(&row, "n", "bytes")
    }
}
