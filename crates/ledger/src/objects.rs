//! `app.stored_objects`: the objects of artifact stores, and the keys that they are sealed with.
//!
//! An object's row is written by the statement that writes its first artifact ([`crate::tasks`]); here it is found and listed.

use cofferdam_contracts::id::{Digest, ObjectId, RunId, TenantId};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::{Result, id};
use crate::families::Objects;

/// An object to be written with an artifact of it. One that is on record stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewObject {
    /// Id of the object, which its store gave it.
    pub id: ObjectId,
    /// Name of the store that has it.
    pub store: String,
    /// Digest of its bytes.
    pub sha256: Digest,
    /// Number of its bytes.
    pub size: u64,
    /// Its key, sealed for its tenant.
    pub sealed_key: Vec<u8>,
    /// Fingerprint of the key of secrets that this is sealed under.
    pub sealed_by: Digest,
}

/// An object on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRow {
    /// Id of the object.
    pub id: ObjectId,
    /// Owner of the object.
    pub tenant: TenantId,
    /// Name of the store that has it.
    pub store: String,
    /// Digest of its bytes.
    pub sha256: Digest,
    /// Number of its bytes.
    pub size: u64,
    /// Its key, sealed for its tenant; `None` once the key is destroyed.
    pub sealed_key: Option<Vec<u8>>,
    /// Fingerprint of the key of secrets that this is sealed under.
    pub sealed_by: Digest,
}

/// An object with an artifact of it, for a proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactObject {
    /// What is on record of the object.
    pub row: ObjectRow,
    /// A run that has an artifact of it.
    pub run: Option<RunId>,
    /// URI of that artifact.
    pub uri: Option<String>,
}

/// Columns of an object `o`, as [`object_of`] reads them.
pub(crate) const COLUMNS: &str = "o.id AS object_id, o.tenant_id AS object_tenant, o.store AS object_store, o.sha256 AS object_sha256, \
     o.size AS object_size, o.sealed_key AS object_key, o.sealed_by AS object_by";

/// Objects `o` of the run `$1` after `$3`, each with the first artifact `a` of it. They come by the index on run and object, so that a page
/// costs what it has, however much the other runs have.
const OF_RUN: &str = "(SELECT DISTINCT ON (x.object_id) x.object_id, x.run_id, x.uri FROM app.artifacts x
                        WHERE x.run_id = $1 AND x.object_id > coalesce($3::text, '') AND x.erased_in IS NULL
                        ORDER BY x.object_id, x.created_at, x.idx) a
                      JOIN app.stored_objects o ON o.id = a.object_id";
/// All objects `o`, each with the first artifact `a` of it, if it has one.
const OF_ALL: &str = "app.stored_objects o
                      LEFT JOIN LATERAL (SELECT x.run_id, x.uri FROM app.artifacts x WHERE x.object_id = o.id AND $1::text IS NULL
                                          ORDER BY x.created_at, x.idx LIMIT 1) a ON true";

/// The object of a row with [`COLUMNS`]; `None` where it has none.
pub(crate) fn object_of(row: &PgRow) -> Result<Option<ObjectRow>> {
    let Some(object): Option<String> = row.try_get("object_id")? else { return Ok(None) };
    Ok(Some(ObjectRow {
        id: id("stored_objects.id", &object)?,
        tenant: id("stored_objects.tenant_id", row.try_get("object_tenant")?)?,
        store: row.try_get("object_store")?,
        sha256: id("stored_objects.sha256", row.try_get("object_sha256")?)?,
        size: u64::try_from(row.try_get::<i64, _>("object_size")?).unwrap_or(0),
        sealed_key: row.try_get("object_key")?,
        sealed_by: id("stored_objects.sealed_by", row.try_get("object_by")?)?,
    }))
}

/// Objects column by column, as `unnest` takes them, each once.
#[derive(Default)]
pub(crate) struct ObjectColumns<'a> {
    pub ids: Vec<&'a str>,
    pub stores: Vec<&'a str>,
    pub digests: Vec<&'a str>,
    pub sizes: Vec<i64>,
    pub keys: Vec<&'a [u8]>,
    pub sealed_by: Vec<&'a str>,
}

impl<'a> ObjectColumns<'a> {
    pub(crate) fn of(objects: impl Iterator<Item = &'a NewObject>) -> Self {
        let mut columns = Self::default();
        let mut seen = std::collections::BTreeSet::new();
        for object in objects.filter(|object| seen.insert(object.id.as_str())) {
            columns.ids.push(object.id.as_str());
            columns.stores.push(&object.store);
            columns.digests.push(object.sha256.as_str());
            columns.sizes.push(i64::try_from(object.size).unwrap_or(i64::MAX));
            columns.keys.push(&object.sealed_key);
            columns.sealed_by.push(object.sealed_by.as_str());
        }
        columns
    }
}

impl Objects<'_> {
    /// The objects of a tenant's in one store that have one of these digests, the newest of each. They are promised: no erasure takes
    /// one before an artifact refers to it, for ten minutes. What another one holds at this moment is left out.
    pub async fn known(
        self,
        tenant: &TenantId,
        store: &str,
        digests: &[&str],
    ) -> Result<Vec<ObjectRow>> {
        let text = format!(
            "WITH k AS MATERIALIZED (
               SELECT DISTINCT ON (o.sha256) o.id FROM app.stored_objects o
                WHERE o.tenant_id = $1 AND o.store = $2 AND o.sha256 = ANY ($3) AND o.erased_at IS NULL
                ORDER BY o.sha256, o.created_at DESC, o.id),
             l AS MATERIALIZED (
               SELECT o.id FROM app.stored_objects o
                WHERE o.id IN (SELECT k.id FROM k) AND o.erased_at IS NULL FOR NO KEY UPDATE SKIP LOCKED),
             o AS (
               UPDATE app.stored_objects p SET wanted_at = clock_timestamp() FROM l WHERE p.id = l.id RETURNING p.*)
             SELECT {COLUMNS} FROM o"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(tenant.as_str())
            .bind(store)
            .bind(digests)
            .fetch_all(self.pool())
            .await?;
        rows.iter().filter_map(|row| object_of(row).transpose()).collect()
    }

    /// Whether an object is on record whose key is not destroyed.
    pub async fn has_sealed(self) -> Result<bool> {
        let found = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM app.stored_objects WHERE erased_at IS NULL)",
        )
        .fetch_one(self.pool())
        .await?;
        Ok(found)
    }

    /// Which of these objects are on record, with their digests. What a process that was killed had sent is waited for.
    pub async fn recorded(self, ids: &[ObjectId]) -> Result<Vec<(ObjectId, Digest)>> {
        let names: Vec<&str> = ids.iter().map(ObjectId::as_str).collect();
        let mut tx = self.pool().begin().await?;
        sqlx::query("LOCK TABLE app.stored_objects IN SHARE MODE").execute(&mut *tx).await?;
        let rows: Vec<(String, String)> =
            sqlx::query_as("SELECT id, sha256 FROM app.stored_objects WHERE id = ANY ($1)")
                .bind(names)
                .fetch_all(&mut *tx)
                .await?;
        tx.commit().await?;
        let parsed = rows.into_iter().map(|(object, sha256)| {
            Ok((id("stored_objects.id", &object)?, id("stored_objects.sha256", &sha256)?))
        });
        parsed.collect()
    }

    /// Whether the key of an object is destroyed.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn is_erased(self, object: &ObjectId) -> Result<bool> {
        let found = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM app.stored_objects WHERE id = $1 AND erased_at IS NOT NULL)",
        )
        .bind(object.as_str())
        .fetch_one(self.patient())
        .await?;
        Ok(found)
    }

    /// Objects of a store whose keys are destroyed and whose files are not known to be gone, by id: those after `after`.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn leaving(
        self,
        store: &str,
        after: Option<&ObjectId>,
        most: i64,
    ) -> Result<Vec<(ObjectId, Digest)>> {
        let rows: Vec<(String, String)> = sqlx::query_as(
            "SELECT id, sha256 FROM app.stored_objects
              WHERE store = $1 AND erased_at IS NOT NULL AND file_gone_at IS NULL AND id > $3 ORDER BY id LIMIT $2",
        )
        .bind(store)
        .bind(most)
        .bind(after.map_or("", ObjectId::as_str))
        .fetch_all(self.patient())
        .await?;
        let parsed = rows.into_iter().map(|(object, sha256)| {
            Ok((id("stored_objects.id", &object)?, id("stored_objects.sha256", &sha256)?))
        });
        parsed.collect()
    }

    /// The files of these objects are gone.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn files_gone(self, ids: &[ObjectId]) -> Result<()> {
        let names: Vec<&str> = ids.iter().map(ObjectId::as_str).collect();
        sqlx::query(
            "UPDATE app.stored_objects SET file_gone_at = clock_timestamp()
              WHERE id = ANY ($1) AND erased_at IS NOT NULL AND file_gone_at IS NULL",
        )
        .bind(names)
        .execute(self.patient())
        .await?;
        Ok(())
    }

    /// A page of the objects that are not erased, by id, of one run or all and of one tenant or all: those after `after`.
    pub async fn page(
        self,
        run: Option<&str>,
        tenant: Option<&str>,
        after: Option<&ObjectId>,
        most: i64,
    ) -> Result<Vec<ArtifactObject>> {
        let from = if run.is_some() { OF_RUN } else { OF_ALL };
        let text = format!(
            "SELECT {COLUMNS}, a.run_id, a.uri FROM {from}
              WHERE o.erased_at IS NULL AND ($3::text IS NULL OR o.id > $3) AND ($2::text IS NULL OR o.tenant_id = $2)
              ORDER BY o.id LIMIT $4"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(run)
            .bind(tenant)
            .bind(after.map(ObjectId::as_str))
            .bind(most)
            .fetch_all(self.patient())
            .await?;
        let mut page = Vec::with_capacity(rows.len());
        for row in &rows {
            let Some(object) = object_of(row)? else { continue };
            let run: Option<&str> = row.try_get("run_id")?;
            let run = run.map(|run| id("artifacts.run_id", run)).transpose()?;
            page.push(ArtifactObject { row: object, run, uri: row.try_get("uri")? });
        }
        Ok(page)
    }
}
