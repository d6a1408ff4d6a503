//! `GET /api/runs`: which runs are asked for, and the address of the page after.

use std::collections::BTreeMap;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{RecipeId, RunId, TenantId};
use cofferdam_contracts::instant::Instant;
use cofferdam_contracts::run::{RunHeader, RunStatus};
use cofferdam_contracts::run_name::RunName;
use cofferdam_flows::Error;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::run_pages::RunQuery;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::answer::{AnswerResult, list};
use crate::call::{Call, query_error};
use crate::handlers::keys::ALL;

/// Runs of one page: what a run waits for is computed for each of them.
const MAX_PAGE: i64 = 500;

type Query = BTreeMap<String, String>;

pub(crate) async fn run_list(call: Call) -> AnswerResult {
    let wanted = wanted(&call).await?;
    let page = call.flows().ledger.runs().page(&wanted).await?;
    let page = page.ok_or_else(|| query_error("after", "a run that the list may have"))?;
    let last = page.runs.last().filter(|_| page.has_more);
    list(&page.runs, last.map(|last| next(&call.query, last)))
}

async fn wanted(call: &Call) -> Result<RunQuery, Error> {
    let query = &call.query;
    Ok(RunQuery {
        tenant: tenant(&call.who, query.get("tenant"), "runs")?,
        statuses: statuses(query.get("status"), call.flag("failed")?)?,
        recipe: parsed::<RecipeId>(query, "recipe", "a recipe's id")?,
        since_ms: instant(query, "since")?,
        until_ms: instant(query, "until")?,
        limit: call.number("limit", 1..=MAX_PAGE, 50)?,
        after: match parsed::<RunName>(query, "after", "a run")? {
            Some(name) => Some(whole(&call.named(&name).await.map_err(cursor)?)?),
            None => None,
        },
    })
}

fn parsed<T: std::str::FromStr>(
    query: &Query,
    name: &str,
    what: &str,
) -> Result<Option<T>, Refusal> {
    let parse = |text: &String| text.parse().map_err(|_| query_error(name, what));
    query.get(name).map(parse).transpose()
}

fn instant(query: &Query, name: &str) -> Result<Option<i64>, Refusal> {
    let instant = parsed::<Instant>(query, name, "an instant, such as 2026-01-19T08:30:00Z")?;
    Ok(instant.map(Instant::ms))
}

/// A page after no run is a query that is wrong, and no resource that is missing. Pure.
fn cursor(error: Error) -> Error {
    match error {
        Error::Refused(refusal) if refusal.code == ErrorCode::NotFound => {
            query_error("after", "a run that the list may have").into()
        }
        error => error,
    }
}

fn whole(run: &str) -> Result<RunId, Refusal> {
    run.parse().map_err(|_| query_error("after", "the id of a run"))
}

/// Whose rows of a list they are; `None`: all tenants'. Pure.
///
/// # Errors
/// 403 `forbidden` where another tenant's are asked for by who is not the host's admin.
pub(super) fn tenant(
    who: &Principal,
    asked: Option<&String>,
    what: &str,
) -> Result<Option<TenantId>, Refusal> {
    let Some(asked) = asked else { return Ok(Some(who.tenant.clone())) };
    let tenant = match asked.as_str() {
        ALL => None,
        one => {
            Some(TenantId::parse(one).map_err(|_| query_error("tenant", "a tenant's name, or *"))?)
        }
    };
    if who.is_host_admin() || tenant.as_ref() == Some(&who.tenant) {
        return Ok(tenant);
    }
    let message = format!(
        "another tenant's {what} need the host's admin key; leave out tenant for your own {what}"
    );
    Err(Refusal::new(ErrorCode::Forbidden, message))
}

/// The statuses that are asked for; empty: any. Pure.
fn statuses(asked: Option<&String>, failed: bool) -> Result<Vec<RunStatus>, Refusal> {
    let Some(asked) = asked else {
        let failures = RunStatus::ALL.iter().copied().filter(|status| status.is_retryable());
        return Ok(if failed { failures.collect() } else { Vec::new() });
    };
    if failed {
        return Err(query_error("failed", "left out where status is given"));
    }
    let mut statuses = Vec::new();
    // A list that is longer than there are statuses repeats one.
    for name in asked.split(',') {
        match RunStatus::parse(name) {
            Some(status) if !statuses.contains(&status) => statuses.push(status),
            _ => {
                let names: Vec<&str> = RunStatus::ALL.iter().map(|one| one.as_str()).collect();
                let names = names.join(", ");
                return Err(query_error("status", &format!("one or more of {names}, each once")));
            }
        }
    }
    Ok(statuses)
}

/// The path of the page after the one that ends with `last`: the same query, from there. Pure.
fn next(query: &Query, last: &RunHeader) -> String {
    next_path("/api/runs", query, last.run_id.as_str())
}

/// The same of any list; `last` as it stands in a path. Pure.
pub(super) fn next_path(list: &str, query: &Query, last: &str) -> String {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let mut pairs: Vec<String> = query
        .iter()
        .filter(|(name, _)| *name != "after")
        .map(|(name, value)| format!("{name}={}", encoded(value)))
        .collect();
    pairs.push(format!("after={last}"));
    format!("{list}?{}", pairs.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::key::Role;
    use serde_json::json;

    fn who(tenant: &str, role: Role) -> Principal {
        let tenant = TenantId::parse(tenant).unwrap();
        Principal { key_id: "k".into(), tenant, roles: vec![role] }
    }

    #[test]
    fn other_tenants_runs_are_the_hosts_admins_to_list() {
        let asked = |who: &Principal, asked: &str| {
            let tenant = tenant(who, Some(&asked.to_owned()), "runs");
            tenant.map(|tenant| tenant.map(String::from)).map_err(|refusal| refusal.code)
        };
        let host = who("default", Role::Admin);
        assert_eq!(asked(&host, "*"), Ok(None));
        assert_eq!(asked(&host, "acme"), Ok(Some("acme".to_owned())));
        assert_eq!(asked(&host, "!"), Err(ErrorCode::SchemaViolation));
        for who in [who("acme", Role::Admin), who("default", Role::Auditor)] {
            let own = who.tenant.to_string();
            assert_eq!(asked(&who, &own), Ok(Some(own)));
            for other in ["*", "other"] {
                assert_eq!(asked(&who, other), Err(ErrorCode::Forbidden), "{who:?} {other}");
            }
            assert_eq!(tenant(&who, None, "runs"), Ok(Some(who.tenant.clone())));
        }
    }

    #[test]
    fn statuses_are_a_list_without_repeats_and_failed_stands_for_two() {
        let of = |text: &str| statuses(Some(&text.to_owned()), false);
        assert_eq!(of("queued,running"), Ok(vec![RunStatus::Queued, RunStatus::Running]));
        assert_eq!(
            statuses(None, true),
            Ok(vec![RunStatus::Failed, RunStatus::RetriesExceeded]),
            "what retry takes"
        );
        assert_eq!(statuses(None, false), Ok(Vec::new()));
        for bad in ["", "queued,", "queued,queued", "Queued", "queued, running"] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
        assert!(statuses(Some(&"queued".to_owned()), true).is_err());
    }

    #[test]
    fn the_page_after_has_the_same_query_and_begins_at_the_last_run() {
        let hex = "a".repeat(32);
        let last: RunHeader = serde_json::from_value(json!({
            "workflowID": "w", "runId": format!("rn_{hex}"), "intentId": format!("it_{hex}"), "status": "failed",
            "workflowName": "run", "createdAt": 1, "updatedAt": 1, "nextAction": "NONE", "appVersion": "1",
            "executionMode": "LOCAL_NATIVE", "retryCount": 0,
        }))
        .unwrap();
        let query: Query = [("after", "rn_old"), ("limit", "2"), ("tenant", "*&x=\u{e9}")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        assert_eq!(
            next(&query, &last),
            format!("/api/runs?limit=2&tenant=%2A%26x%3D%C3%A9&after=rn_{hex}")
        );
    }
}
