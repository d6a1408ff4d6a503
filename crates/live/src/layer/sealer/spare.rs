//! A sealer that waits for the next pause, which then does not wait until a program has started.
//!
//! ```text
//! wanted --started--> waits --taken--> has the work of a pause
//!                       \--closed, or its worker killed--> ends
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_ambient::clock;

use super::Sealer;
use crate::background::blocking;
use crate::patience::REST;

/// At most one: pauses that come together start their own.
#[derive(Debug, Default)]
pub(crate) struct SpareSealer(Mutex<Spare>);

#[derive(Debug, Default)]
enum Spare {
    #[default]
    None,
    Starting,
    Waits(Sealer),
    /// This process stops.
    Closed,
}

impl SpareSealer {
    /// Has one started a moment later, where none is.
    pub(crate) fn want(self: &Arc<Self>) {
        {
            let mut spare = self.lock();
            if !matches!(*spare, Spare::None) {
                return;
            }
            *spare = Spare::Starting;
        }
        let own = Arc::clone(self);
        tokio::spawn(async move {
            clock::sleep(REST).await;
            // Without one, a pause starts its own, and says why it cannot.
            let started = blocking(Sealer::waiting).await.ok();
            if let Some(unwanted) = own.put(started) {
                unwanted.ended().await;
            }
        });
    }

    /// Takes it for a pause.
    pub(crate) fn take(&self) -> Option<Sealer> {
        let mut spare = self.lock();
        match std::mem::take(&mut *spare) {
            Spare::Waits(sealer) => Some(sealer),
            other => {
                *spare = other;
                None
            }
        }
    }

    /// Ends it, and starts no other one.
    pub(crate) async fn close(&self) {
        let before = std::mem::replace(&mut *self.lock(), Spare::Closed);
        if let Spare::Waits(sealer) = before {
            sealer.ended().await;
        }
    }

    /// Keeps what was started, or gives it back: this process stops.
    fn put(&self, started: Option<Sealer>) -> Option<Sealer> {
        let mut spare = self.lock();
        if matches!(*spare, Spare::Closed) {
            return started;
        }
        *spare = started.map_or(Spare::None, Spare::Waits);
        None
    }

    fn lock(&self) -> MutexGuard<'_, Spare> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
