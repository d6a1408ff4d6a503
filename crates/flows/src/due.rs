//! Which queues a worker looks at next: those that rang, and all of them once a second. Pure.

use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ledger::engine::{CONTROL_QUEUE, INTENT_QUEUE, LIVE_QUEUE, SBX_QUEUE};
use cofferdam_ledger::listen::Wake;

/// Every queue is looked at this often, should a notification get lost, a foreign client enqueue, or nobody have been told.
const SAFETY_POLL: Duration = Duration::from_secs(1);
/// From what somebody waited for to what nobody does: the run's workflow of a life that ended, files that are not needed any more.
/// Who ends one sandbox often begins the next at once, and that one has the processors and the database for itself.
pub(crate) const REST: Duration = Duration::from_millis(100);
/// The queue of long-lived sandboxes is left alone so many times while tasks begin, unless a life ended.
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
    /// The first end of a life since the last look.
    ended: Option<Stopwatch>,
    /// How often the queue of long-lived sandboxes was left alone.
    put_off: u32,
}

impl Default for Due {
    fn default() -> Self {
        let queues = ORDER.map(|queue| (queue, true));
        Self { queues, polled: Stopwatch::start(), ended: None, put_off: 0 }
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

    /// A life ended: its run does, too.
    pub(crate) fn life_ended(&mut self) {
        self.ended.get_or_insert_with(Stopwatch::start);
    }

    /// Until a queue is due without a word.
    pub(crate) fn left(&self) -> Duration {
        let rest = self.ended.as_ref().map(|since| REST.saturating_sub(since.elapsed()));
        let poll = SAFETY_POLL.saturating_sub(self.polled.elapsed());
        rest.map_or(poll, |rest| rest.min(poll))
    }

    /// That time has passed. Nobody waits for the workflow of a life; while tasks begin it would be in their way. Whether all were
    /// looked at.
    pub(crate) fn passed(&mut self, tasks_begin: bool) -> bool {
        self.passed_at(
            tasks_begin,
            self.polled.elapsed(),
            self.ended.as_ref().map(Stopwatch::elapsed),
        )
    }

    fn passed_at(&mut self, tasks_begin: bool, polled: Duration, ended: Option<Duration>) -> bool {
        if ended.is_some_and(|since| since >= REST) {
            self.look_for_lives();
        }
        let polls = polled >= SAFETY_POLL;
        if polls {
            self.polled = Stopwatch::start();
            self.all();
            match tasks_begin && self.put_off < PUT_OFF {
                true => self.put_off += 1,
                false => self.look_for_lives(),
            }
        }
        polls
    }

    fn look_for_lives(&mut self) {
        (self.put_off, self.ended) = (0, None);
        self.ring(LIVE_QUEUE);
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
            assert!(due.passed_at(begins, SAFETY_POLL, None));
            taken(&mut due).contains(&LIVE_QUEUE)
        };
        assert!(polled(false));
        let all: Vec<bool> = (0..10).map(|_| polled(true)).collect();
        assert_eq!(all.iter().filter(|looked| **looked).count(), 2, "{all:?}");
        assert!(polled(false));
        assert!(due.left() <= SAFETY_POLL);
    }

    #[test]
    fn the_run_of_a_life_is_looked_for_a_moment_after_its_end() {
        let mut due = Due::default();
        taken(&mut due);
        due.life_ended();
        assert!(due.left() <= REST);
        let early = REST / 2;
        assert!(!due.passed_at(true, early, Some(early)));
        assert_eq!(taken(&mut due), [""; 0]);
        assert!(!due.passed_at(true, REST, Some(REST)));
        assert_eq!(taken(&mut due), [LIVE_QUEUE]);
        assert!(due.left() > REST, "none has ended since");
    }
}
