//! How a sandbox sees its cached directories.

use std::path::{Path, PathBuf};

use crate::cache::CacheBase;
use crate::class::input_mounts::ResolvedInputs;
use crate::host::hostpath::HostSource;
use crate::spec::plan::Plan;

/// Where the build's own writes to the cached directories lie, on the host: in the layer.
pub(crate) fn fresh(layer: &Path, dirs: usize) -> Vec<PathBuf> {
    (0..dirs).map(|index| upper(&place(layer, index))).collect()
}

/// With a base, each directory is that base below the task's own layer; without one it is a place in
/// that layer, which a machine has inside. Last of all mounts: a cached directory may lie in one that is given.
pub(crate) fn mount(resolved: &mut ResolvedInputs<'_>, plan: &Plan, base: Option<&CacheBase>) {
    let Some(planned) = &plan.cache else { return };
    for (index, target) in planned.dirs.iter().enumerate() {
        let place = place(&plan.traces.layer, index);
        match base.and_then(|base| base.layer(index)) {
            Some(lower) => {
                resolved.show_on_write(plan, HostSource::Ours(lower), target, &place);
            }
            None => resolved.show_own(target, &upper(&place)),
        }
    }
}

fn place(layer: &Path, index: usize) -> PathBuf {
    layer.join(format!("cache-{index}"))
}

fn upper(place: &Path) -> PathBuf {
    place.join("upper")
}
