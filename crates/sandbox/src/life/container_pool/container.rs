//! One container that waits, and what it must have in common with the sandbox that takes it.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{Limits, WipeEvidence, WipeStatus};
use serde_json::Value;

use super::REASON;
use super::claim::Claim;
use crate::host::base::Base;
use crate::host::runtime::Runtime;
use crate::host::task::blocking;
use crate::life::bare_sandbox::BareSandbox;
use crate::life::wipe;
use crate::life::wipe::WipeTarget;
use crate::oci;
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

/// A short answer of an agent that has nothing else to do.
const ANSWER_MS: u64 = 1_000;

/// All of a plan that is in force when the agent answers, but for the name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ContainerShape {
    config: Value,
    runtime: Runtime,
    base: Base,
    disk_mb: u64,
    limits: Limits,
}

impl ContainerShape {
    /// `None`: nothing of this kind waits. Whatever is unusual is made when it is asked for.
    pub fn of(plan: &Plan) -> Option<Self> {
        let is_usual = plan.isolation().launch.may_wait() && plan.host_usr && !plan.is_image;
        let is_alone = plan.mounts.is_empty() && plan.cache.is_none() && !plan.large;
        (is_usual && is_alone).then(|| Self {
            config: nameless(plan.config.clone()),
            runtime: plan.runtime.clone(),
            base: plan.base.clone(),
            disk_mb: plan.disk_mb,
            limits: plan.effective.limits,
        })
    }
}

/// A configuration without the places that a name decides.
fn nameless(mut config: Value) -> Value {
    for place in [oci::ROOT_AT, oci::CGROUP_AT] {
        if let Some(found) = config.pointer_mut(place) {
            *found = Value::Null;
        }
    }
    config
}

/// It is wiped with this value unless it was given to its sandbox.
#[derive(Debug)]
pub(super) struct WaitingContainer {
    pub(super) raised: Option<BareSandbox>,
    pub(super) subject: WipeTarget,
    pub(super) shape: ContainerShape,
    pub(super) facts: Arc<HostFacts>,
    /// Dropped after the wipe, or when its sandbox has it: that one is on record.
    pub(super) _claim: Claim,
}

impl WaitingContainer {
    pub fn id(&self) -> &SandboxId {
        &self.subject.traces.id
    }

    pub fn shape(&self) -> &ContainerShape {
        &self.shape
    }

    /// Whether its agent does.
    pub async fn answers(&self) -> bool {
        let Some(raised) = &self.raised else { return false };
        let limit = Duration::from_millis(ANSWER_MS);
        matches!(tokio::time::timeout(limit, raised.agent.health()).await, Ok(Ok(_)))
    }

    /// Gives it to its sandbox.
    pub fn give(mut self) -> Option<(BareSandbox, WipeTarget)> {
        let mut raised = self.raised.take()?;
        raised.life.was_waiting();
        Some((raised, self.subject.clone()))
    }

    /// Wipes it as a sandbox that ended.
    pub async fn end(mut self) {
        let Some(raised) = self.raised.take() else { return };
        raised.kill.kill();
        self.subject.runtime_reaped = raised.life.end().await;
        let (facts, subject) = (Arc::clone(&self.facts), self.subject.clone());
        tell(&blocking(move || wipe::destroy(&facts, &subject, REASON)).await);
    }
}

impl Drop for WaitingContainer {
    fn drop(&mut self) {
        if let Some(raised) = self.raised.take() {
            raised.kill.kill();
            drop(raised);
            tell(&wipe::destroy(&self.facts, &self.subject, REASON));
        }
    }
}

/// What is left of one that was nobody's is the next reconciler's to find.
pub(crate) fn tell(evidence: &WipeEvidence) {
    let sandbox = &evidence.sandbox_id;
    match evidence.status {
        WipeStatus::Verified => {
            tracing::debug!(%sandbox, reason = %evidence.reason, "an unused sandbox is wiped")
        }
        WipeStatus::Failed => {
            tracing::warn!(%sandbox, checks = ?evidence.checks, "an unused sandbox is not wiped")
        }
    }
}
