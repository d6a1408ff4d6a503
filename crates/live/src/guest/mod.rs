//! A running sandbox as the API's side has it, and what it asks of the inside.
//!
//! A question is for one life of a sandbox: once that is over it is refused, also where the sandbox was resumed.

pub(crate) mod directory;
pub(crate) mod error;
pub(crate) mod facts;
pub(crate) mod file;
pub(crate) mod handle;
pub(crate) mod message;
pub(crate) mod port;
pub(crate) mod process;
pub(crate) mod state;
pub(crate) mod watch;

use std::time::Duration;

/// How long a command, transfer, watch or connection waits for a stream of its own.
pub(crate) const STREAM_PATIENCE: Duration = Duration::from_secs(10);
