//! Decides and executes. Everything that writes passes through here.
//!
//! ```text
//! shim --intents, submit, reply, ops--> ledger rows + queued workflow --NOTIFY--> dispatch
//!   dispatch --claim--> run workflow:  CompileST -> gate -> ExecuteST rounds -> finish
//!                       task workflow: begin -> sandbox -> finish (result + artifacts + wipe)
//! worker: heartbeats, leadership, takeover of the dead, orphans of this host
//! ```
//! **Workflows only control; steps only do IO; what is decided is decided in [`decide`], which is
//! pure. Every step may run again after a crash and then changes nothing that it changed before.**

mod board;
mod compile;
pub mod decide;
mod dispatch;
mod dispatches;
mod gate;
mod host;
pub mod intents;
pub mod keys;
pub mod ops;
mod output;
mod patience;
pub mod reply;
mod run;
pub mod submit;
mod takeover;
mod task;
mod worker;

pub use host::host_id;
pub use worker::{FlowsError, Worker, WorkerConfig};

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cofferdam_ambient::random::Ids;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::listen::Wakes;

/// What every entry point of this crate needs: the ledger, its wake-ups and where ids come from.
#[derive(Debug, Clone)]
pub struct Flows {
    /// Rows.
    pub ledger: Ledger,
    /// Wake-ups.
    pub wakes: Wakes,
    /// Fresh ids.
    pub ids: Ids,
    counter: Arc<AtomicU64>,
    /// Host directories that everybody's dispatches may be given, as far as this process knows.
    roots: Arc<[PathBuf]>,
}

impl Flows {
    /// Over one ledger.
    #[must_use]
    pub fn new(ledger: Ledger, wakes: Wakes, ids: Ids) -> Self {
        Self { ledger, wakes, ids, counter: Arc::default(), roots: Arc::new([]) }
    }

    /// The same with the host directories that everybody may be given.
    #[must_use]
    pub fn with_roots(self, roots: &[PathBuf]) -> Self {
        let real = roots.iter().filter_map(|root| root.canonicalize().ok());
        Self { roots: real.collect(), ..self }
    }

    /// A number that this process gives once: names what has no content of its own to be named by.
    fn sequence(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }
}
