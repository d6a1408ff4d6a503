//! How a sandbox sees its cached directories.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::store::CacheBase;
use crate::input::Resolved;
use crate::mounts::overlay_options;
use crate::oci;
use crate::plan::Plan;

/// Where the build's own writes to the cached directories lie, on the host: in the layer.
pub(crate) fn fresh(layer: &Path, dirs: usize) -> Vec<PathBuf> {
    (0..dirs).map(|index| layer.join(format!("cache-{index}")).join("upper")).collect()
}

/// With a base, each directory is that base below the task's own layer; without one it is a place in
/// that layer. Last of all mounts: a cached directory may lie in one that is given.
pub(crate) fn mount(resolved: &mut Resolved<'_>, plan: &Plan, base: Option<&CacheBase>) {
    let Some(planned) = &plan.cache else { return };
    let uppers = fresh(&plan.traces.layer, planned.dirs.len());
    for (index, (target, upper)) in planned.dirs.iter().zip(uppers).enumerate() {
        match base.and_then(|base| base.layer(index)) {
            Some(lower) => {
                let work = plan.traces.layer.join(format!("cache-{index}")).join("work");
                let options = overlay_options(&[lower], &upper, &work);
                resolved.mounts.push(oci::overlay(target, &options));
                resolved.dirs.push(work);
            }
            None => resolved.mounts.push(json!({
                "destination": target, "type": "bind", "source": upper,
                "options": ["bind", "rw", "nosuid", "nodev"],
            })),
        }
        resolved.dirs.push(upper);
    }
}
