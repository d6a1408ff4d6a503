//! A watcher that keeps changes until they are asked for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Changes that a watcher keeps for its caller, and bytes of them; older ones are dropped first.
const MAX_KEPT: usize = 4_096;
const MAX_KEPT_BYTES: usize = 1024 * 1024;
/// How long a caller that asks for changes waits for the first one: who wrote a file before asks for its change. Those that
/// belong together come within the second time, and no caller waits longer than three of the first.
const HEARD_WITHIN: Duration = Duration::from_millis(100);
const QUIET: Duration = Duration::from_millis(20);

/// A watcher that keeps its changes. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watcher {
    pub kept: Arc<Mutex<ChangeQueue>>,
    /// Told of every change that is kept.
    pub arrived: Arc<Notify>,
    pub task: AbortHandle,
}

impl Watcher {
    /// Until the changes of what its caller saw end are kept.
    pub(crate) async fn settle(&self) {
        let has_none = || self.kept.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        let mut patience = if has_none() { HEARD_WITHIN } else { QUIET };
        let since = Stopwatch::start();
        while tokio::time::timeout(patience, self.arrived.notified()).await.is_ok()
            && since.elapsed() < 3 * HEARD_WITHIN
        {
            patience = QUIET;
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Changes that nobody asked for yet.
#[derive(Debug, Default)]
pub(crate) struct ChangeQueue {
    changes: VecDeque<(Value, usize)>,
    bytes: usize,
}

impl ChangeQueue {
    pub(crate) fn push(&mut self, change: Value) {
        let weight = change.to_string().len();
        self.bytes += weight;
        self.changes.push_back((change, weight));
        while self.changes.len() > MAX_KEPT || self.bytes > MAX_KEPT_BYTES {
            let Some((_, weight)) = self.changes.pop_front() else { return };
            self.bytes -= weight;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(crate) fn take(&mut self) -> Vec<Value> {
        self.bytes = 0;
        self.changes.drain(..).map(|(change, _)| change).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_that_nobody_asks_for_are_bounded_in_number_and_in_bytes() {
        let mut kept = ChangeQueue::default();
        for n in 0..=MAX_KEPT {
            kept.push(json!(n));
        }
        let small = kept.take();
        assert_eq!((small.len(), &small[0]), (MAX_KEPT, &json!(1)));
        let large = "x".repeat(MAX_KEPT_BYTES / 4);
        for n in 0..9 {
            kept.push(json!(format!("{n}{large}")));
        }
        assert_eq!((kept.take().len(), kept.bytes), (3, 0));
    }
}
