//! A running sandbox.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{EffectivePolicy, ErrCode, WipeEvidence};
use cofferdam_guest::wire::ExecRequest;

use super::cache_mounts;
use super::egress::Traffic;
use crate::agent::changes::UpperLocation;
use crate::agent::stop::{self, CommandStopper};
use crate::agent::{Agent, AgentError, CommandInput, OutputSink, Stream};
use crate::cache::{self, BaseRequest, CacheBase, CacheError, Caches, Promotion};
use crate::class;
use crate::class::RemoteLine;
use crate::egress::{self, Egress, NoRouteAttempts};
use crate::host::detached_layer::DetachedLayer;
use crate::host::file_system_end::FileSystem;
use crate::host::mounts;
use crate::host::process;
use crate::host::sockets::SocketLimits;
use crate::host::task::{Driver, blocking};
use crate::host::weight::Weight;
use crate::images::RootGuard;
use crate::life::command_names::CommandNames;
use crate::life::error::SandboxError;
use crate::life::exec::{self, ExecOutcome};
use crate::life::files::SandboxFiles;
use crate::life::handle::{KernelStart, SandboxHandle};
use crate::life::limit_watch::LimitWatch;
use crate::life::meter::OutputMeter;
use crate::life::network::Network;
use crate::life::service::{ServiceEnd, Services};
use crate::life::wipe::{self, WipeTarget};
use crate::machine::Storable;
use crate::spec::class::Class;
use crate::spec::command::Command;
use crate::spec::facts::HostFacts;
use crate::spec::provider::RemoteLocation;

/// Beyond a command's wall time, the agent has this long to kill it, drain its output and say so.
/// More than the agent's own bounds under any load that leaves it a tenth of a CPU.
const GRACE_MS: u64 = 20_000;
/// A killed sandbox has this long to be dead before its base is looked at together with all the rest.
const ENDED_MS: u32 = 1_000;

/// Ends everything inside at once, from anywhere.
#[derive(Debug, Clone)]
pub struct KillHandle {
    init: Init,
    killed: Arc<AtomicBool>,
}

/// What stands for the sandbox.
#[derive(Debug, Clone)]
enum Init {
    Process(Arc<OwnedFd>),
    Elsewhere(Arc<dyn RemoteLine>),
}

impl KillHandle {
    pub(crate) fn new(init: OwnedFd) -> Self {
        Self { init: Init::Process(Arc::new(init)), killed: Arc::default() }
    }

    pub(crate) fn of_line(line: Arc<dyn RemoteLine>) -> Self {
        Self { init: Init::Elsewhere(line), killed: Arc::default() }
    }

    /// Kills pid 1 of the sandbox, with which the kernel kills every other process of it; one elsewhere is
    /// deleted. Harmless on a sandbox that has ended, and on one that is wiped.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        match &self.init {
            Init::Process(init) => process::kill(init),
            Init::Elsewhere(line) => line.cut(),
        }
    }

    /// Its first process, where that is one of this host.
    fn init(&self) -> Option<Arc<OwnedFd>> {
        match &self.init {
            Init::Process(init) => Some(Arc::clone(init)),
            Init::Elsewhere(_) => None,
        }
    }

    /// Whether the sandbox's first process still runs, or its agent's stream does: its heartbeat.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        match &self.init {
            Init::Process(init) => process::is_running(init),
            Init::Elsewhere(line) => line.is_up(),
        }
    }

    /// Waits until its first process has ended, after all others of its namespace. One elsewhere is not waited for.
    fn has_ended_within(&self, limit_ms: u32) -> bool {
        match &self.init {
            Init::Process(init) => process::has_ended_within(init, limit_ms),
            Init::Elsewhere(_) => false,
        }
    }

    fn was_used(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }
}

/// What a command is told while it runs, beside what it was started with.
#[derive(Debug)]
pub struct CommandTalk<'a> {
    /// What ends it.
    pub end: &'a CommandStopper,
    /// Its standard input.
    pub input: Option<CommandInput>,
}

/// How a sandbox began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootRecord {
    /// From the call of `provision` to the agent's first answer, in milliseconds.
    pub boot_ms: u64,
    /// Whether it is a machine that was stored before it was anybody's, and did not boot.
    pub is_restored: bool,
    /// Whether that machine was restored before there was the sandbox, and waited for it; or the container was made so.
    pub has_waited: bool,
    /// Whether its processes are those of a sandbox that was kept, which go on.
    pub went_on: bool,
}

/// A sandbox whose agent answers. Dropping it kills everything inside, unless it is elsewhere; only [`Sandbox::wipe`] takes
/// the rest away at once, otherwise [`crate::reconcile`] finds it.
#[derive(Debug)]
pub struct Sandbox {
    pub(crate) facts: Arc<HostFacts>,
    pub(crate) subject: WipeTarget,
    pub(crate) agent: Agent,
    pub(crate) life: SandboxHandle,
    /// Whether its kernel goes on with a memory that was kept.
    pub(crate) went_on: bool,
    /// What stores its machine with it, where it has one.
    pub(crate) storable: Option<Storable>,
    pub(crate) kill: KillHandle,
    pub(crate) init_pid: u32,
    pub(crate) boot_ms: u64,
    pub(crate) peak_mem_mb: AtomicU64,
    pub(crate) effective: EffectivePolicy,
    pub(crate) stream_limit_bytes: u64,
    pub(crate) network: Network,
    /// Attempts that no route leads anywhere.
    pub(crate) unrouted: Option<Arc<NoRouteAttempts>>,
    /// Hears what gVisor tells of attempts.
    pub(crate) _hearing: Option<Driver>,
    pub(crate) services: Services,
    /// Directories that it sees copy-on-write: where they are inside, and their changes here.
    pub(crate) trees: Vec<(String, UpperLocation)>,
    /// Where a machine shows what its build left; empty where that lies on the host.
    pub(crate) fresh: Vec<String>,
    /// Whether nothing was mounted in it for its request.
    pub(crate) is_bare: bool,
    /// Keeps the image that it runs on.
    pub(crate) _hold: Option<RootGuard>,
    /// What it weighs among the sandboxes of this host, once it is known whose it is.
    pub(crate) weight: Option<Weight>,
    /// Keeps the cached dependencies that it runs on.
    pub(crate) cached: Option<CacheBase>,
    /// Names of its commands.
    pub(crate) commands: CommandNames,
}

impl Sandbox {
    /// Id of this sandbox.
    #[must_use]
    pub fn id(&self) -> &SandboxId {
        &self.subject.traces.id
    }

    /// Pid of the agent on the host; 0 where it is on another.
    #[must_use]
    pub fn init_pid(&self) -> u32 {
        self.init_pid
    }

    /// Where it is, if a command in it outlives this worker: elsewhere, and needing nothing of a worker. Such
    /// a sandbox is taken over by [`crate::resume`].
    #[must_use]
    pub fn outlives(&self) -> Option<RemoteLocation> {
        outliving(self).map(|line| line.place())
    }

    /// What its agent will know the next command by.
    #[must_use]
    pub fn next_command(&self) -> String {
        self.commands.next()
    }

    /// What changes its network while it lives.
    #[must_use]
    pub fn network(&self) -> Network {
        self.network.clone()
    }

    /// Leaves it to the worker that has taken it over: nothing of it is ended.
    pub fn let_go(self) {
        drop(self.life);
    }

    /// What is enforced.
    #[must_use]
    pub fn effective(&self) -> &EffectivePolicy {
        &self.effective
    }

    /// How it began.
    #[must_use]
    pub fn boot(&self) -> BootRecord {
        let origin = &self.life.origin;
        BootRecord {
            boot_ms: self.boot_ms,
            is_restored: matches!(origin, KernelStart::Restored | KernelStart::Waited { .. }),
            has_waited: matches!(origin, KernelStart::Waited { .. } | KernelStart::Stood),
            went_on: self.went_on,
        }
    }

    /// Its connections: what was refused, and who decides about them.
    #[must_use]
    pub fn traffic(&self) -> Traffic<'_> {
        Traffic { network: &self.network, unrouted: self.unrouted.as_ref() }
    }

    /// The agent inside, for everything that is not a task's command: files, ports, terminals.
    #[must_use]
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Peak memory so far in MiB, rounded up, the writable layer included.
    #[must_use]
    pub fn peak_mem_mb(&self) -> u64 {
        let now = self.facts.cgroups.peak_mem_mb(&self.subject.traces).unwrap_or(0);
        let now = now + self.life.inherited_mb();
        self.peak_mem_mb.fetch_max(now, Ordering::AcqRel).max(now)
    }

    /// What its tasks leave.
    #[must_use]
    pub fn files(&self) -> SandboxFiles<'_> {
        SandboxFiles { agent: &self.agent, killed: &self.kill.killed, trees: &self.trees }
    }

    /// How its services fared so far, in the order of their start.
    #[must_use]
    pub fn services(&self) -> Vec<ServiceEnd> {
        self.services.ends()
    }

    /// Ends the sandbox from another task; a running [`Sandbox::exec`] then gives [`SandboxError::Killed`].
    #[must_use]
    pub fn kill_handle(&self) -> KillHandle {
        self.kill.clone()
    }

    /// Runs a command and gives its output to `sink` as it comes, of each stream at most what the limit
    /// on output allows.
    ///
    /// The host keeps the time too: an agent that is silent well after the wall time is killed with
    /// its sandbox, and the verdict is a timeout. An agent that dies ends the command. The network
    /// is that of the command's phase: entering the next one ends every connection of the one
    /// before, and one that cannot be set up is `NET_FAIL`.
    pub async fn exec(
        &self,
        command: &Command,
        sink: impl FnMut(Stream, &[u8]) + Send,
    ) -> Result<ExecOutcome, SandboxError> {
        self.exec_until(command, None, sink).await
    }

    /// The same for a command that is talked to. One that `end` ends has an outcome, which says what it did until then; one
    /// that does not end so is killed with its sandbox.
    pub async fn exec_until(
        &self,
        command: &Command,
        talk: Option<CommandTalk<'_>>,
        sink: impl OutputSink,
    ) -> Result<ExecOutcome, SandboxError> {
        let mut env = BTreeMap::new();
        if let Some(egress) = self.network.egress() {
            match egress.enter(command.phase).await {
                Ok(given) => env = given,
                Err(error) => return Ok(exec::unconnected(error_chain(&error))),
            }
        }
        env.extend(command.env.clone());
        if let Some(unrouted) = &self.unrouted {
            unrouted.enter(command.phase);
        }
        let by_proxy = || self.network.egress().map_or(0, Egress::refused);
        let before = (by_proxy(), self.unrouted.as_ref().map_or(0, |unrouted| unrouted.looked()));
        let mut ended = run(self, command, env, talk, sink).await;
        if let Ok(outcome) = &mut ended
            && outcome.err_code != ErrCode::None
            && before != (by_proxy(), self.unrouted.as_ref().map_or(0, |unrouted| unrouted.look()))
            && let Some(words) = egress::in_words(&self.traffic().violations().0, command.phase)
        {
            exec::explain(outcome, words);
        }
        ended
    }

    /// Makes what the build phase left in the cached directories the base of its key: call it when
    /// that phase ended well and before anything else runs. Nothing of a sandbox that already runs on
    /// a base is kept.
    pub async fn promote(
        &self,
        caches: &Caches,
        wanted: &BaseRequest,
    ) -> Result<Promotion, CacheError> {
        if self.cached.is_some() {
            return Ok(Promotion::Late);
        }
        let (caches, wanted) = (caches.clone(), wanted.clone());
        if !self.fresh.is_empty() {
            return cache::promote_inside(&self.agent, &self.fresh, caches, wanted).await;
        }
        if self.subject.class.is_some_and(|class| class::of(class).supervision.hides_files()) {
            cache::look_inside(&self.agent, &wanted.dirs, &caches).await?;
        }
        let from = cache_mounts::fresh(&self.subject.traces.layer, wanted.dirs.len());
        let first = self.first_id();
        blocking(move || caches.promote_of(&wanted, &from, first)).await
    }

    /// The host's id of its root: 0, unless it has ids of its own.
    #[must_use]
    pub fn first_id(&self) -> u32 {
        self.subject.ids.as_ref().map_or(0, |ids| ids.first)
    }

    /// Ends its runtime where that only waits for it: of a sandbox that lives long and does little it is a third of its memory.
    pub async fn let_runtime_go(&mut self) {
        let outlives = self.subject.class.is_some_and(|class| {
            let runtime = self.facts.runtime_of(class);
            runtime.is_some_and(|runtime| class::of(class).supervision.outlives(runtime))
        });
        // The first process of a container reaps nobody, and runtimes reap their sandboxes.
        let is_reaped = std::process::id() != 1;
        if let Some(init) = self.kill.init().filter(|_| outlives && is_reaped) {
            self.life.let_runtime_go(init).await;
        }
    }

    /// Takes its root, and what is mounted in or beside it, out of its worker's mounts, which each start copies and reads.
    pub async fn let_root_go(&mut self) {
        if !self.subject.class.is_some_and(|class| class::of(class).supervision.has_own_mounts()) {
            return;
        }
        let (root, beside) = (self.subject.traces.root.clone(), self.subject.traces.beside());
        let taken_off = blocking(move || {
            let over = mounts::mounted_below(&root).unwrap_or_default();
            let over = over.iter().filter_map(|point| FileSystem::of(point).ok()).collect();
            // What stays is unmounted with the sandbox.
            let _ = mounts::detach(&beside);
            mounts::detach(&root).map(|()| over)
        });
        self.subject.over = taken_off.await.unwrap_or_default();
    }

    /// Its layer, which a pause left, is its own from now on, and ends with it.
    pub fn has_begun(&mut self) {
        self.subject.left = None;
    }

    /// Its layer stays with this one when it is wiped.
    pub fn leave(&mut self, layer: &Arc<DetachedLayer>) {
        self.subject.left = Some(Arc::clone(layer));
    }

    /// Ends the sandbox, takes everything away and looks for it. Never fails: what is left stands in
    /// the evidence. A few milliseconds usually, bounded by about 15 seconds.
    pub async fn wipe(self, reason: &str) -> WipeEvidence {
        let Self { facts, mut subject, life, kill, network, .. } = self;
        kill.kill();
        network.close().await;
        let ends_all = subject.observed.as_ref().is_some_and(|observed| observed.first);
        let unmounts_early = ends_all && life.cleans_up();
        let reason = reason.to_owned();
        let (tell, told) = mpsc::channel();
        let runtime = async {
            // Who waits has not given up.
            let _ = tell.send(life.end().await);
        };
        let wiping = blocking(move || {
            // What is looked at once its processes are dead need not wait for the runtime.
            let is_dead = ends_all && kill.has_ended_within(ENDED_MS);
            let base = subject.base.clone().filter(|_| is_dead);
            subject.base_after = base.and_then(|base| base.look());
            let runtime = || told.recv().unwrap_or(false);
            let ended = wipe::EndState { is_dead: is_dead && unmounts_early, runtime };
            wipe::destroy_ended(&facts, &subject, &reason, ended)
        });
        tokio::join!(runtime, wiping).1
    }
}

/// The line to it, where it needs nothing of this worker.
fn outliving(sandbox: &Sandbox) -> Option<Arc<dyn RemoteLine>> {
    let needs_us = sandbox.network.egress().is_some() || !sandbox.services.is_empty();
    sandbox.life.line().filter(|_| !needs_us)
}

/// Runs a command in the network of its phase, which was entered.
async fn run(
    sandbox: &Sandbox,
    command: &Command,
    env: BTreeMap<String, String>,
    talk: Option<CommandTalk<'_>>,
    sink: impl OutputSink,
) -> Result<ExecOutcome, SandboxError> {
    let clock = Stopwatch::start();
    let sockets = sockets(sandbox);
    let mut watch = LimitWatch::start(&sandbox.facts.cgroups, &sandbox.subject.traces, sockets);
    let mut heard = OutputMeter::new(sink, sandbox.stream_limit_bytes);
    // What the task says itself comes before what its services say.
    let mut variables = sandbox.services.env.clone();
    variables.extend(env);
    let request = ExecRequest {
        argv: command.argv.clone(),
        env: variables,
        cwd: command.cwd.clone(),
        timeout_ms: command.timeout_ms,
        user: command.user,
        groups: command.groups.clone(),
        stdin_file: command.stdin_file.clone(),
        jail: command.jail.clone(),
        stream_limit_bytes: heard.asked(outliving(sandbox).is_some()),
    };
    let limit = Duration::from_millis(command.timeout_ms.saturating_add(GRACE_MS));
    let running = async {
        let Some(CommandTalk { end, input }) = talk else {
            let Some(line) = outliving(sandbox).filter(|_| request.jail.is_none()) else {
                return sandbox.agent.exec(&request, &mut heard).await;
            };
            let mut meter = &mut heard;
            let mut output = |stream: Stream, bytes: &[u8]| meter.take(stream, bytes);
            let name = sandbox.commands.take();
            return line.run(&sandbox.agent, name, request, &mut output).await;
        };
        match stop::follow(&sandbox.agent, request, end, input, &mut heard).await? {
            Some(ended) => Ok(ended),
            None => {
                sandbox.kill.kill();
                Err(AgentError::Lost)
            }
        }
    };
    let running = tokio::time::timeout(limit, running);
    let said = watch.during(running).await;
    let seen = watch.end(std::mem::take(&mut heard.words), &sandbox.effective);
    // Noted now, because a sandbox that dies takes its counters along.
    let _ = sandbox.peak_mem_mb();
    match said {
        Ok(Ok(mut end)) => {
            heard.count(&mut end);
            if let (Some(unrouted), Some(counted)) = (&sandbox.unrouted, &end.counted) {
                unrouted.told(counted.no_routes, &end.no_routes);
            }
            Ok(exec::judge(end, command.timeout_ms, &seen))
        }
        Ok(Err(_)) if sandbox.kill.was_used() => Err(SandboxError::Killed),
        Ok(Err(error)) if error.is_lost() => {
            let cause = "the agent ended before the command did";
            Ok(exec::unheard(clock.elapsed_ms(), false, cause, &seen))
        }
        Ok(Err(error)) => Err(error.into()),
        Err(_) => {
            sandbox.kill.kill();
            let cause = "the wall time ran out and the agent was silent";
            Ok(exec::unheard(clock.elapsed_ms(), true, cause, &seen))
        }
    }
}

/// What bounds its sockets: nothing where the network stack is not the host's.
fn sockets(sandbox: &Sandbox) -> Option<SocketLimits> {
    let is_hosts = sandbox.subject.class.is_some_and(Class::is_on_host_kernel);
    let mem_mb = sandbox.effective.limits.mem_mb.unwrap_or(0);
    let each = sandbox.facts.ceilings.socket_bytes;
    (is_hosts && sandbox.init_pid > 0).then(|| SocketLimits::of(sandbox.init_pid, mem_mb, each))
}
