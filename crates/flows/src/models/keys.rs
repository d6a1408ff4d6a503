//! The key of a provider: a tenant's secret, opened for one call.

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
    let _ = (flows, tenant);
    match &provider.secret {
        None => Ok(None),
        Some(_) => {
            Err(Refusal::new(ErrorCode::StateConflict, "secrets cannot be opened here").into())
        }
    }
}
