//! How a sandbox of a class sees what it is given of the host.

use std::path::Path;

use cofferdam_contracts::sandbox::AccessMode;

use crate::agent::changes::Changed;
use crate::class::shown::{NotGiven, Resolved};
use crate::host::hostpath::Place;
use crate::oci;
use crate::spec::plan::Plan;

/// How a configuration shows the host's `/usr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShowsHost {
    /// Not at all: it is in the root before the runtime starts ([`super::Footing::apart`]).
    InRoot,
    /// Overlays among the mounts of the configuration.
    Overlays,
    /// Binds: another kernel stands between the task and the host's files.
    Binds,
}

/// How paths of the host get into a sandbox. The plans are of this class. By default a runtime of this
/// host binds each place.
pub(crate) trait InputMounts: Sync {
    /// How the directories of the host are shown in a sandbox of `envRef: host`.
    fn shows_host(&self) -> ShowsHost {
        ShowsHost::Binds
    }

    /// Whether a path of the host is given with this access.
    fn gives(&self, access: AccessMode) -> Result<(), NotGiven>;

    /// Shows a path of the host read-only.
    fn show(&self, resolved: &mut Resolved<'_>, plan: &Plan, source: Place, target: &str) {
        resolved.bound(plan, source, target, plan.class.is_on_host_kernel());
    }

    /// Shows a file of ours.
    fn show_ours<'a>(
        &self,
        resolved: &mut Resolved<'a>,
        plan: &Plan,
        file: &Path,
        target: &'a str,
    ) {
        self.show(resolved, plan, Place::Ours(file.to_owned()), target);
    }

    /// Shows a directory of the host copy-on-write, with its changes in a place of the layer.
    fn show_on_write(
        &self,
        resolved: &mut Resolved<'_>,
        plan: &Plan,
        lower: Place,
        target: &str,
        place: &Path,
    ) {
        resolved.overlaid(plan, target, lower, place);
    }

    /// The same of a directory whose changes a person may look at afterwards.
    fn show_tree(&self, resolved: &mut Resolved<'_>, plan: &Plan, lower: Place, target: &str) {
        let place = plan.traces.layer.join(format!("tree-{}", resolved.dirs.len()));
        let (upper, merged) = (place.join("upper"), place.join("merged"));
        resolved.trees.push((target.to_owned(), Changed::Host { upper, merged }));
        self.show_on_write(resolved, plan, lower, target, &place);
        if let Some(overlay) = resolved.overlays.last_mut() {
            overlay.moves = true;
        }
    }

    /// Shows an empty directory of the sandbox's own, which lies at a place of the layer and is kept for others.
    fn show_own(&self, resolved: &mut Resolved<'_>, target: &str, place: &Path) {
        resolved.mounts.push(oci::bind_writable(place, target));
        resolved.dirs.push(place.to_owned());
    }
}
