//! How a build is getting on.

use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::{self, bad_request};
use crate::call::{Call, Outcome};
use crate::levels::from_level;
use crate::query;
use crate::template::build_names::{missing, named, viewed};
use crate::template::log_entry::{BuildEntry, MAX_ENTRIES};

/// Which entries a query asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entries {
    from: i32,
    limit: i64,
    levels: Option<&'static [&'static str]>,
}

pub(crate) fn entries(query: &str) -> Result<Entries, String> {
    let mut entries = Entries { from: 0, limit: MAX_ENTRIES, levels: None };
    for (name, value) in query::pairs(query) {
        match name {
            "logsOffset" => {
                let offset = value.parse().ok().filter(|offset| *offset >= 0);
                entries.from = offset.ok_or("logsOffset is not a number from 0")?;
            }
            "limit" => {
                entries.limit = query::bounded(name, value, MAX_ENTRIES)?;
            }
            "level" => entries.levels = Some(from_level(value)?),
            other => return Err(format!("the query's {other} is not supported")),
        }
    }
    Ok(entries)
}

/// How a build is getting on.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BuildProgress {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    status: &'static str,
    /// Older clients look here; there is nothing.
    logs: Vec<String>,
    log_entries: Vec<BuildEntry>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<BuildReason>,
}

/// Why a build failed.
#[derive(Debug, Serialize, JsonSchema)]
struct BuildReason {
    message: String,
    /// The number of a step, `base` or `finalize`.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
}

pub(crate) async fn status(call: Call) -> Outcome {
    let template = &call.param("id");
    let build = &call.param("build");
    let (template, build) = named(template, build).ok_or_else(|| missing(build))?;
    let Entries { from, limit, levels } = entries(&call.query).map_err(bad_request)?;
    let (flows, lives) = (&call.services.flows, &call.services.live);
    // The state first: the log of a build that has ended is whole.
    let view = viewed(lives, &call.who, &template, &build).await?;
    let log = flows.ledger.builds().log(&build, from, limit, levels).await;
    let log = log.map_err(|error| answer::refused(error.into()))?;
    let status = BuildProgress {
        template_id: template.to_string(),
        build_id: build.to_string(),
        status: view.status.as_str(),
        logs: Vec::new(),
        log_entries: log.iter().map(BuildEntry::of).collect(),
        reason: view.reason.map(|message| BuildReason { message, step: view.step }),
    };
    Ok(answer::json_of(200, &status))
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_log_is_read_from_an_entry_on() {
        let of = |from, limit, levels| Entries { from, limit, levels };
        assert_eq!(entries("").unwrap(), of(0, MAX_ENTRIES, None));
        let warn: Option<&[&str]> = Some(&["warn", "error"]);
        assert_eq!(entries("logsOffset=7&limit=3&level=warn").unwrap(), of(7, 3, warn));
        for bad in ["logsOffset=-1", "logsOffset=x", "limit=101", "level=x", "x=1"] {
            assert!(entries(bad).is_err(), "{bad}");
        }
    }
}
