//! The host's hold on a sandbox, from the start of its runtime to its end.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::agent::Agent;
use crate::class::docker;
use crate::class::held::Held;
use crate::class::microvm::monitor::{self, Kind};
use crate::class::microvm::{self, Disk, EmulatorOrders, Lent, Parts, ShownDisk, Untold};
use crate::class::remote::{self, Line, RemoteStart};
use crate::class::tail::keep_last;
use crate::host::starter;
use crate::host::task::Driver;
use crate::life::error::BootError;
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

/// From the start of the runtime to the agent's first answer. Usually 5 ms; a host that needs
/// seconds is overloaded and should rather take fewer sandboxes. Of a stored machine 0.2 s.
const BOOT_MS: u64 = 15_000;
/// The same for a machine that boots a kernel, in software perhaps: 1.5 s, and ten times as long
/// where every processor is taken.
const MACHINE_BOOT_MS: u64 = 60_000;
/// Start of a machine that begins with files, in ms: an emulated one takes about 70 MB of them in a second.
const FILL_MS: u64 = 300_000;
/// A runtime whose container is dead has this long to clean up after it.
const RUNTIME_END_MS: u64 = 5_000;
/// What is kept of what the runtime and the agent say on standard error: their last words.
const LOG_BYTES: usize = 8 * 1024;

/// The host's hold on a sandbox: the runtime's process, the connection and the log.
#[derive(Debug)]
pub(crate) struct Life {
    child: Held,
    /// Whether the runtime cleans up after its sandbox, and is waited for.
    awaited: bool,
    log: JoinHandle<String>,
    driver: Option<Driver>,
    /// Where its emulator takes orders.
    orders: Option<EmulatorOrders>,
    /// How a machine began; nothing else was ever restored.
    pub(crate) origin: Origin,
}

/// How a sandbox's kernel came to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It booted, or it is the host's.
    Booted,
    /// It was stored, and read.
    Restored,
    /// The same before there was the sandbox; these bytes of its memory are counted elsewhere.
    Waited { bytes: u64 },
    /// It is the host's, and the sandbox's agent answered before there was its request.
    Stood,
}

impl Life {
    /// What holds it, with nothing else that only some have.
    fn of(child: Held, log: JoinHandle<String>, origin: Origin) -> Self {
        Self { child, awaited: false, log, driver: None, orders: None, origin }
    }

    /// Waits for the runtime of a dead sandbox, and kills it if it dawdles. Whether it is gone.
    pub(crate) async fn end(mut self) -> bool {
        drop(self.driver.take());
        let limit = Duration::from_millis(RUNTIME_END_MS);
        if self.awaited {
            let wait = tokio::time::timeout(limit, self.child.wait());
            if wait.await.is_ok_and(|done| done.is_some()) {
                return true;
            }
        }
        self.child.kill().await
    }

    /// Whether the runtime takes its own part of a dead sandbox away, and leaves the mounts to us.
    pub(crate) fn cleans_up(&self) -> bool {
        self.awaited
    }

    /// What of its memory is not counted with the sandbox, in MiB, rounded up.
    pub(crate) fn inherited_mb(&self) -> u64 {
        match self.origin {
            Origin::Waited { bytes } => bytes.div_ceil(1024 * 1024),
            Origin::Booted | Origin::Restored | Origin::Stood => 0,
        }
    }

    /// Where its emulator takes orders.
    pub(crate) fn orders(&self) -> Option<EmulatorOrders> {
        self.orders.clone()
    }

    /// The line to a sandbox elsewhere.
    pub(crate) fn line(&self) -> Option<Line> {
        match &self.child {
            Held::Elsewhere(line) => Some(line.clone()),
            Held::Process(_) | Held::Init(_) | Held::Container(_) => None,
        }
    }

    /// Ends a runtime that only waits, and holds the sandbox by its first process instead.
    pub(crate) async fn let_runtime_go(&mut self, init: Arc<OwnedFd>) {
        if let Held::Process(runtime) = &mut self.child
            && runtime.kill().await.is_ok()
        {
            self.child = Held::Init(init);
        }
    }

    /// Until what holds the sandbox has ended.
    pub(crate) async fn ended(&mut self) {
        self.child.wait().await;
    }

    /// It waited, and what it took meanwhile is not counted with the sandbox.
    pub(crate) fn inherit(&mut self, bytes: u64) {
        self.origin = Origin::Waited { bytes };
    }

    /// It is a container that waited, with all that it took.
    pub(crate) fn has_stood(&mut self) {
        self.origin = Origin::Stood;
    }

    pub(crate) async fn meet(
        &mut self,
        mut stream: UnixStream,
        parts: Option<Parts>,
    ) -> Result<Agent, Missed> {
        let limit = Duration::from_millis(BOOT_MS);
        if let Some(parts) = parts {
            let has_greeted = self.origin != Origin::Booted;
            let limit = Duration::from_millis(match (parts.is_filled(), has_greeted) {
                (true, _) => FILL_MS,
                (false, true) => BOOT_MS,
                (false, false) => MACHINE_BOOT_MS,
            });
            let told = tokio::select! {
                biased;
                told = tokio::time::timeout(limit, parts.hand_over(&mut stream, has_greeted)) => told,
                _ = self.child.wait() => return Err(Missed::Ended),
            };
            match told {
                Ok(Ok(())) => {}
                Ok(Err(Untold::Said(fault))) => return Err(Missed::Said(fault)),
                Ok(Err(Untold::Files(source))) => return Err(Missed::Files(source)),
                Ok(Err(Untold::Lost)) => return Err(Missed::Ended),
                Err(_) => return Err(Missed::Late),
            }
        }
        let Ok((agent, driver)) = Agent::connect(stream).await else { return Err(Missed::Ended) };
        self.driver = Some(driver);
        tokio::select! {
            biased;
            answer = tokio::time::timeout(limit, agent.health()) => match answer {
                Ok(Ok(_)) => Ok(agent),
                Ok(Err(_)) => Err(Missed::Ended),
                Err(_) => Err(Missed::Late),
            },
            _ = self.child.wait() => Err(Missed::Ended),
        }
    }

    /// The same for a machine that was made before its sandbox. Where they do not meet nothing of it is left.
    pub(crate) async fn meet_or_end(
        mut self,
        stream: UnixStream,
        parts: Option<Parts>,
    ) -> Result<(Self, Agent), Unmet> {
        let missed = match self.meet(stream, parts).await {
            Ok(agent) => return Ok((self, agent)),
            Err(missed) => missed,
        };
        let log = self.killed().await;
        Err(match missed {
            Missed::Said(fault) => Unmet::Said(fault),
            Missed::Files(source) => Unmet::Files(source),
            Missed::Late => Unmet::Lost(format!("no answer in time: {log}")),
            Missed::Ended => Unmet::Lost(log),
        })
    }

    pub(crate) async fn last_words(self) -> String {
        let Self { mut child, log, driver, .. } = self;
        drop(driver);
        // Its stderr ends when it and the agent have ended, and neither outlives the closed stream
        // for long.
        let limit = Duration::from_millis(RUNTIME_END_MS);
        let status = tokio::time::timeout(limit, child.wait()).await;
        let said = match tokio::time::timeout(limit, log).await {
            Ok(Ok(said)) if !said.trim().is_empty() => said.trim().to_owned(),
            _ => "it said nothing".to_owned(),
        };
        match status {
            Ok(Some(status)) => format!("{said} ({status})"),
            _ => said,
        }
    }

    /// Ends it at once and waits until no process of it has its log open. What it said at last.
    pub(crate) async fn killed(mut self) -> String {
        drop(self.driver.take());
        self.child.kill().await;
        let limit = Duration::from_millis(RUNTIME_END_MS);
        match tokio::time::timeout(limit, self.log).await {
            Ok(Ok(said)) if !said.trim().is_empty() => said.trim().to_owned(),
            _ => "it said nothing".to_owned(),
        }
    }
}

/// Why there is no agent.
pub(crate) enum Missed {
    Late,
    Ended,
    /// The init of a machine says what failed.
    Said(String),
    /// What it begins with cannot be used.
    Files(io::Error),
}

/// Why a machine that was made before did not become a sandbox's.
pub(crate) enum Unmet {
    /// The sandbox's own fault, which the init named.
    Said(String),
    /// The files' that it begins with.
    Files(io::Error),
    /// The machine's.
    Lost(String),
}

/// What a runtime is started on.
pub(crate) struct Ground<'a> {
    pub groups: &'a [PathBuf],
    /// Of a machine.
    pub disk: Option<Arc<Disk>>,
    pub parts: Option<Parts>,
    /// For an engine: what is shown besides the root.
    pub mounts: &'a [Value],
    /// The directory of what its kernel goes on with.
    pub memory: Option<&'a Path>,
    /// The memory that a machine goes on with.
    pub stored: Option<&'a File>,
}

impl Ground<'_> {
    pub(crate) fn shown(&self) -> Option<Arc<ShownDisk>> {
        self.disk.clone().map(ShownDisk::new)
    }

    /// That memory, for an emulator.
    pub(crate) fn lent(&self) -> Result<Option<Lent>, BootError> {
        let lent = self.stored.map(microvm::lend).transpose();
        lent.map_err(|source| BootError::Fill { source })
    }
}

/// A runtime that was started.
pub(crate) struct StartedRuntime {
    pub life: Life,
    /// Our end of its agent's connection.
    pub stream: UnixStream,
}

/// A runtime, or an emulator, that is about to be started.
pub(crate) struct Ready {
    command: Command,
    path: PathBuf,
    ours: UnixStream,
    awaited: bool,
    is_killed_with_us: bool,
    /// What a stored machine has. Dropped when the process is there, which has its own.
    lent: Option<Lent>,
    orders: Option<EmulatorOrders>,
}

impl Ready {
    pub(crate) fn start(self) -> Result<StartedRuntime, BootError> {
        let path = self.path;
        let mut command = self.command;
        let spawned = match self.is_killed_with_us {
            true => starter::start(move || command.spawn()),
            false => command.spawn(),
        };
        let child = spawned.map_err(|source| BootError::Spawn { path, source })?;
        let origin = if self.lent.is_some() { Origin::Restored } else { Origin::Booted };
        let mut life = alive(child, self.awaited, origin, None);
        life.orders = self.orders;
        Ok(StartedRuntime { life, stream: self.ours })
    }
}

/// Has a runtime ready, or an emulator with this disk.
pub(crate) fn ready(
    plan: &Plan,
    groups: &[PathBuf],
    disk: Option<&Arc<ShownDisk>>,
    facts: &HostFacts,
    lent: Option<Lent>,
    memory: Option<&Path>,
) -> Result<Ready, BootError> {
    let (runtime, isolation) = (&plan.runtime, plan.isolation());
    let fault = |source| BootError::Spawn { path: runtime.path.clone(), source };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(fault)?;
    ours.set_nonblocking(true).map_err(fault)?;
    let ours = UnixStream::from_std(ours).map_err(fault)?;
    // crun uses the first both ways; runc copies from the first and to the second.
    let stdin = OwnedFd::from(theirs.try_clone().map_err(fault)?);
    let stdout = match disk {
        // An emulator uses the first both ways too, and has its disk behind the other.
        Some(disk) => microvm::serve(disk).map_err(fault)?,
        None => OwnedFd::from(theirs),
    };
    let mut command = match memory {
        Some(memory) => isolation
            .snapshots
            .restore(plan, groups, memory)
            .ok_or(BootError::Unfillable(plan.class.as_str()))?,
        None => isolation.launch.command(plan, groups, facts, lent.as_ref()),
    };
    command
        .env_clear()
        .stdin(stdin)
        .stdout(stdout)
        .stderr(Stdio::piped())
        // A Ctrl-C at the worker's terminal is the worker's business alone.
        .process_group(0)
        .kill_on_drop(true);
    let (path, awaited) = (runtime.path.clone(), isolation.supervision.awaits_runtime());
    let is_killed_with_us = isolation.launch.is_killed_with_us();
    let orders = isolation.launch.orders(plan, &mut command).map_err(fault)?;
    Ok(Ready { command, path, ours, awaited, is_killed_with_us, lent, orders })
}

/// Holds what was started; the disk of a machine is served until nobody has its log open.
fn alive(
    mut child: Child,
    awaited: bool,
    origin: Origin,
    serving: Option<monitor::Serving>,
) -> Life {
    let log = child.stderr.take();
    let log = tokio::spawn(async move {
        let _serving = serving;
        match log {
            Some(pipe) => tail(pipe).await,
            None => String::new(),
        }
    });
    Life { awaited, ..Life::of(Held::Process(child), log, origin) }
}

/// Starts a monitor, tells it what its machine is and meets the machine's init.
pub(crate) async fn start_monitor(
    plan: &Plan,
    ground: &Ground<'_>,
    facts: &HostFacts,
    kind: Kind,
) -> Result<StartedRuntime, BootError> {
    let fault = |source| BootError::Spawn { path: plan.runtime.path.clone(), source };
    // Without them the class is absent, and no plan names it.
    let (Some(machine), Some(disk)) = (&facts.machine, &ground.disk) else {
        return Err(fault(io::ErrorKind::NotFound.into()));
    };
    let prepared = monitor::prepare(kind, plan, ground.groups, machine, Arc::clone(disk));
    let (place, serving, mut command) = prepared.map_err(fault)?;
    let spawned = starter::start(move || command.process_group(0).spawn());
    let child = spawned.map_err(fault)?;
    let mut life =
        alive(child, plan.isolation().supervision.awaits_runtime(), Origin::Booted, Some(serving));
    let limit = Duration::from_millis(MACHINE_BOOT_MS);
    let begun = tokio::select! {
        biased;
        begun = tokio::time::timeout(limit, place.begin(kind.monitor())) => begun.unwrap_or_else(
            |_| Err("its machine did not answer in time".to_owned()),
        ),
        _ = life.child.wait() => Err("it ended".to_owned()),
    };
    match begun {
        Ok(stream) => Ok(StartedRuntime { life, stream }),
        Err(fault) => {
            let program = kind.program();
            Err(BootError::Monitor { program, fault, log: life.killed().await })
        }
    }
}

pub(crate) async fn start_container(
    plan: &Plan,
    inputs: &[Value],
    groups: &[PathBuf],
) -> Result<StartedRuntime, BootError> {
    let (attached, log, stream) = docker::start(plan, inputs, groups, LOG_BYTES).await?;
    let awaited = plan.isolation().supervision.awaits_runtime();
    let life = Life { awaited, ..Life::of(Held::Container(attached), log, Origin::Booted) };
    Ok(StartedRuntime { life, stream })
}

pub(crate) async fn start_remote(
    plan: &Plan,
    facts: &HostFacts,
) -> Result<StartedRuntime, BootError> {
    Ok(elsewhere(remote::start(plan, facts.provider.as_ref(), LOG_BYTES).await?))
}

/// Meets the agent of a sandbox elsewhere that another worker began.
pub(crate) async fn resume_remote(
    plan: &Plan,
    facts: &HostFacts,
    id: &str,
) -> Result<(Life, Agent), BootError> {
    let called = remote::attach(plan, facts.provider.as_ref(), id, LOG_BYTES).await?;
    let StartedRuntime { mut life, stream } = elsewhere(called);
    match life.meet(stream, None).await {
        Ok(agent) => Ok((life, agent)),
        Err(Missed::Late) => Err(BootError::Silent { log: life.last_words().await }),
        Err(_) => Err(BootError::Ended { log: life.last_words().await }),
    }
}

fn elsewhere(start: RemoteStart) -> StartedRuntime {
    let RemoteStart { line, log, stream } = start;
    StartedRuntime { life: Life::of(Held::Elsewhere(line), log, Origin::Booted), stream }
}

/// The last bytes of a stream, read to its end so that its writer never blocks.
async fn tail(mut pipe: impl AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count) = pipe.read(&mut buffer).await {
        if count == 0 {
            break;
        }
        keep_last(&mut kept, buffer.get(..count).unwrap_or_default(), LOG_BYTES);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
