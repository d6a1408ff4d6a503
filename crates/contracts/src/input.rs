//! Standard input of a run's command on its way from the client that started the run.
//!
//! ```text
//! client --PUT /api/runs/:id/input?at=N--> window of 1 MiB --> the command's standard input
//!        <------------ next ------------
//! ```
//! No row has any of it: it is in the memory of the server that runs the command, and gone once the command took it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;

/// Bytes of one request's input. A pipe holds 64 KiB; four of them are worth a request.
pub const MAX_INPUT_BYTES: usize = 256 * 1024;

named! {
    /// What a command's standard input is, where its client sends it while it runs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum InputMode {
        /// A pipe: bytes as they come, then the end of input.
        Stream = "stream",
        /// A terminal, which is its output and error output, too.
        Terminal = "terminal",
    }
}

/// Answer of `PUT /api/runs/:id/input`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InputReceipt {
    /// Bytes that the server has taken in all: `at` of the next request. Those that it did not take are sent again.
    pub next: u64,
    /// `true` where the command reads no more: what comes is taken and dropped.
    pub closed: Option<bool>,
}

/// Size of a run's terminal in characters: body and answer of `POST /api/runs/:id/terminal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Height in lines.
    #[schemars(range(min = 1, max = 65_535))]
    pub rows: u16,
    /// Characters of a line.
    #[schemars(range(min = 1, max = 65_535))]
    pub cols: u16,
}

impl Default for TerminalSize {
    /// A terminal that says no size.
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}
