//! An entry of a build's log.

use cofferdam_ledger::builds::LogEntry;
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::time;

/// Log entries of one answer: clients ask for the next ones until there are none.
pub(crate) const MAX_ENTRIES: i64 = 100;

/// What a step of a build said.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BuildEntry {
    timestamp: String,
    message: String,
    level: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
}

impl BuildEntry {
    pub(crate) fn of(entry: &LogEntry) -> Self {
        Self {
            timestamp: time(entry.at_ms),
            message: entry.message.clone(),
            level: entry.level.clone(),
            step: entry.step.clone(),
        }
    }
}
