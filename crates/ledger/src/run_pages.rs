//! `app.runs`, many at a time: pages of a list, newest first, and the runs that a name may mean.
//!
//! A page is a keyset of (created_at, id): its cursor is the last run of the page before, so that runs which are added meanwhile move
//! nothing. **What a run waits for is computed for the rows of a page and never to find them**, except for those that the engine runs
//! at this moment, which a filter on `queued` or `running` has to tell apart.

use cofferdam_contracts::id::{RecipeId, RunId, TenantId};
use cofferdam_contracts::run::{RunHeader, RunStatus};
use cofferdam_contracts::run_name::{MAX_CANDIDATES, RunPrefix};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::{Result, id};
use crate::families::Runs;
use crate::keys::Principal;
use crate::runs::{HEADER, STATUS, header_of};

/// Which runs a list has, newest first.
#[derive(Debug, Clone)]
pub struct RunQuery {
    /// Runs of this tenant; `None`: of all tenants, each then with its tenant.
    pub tenant: Option<TenantId>,
    /// Runs that are shown with one of these; empty: with any.
    pub statuses: Vec<RunStatus>,
    /// Runs of this recipe, in any version.
    pub recipe: Option<RecipeId>,
    /// Runs that were created then or later, in ms since the epoch.
    pub since_ms: Option<i64>,
    /// Runs that were created before that, in ms since the epoch.
    pub until_ms: Option<i64>,
    /// The last run of the page before.
    pub after: Option<RunId>,
    /// Rows of a page, at least 1.
    pub limit: i64,
}

/// A page of a list.
#[derive(Debug, Clone)]
pub struct RunPage {
    /// At most as many as the query asks for.
    pub runs: Vec<RunHeader>,
    /// Whether older runs follow.
    pub has_more: bool,
}

/// The statuses of rows among which all runs are that are shown with one of `shown`. Pure.
fn stored(shown: &[RunStatus]) -> Vec<&'static str> {
    let is_wanted = |status: &RunStatus| {
        shown.is_empty()
            || shown.contains(status)
            // A run that the engine runs is shown as queued until the first of its tasks begins.
            || (*status == RunStatus::Running && shown.contains(&RunStatus::Queued))
    };
    RunStatus::ALL.iter().copied().filter(is_wanted).map(RunStatus::as_str).collect()
}

/// Whether rows with the status `running` have to be asked one by one how they are shown. Pure.
fn asks_each(shown: &[RunStatus]) -> bool {
    shown.contains(&RunStatus::Running) != shown.contains(&RunStatus::Queued)
}

/// What a row of a page is held against. `$2`: as it is stored; `$3`: as it is shown.
fn filter() -> String {
    format!(
        "($4::text IS NULL OR r.recipe_id = $4)
         AND r.created_at >= coalesce(timestamptz 'epoch' + $5::bigint * interval '1 millisecond', '-infinity')
         AND r.created_at < coalesce(timestamptz 'epoch' + $6::bigint * interval '1 millisecond', 'infinity')
         AND (r.created_at, r.id) < (coalesce($7::timestamptz, 'infinity'), coalesce($8::text, ''))
         AND (r.status <> 'running' OR NOT $9::bool OR {STATUS} = ANY($3::text[]))"
    )
}

/// The keys of a page. One tenant's are the newest of each status together, each from the index; `$10`: how many.
fn keys(is_of_one: bool) -> String {
    let (filter, order) = (filter(), "ORDER BY r.created_at DESC, r.id DESC LIMIT $10");
    match is_of_one {
        true => format!(
            "SELECT r.id, r.created_at FROM unnest($2::text[]) AS s(status) CROSS JOIN LATERAL (
               SELECT r.id, r.created_at FROM app.runs r
                WHERE r.tenant_id = $1::text AND r.status = s.status AND {filter} {order}) r {order}"
        ),
        false => format!(
            "SELECT r.id, r.created_at FROM app.runs r
              WHERE $1::text IS NULL AND r.status = ANY($2::text[]) AND {filter} {order}"
        ),
    }
}

impl Runs<'_> {
    /// A page of runs; `None` where `after` is no run that the list could have.
    pub async fn page(self, query: &RunQuery) -> Result<Option<RunPage>> {
        let tenant = query.tenant.as_ref().map(TenantId::as_str);
        let mut cursor: Option<String> = None;
        if let Some(after) = &query.after {
            cursor = sqlx::query_scalar(
                "SELECT created_at::text FROM app.runs WHERE id = $1 AND ($2::text IS NULL OR tenant_id = $2)",
            )
            .bind(after.as_str())
            .bind(tenant)
            .fetch_optional(self.pool())
            .await?;
            if cursor.is_none() {
                return Ok(None);
            }
        }
        let shown: Vec<&str> = query.statuses.iter().map(|status| status.as_str()).collect();
        let keys = keys(tenant.is_some());
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "WITH page AS MATERIALIZED ({keys})
             SELECT {HEADER} FROM page JOIN app.runs r ON r.id = page.id
               LEFT JOIN dbos.workflow_status w ON w.workflow_uuid = r.workflow_id
              ORDER BY page.created_at DESC, page.id DESC"
        )))
        .bind(tenant)
        .bind(stored(&query.statuses))
        .bind(shown)
        .bind(query.recipe.as_ref().map(RecipeId::as_str))
        .bind(query.since_ms)
        .bind(query.until_ms)
        .bind(cursor)
        .bind(query.after.as_ref().map(RunId::as_str))
        .bind(asks_each(&query.statuses))
        .bind(query.limit.saturating_add(1))
        .fetch_all(self.pool())
        .await?;
        let limit = usize::try_from(query.limit).unwrap_or(0);
        let header = |row: &PgRow| {
            let mut header = header_of(row)?;
            if tenant.is_none() {
                header.tenant_id = Some(id("runs.tenant_id", row.try_get("tenant_id")?)?);
            }
            Ok(header)
        };
        let runs: Result<Vec<RunHeader>> = rows.iter().take(limit).map(header).collect();
        Ok(Some(RunPage { runs: runs?, has_more: rows.len() > limit }))
    }

    /// A tenant's runs whose id begins so, newest first: at most one more than a refusal lists.
    pub async fn with_prefix(self, tenant: &TenantId, prefix: &RunPrefix) -> Result<Vec<RunId>> {
        let most = i64::try_from(MAX_CANDIDATES).unwrap_or(0).saturating_add(1);
        // Every digit is before `g`. Operators of the pattern index, which a parameter of LIKE would not use.
        let found: Vec<String> = sqlx::query_scalar(
            "SELECT id FROM (SELECT id, created_at FROM app.runs
                              WHERE tenant_id = $1 AND id ~>=~ $2 AND id ~<~ ($2 || 'g') LIMIT $3) r
              ORDER BY created_at DESC, id DESC",
        )
        .bind(tenant.as_str())
        .bind(prefix.as_str())
        .bind(most)
        .fetch_all(self.pool())
        .await?;
        found.iter().map(|text| id("runs.id", text)).collect()
    }

    /// The newest run that a key started in its tenant.
    pub async fn newest_of(self, who: &Principal) -> Result<Option<RunId>> {
        let found: Option<String> = sqlx::query_scalar(
            "SELECT id FROM app.runs WHERE key_id = $1 AND tenant_id = $2
              ORDER BY created_at DESC, id DESC LIMIT 1",
        )
        .bind(&who.key_id)
        .bind(who.tenant.as_str())
        .fetch_optional(self.pool())
        .await?;
        found.map(|text| id("runs.id", &text)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_asks_no_row_what_it_waits_for_unless_it_tells_queued_from_running() {
        use RunStatus::{Failed, Queued, Running, Succeeded};
        for (shown, rows, asks) in [
            (vec![], RunStatus::ALL.len(), false),
            (vec![Failed, Succeeded], 2, false),
            (vec![Queued, Running], 2, false),
            // Of those that the engine runs, some are shown as queued.
            (vec![Queued], 2, true),
            (vec![Running], 1, true),
        ] {
            assert_eq!((stored(&shown).len(), asks_each(&shown)), (rows, asks), "{shown:?}");
        }
        assert!(stored(&[Queued]).contains(&"running"));
    }

    #[test]
    fn what_a_run_waits_for_is_of_a_pages_rows() {
        for keys in [keys(true), keys(false)] {
            // Once, behind the condition that the row runs and that the filter needs it.
            assert_eq!(keys.matches("run_waits_for").count(), 1, "{keys}");
            assert!(keys.contains("r.status <> 'running' OR NOT $9::bool OR CASE"), "{keys}");
        }
    }
}
