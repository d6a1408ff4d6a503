//! `app.dependency_cache_index` and `app.dependency_cache_uses`: whose base it is, and who had it.

use cofferdam_contracts::cache::CacheEntry;
use cofferdam_contracts::id::{Digest, TaskKey, TenantId};
use serde_json::json;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::audit::{Audit, append};
use crate::error::{LedgerError, Result, id};
use crate::families::Cache;

/// Rows that a listing answers with; a host has far fewer bases.
const MAX_ENTRIES: i64 = 10_000;

/// A host's location for bases.
#[derive(Debug, Clone, Copy)]
pub struct CacheLocation<'a> {
    /// Name of the machine: 16 hex digits, as in `executors.host_id`.
    pub host_id: &'a str,
    /// The state directory.
    pub state_dir: &'a str,
}

/// A base that was just made.
#[derive(Debug, Clone, Copy)]
pub struct NewCacheEntry<'a> {
    /// Tenant whose task built the base; only tasks of this tenant get it.
    pub org: &'a TenantId,
    /// Source of the task's files, such as a repository's URL; at most 256 bytes.
    pub repo: &'a str,
    /// Everything else that it depends on.
    pub lock_hash: &'a Digest,
    /// SHA-256 of tenant, `repo` and lock hash; it names the base on disk.
    pub key: &'a Digest,
    /// Digest of its manifest.
    pub digest: &'a Digest,
    /// Bytes of its files.
    pub bytes: u64,
    /// Number of entries in the base, directories and links included.
    pub files: u64,
    /// The task whose build made it.
    pub created_by: &'a TaskKey,
}

/// A base that a task may have, as far as the ledger knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheHit {
    /// Key of the row in `app.dependency_cache_index`; a use of the base refers to it.
    pub entry_id: i64,
    /// Digest of its manifest.
    pub digest: Digest,
}

/// A base that a host should have, or should take away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRow {
    /// Key of the row in `app.dependency_cache_index`; an eviction is recorded there.
    pub entry_id: i64,
    /// Name of the base on the host's disk.
    pub key: Digest,
    /// Bytes of its files.
    pub bytes: u64,
    /// How long nobody had it.
    pub idle_ms: i64,
    /// Whether nobody gets it any more.
    pub doomed: bool,
}

/// Why a base is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionReason {
    /// Somebody asked for it.
    Asked,
    /// Nobody had it for long.
    Age,
    /// All bases together were too large.
    Size,
    /// It was not on the disk.
    Missing,
    /// It was not what is on record.
    Damaged,
}

impl EvictionReason {
    /// The reason as it stands in SQL.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Age => "age",
            Self::Size => "size",
            Self::Missing => "missing",
            Self::Damaged => "damaged",
        }
    }
}

impl Cache<'_> {
    /// The tenant's base of a key at a location; it counts as used now.
    pub async fn find(
        self,
        place: &CacheLocation<'_>,
        org: &TenantId,
        key: &Digest,
    ) -> Result<Option<CacheHit>> {
        let row = sqlx::query(
            "UPDATE app.dependency_cache_index SET last_used_at = clock_timestamp()
              WHERE host_id = $1 AND state_dir = $2 AND org_id = $3 AND key = $4 AND state = 'ready'
             RETURNING entry_id, digest",
        )
        .bind(place.host_id)
        .bind(place.state_dir)
        .bind(org.as_str())
        .bind(key.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            Ok(CacheHit {
                entry_id: row.try_get("entry_id")?,
                digest: id("dependency_cache_index.digest", row.try_get("digest")?)?,
            })
        })
        .transpose()
    }

    /// Records that a start of a task runs on a base. `false`: the base was doomed meanwhile.
    pub async fn record_use(self, entry: i64, task: &TaskKey, execution_no: i32) -> Result<bool> {
        let done = sqlx::query(
            "INSERT INTO app.dependency_cache_uses (task_key, execution_no, entry_id, origin)
             SELECT $2, $3, entry_id, 'engine-dbos' FROM app.dependency_cache_index
              WHERE entry_id = $1 AND state = 'ready'
             ON CONFLICT DO NOTHING",
        )
        .bind(entry)
        .bind(task.as_str())
        .bind(execution_no)
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1 || self.was_used(entry, task, execution_no).await?)
    }

    /// Whether the record is there already: a statement whose answer was lost is sent again.
    async fn was_used(self, entry: i64, task: &TaskKey, execution_no: i32) -> Result<bool> {
        Ok(sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM app.dependency_cache_uses
                             WHERE entry_id = $1 AND task_key = $2 AND execution_no = $3)",
        )
        .bind(entry)
        .bind(task.as_str())
        .bind(execution_no)
        .fetch_one(self.pool())
        .await?)
    }

    /// Records a base that stands on the disk now. What was on record under its key was not there any
    /// more, or it could not have got its name. A replay writes nothing.
    pub async fn insert(self, place: &CacheLocation<'_>, new: &NewCacheEntry<'_>) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        sqlx::query(
            "UPDATE app.dependency_cache_index
                SET state = 'evicted', evicted_at = clock_timestamp(), evicted_why = 'missing'
              WHERE host_id = $1 AND state_dir = $2 AND key = $3 AND state <> 'evicted' AND digest <> $4",
        )
        .bind(place.host_id)
        .bind(place.state_dir)
        .bind(new.key.as_str())
        .bind(new.digest.as_str())
        .execute(&mut *tx)
        .await?;
        sqlx::query(
            "INSERT INTO app.dependency_cache_index
               (org_id, repo_id, lock_hash, key, host_id, state_dir, digest, bytes, files, created_by, origin)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 'engine-dbos')
             ON CONFLICT (host_id, state_dir, key) WHERE state <> 'evicted' DO NOTHING",
        )
        .bind(new.org.as_str())
        .bind(new.repo)
        .bind(new.lock_hash.as_str())
        .bind(new.key.as_str())
        .bind(place.host_id)
        .bind(place.state_dir)
        .bind(new.digest.as_str())
        .bind(i64::try_from(new.bytes).unwrap_or(i64::MAX))
        .bind(i64::try_from(new.files).unwrap_or(i64::MAX))
        .bind(new.created_by.as_str())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// Every base that a location should have or take away, the longest unused first.
    pub async fn rows(self, place: &CacheLocation<'_>) -> Result<Vec<CacheRow>> {
        let rows = sqlx::query(
            "SELECT entry_id, key, bytes, state = 'doomed' AS doomed,
                    app.ms(clock_timestamp()) - app.ms(last_used_at) AS idle_ms
               FROM app.dependency_cache_index
              WHERE host_id = $1 AND state_dir = $2 AND state <> 'evicted'
              ORDER BY last_used_at, entry_id",
        )
        .bind(place.host_id)
        .bind(place.state_dir)
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(CacheRow {
                    entry_id: row.try_get("entry_id")?,
                    key: id("dependency_cache_index.key", row.try_get("key")?)?,
                    bytes: natural(row, "bytes")?,
                    idle_ms: row.try_get("idle_ms")?,
                    doomed: row.try_get("doomed")?,
                })
            })
            .collect()
    }

    /// Records that a base is gone from its host's disk.
    pub async fn evicted(self, entry: i64, why: EvictionReason) -> Result<()> {
        sqlx::query(
            "UPDATE app.dependency_cache_index
                SET state = 'evicted', evicted_at = clock_timestamp(), evicted_why = $2
              WHERE entry_id = $1 AND state <> 'evicted'",
        )
        .bind(entry)
        .bind(why.as_str())
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Records that a base whose removal was asked for is gone; whether one was.
    pub async fn doomed_gone(self, place: &CacheLocation<'_>, key: &Digest) -> Result<bool> {
        let gone = sqlx::query(
            "UPDATE app.dependency_cache_index
                SET state = 'evicted', evicted_at = clock_timestamp(), evicted_why = 'asked'
              WHERE host_id = $1 AND state_dir = $2 AND key = $3 AND state = 'doomed'",
        )
        .bind(place.host_id)
        .bind(place.state_dir)
        .bind(key.as_str())
        .execute(self.pool())
        .await?;
        Ok(gone.rows_affected() > 0)
    }

    /// A tenant's bases, the longest unused first.
    pub async fn list(self, org: &TenantId) -> Result<Vec<CacheEntry>> {
        let rows = sqlx::query(
            "SELECT key, org_id, repo_id, lock_hash, host_id, digest, bytes, files, state, created_by,
                    app.ms(created_at) AS created_at, app.ms(last_used_at) AS last_used_at
               FROM app.dependency_cache_index WHERE org_id = $1 AND state <> 'evicted'
              ORDER BY last_used_at, entry_id LIMIT $2",
        )
        .bind(org.as_str())
        .bind(MAX_ENTRIES)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(entry).collect()
    }

    /// Dooms a tenant's bases of one key, or without a key all that were not used for so long, and
    /// wakes their hosts. The number of bases.
    pub async fn doom(
        self,
        org: &TenantId,
        key: Option<&Digest>,
        idle_ms: i64,
        audit: &Audit<'_>,
    ) -> Result<u64> {
        let mut tx = self.pool().begin().await?;
        // One row a base. A word that is said twice in one transaction is heard once.
        let doomed = sqlx::query(
            "WITH d AS (
               UPDATE app.dependency_cache_index SET state = 'doomed'
                WHERE org_id = $1 AND state = 'ready' AND ($2::text IS NULL OR key = $2)
                  AND app.ms(clock_timestamp()) - app.ms(last_used_at) >= $3 RETURNING host_id)
             SELECT pg_notify('cofferdam', 'c:' || host_id) FROM d",
        )
        .bind(org.as_str())
        .bind(key.map(Digest::as_str))
        .bind(idle_ms)
        .execute(&mut *tx)
        .await?
        .rows_affected();
        if doomed > 0 {
            let detail = Some(json!({"doomed": doomed}));
            append(&mut tx, &Audit { detail, ..audit.clone() }).await?;
        }
        tx.commit().await?;
        Ok(doomed)
    }
}

fn entry(row: &PgRow) -> Result<CacheEntry> {
    Ok(CacheEntry {
        key: id("dependency_cache_index.key", row.try_get("key")?)?,
        org: id("dependency_cache_index.org_id", row.try_get("org_id")?)?,
        repo: row.try_get("repo_id")?,
        lock_hash: id("dependency_cache_index.lock_hash", row.try_get("lock_hash")?)?,
        host_id: row.try_get("host_id")?,
        digest: id("dependency_cache_index.digest", row.try_get("digest")?)?,
        bytes: natural(row, "bytes")?,
        files: natural(row, "files")?,
        state: row.try_get("state")?,
        created_by: id("dependency_cache_index.created_by", row.try_get("created_by")?)?,
        created_at: row.try_get("created_at")?,
        last_used_at: row.try_get("last_used_at")?,
    })
}

fn natural(row: &PgRow, column: &str) -> Result<u64> {
    u64::try_from(row.try_get::<i64, _>(column)?).map_err(|error| LedgerError::Row {
        what: "dependency_cache_index",
        why: error.to_string(),
    })
}
