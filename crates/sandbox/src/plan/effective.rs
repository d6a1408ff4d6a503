//! What of a request will be enforced: the half of a sandbox's record that the plan knows. Pure.

use cofferdam_contracts::sandbox::{EffectivePolicy, Egress, Limits, SandboxRequest};
use cofferdam_contracts::user::EffectiveUser;
use cofferdam_guest::wire::User;

use crate::class;
use crate::host::runtime::Runtime;
use crate::images::ImageRoot;
use crate::spec::class::Class;
use crate::spec::command::Command;
use crate::spec::facts::HostFacts;

/// The policy of a sandbox of this class that runs this task.
pub(crate) fn of(
    request: &SandboxRequest,
    facts: &HostFacts,
    image: Option<&ImageRoot>,
    class: Class,
    runtime: &Runtime,
    limits: Limits,
    task: &Command,
) -> EffectivePolicy {
    let user = |User { uid, gid }| EffectiveUser { uid, gid, groups: task.groups.clone() };
    EffectivePolicy {
        isolation_class: class.strength(),
        runtime: runtime.name.clone(),
        runtime_version: runtime.version.clone(),
        kernel: class::of(class).profile.kernel(facts),
        image: match (&facts.provider, image) {
            (Some(provider), _) => format!("template:{}", provider.template),
            (None, Some(image)) => image.pinned.clone(),
            (None, None) => request.env_ref.clone(),
        },
        user: task.user.map(user),
        limits,
        timeout_ms: request.timeout_ms,
        egress: request.egress.clone(),
        granted: Vec::new(),
        build_egress: request.build.as_ref().map_or(Egress::None, |build| build.egress.clone()),
        cache: None,
        weak: facts.weak_in(class),
    }
}
