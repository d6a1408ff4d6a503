//! How a sandbox of a class starts.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_contracts::sandbox::Limits;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::task::JoinHandle;

use super::runtime_handle::{RuntimeFuture, RuntimeHandle};
use crate::egress::NoRouteAttempts;
use crate::host::cgroup::OwnGroup;
use crate::host::hostpath::HostSource;
use crate::host::limit::{self, Groups};
use crate::host::task::Driver;
use crate::host::traces::Traces;
use crate::machine::{CurrentDisk, EmulatorOrders, GuestMount, InheritedFd, Parts};
use crate::oci::OciInput;
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

/// What of a sandbox lies on this host before it starts.
#[derive(Default)]
pub(crate) struct HostLayout {
    /// MiB of the writable layer; `None`: the sandbox is elsewhere, and nothing lies here.
    pub layer_mb: Option<u64>,
    /// Whether it has users of its own, where the host can give it some.
    pub has_users: bool,
    /// Directories of the host that are shown in its root.
    pub apart: Vec<PathBuf>,
    /// Whether its runtime binds the root's `/tmp` from beside the root.
    pub binds_tmp: bool,
    /// What a machine is made of; it mounts its root itself.
    pub parts: Option<Parts>,
    /// The cgroups to make, where the runtime makes none.
    pub groups: Option<Groups>,
    /// What its programs see of the cgroups that its runtime makes.
    pub shown_groups: Vec<OwnGroup>,
}

impl HostLayout {
    /// A layer of the plan's size, and cgroups of ours with these limits.
    pub fn of(plan: &Plan, limits: Limits, facts: &HostFacts) -> Self {
        let groups = limit::groups(&facts.cgroups, &plan.traces, limits, facts.cpus);
        Self { layer_mb: Some(plan.disk_mb), groups: Some(groups), ..Self::default() }
    }
}

/// Where what is heard of attempts goes, and what hears it.
pub(crate) type AttemptWatch = (Arc<NoRouteAttempts>, Driver);

/// What a sandbox is started on.
pub(crate) struct LaunchInput<'a> {
    pub plan: &'a Plan,
    pub facts: &'a HostFacts,
    /// The cgroups that were made for it.
    pub groups: &'a [PathBuf],
    /// For an engine: what is shown besides the root.
    pub mounts: &'a [Value],
    /// The directory of what its kernel goes on with.
    pub memory: Option<&'a Path>,
    /// Of a machine.
    pub disk: Option<Arc<CurrentDisk>>,
    /// The state that a stored machine is restored from.
    pub lent: Option<InheritedFd>,
}

impl<'a> LaunchInput<'a> {
    /// With its plan alone, before anything of it is made.
    pub fn bare(plan: &'a Plan, facts: &'a HostFacts) -> Self {
        Self { plan, facts, groups: &[], mounts: &[], memory: None, disk: None, lent: None }
    }
}

/// A sandbox whose runtime runs. Its agent has not answered.
pub(crate) struct LaunchResult {
    pub holder: Box<dyn RuntimeHandle>,
    /// What it and the agent say at last.
    pub log: JoinHandle<String>,
    /// Our end of the agent's connection.
    pub stream: UnixStream,
    /// Whether a stored machine goes on, and no kernel boots.
    pub is_restored: bool,
    /// Where its emulator takes orders.
    pub orders: Option<EmulatorOrders>,
    /// Whether the runtime ends with the agent's stream; another one is killed before its last words are read.
    pub ends_with_stream: bool,
}

impl LaunchResult {
    /// What ends with the agent's stream, and takes no orders.
    pub fn of(holder: Box<dyn RuntimeHandle>, log: JoinHandle<String>, stream: UnixStream) -> Self {
        let (is_restored, orders, ends_with_stream) = (false, None, true);
        Self { holder, log, stream, is_restored, orders, ends_with_stream }
    }
}

/// Why a sandbox was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("the runtime {path:?} could not be started")]
    Spawn { path: PathBuf, source: io::Error },
    #[error("{program} did not make the machine: {fault}; at last it said: {log}")]
    Monitor { program: &'static str, fault: String, log: String },
    #[error("the class {0} cannot take the files of a snapshot")]
    Unfillable(&'static str),
    /// In the words of an engine or a provider.
    #[error(transparent)]
    Holder(Box<dyn Error + Send + Sync>),
}

/// Starts what was made ready. Within a runtime.
pub(crate) type ReadyStart = Box<dyn FnOnce() -> Result<LaunchResult, StartError> + Send>;

/// What is made and started for a sandbox. By default nothing but that program has to be made.
pub(crate) trait Launch: Sync {
    /// The OCI configuration; null where no runtime reads one.
    fn config(&self, _input: &OciInput<'_>) -> Value {
        Value::Null
    }

    /// What of a sandbox lies on this host before it starts.
    fn host_layout(
        &self,
        plan: &Plan,
        base: &HostSource,
        given: &[GuestMount],
        facts: &HostFacts,
    ) -> HostLayout;

    /// The layer of the agent that it runs.
    fn guest<'a>(&self, facts: &'a HostFacts) -> &'a PathBuf {
        &facts.guest
    }

    /// Listens for what the sandbox's kernel tells of connects, before it starts.
    fn hear(&self, _traces: &Traces) -> io::Result<Option<AttemptWatch>> {
        Ok(None)
    }

    /// Starts what holds the sandbox. Its root, layer and cgroups are made.
    fn start<'a>(
        &'a self,
        on: LaunchInput<'a>,
    ) -> RuntimeFuture<'a, Result<LaunchResult, StartError>>;

    /// Makes a runtime ready that is started before there is a root: it opens its configuration first, and waits there. `None`:
    /// it has to find its root.
    fn start_ahead(&self, _on: LaunchInput<'_>) -> Option<Result<ReadyStart, StartError>> {
        None
    }

    /// The program that holds it, where that is one of this host; `None`: it cannot go on with that memory.
    fn command(&self, on: &LaunchInput<'_>) -> Option<Command> {
        on.memory.is_none().then(|| Command::new(on.plan.runtime.program()))
    }

    /// Has that program, which is about to be started, take orders from us: then its machine can be stored with it.
    fn orders(&self, _command: &mut Command) -> io::Result<Option<EmulatorOrders>> {
        Ok(None)
    }

    /// Whether the host's kernel kills what it starts with this process: a [`starter`](crate::host::starter) starts it then.
    fn is_killed_with_us(&self) -> bool {
        false
    }

    /// Whether a sandbox of it may be made before its request, and wait.
    fn may_wait(&self) -> bool {
        false
    }
}
