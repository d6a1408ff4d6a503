//! What the floors above ask of a class, in the order of a sandbox's life.
//!
//! ```text
//! detect, weak -> refuse, limits, root, config, kernel        the host, and the plan
//!              -> gives, show.., footing, hear, holder, way   the start
//!              -> init, take_away, known, again               the end, and every look behind it
//!              -> program, cgroups                            the record
//! ```
//! What an operation does where a class says nothing is what most classes do: a program of this host is started on
//! a root, a layer and cgroups of this host.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_contracts::sandbox::{
    AccessMode, DEFAULT_DISK_MB, DEFAULT_MEM_MB, DEFAULT_PIDS, Limits, Looked, MAX_STREAM_BYTES,
    SandboxRequest, WipeCheck, WipeMethod,
};
use cofferdam_contracts::session::HardwareIsolation;
use serde_json::Value;
use tokio::process::Command;

use super::detect::HostRuntimes;
use super::kept_memory::KeptMemory;
use super::microvm::monitor::Kind;
use super::microvm::{EmulatorOrders, Given, Lent, Parts};
use super::shown::{NotGiven, Resolved};
use crate::agent::Agent;
use crate::agent::changes::Changed;
use crate::egress::{Unrouted, Way};
use crate::host::base::Base;
use crate::host::cgroup::{CgroupMode, OwnGroup};
use crate::host::hostpath::Place;
use crate::host::limit::{self, Groups};
use crate::host::process::Netns;
use crate::host::runtime::Runtime;
use crate::host::task::Driver;
use crate::host::traces::Traces;
use crate::oci::{self, OciInput};
use crate::spec::class::{Class, Offer};
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;
use crate::spec::refuse::Check;

/// The agent, a shell and a program of some size.
const MIN_MEM_MB: u64 = 16;

/// How a configuration shows the host's `/usr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShowsHost {
    /// Not at all: it is in the root before the runtime starts ([`Footing::apart`]).
    InRoot,
    /// Overlays among the mounts of the configuration.
    Overlays,
    /// Binds: another kernel stands between the task and the host's files.
    Binds,
}

/// What of a sandbox lies on this host before it starts.
#[derive(Default)]
pub(crate) struct Footing {
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

/// What holds a sandbox of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A program that is started with the agent's stream, and ends with it.
    Program,
    /// A monitor that is told over HTTP what its machine is.
    Monitor(Kind),
    /// A Docker engine.
    Engine,
    /// A service elsewhere.
    Provider,
}

/// Where attempts without a route are seen, once the services run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempts {
    /// The host's kernel counts them in the sandbox's network namespace.
    Namespace,
    /// A machine's kernel counts them, and its agent tells.
    Agent,
    /// The sandbox's kernel has told each since the start (`hear`).
    Each,
}

/// What came of having a class take away what it held of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Absence {
    pub checks: Vec<WipeCheck>,
    /// How, where the sandbox was elsewhere: then nothing of it was on this host.
    pub elsewhere: Option<Elsewhere>,
}

/// How a sandbox elsewhere was taken away.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    pub method: WipeMethod,
    pub not_recheckable: Vec<String>,
}

/// Where what is heard of attempts goes, and what hears it.
pub(crate) type Heard = (Arc<Unrouted>, Driver);

/// A class of isolation.
pub(crate) trait Isolation: Sync {
    /// The class that this implements.
    fn class(&self) -> Class;

    /// Whether this host has it, by what was found at start. Blocking.
    fn detect(&self, found: &HostRuntimes<'_>) -> Offer;

    /// What it enforces less well than could be thought, in words.
    fn weak(&self, _facts: &HostFacts) -> Vec<String> {
        Vec::new()
    }

    /// Whether the processor keeps its sandboxes apart from this host, as far as that was tried.
    fn hardware(&self, _facts: &HostFacts) -> HardwareIsolation {
        HardwareIsolation::No
    }

    /// Whether weaknesses of the host's kernel and mounts are the sandbox's too.
    fn shares_weaknesses(&self) -> bool {
        true
    }

    /// Refuses by its field what this class cannot enforce; `asked` are the limits, merged.
    fn refuse(&self, _request: &SandboxRequest, _asked: Limits, _facts: &HostFacts) -> Check {
        Ok(())
    }

    /// MiB of memory below which no sandbox starts.
    fn least_mem_mb(&self) -> u64 {
        MIN_MEM_MB
    }

    /// Whether a layer that is too large for memory may lie encrypted on disk.
    fn has_large_layers(&self) -> bool {
        false
    }

    /// The limits of a sandbox that asks for these.
    fn limits(&self, asked: Limits, facts: &HostFacts) -> Limits {
        let pids = asked.pids.unwrap_or(DEFAULT_PIDS);
        let nofile = match self.class().is_on_host_kernel() {
            true => facts.nofile.min(facts.ceilings.nofile(pids)),
            false => facts.nofile,
        };
        Limits {
            cpu: Some(asked.cpu.unwrap_or(f64::from(facts.cpus))),
            mem_mb: Some(asked.mem_mb.unwrap_or(DEFAULT_MEM_MB)),
            pids: Some(pids),
            disk_mb: Some(asked.disk_mb.unwrap_or(DEFAULT_DISK_MB)),
            output_bytes: Some(asked.output_bytes.unwrap_or(MAX_STREAM_BYTES)),
            nofile: Some(asked.nofile.unwrap_or(nofile)),
        }
    }

    /// MiB of this host's memory that a sandbox with these limits may take.
    fn host_mem_mb(&self, limits: Limits) -> u64 {
        self.host_limits(limits).mem_mb.unwrap_or(DEFAULT_MEM_MB)
    }

    /// What the host's cgroups are told for a sandbox with these limits, where they are ours.
    fn host_limits(&self, limits: Limits) -> Limits {
        limits
    }

    /// The root, where it is not the request's to name.
    fn root(&self, _facts: &HostFacts) -> Option<Base> {
        None
    }

    /// The OCI configuration; null where no runtime reads one.
    fn config(&self, _input: &OciInput<'_>) -> Value {
        Value::Null
    }

    /// Whether its root file system is one that this host can read, and so has names of users.
    fn reads_root(&self) -> bool {
        true
    }

    /// How the directories of the host are shown in a sandbox of `envRef: host`.
    fn shows_host(&self) -> ShowsHost {
        ShowsHost::Binds
    }

    /// The kernel under the task, for the record.
    fn kernel(&self, facts: &HostFacts) -> String {
        facts.kernel.clone()
    }

    /// Whether its sandboxes have 65,536 user ids of this host's and no other.
    fn has_own_ids(&self, _facts: &HostFacts) -> bool {
        false
    }

    /// Whether a path of the host is given with this access.
    fn gives(&self, _access: AccessMode) -> Result<(), NotGiven> {
        Ok(())
    }

    /// Shows a path of the host read-only.
    fn show(&self, resolved: &mut Resolved<'_>, plan: &Plan, source: Place, target: &str) {
        resolved.bound(plan, source, target, self.class().is_on_host_kernel());
    }

    /// Shows a file of ours.
    fn show_ours<'a>(
        &self,
        resolved: &mut Resolved<'a>,
        plan: &Plan,
        file: &Path,
        target: &'a str,
    ) {
        self.show(resolved, plan, Place::Ours(file.to_owned()), target);
    }

    /// Shows a directory of the host copy-on-write, with its changes in a place of the layer.
    fn show_on_write(
        &self,
        resolved: &mut Resolved<'_>,
        plan: &Plan,
        lower: Place,
        (target, place): (&str, &Path),
    ) {
        resolved.overlaid(plan, target, lower, place);
    }

    /// The same of a directory whose changes a person may look at afterwards.
    fn show_tree(&self, resolved: &mut Resolved<'_>, plan: &Plan, lower: Place, target: &str) {
        let place = plan.traces.layer.join(format!("tree-{}", resolved.dirs.len()));
        let (upper, merged) = (place.join("upper"), place.join("merged"));
        resolved.trees.push((target.to_owned(), Changed::Host { upper, merged }));
        self.show_on_write(resolved, plan, lower, (target, &place));
        if let Some(overlay) = resolved.overlays.last_mut() {
            overlay.moves = true;
        }
    }

    /// Shows an empty directory of the sandbox's own, which lies at a place of the layer and is kept for others.
    fn show_own(&self, resolved: &mut Resolved<'_>, (target, place): (&str, &Path)) {
        resolved.mounts.push(oci::bind_writable(place, target));
        resolved.dirs.push(place.to_owned());
    }

    /// What of a sandbox lies on this host before it starts.
    fn footing(&self, plan: &Plan, _base: &Place, _given: &[Given], facts: &HostFacts) -> Footing {
        let limits = self.host_limits(plan.effective.limits);
        let groups = limit::groups(&facts.cgroups, &plan.traces, limits, facts.cpus);
        Footing { layer_mb: Some(plan.disk_mb), groups: Some(groups), ..Footing::default() }
    }

    /// Whether a sandbox of it may be made before its request, and wait.
    fn may_wait(&self) -> bool {
        false
    }

    /// Listens for what the sandbox's kernel tells of connects, before it starts.
    fn hear(&self, _traces: &Traces) -> io::Result<Option<Heard>> {
        Ok(None)
    }

    /// What holds the sandbox of a plan.
    fn holder(&self, _plan: &Plan) -> Holder {
        Holder::Program
    }

    /// The program that holds it; `groups` are the cgroups that were made for it, `lent` what a stored machine has.
    fn command(
        &self,
        plan: &Plan,
        groups: &[PathBuf],
        facts: &HostFacts,
        lent: Option<&Lent>,
    ) -> Command;

    /// Has the program that holds it, and is about to be started, take orders from us: then its machine can be stored with it.
    fn orders(&self, _plan: &Plan, _command: &mut Command) -> io::Result<Option<EmulatorOrders>> {
        Ok(None)
    }

    /// Whether the runtime may be started before there is a root: it opens its configuration first, and waits there.
    fn starts_ahead(&self) -> bool {
        false
    }

    /// Whether the host's kernel kills what it starts with this process: a [`starter`](crate::host::starter) starts it then.
    fn is_killed_with_us(&self) -> bool {
        false
    }

    /// Whether the runtime is waited for when its sandbox has ended.
    fn awaits_runtime(&self) -> bool {
        false
    }

    /// Whether a sandbox whose agent answers needs its runtime no more: it would only wait, and clean up what a wipe takes away too.
    fn outlives(&self, _runtime: &Runtime) -> bool {
        false
    }

    /// Whether a sandbox whose agent answers has mounts of its own, so that those that it was made from are of no more use.
    fn has_own_mounts(&self) -> bool {
        false
    }

    /// What is left to be limited once the agent answers. The path is that of what could not be.
    fn settle(&self, _plan: &Plan, _facts: &HostFacts) -> Result<(), (PathBuf, io::Error)> {
        Ok(())
    }

    /// Where its processes meet the egress proxy: at its agent where the network stack is not the host's.
    fn way(&self, _netns: Option<Netns>, agent: &Agent) -> Option<Way> {
        Some(Way::Agent(agent.clone()))
    }

    /// Where attempts without a route are seen.
    fn attempts(&self) -> Attempts {
        match self.class().is_on_host_kernel() {
            true => Attempts::Namespace,
            false => Attempts::Each,
        }
    }

    /// Whether its kernel keeps pipes and sockets that the host does not see, so that its agent is asked for them.
    fn hides_files(&self) -> bool {
        false
    }

    /// Whether all that a sandbox writes can be kept and put into another sandbox: it lies in a layer of this host as soon as
    /// it is written, or a kernel of ours hands it out. Another kernel may hold written pages back, and a provider has layers of
    /// its own.
    fn keeps_files(&self) -> bool {
        false
    }

    /// Whether that layer lies in a machine: its agent is asked for the files, and its init is given them.
    fn has_layer_inside(&self) -> bool {
        false
    }

    /// The layer of the agent that it runs.
    fn guest<'a>(&self, facts: &'a HostFacts) -> &'a PathBuf {
        &facts.guest
    }

    /// Whether its kernel writes itself and all processes to a file on this host, and begins another sandbox with it.
    /// `None`: it cannot.
    fn kept_memory(&self, _facts: &HostFacts) -> Option<KeptMemory> {
        None
    }

    /// Has the kernel of a sandbox write itself, in at most so many bytes. Its agent sleeps. `_members` are its
    /// processes. Whatever comes of it, the sandbox is over. Blocking.
    fn store_memory(
        &self,
        (_traces, _members): (&Traces, &[u32]),
        _out: &mut dyn Write,
        _most: u64,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The program that begins a sandbox with what a kernel wrote, which lies in this directory; in place of `command`.
    fn restore(&self, _plan: &Plan, _groups: &[PathBuf], _memory: &Path) -> Option<Command> {
        None
    }

    /// The process that stands for a sandbox among the members of its cgroup, where that is not the first of a pid
    /// namespace.
    fn init(&self, _members: &[u32]) -> Option<u32> {
        None
    }

    /// Has whoever else holds a sandbox of this class remove it, and looks whether it did. Of one that was never this
    /// class's nothing. Blocking.
    fn take_away(&self, _traces: &Traces, _facts: &HostFacts) -> Absence {
        Absence::default()
    }

    /// Names of sandboxes that whoever else holds them knows for this state directory. Blocking.
    fn known(&self, _facts: &HostFacts) -> Vec<String> {
        Vec::new()
    }

    /// Looks again for what a check of this class' names; `None`: it names nothing of this class' that could be found
    /// again. Inside, what was seen.
    fn again(&self, _looked: &Looked) -> Option<Option<String>> {
        None
    }

    /// The program whose digest is recorded, where it is a file of this host.
    fn program(&self, runtime: &Runtime) -> Option<PathBuf> {
        Some(runtime.path.clone())
    }

    /// What the record says of cgroups.
    fn cgroups(&self, mode: CgroupMode) -> &'static str {
        match mode {
            CgroupMode::V1 => "v1",
            CgroupMode::Hybrid => "hybrid",
            CgroupMode::V2 => "v2",
        }
    }
}
