//! `GET /sandboxes/{id}/logs`: the life of a sandbox as it is on record. Output of commands is in no log: whoever follows
//! the command gets it, and nothing keeps it.

use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::live::LiveView;
use serde_json::{Value, json};

use super::control::{Asking, Outcome, found, missing};
use super::shape;

/// Entries of one answer, as E2B bounds them. A life has at most four.
const MAX_ENTRIES: usize = 1_000;

pub(super) async fn answer(call: Asking<'_>, id: &str) -> Outcome {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let (start, limit) = asked(&call.query).map_err(|why| shape::error(400, why))?;
    let view = call.front.shared.flows.live_view(&call.who, &live).await;
    let entries = entries(&view.map_err(|error| found(id, error))?);
    let wanted = entries.into_iter().filter(|(at, _)| *at >= start).take(limit);
    Ok(shape::json_of(200, &told(wanted.collect())))
}

/// The time in ms from which entries are wanted, and how many.
fn asked(query: &str) -> Result<(i64, usize), String> {
    let (mut start, mut limit) = (i64::MIN, MAX_ENTRIES);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "start" => {
                start = value.parse().map_err(|_| "start is not a number of ms".to_owned())?;
            }
            "limit" => {
                let known = value.parse().ok().filter(|limit| (1..=MAX_ENTRIES).contains(limit));
                limit =
                    known.ok_or_else(|| format!("limit must be between 1 and {MAX_ENTRIES}"))?;
            }
            other => return Err(format!("the query's {other} is not supported")),
        }
    }
    Ok((start, limit))
}

/// What happened, oldest first: its time in ms, and a text.
fn entries(view: &LiveView) -> Vec<(i64, String)> {
    let template = &view.template;
    let mut all = vec![(view.created_at, format!("created from template {template}"))];
    all.extend(view.started_at.map(|at| (at, "started".to_owned())));
    all.extend(view.paused_at.map(|at| (at, "paused; its files are kept".to_owned())));
    let reason = view.end_reason.as_deref().unwrap_or("unknown");
    all.extend(view.ended_at.map(|at| (at, format!("ended: {reason}"))));
    all.sort_by_key(|(at, _)| *at);
    all
}

/// Clients read `line` as JSON, of which they need `level` and may need `logger`.
fn told(entries: Vec<(i64, String)>) -> Value {
    let line = |text: &str| json!({"level": "info", "logger": "cofferdam", "message": text});
    let logs = entries
        .iter()
        .map(|(at, text)| json!({"timestamp": shape::time(*at), "line": line(text).to_string()}));
    let logs: Vec<Value> = logs.collect();
    let entries = entries.iter().map(|(at, text)| {
        json!({
            "timestamp": shape::time(*at), "level": "info", "message": text,
            "fields": {"logger": "cofferdam"},
        })
    });
    json!({"logs": logs, "logEntries": entries.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_or_refused() {
        assert_eq!(asked("").unwrap(), (i64::MIN, MAX_ENTRIES));
        assert_eq!(asked("start=12&limit=3").unwrap(), (12, 3));
        for bad in ["start=x", "limit=0", "limit=1001", "cursor=1"] {
            assert!(asked(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_line_is_the_json_that_clients_parse() {
        let told = told(vec![(1_000, "ended: \"x\"".to_owned())]);
        let line: Value = serde_json::from_str(told["logs"][0]["line"].as_str().unwrap()).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&json!("info"), &json!("ended: \"x\"")));
        assert_eq!(told["logEntries"][0]["message"], line["message"]);
    }
}
