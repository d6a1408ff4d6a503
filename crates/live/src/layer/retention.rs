//! The retention of a layer: its files are sealed, and it stays in memory for a resume that comes soon.
//!
//! **Retention loses nothing**: a worker that is killed leaves the sealed file. It takes memory that no sandbox asks for, and ends as soon
//! as a sandbox does.

use std::collections::BTreeMap;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::id::TenantId;
use cofferdam_flows::MemoryShare;
use tokio::sync::watch;

/// How long the layers of each tenant may be retained.
pub(crate) type RetentionPeriods = BTreeMap<TenantId, Duration>;

/// A retention that has begun.
#[derive(Debug)]
pub(crate) struct LayerRetention {
    pub since: Stopwatch,
    pub length: Duration,
    pub tenant: TenantId,
    /// Lengths as they are now: a shorter one holds.
    pub lengths: watch::Receiver<RetentionPeriods>,
    /// Changes when a sandbox waits for memory.
    pub short: watch::Receiver<()>,
    /// Whether this process stops.
    pub closed: watch::Receiver<bool>,
    /// The layer's part of the worker's memory, until a life has the layer.
    pub share: Option<MemoryShare>,
}

impl LayerRetention {
    /// Waits until it is over: its time, this process, or the memory that no sandbox asks for.
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

    /// A life has the layer, and is admitted as every life is.
    pub(crate) fn lend(&mut self) {
        self.share = None;
    }
}
