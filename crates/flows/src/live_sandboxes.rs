//! What a worker asks of whoever holds long-lived sandboxes, and what that is given to hold one.
//!
//! ```text
//! worker --host, tasks, sweep, stop--> LiveSandboxes    task workflow --Attempt, work--> LiveSandboxes::hold --> End
//! ```
//! **This crate knows no long-lived sandbox**: its worker claims their tasks and commits their ends, as of every task.

use std::time::Duration;

use cofferdam_contracts::id::{ExecutorId, SandboxId, TaskKey};
use cofferdam_contracts::live::LiveWork;
use cofferdam_contracts::sandbox::{ErrCode, SandboxRequest, SandboxResult, SessionState};
use cofferdam_contracts::session::Attestation;
use cofferdam_ledger::listen::Wake;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::image::ServiceRoots;
use cofferdam_sandbox::{Host, InitialFiles, ProvisionError, Sandbox};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinHandle;

use crate::attempt::{End, blank};
use crate::box_future::BoxFuture;
use crate::error::Result;
use crate::executor::{Executor, may_cancel};
use crate::host_plan::{HostPlan, PlanFailure, planned, unmade};
use crate::memory::{MemoryBudget, MemoryShare};
use crate::own_tasks::OwnTasks;
use crate::ready_sandbox::{ReadySandbox, begun, up};

/// Holds the long-lived sandboxes of a worker's process.
pub trait LiveSandboxes: std::fmt::Debug + Send + Sync {
    /// The worker has looked at its host: sandboxes are made there, within this memory.
    fn host_found(&self, host: &Host, memory: &MemoryBudget);

    /// Puts in order what killed processes left on this host, before anything is claimed.
    ///
    /// # Errors
    /// The ledger or the state directory cannot be read.
    fn sweep<'a>(&'a self, host: &'a Host) -> BoxFuture<'a, Result<()>>;

    /// The worker claims from here on: tasks that this process queues for itself may start at once.
    fn joined(&self, own: OwnTasks);

    /// Follows keys as they are revoked, until it is aborted: after everything else of the worker.
    fn revocations(&self) -> JoinHandle<()>;

    /// Erases what grows too old, until it is aborted.
    fn aging(&self, host: &Host) -> JoinHandle<()>;

    /// The worker stops claiming: what is queued from here on waits for another one.
    fn leaving(&self);

    /// Ends every sandbox of this worker, each with its evidence; waits no longer than `patience` for each kind of work.
    fn stop<'a>(&'a self, executor: &'a ExecutorId, patience: Duration) -> BoxFuture<'a, ()>;

    /// The name under which a task's sandbox is made already; given once.
    fn name_of(&self, task: &TaskKey) -> Option<SandboxId>;

    /// Makes the sandbox of an attempt, or takes the one that is made, holds it and wipes it.
    fn hold<'a>(&'a self, attempt: Attempt<'a>, work: &'a LiveWork) -> BoxFuture<'a, End>;
}

/// One attempt of a long-lived sandbox's task.
pub struct Attempt<'a> {
    executor: &'a Executor,
    /// Attempt as the ledger gave it to this worker at its start.
    pub task: &'a TaskContext,
    /// The name of its sandbox.
    pub id: &'a SandboxId,
    wakes: Receiver<Wake>,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(
        executor: &'a Executor,
        task: &'a TaskContext,
        id: &'a SandboxId,
        wakes: Receiver<Wake>,
    ) -> Self {
        Self { executor, task, id, wakes }
    }

    /// The host that its sandbox is made on.
    #[must_use]
    pub fn host(&self) -> &'a Host {
        &self.executor.host
    }

    /// The worker that executes it.
    #[must_use]
    pub fn executor(&self) -> &'a ExecutorId {
        &self.executor.id
    }

    /// Plans, admits and makes its sandbox with these files; or says how it ends without one.
    ///
    /// # Errors
    /// The attempt's end.
    pub async fn up(
        &mut self,
        request: &SandboxRequest,
        files: Option<InitialFiles>,
    ) -> Result<ReadySandbox, Box<End>> {
        up(self.executor, self.task, request, None, files, self.id, &mut self.wakes).await
    }

    /// The plan of its sandbox on this host.
    ///
    /// # Errors
    /// Why it gets none; [`Attempt::unplanned`] makes that its end.
    pub fn planned(&self, request: &SandboxRequest) -> Result<HostPlan<'a>, PlanFailure> {
        planned(self.executor, self.task, request, None, ServiceRoots::new(), self.id)
    }

    /// The end of one that gets no plan.
    pub async fn unplanned(&self, why: PlanFailure) -> Box<End> {
        why.end(self.executor, self.task, self.id).await
    }

    /// What came of a sandbox that was made by this plan.
    ///
    /// # Errors
    /// The attempt's end: it could not be made.
    pub fn begun(
        &self,
        on: HostPlan<'a>,
        made: Result<Sandbox, ProvisionError>,
        memory: MemoryShare,
    ) -> Result<ReadySandbox, Box<End>> {
        begun(self.executor, self.task, on, made, None, memory)
    }

    /// Its end without a sandbox, of which nothing may be on the host.
    pub async fn unmade(&self, code: ErrCode, cause: String) -> End {
        unmade(self.executor, self.task, self.id, code, cause).await
    }

    /// The result of one that has ended well, before its figures.
    #[must_use]
    pub fn result(&self) -> SandboxResult {
        blank(self.task, self.id.as_str(), ErrCode::None, None)
    }

    /// Its sandbox is there: what it really is, for whoever watches sessions.
    pub fn shown(&self, sandbox: &Sandbox, attestation: Attestation) {
        self.executor.session_states.made(sandbox.id(), attestation, sandbox.kill_handle());
    }

    /// The state of its session now.
    pub fn state(&self, state: SessionState) {
        self.executor.session_states.set(self.id, state);
    }

    /// It runs until its owner ends it: it takes no slot of the worker's tasks any more.
    pub fn stepped_aside(&self) {
        self.executor.slots.stepped_aside(self.task.key.as_str());
    }

    /// The next wake-up. Dropping the future loses none.
    pub async fn wake(&mut self) -> Result<Wake, RecvError> {
        self.wakes.recv().await
    }

    /// Whether it is canceled, asked where this wake-up may say so.
    pub async fn is_canceled(&self, wake: &Result<Wake, RecvError>) -> bool {
        may_cancel(wake, self.task) && self.executor.is_canceled(&self.task.key).await
    }
}
