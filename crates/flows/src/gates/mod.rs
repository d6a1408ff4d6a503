//! Gates: a run asks people, waits, and goes on only with their consent.
//!
//! ```text
//! run --wait--> opens the gate, publishes the prompt, sleeps in the engine
//! person --reply--> lock, read, contracts::reply::decide_reply, record --message--> the wait wakes
//! run --consent--> is what was approved what would run now? yes: execute; no: void it, ask again
//! ```
//! What an answer comes to is decided in [`cofferdam_contracts::reply`], which is pure; what time does to a
//! gate is decided in the ledger's own statements, since the deadline is the database's.

pub(crate) mod consent;
pub(crate) mod reply;
pub(crate) mod wait;
