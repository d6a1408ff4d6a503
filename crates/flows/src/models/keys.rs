//! The key of a provider: a tenant's secret, opened for one call, so that a rotation reaches the next one.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::model::ModelProvider;

use super::Models;
use crate::error::Result;

impl Models {
    /// The key in force, or none where the provider takes none.
    pub(crate) async fn key(
        &self,
        tenant: &TenantId,
        provider: &ModelProvider,
    ) -> Result<Option<String>> {
        let Some(name) = &provider.secret else { return Ok(None) };
        let conflict = |why: &str| Refusal::new(ErrorCode::StateConflict, why);
        let sealed = self.ledger.secrets().sealed(tenant, name, None).await?;
        let sealed = sealed.ok_or_else(|| Refusal::not_found("secret"))?;
        let host = provider.host();
        if !sealed.hosts.is_empty() && !sealed.hosts.iter().any(|one| one.as_str() == host) {
            return Err(conflict("the secret is for other hosts than the provider's").into());
        }
        let open = self.secrets.unseal(tenant, name, &sealed)?;
        match str::from_utf8(open.value.expose()) {
            Ok(key) => Ok(Some(key.to_owned())),
            Err(_) => Err(conflict("the secret is not text").into()),
        }
    }
}
