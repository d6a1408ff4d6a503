//! `app.template_tags`: which build a tag of a template names.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{BuildId, TemplateId, TenantId};
use cofferdam_contracts::template_build::DEFAULT_TAG;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::audit::{Audit, append};
use crate::error::{OpResult, Result, id};
use crate::families::BuildRows;

/// Tags of one template.
const MAX_TAGS: i64 = 256;

/// A tag of a template and the build that it names.
#[derive(Debug, Clone)]
pub struct TagView {
    /// Name of the tag: 1 to 128 lower-case letters, digits, `.`, `_` and `-`.
    pub tag: String,
    /// The build that it names.
    pub build: BuildId,
    /// When it was assigned, in ms since the epoch.
    pub assigned_ms: i64,
    /// When that build was asked for, in ms since the epoch.
    pub created_ms: i64,
    /// When that build was over, in ms since the epoch.
    pub ended_ms: Option<i64>,
}

impl BuildRows<'_> {
    /// Tags of a template of a tenant, newest first.
    pub async fn tags(self, tenant: &TenantId, template: &TemplateId) -> Result<Vec<TagView>> {
        let rows = sqlx::query(
            "SELECT g.tag, g.build_id, app.ms(g.assigned_at) AS assigned_ms, app.ms(b.created_at) AS created_ms,
                    app.ms(b.ended_at) AS ended_ms
               FROM app.template_tags g JOIN app.templates t ON t.id = g.template_id
               JOIN app.template_builds b ON b.id = g.build_id
              WHERE t.id = $1 AND t.tenant_id = $2 AND t.deleted_at IS NULL ORDER BY g.assigned_at DESC, g.tag",
        )
        .bind(template.as_str())
        .bind(tenant.as_str())
        .fetch_all(self.pool())
        .await?;
        let read = |row: &PgRow| {
            Ok(TagView {
                tag: row.try_get("tag")?,
                build: id("template_tags.build_id", row.try_get("build_id")?)?,
                assigned_ms: row.try_get("assigned_ms")?,
                created_ms: row.try_get("created_ms")?,
                ended_ms: row.try_get("ended_ms")?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Gives the build that one tag names, or is the id of, further ones; that build.
    pub async fn tags_assign(
        self,
        template: &TemplateId,
        from: &str,
        tags: &[String],
        audit: &Audit<'_>,
    ) -> OpResult<BuildId> {
        let mut tx = self.pool().begin().await?;
        let build: Option<String> = sqlx::query_scalar(
            "SELECT b.id FROM app.template_builds b JOIN app.templates t ON t.id = b.template_id
               JOIN app.snapshots s ON s.id = b.snapshot_id AND s.erased_at IS NULL
              WHERE t.id = $1 AND t.tenant_id = $2 AND t.deleted_at IS NULL AND (b.id = $3 OR b.id =
                    (SELECT g.build_id FROM app.template_tags g WHERE g.template_id = t.id AND g.tag = $3))
              ORDER BY b.id = $3 DESC LIMIT 1 FOR UPDATE OF t",
        )
        .bind(template.as_str())
        .bind(audit.tenant.as_str())
        .bind(from)
        .fetch_optional(&mut *tx)
        .await?;
        let build = build.ok_or_else(|| Refusal::not_found("tag"))?;
        sqlx::query(
            "INSERT INTO app.template_tags (template_id, tag, build_id) SELECT $1, g.tag, $2 FROM unnest($3::text[]) AS g(tag)
             ON CONFLICT (template_id, tag) DO UPDATE SET build_id = excluded.build_id, assigned_at = clock_timestamp()",
        )
        .bind(template.as_str())
        .bind(&build)
        .bind(tags)
        .execute(&mut *tx)
        .await?;
        let query = "SELECT count(*) FROM app.template_tags WHERE template_id = $1";
        let count: i64 =
            sqlx::query_scalar(query).bind(template.as_str()).fetch_one(&mut *tx).await?;
        if count > MAX_TAGS {
            let why = format!("a template has at most {MAX_TAGS} tags: delete some");
            return Err(Refusal::new(ErrorCode::PolicyViolation, why).into());
        }
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(id("template_tags.build_id", &build)?)
    }

    /// Takes tags from a template; the one that a bare name means stays.
    pub async fn tags_remove(
        self,
        template: &TemplateId,
        tags: &[String],
        audit: &Audit<'_>,
    ) -> OpResult<()> {
        if tags.iter().any(|tag| tag == DEFAULT_TAG) {
            let why = format!(
                "the tag {DEFAULT_TAG:?} is what a name without a tag means: delete the template"
            );
            return Err(Refusal::new(ErrorCode::PolicyViolation, why).into());
        }
        let mut tx = self.pool().begin().await?;
        let gone = sqlx::query(
            "DELETE FROM app.template_tags g USING app.templates t
              WHERE t.id = g.template_id AND t.id = $1 AND t.tenant_id = $2 AND t.deleted_at IS NULL AND g.tag = ANY($3)",
        )
        .bind(template.as_str())
        .bind(audit.tenant.as_str())
        .bind(tags)
        .execute(&mut *tx)
        .await?;
        if gone.rows_affected() == 0 {
            return Err(Refusal::not_found("tag").into());
        }
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(())
    }
}
