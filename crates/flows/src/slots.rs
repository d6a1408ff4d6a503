//! The slots of a worker for tasks, and who is told when one is free.
//!
//! ```text
//! claimed --take--> a slot --its end, or a long-lived sandbox that is up: leave--> free: rung, where tasks wait
//! ```
//! **A task has one slot at most, and gives it back once**, whichever of both comes first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// After so many ended runs more are asked for.
const RUNS_A_TURN: u32 = 16;

/// What this process has of the queues' slots.
#[derive(Debug)]
pub(crate) struct Slots {
    /// How often a task has one: one that was canceled and resumed may start again before its first run is over.
    taken: Mutex<HashMap<String, u32>>,
    /// Whether tasks may wait that the limits kept back: what the last claim said. Where none does, the next one that is
    /// queued notifies.
    waiting: AtomicBool,
    /// Rung when a task gives its slot back while more may wait.
    pub room: Notify,
    /// Rung when runs have ended while more may wait.
    pub turn: Notify,
    /// Rung when the task of a life has ended, whose run may wait to be claimed.
    pub life: Notify,
    /// Runs that have ended since the start.
    runs_ended: AtomicU32,
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            taken: Mutex::default(),
            waiting: AtomicBool::new(true),
            room: Notify::new(),
            turn: Notify::new(),
            life: Notify::new(),
            runs_ended: AtomicU32::new(0),
        }
    }
}

impl Slots {
    /// How many tasks have one.
    pub(crate) fn taken(&self) -> i32 {
        let sum: u32 = self.with(|taken| taken.values().sum());
        i32::try_from(sum).unwrap_or(i32::MAX)
    }

    pub(crate) fn take(&self, task: &str) {
        self.with(|taken| *taken.entry(task.to_owned()).or_insert(0) += 1);
    }

    /// Gives the task's slot back, if it has one.
    pub(crate) fn leave(&self, task: &str) {
        let had = self.with(|taken| {
            let Some(count) = taken.get_mut(task) else { return false };
            *count -= 1;
            if *count == 0 {
                taken.remove(task);
            }
            true
        });
        if had && self.waiting.load(Ordering::Acquire) {
            self.room.notify_one();
        }
    }

    /// Whether tasks may wait from now on.
    pub(crate) fn wait(&self, may: bool) {
        self.waiting.store(may, Ordering::Release);
    }

    /// A tenant with a backlog gets its next runs when some have ended, several at a time: a claim for each
    /// would cost every run a statement.
    pub(crate) fn run_ended(&self) {
        let ended = self.runs_ended.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        if ended.is_multiple_of(RUNS_A_TURN) {
            self.turn.notify_one();
        }
    }

    /// A long-lived sandbox is up, and on record beside the queues: its task has no slot any more, nor has its run.
    pub(crate) fn stepped_aside(&self, task: &str) {
        self.leave(task);
        self.run_ended();
    }

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<String, u32>) -> T) -> T {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        change(&mut self.taken.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back_once_whichever_end_comes_first() {
        let slots = Slots::default();
        slots.take("held");
        slots.take("task");
        assert_eq!(slots.taken(), 2);
        slots.stepped_aside("held");
        assert_eq!(slots.taken(), 1);
        // The end of what stepped aside frees nobody else's slot.
        slots.leave("held");
        slots.leave("never claimed here");
        assert_eq!(slots.taken(), 1);
        // Started again before its first run is over.
        slots.take("task");
        slots.leave("task");
        assert_eq!(slots.taken(), 1);
        slots.leave("task");
        assert_eq!(slots.taken(), 0);
    }

    #[tokio::test]
    async fn a_free_place_is_told_where_tasks_wait_and_nowhere_else() {
        let slots = Slots::default();
        let told = async |slots: &Slots| {
            let heard = slots.room.notified();
            tokio::time::timeout(std::time::Duration::from_millis(20), heard).await.is_ok()
        };
        for may in [true, false] {
            slots.wait(may);
            slots.take("held");
            slots.stepped_aside("held");
            assert_eq!(told(&slots).await, may);
        }
        slots.wait(true);
        slots.leave("held");
        assert!(!told(&slots).await, "it had none");
    }
}
