//! What `/healthz` says.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether this server can do its work. `ok` is false with status 503.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Health {
    /// Whether the database answers and a worker lives.
    pub ok: bool,
    /// Whether the database answers. Where it does not, nothing below is known.
    pub db: bool,
    /// Workers that beat.
    pub workers: Option<i64>,
    /// Sessions whose wipe could not be verified: an operator's task.
    pub held_sessions: Option<i64>,
    /// Work that waits, by queue.
    pub queues: Option<Vec<QueueBacklog>>,
}

/// Work of every tenant that waits in one queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueBacklog {
    /// Name of the queue, such as `sbxQ`; a queue on which nothing waits is not listed.
    pub name: String,
    /// Workflows that wait.
    pub depth: i64,
    /// How long the oldest has waited, in ms.
    pub oldest_ms: i64,
}
