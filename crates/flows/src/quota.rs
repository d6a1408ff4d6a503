//! Whether a tenant may store more. Layers of its builds make room first.
//!
//! Their files are removed by the room that keeps them, which lies above this one: [`crate::Flows::with_snapshots`] says how.

use cofferdam_contracts::id::TenantId;

use crate::Flows;
use crate::error::Result;

/// Begins to remove files whose rows are erased, and returns at once.
pub(crate) type Tidy = fn(&Flows);

/// Refuses where what the tenant has stored fills its quota, once its layers made room.
pub(crate) async fn admit(flows: &Flows, tenant: &TenantId) -> Result<()> {
    if flows.ledger.runs().quota_admit(tenant).await?
        && let Some(tidy) = flows.tidy
    {
        tidy(flows);
    }
    Ok(())
}
