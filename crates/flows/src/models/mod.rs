//! Calls of models: decided, sent and recorded here, outside the sandbox that makes them.
//!
//! ```text
//! endpoint in the sandbox -> gateway: which provider, which key -> ledger: budget and row, one transaction
//!                              -> the provider, once -> the answer as it comes, metered -> ledger: what came of it
//! ```
//! **A call is on record before it is sent, and is sent once: whoever wants it again makes another call.** The key
//! is read for each call and never enters the sandbox.

mod admit;
mod answer_budget;
mod ask;
mod calls;
mod client;
mod gateway;
mod hash;
mod judge;
mod keys;
mod leak;
mod pipe;
mod prompt;
mod prompt_position;
mod providers;
mod send;

pub(crate) use admit::{planner_admit, unknown_provider};
pub(crate) use calls::{CallTotals, Calls};
pub(crate) use gateway::CallGateway;
pub use prompt_position::Prompts;
pub use providers::Models;
