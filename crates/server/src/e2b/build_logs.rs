//! `GET /templates/{id}/builds/{build}/logs`: what the steps of a build said, by time.

use cofferdam_ledger::template_views::LogPage;
use serde_json::json;

use super::builds::{MAX_ENTRIES, entry, missing, named, refused, viewed};
use super::control::{Asking, Outcome};
use super::logs::LEVELS;
use super::{page, shape};

/// Where E2B keeps entries; here all of them are in one table.
const SOURCES: [&str; 2] = ["temporary", "persistent"];

/// This level and those above it.
pub(super) fn from_level(name: &str) -> Result<&'static [&'static str], String> {
    let at = LEVELS.iter().position(|known| *known == name);
    let levels = at.and_then(|at| LEVELS.get(at..));
    levels.ok_or_else(|| format!("level must be one of {}", LEVELS.join(", ")))
}

fn asked(query: &str) -> Result<LogPage<'static>, String> {
    let mut asked = LogPage { at_ms: None, backward: false, levels: &LEVELS, limit: MAX_ENTRIES };
    for (name, value) in page::pairs(query) {
        match name {
            "cursor" => {
                asked.at_ms = Some(value.parse().map_err(|_| "cursor is not a time in ms")?)
            }
            "limit" => asked.limit = page::bounded(name, value, MAX_ENTRIES)?,
            "direction" => asked.backward = page::is_backward(value)?,
            "level" => asked.levels = from_level(value)?,
            "source" if SOURCES.contains(&value) => {}
            "source" => return Err("source is neither temporary nor persistent".to_owned()),
            other => return Err(format!("the query's {other} is not supported")),
        }
    }
    Ok(asked)
}

pub(super) async fn logs(call: Asking<'_>, template: &str, build: &str) -> Outcome {
    let (template, build) = named(template, build).ok_or_else(|| missing(build))?;
    let page = asked(&call.query).map_err(refused)?;
    let (flows, lives) = (&call.front.shared.flows, &call.front.shared.live);
    viewed(lives, &call.who, &template, &build).await?;
    let log = flows.ledger.builds().log_page(&build, &page).await;
    let log = log.map_err(|error| shape::refused(error.into()))?;
    Ok(shape::json_of(200, &json!({"logs": log.iter().map(entry).collect::<Vec<_>>()})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_asked_for_by_time_direction_and_level() {
        let read =
            asked("cursor=7&limit=3&direction=backward&level=warn&source=temporary").unwrap();
        assert_eq!((read.at_ms, read.limit, read.backward), (Some(7), 3, true));
        assert_eq!(read.levels, ["warn", "error"]);
        assert_eq!(asked("").unwrap().levels, LEVELS);
        for bad in
            ["cursor=x", "limit=0", "limit=101", "direction=up", "level=x", "source=x", "x=1"]
        {
            assert!(asked(bad).is_err(), "{bad}");
        }
    }
}
