//! Which sandboxes there are: on record, and held by this process.

use std::sync::Arc;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::live::{LiveState, LiveView};
use cofferdam_flows::Result;
use cofferdam_ledger::keys::Principal;

use crate::held::Held;
use crate::live::Live;
use crate::refusal::{over, refuse};

impl Live {
    /// A tenant's sandbox as it is recorded.
    ///
    /// # Errors
    /// There is none of this id in the tenant.
    pub async fn view(&self, who: &Principal, id: &LiveId) -> Result<LiveView> {
        let found = self.0.ledger.live().by_id(&who.tenant, id).await?;
        Ok(found.ok_or_else(|| Refusal::not_found("sandbox"))?)
    }

    /// The handle of a running sandbox of the tenant.
    ///
    /// # Errors
    /// It does not run, is another tenant's, or another process holds it.
    pub async fn held(&self, who: &Principal, id: &LiveId) -> Result<Arc<Held>> {
        if let Some(held) = self.0.registry.find(id)
            && held.tenant == who.tenant
        {
            return Ok(held);
        }
        match self.view(who, id).await?.state {
            LiveState::Running => Err(self.unheld(id).await?),
            LiveState::Starting => {
                Err(refuse(ErrorCode::Unavailable, "the sandbox has not started yet; try again"))
            }
            LiveState::Paused => {
                Err(refuse(ErrorCode::StateConflict, "the sandbox is paused: resume it first"))
            }
            LiveState::Ended => Err(over()),
        }
    }

    /// The handle of a running sandbox by its id alone, of any tenant: its caller checks a token next.
    #[must_use]
    pub fn named(&self, id: &LiveId) -> Option<Arc<Held>> {
        self.0.registry.find(id)
    }

    /// Every sandbox that this process holds.
    #[must_use]
    pub fn here(&self) -> Vec<Arc<Held>> {
        self.0.registry.all()
    }
}
