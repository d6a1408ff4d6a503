//! What this host is: looked at once, at start, and a value ever after.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;

use cofferdam_contracts::canonical::CanonicalError;
use cofferdam_contracts::id::{Digest, TenantId};
use nix::sys::utsname::uname;
use nix::unistd::geteuid;

use crate::attest;
use crate::base;
use crate::boot::blocking;
use crate::cache::{self, CacheWanted};
use crate::ceiling::{Ceilings, Tcp};
use crate::cgroup::{CgroupMode, Cgroups};
use crate::class::{self, Class, ClassFact, Offer};
use crate::crypt::LargeLayers;
use crate::docker;
use crate::dynmods::Dynmods;
use crate::egress;
use crate::gvisor;
use crate::hostpath::{self, Allowed};
use crate::idrange::IdRanges;
use crate::input::Input;
use crate::live;
use crate::microvm::monitor::Kind;
use crate::microvm::{self, Machine};
use crate::mounts;
use crate::nofile;
use crate::plan::Plan;
use crate::refuse::PlanError;
use crate::remote::{self, Provider, RemoteConfig};
use crate::runtime::Runtime;
use crate::service::Programs;
use crate::warm::WarmPool;

/// Open files of a task: what the host's hard limit allows, but not more than a server needs.
const MAX_NOFILE: u64 = 65_536;

/// What holds a container's root in place of a user namespace.
pub(crate) const NO_USER_NAMESPACE: &str = "the task's root is the host's root, held by 8 \
    capabilities, no_new_privs, a read-only /usr and the system call filter";

/// What is said where a sandbox's user namespace is the host's root's.
pub(crate) const NOT_OWNED: &str = "inotify instances, signals, timers and message queues of a sandbox are counted for the host's root, \
    too: runc without CAP_SYS_RESOURCE";

/// Why this host cannot hold sandboxes. Every text says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Mounts and namespaces need root.
    #[error("sandboxes of the container class need root: run cofferdam as root (sudo)")]
    NotRoot,
    /// None found, or not the one that was asked for.
    #[error(
        "no OCI runtime was found{}: install one (apt-get install crun, or runc)",
        .wanted.as_ref().map(|name| format!(" under the name {name:?}")).unwrap_or_default()
    )]
    NoRuntime {
        /// What the configuration names.
        wanted: Option<String>,
    },
    /// An engine was asked for, and none answers.
    #[error("no Docker engine was found: {why} ({remedy})")]
    NoEngine {
        /// Why.
        why: String,
        /// What would change that.
        remedy: String,
    },
    /// crun does not start beside a version 2 tree that holds a controller.
    #[error(
        "crun cannot run while /sys/fs/cgroup/unified is mounted beside version 1 controllers: call \
         enter_private_mounts before the first thread starts, or install runc (apt-get install runc)"
    )]
    Hybrid,
    /// No cgroup tree at all.
    #[error("no cgroup tree is mounted: mount one (mount -t cgroup2 none /sys/fs/cgroup)")]
    NoCgroups,
    /// The namespace could not be made.
    #[error("a private mount namespace could not be made: run as root with CAP_SYS_ADMIN")]
    PrivateMounts {
        /// The kernel's answer.
        source: nix::Error,
    },
    /// The version 2 tree of a host with both could not be hidden.
    #[error(
        "the cgroup2 tree beside version 1 could not be hidden from this process: run as root with \
         CAP_SYS_ADMIN, or unmount /sys/fs/cgroup/unified"
    )]
    Hide {
        /// The kernel's answer.
        source: io::Error,
    },
    /// A provider was asked for, and none can be used.
    #[error("the provider of remote sandboxes cannot be used: {why} ({remedy})")]
    NoProvider {
        /// Why.
        why: String,
        /// What would change that.
        remedy: String,
    },
    /// A directory of the state could not be made or used.
    #[error(
        "the state directory needs {path:?}: make it writable for root, on a file system with room"
    )]
    State {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An allowed root is missing.
    #[error(
        "the allowed root {path:?} cannot be resolved: make the directory or drop it from the configuration"
    )]
    AllowedRoot {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel's own files cannot be read.
    #[error("{path:?} cannot be read: mount /proc")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A digest of our own files could not be made.
    #[error("the base could not be described")]
    Describe(#[from] CanonicalError),
}

/// What the operator decides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostConfig {
    /// Where sandboxes, bases and the agent lie. One directory per worker deployment.
    pub state_dir: PathBuf,
    /// Host directories that tasks may be given parts of. Empty: none.
    pub allowed_roots: Vec<PathBuf>,
    /// `crun`, `runc` or an absolute path, or `docker` or `remote`; `firecracker` or `cloud-hypervisor` make
    /// the machines in QEMU's place. `None`: the best that is installed.
    pub runtime: Option<String>,
    /// Where listed names really are, like a hosts file with ports: connections to such a name go
    /// there whatever port they ask for. It opens nothing: the name must be on a phase's list.
    pub hosts: BTreeMap<String, SocketAddr>,
    /// Who holds the sandboxes, where the runtime is `remote`.
    pub remote: Option<RemoteConfig>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct HostFacts {
    /// Absolute, links resolved.
    pub state_dir: PathBuf,
    /// Where the sandboxes lie: on a tmpfs of the host, or the state directory itself.
    pub live_dir: PathBuf,
    /// Which of its directories tasks may be given parts of, and which never.
    pub allowed: Allowed,
    /// The runtime of the class `container`, or in its place the engine of the class `docker` or the provider
    /// of the class `remote`.
    pub runtime: Runtime,
    /// That provider.
    pub provider: Option<Arc<Provider>>,
    /// Every class, present or absent, in the order of [`Class::ALL`].
    pub classes: Vec<ClassFact>,
    /// What the machines of the class `microvm` are started from, where it is present.
    pub machine: Option<Machine>,
    /// Cgroup trees.
    pub cgroups: Cgroups,
    /// Kernel release.
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
    /// Host directories that `envRef: host` shows read-only at the same place.
    pub binds: Vec<PathBuf>,
    /// A directory of ours with nothing in it.
    pub empty: PathBuf,
    /// Servers that `envRef: host` has.
    pub services: Programs,
}

impl HostFacts {
    /// Whether every directory of the host may be given, as to its own admin.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.allowed.is_open()
    }

    /// What this host could not enforce in the class `container` though nobody asked for it, in words.
    #[must_use]
    pub fn weak(&self) -> Vec<String> {
        self.weak_in(Class::Container)
    }

    /// The same for any class.
    #[must_use]
    pub fn weak_in(&self, class: Class) -> Vec<String> {
        let mut weak = match class {
            Class::Gvisor => vec![gvisor::weak()],
            // What is weak here is no matter of what is elsewhere.
            Class::Remote => return remote::weak(),
            Class::Microvm => microvm::weak(self.machine.as_ref().map(|machine| &machine.accel)),
            Class::Docker => vec![format!("no user namespace: {NO_USER_NAMESPACE}")],
            Class::Container => match &self.ids {
                Ok(ids) if ids.is_owned() => Vec::new(),
                Ok(_) => vec![NOT_OWNED.to_owned()],
                Err(why) => vec![format!("no user namespace ({why}): {NO_USER_NAMESPACE}")],
            },
        };
        if class.is_on_host_kernel() && self.ceilings.tcp == Tcp::Uncounted {
            weak.push(
                "buffers of TCP connections are outside the memory limit: this kernel's cgroups of version 1 have none \
                 for them"
                    .into(),
            );
        }
        if class.is_on_host_kernel() && self.ceilings.has_large_sockets() {
            weak.push(format!(
                "unread queues of sockets are outside the memory limit, and this host lets each hold {} KiB \
                 (net.core.rmem_default)",
                self.ceilings.socket_bytes / 1024
            ));
        }
        if self.swap {
            weak.push(
                "swap is on: the writable layer may reach the swap device unencrypted".into(),
            );
        }
        if !self.private_mounts {
            weak.push(
                "no private mount namespace: mounts of a killed worker stay until the next start"
                    .into(),
            );
        }
        weak
    }
}

/// A host that can hold sandboxes.
#[derive(Debug, Clone)]
pub struct Host {
    facts: Arc<HostFacts>,
    egress: Arc<egress::Resources>,
    programs: Arc<attest::Programs>,
    images: Arc<microvm::Images>,
    pool: Arc<microvm::Pool>,
    warm: Arc<WarmPool>,
    /// Nobody asks for it; it is there.
    _dynmods: Arc<Dynmods>,
}

impl Host {
    /// Looks at the host and prepares its state directory: the base skeleton and the agent are
    /// written once, under the name of their digest. Blocking; call it at start.
    pub fn detect(config: HostConfig) -> Result<Self, HostError> {
        if !geteuid().is_root() {
            return Err(HostError::NotRoot);
        }
        let mounts = mounts::mounted().map_err(read("/proc/thread-self/mountinfo"))?;
        let cgroups = Cgroups::find(&mounts).ok_or(HostError::NoCgroups)?;
        // What makes machines is asked for beside what holds containers, of which the best is taken then.
        let kind = config.runtime.as_deref().and_then(Kind::named);
        let state_dir = state(&config.state_dir)?;
        let (runtime, provider) = match config.runtime.as_deref() {
            Some(remote::NAME) => {
                let found = remote::detect(config.remote.as_ref(), &state_dir);
                let found = found.map_err(|(why, remedy)| HostError::NoProvider { why, remedy })?;
                (found.0, Some(found.1))
            }
            _ => (choose(config.runtime.filter(|_| kind.is_none()), cgroups.mode)?, None),
        };
        let live_dir = live::prepare(&state_dir)
            .map_err(|source| HostError::State { path: state_dir.clone(), source })?;
        let never = vec![state_dir.clone(), live_dir.clone()];
        let allowed = allowed(&config.allowed_roots, never)?;
        let nofile = nofile::raise();
        let base = base::skeleton(&state_dir.join("base"))?;
        let guest = base::guest(&state_dir.join("guest"))?;
        let empty = base::empty(&state_dir.join("base"))?;
        let (machine, qemu) = match microvm::detect(&state_dir, &guest, kind) {
            Ok((machine, qemu)) => (Some(machine), Ok(qemu)),
            Err(absent) => (None, Err(absent)),
        };
        let binds = base::binds();
        let ids = IdRanges::detect(&guest, &binds, &live_dir, &runtime);
        let meminfo = text("/proc/meminfo")?;
        let facts = HostFacts {
            allowed,
            classes: class::detect(&runtime, qemu),
            machine,
            runtime,
            provider,
            kernel: uname()
                .map(|names| names.release().to_string_lossy().into_owned())
                .unwrap_or_default(),
            cpus: available_parallelism()
                .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
            mem_mb: meminfo_kb(&meminfo, "MemTotal:").unwrap_or(0) / 1024,
            pids: text("/proc/sys/kernel/pid_max")?.trim().parse().unwrap_or(32_768),
            nofile: nofile.min(MAX_NOFILE),
            nofile_most: nofile,
            ceilings: Ceilings::detect(&cgroups),
            ids,
            swap: meminfo_kb(&meminfo, "SwapTotal:").unwrap_or(0) > 0,
            large: LargeLayers::detect(&state_dir),
            private_mounts: mounts::is_private(),
            base_digest: base::tree_digest(&base)
                .map_err(|source| HostError::State { path: base.clone(), source })?,
            base,
            guest,
            binds,
            services: Programs::find(),
            empty,
            cgroups,
            state_dir,
            live_dir,
        };
        let egress = Arc::new(egress::Resources::new(config.hosts));
        Ok(Self {
            facts: Arc::new(facts),
            egress,
            programs: Arc::default(),
            images: Arc::default(),
            pool: Arc::default(),
            warm: Arc::default(),
            _dynmods: Dynmods::begin(),
        })
    }

    /// The same host for somebody who may give tasks parts of other directories.
    pub fn with_allowed_roots(&self, roots: &[PathBuf]) -> Result<Self, HostError> {
        let mut facts = self.facts().clone();
        facts.allowed = allowed(roots, facts.allowed.never().to_vec())?;
        Ok(Self { facts: Arc::new(facts), ..self.clone() })
    }

    /// The same host, once a Docker engine was looked for: whether a worker that asks for one would have
    /// the class `docker`.
    #[must_use]
    pub fn with_engine(&self) -> Self {
        let mut facts = self.facts().clone();
        for fact in facts.classes.iter_mut().filter(|fact| fact.class == Class::Docker) {
            fact.offer = match docker::detect() {
                Ok(engine) => Offer::Present(engine),
                Err((why, remedy)) => Offer::Absent { why, remedy },
            };
        }
        Self { facts: Arc::new(facts), ..self.clone() }
    }

    /// The same host where something else was found.
    #[cfg(test)]
    pub(crate) fn with_facts(&self, change: impl FnOnce(&mut HostFacts)) -> Self {
        let mut facts = self.facts().clone();
        change(&mut facts);
        Self { facts: Arc::new(facts), ..self.clone() }
    }

    /// What was found.
    #[must_use]
    pub fn facts(&self) -> &HostFacts {
        &self.facts
    }

    /// Leaves nothing of this host's memory in use: call it when the last sandbox is wiped.
    pub fn leave(&self) {
        self.warm.close(&self.facts);
        live::leave(&self.facts.state_dir, &self.facts.live_dir);
    }

    /// The base that a plan's task wants, read off the files that it is given; `None` where it asks for
    /// none. `org` is whose task it is.
    pub async fn cache_wanted(
        &self,
        plan: &Plan,
        inputs: &[Input],
        org: &TenantId,
    ) -> Result<Option<CacheWanted>, PlanError> {
        if plan.cache.is_none() {
            return Ok(None);
        }
        let (facts, plan, inputs) = (self.shared(), plan.clone(), inputs.to_vec());
        let org = org.clone();
        blocking(move || cache::identify(&plan, &inputs, &facts, &org)).await
    }

    pub(crate) fn programs(&self) -> &attest::Programs {
        &self.programs
    }

    /// Says whether this worker is in doubt that its tasks are still its own: then names of the exec
    /// phase are cut off on this host, until it is not.
    pub fn doubt(&self, is_in_doubt: bool) {
        self.egress.doubt(is_in_doubt);
    }

    pub(crate) fn egress(&self) -> &egress::Resources {
        &self.egress
    }

    pub(crate) fn images(&self) -> Arc<microvm::Images> {
        Arc::clone(&self.images)
    }

    /// Has a machine wait for a sandbox like this plan's, if its class is one that profits, and returns when
    /// it does: seconds. Whether one waits now. Without this the first sandbox of a shape has it made.
    pub async fn warm(&self, plan: &Plan) -> bool {
        WarmPool::ready(&self.warm, self.pool(), plan, self.shared()).await
    }

    pub(crate) fn warm_pool(&self) -> Arc<WarmPool> {
        Arc::clone(&self.warm)
    }

    pub(crate) fn pool(&self) -> Arc<microvm::Pool> {
        Arc::clone(&self.pool)
    }

    pub(crate) fn shared(&self) -> Arc<HostFacts> {
        Arc::clone(&self.facts)
    }
}

fn choose(wanted: Option<String>, mode: CgroupMode) -> Result<Runtime, HostError> {
    if wanted.as_deref() == Some(docker::NAME) {
        return docker::detect().map_err(|(why, remedy)| HostError::NoEngine { why, remedy });
    }
    let mut found = Runtime::find(wanted.as_deref()).peekable();
    if found.peek().is_none() {
        drop(found);
        return Err(HostError::NoRuntime { wanted });
    }
    found
        .find(|runtime| mode != CgroupMode::Hybrid || runtime.name != "crun")
        .ok_or(HostError::Hybrid)
}

fn state(dir: &Path) -> Result<PathBuf, HostError> {
    let fault = |path: &Path| {
        let path = path.to_owned();
        move |source| HostError::State { path, source }
    };
    fs::create_dir_all(dir).map_err(fault(dir))?;
    let dir = fs::canonicalize(dir).map_err(fault(dir))?;
    for name in ["base", "guest"].map(|name| dir.join(name)) {
        fs::create_dir_all(&name).map_err(fault(&name))?;
    }
    hostpath::mark(&dir).map_err(fault(&dir))?;
    Ok(dir)
}

fn allowed(roots: &[PathBuf], never: Vec<PathBuf>) -> Result<Allowed, HostError> {
    Allowed::new(roots, never).map_err(|(path, source)| HostError::AllowedRoot { path, source })
}

fn read(path: &str) -> impl FnOnce(io::Error) -> HostError {
    let path = PathBuf::from(path);
    move |source| HostError::Read { path, source }
}

fn text(path: &str) -> Result<String, HostError> {
    fs::read_to_string(path).map_err(read(path))
}

fn meminfo_kb(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}
