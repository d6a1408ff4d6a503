//! What the root of a service has beside its image: names of the loopback, and the sandbox's devices, processes and system files.
//!
//! The worker gives all of it before anything of the image runs. A link of the image is not followed: it would lead into the task's
//! root.

use std::path::Path;

use crate::host::mount_namespace::MountNamespace;
use crate::host::process::Process;
use crate::host::task::blocking;
use crate::host::tenant_root::TenantRoot;
use crate::life::error::{BootError, fault};
use crate::life::inside;
use crate::spec::plan::Plan;
use crate::spec::service::{KERNELS, root_of};

const HOSTS: &[u8] = b"127.0.0.1 localhost cofferdam\n::1 localhost cofferdam\n";

/// Makes what is mounted at and `/etc/hosts`, before the sandbox starts.
pub(super) fn prepare(tree: &TenantRoot, at: &Path) -> Result<(), BootError> {
    for name in KERNELS {
        inside::place(tree, &at.join(name))?;
    }
    let etc = inside::place(tree, &at.join("etc"))?;
    tree.put(&etc, "hosts", HOSTS).map_err(fault("writing the hosts of", at))
}

/// Shows a plan's services what the kernel shows the sandbox, whose first process this is.
pub(super) async fn show_kernel(init: Option<Process>, plan: &Plan) -> Result<(), BootError> {
    let roots = plan.services.iter().filter(|service| service.root().is_some());
    let roots: Vec<String> = roots.map(|service| root_of(&service.name)).collect();
    if roots.is_empty() {
        return Ok(());
    }
    let init = init.ok_or(BootError::Unobserved)?;
    let shown = blocking(move || MountNamespace::of(init)?.repeat(&KERNELS, &roots)).await;
    shown.map_err(fault("mounting for the services in", &plan.traces.root))
}
