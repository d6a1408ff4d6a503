//! `GET /sandboxes/{id}/logs`, of both versions: what is on record of a sandbox's life. Output of commands is not: whoever
//! follows a command gets it.

use cofferdam_contracts::id::LiveId;
use cofferdam_ledger::live_events::LiveEvent;
use cofferdam_live::ViewSandbox;
use serde_json::{Map, Value, json};

use super::control::{Asking, Outcome, found, missing};
use super::{page, shape};

/// Entries of one answer.
const MAX_ENTRIES: usize = 1_000;
/// In rising order.
pub(super) const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];
/// Ends that its tenant asked for.
const EXPECTED: [&str; 2] = ["killed", "its time was over"];

/// Which entries a query asks for.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    /// From this moment on, in ms since the epoch; where it is backward, up to it.
    from: Option<i64>,
    limit: usize,
    backward: bool,
    /// Entries of this level and above.
    level: usize,
    search: String,
}

fn wanted(query: &str, newer: bool) -> Result<Wanted, String> {
    let mut wanted =
        Wanted { from: None, limit: MAX_ENTRIES, backward: false, level: 0, search: String::new() };
    for (name, value) in page::pairs(query) {
        let value = shape::decoded(value).ok_or_else(|| format!("{name} is not UTF-8"))?;
        match (name, newer) {
            ("start", false) | ("cursor", true) => {
                let at = value.parse().ok();
                wanted.from = Some(at.ok_or_else(|| format!("{name} is not a time in ms"))?);
            }
            ("limit", _) => {
                let limit = value.parse().ok().filter(|limit| *limit <= MAX_ENTRIES);
                wanted.limit = limit.ok_or_else(|| format!("limit is at most {MAX_ENTRIES}"))?;
            }
            ("direction", true) => {
                wanted.backward = page::is_backward(&value)?;
            }
            ("level", true) => {
                let level = LEVELS.iter().position(|known| *known == value);
                wanted.level = level.ok_or("level is none of debug, info, warn and error")?;
            }
            ("search", true) => wanted.search = value,
            _ => return Err(format!("the query's {name} is not supported")),
        }
    }
    Ok(wanted)
}

/// An entry's level and its words. Pure.
fn told(event: &LiveEvent) -> (&'static str, String) {
    let what = match event.event.as_str() {
        "created" => "sandbox created",
        "started" => "sandbox started",
        "pause" => "sandbox paused",
        "resume" => "sandbox resumed",
        "snapshot" => "snapshot taken",
        "network" => "network changed",
        "program" => "the template's start command failed",
        _ => "sandbox ended",
    };
    let level = match event.event.as_str() {
        "program" => "error",
        "ended" if !EXPECTED.contains(&event.reason.as_str()) => "warn",
        _ => "info",
    };
    match event.reason.as_str() {
        "" => (level, what.to_owned()),
        reason => (level, format!("{what}: {reason}")),
    }
}

/// Entries as these clients read them. Pure.
fn entries(events: Vec<LiveEvent>, wanted: &Wanted) -> Vec<Value> {
    let mut all = events;
    if wanted.backward {
        all.reverse();
    }
    let in_time = |event: &LiveEvent| match wanted.from {
        None => true,
        Some(from) if wanted.backward => event.at <= from,
        Some(from) => event.at >= from,
    };
    let shown = all.into_iter().filter(in_time).filter_map(|event| {
        let (level, message) = told(&event);
        let is_wanted = LEVELS.iter().position(|known| *known == level) >= Some(wanted.level)
            && message.contains(&wanted.search);
        let mut fields = Map::from_iter([("event".to_owned(), json!(event.event))]);
        fields.insert("logger".to_owned(), json!("cofferdam"));
        fields.extend(event.key_id.map(|key| ("key".to_owned(), json!(key))));
        is_wanted.then(|| {
            json!({"timestamp": shape::time(event.at), "level": level, "message": message, "fields": fields})
        })
    });
    shown.take(wanted.limit).collect()
}

pub(super) async fn logs(call: Asking<'_>, id: &str, newer: bool) -> Outcome {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let wanted = wanted(&call.query, newer).map_err(|why| shape::error(400, why))?;
    let (flows, lives) = (&call.front.shared.flows, &call.front.shared.live);
    // Another tenant's is not found, as one that never was.
    let view = ViewSandbox { who: call.who.clone(), id: live.clone() };
    lives.ask(view).await.map_err(|error| found(id, error))?;
    let events = flows.ledger.live().events(&call.who.tenant, &live).await;
    let entries = entries(events.map_err(|error| shape::refused(error.into()))?, &wanted);
    if newer {
        return Ok(shape::json_of(200, &json!({"logs": entries})));
    }
    let lines: Vec<Value> = entries.iter().map(line).collect();
    Ok(shape::json_of(200, &json!({"logs": lines, "logEntries": entries})))
}

/// The older form of an entry: clients read `line` as JSON, of which they need `level` and may need `logger`. Pure.
fn line(entry: &Value) -> Value {
    let line = json!({"level": entry["level"], "logger": "cofferdam", "message": entry["message"]});
    json!({"timestamp": entry["timestamp"], "line": line.to_string()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: i64, event: &str, reason: &str) -> LiveEvent {
        LiveEvent { at, event: event.to_owned(), reason: reason.to_owned(), key_id: None }
    }

    fn messages(query: &str) -> Vec<String> {
        let events = vec![
            event(1, "created", ""),
            event(2, "resume", "traffic"),
            event(3, "program", "exit status 1"),
            event(4, "ended", "its worker was lost"),
        ];
        let entries = entries(events, &wanted(query, true).unwrap());
        entries.iter().map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn an_older_line_is_the_json_that_clients_parse() {
        let all = entries(vec![event(1_000, "ended", "\"x\"")], &wanted("", false).unwrap());
        let line = line(&all[0]);
        assert_eq!(line["timestamp"], "1970-01-01T00:00:01.000Z");
        let parsed: Value = serde_json::from_str(line["line"].as_str().unwrap()).unwrap();
        let want =
            json!({"level": "warn", "logger": "cofferdam", "message": "sandbox ended: \"x\""});
        assert_eq!(parsed, want);
    }

    #[test]
    fn a_query_chooses_entries_or_is_refused() {
        let all = [
            "sandbox created",
            "sandbox resumed: traffic",
            "the template's start command failed: exit status 1",
            "sandbox ended: its worker was lost",
        ];
        assert_eq!(messages(""), all);
        assert_eq!(messages("limit=1"), all[..1]);
        assert_eq!(messages("cursor=2"), all[1..]);
        assert_eq!(messages("direction=backward&cursor=2"), [all[1], all[0]]);
        assert_eq!(messages("level=warn"), all[2..]);
        assert_eq!(messages("search=resumed%3A"), all[1..2]);
        for bad in ["limit=1001", "cursor=x", "direction=up", "level=loud", "start=1", "x=y"] {
            assert!(wanted(bad, true).is_err(), "{bad}");
        }
        assert_eq!(wanted("start=7", false).unwrap().from, Some(7));
        for bad in ["cursor=1", "level=info"] {
            assert!(wanted(bad, false).is_err(), "{bad}");
        }
    }
}
