//! The allowance that a tenant has for what is kept of its sandboxes.

use std::sync::Arc;

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::TenantId;
use cofferdam_flows::Result;

use crate::background::blocking;
use crate::refusal::refuse;
use crate::snapshot::allowance::{WriteAllowance, on_disk};
use crate::snapshot::snapshots::Snapshots;

impl Snapshots {
    /// What may be kept of this tenant's sandboxes now; refuses where its quota is full.
    pub(crate) async fn room(&self, tenant: &TenantId) -> Result<Arc<WriteAllowance>> {
        let store = Arc::clone(&self.live.0.store);
        let mut room = self.live.0.unrecorded.open(tenant);
        let disk = blocking(move || {
            store.make()?;
            on_disk(store.dir())
        });
        let rest = self.live.0.ledger.runs().quota_left_bytes(tenant);
        let (admitted, disk, quota) =
            tokio::join!(self.live.0.flows.quota.admit(tenant), disk, rest);
        admitted?;
        let disk = disk.map_err(|why| refuse(ErrorCode::Unavailable, why.to_string()))?;
        (room.quota, room.disk) = (quota?, disk);
        Ok(Arc::new(room))
    }
}
