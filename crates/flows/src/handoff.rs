//! A task's success is handed to its run in memory where one process has both; the ledger is not asked again.
//!
//! ```text
//! a round queues its attempts ---expected---> handed <---ending, succeeded--- a task of this process commits its end
//!         |                                      |
//!         \--woken: was one handed? yes: done with it; no: the ledger is asked (another worker's, or no success)
//! ```
//! The database wakes the round before it answers the task that writes its end. So a round waits a moment for that task.
//!
//! A run and its tasks are mostly one worker's, which then knows what the ledger would answer. **Only what is committed is
//! handed on, and only success**: what becomes of a failure depends on more than its own row.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::TaskKey;
use tokio::sync::mpsc;

/// How long a round waits for an end that is being written; then it asks the ledger, which costs a statement.
const GRACE: Duration = Duration::from_millis(100);

/// The attempts that rounds of this process wait for.
#[derive(Debug, Default)]
pub(crate) struct Handoff(Mutex<HashMap<TaskKey, RoundWaiter>>);

/// An attempt that a round waits for.
#[derive(Debug)]
struct RoundWaiter {
    /// Where the round hears of its success, or, with none, that its end is to be asked for.
    round: mpsc::UnboundedSender<Option<TaskKey>>,
    /// Whether its end is being written by this process.
    is_ending: bool,
}

impl Handoff {
    /// The end of an attempt of this process is about to be written.
    pub(crate) fn ending<'a>(&'a self, key: &'a TaskKey) -> EndGuard<'a> {
        if let Some(wanted) = self.lock().get_mut(key) {
            wanted.is_ending = true;
        }
        EndGuard { handed: self, key }
    }

    /// Attempts of one round, expected until the value is dropped.
    pub(crate) fn expect(&self) -> RoundWait<'_> {
        // It holds at most the round's attempts.
        let (round, heard) = mpsc::unbounded_channel();
        RoundWait { handed: self, keys: Vec::new(), round, heard }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TaskKey, RoundWaiter>> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An end that is being written, until the value is dropped.
#[derive(Debug)]
pub(crate) struct EndGuard<'a> {
    handed: &'a Handoff,
    key: &'a TaskKey,
}

impl EndGuard<'_> {
    /// The attempt has succeeded, its sandbox is provably gone, and both are committed.
    pub(crate) fn succeeded(self) {
        if let Some(wanted) = self.handed.lock().remove(self.key) {
            // An error means that the round is over.
            let _ = wanted.round.send(Some(self.key.clone()));
        }
    }
}

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        if let Some(wanted) = self.handed.lock().get_mut(self.key) {
            wanted.is_ending = false;
            let _ = wanted.round.send(None);
        }
    }
}

/// What one round expects.
#[derive(Debug)]
pub(crate) struct RoundWait<'a> {
    handed: &'a Handoff,
    keys: Vec<TaskKey>,
    round: mpsc::UnboundedSender<Option<TaskKey>>,
    heard: mpsc::UnboundedReceiver<Option<TaskKey>>,
}

impl RoundWait<'_> {
    /// Expects one more. Before it is queued: it may have succeeded before its queuing is answered.
    pub(crate) fn add(&mut self, key: &TaskKey) {
        let wanted = RoundWaiter { round: self.round.clone(), is_ending: false };
        self.handed.lock().insert(key.clone(), wanted);
        self.keys.push(key.clone());
    }

    /// Those that have succeeded since the last look. Where there is none, one whose end is being written is waited for.
    pub(crate) async fn take(&mut self) -> Vec<TaskKey> {
        let mut all = self.heard();
        if all.is_empty() && self.is_any_ending() {
            tokio::select! {
                one = self.heard.recv() => all.extend(one.flatten()),
                () = clock::sleep(GRACE) => {}
            }
            all.extend(self.heard());
        }
        all
    }

    fn heard(&mut self) -> Vec<TaskKey> {
        std::iter::from_fn(|| self.heard.try_recv().ok()).flatten().collect()
    }

    fn is_any_ending(&self) -> bool {
        let all = self.handed.lock();
        self.keys.iter().any(|key| all.get(key).is_some_and(|wanted| wanted.is_ending))
    }
}

impl Drop for RoundWait<'_> {
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

    #[tokio::test]
    async fn a_success_is_handed_once_to_the_round_that_expects_it_and_to_no_other() {
        let handed = Handoff::default();
        let [one, two, strange] = ["one", "two", "strange"].map(key);
        let mut expected = handed.expect();
        expected.add(&one);
        expected.add(&two);
        handed.ending(&two).succeeded();
        handed.ending(&strange).succeeded();
        assert_eq!(expected.take().await, [two]);
        assert!(expected.take().await.is_empty());
        drop(expected);
        handed.ending(&one).succeeded();
        assert!(handed.lock().is_empty(), "nobody expects it any more");
    }

    #[tokio::test]
    async fn an_end_that_is_being_written_is_waited_for_and_one_that_is_no_success_is_asked_for() {
        let handed = Handoff::default();
        let all = ["one", "two"].map(key);
        let mut expected = handed.expect();
        all.iter().for_each(|key| expected.add(key));
        let [one, two] = &all;
        let ending = handed.ending(one);
        let (taken, ()) = tokio::join!(expected.take(), async {
            tokio::task::yield_now().await;
            ending.succeeded();
        });
        assert_eq!(taken, std::slice::from_ref(one));
        let ending = handed.ending(two);
        assert!(expected.take().await.is_empty(), "it takes longer than a round waits");
        let (taken, ()) = tokio::join!(expected.take(), async { drop(ending) });
        assert!(taken.is_empty() && !expected.is_any_ending(), "{taken:?}");
    }
}
