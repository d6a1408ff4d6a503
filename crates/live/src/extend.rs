//! When a running sandbox is to end.

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::live::MAX_LIVE_S;
use cofferdam_flows::{Result, egress};
use cofferdam_ledger::keys::Principal;

use crate::background::detached;
use crate::live::Live;
use crate::message::Message;
use crate::refusal::{over, refuse};
use serde::{Deserialize, Serialize};

/// Sets when a running sandbox ends.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExtendSandbox {
    /// Caller; the sandbox must belong to the tenant of this key.
    pub who: Principal,
    /// Sandbox that must run in this process.
    pub id: LiveId,
    /// So many from now.
    pub seconds: u64,
    /// Only if that is later than what was set.
    pub longer: bool,
}

impl Message for ExtendSandbox {
    type Reply = ();

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        live.extend(&self.who, &self.id, self.seconds, self.longer).await
    }
}

impl Live {
    /// Sets when a running sandbox ends: so many seconds from now, or only if that is later.
    ///
    /// # Errors
    /// It does not run here, or the time is beyond a day.
    async fn extend(&self, who: &Principal, id: &LiveId, seconds: u64, longer: bool) -> Result<()> {
        if seconds > MAX_LIVE_S {
            let why = format!("timeout is {seconds}; it must be at most {MAX_LIVE_S} seconds");
            return Err(refuse(ErrorCode::PolicyViolation, why));
        }
        let held = self.handle(who, id).await?;
        // Who lost a grant keeps no sandbox that has it by extending it day by day.
        egress::admit_live(&self.0.ledger, who, &held.egress()).await?;
        let ms = i64::try_from(seconds.saturating_mul(1_000)).unwrap_or(i64::MAX);
        let (live, tenant) = (self.clone(), who.tenant.clone());
        // Both or neither, also where the caller hangs up.
        detached(async move {
            let _turn = held.turn.lock().await;
            if !held.goes_on() {
                return Err(over());
            }
            let left = live.0.ledger.live().extend(&tenant, &held.facts.id, ms, longer).await?;
            match left.is_some_and(|left| held.ends_in(left)) {
                true => Ok(()),
                false => Err(over()),
            }
        })
        .await
    }
}
