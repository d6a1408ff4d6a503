//! Tokens of sandboxes end with the key that they were made for, and what they opened: streams, transfers, tunnels.
//!
//! ```text
//! key revoke --notification--> every process: its sandboxes' tokens open nothing, and what is connected by them is cut
//!            --lost----------> a look at all keys of the sandboxes that run here, every LOOK
//! ```
//! The sandbox itself lives on: its tenant's other keys pause, resume and kill it, and a resume makes new tokens.

use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_ledger::listen::Wake;
use tokio::sync::broadcast::error::RecvError;

use crate::live::Live;

/// How long a lost notification leaves a token open.
const LOOK: Duration = Duration::from_secs(10);

/// Closes them as keys are revoked, for as long as this process holds sandboxes.
pub(crate) async fn watch(live: Live) {
    let (mut wakes, mut looked) = (live.0.wakes.subscribe(), Stopwatch::start());
    loop {
        // However many other wake-ups there are meanwhile.
        let woken = tokio::select! {
            woken = wakes.recv() => woken,
            () = clock::sleep(LOOK.saturating_sub(looked.elapsed())) => Ok(Wake::All),
        };
        match woken {
            Ok(Wake::Key(key)) => live.0.registry.revoke([key]),
            Ok(Wake::All) | Err(RecvError::Lagged(_)) => {
                looked = Stopwatch::start();
                let keys = live.0.registry.keys();
                if keys.is_empty() {
                    continue;
                }
                match live.0.ledger.keys().revoked_of(&keys).await {
                    Ok(revoked) => live.0.registry.revoke(revoked),
                    Err(error) => tracing::warn!(%error, "revoked keys cannot be looked for"),
                }
            }
            Ok(_) => {}
            Err(RecvError::Closed) => return,
        }
    }
}
