//! What a worker executes tasks with.

use std::sync::Arc;

use cofferdam_contracts::id::{ExecutorId, TaskKey};
use cofferdam_ledger::listen::Wake;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{Host, OutsideNames};
use tokio::sync::broadcast::error::RecvError;

use crate::Flows;
use crate::active_workflows::ActiveWorkflows;
use crate::driver::PlannerDrivers;
use crate::handoff::Handoff;
use crate::memory::MemoryBudget;
use crate::session_states::SessionStates;
use crate::slots::Slots;

/// What a worker needs to execute tasks.
#[derive(Debug)]
pub(crate) struct Executor {
    pub flows: Flows,
    /// Who drives the daemons of agents that plan and build.
    pub drivers: Arc<dyn PlannerDrivers>,
    pub id: ExecutorId,
    pub host_id: String,
    /// For everybody: host directories only below the allowed roots.
    pub host: Host,
    /// Where names lead that it asks itself in the place of a sandbox.
    pub names: OutsideNames,
    /// Where its sandboxes are now.
    pub session_states: SessionStates,
    /// What its runs need not ask the ledger about its tasks.
    pub handed: Handoff,
    /// A base of the dependency cache was made: whoever keeps it within bounds should look.
    pub promoted: tokio::sync::Notify,
    /// For the host's own admin, whose key is worth as much as this host's root anyway.
    pub open_host: Host,
    /// What its sandboxes may take of the host's memory together.
    pub memory: MemoryBudget,
    /// Slots of its tasks.
    pub slots: Arc<Slots>,
    /// What it runs.
    pub started: Arc<ActiveWorkflows>,
}

impl Executor {
    /// Whether the task's workflow was canceled. Where the ledger does not say, it was not.
    pub(crate) async fn is_canceled(&self, key: &TaskKey) -> bool {
        self.flows.ledger.ops().workflow_is_canceled(key.as_str()).await.unwrap_or(false)
    }
}

/// Whether a wake-up may mean an answer to what the task asked, and whether it may mean its cancel:
/// one that was lost may mean both. Pure.
pub(crate) fn meant(wake: &Result<Wake, RecvError>, task: &TaskContext) -> (bool, bool) {
    match wake {
        Ok(Wake::Gate(run)) => (run == task.run.as_str(), false),
        Ok(Wake::Cancel(key)) => (false, key == task.key.as_str()),
        Ok(Wake::All) | Err(_) => (true, true),
        Ok(_) => (false, false),
    }
}

/// Whether a wake-up may mean the task's cancel. Pure.
pub(crate) fn may_cancel(wake: &Result<Wake, RecvError>, task: &TaskContext) -> bool {
    meant(wake, task).1
}
