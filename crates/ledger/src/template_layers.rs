//! `app.template_layers`: files after a step of a build, from which later builds of their tenant go on.

use cofferdam_contracts::id::{BuildId, Digest, SnapshotId, TenantId};
use sqlx::{PgConnection, Row};

use crate::audit::Audit;
use crate::error::{Result, id};
use crate::families::LayerRows;
use crate::snapshots::{NewSnapshotFiles, insert as snapshot_insert};

/// Layers of one tenant, without those that are the files of a template: a dozen templates of a few layers each.
const MAX_LAYERS: i64 = 64;
/// How long a layer that nothing uses is kept.
const UNUSED: &str = "7 days";

/// A layer to be recorded.
#[derive(Debug, Clone, Copy)]
pub struct NewLayer<'a> {
    /// The build whose steps made it.
    pub build: &'a BuildId,
    /// Everything that it depends on.
    pub key: &'a Digest,
    /// Steps that it has behind it.
    pub steps: u32,
}

/// In the transaction that records its files.
pub(crate) async fn insert(
    conn: &mut PgConnection,
    files: &SnapshotId,
    new: &NewLayer<'_>,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO app.template_layers (snapshot_id, tenant_id, build_id, key, steps)
         SELECT $1, b.tenant_id, b.id, $3, $4 FROM app.template_builds b WHERE b.id = $2",
    )
    .bind(files.as_str())
    .bind(new.build.as_str())
    .bind(new.key.as_str())
    .bind(i32::try_from(new.steps).unwrap_or(i32::MAX))
    .execute(conn)
    .await?;
    Ok(())
}

impl LayerRows<'_> {
    /// Records a layer and its files, or nothing at all. `false`: its sandbox ended before.
    pub async fn add(
        self,
        files: &NewSnapshotFiles<'_>,
        new: &NewLayer<'_>,
        audit: &Audit<'_>,
    ) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        if !snapshot_insert(&mut tx, files, audit).await? {
            return Ok(false);
        }
        insert(&mut tx, files.id, new).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// The layer of this location that the last of these keys has that has one, and which of them that is, from 1. From now on it
    /// is in use.
    pub async fn longest(
        self,
        tenant: &TenantId,
        keys: &[Digest],
        place: &str,
    ) -> Result<Option<(SnapshotId, usize)>> {
        let keys: Vec<&str> = keys.iter().map(Digest::as_str).collect();
        let row = sqlx::query(
            "UPDATE app.template_layers u SET used_at = clock_timestamp()
               FROM (SELECT l.snapshot_id, k.number FROM unnest($2::text[]) WITH ORDINALITY AS k(key, number)
                       JOIN app.template_layers l ON l.tenant_id = $1 AND l.key = k.key AND l.steps = k.number
                            AND l.spoiled_at IS NULL
                       JOIN app.snapshots s ON s.id = l.snapshot_id AND s.erased_at IS NULL AND s.place = $3
                       JOIN app.template_builds b ON b.id = l.build_id
                       JOIN app.templates t ON t.id = b.template_id AND t.deleted_at IS NULL
                      ORDER BY k.number DESC, l.created_at DESC LIMIT 1) f
              WHERE u.snapshot_id = f.snapshot_id RETURNING f.snapshot_id, f.number",
        )
        .bind(tenant.as_str())
        .bind(keys)
        .bind(place)
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            let number: i64 = row.try_get("number")?;
            let layer = id("template_layers.snapshot_id", row.try_get("snapshot_id")?)?;
            Ok((layer, usize::try_from(number).unwrap_or(0)))
        })
        .transpose()
    }

    /// Records that no build can go on from a layer, and destroys its key unless it is the files of a template.
    pub async fn spoiled(self, layer: &SnapshotId) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        let query = "UPDATE app.template_layers SET spoiled_at = clock_timestamp()
                      WHERE snapshot_id = $1 AND spoiled_at IS NULL";
        sqlx::query(query).bind(layer.as_str()).execute(&mut *tx).await?;
        let query = "UPDATE app.snapshots SET sealed_key = NULL, erased_at = clock_timestamp()
                      WHERE id = $1 AND kind = 'layer' AND erased_at IS NULL";
        sqlx::query(query).bind(layer.as_str()).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Destroys the keys of layers that nothing used for a week, that others took the place of, that are too many, and of those
    /// whose template is deleted.
    pub async fn erase_unneeded(self) -> Result<()> {
        sqlx::query(
            "UPDATE app.snapshots s SET sealed_key = NULL, erased_at = clock_timestamp()
               FROM (SELECT l.snapshot_id, l.used_at, t.deleted_at,
                            row_number() OVER (PARTITION BY l.tenant_id ORDER BY l.used_at DESC, l.snapshot_id) AS rank,
                            row_number() OVER (PARTITION BY l.tenant_id, l.key, o.place ORDER BY l.created_at DESC, l.snapshot_id) AS age
                       FROM app.template_layers l
                       JOIN app.snapshots o ON o.id = l.snapshot_id AND o.kind = 'layer' AND o.erased_at IS NULL
                       JOIN app.template_builds b ON b.id = l.build_id
                       JOIN app.templates t ON t.id = b.template_id) x
              WHERE s.id = x.snapshot_id AND s.erased_at IS NULL
                AND (x.deleted_at IS NOT NULL OR x.age > 1 OR x.rank > $1 OR x.used_at < clock_timestamp() - $2::text::interval)",
        )
        .bind(MAX_LAYERS)
        .bind(UNUSED)
        .execute(self.pool())
        .await?;
        Ok(())
    }
}
