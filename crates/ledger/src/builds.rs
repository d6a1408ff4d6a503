//! `app.templates`, `app.template_builds`, `app.template_logs`: templates that tenants build.
//!
//! **A build is `building` from the commit that records its sandbox, and no longer than that sandbox lives**: a trigger
//! ends it with the sandbox, whoever that was ended by.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{BuildId, LiveId, SnapshotId, TemplateId, TemplateName, TenantId};
use cofferdam_contracts::template_build::BuildStatus;
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::audit::{Audit, append};
use crate::error::{OpResult, Result, id, load};
use crate::families::BuildRows;
use crate::snapshots::{NewSnapshotFiles, insert as snapshot_insert};
use crate::template_layers::{NewLayer, insert as layer_insert};

/// Templates that a tenant may have, each with a name of its own.
pub(crate) const MAX_TEMPLATES: i64 = 1_000;
/// Builds of one template that wait for their steps.
const MAX_WAITING: i64 = 64;

/// A build to be recorded.
#[derive(Debug, Clone, Copy)]
pub struct NewBuild<'a> {
    /// New UUID of the build, primary key of `app.template_builds`.
    pub id: &'a BuildId,
    /// Id of the template, where there is none of the name yet.
    pub template: &'a TemplateId,
    /// The template's name.
    pub name: &'a TemplateName,
    /// Tags that it gets once it is ready.
    pub tags: &'a [String],
    /// CPUs of its sandboxes.
    pub cpu: Option<u32>,
    /// Memory of its sandboxes in MiB.
    pub mem_mb: Option<u32>,
}

/// What a sandbox is made for, where that is a build.
#[derive(Debug, Clone, Copy)]
pub struct NewBuildAssignment<'a> {
    /// Build whose steps the sandbox runs; it must be `waiting`.
    pub build: &'a BuildId,
    /// The layer that it goes on from, and how many steps that has behind it.
    pub layer: Option<(&'a SnapshotId, usize)>,
}

/// A build on record.
#[derive(Debug, Clone)]
pub struct Build {
    /// UUID of the build, from `template_builds.id`.
    pub id: BuildId,
    /// Template that the build makes; builds of deleted templates are not read.
    pub template: TemplateId,
    /// The template's name.
    pub name: TemplateName,
    /// Where it is.
    pub status: BuildStatus,
    /// Why it failed.
    pub reason: Option<String>,
    /// The step that failed: its number, `base` or `finalize`.
    pub step: Option<String>,
    /// CPUs of its sandboxes.
    pub cpu: Option<u32>,
    /// Memory of its sandboxes in MiB.
    pub mem_mb: Option<u32>,
    /// The sandbox that runs its steps.
    pub live: Option<LiveId>,
    /// The files that it left.
    pub snapshot: Option<SnapshotId>,
}

/// One entry of a build's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// ms since the epoch.
    pub at_ms: i64,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The step that it is of.
    pub step: Option<String>,
    /// What was said, one line.
    pub message: String,
}

const BUILD: &str = "SELECT b.*, t.name FROM app.template_builds b JOIN app.templates t ON t.id = b.template_id AND t.deleted_at IS NULL";

pub(crate) fn small(row: &PgRow, column: &str) -> Result<Option<u32>> {
    let value: Option<i32> = row.try_get(column)?;
    Ok(value.and_then(|value| u32::try_from(value).ok()))
}

pub(crate) fn status_of(row: &PgRow) -> Result<BuildStatus> {
    load("template_builds.status", Value::String(row.try_get("status")?))
}

fn build_of(row: &PgRow) -> Result<Build> {
    let live: Option<String> = row.try_get("live_id")?;
    let snapshot: Option<String> = row.try_get("snapshot_id")?;
    Ok(Build {
        id: id("template_builds.id", row.try_get("id")?)?,
        template: id("template_builds.template_id", row.try_get("template_id")?)?,
        name: id("templates.name", row.try_get("name")?)?,
        status: status_of(row)?,
        reason: row.try_get("reason")?,
        step: row.try_get("step")?,
        cpu: small(row, "cpu")?,
        mem_mb: small(row, "mem_mb")?,
        live: live.map(|text| id("template_builds.live_id", &text)).transpose()?,
        snapshot: snapshot.map(|text| id("template_builds.snapshot_id", &text)).transpose()?,
    })
}

/// In the commit that records its sandbox: from now on the build is under way.
pub(crate) async fn build_begins(
    conn: &mut PgConnection,
    &NewBuildAssignment { build, layer }: &NewBuildAssignment<'_>,
    live: &LiveId,
    tenant: &TenantId,
) -> OpResult<()> {
    // One after the other, so that two of one template do not both begin.
    let locked = sqlx::query(
        "SELECT 1 FROM app.templates t JOIN app.template_builds b ON b.template_id = t.id
          WHERE b.id = $1 AND b.tenant_id = $2 AND t.deleted_at IS NULL FOR UPDATE OF t",
    )
    .bind(build.as_str())
    .bind(tenant.as_str())
    .fetch_optional(&mut *conn)
    .await?;
    if locked.is_none() {
        return Err(Refusal::not_found("build").into());
    }
    let begun = sqlx::query(
        "UPDATE app.template_builds b SET status = 'building', live_id = $2, layer_id = $3, cached = $4
          WHERE b.id = $1 AND b.status = 'waiting' AND NOT EXISTS (
                SELECT 1 FROM app.template_builds o WHERE o.template_id = b.template_id AND o.status = 'building')",
    )
    .bind(build.as_str())
    .bind(live.as_str())
    .bind(layer.map(|(layer, _)| layer.as_str()))
    .bind(layer.and_then(|(_, steps)| i32::try_from(steps).ok()))
    .execute(&mut *conn)
    .await?;
    if begun.rows_affected() == 1 {
        return Ok(());
    }
    let why = "this build was started before, or another build of its template is running: wait for its end";
    Err(Refusal::new(ErrorCode::StateConflict, why).into())
}

impl BuildRows<'_> {
    /// Records a build, and its template where there is none of the name; the template's id.
    pub async fn open(self, new: &NewBuild<'_>, audit: &Audit<'_>) -> OpResult<TemplateId> {
        let mut tx = self.pool().begin().await?;
        let count: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM app.templates WHERE tenant_id = $1 AND deleted_at IS NULL AND name <> $2",
        )
        .bind(audit.tenant.as_str())
        .bind(new.name.as_str())
        .fetch_one(&mut *tx)
        .await?;
        if count >= MAX_TEMPLATES {
            let why = format!("the tenant has {count} templates: delete some");
            return Err(Refusal::new(ErrorCode::PolicyViolation, why).into());
        }
        let template: String = sqlx::query_scalar(
            "INSERT INTO app.templates (id, tenant_id, name, key_id) VALUES ($1, $2, $3, $4)
             ON CONFLICT (tenant_id, name) WHERE deleted_at IS NULL DO UPDATE SET updated_at = clock_timestamp()
             RETURNING id",
        )
        .bind(new.template.as_str())
        .bind(audit.tenant.as_str())
        .bind(new.name.as_str())
        .bind(audit.key_id)
        .fetch_one(&mut *tx)
        .await?;
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM app.template_builds WHERE template_id = $1 AND status = 'waiting'",
        )
        .bind(&template)
        .fetch_one(&mut *tx)
        .await?;
        if waiting >= MAX_WAITING {
            let why = format!(
                "{waiting} builds of this template wait for their steps: start them, or delete it"
            );
            return Err(Refusal::new(ErrorCode::StateConflict, why).into());
        }
        let narrow = |value: Option<u32>| value.and_then(|value| i32::try_from(value).ok());
        sqlx::query(
            "INSERT INTO app.template_builds (id, template_id, tenant_id, key_id, cpu, mem_mb, tags)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(new.id.as_str())
        .bind(&template)
        .bind(audit.tenant.as_str())
        .bind(audit.key_id)
        .bind(narrow(new.cpu))
        .bind(narrow(new.mem_mb))
        .bind(new.tags)
        .execute(&mut *tx)
        .await?;
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(id("templates.id", &template)?)
    }

    /// A tenant's template, by its id or its name; `None`: there is none.
    pub async fn template(
        self,
        tenant: &TenantId,
        text: &str,
    ) -> Result<Option<(TemplateId, TemplateName)>> {
        // A name that looks like an id is found too, after the id.
        let row = sqlx::query(
            "SELECT id, name FROM app.templates WHERE tenant_id = $1 AND deleted_at IS NULL AND (id = $2 OR name = $2)
              ORDER BY id = $2 DESC LIMIT 1",
        )
        .bind(tenant.as_str())
        .bind(text)
        .fetch_optional(self.pool())
        .await?;
        let read = |row: PgRow| {
            let of: (&str, &str) = (row.try_get("id")?, row.try_get("name")?);
            Ok((id("templates.id", of.0)?, id("templates.name", of.1)?))
        };
        row.map(read).transpose()
    }

    /// A build of a tenant's template; `None`: there is none.
    pub async fn build(
        self,
        tenant: &TenantId,
        template: &TemplateId,
        build: &BuildId,
    ) -> Result<Option<Build>> {
        let query = format!("{BUILD} WHERE b.id = $1 AND b.template_id = $2 AND b.tenant_id = $3");
        let row = sqlx::query(AssertSqlSafe(query))
            .bind(build.as_str())
            .bind(template.as_str())
            .bind(tenant.as_str())
            .fetch_optional(self.pool())
            .await?;
        row.as_ref().map(build_of).transpose()
    }

    /// The ready build that a tag of a template names, or the tag itself is the id of, while its files are kept; `None`: there
    /// is none.
    pub async fn tagged(
        self,
        tenant: &TenantId,
        template: &TemplateId,
        tag: &str,
    ) -> Result<Option<Build>> {
        let query = format!(
            "{BUILD} JOIN app.snapshots s ON s.id = b.snapshot_id AND s.erased_at IS NULL
              WHERE t.id = $1 AND t.tenant_id = $2 AND b.status = 'ready' AND (b.id = $3 OR b.id =
                    (SELECT g.build_id FROM app.template_tags g WHERE g.template_id = t.id AND g.tag = $3))
              ORDER BY b.id = $3 DESC LIMIT 1"
        );
        let row = sqlx::query(AssertSqlSafe(query))
            .bind(template.as_str())
            .bind(tenant.as_str())
            .bind(tag)
            .fetch_optional(self.pool())
            .await?;
        row.as_ref().map(build_of).transpose()
    }

    /// Records that a build is ready, its files, which may be a layer, and its tags, or nothing at all. `false`: its sandbox
    /// ended before.
    pub async fn ready(
        self,
        build: &BuildId,
        files: &NewSnapshotFiles<'_>,
        layer: Option<&NewLayer<'_>>,
        audit: &Audit<'_>,
    ) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        if !snapshot_insert(&mut tx, files, audit).await? {
            return Ok(false);
        }
        let ready = sqlx::query(
            "UPDATE app.template_builds b SET status = 'ready', snapshot_id = $2, ended_at = clock_timestamp()
               FROM app.templates t
              WHERE b.id = $1 AND b.status = 'building' AND t.id = b.template_id AND t.deleted_at IS NULL",
        )
        .bind(build.as_str())
        .bind(files.id.as_str())
        .execute(&mut *tx)
        .await?;
        if ready.rows_affected() != 1 {
            return Ok(false);
        }
        if let Some(layer) = layer {
            layer_insert(&mut tx, files.id, layer).await?;
        }
        sqlx::query(
            "INSERT INTO app.template_tags (template_id, tag, build_id)
             SELECT b.template_id, g.tag, b.id FROM app.template_builds b, unnest(b.tags) AS g(tag) WHERE b.id = $1
             ON CONFLICT (template_id, tag) DO UPDATE SET build_id = excluded.build_id, assigned_at = clock_timestamp()",
        )
        .bind(build.as_str())
        .execute(&mut *tx)
        .await?;
        let query = "UPDATE app.templates SET updated_at = clock_timestamp()
                      WHERE id = (SELECT template_id FROM app.template_builds WHERE id = $1)";
        sqlx::query(query).bind(build.as_str()).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Records that a build failed, unless it is over.
    pub async fn failed(self, build: &BuildId, reason: &str, step: Option<&str>) -> Result<()> {
        sqlx::query(
            "UPDATE app.template_builds SET status = 'error', reason = $2, step = $3, ended_at = clock_timestamp()
              WHERE id = $1 AND ended_at IS NULL",
        )
        .bind(build.as_str())
        .bind(reason)
        .bind(step)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Records that the build of a sandbox that was not made failed; what has no build, or one that is over, stays.
    pub async fn failed_unmade(self, live: &LiveId, reason: &str) -> Result<()> {
        sqlx::query(
            "UPDATE app.template_builds SET status = 'error', reason = $2, step = 'base', ended_at = clock_timestamp()
              WHERE live_id = $1 AND ended_at IS NULL",
        )
        .bind(live.as_str())
        .bind(reason)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Appends to a build's log; the first one has this number.
    pub async fn log_append(self, build: &BuildId, from: i32, entries: &[LogEntry]) -> Result<()> {
        let times: Vec<i64> = entries.iter().map(|entry| entry.at_ms).collect();
        let levels: Vec<&str> = entries.iter().map(|entry| entry.level.as_str()).collect();
        let steps: Vec<Option<&str>> = entries.iter().map(|entry| entry.step.as_deref()).collect();
        let messages: Vec<&str> = entries.iter().map(|entry| entry.message.as_str()).collect();
        sqlx::query(
            "INSERT INTO app.template_logs (build_id, seq, at_ms, level, step, message)
             SELECT $1, $2 + e.number::integer - 1, e.at, e.level, e.step, e.message
               FROM unnest($3::bigint[], $4::text[], $5::text[], $6::text[])
                    WITH ORDINALITY AS e(at, level, step, message, number)
             ON CONFLICT DO NOTHING",
        )
        .bind(build.as_str())
        .bind(from)
        .bind(times)
        .bind(levels)
        .bind(steps)
        .bind(messages)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Deletes a template; its files are still to be erased. Refused while a build of it runs.
    pub async fn delete(self, template: &TemplateId, audit: &Audit<'_>) -> OpResult<()> {
        let mut tx = self.pool().begin().await?;
        let found = sqlx::query(
            "SELECT 1 FROM app.templates WHERE id = $1 AND tenant_id = $2 AND deleted_at IS NULL FOR UPDATE",
        )
        .bind(template.as_str())
        .bind(audit.tenant.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        if found.is_none() {
            return Err(Refusal::not_found("template").into());
        }
        let runs: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM app.template_builds WHERE template_id = $1 AND status = 'building')",
        )
        .bind(template.as_str())
        .fetch_one(&mut *tx)
        .await?;
        if runs {
            let why = "a build of this template is running: wait for its end";
            return Err(Refusal::new(ErrorCode::StateConflict, why).into());
        }
        let query = "UPDATE app.templates SET deleted_at = clock_timestamp() WHERE id = $1";
        sqlx::query(query).bind(template.as_str()).execute(&mut *tx).await?;
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Destroys the keys of files whose build no tag names.
    pub async fn erase_untagged(self) -> Result<()> {
        sqlx::query(
            "UPDATE app.snapshots s SET sealed_key = NULL, erased_at = clock_timestamp()
              WHERE s.kind = 'template' AND s.erased_at IS NULL AND NOT EXISTS (
                    SELECT 1 FROM app.template_builds b
                      JOIN app.template_tags g ON g.build_id = b.id
                      JOIN app.templates t ON t.id = g.template_id AND t.deleted_at IS NULL
                     WHERE b.snapshot_id = s.id)",
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Ends builds whose steps never came, and forgets logs a week after the end.
    pub async fn end_unstarted(self) -> Result<()> {
        sqlx::query(
            "DELETE FROM app.template_logs g USING app.template_builds b
              WHERE b.id = g.build_id AND b.ended_at < clock_timestamp() - interval '7 days'",
        )
        .execute(self.pool())
        .await?;
        sqlx::query(
            "UPDATE app.template_builds SET status = 'error', reason = 'its steps did not come within a day',
                    ended_at = clock_timestamp()
              WHERE status = 'waiting' AND created_at < clock_timestamp() - interval '1 day'",
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }
}
