//! Another network for a sandbox that runs.
//!
//! ```text
//! its turn -> names under the tenant's grants -> on record, open -> the proxy has it -> on record, in force -> answer
//!                                                     \--it could not be had--> on record, failed: the one before stayed
//! ```
//! **What was acknowledged is in force and on record.** Killed in between, the sandbox ends with this process, and the ledger says
//! that the change was lost. A network is kept by a pause, and no paused sandbox's is changed: its files are sealed with it.

use std::sync::Arc;

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::live::LiveView;
use cofferdam_contracts::live_network::LiveNetworkChange;
use cofferdam_contracts::sandbox::Egress;
use cofferdam_flows::{Result, egress, patiently};
use cofferdam_ledger::failpoint::fail_point;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::live_networks::NetworkOutcome;
use cofferdam_sandbox::NetworkError;

use crate::background::detached;
use crate::handle::{EffectiveNetwork, EndOrder, LiveHandle};
use crate::live::Live;
use crate::message::Message;
use crate::refusal::{over, refuse};
use serde::{Deserialize, Serialize};

/// Makes these the names that a running sandbox reaches, in the place of those before.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChangeNetwork {
    /// Caller; the sandbox must belong to the tenant of this key.
    pub who: Principal,
    /// Sandbox that must run in this process.
    pub id: LiveId,
    /// All names that it may reach from now on.
    pub egress: Egress,
}

impl Message for ChangeNetwork {
    type Reply = LiveView;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        live.network(&self.who, &self.id, self.egress).await
    }
}

/// Changes of the network of a tenant's sandbox, in order; its latest 1,000.
#[derive(Debug, Serialize, Deserialize)]
pub struct ListNetworks {
    /// Caller; the sandbox must belong to the tenant of this key.
    pub who: Principal,
    /// Sandbox whose changes are listed, also after its end.
    pub id: LiveId,
}

impl Message for ListNetworks {
    type Reply = Vec<LiveNetworkChange>;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        live.networks(&self.who, &self.id).await
    }
}

impl Live {
    /// Makes these the names that a running sandbox reaches, in the place of those before. Connections to names that are not among
    /// them are ended when it answers.
    ///
    /// # Errors
    /// It does not run here, a name is not granted, or the network cannot be had: then the one before is in force.
    async fn network(&self, who: &Principal, id: &LiveId, wanted: Egress) -> Result<LiveView> {
        let held = self.handle(who, id).await?;
        let (live, asker) = (self.clone(), who.clone());
        // On record and in force, also where the caller hangs up.
        detached(async move { live.change_network(&asker, &held, wanted).await }).await?;
        self.view(who, id).await
    }

    /// Changes of the network of a tenant's sandbox, in order; its latest 1,000.
    ///
    /// # Errors
    /// There is none of this id in the tenant.
    async fn networks(&self, who: &Principal, id: &LiveId) -> Result<Vec<LiveNetworkChange>> {
        self.view(who, id).await?;
        Ok(self.0.ledger.live().networks(&who.tenant, id).await?)
    }

    async fn change_network(
        &self,
        who: &Principal,
        held: &Arc<LiveHandle>,
        wanted: Egress,
    ) -> Result<()> {
        let _turn = held.turn.lock().await;
        if !held.goes_on() {
            return Err(over());
        }
        // Asked before what is in force is compared: who lost a grant is told so.
        let consent = egress::consent_to(&self.0.ledger, who, &wanted).await?;
        let before = held.egress();
        if before == wanted {
            return Ok(());
        }
        let begun =
            self.0.ledger.live().network_begins(who, &held.facts.id, &wanted, &consent).await?;
        let n = begun.ok_or_else(over)?;
        fail_point("network.recorded");
        let now = match held.network.change(wanted.entries()).await {
            Ok(now) => now,
            Err(error) => {
                let why = error.to_string();
                let failed = NetworkOutcome::Failed(&why);
                patiently(|| self.0.ledger.live().network_settles(&held.facts.id, n, &failed))
                    .await?;
                return Err(match error {
                    NetworkError::Over => over(),
                    NetworkError::Failed(why) => refuse(
                        ErrorCode::PolicyViolation,
                        format!("net: the network stays as it was: {why}"),
                    ),
                });
            }
        };
        fail_point("network.changed");
        let done = NetworkOutcome::InForce { names: &now.names, cut: now.cut };
        let settled =
            patiently(|| self.0.ledger.live().network_settles(&held.facts.id, n, &done)).await;
        match settled {
            Ok(true) => {
                held.reaches(EffectiveNetwork { egress: wanted, env: now.env });
                Ok(())
            }
            Ok(false) => Err(over()),
            Err(error) => {
                // Nobody was told that it is in force, and no record says so.
                if let Err(why) = held.network.change(before.entries()).await {
                    tracing::error!(sandbox = %held.facts.id, %why, "a network that is not on record cannot be taken back; the sandbox ends");
                    held.end(EndOrder::Stop);
                }
                Err(error)
            }
        }
    }
}
