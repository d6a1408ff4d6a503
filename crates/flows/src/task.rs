//! A task's workflow: one step, from the recorded start to the committed end.
//!
//! ```text
//! begin (execution + session rows) -> inputs -> plan -> provision -> build -> exec -> collect -> wipe
//!                                        \________\_________\________ any failure ________/      |
//!                                   finish: result, artifacts, session's end and wipe evidence, together
//! ```
//! Everything after `begin` may happen again on another worker; only the commit at the end counts.

use std::sync::Arc;

use cofferdam_ambient::own;
use cofferdam_contracts::artifact::{ArtifactKind, ArtifactMode, OutputFile};
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::dispatch::AgentWork;
use cofferdam_contracts::id::{SandboxId, TaskKey};
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::sandbox::{ErrCode, SandboxRequest, WipeStatus};
use cofferdam_ledger::artifacts::NewArtifact;
use cofferdam_ledger::listen::Wake;
use cofferdam_ledger::runs::RunContext;
use cofferdam_ledger::tasks::{NewTask, TaskContext, TaskEnd, WorkerLocation};
use dbos::step;
use tokio::sync::broadcast::Receiver;

use crate::attempt::{End, blank};
use crate::dispatches;
use crate::draft_objects::take_written;
use crate::drive::{Job, drive};
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::flow::{Flow, FlowError, step_error};
use crate::host_plan::unmade;
use crate::live_sandboxes::{Attempt, LiveSandboxes};
use crate::patience::patiently;
use crate::ready_sandbox::{ReadySandbox, up};
use crate::resume::take_over;

/// The step's name in the engine.
const EXECUTE: &str = "ExecuteST";

/// The workflow's body.
pub(crate) async fn task_workflow(
    executor: Arc<Executor>,
    lives: Arc<dyn LiveSandboxes>,
) -> Flow<ErrCode> {
    let id = dbos::workflow_id().unwrap_or_default();
    let key = TaskKey::parse(&id)
        .map_err(|e| dbos::Error::Application(FlowError::Step(e.to_string())))?;
    // On the heap: the engine's own layers around it would each keep room for all of it.
    step(EXECUTE, || Box::pin(execute(&executor, &*lives, &key))).await
}

async fn execute(executor: &Executor, lives: &dyn LiveSandboxes, key: &TaskKey) -> Flow<ErrCode> {
    let ledger = &executor.flows.ledger;
    let (name, sandbox) = match lives.name_of(key) {
        Some(sandbox) => (None, sandbox),
        None => {
            let name = executor.host.names().next();
            let name =
                name.map_err(|e| dbos::Error::Application(FlowError::Step(e.to_string())))?;
            let sandbox = name.id().clone();
            (Some(name), sandbox)
        }
    };
    let state_dir = executor.host.facts().state_dir.to_string_lossy().into_owned();
    // Before the start is on record: whoever cancels a recorded start must be heard.
    let wakes = executor.flows.wakes.subscribe();
    let place = WorkerLocation {
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
    if matches!(task.work, Work::Value(_))
        && let Some(name) = name
    {
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
        Work::Live(work) => lives.hold(Attempt::new(executor, &task, &sandbox, wakes), work).await,
    };
    let finished = finish(executor, &task, &sandbox, end).await;
    if matches!(task.work, Work::Live(_)) {
        // Its run ends now, too, also where nobody has looked for its workflow yet.
        executor.slots.life.notify_one();
    }
    finished
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
    let equipped = match &task.work {
        Work::Agent(agent) => {
            match dispatches::equipped(&executor.host.facts().state_dir, task.by_host_admin, agent)
            {
                Ok(equipped) => Some(equipped),
                Err(cause) => {
                    let mut end = unmade(executor, task, sandbox, ErrCode::BootFail, cause).await;
                    let report = dispatches::unstarted(agent, end.result.cause.clone());
                    end.result.agent = Some(Box::new(report));
                    return end.refused();
                }
            }
        }
        _ => None,
    };
    let agent = equipped.as_ref();
    let request = agent.map_or(request, |agent| &agent.request);
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
    mut end: End,
) -> Flow<ErrCode> {
    let (ledger, key) = (&executor.flows.ledger, &task.key);
    executor.session_states.forget(sandbox);
    // Its tenant reads it, and named paths of his own.
    let request = task.work.request();
    let is_named = |path: &str| {
        let text = serde_json::to_string(&request);
        text.is_ok_and(|text| text.contains(path))
    };
    // An agent's words may have a NUL, which no record takes.
    let hidden = |cause: String| own::hidden_but(&cause, &is_named).replace('\0', "\u{fffd}");
    end.result.cause = end.result.cause.map(hidden);
    let mut staged = std::mem::take(&mut end.staged);
    let ending = executor.handed.ending(key);
    let mut written = committed(executor, task, &end).await;
    // An object that its files shared was erased: what it wrote itself is there.
    if matches!(&written, Err(Error::Ledger(error)) if error.is_restrict_violation())
        && take_written(&mut end.artifacts, &mut staged)
    {
        written = committed(executor, task, &end).await;
    }
    executor.flows.objects.settle(written.as_ref().ok().copied(), staged).await;
    if written.map_err(step_error)? {
        // Of a second execution an earlier sandbox may still hold the run.
        let is_gone = end.evidence.as_ref().is_some_and(|gone| gone.status == WipeStatus::Verified);
        if is_gone && task.execution_no == 1 && end.result.err_code == ErrCode::None {
            ending.succeeded();
        }
        return Ok(end.result.err_code);
    }
    // Somebody else's result stands, or will: what counts is the ledger's, never this execution's.
    match patiently(|| ledger.tasks().err_code(key)).await.map_err(step_error)? {
        Some(code) => Ok(code),
        None => Err(dbos::Error::Interrupted { workflow_id: key.to_string() }),
    }
}

/// `false`: another end stands, or will.
async fn committed(executor: &Executor, task: &TaskContext, end: &End) -> Result<bool> {
    let runtime = executor.host.facts().runtime.name.as_str();
    let committed = TaskEnd { runtime: Some(runtime), ..end.committed(task) };
    patiently(|| executor.flows.ledger.tasks().finish(&committed)).await
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
        class_floor: None,
        finished: None,
    };
    let end = value(&context, text);
    Some((context, end))
}

fn value(task: &TaskContext, text: &str) -> End {
    let file = OutputFile {
        path: "value.txt".into(),
        encoded: false,
        sha256: digest_bytes(text.as_bytes()),
        size: u64::try_from(text.len()).unwrap_or(u64::MAX),
        mode: ArtifactMode::File,
        target: None,
    };
    let mut result = blank(task, "", ErrCode::None, None);
    result.exit = 0;
    result.files_out = vec![file];
    let bytes = text.as_bytes().to_vec();
    let artifacts = vec![NewArtifact::plain(ArtifactKind::File, "files/value.txt", bytes)];
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
    let ReadySandbox { sandbox, plan, deps, memory: _memory } =
        match up(executor, task, request, agent, None, id, &mut wakes).await {
            Ok(up) => up,
            Err(end) => return *end,
        };
    let job = Job { plan: &plan, deps, agent, taken_over: false };
    Box::pin(drive(executor, task, job, sandbox, wakes)).await
}
