//! Calls of models: decided, sent and recorded here, outside the sandbox that makes them.
//!
//! ```text
//! endpoint in the sandbox -> desk: which provider, which key -> ledger: budget and row, one transaction
//!                              -> the provider, once -> the answer as it comes, metered -> ledger: what came of it
//! ```
//! **A call is on record before it is sent, and is sent once: whoever wants it again makes another call.** The key
//! is read for each call and never enters the sandbox.

mod admit;
mod ask;
mod calls;
mod client;
mod desk;
mod hash;
mod judge;
mod keys;
mod leak;
mod pipe;
mod prompt;
mod providers;
mod room;
mod send;
mod within;

pub(crate) use admit::{planner_admit, unknown_provider};
pub(crate) use calls::{Calls, CallsTaken};
pub(crate) use desk::CallDesk;
pub use providers::Models;
pub use within::Prompts;
