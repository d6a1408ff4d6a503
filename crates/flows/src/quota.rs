//! Whether a tenant may store more. Layers of its builds make room first.
//!
//! Their files are removed by the crate that keeps them, which lies above this one: [`crate::Flows::when_full`] says how.

use cofferdam_contracts::id::TenantId;

use crate::Flows;
use crate::error::Result;

/// Refuses where what the tenant has stored fills its quota, once its layers made room.
///
/// # Errors
/// The quota is full, or the ledger does not answer.
pub async fn admit(flows: &Flows, tenant: &TenantId) -> Result<()> {
    if flows.ledger.runs().quota_admit(tenant).await?
        && let Some(tidy) = flows.tidy.get()
    {
        tidy.0();
    }
    Ok(())
}
