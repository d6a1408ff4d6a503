//! `app.template_files`: archives that clients sent for the COPY steps of a template, sealed on one host as snapshots are.

use cofferdam_contracts::id::{Digest, SnapshotId, TemplateId, TenantId};
use sqlx::Row;

use crate::audit::{Audit, append};
use crate::error::{Result, id};
use crate::families::BuildRows;

/// An archive to be recorded.
#[derive(Debug, Clone, Copy)]
pub struct NewUpload<'a> {
    /// The key for which its link was made.
    pub key_id: &'a str,
    /// Id of its file.
    pub id: &'a SnapshotId,
    /// Template whose COPY steps may use the archive.
    pub template: &'a TemplateId,
    /// The template's tenant.
    pub tenant: &'a TenantId,
    /// The client's name of it.
    pub hash: &'a Digest,
    /// The host and the directory that have the file.
    pub place: &'a str,
    /// Bytes of the sealed file.
    pub bytes: u64,
    /// The key of the file, sealed.
    pub sealed_key: &'a [u8],
    /// Fingerprint of the key that it is sealed under.
    pub sealed_by: &'a Digest,
    /// Digest of the tar that it unpacks to; `None`: it unpacks to none, or to too much.
    pub content: Option<&'a Digest>,
}

/// What opens an archive.
#[derive(Debug, Clone)]
pub struct Upload {
    /// Id of its file.
    pub id: SnapshotId,
    /// The host and the directory that have the file.
    pub place: String,
    /// The key of the file, sealed.
    pub sealed_key: Vec<u8>,
    /// Fingerprint of the key that it is sealed under.
    pub sealed_by: Digest,
    /// Digest of the tar that it unpacks to, where that is known.
    pub content: Option<Digest>,
}

impl BuildRows<'_> {
    /// Records an archive in place of the one of its name. `false`: the template is deleted, or the key is revoked.
    pub async fn upload_add(self, new: &NewUpload<'_>) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        // One after the other: of two at once, the later takes the place of the earlier.
        let known = sqlx::query(
            "SELECT 1 FROM app.templates
              WHERE id = $1 AND tenant_id = $2 AND deleted_at IS NULL
                AND NOT EXISTS (SELECT 1 FROM app.api_keys WHERE key_id = $3 AND revoked_at IS NOT NULL)
                FOR NO KEY UPDATE",
        )
        .bind(new.template.as_str())
        .bind(new.tenant.as_str())
        .bind(new.key_id)
        .fetch_optional(&mut *tx)
        .await?;
        if known.is_none() {
            return Ok(false);
        }
        sqlx::query(
            "UPDATE app.template_files SET sealed_key = NULL, erased_at = clock_timestamp()
              WHERE template_id = $1 AND hash = $2 AND erased_at IS NULL",
        )
        .bind(new.template.as_str())
        .bind(new.hash.as_str())
        .execute(&mut *tx)
        .await?;
        sqlx::query(
            "INSERT INTO app.template_files (id, template_id, tenant_id, hash, place, bytes, sealed_key, sealed_by, content)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(new.id.as_str())
        .bind(new.template.as_str())
        .bind(new.tenant.as_str())
        .bind(new.hash.as_str())
        .bind(new.place)
        .bind(i64::try_from(new.bytes).unwrap_or(i64::MAX))
        .bind(new.sealed_key)
        .bind(new.sealed_by.as_str())
        .bind(new.content.map(Digest::as_str))
        .execute(&mut *tx)
        .await?;
        let entry = Audit {
            tenant: new.tenant,
            key_id: new.key_id,
            actor: new.key_id,
            op: "template.upload",
            target: new.template.as_str(),
            reason: "",
            detail: Some(serde_json::json!({"hash": new.hash, "bytes": new.bytes})),
        };
        append(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// The archive of this name of a tenant's template, which is in use from now on; `None`: there is none.
    pub async fn upload(
        self,
        tenant: &TenantId,
        template: &TemplateId,
        hash: &Digest,
    ) -> Result<Option<Upload>> {
        let row = sqlx::query(
            "UPDATE app.template_files SET used_at = clock_timestamp()
              WHERE template_id = $1 AND tenant_id = $2 AND hash = $3 AND erased_at IS NULL
              RETURNING id, place, sealed_key, sealed_by, content",
        )
        .bind(template.as_str())
        .bind(tenant.as_str())
        .bind(hash.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            let content: Option<String> = row.try_get("content")?;
            Ok(Upload {
                id: id("template_files.id", row.try_get("id")?)?,
                place: row.try_get("place")?,
                sealed_key: row.try_get("sealed_key")?,
                sealed_by: id("template_files.sealed_by", row.try_get("sealed_by")?)?,
                content: content.map(|text| id("template_files.content", &text)).transpose()?,
            })
        })
        .transpose()
    }

    /// Destroys the keys of archives that nothing used for a day, and of those whose template is deleted.
    pub async fn uploads_erase_unneeded(self) -> Result<()> {
        sqlx::query(
            "UPDATE app.template_files f SET sealed_key = NULL, erased_at = clock_timestamp()
               FROM app.templates t
              WHERE t.id = f.template_id AND f.erased_at IS NULL
                AND (t.deleted_at IS NOT NULL OR f.used_at < clock_timestamp() - interval '1 day')",
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }
}
