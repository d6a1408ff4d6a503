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

use crate::Flows;
use crate::memory::MemoryShare;

/// One that has begun.
#[derive(Debug)]
pub(super) struct LayerRest {
    since: Stopwatch,
    length: Duration,
    short: watch::Receiver<()>,
    closed: watch::Receiver<bool>,
}

impl LayerRest {
    /// Until it is to end.
    pub(super) async fn over(&mut self) {
        let left = self.length.saturating_sub(self.since.elapsed());
        tokio::select! {
            () = clock::sleep(left) => {}
            _ = self.short.changed() => {}
            _ = self.closed.wait_for(|closed| *closed) => {}
        }
    }

    /// It is to end now.
    pub(super) fn cut(&mut self) {
        self.length = Duration::ZERO;
    }
}

impl Flows {
    /// How long a layer of a tenant may rest; zero: not at all.
    pub(super) async fn rest_length(&self, tenant: &TenantId) -> Duration {
        match self.ledger.config().rows(tenant).await {
            Ok(rows) => Duration::from_secs(lower_of_both(ConfigKey::PauseRest, &rows)),
            Err(error) => {
                tracing::warn!(%tenant, %error, "no layer rests while the configuration cannot be read");
                Duration::ZERO
            }
        }
    }

    /// The rest of a layer of so many bytes, with the memory that it takes. `None`: it is short, this host may write it to
    /// a disk, or this process stops.
    pub(super) fn rest(
        &self,
        tenant: &TenantId,
        bytes: u64,
        length: Duration,
    ) -> Option<(LayerRest, MemoryShare)> {
        let closed = self.plain.closed();
        if *closed.borrow() {
            return None;
        }
        let (share, short) = self.live.maker()?.rest(tenant, bytes)?;
        Some((LayerRest { since: Stopwatch::start(), length, short, closed }, share))
    }
}
