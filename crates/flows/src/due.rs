//! Which queues a worker looks at next: those that rang, and all of them once a second. Pure.

use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ledger::engine::{CONTROL_QUEUE, INTENT_QUEUE, LIVE_QUEUE, SBX_QUEUE};
use cofferdam_ledger::listen::Wake;

/// Every queue is looked at this often, should a notification get lost, a foreign client enqueue, or nobody have been told.
const SAFETY_POLL: Duration = Duration::from_secs(1);
/// The queue of long-lived sandboxes is left alone so many times while tasks begin, unless it rings.
const PUT_OFF: u32 = 4;
/// The engine's own queue, where its `resume` and `fork` put work without a queue of its own.
pub(crate) const ENGINE_QUEUE: &str = "_dbos_internal_queue";
/// Tasks first: each is something that somebody waits for, and a run's workflow mostly waits itself.
const ORDER: [&str; 5] = [SBX_QUEUE, LIVE_QUEUE, CONTROL_QUEUE, ENGINE_QUEUE, INTENT_QUEUE];

/// The queues that are due.
#[derive(Debug)]
pub(crate) struct Due {
    queues: [(&'static str, bool); 5],
    polled: Stopwatch,
    /// How often the queue of long-lived sandboxes was left alone.
    put_off: u32,
}

impl Default for Due {
    fn default() -> Self {
        Self { queues: ORDER.map(|queue| (queue, true)), polled: Stopwatch::start(), put_off: 0 }
    }
}

impl Due {
    /// The next one, which is not due any more.
    pub(crate) fn take(&mut self) -> Option<&'static str> {
        let (queue, is_due) = self.queues.iter_mut().find(|(_, is_due)| *is_due)?;
        *is_due = false;
        Some(queue)
    }

    /// This one rang.
    pub(crate) fn ring(&mut self, name: &str) {
        for (queue, is_due) in &mut self.queues {
            *is_due |= *queue == name;
        }
    }

    /// What was heard; `None`: words were lost, and any queue may have rung.
    pub(crate) fn heard(&mut self, wake: Option<Wake>) {
        match wake {
            Some(Wake::Queue(name)) => self.ring(&name),
            Some(Wake::All) | None => self.all(),
            Some(_) => {}
        }
    }

    /// Until all are looked at.
    pub(crate) fn left(&self) -> Duration {
        SAFETY_POLL.saturating_sub(self.polled.elapsed())
    }

    /// All are looked at. Nobody waits for the workflow of a life; while tasks begin it would be in their way.
    pub(crate) fn poll(&mut self, tasks_begin: bool) {
        self.polled = Stopwatch::start();
        let puts_off = tasks_begin && self.put_off < PUT_OFF;
        self.put_off = if puts_off { self.put_off + 1 } else { 0 };
        self.all();
        if !puts_off {
            self.ring(LIVE_QUEUE);
        }
    }

    /// All but the queue of long-lived sandboxes: the next look at it is soon enough.
    fn all(&mut self) {
        for (queue, is_due) in &mut self.queues {
            *is_due |= *queue != LIVE_QUEUE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(due: &mut Due) -> Vec<&'static str> {
        std::iter::from_fn(|| due.take()).collect()
    }

    #[test]
    fn what_rang_is_looked_at_and_tasks_come_first() {
        let mut due = Due::default();
        assert_eq!(taken(&mut due), ORDER);
        for wake in [Wake::Queue(INTENT_QUEUE.into()), Wake::Queue(SBX_QUEUE.into())] {
            due.heard(Some(wake));
        }
        due.heard(Some(Wake::Queue("strange".into())));
        due.heard(Some(Wake::Run("rn_1".into())));
        assert_eq!(taken(&mut due), [SBX_QUEUE, INTENT_QUEUE]);
        due.heard(None);
        assert_eq!(taken(&mut due), [SBX_QUEUE, CONTROL_QUEUE, ENGINE_QUEUE, INTENT_QUEUE]);
        due.heard(Some(Wake::Queue(LIVE_QUEUE.into())));
        assert_eq!(taken(&mut due), [LIVE_QUEUE]);
    }

    #[test]
    fn long_lived_sandboxes_are_put_off_while_tasks_begin_but_not_for_ever() {
        let mut due = Due::default();
        taken(&mut due);
        let mut polled = |begins| {
            due.poll(begins);
            taken(&mut due).contains(&LIVE_QUEUE)
        };
        assert!(polled(false));
        let all: Vec<bool> = (0..10).map(|_| polled(true)).collect();
        assert_eq!(all.iter().filter(|looked| **looked).count(), 2, "{all:?}");
        assert!(polled(false));
        assert!(due.left() <= SAFETY_POLL);
    }
}
