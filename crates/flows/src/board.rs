//! The states of live sessions as watchers see them.
//!
//! A sandbox of a short task passes four states in thirty milliseconds. What is on record for ever is
//! its start and its end, and both commit with what they mean; the states between only say where it
//! is now. So the latest one of each session is kept here, and written for all of them at once, some
//! times a second: a busy worker writes a tenth as often, and a state that has passed costs nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::SessionState;
use cofferdam_ledger::Ledger;
use tokio::sync::Notify;

/// How far behind a watcher may be.
const PAUSE: Duration = Duration::from_millis(50);

/// What is not written yet.
#[derive(Debug, Default)]
pub(crate) struct Board {
    latest: Mutex<HashMap<SandboxId, SessionState>>,
    rung: Notify,
}

impl Board {
    /// The session's state now.
    pub(crate) fn set(&self, session: &SandboxId, state: SessionState) {
        self.lock().insert(session.clone(), state);
        self.rung.notify_one();
    }

    /// The session is about to end, which is committed elsewhere.
    pub(crate) fn forget(&self, session: &SandboxId) {
        self.lock().remove(session);
    }

    /// Writes until it is aborted. Losing a state costs nothing but a watcher's view.
    pub(crate) async fn run(&self, ledger: &Ledger) {
        loop {
            self.rung.notified().await;
            clock::sleep(PAUSE).await;
            let states: Vec<(SandboxId, SessionState)> = self.lock().drain().collect();
            if !states.is_empty()
                && let Err(error) = ledger.sessions_advance(&states).await
            {
                tracing::warn!(%error, "states of sessions were not written");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, SessionState>> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_state_wins_and_an_ended_session_is_forgotten() {
        let board = Board::default();
        let [one, two] = ["sb00000000000000000001", "sb00000000000000000002"]
            .map(|id| SandboxId::parse(id).unwrap());
        board.set(&one, SessionState::Building);
        board.set(&one, SessionState::Executing);
        board.set(&two, SessionState::Executing);
        board.forget(&two);
        assert_eq!(board.lock().drain().collect::<Vec<_>>(), [(one, SessionState::Executing)]);
    }
}
