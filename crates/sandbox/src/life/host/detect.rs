//! Looking at a host, once, at start.

use cofferdam_ambient::own;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;

use nix::sys::utsname::uname;
use nix::unistd::geteuid;

use super::{Host, HostConfig};
use crate::class::{self, HostRuntimes, docker, remote};
use crate::egress;
use crate::host::agents::agents_dir;
use crate::host::ceiling::Ceilings;
use crate::host::cgroup::{CgroupMode, Cgroups};
use crate::host::crypt::LargeLayers;
use crate::host::dynmods::Dynmods;
use crate::host::error::HostError;
use crate::host::hostpath::{self, AllowedPaths};
use crate::host::idrange::IdRanges;
use crate::host::runtime::Runtime;
use crate::host::weight::Weights;
use crate::host::{base, live, mounts, nofile};
use crate::life::machines::Machines;
use crate::machine;
use crate::machine::monitor::Kind;
use crate::spec::facts::HostFacts;
use crate::spec::service::Programs;

/// Open files of a task: what the host's hard limit allows, but not more than a server needs.
const MAX_NOFILE: u64 = 65_536;

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
        own::declare(&state_dir);
        own::declare(&live_dir);
        let never = vec![state_dir.clone(), live_dir.clone()];
        let allowed = allowed(&config.allowed_roots, never)?;
        let allowed = allowed.with_programs(agents_dir(&state_dir));
        let nofile = nofile::raise();
        let base = base::skeleton(&state_dir.join("base"))?;
        let guest = base::guest(&state_dir.join("guest"))?;
        let polling_guest = base::polling_guest(&state_dir.join("guest"))?;
        let empty = base::empty(&state_dir.join("base"))?;
        let (machine, qemu) = match machine::detect(&state_dir, &guest, kind) {
            Ok((machine, qemu)) => (Some(machine), Ok(qemu)),
            Err(absent) => (None, Err(absent)),
        };
        let binds = base::binds();
        let ids = IdRanges::detect(&guest, &binds, &live_dir, &runtime);
        let meminfo = text("/proc/meminfo")?;
        let facts = HostFacts {
            allowed,
            classes: class::detect(&HostRuntimes { holder: &runtime, machine: &qemu }),
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
            base_digest: base::watched_digest(&base)
                .map_err(|source| HostError::State { path: base.clone(), source })?,
            base,
            guest,
            polling_guest,
            binds,
            services: Programs::find(),
            empty,
            cgroups,
            state_dir,
            live_dir,
        };
        let egress = Arc::new(egress::Resources::new(config.hosts));
        let weights = Weights::begin(&facts.cgroups, facts.cpus);
        Ok(Self {
            facts: Arc::new(facts),
            weights,
            egress,
            programs: Arc::default(),
            machines: Machines::default(),
            waits: Arc::default(),
            unwanted: crate::life::discard::DiscardRegistry::default(),
            ahead: crate::life::container_pool::EarlyMarks::default(),
            _dynmods: Dynmods::begin(),
        })
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

pub(super) fn allowed(roots: &[PathBuf], never: Vec<PathBuf>) -> Result<AllowedPaths, HostError> {
    AllowedPaths::new(roots, never)
        .map_err(|(path, source)| HostError::AllowedRoot { path, source })
}

fn read(path: &str) -> impl FnOnce(io::Error) -> HostError {
    let path = PathBuf::from(path);
    move |source| HostError::Read { path, source }
}

fn text(path: &str) -> Result<String, HostError> {
    fs::read_to_string(path).map_err(read(path))
}

/// Whether this host's kernel may move memory to a disk now. `true` where it does not say.
#[must_use]
pub fn has_swap() -> bool {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    meminfo_kb(&meminfo, "SwapTotal:") != Some(0)
}

fn meminfo_kb(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}
