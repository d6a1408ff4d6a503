//! Retention: which runs are due, and the batches in which their content, stored files and objects go.

use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::retention::{ErasureCause, ErasureTotals, GcDue, Retention, StoredBytes};
use sqlx::Row;

use crate::erasures::{cause, count, stored, totals};
use crate::error::{LedgerError, Result, id};
use crate::families::Erasures;

/// Runs of one transaction: a fifth of a second, for which a run that somebody cancels would wait.
const BATCH: usize = 250;
/// Runs of one page, of which two batches are taken at once.
const RUNS: i32 = 500;
/// Stored files that one look goes through.
const PAGE: i32 = 1_000;

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
#[derive(Debug, Default)]
pub struct CollectedBatch {
    /// The last that was looked at; `None`: none was left.
    pub last: Option<String>,
    /// Runs whose content went, with its bytes.
    pub erased: ErasureTotals,
    /// Runs that keep their content, since their erasure failed: at most a page.
    pub failed: Vec<(String, LedgerError)>,
}

impl Erasures<'_> {
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

    /// Erases a page of what is due, oldest first behind `after`, in two transactions at once. Two that do so at once take each run
    /// once, and a run whose erasure fails is left out.
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
        let mut failed = first.failed;
        failed.extend(second.failed);
        let erased = first.erased.plus(second.erased);
        Ok(CollectedBatch { last: page.last().cloned(), erased, failed })
    }

    /// One transaction; where that fails, one for each run, so that none holds up the others.
    async fn collect_batch(
        self,
        runs: &[String],
        cause: ErasureCause,
        key: &str,
        rule: &str,
    ) -> Result<CollectedBatch> {
        let mut batch = CollectedBatch::default();
        if runs.is_empty() {
            return Ok(batch);
        }
        match self.collect_at_once(runs, cause, key, rule).await {
            Ok(erased) => return Ok(CollectedBatch { erased, ..batch }),
            Err(lost) if lost.is_lost() => return Err(lost),
            Err(_) => {}
        }
        for run in runs {
            match self.collect_at_once(std::slice::from_ref(run), cause, key, rule).await {
                Ok(erased) => batch.erased = batch.erased.plus(erased),
                Err(lost) if lost.is_lost() => return Err(lost),
                Err(error) => batch.failed.push((run.clone(), error)),
            }
        }
        Ok(batch)
    }

    async fn collect_at_once(
        self,
        runs: &[String],
        cause: ErasureCause,
        key: &str,
        rule: &str,
    ) -> Result<ErasureTotals> {
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
        Ok(CollectedBatch {
            last: row.try_get("last")?,
            erased: totals(&row)?,
            ..CollectedBatch::default()
        })
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
