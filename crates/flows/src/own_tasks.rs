//! Tasks that a worker queues for itself: the statement that queues one may claim it, where a claim would.
//!
//! ```text
//! place: counted, and among the started --queued--> claimed: started at once
//!                                            \-----> not claimed, or refused: as if there had been none
//!                                             \----> nobody knows: what this worker owns and does not run is looked for
//! ```

use std::sync::Arc;

use cofferdam_contracts::id::{ExecutorId, TaskKey};
use cofferdam_ledger::engine::{TASK_WORKFLOW, WorkflowClaim};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::active_workflows::ActiveWorkflows;
use crate::slots::Slots;

/// Reservations at once. Each is counted as a task that runs, and what waits in the queue is not to wait for those. Between a claim's
/// look at the count and its commit so many more may be claimed than a worker runs at once.
const MAX_PLACES: usize = 4;

/// What a worker has of its own tasks.
#[derive(Debug, Clone)]
pub struct OwnTasks {
    executor: ExecutorId,
    slots: Arc<Slots>,
    started: Arc<ActiveWorkflows>,
    /// What starts them.
    starts: UnboundedSender<WorkflowClaim>,
    places: Arc<Semaphore>,
}

/// A reservation for a task that is about to be queued, until it is. Dropped without a word, it is in doubt.
#[derive(Debug)]
pub struct TaskReservation {
    own: OwnTasks,
    task: TaskKey,
    outcome: QueueOutcome,
    _of: OwnedSemaphorePermit,
}

/// What came of a task's queuing.
#[derive(Debug, PartialEq, Eq)]
enum QueueOutcome {
    Unknown,
    Started,
    NotClaimed,
}

impl OwnTasks {
    /// Of this worker, whose slots and workflows these are.
    pub(crate) fn new(
        executor: &ExecutorId,
        slots: &Arc<Slots>,
        started: &Arc<ActiveWorkflows>,
        starts: UnboundedSender<WorkflowClaim>,
    ) -> Self {
        let places = Arc::new(Semaphore::new(MAX_PLACES));
        let (slots, started) = (Arc::clone(slots), Arc::clone(started));
        Self { executor: executor.clone(), slots, started, starts, places }
    }

    /// A reservation for this task; `None`: it waits in its queue as every other does.
    #[must_use]
    pub fn place(&self, task: &TaskKey) -> Option<TaskReservation> {
        let of = Arc::clone(&self.places).try_acquire_owned().ok()?;
        self.slots.take(task.as_str());
        // Before it may be claimed: no look takes it for one that is lost.
        self.started.begin(task.as_str());
        Some(TaskReservation {
            own: self.clone(),
            task: task.clone(),
            outcome: QueueOutcome::Unknown,
            _of: of,
        })
    }

    /// The worker; `None`: it stops.
    #[must_use]
    pub fn executor(&self) -> Option<&ExecutorId> {
        Some(&self.executor).filter(|_| !self.places.is_closed())
    }

    /// The worker stops: it takes none any more.
    pub fn close(&self) {
        self.places.close();
    }
}

impl TaskReservation {
    /// It is queued, and is this worker's.
    pub fn start(mut self) {
        let (workflow_id, name) = (self.task.to_string(), TASK_WORKFLOW.to_owned());
        let sent = self.own.starts.send(WorkflowClaim { workflow_id, name, inputs: None });
        // Where nothing starts any, the worker ends, and what it owns is given back.
        self.outcome = if sent.is_ok() { QueueOutcome::Started } else { QueueOutcome::NotClaimed };
    }

    /// It is not this worker's: it waits in its queue, or is not there.
    pub fn unused(mut self) {
        self.outcome = QueueOutcome::NotClaimed;
    }
}

impl Drop for TaskReservation {
    fn drop(&mut self) {
        let Self { own, task, outcome, .. } = self;
        if *outcome == QueueOutcome::Started {
            return;
        }
        own.slots.leave(task.as_str());
        own.started.forget(task.as_str());
        if *outcome == QueueOutcome::Unknown {
            own.started.doubt();
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::canonical::digest_bytes;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[test]
    fn a_place_is_kept_by_what_is_started_alone_and_a_doubt_is_told() {
        let (starts, mut started) = unbounded_channel();
        let executor = ExecutorId::parse("ex_0").unwrap();
        let own = OwnTasks::new(&executor, &Arc::default(), &Arc::default(), starts);
        let key =
            |n: usize| TaskKey::parse(digest_bytes(&[u8::try_from(n).unwrap()]).as_str()).unwrap();
        let (one, two) = (key(1), key(2));
        let (first, second) = (own.place(&one).unwrap(), own.place(&two).unwrap());
        assert!(own.started.has(one.as_str()) && own.started.has(two.as_str()));
        assert_eq!(own.slots.taken(), 2);
        first.start();
        assert_eq!(started.try_recv().unwrap().workflow_id, one.as_str());
        assert!(!own.started.take_doubt());
        drop(second);
        assert!(own.started.take_doubt());
        assert!(own.started.has(one.as_str()) && !own.started.has(two.as_str()));
        own.place(&two).unwrap().unused();
        assert!(!own.started.take_doubt());
        // What is started has its reservation no more, and not more are given than there are.
        let all: Vec<TaskReservation> =
            (3..3 + MAX_PLACES).map(|n| own.place(&key(n)).unwrap()).collect();
        assert!(own.place(&two).is_none());
        drop(all);
        // Without anything that starts it, nothing is kept.
        drop(started);
        own.place(&two).unwrap().start();
        assert!(!own.started.has(two.as_str()));
        assert_eq!(own.slots.taken(), 1);
        assert_eq!(own.executor(), Some(&executor));
        own.close();
        assert!(own.place(&two).is_none() && own.executor().is_none());
    }
}
