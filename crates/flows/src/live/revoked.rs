//! Tokens of sandboxes end with the key that they were made for, and what they opened: streams, transfers, tunnels.
//!
//! ```text
//! key revoke --notification--> every process: its sandboxes' tokens open nothing, and what is connected by them is cut
//!            --lost----------> a look at all keys of the sandboxes that run here, every LOOK
//! ```
//! The sandbox itself lives on: its tenant's other keys pause, resume and kill it, and a resume makes new tokens.

use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::id::LiveId;
use cofferdam_ledger::listen::Wake;
use tokio::sync::broadcast::error::RecvError;

use super::registry::Tokens;
use crate::Flows;
use crate::error::Result;

/// How long a lost notification leaves a token open.
const LOOK: Duration = Duration::from_secs(10);

/// Closes them as keys are revoked, for as long as this process holds sandboxes.
pub(crate) async fn watch(flows: Flows) {
    let (mut wakes, mut looked) = (flows.wakes.subscribe(), Stopwatch::start());
    loop {
        // However many other wake-ups there are meanwhile.
        let woken = tokio::select! {
            woken = wakes.recv() => woken,
            () = clock::sleep(LOOK.saturating_sub(looked.elapsed())) => Ok(Wake::All),
        };
        match woken {
            Ok(Wake::Key(key)) => flows.live.revoke([key]),
            Ok(Wake::All) | Err(RecvError::Lagged(_)) => {
                looked = Stopwatch::start();
                let keys = flows.live.keys();
                if keys.is_empty() {
                    continue;
                }
                match flows.ledger.keys().revoked_of(&keys).await {
                    Ok(revoked) => flows.live.revoke(revoked),
                    Err(error) => tracing::warn!(%error, "revoked keys cannot be looked for"),
                }
            }
            Ok(_) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

impl Flows {
    /// The tokens of a next life that has those of the last one, unless their key was revoked since.
    pub(super) async fn tokens_again(
        &self,
        id: &LiveId,
        tokens: Option<Tokens>,
    ) -> Result<Option<Tokens>> {
        let Some(mut tokens) = tokens else { return Ok(None) };
        if tokens.key_id.is_empty() {
            let Some(door) = self.ledger.live().door(id).await? else { return Ok(None) };
            tokens.key_id = door.key_id;
        }
        let is_revoked = self.ledger.keys().is_revoked(&tokens.key_id).await?;
        Ok(Some(tokens).filter(|_| !is_revoked))
    }
}
