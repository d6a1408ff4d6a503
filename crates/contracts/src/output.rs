//! The whole output of a run on its way to the client that started it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::TaskKey;

/// Numbers of pieces end here: the largest whole number that every reader of JSON has.
pub const MAX_PIECE: i64 = 9_007_199_254_740_991;

/// Answer of `GET /api/runs/:id/output`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutputPage {
    /// Whether this server has the run's output for this key. If not, the client reads what the record keeps.
    pub held: bool,
    /// `from` of the next request, which confirms these pieces: the server keeps them until then.
    pub next: u64,
    /// Whether a task of the run has begun in this server's own worker: its output is here from the first byte on.
    pub begun: bool,
    /// Pieces in the order in which they were written.
    pub pieces: Vec<OutputPiece>,
}

/// A piece of a command's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutputPiece {
    /// Task that wrote it.
    pub task_key: TaskKey,
    /// Stream that it was written to.
    pub stream: OutputStream,
    /// Bytes of that stream before it.
    pub at: u64,
    /// Its bytes in base64: output need not be text.
    pub base64: String,
}

/// A standard stream of a command.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum OutputStream {
    /// Standard output, file descriptor 1 of the command.
    Stdout,
    /// Standard error, file descriptor 2 of the command.
    Stderr,
}
