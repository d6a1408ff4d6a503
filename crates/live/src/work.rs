//! From a request to the work of a task. Pure.

use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::live::{LiveRequest, LiveWork};
use cofferdam_contracts::sandbox::{
    DEFAULT_MEM_MB, IsolationSpec, MAX_TIMEOUT_MS, SandboxRequest, SandboxSpec,
};

use crate::template::resolved_template::ResolvedTemplate;

/// Processes and threads: a shell with a server and its workers needs more than one command does.
const PIDS: u64 = 1_024;
/// The root of a sandbox without a template's image: the host's programs.
const HOST: &str = "host";

/// What is asked of the sandbox, of this template where one was built. Its command is never run, and its environment is not written anywhere.
pub(crate) fn request(asked: &LiveRequest, template: &ResolvedTemplate) -> SandboxRequest {
    let mut limits = asked.limits;
    // A template says what its program needs at least.
    limits.mem_mb = limits.mem_mb.max(template.mem_mb);
    limits.cpu = template.cpu.map(f64::from).or(limits.cpu);
    let root =
        template.image.as_ref().map_or_else(|| HOST.to_owned(), |image| format!("image:{image}"));
    limits.pids = limits.pids.or(Some(PIDS));
    // The layer is memory: one as large as the limit would, once full, have the kernel end the agent too.
    let mem_mb = limits.mem_mb.unwrap_or(DEFAULT_MEM_MB);
    limits.disk_mb = limits.disk_mb.or(Some(mem_mb / 4 * 3));
    let isolation = asked.class_min.map(|class_min| IsolationSpec { class_min });
    let spec = isolation.map(|_| SandboxSpec { isolation, ..SandboxSpec::default() });
    SandboxRequest {
        limits,
        egress: asked.egress.clone(),
        spec,
        ..SandboxRequest::plain(&root, vec!["/bin/true".to_owned()], MAX_TIMEOUT_MS)
    }
}

/// The work of the task that holds it.
pub(crate) fn of(live: &LiveId, request: SandboxRequest) -> LiveWork {
    LiveWork { live: live.clone(), request }
}
