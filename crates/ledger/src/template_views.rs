//! What is listed of templates: each with its builds, and what those said.

use cofferdam_contracts::id::{BuildId, TemplateId, TemplateName, TenantId};
use cofferdam_contracts::template_build::BuildStatus;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use crate::builds::{LogEntry, MAX_TEMPLATES, small, status_of};
use crate::error::{Result, id};
use crate::families::BuildRows;

/// A template in a list.
#[derive(Debug, Clone)]
pub struct TemplateRow {
    /// Id of the template: 20 lower-case letters and digits.
    pub id: TemplateId,
    /// Name of the template, unique among those of its tenant.
    pub name: TemplateName,
    /// Its newest build that is ready; without one, its newest.
    pub build: BuildId,
    /// Where its newest build is.
    pub status: BuildStatus,
    /// CPUs of that build's sandboxes.
    pub cpu: Option<u32>,
    /// Memory of that build's sandboxes in MiB.
    pub mem_mb: Option<u32>,
    /// Builds that it had.
    pub builds: i64,
    /// Sandboxes that were asked for with it; those of its builds are not counted.
    pub spawns: i64,
    /// When the last of these was asked for, in ms since the epoch.
    pub spawned_ms: Option<i64>,
    /// ms since the epoch.
    pub created_ms: i64,
    /// ms since the epoch.
    pub updated_ms: i64,
}

/// A build in a list.
#[derive(Debug, Clone)]
pub struct BuildRow {
    /// UUID of the build, from `template_builds.id`.
    pub id: BuildId,
    /// Where it is.
    pub status: BuildStatus,
    /// CPUs of its sandboxes.
    pub cpu: Option<u32>,
    /// Memory of its sandboxes in MiB.
    pub mem_mb: Option<u32>,
    /// ms since the epoch.
    pub created_ms: i64,
    /// When it was over, in ms since the epoch.
    pub ended_ms: Option<i64>,
}

/// Which entries of a log are read by their time.
#[derive(Debug, Clone, Copy)]
pub struct LogPage<'a> {
    /// From this moment on, in ms since the epoch; where it is backward, up to it.
    pub at_ms: Option<i64>,
    /// The newest first.
    pub backward: bool,
    /// Entries of these levels.
    pub levels: &'a [&'a str],
    /// Entries at most.
    pub limit: i64,
}

// The index of sandboxes by their template has ids of templates alone.
const LISTED: &str =
    "SELECT t.id, t.name, app.ms(t.created_at) AS created_ms, app.ms(t.updated_at) AS updated_ms,
        b.id AS build_id, n.status, b.cpu, b.mem_mb, s.spawns, app.ms(s.last_at) AS spawned_ms,
        (SELECT count(*) FROM app.template_builds c WHERE c.template_id = t.id) AS builds
   FROM app.templates t
   JOIN LATERAL (SELECT * FROM app.template_builds o WHERE o.template_id = t.id
                  ORDER BY o.created_at DESC, o.id LIMIT 1) n ON true
   JOIN LATERAL (SELECT * FROM app.template_builds o WHERE o.template_id = t.id
                  ORDER BY o.status = 'ready' DESC, o.created_at DESC, o.id LIMIT 1) b ON true
   CROSS JOIN LATERAL (
        SELECT count(*) AS spawns, max(l.created_at) AS last_at FROM app.live_sandboxes l
         WHERE l.template = t.id AND length(l.template) = 20 AND l.tenant_id = t.tenant_id
           AND NOT EXISTS (SELECT 1 FROM app.template_builds o WHERE o.live_id = l.id)) s
  WHERE t.tenant_id = $1 AND t.deleted_at IS NULL";

fn listed_of(row: &PgRow) -> Result<TemplateRow> {
    Ok(TemplateRow {
        id: id("templates.id", row.try_get("id")?)?,
        name: id("templates.name", row.try_get("name")?)?,
        build: id("template_builds.id", row.try_get("build_id")?)?,
        status: status_of(row)?,
        cpu: small(row, "cpu")?,
        mem_mb: small(row, "mem_mb")?,
        builds: row.try_get("builds")?,
        spawns: row.try_get("spawns")?,
        spawned_ms: row.try_get("spawned_ms")?,
        created_ms: row.try_get("created_ms")?,
        updated_ms: row.try_get("updated_ms")?,
    })
}

fn entry_of(row: &PgRow) -> Result<LogEntry> {
    Ok(LogEntry {
        at_ms: row.try_get("at_ms")?,
        level: row.try_get("level")?,
        step: row.try_get("step")?,
        message: row.try_get("message")?,
    })
}

impl BuildRows<'_> {
    /// A tenant's templates, by name.
    pub async fn list(self, tenant: &TenantId) -> Result<Vec<TemplateRow>> {
        let query = format!("{LISTED} ORDER BY t.name LIMIT $2");
        let rows = sqlx::query(AssertSqlSafe(query))
            .bind(tenant.as_str())
            .bind(MAX_TEMPLATES)
            .fetch_all(self.pool())
            .await?;
        rows.iter().map(listed_of).collect()
    }

    /// One of them; `None`: there is none.
    pub async fn listed(
        self,
        tenant: &TenantId,
        template: &TemplateId,
    ) -> Result<Option<TemplateRow>> {
        let query = format!("{LISTED} AND t.id = $2");
        let row = sqlx::query(AssertSqlSafe(query))
            .bind(tenant.as_str())
            .bind(template.as_str())
            .fetch_optional(self.pool())
            .await?;
        row.as_ref().map(listed_of).transpose()
    }

    /// Builds of a template, newest first: those after this one.
    pub async fn of_template(
        self,
        template: &TemplateId,
        after: Option<&BuildId>,
        limit: i64,
    ) -> Result<Vec<BuildRow>> {
        let rows = sqlx::query(
            "SELECT b.id, b.status, b.cpu, b.mem_mb, app.ms(b.created_at) AS created_ms, app.ms(b.ended_at) AS ended_ms
               FROM app.template_builds b
              WHERE b.template_id = $1 AND ($2::text IS NULL OR (b.created_at, b.id) <
                    (SELECT o.created_at, o.id FROM app.template_builds o WHERE o.id = $2 AND o.template_id = $1))
              ORDER BY b.created_at DESC, b.id DESC LIMIT $3",
        )
        .bind(template.as_str())
        .bind(after.map(BuildId::as_str))
        .bind(limit)
        .fetch_all(self.pool())
        .await?;
        let read = |row: &PgRow| {
            Ok(BuildRow {
                id: id("template_builds.id", row.try_get("id")?)?,
                status: status_of(row)?,
                cpu: small(row, "cpu")?,
                mem_mb: small(row, "mem_mb")?,
                created_ms: row.try_get("created_ms")?,
                ended_ms: row.try_get("ended_ms")?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// A build's log from this entry on, counted among those of these levels; `None`: all levels.
    pub async fn log(
        self,
        build: &BuildId,
        from: i32,
        limit: i64,
        levels: Option<&[&str]>,
    ) -> Result<Vec<LogEntry>> {
        // Entries are numbered without gaps, so that the usual question is the index's.
        let (seq, offset) = if levels.is_some() { (0, from) } else { (from, 0) };
        let rows = sqlx::query(
            "SELECT at_ms, level, step, message FROM app.template_logs
              WHERE build_id = $1 AND seq >= $2 AND ($5::text[] IS NULL OR level = ANY($5))
              ORDER BY seq OFFSET $4 LIMIT $3",
        )
        .bind(build.as_str())
        .bind(seq)
        .bind(limit)
        .bind(i64::from(offset))
        .bind(levels)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(entry_of).collect()
    }

    /// A build's log by time.
    pub async fn log_page(self, build: &BuildId, page: &LogPage<'_>) -> Result<Vec<LogEntry>> {
        let (order, bound) = if page.backward { ("DESC", "<=") } else { ("ASC", ">=") };
        let query = format!(
            "SELECT at_ms, level, step, message FROM app.template_logs
              WHERE build_id = $1 AND ($2::bigint IS NULL OR at_ms {bound} $2) AND level = ANY($3)
              ORDER BY seq {order} LIMIT $4"
        );
        let rows = sqlx::query(AssertSqlSafe(query))
            .bind(build.as_str())
            .bind(page.at_ms)
            .bind(page.levels)
            .bind(page.limit)
            .fetch_all(self.pool())
            .await?;
        rows.iter().map(entry_of).collect()
    }
}
