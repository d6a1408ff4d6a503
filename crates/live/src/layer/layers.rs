//! What the layers of paused sandboxes have in common: this process, and the memory in which they may be retained.

use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::config::{ConfigKey, lower_of_both};
use cofferdam_contracts::id::TenantId;
use cofferdam_flows::Result;

use crate::layer::retention::LayerRetention;
use crate::live::Live;

/// The layers of paused sandboxes.
#[derive(Debug, Clone)]
pub(crate) struct Layers {
    pub(crate) live: Live,
}

impl Layers {
    /// Of this process.
    #[must_use]
    pub(crate) fn of(live: &Live) -> Self {
        Self { live: live.clone() }
    }

    /// How long a layer of a tenant may be retained; zero: not at all.
    pub(crate) async fn retention_period(&self, tenant: &TenantId) -> Result<Duration> {
        let rows = self.live.0.ledger.config().rows(tenant).await?;
        Ok(Duration::from_secs(lower_of_both(ConfigKey::PauseRest, &rows)))
    }

    /// The retention of a layer of so many bytes. `None`: its tenant retains none, memory is short, this host may write memory to a
    /// disk, or this process stops.
    pub(crate) async fn retention(&self, tenant: &TenantId, bytes: u64) -> Option<LayerRetention> {
        let length = self.retention_period(tenant).await.ok().filter(|length| !length.is_zero())?;
        let (lengths, closed) = (self.live.0.layers.lengths(), self.live.0.layers.closed());
        if *closed.borrow() {
            return None;
        }
        let (share, short) = self.live.0.registry.maker()?.rest(tenant, bytes)?;
        let (since, tenant, share) = (Stopwatch::start(), tenant.clone(), Some(share));
        Some(LayerRetention { since, length, tenant, lengths, short, closed, share })
    }
}
