//! From a task's request to a sandbox that is up, or the task's end without one.

use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::dispatch::AgentWork;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::sandbox::{ErrCode, SandboxRequest};
use cofferdam_ledger::listen::Wake;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::image::ServiceRoots;
use cofferdam_sandbox::{
    CacheBase, InitialFiles, Plan, ProvisionError, Sandbox, provision_filled, provision_on,
};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::attempt::{End, blank};
use crate::deps::{self, Deps, DepsError};
use crate::error::Error;
use crate::executor::{Executor, may_cancel};
use crate::host_plan::{HostPlan, canceled, planned, unmade};
use crate::input_files::{NoInput, TaskInputs, inputs};
use crate::memory::{MemoryShare, MemoryUse};
use crate::patience::patiently;
use crate::service_images::{self, PullError};
use crate::task_secrets::TaskSecrets;

/// A task that waits no longer than this for memory is not said to wait: most wait for none.
const FIRST_WORD: Duration = Duration::from_millis(250);
/// Between two looks at how many wait before it.
const NEXT_WORD: Duration = Duration::from_secs(2);

/// A sandbox that is up.
#[derive(Debug)]
pub struct ReadySandbox {
    /// Running sandbox whose agent answers; a drop kills its processes but does not wipe it.
    pub sandbox: Sandbox,
    pub(crate) plan: Plan,
    /// Its dependencies, where it names some.
    pub(crate) deps: Option<Deps>,
    /// Its part of the worker's memory, for as long as it lives.
    pub memory: MemoryShare,
}

/// Plans, admits and makes the sandbox of a task, or says how the task ends without it.
pub(crate) async fn up(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
    agent: Option<&AgentWork>,
    filling: Option<InitialFiles>,
    id: &SandboxId,
    wakes: &mut Receiver<Wake>,
) -> Result<ReadySandbox, Box<End>> {
    let since = Stopwatch::start();
    if let Some(why) = &task.over_quota {
        let end = unmade(executor, task, id, ErrCode::CmdNonzero, why.clone()).await;
        return Err(Box::new(end));
    }
    let roots = images(executor, task, request, id, wakes).await?;
    let on = match planned(executor, task, request, agent, roots, id) {
        Ok(planned) => planned,
        Err(why) => return Err(why.end(executor, task, id).await),
    };
    let admitted = executor.flows.models.admit(&task.tenant, request.models().as_slice()).await;
    if let Err(error) = admitted {
        let is_refusal = matches!(error, Error::Refused(_));
        let cause = error.refusal().message;
        let end = unmade(executor, task, id, ErrCode::BootFail, cause).await;
        return Err(Box::new(if is_refusal { end.refused_everywhere() } else { end }));
    }
    let (deps, base) = based(executor, task, request, &on, id, wakes).await?;
    let memory = match room(executor, task, &on.plan, id, &since, wakes).await {
        Ok(share) => share,
        Err(MemoryRefusal::TooLarge(cause)) => {
            let end = unmade(executor, task, id, ErrCode::BootFail, cause).await;
            return Err(Box::new(end.refused()));
        }
        Err(MemoryRefusal::Canceled) => return Err(Box::new(canceled(executor, task, id).await)),
    };
    let inputs = given(executor, task, request, id, wakes).await?;
    let making = async {
        match filling {
            Some(filling) => provision_filled(on.host, &on.plan, &inputs, filling).await,
            None => provision_on(on.host, &on.plan, &inputs, base).await,
        }
    };
    // Whoever drives the sandbox hears the same words, if it is made all the same.
    let mut heard = wakes.resubscribe();
    let canceled = cancellation(executor, task, &mut heard);
    let mut making = Box::pin(making);
    let made = tokio::select! {
        biased;
        made = &mut making => made,
        () = canceled => {
            let _given_up = on.host.discard(id);
            (&mut making).await
        }
    };
    drop(making);
    begun(executor, task, on, made, deps, memory)
}

/// The images of its services on this host, or the task's end without them.
async fn images(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
    id: &SandboxId,
    wakes: &Receiver<Wake>,
) -> Result<ServiceRoots, Box<End>> {
    let mut heard = wakes.resubscribe();
    let given_up = cancellation(executor, task, &mut heard);
    let pulled = tokio::select! {
        biased;
        pulled = service_images::pulled(executor, task, request) => pulled,
        () = given_up => return Err(Box::new(canceled(executor, task, id).await)),
    };
    match pulled {
        Ok(roots) => Ok(roots),
        Err(PullError::Passing(cause)) => {
            Err(Box::new(unmade(executor, task, id, ErrCode::BootFail, cause).await))
        }
        Err(PullError::Lasting(cause)) => {
            let end = unmade(executor, task, id, ErrCode::BootFail, cause).await;
            Err(Box::new(end.refused_everywhere()))
        }
    }
}

/// Until a task is canceled.
async fn cancellation(executor: &Executor, task: &TaskContext, wakes: &mut Receiver<Wake>) {
    loop {
        let wake = wakes.recv().await;
        if matches!(wake, Err(RecvError::Closed)) {
            return std::future::pending().await;
        }
        if may_cancel(&wake, task) && executor.is_canceled(&task.key).await {
            return;
        }
    }
}

/// What came of making the sandbox of a task.
pub(crate) fn begun(
    executor: &Executor,
    task: &TaskContext,
    HostPlan { host, plan }: HostPlan<'_>,
    made: Result<Sandbox, ProvisionError>,
    deps: Option<Deps>,
    memory: MemoryShare,
) -> Result<ReadySandbox, Box<End>> {
    let mut sandbox = match made {
        Ok(sandbox) => sandbox,
        Err(e) => {
            let id = plan.traces.id.as_str();
            let mut result = blank(task, id, e.code, Some(e.message));
            result.permanent = e.permanent;
            return Err(Box::new(End::bare(result, Some(*e.evidence))));
        }
    };
    host.weigh(&mut sandbox, &task.tenant);
    host.expect(&plan, &sandbox);
    let snapshotter = TaskSecrets::new(&executor.flows.secrets, task, sandbox.id());
    sandbox.traffic().set_secret_source(std::sync::Arc::new(snapshotter));
    Ok(ReadySandbox { sandbox, plan, deps, memory })
}

/// The dependencies of a task that names some, before it takes memory: while another task builds them it has
/// no sandbox, and what it would hold is another's meanwhile.
async fn based(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
    on: &HostPlan<'_>,
    id: &SandboxId,
    wakes: &mut Receiver<Wake>,
) -> Result<(Option<Deps>, Option<CacheBase>), Box<End>> {
    if request.spec.as_ref().is_none_or(|spec| spec.cache.is_none()) {
        return Ok((None, None));
    }
    // The lock files are among them. They are read again when there is room.
    let inputs = given(executor, task, request, id, wakes).await?;
    match deps::prepare(executor, task, request, on, inputs, wakes).await {
        Ok(prepared) => Ok(prepared),
        Err(DepsError::Refused(why)) => {
            let cause = format!("this host cannot enforce {why}");
            let end = unmade(executor, task, id, ErrCode::BootFail, cause).await;
            Err(Box::new(end.refused()))
        }
        Err(DepsError::Canceled) => Err(Box::new(canceled(executor, task, id).await)),
    }
}

/// Why a sandbox got no memory.
enum MemoryRefusal {
    /// It never will, on this worker.
    TooLarge(String),
    /// It is not wanted any more.
    Canceled,
}

/// The sandbox's part of the worker's memory, as soon as there is room for it. Meanwhile readers are told that it waits; `since`: when
/// its task began here.
async fn room(
    executor: &Executor,
    task: &TaskContext,
    plan: &Plan,
    id: &SandboxId,
    since: &Stopwatch,
    wakes: &mut Receiver<Wake>,
) -> Result<MemoryShare, MemoryRefusal> {
    let permits = executor
        .memory
        .admit(plan.host_mem_mb())
        .map_err(|e| MemoryRefusal::TooLarge(format!("this host cannot enforce {e}")))?;
    let what = if matches!(task.work, Work::Live(_)) { MemoryUse::Life } else { MemoryUse::Task };
    let mut asked = executor.memory.ask(&task.tenant, permits, what);
    let sessions = || executor.flows.ledger.sessions();
    let mut said = None;
    let mut look = Box::pin(clock::sleep(FIRST_WORD));
    loop {
        tokio::select! {
            biased;
            () = asked.had() => break,
            () = &mut look => {
                let words = match asked.before() {
                    0 => "memory".to_owned(),
                    before => format!("memory: {before} before you"),
                };
                if said.as_ref() != Some(&words) {
                    match sessions().waits(id, Some(&words)).await {
                        Ok(()) => said = Some(words),
                        Err(error) => tracing::warn!(%error, %id, "what a task waits for was not written"),
                    }
                }
                look = Box::pin(clock::sleep(NEXT_WORD));
            }
            wake = wakes.recv() => {
                if may_cancel(&wake, task) && executor.is_canceled(&task.key).await {
                    return Err(MemoryRefusal::Canceled);
                }
            }
        }
    }
    // A word whose answer was lost may be on record; and what was waited for before, another's build, is not metered either.
    if since.elapsed() >= FIRST_WORD
        && let Err(error) = patiently(|| sessions().waits(id, None)).await
    {
        tracing::warn!(%error, %id, "a task that runs is said to wait");
    }
    Ok(asked.share)
}

/// What the sandbox is given, or the task's end without it. It may have to wait for memory: a task that is canceled does not.
async fn given(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
    id: &SandboxId,
    wakes: &mut Receiver<Wake>,
) -> Result<TaskInputs, Box<End>> {
    let read = tokio::select! {
        biased;
        read = inputs(executor, task, request) => read,
        () = cancellation(executor, task, wakes) => {
            return Err(Box::new(canceled(executor, task, id).await));
        }
    };
    match read {
        Ok(inputs) => Ok(inputs),
        Err(NoInput::Passing(cause)) => {
            Err(Box::new(unmade(executor, task, id, ErrCode::UploadFail, cause).await))
        }
        Err(NoInput::Lasting(cause)) => {
            let end = unmade(executor, task, id, ErrCode::UploadFail, cause).await;
            Err(Box::new(end.refused_everywhere()))
        }
    }
}
