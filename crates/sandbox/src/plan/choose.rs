//! The class that a request gets. Pure.

use cofferdam_contracts::sandbox::SandboxRequest;

use crate::class::class_of;
use crate::host::runtime::Runtime;
use crate::spec::class::{Class, FIELD, Offer};
use crate::spec::facts::HostFacts;
use crate::spec::refuse::PlanError;

/// The cheapest present class that is at least as strong as the request wants. Pure.
pub(crate) fn class<'a>(
    request: &SandboxRequest,
    facts: &'a HostFacts,
) -> Result<(Class, &'a Runtime), PlanError> {
    let least = request.class_min();
    let mut missing = Vec::new();
    let holder = class_of(&facts.runtime);
    let cheapest = facts.classes.iter().filter(|fact| fact.class == holder);
    let stronger =
        facts.classes.iter().filter(|fact| fact.class != holder && !fact.class.is_on_host_kernel());
    for fact in cheapest.chain(stronger) {
        match &fact.offer {
            _ if fact.class.strength() < least => {}
            Offer::Present(runtime) => return Ok((fact.class, runtime)),
            Offer::Absent { why, remedy } => {
                missing.push(format!("{}: {why} ({remedy})", fact.class.as_str()));
            }
        }
    }
    let missing = match missing.is_empty() {
        true => "this version of Cofferdam has no class that is as strong".to_owned(),
        false => missing.join("; "),
    };
    Err(PlanError::new(FIELD, format!("this host has no class that is strong enough: {missing}")))
}
