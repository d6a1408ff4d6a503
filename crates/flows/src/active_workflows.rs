//! What this process runs of the engine's workflows, whatever the ledger says.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;

/// A statement whose answer was lost may commit so long after that: the database gives each 10 s.
const LATE: Duration = Duration::from_secs(15);

/// The workflows that this process runs.
#[derive(Debug, Default)]
pub(crate) struct ActiveWorkflows(Mutex<ActiveTable>);

#[derive(Debug, Default)]
struct ActiveTable {
    /// How often: one that was canceled and resumed may start again before its first run is over.
    ids: HashMap<String, u32>,
    /// Whether something may be owned and not run, and nobody has looked yet.
    doubt: bool,
    /// Since when that may be so.
    doubted: Option<Stopwatch>,
}

impl ActiveWorkflows {
    /// One begins: before it may be looked for.
    pub(crate) fn begin(&self, id: &str) {
        *self.lock().ids.entry(id.to_owned()).or_insert(0) += 1;
    }

    /// One has ended, so.
    pub(crate) fn end<T, E>(&self, id: &str, ended: &dbos::Result<T, E>) {
        self.forget(id);
        // An end that is on record needs no second look.
        let is_recorded = matches!(
            ended,
            Ok(_) | Err(dbos::Error::Application(_) | dbos::Error::WorkflowCancelled { .. })
        );
        if !is_recorded {
            self.doubt();
        }
    }

    /// It did not begin, or is not counted any more.
    pub(crate) fn forget(&self, id: &str) {
        let mut known = self.lock();
        if let Some(count) = known.ids.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                known.ids.remove(id);
            }
        }
    }

    /// Whether it runs.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.lock().ids.contains_key(id)
    }

    /// Something may be owned and not run.
    pub(crate) fn doubt(&self) {
        let mut known = self.lock();
        known.doubt = true;
        known.doubted = Some(Stopwatch::start());
    }

    /// Whether that is so since the last time that it was asked.
    pub(crate) fn take_doubt(&self) -> bool {
        std::mem::take(&mut self.lock().doubt)
    }

    /// Call it now and then: what was in doubt is so until nothing of it can come any more.
    pub(crate) fn doubt_on(&self) {
        let mut known = self.lock();
        known.doubt |= known.doubted.is_some_and(|since| since.elapsed() < LATE);
    }

    fn lock(&self) -> MutexGuard<'_, ActiveTable> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_is_looked_into_more_than_once() {
        let started = ActiveWorkflows::default();
        started.doubt_on();
        assert!(!started.take_doubt(), "nothing was in doubt");
        started.doubt();
        assert!(started.take_doubt() && !started.take_doubt());
        started.doubt_on();
        assert!(started.take_doubt(), "what was lost may commit after the first look");
    }
}
