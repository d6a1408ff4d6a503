//! Intents: what is wanted, before anything is decided about it.

use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::IntentId;
use cofferdam_contracts::run::{IntentRequest, IntentResponse};
use cofferdam_ledger::intents::NewIntent;
use cofferdam_ledger::keys::Principal;

use crate::error::{Error, Result};
use crate::runs::Runs;

impl Runs {
    /// Writes an intent.
    pub async fn intent(&self, who: &Principal, request: &IntentRequest) -> Result<IntentResponse> {
        self.quota.admit(&who.tenant).await?;
        let name = format!("intent:{}:{}", who.tenant, self.ids.number());
        let id = IntentId::parse(&format!("it_{}", self.ids.hex(&name, 16)))
            .map_err(Error::corrupt("id"))?;
        self.ledger
            .intents()
            .create(&NewIntent {
                id: &id,
                tenant: &who.tenant,
                request,
                hash: None,
                key_id: &who.key_id,
                origin: Origin::ApiShim,
            })
            .await?;
        Ok(IntentResponse { intent_id: id })
    }
}
