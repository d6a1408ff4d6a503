//! One sandbox as envd's clients see it.

pub(crate) mod process;
pub(crate) mod processes;
pub(crate) mod watcher;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_live::Guest;
use tokio::sync::OnceCell;

use crate::envd::state::process::Process;
use crate::envd::state::watcher::Watcher;

/// Watchers without a stream of their own.
pub(crate) const MAX_WATCHERS: usize = 8;

/// A running sandbox.
#[derive(Debug)]
pub(crate) struct Envd {
    pub guest: Guest,
    processes: Mutex<HashMap<u32, Arc<Process>>>,
    watchers: Mutex<HashMap<String, Arc<Watcher>>>,
    /// Once the commands that a pause did not end are in the list.
    pub adopted: OnceCell<()>,
}

impl Envd {
    pub(crate) fn of(guest: Guest) -> Arc<Self> {
        let adopted = OnceCell::new();
        Arc::new(Self { guest, processes: Mutex::default(), watchers: Mutex::default(), adopted })
    }

    pub(crate) fn processes(&self) -> MutexGuard<'_, HashMap<u32, Arc<Process>>> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn watchers(&self) -> MutexGuard<'_, HashMap<String, Arc<Watcher>>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
