//! How a sandbox sees its cached directories.

use std::path::{Path, PathBuf};

use super::store::CacheBase;
use crate::hostpath::Place;
use crate::input::Resolved;
use crate::microvm;
use crate::oci;
use crate::plan::Plan;

/// Where the build's own writes to the cached directories lie, on the host: in the layer.
pub(crate) fn fresh(layer: &Path, dirs: usize) -> Vec<PathBuf> {
    (0..dirs).map(|index| upper(&place(layer, index))).collect()
}

/// With a base, each directory is that base below the task's own layer; without one it is a place in
/// that layer, which a machine has inside. Last of all mounts: a cached directory may lie in one that is given.
pub(crate) fn mount(resolved: &mut Resolved<'_>, plan: &Plan, base: Option<&CacheBase>) {
    let Some(planned) = &plan.cache else { return };
    for (index, target) in planned.dirs.iter().enumerate() {
        let place = place(&plan.traces.layer, index);
        match base.and_then(|base| base.layer(index)) {
            Some(lower) => resolved.copied_on_write(plan, target, Place::Ours(lower), &place),
            None if plan.backend.is_machine() => {
                let shown = microvm::changes_at(resolved.given.len());
                resolved.given.push(microvm::own(target, shown.clone()));
                resolved.fresh.push(shown);
            }
            None => {
                let upper = upper(&place);
                resolved.mounts.push(oci::bind_writable(&upper, target));
                resolved.dirs.push(upper);
            }
        }
    }
}

fn place(layer: &Path, index: usize) -> PathBuf {
    layer.join(format!("cache-{index}"))
}

fn upper(place: &Path) -> PathBuf {
    place.join("upper")
}
