//! `GET /sandboxes/{id}/logs`, of both versions: what is on record of a sandbox's life. Output of commands is not: whoever
//! follows a command gets it.

use cofferdam_contracts::id::LiveId;
use cofferdam_ledger::live_events::LiveEvent;
use cofferdam_live::ViewSandbox;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::call::{Call, Outcome};
use crate::levels::LEVELS;
use crate::sandbox::refusals::{found, missing};
use crate::{answer, query};

/// Who says it.
const LOGGER: &str = "cofferdam";
/// Entries of one answer.
pub(crate) const MAX_ENTRIES: usize = 1_000;
/// Ends that its tenant asked for.
const EXPECTED: [&str; 2] = ["killed", "its time was over"];

/// Which entries a query asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogQuery {
    /// From this moment on, in ms since the epoch; where it is backward, up to it.
    from: Option<i64>,
    limit: usize,
    backward: bool,
    /// Entries of this level and above.
    level: usize,
    search: String,
}

pub(crate) fn wanted(query: &str, newer: bool) -> Result<LogQuery, String> {
    let mut wanted = LogQuery {
        from: None,
        limit: MAX_ENTRIES,
        backward: false,
        level: 0,
        search: String::new(),
    };
    for (name, value) in query::pairs(query) {
        let value = query::decoded(value).ok_or_else(|| format!("{name} is not UTF-8"))?;
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
                wanted.backward = query::is_backward(&value)?;
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
fn entries(events: Vec<LiveEvent>, wanted: &LogQuery) -> Vec<LifeEntry> {
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
        let fields = LogFields { event: event.event, logger: LOGGER, key: event.key_id };
        let timestamp = answer::time(event.at);
        is_wanted.then_some(LifeEntry { timestamp, level, message, fields })
    });
    shown.take(wanted.limit).collect()
}

/// Answers `GET /v2/sandboxes/{id}/logs`: events of a sandbox's life, by time, level and text.
pub(crate) async fn newer(call: Call) -> Outcome {
    logs(call, true).await
}

/// Answers `GET /sandboxes/{id}/logs`: the same events, as lines and as entries.
pub(crate) async fn older(call: Call) -> Outcome {
    logs(call, false).await
}

async fn logs(call: Call, newer: bool) -> Outcome {
    let id = &call.param("id");
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let wanted = wanted(&call.query, newer).map_err(|why| answer::error(400, why))?;
    let (flows, lives) = (&call.services.flows, &call.services.live);
    // Another tenant's is not found, as one that never was.
    let view = ViewSandbox { who: call.who.clone(), id: live.clone() };
    lives.ask(view).await.map_err(|error| found(id, error))?;
    let events = flows.ledger.live().events(&call.who.tenant, &live).await;
    let entries = entries(events.map_err(|error| answer::refused(error.into()))?, &wanted);
    if newer {
        return Ok(answer::json_of(200, &Logs { logs: entries }));
    }
    let logs = entries.iter().map(LogLine::of).collect();
    Ok(answer::json_of(200, &OlderLogs { logs, log_entries: entries }))
}

/// What is on record of a sandbox's life.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Logs {
    logs: Vec<LifeEntry>,
}

/// The same for older clients.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OlderLogs {
    logs: Vec<LogLine>,
    log_entries: Vec<LifeEntry>,
}

/// An entry of a sandbox's log.
#[derive(Debug, Serialize, JsonSchema)]
struct LifeEntry {
    timestamp: String,
    level: &'static str,
    message: String,
    fields: LogFields,
}

/// What else is known of an entry.
#[derive(Debug, Serialize, JsonSchema)]
struct LogFields {
    event: String,
    logger: &'static str,
    /// The key that asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// The older form of an entry: clients read `line` as JSON, of which they need `level` and may need `logger`.
#[derive(Debug, Serialize, JsonSchema)]
struct LogLine {
    timestamp: String,
    line: String,
}

impl LogLine {
    fn of(entry: &LifeEntry) -> Self {
        let LifeEntry { timestamp, level, message, .. } = entry;
        let line = json!({"level": level, "logger": LOGGER, "message": message});
        Self { timestamp: timestamp.clone(), line: line.to_string() }
    }
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
        entries.into_iter().map(|entry| entry.message).collect()
    }

    #[test]
    fn an_older_line_is_the_json_that_clients_parse() {
        let all = entries(vec![event(1_000, "ended", "\"x\"")], &wanted("", false).unwrap());
        let line = LogLine::of(&all[0]);
        assert_eq!(line.timestamp, "1970-01-01T00:00:01.000Z");
        let parsed: serde_json::Value = serde_json::from_str(&line.line).unwrap();
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
