//! What a class is: whether a host has it, what it enforces, and what the plan and the record say of it.

use std::path::PathBuf;

use cofferdam_contracts::sandbox::{
    DEFAULT_DISK_MB, DEFAULT_MEM_MB, DEFAULT_PIDS, Limits, MAX_STREAM_BYTES, SandboxRequest,
};
use cofferdam_contracts::session::HardwareIsolation;

use crate::class::detect::HostRuntimes;
use crate::host::base::Base;
use crate::host::cgroup::CgroupMode;
use crate::host::runtime::Runtime;
use crate::spec::class::{Class, Offer};
use crate::spec::facts::HostFacts;
use crate::spec::refuse::Check;

/// The agent, a shell and a program of some size.
const MIN_MEM_MB: u64 = 16;

/// What a class is. Each says itself what it refuses and in what it is weak: nobody else would notice.
pub(crate) trait ClassProfile: Sync {
    /// The class that this implements.
    fn class(&self) -> Class;

    /// Whether this host has it, by what was found at start. Blocking.
    fn detect(&self, found: &HostRuntimes<'_>) -> Offer;

    /// What it enforces less well than could be thought, in words.
    fn weak(&self, facts: &HostFacts) -> Vec<String>;

    /// Whether the processor keeps its sandboxes apart from this host, as far as that was tried.
    fn hardware(&self, _facts: &HostFacts) -> HardwareIsolation {
        HardwareIsolation::No
    }

    /// Whether weaknesses of the host's kernel and mounts are the sandbox's too.
    fn shares_weaknesses(&self) -> bool {
        true
    }

    /// Refuses by its field what this class cannot enforce; `asked` are the limits, merged.
    fn refuse(&self, request: &SandboxRequest, asked: Limits, facts: &HostFacts) -> Check;

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

    /// Whether its root file system is one that this host can read, and so has names of users.
    fn reads_root(&self) -> bool {
        true
    }

    /// The kernel under the task, for the record.
    fn kernel(&self, facts: &HostFacts) -> String {
        facts.kernel.clone()
    }

    /// Whether its sandboxes have 65,536 user ids of this host's and no other.
    fn has_own_ids(&self, _facts: &HostFacts) -> bool {
        false
    }

    /// Why services have no roots of their own in its sandboxes, if so.
    fn rootless(&self, _facts: &HostFacts) -> Option<String> {
        let class = self.class().as_str();
        Some(format!(
            "a sandbox of the class `{class}` runs no services from images, `container` does: take the service from the task's own \
             image, with `cmd`"
        ))
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
