//! Webhooks: made, removed, replayed. Sending is `crate::notify`'s.

use std::sync::Arc;

use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{DeliveryId, WebhookId};
use cofferdam_contracts::webhook::{DeliveryReplay, EventType, WebhookRequest, WebhookResponse};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::listen::Wakes;
use cofferdam_ledger::webhooks::NewWebhook;
use serde_json::json;

use crate::error::{Error, Result};
use crate::outbound::{self, Reach};
use crate::sign::{self, Signer};

/// The webhooks of this installation's tenants, and what their deliveries are signed with.
#[derive(Debug, Clone)]
pub struct Webhooks {
    pub(crate) ledger: Ledger,
    pub(crate) wakes: Wakes,
    /// The installation's key, where this host has it.
    pub(crate) signer: Option<Arc<Signer>>,
    /// Which addresses they may reach.
    pub(crate) reach: Reach,
}

impl Webhooks {
    pub(crate) fn new(
        ledger: &Ledger,
        wakes: &Wakes,
        signer: Option<Arc<Signer>>,
        reach: Reach,
    ) -> Self {
        Self { ledger: ledger.clone(), wakes: wakes.clone(), signer, reach }
    }

    /// Whether this host can sign and check.
    #[must_use]
    pub fn is_signing(&self) -> bool {
        self.signer.is_some()
    }

    /// Makes a webhook; its secret is derived, shown here and stored nowhere.
    pub async fn add(&self, who: &Principal, request: &WebhookRequest) -> Result<WebhookResponse> {
        let signer = sign::here(self.signer.as_deref())?;
        let url = outbound::parse(&request.url, self.reach)?;
        let mut events = request.events.clone().unwrap_or_else(|| EventType::ALL.to_vec());
        events.sort_unstable();
        events.dedup();
        let id =
            WebhookId::parse(&format!("wh_{}", secret_hex(16))).map_err(Error::corrupt("id"))?;
        let new = NewWebhook {
            id: &id,
            tenant: &who.tenant,
            url: url.as_str(),
            events: &events,
            label: request.label.as_deref(),
        };
        let entry = Audit {
            detail: Some(json!({"url": url.as_str(), "events": events})),
            ..Audit::by(who, "webhook.add", id.as_str())
        };
        self.ledger.webhooks().add(&new, &entry).await?;
        Ok(WebhookResponse {
            secret: signer.webhook_secret(&id),
            url: url.as_str().to_owned(),
            webhook_id: id,
            events,
        })
    }

    /// Removes one of the caller's webhooks.
    pub async fn remove(&self, who: &Principal, webhook: &WebhookId) -> Result<()> {
        let entry = Audit::by(who, "webhook.remove", webhook.as_str());
        if self.ledger.webhooks().remove(&who.tenant, webhook, &entry).await? {
            return Ok(());
        }
        Err(Refusal::not_found("webhook").into())
    }

    /// Sends a delivery again, under its old id.
    pub async fn replay(
        &self,
        who: &Principal,
        webhook: &WebhookId,
        delivery: &DeliveryId,
    ) -> Result<DeliveryReplay> {
        let entry = Audit::by(who, "webhook.replay", delivery.as_str());
        match self.ledger.webhooks().delivery_replay(&who.tenant, webhook, delivery, &entry).await?
        {
            Some(true) => Ok(DeliveryReplay { accepted: true, delivery_id: delivery.clone() }),
            Some(false) => Err(Refusal::new(
                ErrorCode::StateConflict,
                "it is on its way already, or its webhook was removed",
            )
            .into()),
            None => Err(Refusal::not_found("delivery").into()),
        }
    }
}
