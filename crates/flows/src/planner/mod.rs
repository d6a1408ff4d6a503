//! Runs that OpenCode plans and builds.
//!
//! ```text
//! CompileST     draft -> task `plan` (pilot in a sandbox) -> AgentPlan -> the plan that the gate shows
//! ExecuteST     task `build` (pilot in another sandbox, same conversation) -> patch
//! ApplyPatchST  the patch on record, file by file          DecideST  the tests of the approved plan
//! ExecuteST     tests, each in a sandbox of its own, on the patched project
//! ```
//! **The daemon's state is a copy of the ledger's**: no sandbox has to survive. A daemon that is new, because its worker,
//! its sandbox or itself was lost, is driven through the same prompts with the same ids, and what the provider answered
//! is read from the record (`models::within`), so that nothing that was answered is asked again.

mod apply;
mod next;
mod pilot;
mod turn;

pub(crate) use apply::patched;
pub(crate) use pilot::{LIVES, Pilot, begin, session_of};

/// The artifact of a plan's task.
pub(crate) const PLAN_NAME: &str = "agent-plan.json";
/// The artifact of a build's task.
pub(crate) const PATCH_NAME: &str = "patch.json";
