//! A run's tasks as a graph: which starts, waits, is skipped or canceled. Pure: the executor tells what happened and does what it
//! is told.
//!
//! ```text
//! GraphEvent --GraphState::apply--> GraphAction*
//! Begin                    group: waiting --needs ended--> released --`when` holds--> its tasks are ready, else skipped
//! Answered                        a gate: released --> asking --yes--> its tasks are ready, else failed
//! Ended, BackoffOver       task:  ready --a slot--> running --> succeeded | failed | backoff --> ready
//! Blocked, Canceled
//! ```
//! **Same events, same actions**: neither clock nor chance decides, so a replay starts what the first life started. Each task and
//! each edge between groups is looked at a fixed number of times.

mod action;
mod failure;
mod group;
mod refusal;
mod state;
#[cfg(test)]
mod tests;

pub use action::{GraphAction, GraphEvent, GroupEnd, SkipReason, TaskEnd};
pub use state::{GraphCounts, GraphProgress, GraphState, StepProgress};
