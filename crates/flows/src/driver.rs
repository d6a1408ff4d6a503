//! What a worker asks of the program that drives a coding agent's daemon in a sandbox.
//!
//! ```text
//! worker --DriverJob--> PlannerDrivers::begin -> PlannerDriver: drive, beside each daemon's command; judge --> result, artifacts
//! ```
//! **This crate knows no daemon**: it runs commands, and a driver decides what they are and when each is to be ended.

use std::fmt::Debug;
use std::sync::Arc;

use cofferdam_contracts::sandbox::SandboxResult;
use cofferdam_contracts::work::OpencodeWork;
use cofferdam_ledger::artifacts::NewArtifact;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{Command, Sandbox};

use crate::box_future::BoxFuture;
use crate::models::Prompts;

/// One task for a driver.
#[derive(Debug, Clone, Copy)]
pub struct DriverJob<'a> {
    /// The task of the work.
    pub task: &'a TaskContext,
    /// What is to be planned or built.
    pub work: &'a OpencodeWork,
    /// Its sandbox; no command has run there.
    pub sandbox: &'a Sandbox,
    /// Where the driver says which prompt the sandbox's calls of models belong to.
    pub prompts: &'a Arc<Prompts>,
}

/// Gives each task of a planner and builder its driver.
pub trait PlannerDrivers: Debug + Send + Sync {
    /// The driver of a sandbox that is up. It looks at the project now: every later change is the daemon's.
    fn begin<'a>(&'a self, job: DriverJob<'a>) -> BoxFuture<'a, Box<dyn PlannerDriver>>;
}

/// Drives the daemons of one sandbox, which run one after another as the task's command.
pub trait PlannerDriver: Debug + Send + Sync {
    /// The command of the next daemon: the task's, with the environment that the daemon needs.
    fn command(&self, task: &Command) -> Command;

    /// Takes a piece of the daemon's output.
    fn push(&self, chunk: &[u8]);

    /// Whether the work has ended, well or not: then no daemon follows.
    fn is_over(&self) -> bool;

    /// Drives the daemon while its command runs; returns when the command is to be ended.
    fn drive(&self) -> BoxFuture<'_, ()>;

    /// Puts project and state back to what they were before the first daemon, for the next one.
    fn reset(&self) -> BoxFuture<'_, ()>;

    /// Writes what came of the work into the task's result; returns the artifacts that it leaves, once.
    fn judge(&self, result: &mut SandboxResult) -> Vec<NewArtifact>;
}
