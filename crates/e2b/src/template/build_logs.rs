//! `GET /templates/{id}/builds/{build}/logs`: what the steps of a build said, by time.

use cofferdam_ledger::template_views::LogPage;
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::{self, bad_request};
use crate::call::{Call, Outcome};
use crate::levels::{LEVELS, from_level};
use crate::query;
use crate::template::build_names::{missing, named, viewed};
use crate::template::log_entry::{BuildEntry, MAX_ENTRIES};

/// Where E2B keeps entries; here all of them are in one table.
const SOURCES: [&str; 2] = ["temporary", "persistent"];

pub(crate) fn asked(query: &str) -> Result<LogPage<'static>, String> {
    let mut asked = LogPage { at_ms: None, backward: false, levels: &LEVELS, limit: MAX_ENTRIES };
    for (name, value) in query::pairs(query) {
        match name {
            "cursor" => {
                asked.at_ms = Some(value.parse().map_err(|_| "cursor is not a time in ms")?)
            }
            "limit" => asked.limit = query::bounded(name, value, MAX_ENTRIES)?,
            "direction" => asked.backward = query::is_backward(value)?,
            "level" => asked.levels = from_level(value)?,
            "source" if SOURCES.contains(&value) => {}
            "source" => return Err("source is neither temporary nor persistent".to_owned()),
            other => return Err(format!("the query's {other} is not supported")),
        }
    }
    Ok(asked)
}

/// What the steps of a build said.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BuildLogs {
    logs: Vec<BuildEntry>,
}

pub(crate) async fn logs(call: Call) -> Outcome {
    let template = &call.param("id");
    let build = &call.param("build");
    let (template, build) = named(template, build).ok_or_else(|| missing(build))?;
    let page = asked(&call.query).map_err(bad_request)?;
    let (flows, lives) = (&call.services.flows, &call.services.live);
    viewed(lives, &call.who, &template, &build).await?;
    let log = flows.ledger.builds().log_page(&build, &page).await;
    let log = log.map_err(|error| answer::refused(error.into()))?;
    Ok(answer::json_of(200, &BuildLogs { logs: log.iter().map(BuildEntry::of).collect() }))
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
