//! What a host is: looked at once, at start, and plain data ever after.

use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_contracts::id::Digest;
use cofferdam_contracts::sandbox::IsolationClass;

use crate::host::ceiling::Ceilings;
use crate::host::cgroup::Cgroups;
use crate::host::crypt::LargeLayers;
use crate::host::hostpath::AllowedPaths;
use crate::host::idrange::IdRanges;
use crate::host::runtime::Runtime;
use crate::spec::class::{Class, ClassFact, Offer};
use crate::spec::machine::Machine;
use crate::spec::provider::Provider;
use crate::spec::service::Programs;

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct HostFacts {
    /// Absolute, links resolved.
    pub state_dir: PathBuf,
    /// Where the sandboxes lie: on a tmpfs of the host, or the state directory itself.
    pub live_dir: PathBuf,
    /// Which of its directories tasks may be given parts of, and which never.
    pub allowed: AllowedPaths,
    /// The runtime of the class `container`, or in its place the engine of the class `docker` or the provider
    /// of the class `remote`.
    pub runtime: Runtime,
    /// Provider of the class `remote`; absent with any other runtime.
    pub provider: Option<Arc<Provider>>,
    /// Every class, present or absent, in the order of [`crate::Class::ALL`].
    pub classes: Vec<ClassFact>,
    /// What the machines of the class `microvm` are started from, where it is present.
    pub machine: Option<Machine>,
    /// Version and mounted hierarchies of this host's cgroups.
    pub cgroups: Cgroups,
    /// Release of this host's kernel, as `uname -r` prints it.
    pub kernel: String,
    /// CPUs that this process may use.
    pub cpus: u32,
    /// Memory in MiB.
    pub mem_mb: u64,
    /// Processes that the kernel can number.
    pub pids: u64,
    /// Open files of each process of a task that does not say.
    pub nofile: u64,
    /// Open files that a task may ask for: the worker's own hard limit.
    pub nofile_most: u64,
    /// What one sandbox may have of what the kernel has once.
    pub ceilings: Ceilings,
    /// Ids that sandboxes of the class `container` have for themselves, or why there are none.
    pub ids: Result<IdRanges, String>,
    /// Whether the writable layer may reach a swap device.
    pub swap: bool,
    /// What it does for layers that are too large for memory.
    pub large: LargeLayers,
    /// Whether our mounts vanish with this process.
    pub private_mounts: bool,
    /// Lower layer of `envRef: host`.
    pub base: PathBuf,
    /// Its digest at start: every sandbox must leave it so.
    pub base_digest: Option<Digest>,
    /// Lower layer with the agent.
    pub guest: PathBuf,
    /// The same for gVisor.
    pub polling_guest: PathBuf,
    /// Host directories that `envRef: host` shows read-only at the same place.
    pub binds: Vec<PathBuf>,
    /// A directory of ours with nothing in it.
    pub empty: PathBuf,
    /// Servers that `envRef: host` has.
    pub services: Programs,
}

impl HostFacts {
    /// By which sandboxes of this class are made, where it is present.
    pub(crate) fn runtime_of(&self, class: Class) -> Option<&Runtime> {
        self.classes.iter().find_map(|fact| match &fact.offer {
            Offer::Present(runtime) if fact.class == class => Some(runtime),
            _ => None,
        })
    }

    /// How strong the classes are that requests of this host can get; empty where it has none.
    #[must_use]
    pub fn strengths(&self) -> Vec<IsolationClass> {
        let is_present = |fact: &&ClassFact| matches!(fact.offer, Offer::Present(_));
        self.classes.iter().filter(is_present).map(|fact| fact.class.strength()).collect()
    }

    /// Whether every directory of the host may be given, as to its own admin.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.allowed.is_open()
    }
}
