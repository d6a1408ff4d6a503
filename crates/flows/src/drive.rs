//! What happens in a sandbox that is up: build, exec, collect, wipe; and what is kept of it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::artifact::ArtifactKind;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::dispatch::AgentWork;
use cofferdam_contracts::id::TaskKey;
use cofferdam_contracts::sandbox::{ErrCode, FileOut, SandboxResult, SessionState};
use cofferdam_ledger::artifacts::NewArtifact;
use cofferdam_ledger::listen::Wake;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{
    Collected, Command, CommandEnd, ExecOutcome, Plan, Sandbox, SandboxError, ServiceEnd, Stream,
};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::ask::Asks;
use crate::cache::Deps;
use crate::dispatches;
use crate::output::Output;
use crate::settle::alert;
use crate::task::{End, Executor, blank};
use crate::verdict;

/// How often a running task's output is offered to watchers.
const TICK: Duration = Duration::from_millis(100);

/// What is done in a sandbox.
pub(crate) struct Job<'a> {
    pub plan: &'a Plan,
    /// Its dependencies, where it names some.
    pub deps: Option<Deps>,
    /// The agent that runs in it, where it is a dispatch.
    pub agent: Option<&'a AgentWork>,
}

struct Watched {
    out: Mutex<(Output, Output)>,
}

impl Watched {
    fn push(&self, stream: Stream, chunk: &[u8]) {
        // A poisoned lock only means that another push panicked; the bytes are still good.
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        match stream {
            Stream::Stdout => out.0.push(chunk),
            Stream::Stderr => out.1.push(chunk),
        }
    }

    async fn show(&self, executor: &Executor, task: &TaskKey, at_end: bool) {
        let chunks = {
            let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
            [out.0.take(at_end), out.1.take(at_end)]
        };
        for chunk in chunks.into_iter().flatten() {
            chunk.store(&executor.flows.ledger, task).await;
        }
    }
}

/// From a sandbox that is up to the evidence that it is gone.
pub(crate) async fn drive(
    executor: &Executor,
    task: &TaskContext,
    job: Job<'_>,
    sandbox: Sandbox,
    mut wakes: Receiver<Wake>,
) -> End {
    let Job { plan, mut deps, agent } = job;
    let id = sandbox.id().clone();
    let attestation = executor.host.attest(sandbox.effective()).await;
    executor.board.made(&id, attestation.clone(), sandbox.kill_handle());
    let watched = Watched { out: Mutex::new((Output::new("stdout"), Output::new("stderr"))) };
    let watch = agent.map(dispatches::Watch::new);
    // Elsewhere it has no process that a person could look at here.
    if agent.is_some()
        && sandbox.init_pid() != 0
        && let Err(error) = executor.flows.ledger.dispatch_pid(&task.key, sandbox.init_pid()).await
    {
        tracing::warn!(%error, task = %task.key, "the dispatch's process was not noted");
    }
    let mut running = Running {
        executor,
        task,
        sandbox: &sandbox,
        watched: &watched,
        watch: watch.as_ref(),
        wakes: &mut wakes,
        asks: Asks::new(&executor.flows, task),
        is_unwanted: false,
    };
    let mut result = blank(task, id.as_str(), ErrCode::CmdNonzero, None);
    let outcome = running.phases(plan, &mut deps, &mut result).await;
    let is_unwanted = running.is_unwanted;
    let granted = running.asks.granted();
    watched.show(executor, &task.key, true).await;
    let mut canceled = false;
    let mut kept = Kept::default();
    let mut seen = None;
    match outcome {
        Ok((outcome, in_build)) => {
            verdict::ran(&mut result, &outcome, in_build);
            let stopped = watch.as_ref().and_then(dispatches::Watch::stopped);
            canceled = verdict::ended(&mut result, is_unwanted, stopped);
            let idle = watch.as_ref().and_then(|watch| watch.ran_nothing(outcome.seen.as_ref()));
            verdict::idle(&mut result, idle);
            kept = collect(executor, task, &sandbox, (plan, agent), &mut result).await;
            seen = outcome.seen;
        }
        Err(SandboxError::Killed) if watch.as_ref().is_some_and(|w| w.stopped().is_some()) => {
            result.cause = watch.as_ref().and_then(dispatches::Watch::stopped);
        }
        Err(e) => canceled = verdict::broke(&mut result, &e),
    }
    let services = sandbox.services();
    result.services = services.iter().map(|end| end.report.clone()).collect();
    let mut effective = sandbox.effective().clone();
    result.cache = deps.map(|deps| deps.report);
    effective.cache.clone_from(&result.cache);
    effective.granted = granted;
    (result.violations, result.violations_unlisted) = sandbox.violations();
    result.metrics.boot_ms = sandbox.boot_ms();
    result.metrics.mem_peak_mb = sandbox.peak_mem_mb();
    executor.board.set(&id, SessionState::RemoteWipeVerifying);
    let wiping = Stopwatch::start();
    let evidence = sandbox.wipe(if canceled { "canceled" } else { "task-end" }).await;
    result.metrics.wipe_ms = wiping.elapsed_ms();
    alert(&evidence);
    let (out, err) = watched.out.into_inner().unwrap_or_else(PoisonError::into_inner);
    result.stdout = out.excerpt();
    result.stderr = err.excerpt();
    if let Some(watch) = &watch {
        result.agent = Some(Box::new(watch.report(seen.as_ref(), &effective, &result)));
    }
    let artifacts = artifacts(&mut result, (out, err), kept, services);
    End {
        result,
        effective: Some(effective),
        artifacts,
        evidence: Some(evidence),
        attestation: Some(attestation),
        canceled,
    }
}

/// The commands of a sandbox, watched and cancelable.
struct Running<'a> {
    executor: &'a Executor,
    task: &'a TaskContext,
    sandbox: &'a Sandbox,
    watched: &'a Watched,
    watch: Option<&'a dispatches::Watch<'a>>,
    wakes: &'a mut Receiver<Wake>,
    asks: Asks<'a>,
    /// It was canceled, and its command ended for that.
    is_unwanted: bool,
}

impl Running<'_> {
    /// The command that decides and whether it is the build's: nothing of the task runs after a build
    /// that failed, and none is built that was found.
    async fn phases(
        &mut self,
        plan: &Plan,
        deps: &mut Option<Deps>,
        result: &mut SandboxResult,
    ) -> Result<(ExecOutcome, bool), SandboxError> {
        let is_found = deps.as_ref().is_some_and(Deps::is_hit);
        result.metrics.build_ms = deps.as_ref().map_or(0, |deps| deps.found_ms);
        if let Some(build) = plan.build.as_ref().filter(|_| !is_found) {
            let building = Stopwatch::start();
            let built = self.build(build, deps).await;
            result.metrics.build_ms += building.elapsed_ms();
            let built = built?;
            result.limits_reached.clone_from(&built.reached);
            if built.err_code != ErrCode::None {
                return Ok((built, true));
            }
        }
        self.executor.board.set(self.sandbox.id(), SessionState::Executing);
        Ok((self.command(&plan.task).await?, false))
    }

    async fn build(
        &mut self,
        build: &Command,
        deps: &mut Option<Deps>,
    ) -> Result<ExecOutcome, SandboxError> {
        self.executor.board.set(self.sandbox.id(), SessionState::Building);
        let built = self.command(build).await;
        if let Some(deps) = deps {
            if built.as_ref().is_ok_and(|built| built.err_code == ErrCode::None) {
                deps.keep(self.executor, self.task, self.sandbox).await;
            }
            deps.land();
        }
        built
    }

    async fn command(&mut self, command: &Command) -> Result<ExecOutcome, SandboxError> {
        let kill = self.sandbox.kill_handle();
        // What an agent did, was refused and changed is what its record is for: it alone is ended, and its
        // sandbox read before it goes.
        let end = self.watch.map(|_| CommandEnd::default());
        let running = self.sandbox.exec_until(command, end.as_ref(), |stream, chunk| {
            self.watched.push(stream, chunk);
            if let (Stream::Stdout, Some(watch), Some(end)) = (stream, self.watch, &end)
                && watch.push(chunk)
            {
                end.end();
            }
        });
        tokio::pin!(running);
        // One sleep over all wakes: on a busy worker they come more often than it would end.
        let mut tick = Box::pin(clock::sleep(TICK));
        loop {
            tokio::select! {
                biased;
                ended = &mut running => return ended,
                () = &mut tick => {
                    tick = Box::pin(clock::sleep(TICK));
                    self.watched.show(self.executor, &self.task.key, false).await;
                    self.asks.turn(self.sandbox, command.timeout_ms, false).await;
                }
                wake = self.wakes.recv() => {
                    let (is_answered, is_canceled) = meant(&wake, self.task);
                    if is_answered {
                        self.asks.turn(self.sandbox, command.timeout_ms, true).await;
                    }
                    if is_canceled && self.executor.is_canceled(&self.task.key).await {
                        match &end {
                            Some(end) => {
                                self.is_unwanted = true;
                                end.end();
                            }
                            None => kill.kill(),
                        }
                    }
                }
            }
        }
    }
}

/// Whether a wake-up may mean an answer to what the task asked, and whether it may mean its cancel:
/// one that was lost may mean both. Pure.
fn meant(wake: &Result<Wake, RecvError>, task: &TaskContext) -> (bool, bool) {
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

/// What is kept of a sandbox beside its streams.
#[derive(Default)]
struct Kept {
    files: Vec<Collected>,
    /// By their artifact's name.
    notes: Vec<(String, Vec<u8>)>,
}

async fn collect(
    executor: &Executor,
    task: &TaskContext,
    sandbox: &Sandbox,
    (plan, agent): (&Plan, Option<&AgentWork>),
    result: &mut SandboxResult,
) -> Kept {
    let mut kept = Kept::default();
    if agent.is_none() && plan.artifacts.is_empty() {
        return kept;
    }
    executor.board.set(sandbox.id(), SessionState::Collecting);
    if agent.is_some() {
        (kept.files, kept.notes) = dispatches::changes(sandbox, result).await;
    }
    if !plan.artifacts.is_empty() {
        match sandbox.collect(&plan.task.cwd, &plan.artifacts).await {
            Ok(found) => kept.files = found,
            Err(e) => {
                tracing::info!(task = %task.key, error = %e, "a task's files were not collected");
                verdict::uncollected(result, &e);
            }
        }
    }
    kept
}

/// The artifacts in the order of their index: files, streams, what services said, metrics, and the
/// raw result last.
fn artifacts(
    result: &mut SandboxResult,
    (out, err): (Output, Output),
    Kept { files, notes }: Kept,
    services: Vec<ServiceEnd>,
) -> Vec<NewArtifact> {
    let mut artifacts = Vec::with_capacity(files.len() + 4);
    for file in files {
        result.files_out.push(FileOut {
            path: file.path.clone(),
            encoded: file.is_encoded(),
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
