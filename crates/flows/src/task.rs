//! A task's workflow: one step, from the recorded start to the committed end.
//!
//! ```text
//! begin (execution + session rows) -> inputs -> plan -> provision -> build -> exec -> collect -> wipe
//!                                        \________\_________\________ any failure ________/      |
//!                                   finish: result, artifacts, session's end and wipe evidence, together
//! ```
//! Everything after `begin` may happen again on another worker; only the commit at the end counts.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::artifact::ArtifactKind;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::dispatch::AgentWork;
use cofferdam_contracts::id::{ExecutorId, SandboxId, TaskKey};
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::sandbox::{
    AccessMode, EffectivePolicy, ErrCode, FileOut, Metrics, SandboxRequest, SandboxResult,
    SessionState, WipeEvidence, WipeStatus,
};
use cofferdam_contracts::session::{Attestation, findings};
use cofferdam_ledger::artifacts::NewArtifact;
use cofferdam_ledger::listen::Wake;
use cofferdam_ledger::tasks::{Place, TaskContext, TaskEnd};
use cofferdam_sandbox::{
    Command, ExecOutcome, Host, Input, Plan, Sandbox, SandboxError, Stream, provision_on,
    verify_absent,
};
use dbos::step;

use crate::Flows;
use crate::ask::Asks;
use crate::board::Board;
use crate::cache::{self, Deps};
use crate::decide::MAX_EXECUTIONS;
use crate::dispatches;
use crate::egress;
use crate::output::Output;
use crate::patience::patiently;
use crate::run::{Flow, FlowError, step_error};
use crate::verdict;

/// The step's name in the engine.
const EXECUTE: &str = "ExecuteST";
/// How often a running task's output is offered to watchers.
const TICK: Duration = Duration::from_millis(100);

/// What a worker needs to execute tasks.
#[derive(Debug)]
pub(crate) struct Executor {
    pub flows: Flows,
    pub id: ExecutorId,
    pub host_id: String,
    /// For everybody: host directories only below the allowed roots.
    pub host: Host,
    /// Where its sandboxes are now.
    pub board: Board,
    /// A base of the dependency cache was made: whoever keeps it within bounds should look.
    pub promoted: tokio::sync::Notify,
    /// For the host's own admin, whose key is worth as much as this host's root anyway.
    pub open_host: Host,
}

/// How an attempt ended, before it is committed.
struct End {
    result: SandboxResult,
    effective: Option<EffectivePolicy>,
    artifacts: Vec<NewArtifact>,
    evidence: Option<WipeEvidence>,
    attestation: Option<Attestation>,
    canceled: bool,
}

/// The workflow's body.
pub(crate) async fn task_workflow(executor: Arc<Executor>) -> Flow<ErrCode> {
    let id = dbos::workflow_id().unwrap_or_default();
    let key = TaskKey::parse(&id)
        .map_err(|e| dbos::Error::Application(FlowError::Ledger(e.to_string())))?;
    step(EXECUTE, || execute(&executor, &key)).await
}

async fn execute(executor: &Executor, key: &TaskKey) -> Flow<ErrCode> {
    let ledger = &executor.flows.ledger;
    let sandbox = SandboxId::parse(&format!("sb{}", cofferdam_ambient::random::secret_hex(10)))
        .map_err(|e| dbos::Error::Application(FlowError::Ledger(e.to_string())))?;
    let state_dir = executor.host.facts().state_dir.to_string_lossy().into_owned();
    // Before the start is on record: whoever cancels a recorded start must be heard.
    let wakes = executor.flows.wakes.subscribe();
    let place = Place {
        executor: &executor.id,
        host_id: &executor.host_id,
        state_dir: &state_dir,
        sandbox: &sandbox,
    };
    let task = patiently(|| ledger.task_begin(key, &place))
        .await
        .map_err(step_error)?
        .ok_or_else(|| dbos::Error::Application(FlowError::Ledger(format!("no task {key}"))))?;
    if let Some(code) = task.finished {
        return Ok(code);
    }
    let end = match &task.work {
        Work::Value(text) => value(&task, text),
        Work::Sandbox(request) => {
            run_in_sandbox(executor, &task, request, None, &sandbox, wakes).await
        }
        Work::Agent(agent) => {
            let request = &agent.request;
            let mut end =
                run_in_sandbox(executor, &task, request, Some(agent.as_ref()), &sandbox, wakes)
                    .await;
            if end.result.agent.is_none() {
                let report = dispatches::unstarted(agent, end.result.cause.clone());
                end.result.agent = Some(Box::new(report));
            }
            end
        }
    };
    executor.board.forget(&sandbox);
    if matches!(&task.work, Work::Sandbox(request) if asks(request)) {
        // Before the result: nobody is left who could use an answer, or take one that is there.
        patiently(|| ledger.egress_settle(key, true)).await.map_err(step_error)?;
    }
    let committed = TaskEnd {
        task: &task,
        result: &end.result,
        effective: end.effective.as_ref(),
        artifacts: &end.artifacts,
        evidence: end.evidence.as_ref(),
        attestation: end.attestation.as_ref(),
        canceled: end.canceled,
    };
    if patiently(|| ledger.task_finish(&committed)).await.map_err(step_error)? {
        return Ok(end.result.err_code);
    }
    // Somebody else's result stands, or will: what counts is the ledger's, never this execution's.
    match patiently(|| ledger.task_err_code(key)).await.map_err(step_error)? {
        Some(code) => Ok(code),
        None => Err(dbos::Error::Interrupted { workflow_id: key.to_string() }),
    }
}

/// Whether a person may be asked for names on behalf of this request.
fn asks(request: &SandboxRequest) -> bool {
    request.net_ask || request.build.as_ref().is_some_and(|build| build.ask)
}

fn value(task: &TaskContext, text: &str) -> End {
    let file = FileOut {
        path: "value.txt".into(),
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
    End { result, effective: None, artifacts, evidence: None, attestation: None, canceled: false }
}

fn blank(
    task: &TaskContext,
    sandbox: &str,
    err_code: ErrCode,
    cause: Option<String>,
) -> SandboxResult {
    SandboxResult {
        exit: -1,
        stdout: String::new(),
        stderr: String::new(),
        files_out: Vec::new(),
        metrics: Metrics::default(),
        sandbox_ref: sandbox.to_owned(),
        err_code,
        dropped_bytes: 0,
        services: Vec::new(),
        task_key: task.key.clone(),
        artifact_index_ref: Some(cofferdam_contracts::artifact::uri(
            &task.run,
            &task.step_id,
            &task.key,
            "index.json",
        )),
        cause,
        limits_reached: Vec::new(),
        violations: Vec::new(),
        violations_unlisted: 0,
        cache: None,
        agent: None,
    }
}

/// An end at which no sandbox was made: nothing of it may exist, which is looked for all the same.
async fn unmade(
    executor: &Executor,
    task: &TaskContext,
    sandbox: &SandboxId,
    code: ErrCode,
    cause: String,
) -> End {
    let state_dir = executor.host.facts().state_dir.clone();
    let evidence = verify_absent(&executor.host, sandbox, &state_dir, "boot-fail").await;
    let result = blank(task, sandbox.as_str(), code, Some(cause));
    End {
        result,
        effective: None,
        artifacts: Vec::new(),
        evidence: Some(evidence),
        attestation: None,
        canceled: false,
    }
}

async fn run_in_sandbox(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
    agent: Option<&AgentWork>,
    id: &SandboxId,
    wakes: tokio::sync::broadcast::Receiver<Wake>,
) -> End {
    if task.execution_no > MAX_EXECUTIONS {
        let cause = format!(
            "its worker was lost {MAX_EXECUTIONS} times while it ran; it is not started again"
        );
        return unmade(executor, task, id, ErrCode::CmdNonzero, cause).await;
    }
    if let Some(drift) = egress::drift(request, &task.egress) {
        return unmade(executor, task, id, ErrCode::BootFail, drift).await;
    }
    let host = if task.by_host_admin { &executor.open_host } else { &executor.host };
    let planned =
        host.plan(request, id).map_err(|e| e.to_string()).and_then(|mut plan| match agent {
            Some(agent) => dispatches::hold(&mut plan, agent).map(|()| plan),
            None => Ok(plan),
        });
    let plan = match planned {
        Ok(plan) => plan,
        Err(e) => {
            return unmade(
                executor,
                task,
                id,
                ErrCode::BootFail,
                format!("this host cannot enforce {e}"),
            )
            .await;
        }
    };
    let inputs = match inputs(executor, task, request).await {
        Ok(inputs) => inputs,
        Err(cause) => return unmade(executor, task, id, ErrCode::UploadFail, cause).await,
    };
    let (deps, base) = match cache::prepare(executor, task, request, (host, &plan, &inputs)).await {
        Ok(prepared) => prepared,
        Err(why) => {
            let cause = format!("this host cannot enforce {why}");
            return unmade(executor, task, id, ErrCode::BootFail, cause).await;
        }
    };
    let sandbox = match provision_on(host, &plan, &inputs, base).await {
        Ok(sandbox) => sandbox,
        Err(e) => {
            let result = blank(task, id.as_str(), e.code, Some(e.message));
            let evidence = Some(*e.evidence);
            return End {
                result,
                effective: None,
                artifacts: Vec::new(),
                evidence,
                attestation: None,
                canceled: false,
            };
        }
    };
    drive(executor, task, (&plan, deps, agent), sandbox, wakes).await
}

/// Inline texts, artifacts of this tenant, and directories of this host.
async fn inputs(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
) -> Result<Vec<Input>, String> {
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
                    .artifact_read(&task.tenant, uri)
                    .await
                    .map_err(|e| format!("{uri}: {e}"))?
                    .ok_or_else(|| format!("{uri}: no such artifact"))?;
                if digest_bytes(&stored.bytes) != stored.sha256 {
                    return Err(format!("{uri}: its bytes do not have the recorded hash"));
                }
                Input::Bytes { path, bytes: stored.bytes, mode: mode(file.access) }
            }
            (None, Some(uri)) => match uri.strip_prefix("host://") {
                Some(source) => {
                    Input::Host { path, source: PathBuf::from(source), access: file.access }
                }
                None => return Err(format!("{uri}: only host:// and artifact:// are known")),
            },
            _ => return Err(format!("{path}: exactly one of inline and uri")),
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

struct Watched {
    out: Mutex<(Output, Output)>,
}

impl Watched {
    fn push(&self, stream: Stream, chunk: &[u8]) {
        // A poisoned lock only means that another push panicked; the bytes are still good.
        let mut out = self.out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match stream {
            Stream::Stdout => out.0.push(chunk),
            Stream::Stderr => out.1.push(chunk),
        }
    }

    async fn show(&self, executor: &Executor, task: &TaskKey, at_end: bool) {
        let chunks = {
            let mut out = self.out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            [out.0.take(at_end), out.1.take(at_end)]
        };
        for chunk in chunks.into_iter().flatten() {
            chunk.store(&executor.flows.ledger, task).await;
        }
    }
}

async fn drive(
    executor: &Executor,
    task: &TaskContext,
    (plan, mut deps, agent): (&Plan, Option<Deps>, Option<&AgentWork>),
    sandbox: Sandbox,
    mut wakes: tokio::sync::broadcast::Receiver<Wake>,
) -> End {
    let id = sandbox.id().clone();
    let attestation = executor.host.attest(sandbox.effective()).await;
    executor.board.made(&id, attestation.clone(), sandbox.kill_handle());
    let watched = Watched { out: Mutex::new((Output::new("stdout"), Output::new("stderr"))) };
    let mut asks = Asks::new(&executor.flows, task);
    let watch = agent.map(dispatches::Watch::new);
    if agent.is_some()
        && let Err(error) = executor.flows.ledger.dispatch_pid(&task.key, sandbox.init_pid()).await
    {
        tracing::warn!(%error, task = %task.key, "the dispatch's process was not noted");
    }
    let mut phase = Phase {
        executor,
        task,
        sandbox: &sandbox,
        watched: &watched,
        watch: watch.as_ref(),
        wakes: &mut wakes,
        asks: &mut asks,
    };
    let mut outcome = Ok(None);
    let mut result = blank(task, id.as_str(), ErrCode::CmdNonzero, None);
    let mut in_build = false;
    let mut build_ms = deps.as_ref().map_or(0, |deps| deps.found_ms);
    if let Some(build) = plan.build.as_ref().filter(|_| !deps.as_ref().is_some_and(Deps::is_hit)) {
        executor.board.set(&id, SessionState::Building);
        let building = clock::Stopwatch::start();
        outcome = phase.command(build).await.map(Some);
        in_build = matches!(&outcome, Ok(Some(built)) if built.err_code != ErrCode::None);
        if let Ok(Some(built)) = &outcome {
            result.limits_reached.clone_from(&built.reached);
        }
        if let (Some(deps), Ok(Some(built))) = (&mut deps, &outcome)
            && built.err_code == ErrCode::None
        {
            deps.keep(executor, task, &sandbox).await;
        }
        build_ms += building.elapsed_ms();
    }
    // Nothing of the task runs after a build that failed.
    if !in_build && outcome.is_ok() {
        executor.board.set(&id, SessionState::Executing);
        outcome = phase.command(&plan.task).await.map(Some);
    }
    watched.show(executor, &task.key, true).await;
    let mut canceled = false;
    let mut files = Vec::new();
    let mut notes = Vec::new();
    let mut seen = None;
    match outcome {
        Ok(Some(outcome)) => {
            verdict::ran(&mut result, &outcome, in_build);
            if agent.is_some() {
                executor.board.set(&id, SessionState::Collecting);
                (files, notes) = dispatches::changes(&sandbox, &mut result).await;
            }
            seen = outcome.seen;
            if !plan.artifacts.is_empty() {
                executor.board.set(&id, SessionState::Collecting);
                match sandbox.collect(&plan.task.cwd, &plan.artifacts).await {
                    Ok(found) => files = found,
                    Err(e) => {
                        tracing::info!(task = %task.key, error = %e, "a task's files were not collected");
                        verdict::uncollected(&mut result, &e);
                    }
                }
            }
        }
        Err(SandboxError::Killed) if watch.as_ref().is_some_and(|w| w.stopped().is_some()) => {
            result.cause = watch.as_ref().and_then(dispatches::Watch::stopped);
        }
        Err(e) => canceled = verdict::broke(&mut result, &e),
        Ok(None) => {}
    }
    let services = sandbox.services();
    result.services = services.iter().map(|end| end.report.clone()).collect();
    let mut effective = sandbox.effective().clone();
    result.cache = deps.map(|deps| deps.report);
    effective.cache.clone_from(&result.cache);
    effective.granted = asks.granted();
    result.metrics.build_ms = build_ms;
    (result.violations, result.violations_unlisted) = sandbox.violations();
    result.metrics.boot_ms = sandbox.boot_ms();
    result.metrics.mem_peak_mb = sandbox.peak_mem_mb();
    executor.board.set(&id, SessionState::RemoteWipeVerifying);
    let wiping = clock::Stopwatch::start();
    let evidence = sandbox.wipe(if canceled { "canceled" } else { "task-end" }).await;
    result.metrics.wipe_ms = wiping.elapsed_ms();
    if evidence.status == WipeStatus::Failed {
        let found = findings(&evidence).join("; ");
        tracing::error!(sandbox = %id, found, "a wipe could not be verified: its session holds its run; see `cofferdam session`");
    }
    let (out, err) = watched.out.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    result.stdout = out.excerpt();
    result.stderr = err.excerpt();
    if let Some(watch) = &watch {
        result.agent = Some(Box::new(watch.report(seen.as_ref(), &effective, &result)));
    }
    let artifacts = artifacts(&mut result, out, err, files, notes, services);
    End {
        result,
        effective: Some(effective),
        artifacts,
        evidence: Some(evidence),
        attestation: Some(attestation),
        canceled,
    }
}

/// One command of a sandbox, watched and cancelable.
struct Phase<'a, 'b> {
    executor: &'a Executor,
    task: &'a TaskContext,
    sandbox: &'a Sandbox,
    watched: &'a Watched,
    watch: Option<&'a dispatches::Watch<'a>>,
    wakes: &'a mut tokio::sync::broadcast::Receiver<Wake>,
    asks: &'a mut Asks<'b>,
}

impl Phase<'_, '_> {
    async fn command(&mut self, command: &Command) -> Result<ExecOutcome, SandboxError> {
        let kill = self.sandbox.kill_handle();
        let running = self.sandbox.exec(command, |stream, chunk| {
            self.watched.push(stream, chunk);
            if let (Stream::Stdout, Some(watch)) = (stream, self.watch)
                && watch.push(chunk)
            {
                kill.kill();
            }
        });
        tokio::pin!(running);
        loop {
            tokio::select! {
                biased;
                ended = &mut running => return ended,
                wake = self.wakes.recv() => {
                    let is_gate = matches!(&wake, Ok(Wake::Gate(run)) if run == self.task.run.as_str());
                    let ask = match wake {
                        Ok(Wake::Cancel(id)) => id == self.task.key.as_str(),
                        Ok(Wake::All) | Err(_) => true,
                        Ok(_) => false,
                    };
                    if is_gate {
                        self.asks.turn(self.sandbox, command.timeout_ms, true).await;
                    }
                    if ask && self.executor.is_canceled(&self.task.key).await {
                        kill.kill();
                    }
                }
                () = clock::sleep(TICK) => {
                    self.watched.show(self.executor, &self.task.key, false).await;
                    self.asks.turn(self.sandbox, command.timeout_ms, false).await;
                }
            }
        }
    }
}

impl Executor {
    async fn is_canceled(&self, key: &TaskKey) -> bool {
        self.flows.ledger.workflow_is_canceled(key.as_str()).await.unwrap_or(false)
    }
}

/// The artifacts in the order of their index: files, streams, what services said, metrics, and the
/// raw result last.
fn artifacts(
    result: &mut SandboxResult,
    out: Output,
    err: Output,
    files: Vec<cofferdam_sandbox::Collected>,
    notes: Vec<(String, Vec<u8>)>,
    services: Vec<cofferdam_sandbox::ServiceEnd>,
) -> Vec<NewArtifact> {
    let mut artifacts = Vec::with_capacity(files.len() + 4);
    for file in files {
        result.files_out.push(FileOut {
            path: file.path.clone(),
            sha256: digest_bytes(&file.bytes),
            size: u64::try_from(file.bytes.len()).unwrap_or(u64::MAX),
        });
        artifacts.push(NewArtifact {
            kind: ArtifactKind::File,
            name: format!("files/{}", file.path),
            bytes: file.bytes,
        });
    }
    let mut text = |kind, name: &str, bytes: Vec<u8>| {
        artifacts.push(NewArtifact { kind, name: name.into(), bytes });
    };
    for (name, bytes) in notes {
        text(ArtifactKind::File, &name, bytes);
    }
    text(ArtifactKind::Stdout, "stdout.log", out.into_bytes());
    text(ArtifactKind::Stderr, "stderr.log", err.into_bytes());
    for service in services {
        text(ArtifactKind::File, &format!("services/{}.log", service.report.name), service.log);
    }
    text(ArtifactKind::Timings, "metrics.json", json_bytes(&result.metrics));
    let raw = json_bytes(result);
    text(ArtifactKind::Raw, "raw.json", raw);
    artifacts
}

fn json_bytes<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
