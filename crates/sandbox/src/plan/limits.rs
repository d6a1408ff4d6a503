//! The limits of a sandbox: merged, held against the machine and the class, and which writable layers are too large for memory. Pure.

use cofferdam_contracts::sandbox::{
    DEFAULT_PIDS, Limits, MAX_STREAM_BYTES, MIN_NOFILE, SandboxRequest,
};

use crate::class::{ClassProfile, Isolation, Snapshots};
use crate::host::crypt::LargeLayers;
use crate::oci::Nofile;
use crate::spec::facts::HostFacts;
use crate::spec::refuse::{Check, PlanError, require, within};

/// A layer of this size lies in memory even on the largest host: beyond it, a few tasks that fill theirs
/// would push out everybody else's pages, while writing 4 GiB to a disk is no longer what a short task
/// waits for.
pub(crate) const MAX_MEMORY_LAYER_MB: u64 = 4_096;
/// And never more than this part of the host's memory, for the same reason on a small one.
const MEMORY_SHARE: u64 = 2;
/// The field that its size is asked for in.
const FIELD: &str = "limits.diskMB";

/// Limits and open files of one plan, checked against host and class.
pub(crate) struct PlannedLimits {
    /// Those that the class enforces.
    pub limits: Limits,
    /// Open files of each process.
    pub nofile: Nofile,
    /// Whether the writable layer lies encrypted on disk.
    pub is_large: bool,
}

/// The limits that a request gets in this class, which refuses here whatever else it cannot enforce.
pub(crate) fn of(
    request: &SandboxRequest,
    facts: &HostFacts,
    class: Isolation,
) -> Result<PlannedLimits, PlanError> {
    let Isolation { profile, snapshots, .. } = class;
    let asked = merged(request)?;
    enforceable(request, asked, facts, profile)?;
    let is_large = is_large(profile, asked, facts);
    let limits = beside_programs(snapshots, profile.limits(asked, facts), is_large);
    let roomy = || Nofile::roomy(limits.nofile.unwrap_or(facts.nofile));
    let nofile = asked.nofile.map_or_else(roomy, Nofile::exact);
    Ok(PlannedLimits { limits, nofile, is_large })
}

/// Merges the two places that may set limits.
fn merged(request: &SandboxRequest) -> Result<Limits, PlanError> {
    let spec = request.spec.as_ref().and_then(|spec| spec.limits).unwrap_or_default();
    let asked = request.limits;
    Ok(Limits {
        cpu: one_of("spec.limits.cpu", asked.cpu, spec.cpu)?,
        mem_mb: one_of("spec.limits.mem_mb", asked.mem_mb, spec.mem_mb)?,
        pids: one_of("spec.limits.pids", asked.pids, spec.pids)?,
        disk_mb: one_of("spec.limits.disk_mb", asked.disk_mb, spec.disk_mb)?,
        output_bytes: one_of("spec.limits.output_bytes", asked.output_bytes, spec.output_bytes)?,
        nofile: one_of("spec.limits.nofile", asked.nofile, spec.nofile)?,
    })
}

fn one_of<T: PartialEq>(field: &str, a: Option<T>, b: Option<T>) -> Result<Option<T>, PlanError> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => Err(PlanError::new(field, "differs from limits")),
        (Some(value), _) | (None, Some(value)) => Ok(Some(value)),
        (None, None) => Ok(None),
    }
}

/// Holds limits against the machine and the class.
fn enforceable(
    request: &SandboxRequest,
    merged: Limits,
    facts: &HostFacts,
    profile: &dyn ClassProfile,
) -> Check {
    if let Some(cpu) = merged.cpu {
        let most = f64::from(facts.cpus);
        let message = format!("must be 0.01 to {most}, the CPUs of this host");
        require((0.01..=most).contains(&cpu), "limits.cpu", &message)?;
    }
    let least = profile.least_mem_mb();
    within("limits.memMB", merged.mem_mb, least, facts.mem_mb, "MiB of this host")?;
    profile.refuse(request, merged, facts)?;
    within("limits.pids", merged.pids, 1, facts.pids, "processes of this host")?;
    sized(profile, merged, facts)?;
    let (most, of) = (MAX_STREAM_BYTES, "bytes of a stream that a host keeps");
    within("limits.outputBytes", merged.output_bytes, 1, most, of)?;
    within(
        "limits.nofile",
        merged.nofile,
        MIN_NOFILE,
        facts.nofile_most,
        "hard limit of this host",
    )?;
    if profile.class().is_on_host_kernel() {
        let most = facts.ceilings.nofile(merged.pids.unwrap_or(DEFAULT_PIDS));
        let message = format!(
            "must be at most {most} for each of so many processes (limits.pids): together they may have half of the \
             files that this host's kernel opens (fs.file-max)"
        );
        require(merged.nofile.is_none_or(|asked| asked <= most), "limits.nofile", &message)?;
    }
    for (controller, field) in
        [("memory", "limits.memMB"), ("pids", "limits.pids"), ("cpu", "limits.cpu")]
    {
        let message = format!("the cgroup controller `{controller}` is not available on this host");
        require(facts.cgroups.has(controller), field, &message)?;
    }
    Ok(())
}

/// The largest layer that lies in memory, in MiB.
pub(crate) fn memory_most_mb(facts: &HostFacts) -> u64 {
    MAX_MEMORY_LAYER_MB.min(facts.mem_mb / MEMORY_SHARE)
}

/// Whether a layer of this size is an encrypted one. Pure.
fn is_large(profile: &dyn ClassProfile, limits: Limits, facts: &HostFacts) -> bool {
    profile.has_large_layers() && limits.disk_mb.is_some_and(|mb| mb > memory_most_mb(facts))
}

/// Refuses a size that this host cannot hold in that class. Pure.
fn sized(profile: &dyn ClassProfile, limits: Limits, facts: &HostFacts) -> Check {
    let Some(disk_mb) = limits.disk_mb else { return Ok(()) };
    let in_memory = memory_most_mb(facts);
    let most = match (&facts.large, profile.has_large_layers()) {
        (LargeLayers::Present { most_mb, .. }, true) => in_memory.max(*most_mb),
        (LargeLayers::Absent { .. }, true) => in_memory,
        _ => facts.mem_mb,
    };
    if (1..=most).contains(&disk_mb) {
        return Ok(());
    }
    let of = match (&facts.large, profile.has_large_layers()) {
        (LargeLayers::Absent { why, remedy }, true) => format!(
            "MiB of a layer in memory; a larger one is encrypted on disk, which this host cannot do: \
             {why} ({remedy})"
        ),
        (LargeLayers::Present { .. }, true) => {
            "MiB of the state directory's file system".to_owned()
        }
        _ => "MiB of this host's memory".to_owned(),
    };
    Err(PlanError::new(FIELD, format!("must be 1 to {most}, the {of}")))
}

/// Files that lie in memory have at most three quarters of it: a layer as large as its sandbox's memory would never be full, because
/// the kernel ends a program first. So who fills it reads ENOSPC. Pure.
fn beside_programs(snapshots: &dyn Snapshots, limits: Limits, is_large: bool) -> Limits {
    let is_in_memory = snapshots.keeps_files() && !snapshots.has_layer_inside() && !is_large;
    match (limits.disk_mb, limits.mem_mb) {
        (Some(disk_mb), Some(mem_mb)) if is_in_memory => {
            Limits { disk_mb: Some(disk_mb.min(mem_mb - mem_mb / 4).max(1)), ..limits }
        }
        _ => limits,
    }
}
