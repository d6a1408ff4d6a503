//! A task whose sandbox is elsewhere and whose worker is gone: the sandbox, and the command in it, go on.
//!
//! ```text
//! session that outlived its worker --taken over--> meet its agent --> drive, from the command's first byte on
//!                                                     |  ^-- silent: again, for a term
//!                                                   gone: looked for, ended as an orphan -> begun anew
//! ```
//! A sandbox of this host ends with its worker, and its task begins anew: its stream is its life.

use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::id::{SandboxId, TaskKey};
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::sandbox::{SandboxRequest, SessionState};
use cofferdam_ledger::listen::Wake;
use cofferdam_ledger::remote_commands::SessionTakeover;
use cofferdam_ledger::tasks::{TaskContext, WorkerLocation};
use cofferdam_sandbox::image::ServiceRoots;
use cofferdam_sandbox::{RemoteLocation, ResumeError, Sandbox, resume, verify_absent};
use tokio::sync::broadcast::Receiver;

use crate::attempt::End;
use crate::drive::{Job, drive};
use crate::executor::{Executor, may_cancel};
use crate::flow::{Flow, step_error};
use crate::host_plan::{HostPlan, canceled, planned};
use crate::patience::patiently;
use crate::settle::alert;

/// An agent that does not answer is asked again after this time.
const PAUSE: Duration = Duration::from_secs(1);

/// A task that goes on with a sandbox that was there.
pub(crate) struct ResumeTask {
    pub task: TaskContext,
    pub sandbox: SandboxId,
    pub end: End,
}

/// The end of a task whose sandbox outlived its worker; `None`: there is none, and the task begins (anew).
pub(crate) async fn take_over(
    executor: &Executor,
    key: &TaskKey,
    place: &WorkerLocation<'_>,
) -> Flow<Option<ResumeTask>> {
    let ledger = &executor.flows.ledger;
    let Some((provider, term)) = executor.host.elsewhere() else { return Ok(None) };
    let mut wakes = executor.flows.wakes.subscribe();
    let taken = patiently(|| ledger.sessions().take_over(key, place, &provider)).await;
    let Some(taken) = taken.map_err(step_error)? else { return Ok(None) };
    let own = WorkerLocation { sandbox: &taken.sandbox, ..*place };
    let begun = patiently(|| ledger.tasks().begin(key, &own)).await.map_err(step_error)?;
    let Some(mut task) = begun.filter(|task| task.finished.is_none()) else { return Ok(None) };
    task.execution_no = taken.execution_no;
    let Work::Sandbox(request) = task.work.clone() else { return Ok(None) };
    let resuming =
        ResumeContext { executor, task: &task, request: &request, taken: &taken, provider, term };
    if let Some(end) = resuming.end(&mut wakes).await {
        return Ok(Some(ResumeTask { task, sandbox: taken.sandbox, end }));
    }
    // Nothing of it may be left before the task begins anew; what is found holds the run, as ever.
    let state_dir = executor.host.facts().state_dir.clone();
    let evidence = verify_absent(&executor.host, &taken.sandbox, &state_dir, "orphan").await;
    alert(&evidence);
    patiently(|| ledger.sessions().look(&evidence, SessionState::Orphaned))
        .await
        .map_err(step_error)?;
    Ok(None)
}

struct ResumeContext<'a> {
    executor: &'a Executor,
    task: &'a TaskContext,
    request: &'a SandboxRequest,
    taken: &'a SessionTakeover,
    provider: String,
    term: Duration,
}

/// Why the sandbox is not driven.
enum ResumeFault {
    Gone(String),
    Canceled,
}

impl ResumeContext<'_> {
    /// `None`: it is gone.
    async fn end(&self, wakes: &mut Receiver<Wake>) -> Option<End> {
        let Self { executor, task, taken, .. } = self;
        let HostPlan { host, plan } = match planned(
            executor,
            task,
            self.request,
            None,
            ServiceRoots::new(),
            &taken.sandbox,
        ) {
            Ok(planned) => planned,
            Err(why) => return Some(*why.end(executor, task, &taken.sandbox).await),
        };
        let meeting = async |wakes: &mut Receiver<Wake>| {
            let place = RemoteLocation { provider: self.provider.clone(), id: taken.id.clone() };
            let waited = Stopwatch::start();
            loop {
                match resume(host, &plan, &place).await {
                    Ok(sandbox) => return Ok(sandbox),
                    Err(ResumeError::Silent(why)) if waited.elapsed() < self.term => {
                        tracing::warn!(task = %task.key, why, "a sandbox elsewhere does not answer yet");
                    }
                    Err(error) => return Err(ResumeFault::Gone(error.to_string())),
                }
                self.pause(wakes).await?;
            }
        };
        let met: Result<Sandbox, ResumeFault> = meeting(wakes).await;
        match met {
            Ok(sandbox) => {
                tracing::info!(task = %task.key, sandbox = %taken.sandbox, "a sandbox elsewhere was taken over");
                let job = Job { plan: &plan, deps: None, agent: None, taken_over: true };
                Some(Box::pin(drive(executor, task, job, sandbox, wakes.resubscribe())).await)
            }
            Err(ResumeFault::Canceled) => Some(canceled(executor, task, &taken.sandbox).await),
            Err(ResumeFault::Gone(why)) => {
                tracing::warn!(task = %task.key, sandbox = %taken.sandbox, why, "a sandbox elsewhere is gone; its task begins anew");
                None
            }
        }
    }

    async fn pause(&self, wakes: &mut Receiver<Wake>) -> Result<(), ResumeFault> {
        tokio::select! {
            () = clock::sleep(PAUSE) => Ok(()),
            wake = wakes.recv() => {
                match may_cancel(&wake, self.task) && self.executor.is_canceled(&self.task.key).await {
                    true => Err(ResumeFault::Canceled),
                    false => Ok(()),
                }
            }
        }
    }
}
