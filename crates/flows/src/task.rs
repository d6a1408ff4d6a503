//! A task's workflow: one step, from the recorded start to the committed end.
//!
//! ```text
//! begin (execution + session rows) -> inputs -> plan -> provision -> build -> exec -> collect -> wipe
//!                                        \________\_________\________ any failure ________/      |
//!                                   finish: result, artifacts, session's end and wipe evidence, together
//! ```
//! Everything after `begin` may happen again on another worker; only the commit at the end counts.

use std::sync::Arc;

use cofferdam_contracts::artifact::ArtifactKind;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::dispatch::AgentWork;
use cofferdam_contracts::id::{SandboxId, TaskKey};
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::sandbox::{AccessMode, ErrCode, FileOut, SandboxRequest};
use cofferdam_ledger::artifacts::NewArtifact;
use cofferdam_ledger::listen::Wake;
use cofferdam_ledger::runs::RunContext;
use cofferdam_ledger::tasks::{NewTask, Place, TaskContext};
use cofferdam_sandbox::{CacheBase, Host, HostPath, Input, Plan, provision_on};
use dbos::step;
use tokio::sync::broadcast::Receiver;

use crate::attempt::{End, blank};
use crate::deps::{self, Deps, Unprepared};
use crate::dispatches;
use crate::drive::{Job, drive};
use crate::executor::{Executor, may_cancel};
use crate::flow::{Flow, FlowError, step_error};
use crate::keeper::Keeper;
use crate::memory::MemoryShare;
use crate::patience::patiently;
use crate::planned::{planned, refused, refused_everywhere, unmade, unwanted};
use crate::resume::take_over;

/// The step's name in the engine.
const EXECUTE: &str = "ExecuteST";

/// The workflow's body.
pub(crate) async fn task_workflow(executor: Arc<Executor>) -> Flow<ErrCode> {
    let id = dbos::workflow_id().unwrap_or_default();
    let key = TaskKey::parse(&id)
        .map_err(|e| dbos::Error::Application(FlowError::Step(e.to_string())))?;
    step(EXECUTE, || execute(&executor, &key)).await
}

async fn execute(executor: &Executor, key: &TaskKey) -> Flow<ErrCode> {
    let ledger = &executor.flows.ledger;
    let name = executor.host.name();
    let name = name.map_err(|e| dbos::Error::Application(FlowError::Step(e.to_string())))?;
    let sandbox = name.id().clone();
    let state_dir = executor.host.facts().state_dir.to_string_lossy().into_owned();
    // Before the start is on record: whoever cancels a recorded start must be heard.
    let wakes = executor.flows.wakes.subscribe();
    let place = Place {
        executor: &executor.id,
        host_id: &executor.host_id,
        state_dir: &state_dir,
        sandbox: &sandbox,
    };
    if let Some(resumed) = take_over(executor, key, &place).await? {
        return finish(executor, &resumed.task, &resumed.sandbox, resumed.end).await;
    }
    let task = patiently(|| ledger.tasks().begin(key, &place))
        .await
        .map_err(step_error)?
        .ok_or_else(|| dbos::Error::Application(FlowError::Step(format!("no task {key}"))))?;
    if let Some(code) = task.finished {
        return Ok(code);
    }
    if matches!(task.work, Work::Value(_)) {
        // No session was opened under it.
        name.give_back();
    }
    let end = match &task.work {
        // Nothing runs whose output could not be kept; an attempt that runs already may end.
        Work::Value(_) if task.over_quota.is_some() => {
            End::bare(blank(&task, "", ErrCode::CmdNonzero, task.over_quota.clone()), None)
        }
        Work::Value(text) => value(&task, text),
        // On the heap: its state is large, and most tasks of a run only wait.
        Work::Sandbox(_) | Work::Agent(_) | Work::Opencode(_) | Work::Patched(_) => {
            Box::pin(sandboxed(executor, &task, &sandbox, wakes)).await
        }
    };
    finish(executor, &task, &sandbox, end).await
}

/// The end of a task that has a sandbox.
async fn sandboxed(
    executor: &Executor,
    task: &TaskContext,
    sandbox: &SandboxId,
    wakes: Receiver<Wake>,
) -> End {
    let Some(request) = task.work.request() else {
        return End::bare(blank(task, sandbox.as_str(), ErrCode::BootFail, None), None);
    };
    let agent = match &task.work {
        Work::Agent(agent) => Some(agent.as_ref()),
        _ => None,
    };
    let mut end = run_in_sandbox(executor, task, request, agent, sandbox, wakes).await;
    if let (Some(agent), None) = (agent, &end.result.agent) {
        let report = dispatches::unstarted(agent, end.result.cause.clone());
        end.result.agent = Some(Box::new(report));
    }
    end
}

/// Commits the end of an attempt, once.
async fn finish(
    executor: &Executor,
    task: &TaskContext,
    sandbox: &SandboxId,
    end: End,
) -> Flow<ErrCode> {
    let (ledger, key) = (&executor.flows.ledger, &task.key);
    executor.board.forget(sandbox);
    let committed = end.committed(task);
    if patiently(|| ledger.tasks().finish(&committed)).await.map_err(step_error)? {
        return Ok(end.result.err_code);
    }
    // Somebody else's result stands, or will: what counts is the ledger's, never this execution's.
    match patiently(|| ledger.tasks().err_code(key)).await.map_err(step_error)? {
        Some(code) => Ok(code),
        None => Err(dbos::Error::Interrupted { workflow_id: key.to_string() }),
    }
}

/// The end of an attempt that only keeps a text, which its parent can write as well as a worker could.
pub(crate) fn kept(run: &RunContext, task: &NewTask) -> Option<(TaskContext, End)> {
    let Work::Value(text) = &task.work else { return None };
    let context = TaskContext {
        key: task.key.clone(),
        run: run.id.clone(),
        tenant: run.tenant.clone(),
        step_id: task.step_id.clone(),
        attempt: task.attempt,
        work: task.work.clone(),
        by_host_admin: false,
        over_quota: None,
        execution_no: 1,
        mode_wanted: None,
        egress: Vec::new(),
        finished: None,
    };
    let end = value(&context, text);
    Some((context, end))
}

fn value(task: &TaskContext, text: &str) -> End {
    let file = FileOut {
        path: "value.txt".into(),
        encoded: false,
        sha256: digest_bytes(text.as_bytes()),
        size: u64::try_from(text.len()).unwrap_or(u64::MAX),
    };
    let mut result = blank(task, "", ErrCode::None, None);
    result.exit = 0;
    result.files_out = vec![file];
    let artifacts = vec![NewArtifact {
        kind: ArtifactKind::File,
        name: "files/value.txt".into(),
        bytes: text.as_bytes().to_vec(),
    }];
    End { artifacts, ..End::bare(result, None) }
}

async fn run_in_sandbox(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
    agent: Option<&AgentWork>,
    id: &SandboxId,
    mut wakes: Receiver<Wake>,
) -> End {
    if let Some(why) = &task.over_quota {
        return unmade(executor, task, id, ErrCode::CmdNonzero, why.clone()).await;
    }
    let (host, plan) = match planned(executor, task, request, agent, id).await {
        Ok(planned) => planned,
        Err(end) => return *end,
    };
    let based = based(executor, task, request, (host, &plan, id), &mut wakes).await;
    let (deps, base) = match based {
        Ok(based) => based,
        Err(end) => return *end,
    };
    let _memory = match room(executor, task, &plan, &mut wakes).await {
        Ok(share) => share,
        Err(NoRoom::TooLarge(cause)) => {
            return refused(unmade(executor, task, id, ErrCode::BootFail, cause).await);
        }
        Err(NoRoom::Canceled) => return unwanted(executor, task, id).await,
    };
    let inputs = match given(executor, task, request, id).await {
        Ok(inputs) => inputs,
        Err(end) => return *end,
    };
    let sandbox = match provision_on(host, &plan, &inputs, base).await {
        Ok(sandbox) => sandbox,
        Err(e) => {
            let mut result = blank(task, id.as_str(), e.code, Some(e.message));
            result.permanent = e.permanent;
            return End::bare(result, Some(*e.evidence));
        }
    };
    host.expect(&plan, &sandbox);
    sandbox.keep_secrets(Arc::new(Keeper::new(&executor.flows, task, sandbox.id())));
    let job = Job { plan: &plan, deps, agent, taken_over: false };
    Box::pin(drive(executor, task, job, sandbox, wakes)).await
}

/// The dependencies of a task that names some, before it takes memory: while another task builds them it has
/// no sandbox, and what it would hold is another's meanwhile.
async fn based(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
    (host, plan, id): (&Host, &Plan, &SandboxId),
    wakes: &mut Receiver<Wake>,
) -> Result<(Option<Deps>, Option<CacheBase>), Box<End>> {
    if request.spec.as_ref().is_none_or(|spec| spec.cache.is_none()) {
        return Ok((None, None));
    }
    // The lock files are among them. They are read again when there is room.
    let inputs = given(executor, task, request, id).await?;
    let made_of = (host, plan, inputs.as_slice());
    match deps::prepare(executor, task, request, made_of, wakes).await {
        Ok(prepared) => Ok(prepared),
        Err(Unprepared::Refused(why)) => {
            let cause = format!("this host cannot enforce {why}");
            let end = unmade(executor, task, id, ErrCode::BootFail, cause).await;
            Err(Box::new(refused(end)))
        }
        Err(Unprepared::Canceled) => Err(Box::new(unwanted(executor, task, id).await)),
    }
}

/// Why a sandbox got no memory.
enum NoRoom {
    /// It never will, on this worker.
    TooLarge(String),
    /// It is not wanted any more.
    Canceled,
}

/// The sandbox's part of the worker's memory, as soon as there is room for it.
async fn room(
    executor: &Executor,
    task: &TaskContext,
    plan: &Plan,
    wakes: &mut Receiver<Wake>,
) -> Result<MemoryShare, NoRoom> {
    let permits = executor
        .memory
        .admit(plan.host_mem_mb())
        .map_err(|e| NoRoom::TooLarge(format!("this host cannot enforce {e}")))?;
    let taken = executor.memory.take(&task.tenant, permits);
    tokio::pin!(taken);
    loop {
        tokio::select! {
            biased;
            share = &mut taken => return Ok(share),
            wake = wakes.recv() => {
                if may_cancel(&wake, task) && executor.is_canceled(&task.key).await {
                    return Err(NoRoom::Canceled);
                }
            }
        }
    }
}

/// Why an input cannot be given.
enum NoInput {
    /// The ledger did not answer: it may a moment later.
    Passing(String),
    /// What was named is not there, or is not what it was, and stays so.
    Lasting(String),
}

/// What the sandbox is given, or the task's end without it.
async fn given(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
    id: &SandboxId,
) -> Result<Vec<Input>, Box<End>> {
    match inputs(executor, task, request).await {
        Ok(inputs) => Ok(inputs),
        Err(NoInput::Passing(cause)) => {
            Err(Box::new(unmade(executor, task, id, ErrCode::UploadFail, cause).await))
        }
        Err(NoInput::Lasting(cause)) => {
            let end = unmade(executor, task, id, ErrCode::UploadFail, cause).await;
            Err(Box::new(refused_everywhere(end)))
        }
    }
}

/// Inline texts, artifacts of this tenant, and directories of this host.
async fn inputs(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
) -> Result<Vec<Input>, NoInput> {
    let lasting = |cause: String| Err(NoInput::Lasting(cause));
    let mut inputs = Vec::with_capacity(request.files_in.len());
    for file in &request.files_in {
        let path = file.path.clone();
        let input = match (&file.inline, &file.uri) {
            (Some(text), None) => {
                Input::Bytes { path, bytes: text.clone().into_bytes(), mode: mode(file.access) }
            }
            (None, Some(uri)) if uri.starts_with("artifact://") => {
                let stored = executor
                    .flows
                    .ledger
                    .artifacts()
                    .read(&task.tenant, uri)
                    .await
                    .map_err(|e| NoInput::Passing(format!("{uri}: {e}")))?
                    .ok_or_else(|| NoInput::Lasting(format!("{uri}: no such artifact")))?;
                if digest_bytes(&stored.bytes) != stored.sha256 {
                    return lasting(format!("{uri}: its bytes do not have the recorded hash"));
                }
                Input::Bytes { path, bytes: stored.bytes, mode: mode(file.access) }
            }
            (None, Some(uri)) => match uri.strip_prefix("host://") {
                Some(source) => {
                    Input::Host { path, source: HostPath::said(source), access: file.access }
                }
                None => return lasting(format!("{uri}: only host:// and artifact:// are known")),
            },
            _ => return lasting(format!("{path}: exactly one of inline and uri")),
        };
        inputs.push(input);
    }
    Ok(inputs)
}

fn mode(access: AccessMode) -> u32 {
    match access {
        AccessMode::ReadOnly => 0o444,
        AccessMode::WorkspaceWrite | AccessMode::Full => 0o644,
    }
}
