//! Having a container made for the next sandbox, and wiping what nobody took.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_ambient::random;
use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::id::SandboxId;

use super::claim::Claim;
use super::container::{ContainerShape, WaitingContainer, tell};
use super::{ContainerOwner, ContainerPool, ContainerSlot};
use crate::class::input_mounts::ResolvedInputs;
use crate::host::setid::SetidScan;
use crate::host::task::blocking;
use crate::life::boot::{BootParts, bring_up};
use crate::life::host::Host;
use crate::life::intake::Intake;
use crate::life::sandbox::Sandbox;
use crate::life::warm::WarmPool;
use crate::life::wipe::{self, WipeTarget};
use crate::spec::plan::Plan;

impl Host {
    /// A sandbox of this plan was begun: where it has the shape of the one before and nothing was mounted in it, a
    /// container waits for the next.
    pub fn expect(&self, plan: &Plan, begun: &Sandbox) {
        expect_like(self, plan, begun.is_bare);
    }

    /// Has a machine or a container wait for a sandbox like this plan's, if it is one that profits, and returns when
    /// it does: seconds for a machine. Whether one waits now. Without this earlier sandboxes of its shape have it made.
    pub async fn warm(&self, plan: &Plan) -> bool {
        container_waits(self, plan).await
            || WarmPool::ready(&self.machines().warm(), self.machines().pool(), plan, self.shared())
                .await
    }
}

pub(super) fn expect_like(host: &Host, plan: &Plan, is_bare: bool) {
    let (shape, waits) = (ContainerShape::of(plan).filter(|_| is_bare), host.waits());
    let is_promised = {
        let mut state = waits.lock();
        state.busy = Some(Stopwatch::start());
        let is_same = shape.is_some() && state.last == shape;
        state.last.clone_from(&shape);
        is_same && state.promise()
    };
    if let (true, Some(shape)) = (is_promised, shape) {
        tokio::spawn(fill(host.clone(), plan.clone(), shape));
    }
}

/// Has a container made for a sandbox like this plan's, and waits until it was tried. Whether one waits now.
async fn container_waits(host: &Host, plan: &Plan) -> bool {
    let this = host.waits();
    let Some(shape) = ContainerShape::of(plan) else { return false };
    if this.lock().promise() {
        tokio::spawn(fill(host.clone(), plan.clone(), shape.clone()));
    }
    loop {
        // Before the look, so that nothing is missed between it and the wait.
        let settled = this.settled.notified();
        match &this.lock().place {
            ContainerSlot::Promised | ContainerSlot::Making(_) => {}
            ContainerSlot::Waits(standing) => return *standing.shape() == shape,
            _ => return false,
        }
        settled.await;
    }
}

/// Keeps a promise, and wipes what nobody took.
async fn fill(host: Host, plan: Plan, shape: ContainerShape) {
    let waits = host.waits();
    loop {
        let restless = waits.lock().restless();
        let Some(left) = restless else { break };
        clock::sleep(left).await;
    }
    let made = make(&host, &waits, plan, shape).await;
    let name = {
        let mut state = waits.lock();
        match made {
            // Its value wipes it.
            Ok(_) if state.closed => None,
            Ok(standing) => {
                let id = standing.id().clone();
                state.place = ContainerSlot::Waits(Box::new(standing));
                Some(id)
            }
            Err(why) => {
                tracing::warn!(
                    why,
                    "no container waits for its sandbox: the next one is made when it is asked for"
                );
                state.place = ContainerSlot::Failed(Stopwatch::start());
                None
            }
        }
    };
    waits.settled.notify_waiters();
    let Some(id) = name else { return };
    let (idle, waits) = (waits.idle_ms, Arc::downgrade(&waits));
    drop(host);
    loop {
        clock::sleep(Duration::from_millis(idle)).await;
        let Some(waits) = waits.upgrade() else { return };
        // One whose name was given is its taker's to end, or to give back.
        waits.dismiss_of(&id, ContainerOwner::Nobody).await;
        if !waits.has(&id) {
            return;
        }
    }
}

async fn make(
    host: &Host,
    waits: &ContainerPool,
    plan: Plan,
    shape: ContainerShape,
) -> Result<WaitingContainer, String> {
    let id = SandboxId::parse(&format!("sb{}", random::secret_hex(10)))
        .map_err(|error| error.to_string())?;
    {
        // Held meanwhile: whoever closes finds the name, or nothing is made under it.
        let mut state = waits.lock();
        if state.closed {
            return Err("it is closed".to_owned());
        }
        state.place = ContainerSlot::Making(id.clone());
    }
    // Before anything is made that another worker's reconciler could find.
    let claim = Claim::take(&host.facts().live_dir, &id)
        .map_err(|error| format!("marking it as waiting: {error}"))?;
    stand(host, plan.under(&id, host.facts()), shape, claim, &waits.intake).await
}

/// Makes it. What that failed by, in words; what was begun is wiped then.
async fn stand(
    host: &Host,
    plan: Plan,
    shape: ContainerShape,
    claim: Claim,
    intake: &Intake,
) -> Result<WaitingContainer, String> {
    let facts = host.shared();
    let base = plan.base.open(&facts.allowed).map_err(|error| error.to_string())?;
    let mut subject = WipeTarget::found(plan.traces.clone());
    subject.runtime_reaped = true;
    subject.class = Some(plan.class);
    let bare = ResolvedInputs::default();
    let parts = BootParts { resolved: &bare, base, through: SetidScan::default(), filling: None };
    match bring_up(host, &facts, &plan, parts, &mut subject, intake).await {
        Ok(raised) => {
            Ok(WaitingContainer { raised: Some(raised), subject, shape, facts, _claim: claim })
        }
        Err(error) => {
            let why = error_chain(&error);
            tell(&blocking(move || wipe::destroy(&facts, &subject, "boot-fail")).await);
            Err(why)
        }
    }
}
