//! Which writable layers are too large for memory. Pure.

use cofferdam_contracts::sandbox::Limits;

use crate::class::{ClassProfile, Snapshots};
use crate::host::crypt::LargeLayers;
use crate::spec::facts::HostFacts;
use crate::spec::refuse::PlanError;

/// A layer of this size lies in memory even on the largest host: beyond it, a few tasks that fill theirs
/// would push out everybody else's pages, while writing 4 GiB to a disk is no longer what a short task
/// waits for.
pub(crate) const MAX_MEMORY_LAYER_MB: u64 = 4_096;
/// And never more than this part of the host's memory, for the same reason on a small one.
const MEMORY_SHARE: u64 = 2;

/// Files that lie in memory have at most three quarters of it: a layer as large as its sandbox's memory would never be full, because
/// the kernel ends a program first. So who fills it reads ENOSPC. Pure.
pub(crate) fn beside_programs(snapshots: &dyn Snapshots, limits: Limits, is_large: bool) -> Limits {
    let is_in_memory = snapshots.keeps_files() && !snapshots.has_layer_inside() && !is_large;
    match (limits.disk_mb, limits.mem_mb) {
        (Some(disk_mb), Some(mem_mb)) if is_in_memory => {
            Limits { disk_mb: Some(disk_mb.min(mem_mb - mem_mb / 4).max(1)), ..limits }
        }
        _ => limits,
    }
}

const FIELD: &str = "limits.diskMB";

/// The largest layer that lies in memory, in MiB.
pub(crate) fn memory_most_mb(facts: &HostFacts) -> u64 {
    MAX_MEMORY_LAYER_MB.min(facts.mem_mb / MEMORY_SHARE)
}

/// Whether a layer of this size is an encrypted one. Pure.
pub(crate) fn is_large(profile: &dyn ClassProfile, limits: Limits, facts: &HostFacts) -> bool {
    profile.has_large_layers() && limits.disk_mb.is_some_and(|mb| mb > memory_most_mb(facts))
}

/// Refuses a size that this host cannot hold in that class. Pure.
pub(crate) fn check(
    profile: &dyn ClassProfile,
    limits: Limits,
    facts: &HostFacts,
) -> Result<(), PlanError> {
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
