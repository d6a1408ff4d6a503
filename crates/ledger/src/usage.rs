//! `app.usage_parts`: what tenants used by day, in pages.
//!
//! ```text
//! end of a sandbox, answer of a task, artifacts, end of a call --triggers, same transaction--> a part of (tenant, day)
//! page: the parts, and sandboxes that are up until now --sum--> rows
//! ```
//! **Nothing is counted here**: triggers of the tables that say it add to the sums, and `usage_is_what_ran` computes them again.

use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::usage::{UsageDay, UsageGroup, UsageRow};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::{LedgerError, Result, id};
use crate::families::UsageRows;

/// Which usage a list has: newest day first, tenants by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageQuery {
    /// Usage of this tenant; `None`: of all tenants.
    pub tenant: Option<TenantId>,
    /// The first day (UTC) that is told.
    pub since: Option<UsageDay>,
    /// The last day (UTC) that is told.
    pub until: Option<UsageDay>,
    /// What a row is the sum of.
    pub by: UsageGroup,
    /// The last row of the page before: its day, where rows are of days, and its tenant.
    pub after: Option<(Option<UsageDay>, TenantId)>,
    /// Rows of a page, at least 1.
    pub limit: i64,
}

/// A page of usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsagePage {
    /// At most as many as the query asks for.
    pub rows: Vec<UsageRow>,
    /// Whether others follow.
    pub has_more: bool,
}

/// Sums of days, or of tenants. `$4` and `$5`: the day and the tenant of the last row of the page before.
const PAGE: &str = "WITH rows AS (
       SELECT tenant_id, CASE WHEN $6 THEN day END AS day, sum(starts)::bigint AS starts, sum(sandbox_ms)::bigint AS sandbox_ms,
              sum(core_ms)::bigint AS core_ms, (sum(memory_mb_ms) / 1000)::bigint AS memory_mb_s,
              sum(stored_bytes)::bigint AS stored_bytes, sum(sent_bytes)::bigint AS sent_bytes,
              sum(model_calls)::bigint AS model_calls, sum(model_tokens)::bigint AS model_tokens,
              sum(model_micros)::bigint AS model_micros
         FROM app.usage_now
        WHERE ($1::text IS NULL OR tenant_id = $1) AND day >= coalesce($2::text::date, '-infinity') AND day <= coalesce($3::text::date, 'infinity')
          AND ($4::text::date IS NULL OR day <= $4::text::date)
        GROUP BY tenant_id, CASE WHEN $6 THEN day END)
     SELECT tenant_id, day::text AS day, starts, sandbox_ms, core_ms, memory_mb_s, stored_bytes, sent_bytes, model_calls, model_tokens,
            model_micros
       FROM rows
      WHERE $5::text IS NULL OR (day IS NOT DISTINCT FROM $4::text::date AND tenant_id > $5) OR ($6 AND day < $4::text::date)
      ORDER BY rows.day DESC, tenant_id LIMIT $7";

impl UsageRows<'_> {
    /// A page of what tenants used.
    pub async fn page(self, query: &UsageQuery) -> Result<UsagePage> {
        let day = |day: Option<UsageDay>| day.map(|day| day.to_string());
        let (last_day, last) = query.after.clone().unzip();
        let rows = sqlx::query(PAGE)
            .bind(query.tenant.as_ref().map(TenantId::as_str))
            .bind(day(query.since))
            .bind(day(query.until))
            .bind(day(last_day.flatten()))
            .bind(last.as_ref().map(TenantId::as_str))
            .bind(query.by == UsageGroup::Day)
            .bind(query.limit.saturating_add(1))
            .fetch_all(self.pool())
            .await?;
        let limit = usize::try_from(query.limit).unwrap_or(0);
        let listed: Result<Vec<UsageRow>> = rows.iter().take(limit).map(row_of).collect();
        Ok(UsagePage { rows: listed?, has_more: rows.len() > limit })
    }
}

fn row_of(row: &PgRow) -> Result<UsageRow> {
    let number = |name: &str| -> Result<u64> {
        let number: i64 = row.try_get(name)?;
        u64::try_from(number)
            .map_err(|e| LedgerError::Row { what: "usage_parts", why: format!("{name}: {e}") })
    };
    let day: Option<String> = row.try_get("day")?;
    Ok(UsageRow {
        tenant: id("usage_parts.tenant_id", row.try_get("tenant_id")?)?,
        day: day.map(|text| id("usage_parts.day", &text)).transpose()?,
        starts: number("starts")?,
        sandbox_ms: number("sandbox_ms")?,
        core_ms: number("core_ms")?,
        memory_mb_s: number("memory_mb_s")?,
        stored_bytes: number("stored_bytes")?,
        sent_bytes: number("sent_bytes")?,
        model_calls: number("model_calls")?,
        model_tokens: number("model_tokens")?,
        model_micros: number("model_micros")?,
    })
}
