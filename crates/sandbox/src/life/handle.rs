//! The host's handle on a sandbox, from the start of its runtime to its end.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use crate::agent::Agent;
use crate::class::program::FirstProcess;
use crate::class::tail::{self, RUNTIME_END_MS};
use crate::class::{LaunchInput, LaunchResult, RemoteLine, RuntimeHandle};
use crate::host::task::Driver;
use crate::life::error::BootError;
use crate::machine::{
    self, CurrentDisk, Disk, EmulatorOrders, InheritedFd, MACHINE_BOOT_MS, Parts, SetupError,
};
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

/// From the start of the runtime to the agent's first answer. Usually 5 ms; a host that needs
/// seconds is overloaded and should rather take fewer sandboxes. Of a stored machine 0.2 s.
const BOOT_MS: u64 = 15_000;
/// Start of a machine that begins with files, in ms: an emulated one takes about 70 MB of them in a second.
const FILL_MS: u64 = 300_000;

/// The host's handle on a sandbox: the runtime's process, the connection and the log.
#[derive(Debug)]
pub(crate) struct SandboxHandle {
    holder: Box<dyn RuntimeHandle>,
    /// Whether the runtime cleans up after its sandbox, and is waited for.
    awaited: bool,
    /// Whether it ends with the agent's stream.
    ends_with_stream: bool,
    log: JoinHandle<String>,
    driver: Option<Driver>,
    /// Where its emulator takes orders.
    orders: Option<EmulatorOrders>,
    /// How a machine began; nothing else was ever restored.
    pub(crate) origin: KernelStart,
}

/// How a sandbox's kernel came to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelStart {
    /// It booted, or it is the host's.
    Booted,
    /// It was stored, and read.
    Restored,
    /// The same before there was the sandbox; these bytes of its memory are counted elsewhere.
    Waited { bytes: u64 },
    /// It is the host's, and the sandbox's agent answered before there was its request.
    Stood,
}

impl SandboxHandle {
    /// What was started for a plan, and our end of its agent's connection.
    pub(crate) fn of(started: LaunchResult, plan: &Plan) -> RuntimeStart {
        let LaunchResult { holder, log, stream, is_restored, orders, ends_with_stream } = started;
        let awaited = plan.isolation().supervision.awaits_runtime();
        let origin = if is_restored { KernelStart::Restored } else { KernelStart::Booted };
        let life = Self { holder, awaited, ends_with_stream, log, driver: None, orders, origin };
        RuntimeStart { life, stream }
    }

    /// Waits for the runtime of a dead sandbox, and kills it if it dawdles. Whether it is gone.
    pub(crate) async fn end(mut self) -> bool {
        drop(self.driver.take());
        let limit = Duration::from_millis(RUNTIME_END_MS);
        if self.awaited {
            let wait = tokio::time::timeout(limit, self.holder.wait());
            if wait.await.is_ok_and(|done| done.is_some()) {
                return true;
            }
        }
        self.holder.kill().await
    }

    /// Whether the runtime takes its own part of a dead sandbox away, and leaves the mounts to us.
    pub(crate) fn cleans_up(&self) -> bool {
        self.awaited
    }

    /// What of its memory is not counted with the sandbox, in MiB, rounded up.
    pub(crate) fn inherited_mb(&self) -> u64 {
        match self.origin {
            KernelStart::Waited { bytes } => bytes.div_ceil(1024 * 1024),
            KernelStart::Booted | KernelStart::Restored | KernelStart::Stood => 0,
        }
    }

    /// Where its emulator takes orders.
    pub(crate) fn orders(&self) -> Option<EmulatorOrders> {
        self.orders.clone()
    }

    /// The line to a sandbox elsewhere.
    pub(crate) fn line(&self) -> Option<Arc<dyn RemoteLine>> {
        self.holder.line()
    }

    /// Ends a runtime that only waits, and holds the sandbox by its first process instead.
    pub(crate) async fn let_runtime_go(&mut self, init: Arc<OwnedFd>) {
        if self.holder.is_program() && self.holder.kill().await {
            self.holder = Box::new(FirstProcess(init));
        }
    }

    /// Until what holds the sandbox has ended.
    pub(crate) async fn ended(&mut self) {
        self.holder.wait().await;
    }

    /// It waited, and what it took meanwhile is not counted with the sandbox.
    pub(crate) fn inherit(&mut self, bytes: u64) {
        self.origin = KernelStart::Waited { bytes };
    }

    /// It is a container that waited, with all that it took.
    pub(crate) fn was_waiting(&mut self) {
        self.origin = KernelStart::Stood;
    }

    pub(crate) async fn meet(
        &mut self,
        mut stream: UnixStream,
        parts: Option<Parts>,
    ) -> Result<Agent, BootFault> {
        let limit = Duration::from_millis(BOOT_MS);
        if let Some(parts) = parts {
            let has_greeted = self.origin != KernelStart::Booted;
            let limit = Duration::from_millis(match (parts.is_filled(), has_greeted) {
                (true, _) => FILL_MS,
                (false, true) => BOOT_MS,
                (false, false) => MACHINE_BOOT_MS,
            });
            let told = tokio::select! {
                biased;
                told = tokio::time::timeout(limit, parts.hand_over(&mut stream, has_greeted)) => told,
                _ = self.holder.wait() => return Err(BootFault::Ended),
            };
            match told {
                Ok(Ok(())) => {}
                Ok(Err(SetupError::Said(fault))) => return Err(BootFault::Said(fault)),
                Ok(Err(SetupError::Files(source))) => return Err(BootFault::Files(source)),
                Ok(Err(SetupError::Lost)) => return Err(BootFault::Ended),
                Err(_) => return Err(BootFault::Late),
            }
        }
        let Ok((agent, driver)) = Agent::connect(stream).await else {
            return Err(BootFault::Ended);
        };
        self.driver = Some(driver);
        tokio::select! {
            biased;
            answer = tokio::time::timeout(limit, agent.health()) => match answer {
                Ok(Ok(_)) => Ok(agent),
                Ok(Err(_)) => Err(BootFault::Ended),
                Err(_) => Err(BootFault::Late),
            },
            _ = self.holder.wait() => Err(BootFault::Ended),
        }
    }

    /// The same for a machine that was made before its sandbox. Where they do not meet nothing of it is left.
    pub(crate) async fn meet_or_end(
        mut self,
        stream: UnixStream,
        parts: Option<Parts>,
    ) -> Result<(Self, Agent), ClaimFault> {
        let missed = match self.meet(stream, parts).await {
            Ok(agent) => return Ok((self, agent)),
            Err(missed) => missed,
        };
        let log = self.killed().await;
        Err(match missed {
            BootFault::Said(fault) => ClaimFault::Said(fault),
            BootFault::Files(source) => ClaimFault::Files(source),
            BootFault::Late => ClaimFault::Lost(format!("no answer in time: {log}")),
            BootFault::Ended => ClaimFault::Lost(log),
        })
    }

    /// What it said at last, once it has ended with its agent's stream; one that does not is killed.
    pub(crate) async fn last_words(mut self) -> String {
        if !self.ends_with_stream {
            return self.killed().await;
        }
        drop(self.driver.take());
        // Its stderr ends when it and the agent have ended, and neither outlives the closed stream
        // for long.
        let limit = Duration::from_millis(RUNTIME_END_MS);
        let status = tokio::time::timeout(limit, self.holder.wait()).await;
        let said = tail::said(self.log).await;
        match status {
            Ok(Some(status)) => format!("{said} ({status})"),
            _ => said,
        }
    }

    /// Ends it at once and waits until no process of it has its log open. What it said at last.
    pub(crate) async fn killed(mut self) -> String {
        drop(self.driver.take());
        self.holder.kill().await;
        tail::said(self.log).await
    }
}

/// Why there is no agent.
pub(crate) enum BootFault {
    Late,
    Ended,
    /// The init of a machine says what failed.
    Said(String),
    /// What it begins with cannot be used.
    Files(io::Error),
}

/// Why a machine that was made before did not become a sandbox's.
pub(crate) enum ClaimFault {
    /// The sandbox's own fault, which the init named.
    Said(String),
    /// The files' that it begins with.
    Files(io::Error),
    /// Fault of the machine itself, in words; another one is started instead.
    Lost(String),
}

/// What a runtime is started on.
pub(crate) struct StartInput<'a> {
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

impl<'a> StartInput<'a> {
    /// What the sandbox of a plan is started on; `lent` is the state that a stored machine is restored from.
    pub(crate) fn input(
        &'a self,
        plan: &'a Plan,
        facts: &'a HostFacts,
        lent: Option<InheritedFd>,
    ) -> LaunchInput<'a> {
        let disk = self.disk.clone().map(CurrentDisk::new);
        let Self { groups, mounts, memory, .. } = *self;
        LaunchInput { plan, facts, groups, mounts, memory, disk, lent }
    }

    /// The memory that its machine goes on with, for an emulator.
    pub(crate) fn inherited_fd(&self) -> Result<Option<InheritedFd>, BootError> {
        let lent = self.stored.map(machine::lend).transpose();
        lent.map_err(|source| BootError::Fill { source })
    }
}

/// A runtime that was started.
pub(crate) struct RuntimeStart {
    pub life: SandboxHandle,
    /// Our end of its agent's connection.
    pub stream: UnixStream,
}
