//! What differs between the classes; everything else of a sandbox's life is the same for all.
//!
//! | | container | gvisor | microvm | docker |
//! |---|---|---|---|---|
//! | cgroups | made by the runtime | made by us: its counters must outlive a lost sandbox | made by us, for the emulator; the machine's kernel has its own for the task | made by us, beside those of the engine, whose place is its own matter |
//! | processes | the cgroup's limit | the kernel's own count for each user, the cgroup as a ceiling | the machine's own cgroup | the cgroup's limit |
//! | root | overlay on the host | overlay on the host | overlay in the machine, of a disk that the worker serves | overlay on the host, carried into the container |
//! | egress proxy | met in its network namespace | met at its agent, whose loopback is not the host's | as in gvisor | as in container |
//! | host directory or cached base, copy-on-write | mounted on the host, then bound | as in container | overlay in the machine, whose upper layer its agent tells | mounted on the host, then bound |
//! | stands for the sandbox | pid 1 of its namespace, the agent | the process of its kernel | pid 1 of its namespace, the emulator | as in container |
//! | attempts without a route | counted by its network namespace | told by its kernel, each connect | counted by its kernel, told by its agent | as in container |
//! | the host's `/usr` | overlay in its root | bound, behind its own kernel | as in gvisor | overlay |
//! | users | of its own, where the kernel can | its own kernel's, as the host's nobody | as in gvisor | the engine's |
//! | end | the runtime cleans up, we wait | the runtime is killed, the wipe cleans up | as in gvisor | the wipe has the engine remove it |
//!
//! In the class `remote` nothing of all this is on the host but the agent's stream: see `remote`.

use std::path::{Path, PathBuf};

use cofferdam_contracts::sandbox::Limits;
use serde_json::Value;
use tokio::process::Command;

use crate::agent::Agent;
use crate::class::Class;
use crate::egress::Way;
use crate::gvisor;
use crate::host::HostFacts;
use crate::microvm::monitor::Kind;
use crate::microvm::{self, Lent};
use crate::oci::{self, Wanted};
use crate::plan::Plan;
use crate::process::{self, Netns};
use crate::runtime::Runtime;
use crate::traces::Traces;

/// The host's way of holding a sandbox of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    /// crun or runc.
    Oci,
    /// runsc.
    Runsc,
    /// QEMU.
    Qemu,
    /// A monitor that is told over HTTP what its machine is.
    Told(Kind),
    /// A Docker engine.
    Engine,
    /// A service elsewhere.
    Provider,
}

/// How the host's `/usr` gets into a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShowsHost {
    /// Overlays that are mounted in the root before the runtime starts.
    InRoot,
    /// Overlays among the mounts of the configuration.
    Overlays,
    /// Binds: another kernel stands between the task and the host's files.
    Binds,
}

impl Backend {
    /// `None`: this build holds no sandboxes of the class, and [`crate::class::detect`] says so.
    pub(crate) fn of(class: Class, runtime: &Runtime) -> Option<Self> {
        match class {
            Class::Container => Some(Self::Oci),
            Class::Gvisor => Some(Self::Runsc),
            Class::Microvm => Some(Kind::named(&runtime.name).map_or(Self::Qemu, Self::Told)),
            Class::Docker => Some(Self::Engine),
            Class::Remote => Some(Self::Provider),
        }
    }

    /// The OCI configuration; null where there is no runtime that reads one.
    pub(crate) fn config(self, wanted: &Wanted<'_>) -> Value {
        match self {
            Self::Oci | Self::Engine => oci::config(wanted),
            Self::Runsc => gvisor::config(oci::config(wanted), wanted),
            Self::Qemu | Self::Told(_) | Self::Provider => Value::Null,
        }
    }

    /// Where its processes meet the egress proxy: in its network namespace, or at its agent where the
    /// network stack is not the host's.
    pub(crate) fn way(self, netns: Option<Netns>, agent: &Agent) -> Option<Way> {
        match self {
            Self::Oci | Self::Engine => netns.map(Way::Netns),
            Self::Runsc | Self::Qemu | Self::Told(_) | Self::Provider => {
                Some(Way::Agent(agent.clone()))
            }
        }
    }

    /// Whether the cgroups are ours to make.
    pub(crate) fn makes_cgroups(self) -> bool {
        !matches!(self, Self::Oci | Self::Provider)
    }

    /// What the host's cgroups are told for a sandbox with these limits, where they are ours.
    pub(crate) fn host_limits(self, limits: Limits) -> Limits {
        match self {
            Self::Oci | Self::Provider => limits,
            Self::Engine => {
                let pids = limits.pids.map(|pids| pids + oci::AGENT_PIDS);
                Limits { pids, ..limits }
            }
            Self::Runsc => {
                let pids = gvisor::host_pids(limits.pids.unwrap_or(0));
                Limits { pids: Some(pids), ..limits }
            }
            Self::Qemu | Self::Told(_) => microvm::host_limits(limits),
        }
    }

    /// Whether the sandbox's kernel tells each connect.
    pub(crate) fn tells_connects(self) -> bool {
        self == Self::Runsc
    }

    /// Whether it is a machine that puts its own root together.
    pub(crate) fn is_machine(self) -> bool {
        matches!(self, Self::Qemu | Self::Told(_))
    }

    /// MiB of the writable layer on the host.
    pub(crate) fn layer_mb(self, disk_mb: u64) -> u64 {
        if self.is_machine() { microvm::HOST_LAYER_MB } else { disk_mb }
    }

    /// Whether nothing of the sandbox is on this host.
    pub(crate) fn is_elsewhere(self) -> bool {
        self == Self::Provider
    }

    /// Whether a socket of the host that a task is shown would have its listener.
    pub(crate) fn connects_to_sockets(self) -> bool {
        matches!(self, Self::Oci | Self::Engine)
    }

    /// How the directories of the host are shown in a sandbox of `envRef: host`.
    pub(crate) fn shows_host(self) -> ShowsHost {
        match self {
            Self::Oci => ShowsHost::InRoot,
            Self::Engine => ShowsHost::Overlays,
            Self::Runsc | Self::Qemu | Self::Told(_) | Self::Provider => ShowsHost::Binds,
        }
    }

    /// Whether an overlay of an input is ours to mount.
    pub(crate) fn mounts_overlays(self) -> bool {
        matches!(self, Self::Oci | Self::Runsc | Self::Engine)
    }

    /// Whether its sandboxes have users of their own, where the host can give them some. gVisor has a kernel of its own
    /// between its users and the host's; an engine's containers have the users of their engine.
    pub(crate) fn has_users(self) -> bool {
        self == Self::Oci
    }

    /// Whether the runtime is waited for when its sandbox has ended. runsc takes seconds for what
    /// the wipe does in milliseconds.
    pub(crate) fn awaits_runtime(self) -> bool {
        self == Self::Oci
    }

    /// What is started; `groups` are the cgroups that were made for it, `lent` what a stored machine has.
    pub(crate) fn command(
        self,
        plan: &Plan,
        groups: &[PathBuf],
        facts: &HostFacts,
        lent: Option<&Lent>,
    ) -> Command {
        match (self, &facts.machine) {
            (Self::Runsc, _) => gvisor::command(plan, groups),
            (Self::Qemu, Some(machine)) => microvm::command(plan, groups, machine, lent),
            // Without a machine the class is absent, and no plan names it; an engine or a provider is not
            // a program that is started here, and a monitor is started in a place of its own.
            (Self::Oci | Self::Engine | Self::Provider | Self::Told(_), _) | (Self::Qemu, None) => {
                run(&plan.runtime, &plan.traces)
            }
        }
    }
}

fn run(runtime: &Runtime, traces: &Traces) -> Command {
    let mut command = Command::new(runtime.program());
    command
        .arg0(&runtime.path)
        .args(runtime.globals())
        .arg("--root")
        .arg(&traces.runtime_root)
        .args(["run", "--bundle"])
        .arg(&traces.dir)
        .arg(traces.id.as_str());
    command
}

/// The process that stands for the sandbox among the members of its cgroup: when it is killed, the
/// sandbox is. An orphan's class is not known, so both kinds are looked for.
pub(crate) fn init(members: &[u32], cgroup: &Path) -> Option<u32> {
    gvisor::kernel(members)
        .or_else(|| members.iter().copied().find(|pid| process::is_init(*pid)))
        .filter(|pid| process::is_member(*pid, cgroup))
}
