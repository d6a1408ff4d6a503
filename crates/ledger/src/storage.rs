//! Who uses what, read for `df`.

use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::retention::{StorageReport, StoredBytes, TableBytes, TenantStorage};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use crate::erasures::{count, stored};
use crate::error::{Result, id};
use crate::families::Erasures;
use crate::trees::{NEEDS, RETRY_MS};

/// Tables that a report names.
const MAX_TABLES: i64 = 12;

impl Erasures<'_> {
    /// Who uses what: one tenant, or with `None` all of them that have a key or a row, and the database itself. What clients sent is not in
    /// the database.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn storage(self, tenant: Option<&TenantId>) -> Result<StorageReport> {
        let rows = sqlx::query(AssertSqlSafe(format!(
            "WITH r AS (
               SELECT tenant_id, count(*) AS runs, count(erased_at) AS erased FROM app.runs
                WHERE $1::text IS NULL OR tenant_id = $1 GROUP BY tenant_id),
             t AS (
               SELECT r.tenant_id, count(*) AS n FROM app.sbx_runs s JOIN app.runs r ON r.id = s.run_id
                WHERE $1::text IS NULL OR r.tenant_id = $1 GROUP BY r.tenant_id),
             a AS (
               SELECT r.tenant_id, count(*) AS n, sum(x.size)::bigint AS bytes FROM app.artifacts x JOIN app.runs r ON r.id = x.run_id
                WHERE x.erased_in IS NULL AND ($1::text IS NULL OR r.tenant_id = $1) GROUP BY r.tenant_id),
             c AS (
               SELECT org_id AS tenant_id, count(*) AS n, sum(bytes)::bigint AS bytes FROM app.dependency_cache_index
                WHERE state <> 'evicted' AND ($1::text IS NULL OR org_id = $1) GROUP BY org_id),
             p AS (
               SELECT tenant_id, count(*) AS n, sum(bytes)::bigint AS bytes FROM (
                 SELECT tenant_id, bytes FROM app.snapshots WHERE erased_at IS NULL
                 UNION ALL SELECT tenant_id, bytes FROM app.template_files WHERE erased_at IS NULL) f
                WHERE $1::text IS NULL OR tenant_id = $1 GROUP BY tenant_id),
             k AS (
               SELECT tenant_id, count(*) AS n, sum(bytes)::bigint AS bytes FROM (
                 SELECT r.tenant_id, t.copy, min(t.bytes) AS bytes FROM app.intent_trees t JOIN app.runs r USING (intent_id)
                  WHERE ($1::text IS NULL OR r.tenant_id = $1) AND t.source LIKE '/%' AND {NEEDS} GROUP BY 1, 2) f
                GROUP BY tenant_id),
             -- Who only sent directories has a key.
             h AS (SELECT DISTINCT tenant_id FROM app.api_keys WHERE $1::text IS NULL OR tenant_id = $1),
             u AS (SELECT tenant_id, bytes FROM app.blob_usage WHERE $1::text IS NULL OR tenant_id = $1)
             SELECT tenant_id, coalesce(r.runs, 0) AS runs, coalesce(r.erased, 0) AS erased, coalesce(t.n, 0) AS tasks,
                    coalesce(a.n, 0) AS artifacts, coalesce(a.bytes, 0) AS artifact_bytes, coalesce(c.n, 0) AS bases,
                    coalesce(c.bytes, 0) AS base_bytes, coalesce(p.n, 0) AS pauses, coalesce(p.bytes, 0) AS pause_bytes,
                    coalesce(k.n, 0) AS trees, coalesce(k.bytes, 0) AS tree_bytes,
                    coalesce(u.bytes, 0) AS quota
               FROM r FULL JOIN t USING (tenant_id) FULL JOIN a USING (tenant_id) FULL JOIN c USING (tenant_id)
                      FULL JOIN p USING (tenant_id) FULL JOIN k USING (tenant_id) FULL JOIN u USING (tenant_id)
                      FULL JOIN h USING (tenant_id)
              ORDER BY tenant_id LIMIT 10000"
        )))
        .bind(tenant.map(TenantId::as_str))
        .bind(RETRY_MS)
        .fetch_all(self.patient())
        .await?;
        let one = |row: &PgRow| {
            Ok(TenantStorage {
                tenant: id("runs.tenant_id", row.try_get("tenant_id")?)?,
                runs: count(row, "runs")?,
                erased_runs: count(row, "erased")?,
                tasks: count(row, "tasks")?,
                artifacts: stored(row, "artifacts", "artifact_bytes")?,
                cache: stored(row, "bases", "base_bytes")?,
                pauses: stored(row, "pauses", "pause_bytes")?,
                trees: stored(row, "trees", "tree_bytes")?,
                sent: StoredBytes::default(),
                quota_bytes: count(row, "quota")?,
            })
        };
        let tenants = rows.iter().map(one).collect::<Result<Vec<_>>>()?;
        let (database_bytes, tables) = match tenant {
            Some(_) => (0, Vec::new()),
            None => self.database().await?,
        };
        Ok(StorageReport { schema_version: 1, tenants, database_bytes, tables })
    }

    /// Bytes of the database, and its largest tables.
    async fn database(self) -> Result<(u64, Vec<TableBytes>)> {
        let all: i64 = sqlx::query_scalar("SELECT pg_database_size(current_database())")
            .fetch_one(self.patient())
            .await?;
        let rows = sqlx::query(
            "SELECT s.schemaname || '.' || s.relname AS name, pg_total_relation_size(s.relid) AS bytes,
                    greatest(c.reltuples, 0)::bigint AS live, s.n_dead_tup AS dead
               FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
              WHERE s.schemaname IN ('app', 'dbos') ORDER BY 2 DESC, 1 LIMIT $1",
        )
        .bind(MAX_TABLES)
        .fetch_all(self.patient())
        .await?;
        let one = |row: &PgRow| {
            Ok(TableBytes {
                table: row.try_get("name")?,
                bytes: count(row, "bytes")?,
                rows: count(row, "live")?,
                dead_rows: count(row, "dead")?,
            })
        };
        let tables = rows.iter().map(one).collect::<Result<Vec<_>>>()?;
        Ok((u64::try_from(all).unwrap_or(0), tables))
    }
}
