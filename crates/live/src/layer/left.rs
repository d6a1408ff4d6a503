//! What a layer has of its sandbox's memory, and how long it may rest.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_contracts::id::TenantId;
use cofferdam_flows::MemoryShare;
use tokio::sync::watch;

/// How long the wipe of a paused sandbox is waited for: the bound of a wipe.
const WIPED_WITHIN: Duration = Duration::from_secs(15);

/// How long layers of tenants may rest now.
pub(crate) type RestLengths = BTreeMap<TenantId, Duration>;

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
    pub(crate) fn give_up(&self) {
        *self.lock() = LeftShare { share: None, is_unwanted: true };
    }

    fn lock(&self) -> MutexGuard<'_, LeftShare> {
        self.share.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
