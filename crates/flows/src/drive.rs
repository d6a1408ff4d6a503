//! What happens in a sandbox that is up: build, exec, collect, wipe; and what is kept of it.
//!
//! One file: one way, from up to wiped; its order is what must be read.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::dispatch::{AgentWork, Findings};
use cofferdam_contracts::egress::EgressGrant;
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::sandbox::{
    EffectivePolicy, ErrCode, SandboxResult, SessionState, WipeEvidence,
};
use cofferdam_ledger::listen::Wake;
use cofferdam_ledger::remote_commands::RemoteCommand;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{
    Command, CommandStopper, CommandTalk, DropCounts, ExecOutcome, Plan, Sandbox, SandboxError,
    ServiceEnd,
};
use tokio::sync::broadcast::Receiver;

use crate::ask::Asks;
use crate::attempt::{End, blank};
use crate::deps::Deps;
use crate::dispatches;
use crate::driver::{DriverJob, PlannerDriver};
use crate::executor::{Executor, meant};
use crate::models::{CallGateway, Calls};
use crate::patience::patiently;
use crate::project_patch;
use crate::settle::alert;
use crate::task_input::{self, TaskInput};
use crate::task_outputs::{TaskOutputs, artifacts, collect};
use crate::task_streams::{CommandOutput, TaskStreams};
use crate::test_reports;
use crate::verdict;

/// How often it is looked whether a running task asks for something.
const TICK: Duration = Duration::from_millis(100);
/// What shells answer where a program is there and was not started.
const UNSTARTED: i32 = 126;
/// Daemons of one sandbox: one that dies three times dies of what it is asked.
const DAEMONS: u32 = 3;

/// What is done in a sandbox.
pub(crate) struct Job<'a> {
    pub plan: &'a Plan,
    /// Its dependencies, where it names some.
    pub deps: Option<Deps>,
    /// The agent that runs in it, where it is a dispatch.
    pub agent: Option<&'a AgentWork>,
    /// Whether another worker began it, whose output comes again from the first byte on.
    pub taken_over: bool,
}

/// From a sandbox that is up to the evidence that it is gone.
pub(crate) async fn drive(
    executor: &Executor,
    task: &TaskContext,
    job: Job<'_>,
    sandbox: Sandbox,
    mut wakes: Receiver<Wake>,
) -> End {
    let Job { plan, mut deps, agent, taken_over } = job;
    let attestation = executor.host.attest(sandbox.effective()).await;
    executor.session_states.made(sandbox.id(), attestation.clone(), sandbox.kill_handle());
    let project = match agent {
        Some(work) => Some(sent_off(executor, task, &sandbox, work).await),
        None => None,
    };
    let calls = Calls::begin(&executor.flows.models, task, &sandbox, agent).await;
    let feed = executor.flows.runs.feeds.begin(&task.run);
    let watched = TaskStreams::of(executor, task, taken_over, feed).await;
    let watch = agent.map(dispatches::Watch::new);
    let driver = match (&task.work, calls.prompts()) {
        (Work::Opencode(work), Some(prompts)) => {
            let job = DriverJob { task, work, sandbox: &sandbox, prompts };
            Some(executor.drivers.begin(job).await)
        }
        _ => None,
    };
    let mut running = CommandRun {
        executor,
        task,
        sandbox: &sandbox,
        watched: &watched,
        kept_bytes: plan.stream_limit_bytes,
        watch: watch.as_ref(),
        driver: driver.as_deref(),
        gateway: calls.gateway().map(Arc::as_ref),
        wakes: &mut wakes,
        asks: Asks::new(&executor.flows.ledger, task),
        is_unwanted: false,
    };
    let mut result = blank(task, sandbox.id().as_str(), ErrCode::CmdNonzero, None);
    let ended = running.phases(plan, &mut deps, &mut result).await;
    let is_unwanted = running.is_unwanted;
    let granted = running.asks.granted();
    calls.close(&sandbox).await;
    let taken = calls.totals(&executor.flows.ledger, sandbox.id()).await;
    watched.show(executor, true).await;
    let seen = ended.as_ref().ok().and_then(|end| end.outcome.seen.clone());
    let judged = judge(&mut result, ended, watch.as_ref(), is_unwanted);
    let mut kept = match judged {
        DriveOutcome::Ran { .. } => {
            collect(executor, task, &sandbox, plan, agent, &mut result).await
        }
        DriveOutcome::Broke { .. } => TaskOutputs::default(),
    };
    if let (Some(driver), false) = (&driver, judged.canceled()) {
        kept.notes = driver.judge(&mut result);
    }
    let services = sandbox.services();
    let effective = report(&mut result, &sandbox, &services, deps, granted);
    if is_lost_to_another(executor, &sandbox, agent).await {
        sandbox.let_go();
        return End::bare(result, None);
    }
    let canceled = judged.canceled();
    let (evidence, mut reports) = tokio::join!(
        wipe(executor, sandbox, canceled, &mut result),
        kept.read_reports(&executor.flows.objects, &task.tenant),
    );
    let outputs = watched.into_outputs();
    result.stdout = outputs.stdout.excerpt();
    result.stderr = outputs.stderr.excerpt();
    if let Some(watch) = &watch {
        verdict::silent(&mut result);
        let mut report = watch.report(seen.as_ref(), &effective, &result, taken.as_ref());
        if let (Some(project), Some(work)) = (&project, agent) {
            report.findings = told(executor, task, project, work, &kept, report.findings);
        }
        result.agent = Some(Box::new(report));
    }
    calls.end(&executor.flows.ledger, &result).await;
    let staged = std::mem::take(&mut kept.staged);
    let artifacts = artifacts(&mut result, outputs, kept, services);
    test_reports::with_digests(&mut reports, &result.files_out);
    End {
        result,
        effective: Some(effective),
        artifacts,
        staged,
        reports,
        evidence: Some(evidence),
        attestation: Some(attestation),
        canceled,
    }
}

/// What became of a dispatch's project, as its requester's reach shows it.
fn told(
    executor: &Executor,
    task: &TaskContext,
    project: &dispatches::Project,
    work: &AgentWork,
    kept: &TaskOutputs,
    verdict: Findings,
) -> Findings {
    let host = if task.by_host_admin { &executor.open_host } else { &executor.host };
    let files = kept.paths();
    project.findings(&host.facts().allowed, work, &files, verdict)
}

/// A dispatch begins: its process is noted, and its project as it is.
async fn sent_off(
    executor: &Executor,
    task: &TaskContext,
    sandbox: &Sandbox,
    work: &AgentWork,
) -> dispatches::Project {
    note_process(executor, task, sandbox).await;
    dispatches::Project::of(sandbox, work).await
}

/// Notes the process of a dispatch, where there is one: elsewhere it has none that a person could look at here.
async fn note_process(executor: &Executor, task: &TaskContext, sandbox: &Sandbox) {
    let pid = sandbox.init_pid();
    if pid != 0
        && let Err(error) = executor.flows.ledger.dispatches().pid(&task.key, pid).await
    {
        tracing::warn!(%error, task = %task.key, "the dispatch's process was not noted");
    }
}

/// The command that decided about a task.
struct PhaseEnd {
    outcome: ExecOutcome,
    /// Whether it was the build's, so that the task's own never ran.
    in_build: bool,
}

impl PhaseEnd {
    const fn of_task(outcome: ExecOutcome) -> Self {
        Self { outcome, in_build: false }
    }
}

/// How the commands of a sandbox ended. Each says whether that was by a cancel.
enum DriveOutcome {
    /// The deciding command ended: its files are collected.
    Ran { canceled: bool },
    /// The sandbox broke under it, or was killed: nothing can be collected.
    Broke { canceled: bool },
}

impl DriveOutcome {
    const fn canceled(&self) -> bool {
        match self {
            Self::Ran { canceled } | Self::Broke { canceled } => *canceled,
        }
    }
}

fn judge(
    result: &mut SandboxResult,
    ended: Result<PhaseEnd, SandboxError>,
    watch: Option<&dispatches::Watch<'_>>,
    is_unwanted: bool,
) -> DriveOutcome {
    let stopped = watch.and_then(dispatches::Watch::stopped);
    match ended {
        Ok(PhaseEnd { outcome, in_build }) => {
            verdict::ran(result, &outcome, in_build);
            verdict::complained(result, watch.and_then(dispatches::Watch::complaint));
            let canceled = verdict::ended(result, is_unwanted, stopped);
            let idle = watch.and_then(|watch| watch.ran_nothing(outcome.seen.as_ref()));
            verdict::idle(result, idle);
            DriveOutcome::Ran { canceled }
        }
        Err(SandboxError::Killed) if stopped.is_some() => {
            result.cause = stopped;
            DriveOutcome::Broke { canceled: false }
        }
        Err(error) => DriveOutcome::Broke { canceled: verdict::broke(result, &error) },
    }
}

/// What the sandbox says of itself while it is there; the policy that was in force.
fn report(
    result: &mut SandboxResult,
    sandbox: &Sandbox,
    services: &[ServiceEnd],
    deps: Option<Deps>,
    granted: Vec<EgressGrant>,
) -> EffectivePolicy {
    result.services = services.iter().map(|end| end.report.clone()).collect();
    result.cache = deps.map(|deps| deps.report);
    (result.violations, result.violations_unlisted) = sandbox.traffic().violations();
    result.metrics.boot_ms = sandbox.boot().boot_ms;
    result.metrics.mem_peak_mb = sandbox.peak_mem_mb();
    let mut effective = sandbox.effective().clone();
    effective.cache.clone_from(&result.cache);
    effective.granted = granted;
    effective
}

/// Whether another worker goes on with the sandbox, or may: this one was declared dead meanwhile.
async fn is_lost_to_another(
    executor: &Executor,
    sandbox: &Sandbox,
    agent: Option<&AgentWork>,
) -> bool {
    if agent.is_some() || sandbox.outlives().is_none() {
        return false;
    }
    let ledger = &executor.flows.ledger;
    let is_ours = patiently(|| ledger.sessions().is_of(sandbox.id(), &executor.id)).await;
    !is_ours.unwrap_or(true)
}

async fn wipe(
    executor: &Executor,
    sandbox: Sandbox,
    canceled: bool,
    result: &mut SandboxResult,
) -> WipeEvidence {
    executor.session_states.set(sandbox.id(), SessionState::RemoteWipeVerifying);
    let wiping = Stopwatch::start();
    let evidence = sandbox.wipe(if canceled { "canceled" } else { "task-end" }).await;
    result.metrics.wipe_ms = wiping.elapsed_ms();
    alert(&evidence);
    evidence
}

/// The commands of a sandbox, watched and cancelable.
struct CommandRun<'a> {
    executor: &'a Executor,
    task: &'a TaskContext,
    sandbox: &'a Sandbox,
    watched: &'a TaskStreams,
    /// Bytes of each stream of a command that are kept.
    kept_bytes: u64,
    watch: Option<&'a dispatches::Watch<'a>>,
    /// Who drives the daemon that the command is.
    driver: Option<&'a dyn PlannerDriver>,
    /// Who decides about its calls of models.
    gateway: Option<&'a CallGateway>,
    wakes: &'a mut Receiver<Wake>,
    asks: Asks<'a>,
    /// It was canceled, and its command ended for that.
    is_unwanted: bool,
}

impl CommandRun<'_> {
    /// The command that decides and whether it is the build's: nothing of the task runs after a build
    /// that failed, and none is built that was found.
    async fn phases(
        &mut self,
        plan: &Plan,
        deps: &mut Option<Deps>,
        result: &mut SandboxResult,
    ) -> Result<PhaseEnd, SandboxError> {
        if let Some(driver) = self.driver {
            self.executor.session_states.set(self.sandbox.id(), SessionState::Executing);
            return Ok(PhaseEnd::of_task(Box::pin(self.piloted(driver, &plan.task)).await?));
        }
        let patched = project_patch::patched(&self.executor.flows.ledger, self.task, self.sandbox);
        if let Err(cause) = Box::pin(patched).await {
            return Ok(PhaseEnd::of_task(unpatched(cause)));
        }
        let is_found = deps.as_ref().is_some_and(Deps::is_hit);
        result.metrics.build_ms = deps.as_ref().map_or(0, |deps| deps.found_ms);
        if let Some(build) = plan.build.as_ref().filter(|_| !is_found) {
            let building = Stopwatch::start();
            let built = self.build(build, deps).await;
            result.metrics.build_ms += building.elapsed_ms();
            let built = built?;
            result.limits_reached.clone_from(&built.reached);
            if built.err_code != ErrCode::None {
                return Ok(PhaseEnd { outcome: built, in_build: true });
            }
        }
        // Not before: an attempt whose build fails leaves the input to the next one.
        let input = match TaskInput::of(self.task, self.watched.feed()) {
            Ok(input) => input,
            Err(cause) => return Ok(PhaseEnd::of_task(unstarted(cause.to_owned()))),
        };
        self.executor.session_states.set(self.sandbox.id(), SessionState::Executing);
        Ok(PhaseEnd::of_task(self.command(&plan.task, input).await?))
    }

    /// Daemons one after the other, until the driver is through, or each has died.
    async fn piloted(
        &mut self,
        driver: &dyn PlannerDriver,
        task: &Command,
    ) -> Result<ExecOutcome, SandboxError> {
        let mut daemon = 1;
        loop {
            let outcome = self.command(&driver.command(task), None).await?;
            if driver.is_over() || outcome.timed_out || self.is_unwanted || daemon >= DAEMONS {
                return Ok(outcome);
            }
            driver.reset().await;
            daemon += 1;
        }
    }

    async fn build(
        &mut self,
        build: &Command,
        deps: &mut Option<Deps>,
    ) -> Result<ExecOutcome, SandboxError> {
        self.executor.session_states.set(self.sandbox.id(), SessionState::Building);
        let built = self.command(build, None).await;
        if let Some(deps) = deps {
            if built.as_ref().is_ok_and(|built| built.err_code == ErrCode::None) {
                deps.keep(self.executor, self.task, self.sandbox).await;
            }
            deps.land();
        }
        built
    }

    /// Before a command starts that goes on without this worker, it is on record where that is.
    async fn outlive(&self) {
        let Some(place) = self.sandbox.outlives().filter(|_| self.watch.is_none()) else { return };
        let command = self.sandbox.next_command();
        let at = RemoteCommand { provider: &place.provider, id: &place.id, command: &command };
        let ledger = &self.executor.flows.ledger;
        let noted = patiently(|| ledger.sessions().elsewhere(self.sandbox.id(), &at)).await;
        if let Err(error) = noted {
            // Then it ends with this worker, as it would on this host.
            tracing::warn!(%error, task = %self.task.key, "where a task is was not noted");
        }
    }

    async fn command(
        &mut self,
        command: &Command,
        input: Option<TaskInput>,
    ) -> Result<ExecOutcome, SandboxError> {
        self.outlive().await;
        let kill = self.sandbox.kill_handle();
        // What an agent did, was refused and changed is what its record is for: it alone is ended, and its
        // sandbox read before it goes.
        let is_ended_by_us = self.watch.is_some() || self.driver.is_some();
        let end = (is_ended_by_us || input.is_some()).then(CommandStopper::default);
        let (input, pump) = match input {
            Some(input) => {
                let (input, pump) = input.split().await;
                (Some(input), pump)
            }
            None => (None, None),
        };
        self.watched.begin(self.kept_bytes);
        let heard = CommandOutput {
            watched: self.watched,
            driver: self.driver,
            watch: self.watch,
            end: end.as_ref(),
        };
        let talk = end.as_ref().map(|end| CommandTalk { end, input });
        let running = self.sandbox.exec_until(command, talk, heard);
        tokio::pin!(running);
        let is_fed = pump.is_some();
        let mut given: Pin<Box<dyn Future<Output = ()> + Send + '_>> = match (pump, &end) {
            (Some(pump), Some(end)) => Box::pin(pump.run(end)),
            _ => Box::pin(std::future::pending()),
        };
        let mut is_given = false;
        let driver = self.driver;
        // On the heap: its state is many times that of a command.
        let mut flown: Pin<Box<dyn Future<Output = ()> + Send + '_>> = match driver {
            Some(driver) => driver.drive(),
            None => Box::pin(std::future::pending()),
        };
        let mut is_flown = false;
        let gateway = self.gateway;
        let mut had: Pin<Box<dyn Future<Output = ()> + Send + '_>> = match gateway {
            Some(gateway) => Box::pin(gateway.has_had_its_turns()),
            None => Box::pin(std::future::pending()),
        };
        let mut has_had = false;
        // One sleep over all wakes: on a busy worker they come more often than it would end.
        let mut tick = Box::pin(clock::sleep(TICK));
        loop {
            tokio::select! {
                biased;
                mut ended = &mut running => {
                    // Another attempt's client is not why this one failed.
                    if is_fed && let Ok(outcome) = &mut ended {
                        task_input::explain(outcome, self.watched.feed());
                    }
                    return ended;
                }
                () = &mut given, if !is_given => is_given = true,
                () = &mut flown, if !is_flown => {
                    is_flown = true;
                    if let Some(end) = &end {
                        end.end();
                    }
                }
                () = &mut had, if !has_had => {
                    has_had = true;
                    let is_over = self.watch.is_some_and(dispatches::Watch::has_had_its_turns);
                    if let Some(end) = end.as_ref().filter(|_| is_over) {
                        end.end();
                    }
                }
                () = &mut tick => {
                    tick = Box::pin(clock::sleep(TICK));
                    self.asks.turn(self.sandbox, command.timeout_ms, false).await;
                }
                () = self.watched.due(self.executor) => {
                    self.watched.show(self.executor, false).await;
                }
                wake = self.wakes.recv() => {
                    let (is_answered, is_canceled) = meant(&wake, self.task);
                    if is_answered {
                        self.asks.turn(self.sandbox, command.timeout_ms, true).await;
                    }
                    if is_canceled && self.executor.is_canceled(&self.task.key).await {
                        match end.as_ref().filter(|_| is_ended_by_us) {
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

/// The end of a test whose patch could not be applied.
fn unpatched(cause: String) -> ExecOutcome {
    ExecOutcome { err_code: ErrCode::UploadFail, exit: -1, ..unstarted(cause) }
}

/// The end of a command that was not started, for a reason that another attempt would meet, too.
fn unstarted(cause: String) -> ExecOutcome {
    ExecOutcome {
        exit: UNSTARTED,
        err_code: ErrCode::CmdNonzero,
        wall_ms: 0,
        cpu_ms: 0,
        oom: false,
        timed_out: false,
        dropped: DropCounts::default(),
        reached: Vec::new(),
        cause: Some(cause),
        seen: None,
    }
}
