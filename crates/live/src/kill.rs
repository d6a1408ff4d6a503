//! The end of a sandbox that its tenant wants: answered once its wipe is verified and on record.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{LiveId, RunId};
use cofferdam_contracts::live::LiveState;
use cofferdam_flows::{Error, Result};
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::ops::Cancels;

use crate::early::unused_wiped;
use crate::handle::EndOrder;
use crate::live::Live;
use crate::message::Message;
use crate::patience::{KILL_PATIENCE, moved};
use crate::refusal::{refuse, unverified};
use crate::snapshot::eraser::Eraser;
use serde::{Deserialize, Serialize};

/// What is said of a sandbox whose host is lost.
const LOST_HOST: &str = "the sandbox is canceled and its host is lost: that nothing is left of it is verified once a worker runs there \
    again; ask again later, or see `cofferdam session ls`";

/// Ends a sandbox and answers once its wipe is verified and on record. `false`: it had ended before.
#[derive(Debug, Serialize, Deserialize)]
pub struct KillSandbox {
    /// Caller; the sandbox must belong to the tenant of this key.
    pub who: Principal,
    /// Sandbox to end, whether it starts, runs or is paused.
    pub id: LiveId,
}

impl Message for KillSandbox {
    type Reply = bool;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        live.kill(&self.who, &self.id).await
    }
}

/// A sandbox that is to end.
pub(crate) struct Kill<'a> {
    pub live: &'a Live,
    pub who: &'a Principal,
    pub id: &'a LiveId,
}

impl Live {
    /// Ends a sandbox and answers once its wipe is verified and on record. `false`: it had ended before.
    ///
    /// # Errors
    /// There is none of this id, or its wipe could not be verified: then its session is held.
    pub(crate) async fn kill(&self, who: &Principal, id: &LiveId) -> Result<bool> {
        Kill { live: self, who, id }.done().await
    }
}

impl Kill<'_> {
    async fn done(&self) -> Result<bool> {
        let mut wakes = self.live.0.wakes.subscribe();
        let mut was_paused = false;
        let held = self.live.0.registry.find(self.id);
        let run = match held.filter(|held| held.facts.tenant == self.who.tenant) {
            Some(held) => {
                held.end(EndOrder::Kill);
                held.facts.run.clone()
            }
            None => {
                let mut view = self.live.view(self.who, self.id).await?;
                if view.state == LiveState::Paused {
                    was_paused = true;
                    self.recorded().await?;
                    view = self.live.view(self.who, self.id).await?;
                }
                match (view.ended_at.is_some(), view.wiped) {
                    (true, true) if self.is_unmade().await? => return Ok(was_paused),
                    // Its worker was lost: another one wipes it now, where its host has one.
                    (true, _) => self.reachable(&view.run_id).await?,
                    (false, _) => self.cancel().await?,
                }
                view.run_id
            }
        };
        let over = tokio::time::timeout(KILL_PATIENCE, async {
            loop {
                moved(&mut wakes, &run).await;
                let view = self.live.view(self.who, self.id).await?;
                if view.ended_at.is_some() && view.wiped && self.is_unmade().await? {
                    if was_paused {
                        // What was paused while it was wiped has ended with that.
                        Eraser::of(self.live).clean_up().await;
                    }
                    return Ok::<_, Error>(true);
                }
                if !view.wiped {
                    self.reachable(&run).await?;
                }
                // A pause was faster.
                if view.state == LiveState::Paused {
                    was_paused = true;
                    self.recorded().await?;
                }
            }
        });
        over.await.unwrap_or_else(|_| Err(unverified()))
    }

    /// Waits until nothing is left of what was made for one whose task never had it: that one has no session on record. `false`: its
    /// task has it after all.
    async fn is_unmade(&self) -> Result<bool> {
        self.live.0.registry.withdraw(self.id);
        let Some(host) = self.live.0.registry.host() else { return Ok(true) };
        let Some(name) = self.live.0.registry.early_name(self.id) else { return Ok(true) };
        if !unused_wiped(host, &name).await || host.names().has_failed_early(&name) {
            return Err(unverified());
        }
        Ok(self.live.view(self.who, self.id).await?.wiped)
    }

    /// Puts on record that a paused one ends, and erases its files. One whose last life is still being wiped ends with that.
    async fn recorded(&self) -> Result<()> {
        let audit = Audit::by(self.who, "sandbox.kill", self.id.as_str());
        let audit = Audit { reason: "sandbox", ..audit };
        self.live.0.ledger.live().end_paused(self.id, &audit).await?;
        Eraser::of(self.live).clean_up().await;
        Ok(())
    }

    /// Refuses to wait for what only a lost host could show.
    async fn reachable(&self, run: &RunId) -> Result<()> {
        match self.live.0.ledger.sessions().is_on_a_lost_host(run).await? {
            true => Err(refuse(ErrorCode::Unavailable, LOST_HOST)),
            false => Ok(()),
        }
    }

    pub(crate) async fn cancel(&self) -> Result<()> {
        let workflow = self.live.0.ledger.live().workflow(&self.who.tenant, self.id).await?;
        let workflow = workflow.ok_or_else(|| Refusal::not_found("sandbox"))?;
        let audit = Audit { reason: "sandbox", ..Audit::by(self.who, "cancel", workflow.as_str()) };
        match self
            .live
            .0
            .ledger
            .ops()
            .cancel(&workflow, Cancels::All, &audit)
            .await
            .map_err(Error::from)
        {
            // It ended meanwhile, or is about to.
            Err(Error::Refused(refusal)) if refusal.code == ErrorCode::StateConflict => Ok(()),
            other => other,
        }
    }
}
