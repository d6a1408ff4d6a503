//! The states of live sessions as watchers see them.
//!
//! A sandbox of a short task passes four states in thirty milliseconds. What is on record for ever is
//! its start and its end, and both commit with what they mean; the states between only say where it
//! is now. So the latest one of each session is kept here, and written for all of them at once, some
//! times a second: a busy worker writes a tenth as often, and a state that has passed costs nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::SessionState;
use cofferdam_contracts::session::Attestation;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::sessions::SessionMove;
use cofferdam_sandbox::KillHandle;
use tokio::sync::Notify;

/// How long a state waits; a watcher is at most twice as long behind.
const PAUSE: Duration = Duration::from_millis(50);

/// What is not written yet, and who lives.
#[derive(Debug, Default)]
pub(crate) struct SessionStates {
    latest: Mutex<HashMap<SandboxId, (SessionMove, Stopwatch)>>,
    alive: Mutex<HashMap<SandboxId, KillHandle>>,
    rung: Notify,
}

impl SessionStates {
    /// The session's sandbox exists: what it really is, and by what it is seen alive.
    pub(crate) fn made(&self, session: &SandboxId, attestation: Attestation, kill: KillHandle) {
        let facts = Some(attestation);
        let state = SessionState::Provisioning;
        let made = SessionMove { sandbox: session.clone(), state, attestation: facts };
        self.lock().insert(session.clone(), (made, Stopwatch::start()));
        self.kill_handles().insert(session.clone(), kill);
        self.rung.notify_one();
    }

    /// The session's state now.
    pub(crate) fn set(&self, session: &SandboxId, state: SessionState) {
        let fresh = || {
            let sandbox = session.clone();
            (SessionMove { sandbox, state, attestation: None }, Stopwatch::start())
        };
        self.lock().entry(session.clone()).or_insert_with(fresh).0.state = state;
        self.rung.notify_one();
    }

    /// The session is about to end, which is committed elsewhere.
    pub(crate) fn forget(&self, session: &SandboxId) {
        self.lock().remove(session);
        self.kill_handles().remove(session);
    }

    /// The sandboxes that are seen alive now.
    pub(crate) fn alive(&self) -> Vec<SandboxId> {
        let kill_handles = self.kill_handles();
        kill_handles.iter().filter(|(_, kill)| kill.is_alive()).map(|(id, _)| id.clone()).collect()
    }

    /// Writes until it is aborted. Losing a state costs nothing but a watcher's view.
    pub(crate) async fn run(&self, ledger: &Ledger) {
        loop {
            self.rung.notified().await;
            clock::sleep(PAUSE).await;
            let moves = self.due(PAUSE);
            if !moves.is_empty()
                && let Err(error) = ledger.sessions().advance(&moves).await
            {
                tracing::warn!(%error, "states of sessions were not written");
            }
        }
    }

    /// Those that have waited for so long; rings for the others.
    fn due(&self, pause: Duration) -> Vec<SessionMove> {
        let mut latest = self.lock();
        let due = latest.extract_if(|_, (_, since)| since.elapsed() >= pause);
        let due = due.map(|(_, (one, _))| one).collect();
        if !latest.is_empty() {
            self.rung.notify_one();
        }
        due
    }

    fn kill_handles(&self) -> MutexGuard<'_, HashMap<SandboxId, KillHandle>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, (SessionMove, Stopwatch)>> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_state_wins_and_an_ended_session_is_forgotten() {
        let session_states = SessionStates::default();
        let [one, two] = ["sb00000000000000000001", "sb00000000000000000002"]
            .map(|id| SandboxId::parse(id).unwrap());
        session_states.set(&one, SessionState::Building);
        session_states.set(&one, SessionState::Executing);
        session_states.set(&two, SessionState::Executing);
        session_states.forget(&two);
        assert!(session_states.due(Duration::from_secs(3_600)).is_empty(), "it is too young");
        let left: Vec<_> = session_states
            .due(Duration::ZERO)
            .into_iter()
            .map(|one| (one.sandbox, one.state))
            .collect();
        assert_eq!(left, [(one, SessionState::Executing)]);
    }
}
