//! The key of a provider: a tenant's secret, opened for one call, so that a rotation reaches the next one.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::model::ModelProvider;

use crate::Flows;
use crate::error::Result;

/// The key in force, or none where the provider takes none.
pub(crate) async fn key_of(
    flows: &Flows,
    tenant: &TenantId,
    provider: &ModelProvider,
) -> Result<Option<String>> {
    let Some(name) = &provider.secret else { return Ok(None) };
    let open = flows.secret_open(tenant, name).await?;
    match str::from_utf8(open.value.expose()) {
        Ok(key) => Ok(Some(key.to_owned())),
        Err(_) => Err(Refusal::new(ErrorCode::StateConflict, "the secret is not text").into()),
    }
}
