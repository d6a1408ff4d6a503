//! The rest of a layer: its files are sealed, and it stays in memory for a resume that comes soon.
//!
//! ```text
//! sealed --memory is free--> rests --lent--> its next life's
//!                              \-- its time is over | somebody waits for memory | erased | this process stops --> ended
//! ```
//! **Nothing is lost with it**: its worker alone has it, and a worker that is killed leaves the sealed file. It takes memory that
//! nobody asked for, and gives it back to whoever does.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::config::{ConfigKey, lower_of_both};
use cofferdam_contracts::id::TenantId;
use tokio::sync::watch;

use crate::Flows;
use crate::error::Result;
use crate::memory::MemoryShare;

/// How long the wipe of a paused sandbox is waited for: the bound of a wipe.
const WIPED_WITHIN: Duration = Duration::from_secs(15);

/// How long layers of tenants may rest now.
pub(super) type RestLengths = BTreeMap<TenantId, Duration>;

/// One that has begun.
#[derive(Debug)]
pub(super) struct LayerRest {
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
    pub(super) async fn over(&mut self) {
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
    pub(super) fn cut(&mut self) {
        self.length = Duration::ZERO;
    }

    /// A life has its layer, and is admitted as every one is.
    pub(super) fn lend(&mut self) {
        self.share = None;
    }
}

impl Flows {
    /// How long a layer of a tenant may rest; zero: not at all.
    pub(super) async fn rest_length(&self, tenant: &TenantId) -> Result<Duration> {
        let rows = self.ledger.config().rows(tenant).await?;
        Ok(Duration::from_secs(lower_of_both(ConfigKey::PauseRest, &rows)))
    }

    /// The rest of a layer of so many bytes. `None`: its tenant has none, memory is short, this host may write it to a disk, or
    /// this process stops.
    pub(super) async fn rest(&self, tenant: &TenantId, bytes: u64) -> Option<LayerRest> {
        let length = self.rest_length(tenant).await.ok().filter(|length| !length.is_zero())?;
        let (lengths, closed) = (self.plain.lengths(), self.plain.closed());
        if *closed.borrow() {
            return None;
        }
        let (share, short) = self.live.maker()?.rest(tenant, bytes)?;
        let (since, tenant, share) = (Stopwatch::start(), tenant.clone(), Some(share));
        Some(LayerRest { since, length, tenant, lengths, short, closed, share })
    }
}

/// Memory that a sandbox had whose layer stays: it comes once that is wiped, and is kept while the layer needs it.
#[derive(Debug, Default)]
pub(crate) struct LeftMemory {
    share: Mutex<LeftShare>,
    /// Told once the sandbox is wiped.
    wiped: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct LeftShare {
    share: Option<MemoryShare>,
    is_unwanted: bool,
}

impl LeftMemory {
    /// Its sandbox is wiped.
    pub(crate) fn put(&self, share: Option<MemoryShare>) {
        {
            let mut left = self.lock();
            match left.is_unwanted {
                true => drop(share),
                false => left.share = share,
            }
        }
        self.wiped.send_replace(true);
    }

    /// Until its sandbox is wiped and what it had is here, no longer than a wipe takes.
    pub(crate) async fn had(&self) {
        let mut wiped = self.wiped.subscribe();
        // Where it takes longer, the layer is without it.
        let _ = tokio::time::timeout(WIPED_WITHIN, wiped.wait_for(|wiped| *wiped)).await;
    }

    /// The layer needs it no more, also where it is still to come.
    pub(super) fn give_up(&self) {
        *self.lock() = LeftShare { share: None, is_unwanted: true };
    }

    fn lock(&self) -> MutexGuard<'_, LeftShare> {
        self.share.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
