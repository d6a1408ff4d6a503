//! A sandbox among the others of its host.

use cofferdam_contracts::id::TenantId;

use super::host::Host;
use super::sandbox::Sandbox;

impl Host {
    /// Has a sandbox weigh as one of its tenant's, for as long as it is there. One on another host weighs nothing here.
    pub fn weigh(&self, sandbox: &mut Sandbox, tenant: &TenantId) {
        if sandbox.subject.observed.is_some() {
            let cpu = sandbox.effective.limits.cpu;
            sandbox.weight = self.weights().enter(tenant, &sandbox.subject.traces, cpu);
        }
    }
}
