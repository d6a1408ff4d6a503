//! Lists of sandboxes.

use axum::http::HeaderValue;
use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::instant::Instant;
use cofferdam_contracts::live::LiveState;
use cofferdam_ledger::live::LiveFilter;

use crate::call::{Call, Outcome};
use crate::query::MAX_PAGE;
use crate::sandbox::answers::SandboxItem;
use crate::{answer, query};

/// Rows of the older list, which has no pages.
const MAX_LIST: i64 = 1_000;

/// What a list's query asks for; anything else of it is refused.
pub(crate) fn filter(query: &str, paged: bool) -> Result<LiveFilter, String> {
    let limit = if paged { MAX_PAGE.into() } else { MAX_LIST };
    let mut filter = LiveFilter { limit, ..LiveFilter::default() };
    for (name, value) in query::pairs(query) {
        let value = query::decoded(value).ok_or_else(|| format!("{name} is not UTF-8"))?;
        match name {
            "metadata" => filter.metadata = labels(&value)?,
            "state" => {
                for state in value.split(',') {
                    let known = [LiveState::Running, LiveState::Paused];
                    let known = known.into_iter().find(|known| known.as_str() == state);
                    filter.states.push(known.ok_or("state is neither running nor paused")?);
                }
            }
            "template" if paged => filter.template = Some(value),
            "limit" if paged => filter.limit = query::rows(name, &value)?,
            "nextToken" if paged => {
                let token = value
                    .split_once('.')
                    .and_then(|(at, id)| Some((at.parse().ok()?, LiveId::parse(id).ok()?)));
                filter.after = Some(token.ok_or("nextToken is not of this list")?);
            }
            "order" => match value.as_str() {
                "asc" => filter.oldest_first = true,
                "desc" => {}
                _ => return Err("order is neither asc nor desc".to_owned()),
            },
            "startedAfter" if paged => {
                let at = value.parse::<Instant>().map_err(|why| format!("startedAfter: {why}"))?;
                filter.started_from = Some(at.ms());
            }
            other => return Err(format!("the query's {other} is not supported")),
        }
    }
    // As E2B has it: the older list has running ones alone.
    if filter.states.is_empty() {
        filter.states.push(LiveState::Running);
        filter.states.extend(paged.then_some(LiveState::Paused));
    }
    Ok(filter)
}

/// Percent-decoded text in which a plus is a plus.
fn plain(text: &str) -> Option<String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

/// Pairs as a query has them, of which each side was percent-encoded once before that.
fn labels(text: &str) -> Result<std::collections::BTreeMap<String, String>, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) =
                pair.split_once('=').ok_or("metadata is made of pairs NAME=VALUE")?;
            let twice = |text: &str| query::decoded(text).and_then(|once| plain(&once));
            let both = twice(name).zip(twice(value));
            both.ok_or_else(|| "metadata is not UTF-8".to_owned())
        })
        .collect()
}

/// Answers `GET /v2/sandboxes`: a page of the tenant's sandboxes, at most 100.
pub(crate) async fn newer(call: Call) -> Outcome {
    list(call, true).await
}

/// Answers `GET /sandboxes`: at most 1,000 of the tenant's sandboxes, without pages.
pub(crate) async fn older(call: Call) -> Outcome {
    list(call, false).await
}

async fn list(call: Call, paged: bool) -> Outcome {
    let mut filter = filter(&call.query, paged).map_err(|why| answer::error(400, why))?;
    let limit = filter.limit;
    filter.limit = limit.saturating_add(1);
    let rows = &call.services.flows.ledger;
    let fault = |error: cofferdam_ledger::LedgerError| answer::refused(error.into());
    let mut found = rows.live().list(&call.who.tenant, &filter).await.map_err(fault)?;
    let more = query::cut(&mut found, usize::try_from(limit).unwrap_or(usize::MAX));
    let values: Vec<SandboxItem> = found.iter().map(SandboxItem::of).collect();
    if !paged {
        return Ok(answer::json_of(200, &values));
    }
    let total = rows.live().running(&call.who.tenant).await.map_err(fault)?;
    let last = found.last().filter(|_| more);
    let next = last.map(|last| format!("{}.{}", last.created_at, last.id));
    let mut response = answer::page(&values, next.as_deref());
    response.headers_mut().insert("x-total-running", HeaderValue::from(total));
    Ok(response)
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_lists_query_is_read_or_refused() {
        let read = filter("metadata=a%3Db%252520c%26d%3De&limit=3&state=running", true).unwrap();
        assert_eq!(read.states, [LiveState::Running]);
        assert_eq!(read.limit, 3);
        assert_eq!(
            read.metadata.into_iter().collect::<Vec<_>>(),
            [("a".into(), "b c".into()), ("d".into(), "e".into())]
        );
        let states = |query, paged| filter(query, paged).unwrap().states;
        assert_eq!(states("state=paused", true), [LiveState::Paused]);
        assert_eq!(states("state=paused,running", true).len(), 2);
        assert_eq!(states("state=running&state=paused", true), states("", true));
        assert_eq!(states("", false), [LiveState::Running]);
        let read = filter(&format!("nextToken=12.{}", "a".repeat(20)), true).unwrap();
        assert_eq!(read.after.unwrap().0, 12);
        let read =
            filter("order=asc&startedAfter=2026-01-19T08%3A30%3A00.000%2B00%3A00", true).unwrap();
        assert_eq!((read.oldest_first, read.started_from), (true, Some(1_768_811_400_000)));
        assert!(!filter("order=desc", true).unwrap().oldest_first);
        for bad in [
            "limit=0",
            "limit=101",
            "nextToken=x",
            "metadata=x",
            "order=x",
            "startedAfter=1",
            "state=ended",
            "x=y",
        ] {
            assert!(filter(bad, true).is_err(), "{bad}");
        }
    }
}
