//! Which sandboxes there are: on record, and held by this process.

use std::sync::Arc;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::live::{LiveState, LiveView};
use cofferdam_flows::Result;
use cofferdam_ledger::keys::Principal;

use crate::guest::handle::Guest;
use crate::handle::LiveHandle;
use crate::live::Live;
use crate::message::Message;
use crate::refusal::{over, refuse};
use serde::{Deserialize, Serialize};

/// A tenant's sandbox as it is recorded.
#[derive(Debug, Serialize, Deserialize)]
pub struct ViewSandbox {
    /// Caller; the sandbox must belong to the tenant of this key.
    pub who: Principal,
    /// Sandbox in any state, also one that has ended.
    pub id: LiveId,
}

impl Message for ViewSandbox {
    type Reply = LiveView;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        live.view(&self.who, &self.id).await
    }
}

/// A running sandbox of the tenant.
#[derive(Debug, Serialize, Deserialize)]
pub struct FindGuest {
    /// Caller; the sandbox must belong to the tenant of this key.
    pub who: Principal,
    /// Sandbox that must run in this process.
    pub id: LiveId,
}

impl Message for FindGuest {
    type Reply = Guest;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        let held = live.handle(&self.who, &self.id).await?;
        Ok(Guest::of(live, &held))
    }
}

/// A running sandbox by its id alone, of any tenant: its caller checks a token next. `None`: it does not run here.
#[derive(Debug, Serialize, Deserialize)]
pub struct FindAnyGuest {
    /// Sandbox that a request names before its token is checked.
    pub id: LiveId,
}

impl Message for FindAnyGuest {
    type Reply = Option<Guest>;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        Ok(live.0.registry.find(&self.id).map(|held| Guest::of(live, &held)))
    }
}

/// Every sandbox that runs here.
#[derive(Debug, Serialize, Deserialize)]
pub struct AllGuests;

impl Message for AllGuests {
    type Reply = Vec<Guest>;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        Ok(live.0.registry.all().iter().map(|held| Guest::of(live, held)).collect())
    }
}

impl Live {
    /// A tenant's sandbox as it is recorded.
    ///
    /// # Errors
    /// There is none of this id in the tenant.
    pub(crate) async fn view(&self, who: &Principal, id: &LiveId) -> Result<LiveView> {
        let found = self.0.ledger.live().by_id(&who.tenant, id).await?;
        Ok(found.ok_or_else(|| Refusal::not_found("sandbox"))?)
    }

    /// The handle of a running sandbox of the tenant.
    ///
    /// # Errors
    /// It does not run, is another tenant's, or another process holds it.
    pub(crate) async fn handle(&self, who: &Principal, id: &LiveId) -> Result<Arc<LiveHandle>> {
        if let Some(held) = self.0.registry.find(id)
            && held.facts.tenant == who.tenant
        {
            return Ok(held);
        }
        match self.view(who, id).await?.state {
            LiveState::Running => Err(self.not_here_reason(id).await?),
            LiveState::Starting => {
                Err(refuse(ErrorCode::Unavailable, "the sandbox has not started yet; try again"))
            }
            LiveState::Paused => {
                Err(refuse(ErrorCode::StateConflict, "the sandbox is paused: resume it first"))
            }
            LiveState::Ended => Err(over()),
        }
    }
}
