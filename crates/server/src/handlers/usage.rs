//! `GET /api/usage`: what tenants used, by day or in all.

use std::collections::BTreeMap;

use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::usage::{UsageDay, UsageGroup, UsageRow};
use cofferdam_ledger::usage::UsageQuery;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::answer::{AnswerResult, list};
use crate::call::{Call, query_error};
use crate::handlers::run_list::{next_path, tenant};

/// Rows of one page: more than a year of days.
const MAX_PAGE: i64 = 500;

pub(crate) async fn usage_list(call: Call) -> AnswerResult {
    let by = call.one_of("by", UsageGroup::ALL, UsageGroup::as_str)?.unwrap_or(UsageGroup::Day);
    let wanted = UsageQuery {
        tenant: tenant(&call.who, call.query.get("tenant"), "usage rows")?,
        since: day(&call.query, "since")?,
        until: day(&call.query, "until")?,
        by,
        after: call.query.get("after").map(|text| cursor(by, text)).transpose()?,
        limit: call.number("limit", 1..=MAX_PAGE, 50)?,
    };
    let page = call.flows().ledger.usage().page(&wanted).await?;
    let last = page.rows.last().filter(|_| page.has_more);
    let next = last.map(|last| {
        let last = utf8_percent_encode(&cursor_of(last), NON_ALPHANUMERIC).to_string();
        next_path("/api/usage", &call.query, &last)
    });
    list(&page.rows, next)
}

fn day(query: &BTreeMap<String, String>, name: &str) -> Result<Option<UsageDay>, Refusal> {
    let parse = |text: &String| {
        text.parse().map_err(|_| query_error(name, "a day in UTC, such as 2026-01-19"))
    };
    query.get(name).map(parse).transpose()
}

/// A row as the cursor of the page after it: `2026-01-19/acme`, or `acme` where rows are sums of days. Pure.
fn cursor_of(row: &UsageRow) -> String {
    match row.day {
        Some(day) => format!("{day}/{}", row.tenant),
        None => row.tenant.to_string(),
    }
}

/// Reads [`cursor_of`]. Pure.
fn cursor(by: UsageGroup, text: &str) -> Result<(Option<UsageDay>, TenantId), Refusal> {
    let wrong = || query_error("after", "the last row of a page, as its header Link says it");
    let (day, name) = match by {
        UsageGroup::Day => {
            let (day, name) = text.split_once('/').ok_or_else(wrong)?;
            (Some(day.parse().map_err(|_| wrong())?), name)
        }
        UsageGroup::Tenant => (None, text),
    };
    Ok((day, TenantId::parse(name).map_err(|_| wrong())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_as_it_is_written_and_fits_what_rows_are_of() {
        let tenant = TenantId::parse("acme").unwrap();
        let mut row = UsageRow {
            tenant: tenant.clone(),
            day: Some("2026-01-19".parse().unwrap()),
            starts: 0,
            sandbox_ms: 0,
            core_ms: 0,
            memory_mb_s: 0,
            stored_bytes: 0,
            sent_bytes: 0,
            model_calls: 0,
            model_tokens: 0,
            model_micros: 0,
        };
        let text = cursor_of(&row);
        assert_eq!(text, "2026-01-19/acme");
        assert_eq!(cursor(UsageGroup::Day, &text).unwrap(), (row.day, tenant.clone()));
        row.day = None;
        assert_eq!(cursor(UsageGroup::Tenant, &cursor_of(&row)).unwrap(), (None, tenant));
        for (by, bad) in [
            (UsageGroup::Day, "acme"),
            (UsageGroup::Day, "2026-02-30/acme"),
            (UsageGroup::Day, "2026-01-19/"),
            (UsageGroup::Tenant, "2026-01-19/acme"),
        ] {
            assert!(cursor(by, bad).is_err(), "{bad}");
        }
    }
}
