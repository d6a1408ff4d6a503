//! Successes that reach their run within the process that had them.
//!
//! ```text
//! a round queues its attempts ---expected---> handed <---succeeded--- a task of this process commits its end
//!         |                                      |
//!         \--woken: was one handed? yes: done with it; no: the ledger is asked (another worker's, or no success)
//! ```
//! A run and its tasks are mostly one worker's, which then knows what the ledger would answer. **Only what is committed is
//! handed on, and only success**: what becomes of a failure depends on more than its own row.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cofferdam_contracts::id::TaskKey;
use tokio::sync::mpsc;

/// The attempts that rounds of this process wait for, and where each round hears of them.
#[derive(Debug, Default)]
pub(crate) struct Handed(Mutex<HashMap<TaskKey, mpsc::UnboundedSender<TaskKey>>>);

impl Handed {
    /// An attempt of this process has succeeded, its sandbox is provably gone, and both are committed.
    pub(crate) fn succeeded(&self, key: &TaskKey) {
        if let Some(round) = self.lock().remove(key) {
            // An error means that the round is over.
            let _ = round.send(key.clone());
        }
    }

    /// Attempts of one round, expected until the value is dropped.
    pub(crate) fn expect(&self) -> Awaited<'_> {
        // It holds at most the round's attempts.
        let (round, heard) = mpsc::unbounded_channel();
        Awaited { handed: self, keys: Vec::new(), round, heard }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TaskKey, mpsc::UnboundedSender<TaskKey>>> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one round expects.
#[derive(Debug)]
pub(crate) struct Awaited<'a> {
    handed: &'a Handed,
    keys: Vec<TaskKey>,
    round: mpsc::UnboundedSender<TaskKey>,
    heard: mpsc::UnboundedReceiver<TaskKey>,
}

impl Awaited<'_> {
    /// Expects one more. Before it is queued: it may have succeeded before its queuing is answered.
    pub(crate) fn add(&mut self, key: &TaskKey) {
        self.handed.lock().insert(key.clone(), self.round.clone());
        self.keys.push(key.clone());
    }

    /// Those that have succeeded since the last look.
    pub(crate) fn take(&mut self) -> Vec<TaskKey> {
        std::iter::from_fn(|| self.heard.try_recv().ok()).collect()
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        let mut all = self.handed.lock();
        for key in &self.keys {
            all.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::canonical::digest_bytes;

    use super::*;

    fn key(text: &str) -> TaskKey {
        TaskKey::parse(digest_bytes(text.as_bytes()).as_str()).unwrap()
    }

    #[test]
    fn a_success_is_handed_once_to_the_round_that_expects_it_and_to_no_other() {
        let handed = Handed::default();
        let [one, two, strange] = ["one", "two", "strange"].map(key);
        let mut expected = handed.expect();
        expected.add(&one);
        expected.add(&two);
        handed.succeeded(&two);
        handed.succeeded(&strange);
        assert_eq!(expected.take(), [two]);
        assert!(expected.take().is_empty());
        drop(expected);
        handed.succeeded(&one);
        assert!(handed.lock().is_empty(), "nobody expects it any more");
    }
}
