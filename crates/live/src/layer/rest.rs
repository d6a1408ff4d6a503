//! The rest of a layer: its files are sealed, and it stays in memory for a resume that comes soon.
//!
//! ```text
//! sealed --memory is free--> rests --lent--> its next life's
//!                              \-- its time is over | somebody waits for memory | erased | this process stops --> ended
//! ```
//! **Nothing is lost with it**: its worker alone has it, and a worker that is killed leaves the sealed file. It takes memory that
//! nobody asked for, and gives it back to whoever does.

use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::config::{ConfigKey, lower_of_both};
use cofferdam_contracts::id::TenantId;
use tokio::sync::watch;

use cofferdam_flows::{MemoryShare, Result};

use crate::layer::layers::Layers;
use crate::layer::left::RestLengths;

/// One that has begun.
#[derive(Debug)]
pub(crate) struct LayerRest {
    since: Stopwatch,
    length: Duration,
    tenant: TenantId,
    lengths: watch::Receiver<RestLengths>,
    short: watch::Receiver<()>,
    closed: watch::Receiver<bool>,
    /// Its memory, until its next life has it.
    share: Option<MemoryShare>,
}

impl LayerRest {
    /// Until it is to end.
    pub(crate) async fn over(&mut self) {
        loop {
            let now = self.lengths.borrow_and_update().get(&self.tenant).copied();
            let length = now.map_or(self.length, |now| now.min(self.length));
            tokio::select! {
                () = clock::sleep(length.saturating_sub(self.since.elapsed())) => return,
                _ = self.short.changed() => return,
                _ = self.closed.wait_for(|closed| *closed) => return,
                changed = self.lengths.changed() => if changed.is_err() { return },
            }
        }
    }

    /// It is to end now.
    pub(crate) fn cut(&mut self) {
        self.length = Duration::ZERO;
    }

    /// A life has its layer, and is admitted as every one is.
    pub(crate) fn lend(&mut self) {
        self.share = None;
    }
}

impl Layers {
    /// How long a layer of a tenant may rest; zero: not at all.
    pub(crate) async fn rest_length(&self, tenant: &TenantId) -> Result<Duration> {
        let rows = self.live.0.ledger.config().rows(tenant).await?;
        Ok(Duration::from_secs(lower_of_both(ConfigKey::PauseRest, &rows)))
    }

    /// The rest of a layer of so many bytes. `None`: its tenant has none, memory is short, this host may write it to a disk, or
    /// this process stops.
    pub(crate) async fn rest(&self, tenant: &TenantId, bytes: u64) -> Option<LayerRest> {
        let length = self.rest_length(tenant).await.ok().filter(|length| !length.is_zero())?;
        let (lengths, closed) = (self.live.0.layers.lengths(), self.live.0.layers.closed());
        if *closed.borrow() {
            return None;
        }
        let (share, short) = self.live.0.registry.maker()?.rest(tenant, bytes)?;
        let (since, tenant, share) = (Stopwatch::start(), tenant.clone(), Some(share));
        Some(LayerRest { since, length, tenant, lengths, short, closed, share })
    }
}
