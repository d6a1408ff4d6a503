//! What a worker makes on its host, which ends with the worker.

use std::sync::{Arc, PoisonError, RwLock};

/// Admits what is made on the host. Closing it waits for what is being made; nothing is made after that.
#[derive(Debug, Clone, Default)]
pub(crate) struct Intake(Arc<RwLock<bool>>);

impl Intake {
    /// Does it while nobody may close the intake; `None`: it is closed.
    pub(super) fn within<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let closed = self.0.read().unwrap_or_else(PoisonError::into_inner);
        (!*closed).then(work)
    }

    /// Returns when nothing is being made any more. Blocking, for milliseconds.
    pub(crate) fn close(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = true;
    }
}
