//! Providers: added, changed, removed.

use std::sync::Arc;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::ProviderName;
use cofferdam_contracts::model::{ModelProvider, ProviderRow};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::listen::Wakes;
use reqwest::Url;
use serde_json::json;

use super::client::Clients;
use crate::error::{Error, Result};
use crate::outbound::{Reach, may_reach};
use crate::secrets::Secrets;

/// Providers of models, and what calls of them need.
#[derive(Debug, Clone)]
pub struct Models {
    pub(crate) ledger: Ledger,
    pub(crate) wakes: Wakes,
    pub(crate) secrets: Secrets,
    pub(crate) clients: Arc<Clients>,
    /// Whether models without a credential are refused.
    pub(crate) is_strict: bool,
}

impl Models {
    pub(crate) fn new(ledger: &Ledger, wakes: &Wakes, secrets: &Secrets, is_strict: bool) -> Self {
        let (ledger, wakes, secrets) = (ledger.clone(), wakes.clone(), secrets.clone());
        Self { ledger, wakes, secrets, clients: Arc::default(), is_strict }
    }

    /// Adds a provider to the caller's tenant, or changes one. The host's own admin alone may name an address of this
    /// host or its networks: the worker calls it.
    pub async fn put(&self, who: &Principal, provider: &ModelProvider) -> Result<ProviderRow> {
        let refuse = |why: String| Refusal::new(ErrorCode::PolicyViolation, why);
        provider.check().map_err(refuse)?;
        let private = who.is_host_admin();
        let reach = if private { Reach::Private } else { Reach::Public };
        let url = Url::parse(&provider.url).map_err(|e| refuse(format!("url: {e}")))?;
        if !url.host_str().is_some_and(|host| may_reach(host, reach)) {
            let why = "url: leads to an address that providers may not have; the host's admin may add one on a \
                       private address";
            return Err(refuse(why.to_owned()).into());
        }
        let entry = Audit {
            detail: Some(json!({"url": provider.url, "secret": provider.secret})),
            ..Audit::by(who, "model.add", provider.name.as_str())
        };
        self.ledger.models().provider_put(provider, private, &entry).await?;
        let rows = self.ledger.models().provider_list(&who.tenant).await?;
        let found = rows.into_iter().find(|row| row.provider.name == provider.name);
        found.ok_or_else(|| Error::corrupt("provider")("it was removed meanwhile"))
    }

    /// Removes one of the caller's providers: its next call is refused.
    pub async fn remove(&self, who: &Principal, name: &ProviderName) -> Result<()> {
        let entry = Audit::by(who, "model.remove", name.as_str());
        if self.ledger.models().provider_remove(name, &entry).await? {
            return Ok(());
        }
        Err(Refusal::not_found("model provider").into())
    }
}
