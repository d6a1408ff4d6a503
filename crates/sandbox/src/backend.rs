//! What differs between the classes; everything else of a sandbox's life is the same for all.
//!
//! | | container | gvisor |
//! |---|---|---|
//! | cgroups | made by the runtime | made by us: its counters must outlive a lost sandbox |
//! | processes | the cgroup's limit | the kernel's own count for each user, the cgroup as a ceiling |
//! | host directory, copy-on-write | overlay mounted by the runtime | mounted on the host, then bound |
//! | stands for the sandbox | pid 1 of its namespace, the agent | the process of its kernel |
//! | end | the runtime cleans up, we wait | the runtime is killed, the wipe cleans up |

use std::path::{Path, PathBuf};

use serde_json::Value;
use tokio::process::Command;

use crate::class::Class;
use crate::gvisor;
use crate::oci::{self, Wanted};
use crate::plan::Plan;
use crate::process;
use crate::runtime::Runtime;
use crate::traces::Traces;

/// The host's way of holding a sandbox of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    /// crun or runc.
    Oci,
    /// runsc.
    Runsc,
}

impl Backend {
    /// `None`: this build holds no sandboxes of the class, and [`crate::class::detect`] says so.
    pub(crate) fn of(class: Class) -> Option<Self> {
        match class {
            Class::Container => Some(Self::Oci),
            Class::Gvisor => Some(Self::Runsc),
            Class::Microvm | Class::Docker => None,
        }
    }

    /// The OCI configuration.
    pub(crate) fn config(self, wanted: &Wanted<'_>) -> Value {
        let config = oci::config(wanted);
        match self {
            Self::Oci => config,
            Self::Runsc => gvisor::config(config, wanted),
        }
    }

    /// Whether a proxy in the sandbox's network namespace is what its processes meet.
    pub(crate) fn reaches_names(self) -> bool {
        self == Self::Oci
    }

    /// Whether services beside a task are tried and tested in it.
    pub(crate) fn holds_services(self) -> bool {
        self == Self::Oci
    }

    /// Whether the dependency cache is tried and tested in it.
    pub(crate) fn holds_cache(self) -> bool {
        self == Self::Oci
    }

    /// Whether the cgroups are ours to make.
    pub(crate) fn makes_cgroups(self) -> bool {
        self == Self::Runsc
    }

    /// Whether an overlay of an input is ours to mount.
    pub(crate) fn mounts_overlays(self) -> bool {
        self == Self::Runsc
    }

    /// Whether the runtime is waited for when its sandbox has ended. runsc takes seconds for what
    /// the wipe does in milliseconds.
    pub(crate) fn awaits_runtime(self) -> bool {
        self == Self::Oci
    }

    /// What is started; `groups` are the cgroups that were made for it.
    pub(crate) fn command(self, plan: &Plan, groups: &[PathBuf]) -> Command {
        match self {
            Self::Oci => run(&plan.runtime, &plan.traces),
            Self::Runsc => gvisor::command(plan, groups),
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
