//! The memory of a paused sandbox, as long as its layer needs it.

use cofferdam_flows::MemoryShare;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How long a layer waits for the wipe of its sandbox: the bound of a wipe.
const WIPED_WITHIN: Duration = Duration::from_secs(15);

/// Memory that a paused sandbox leaves to its layer, once the sandbox is wiped.
#[derive(Debug, Default)]
pub(crate) struct LayerMemory {
    share: Mutex<LayerShare>,
    /// Whether the sandbox is wiped.
    wiped: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct LayerShare {
    share: Option<MemoryShare>,
    /// The layer does not need it: a share that comes later is given back at once.
    is_unwanted: bool,
}

impl LayerMemory {
    /// The sandbox is wiped and leaves this share.
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

    /// Waits until the sandbox is wiped and its share is here, no longer than a wipe may take.
    pub(crate) async fn had(&self) {
        let mut wiped = self.wiped.subscribe();
        // A wipe that takes longer leaves the layer without a share.
        let _ = tokio::time::timeout(WIPED_WITHIN, wiped.wait_for(|wiped| *wiped)).await;
    }

    /// Gives the share back, also one that is still to come.
    pub(crate) fn give_up(&self) {
        *self.lock() = LayerShare { share: None, is_unwanted: true };
    }

    fn lock(&self) -> MutexGuard<'_, LayerShare> {
        self.share.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
