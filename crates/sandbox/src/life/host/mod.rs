//! What this host is: looked at once, at start, and a value ever after.

mod config;
mod detect;
mod plan;

use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_contracts::id::{SandboxId, TenantId};

use crate::cache::{self, BaseRequest};
use crate::class::docker;
use crate::egress;
use crate::host::dynmods::Dynmods;
use crate::host::error::HostError;
use crate::host::task::blocking;
use crate::host::traces::Traces;
use crate::host::weight::Weights;
use crate::host::{idrange, live};
use crate::life::attest;
use crate::life::container_pool::{ContainerPool, EarlyMarks};
use crate::life::discard::{DiscardGuard, DiscardRegistry};
use crate::life::machines::Machines;
use crate::life::names::SandboxNames;
use crate::spec::class::{Class, Offer};
use crate::spec::facts::HostFacts;
use crate::spec::input::Input;
use crate::spec::plan::Plan;
use crate::spec::refuse::PlanError;
use detect::allowed;

pub use config::HostConfig;
pub use detect::has_swap;
pub use plan::plan_with;

/// A host that can hold sandboxes.
#[derive(Debug, Clone)]
pub struct Host {
    facts: Arc<HostFacts>,
    egress: Arc<egress::Resources>,
    programs: Arc<attest::ProgramDigests>,
    machines: Machines,
    waits: Arc<ContainerPool>,
    ahead: EarlyMarks,
    unwanted: DiscardRegistry,
    weights: Weights,
    /// Nobody asks for it; it is there.
    _dynmods: Arc<Dynmods>,
}

impl Host {
    /// Discards a sandbox that begins, for as long as the value lives: where it can be, it ends before it has begun.
    pub fn discard(&self, id: &SandboxId) -> DiscardGuard {
        self.unwanted.discard(id)
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }

    pub(crate) fn unwanted(&self) -> &DiscardRegistry {
        &self.unwanted
    }

    /// The same host for somebody who may give tasks parts of other directories.
    pub fn with_allowed_roots(&self, roots: &[PathBuf]) -> Result<Self, HostError> {
        let mut facts = self.facts().clone();
        facts.allowed = allowed(roots, facts.allowed.never().to_vec())?;
        Ok(Self { facts: Arc::new(facts), ..self.clone() })
    }

    /// The same host, once a Docker engine was looked for: whether a worker that asks for one would have
    /// the class `docker`.
    #[must_use]
    pub fn with_engine(&self) -> Self {
        let mut facts = self.facts().clone();
        for fact in facts.classes.iter_mut().filter(|fact| fact.class == Class::Docker) {
            fact.offer = match docker::detect() {
                Ok(engine) => Offer::Present(engine),
                Err((why, remedy)) => Offer::Absent { why, remedy },
            };
        }
        Self { facts: Arc::new(facts), ..self.clone() }
    }

    /// The same host where something else was found.
    #[cfg(test)]
    pub(crate) fn with_facts(&self, change: impl FnOnce(&mut HostFacts)) -> Self {
        let mut facts = self.facts().clone();
        change(&mut facts);
        Self { facts: Arc::new(facts), ..self.clone() }
    }

    /// The same host whose waiting container goes sooner.
    #[cfg(test)]
    pub(crate) fn with_waits(&self, waits: ContainerPool) -> Self {
        Self { waits: Arc::new(waits), ..self.clone() }
    }

    /// What was found.
    #[must_use]
    pub fn facts(&self) -> &HostFacts {
        &self.facts
    }

    /// The user ids that a sandbox had are nobody's: what was left of its files is not there any more.
    pub fn forget_ids(&self, id: &SandboxId) {
        let Traces { dir, .. } = Traces::of(&self.facts.state_dir, &self.facts.live_dir, id);
        idrange::give_back(&dir, None);
    }

    /// Leaves nothing of this host's memory in use: call it when the last sandbox is wiped.
    pub fn leave(&self) {
        self.machines.warm().close(&self.facts);
        self.waits.close(&self.facts);
        live::leave(&self.facts.state_dir, &self.facts.live_dir);
    }

    /// The base that a plan's task wants, read off the files that it is given; `None` where it asks for
    /// none. `org` is whose task it is.
    pub async fn base_request(
        &self,
        plan: &Plan,
        inputs: &[Input],
        org: &TenantId,
    ) -> Result<Option<BaseRequest>, PlanError> {
        if plan.cache.is_none() {
            return Ok(None);
        }
        let (facts, plan, inputs) = (self.shared(), plan.clone(), inputs.to_vec());
        let org = org.clone();
        blocking(move || cache::identify(&plan, &inputs, &facts, &org)).await
    }

    pub(crate) fn programs(&self) -> &attest::ProgramDigests {
        &self.programs
    }

    /// Says whether this worker is in doubt that its tasks are still its own: then names of the exec
    /// phase are cut off on this host, until it is not.
    pub fn doubt(&self, is_in_doubt: bool) {
        self.egress.doubt(is_in_doubt);
    }

    pub(crate) fn egress(&self) -> Arc<egress::Resources> {
        Arc::clone(&self.egress)
    }

    pub(crate) fn machines(&self) -> &Machines {
        &self.machines
    }

    /// The names of sandboxes that are about to be made.
    #[must_use]
    pub fn names(&self) -> SandboxNames<'_> {
        SandboxNames::new(&self.facts.live_dir, &self.waits, &self.ahead)
    }

    pub(crate) fn waits(&self) -> Arc<ContainerPool> {
        Arc::clone(&self.waits)
    }

    pub(crate) fn shared(&self) -> Arc<HostFacts> {
        Arc::clone(&self.facts)
    }
}
