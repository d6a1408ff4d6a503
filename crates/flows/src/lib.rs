//! Decides and executes. Everything that writes passes through here.
//!
//! ```text
//! API --intents, submit, reply, ops--> ledger rows + queued workflow --NOTIFY--> claims (a worker's)
//!   claims --> run workflow:  CompileST -> gate -> ExecuteST rounds -> finish
//!              task workflow: begin -> sandbox -> finish (result + artifacts + wipe)
//! worker: heartbeats, leadership, takeover of the dead, orphans of this host
//! ```
//! **Workflows only control; steps only do IO; what is decided is decided in [`decide`], which is
//! pure. Every step may run again after a crash and then changes nothing that it changed before.**

mod again;
mod applies;
mod ask;
mod attempt;
mod board;
mod built_in;
mod cache;
pub mod checks;
mod claims;
mod compile;
pub mod config;
pub mod decide;
pub mod delegations;
mod deps;
mod dispatches;
mod drive;
mod due;
mod egress;
mod error;
mod evict;
mod executor;
pub mod feed;
mod flight;
mod floor;
mod flow;
mod gates;
mod handed;
mod heart;
mod host;
pub mod intents;
mod keeper;
pub mod keys;
pub mod links;
pub mod live;
mod memory;
mod models;
mod notify;
pub mod ops;
mod outbound;
mod output;
mod own_tasks;
mod patches;
mod patience;
pub mod places;
mod plan_text;
mod planned;
mod planner;
pub mod recipes;
mod resume;
pub mod retry;
mod round;
mod run;
pub mod secrets;
pub mod settle;
mod sign;
mod slots;
mod staged;
mod started;
mod strict;
pub mod submit;
mod takeover;
mod task;
mod this;
mod up;
mod vault;
mod verdict;
mod watched;
pub mod webhooks;
mod worker;

pub use error::{Error, Result};
pub use host::host_id;
pub use outbound::Reach;
pub use sign::Signer;
pub use vault::{Vault, VaultError};
pub use worker::{StartError, Worker, WorkerConfig};

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cofferdam_ambient::random::Ids;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::listen::Wakes;
use cofferdam_sandbox::Allowed;

/// What every entry point of this crate needs: the ledger, its wake-ups and where ids come from.
#[derive(Debug, Clone)]
pub struct Flows {
    /// Connection to the ledger.
    pub ledger: Ledger,
    /// Wake-ups by notification.
    pub wakes: Wakes,
    /// Fresh ids.
    pub ids: Ids,
    /// The installation's key, where this host has it.
    signer: Option<Arc<Signer>>,
    /// The key of secrets, where this host has it.
    vault: Option<Arc<Vault>>,
    /// Where this host keeps the files of snapshots.
    kept: Option<Arc<live::Shelf>>,
    /// Where this host keeps what clients sent for builds of templates.
    uploads: Option<Arc<live::Shelf>>,
    /// What is being kept and is on no record yet.
    unrecorded: Arc<live::UnrecordedBytes>,
    /// Layers of paused sandboxes that are to be sealed.
    plain: Arc<live::PlainLayers>,
    /// Which addresses webhooks may reach.
    reach: Reach,
    guesses: Arc<links::Guesses>,
    /// For calls of models.
    model_clients: Arc<models::Clients>,
    counter: Arc<AtomicU64>,
    /// Outputs that clients of this process wait for.
    pub feeds: Arc<feed::Feeds>,
    /// Sandboxes that this process holds, and those that it asked for.
    live: Arc<live::Registry>,
    /// The state directory of this host, where its templates are.
    state_dir: Option<Arc<Path>>,
    /// Host directories that everybody's dispatches may be given, as far as this process knows.
    allowed: Arc<Allowed>,
    /// Whether models without a credential are refused.
    is_strict: bool,
}

/// The version of OpenCode's daemon that plans are made by; another one is refused.
pub const OPENCODE: &str = cofferdam_opencode::VERSION;

impl Flows {
    /// Over one ledger.
    #[must_use]
    pub fn new(ledger: Ledger, wakes: Wakes, ids: Ids) -> Self {
        Self {
            ledger,
            wakes,
            ids,
            signer: None,
            vault: None,
            kept: None,
            uploads: None,
            unrecorded: Arc::default(),
            plain: Arc::default(),
            reach: Reach::default(),
            guesses: Arc::default(),
            model_clients: Arc::default(),
            state_dir: None,
            allowed: Arc::default(),
            live: Arc::default(),
            counter: Arc::default(),
            feeds: Arc::default(),
            is_strict: false,
        }
    }

    /// With what webhooks and reply links need.
    #[must_use]
    pub fn with_signing(self, signer: Option<Signer>, reach: Reach) -> Self {
        Self { signer: signer.map(Arc::new), reach, ..self }
    }

    /// With the key that secrets are sealed under.
    #[must_use]
    pub fn with_vault(self, vault: Option<Vault>) -> Self {
        Self { vault: vault.map(Arc::new), ..self }
    }

    /// With a directory for the files of snapshots, and one beside it for what is sent for templates.
    #[must_use]
    pub fn with_snapshots(self, dir: &Path) -> Self {
        if let Some(state) = dir.parent() {
            cofferdam_ambient::own::declare(state);
        }
        let uploads = Some(Arc::new(live::Shelf::of(&dir.with_file_name("uploads"))));
        Self { kept: Some(Arc::new(live::Shelf::of(dir))), uploads, ..self }
    }

    /// Whether this host can sign and check.
    #[must_use]
    pub fn is_signing(&self) -> bool {
        self.signer.is_some()
    }

    /// With the host directories that everybody may be given, but for what lies in this state directory, whose
    /// templates sandboxes can be made of.
    #[must_use]
    pub fn with_roots(self, roots: &[PathBuf], state: &Path) -> Self {
        let allowed = Allowed::present(roots, vec![state.to_owned()]);
        Self { allowed: Arc::new(allowed), state_dir: Some(Arc::from(state)), ..self }
    }

    /// A number that this process gives once: names what has no content of its own to be named by.
    fn sequence(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }
}
