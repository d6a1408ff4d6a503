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
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! worker
//! claims
//! run
//! again staged
//! round
//! task
//! resume
//! long_lived
//! drive up
//! deps gates::wait
//! gates::consent planned watched
//! dispatches::watch planner this
//! compile dispatches models::calls
//! dispatches::equip dispatches::work flight links models::desk submit takeover
//! built_in cache dispatches::agents dispatches::model gates::reply heart intents keeper models::ask
//!    models::prompt models::send recipes
//! applies checks config delegations dispatches::events dispatches::import dispatches::programs egress
//!    executor floor flow keys models::admit models::client models::keys models::providers notify ops
//!    own_tasks patience plan_text quota retry secrets settle strict webhooks
//! ask attempt board decide dispatches::changes dispatches::event_line dispatches::findings
//!    dispatches::project dispatches::tool_uses dispatches::tools due error evict feed gates guesses handed
//!    host memory models models::hash models::judge models::leak models::pipe models::room
//!    models::within outbound output patches places sign slots started tidy vault verdict
//! ```

mod again;
mod applies;
mod ask;
mod attempt;
mod board;
pub mod built_in;
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
pub mod egress;
mod error;
mod evict;
mod executor;
pub mod feed;
mod flight;
pub mod floor;
mod flow;
mod gates;
mod guesses;
mod handed;
mod heart;
mod host;
pub mod intents;
mod keeper;
pub mod keys;
pub mod links;
mod long_lived;
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
pub mod quota;
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
mod tidy;
mod up;
mod vault;
mod verdict;
mod watched;
pub mod webhooks;
mod worker;

pub use attempt::End;
pub use error::{Error, Result};
pub use host::host_id;
pub use long_lived::{Attempt, BoxFuture, LongLived};
pub use memory::{MemoryBudget, MemoryShare, TooLarge, WaitsFor};
pub use outbound::Reach;
pub use own_tasks::{OwnTasks, Place};
pub use patience::patiently;
pub use planned::{HostPlan, Unplanned};
pub use sign::Signer;
pub use up::Up;
pub use vault::{FileKey, Vault, VaultError};
pub use worker::{StartError, Worker, WorkerConfig};

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

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
    /// How files of rows that are erased are removed, where this process keeps some.
    tidy: Arc<OnceLock<tidy::Tidy>>,
    /// Which addresses webhooks may reach.
    reach: Reach,
    guesses: Arc<guesses::Guesses>,
    /// For calls of models.
    model_clients: Arc<models::Clients>,
    counter: Arc<AtomicU64>,
    /// Outputs that clients of this process wait for.
    pub feeds: Arc<feed::Feeds>,
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
            tidy: Arc::default(),
            reach: Reach::default(),
            guesses: Arc::default(),
            model_clients: Arc::default(),
            allowed: Arc::default(),
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

    /// When a tenant's quota is full and its layers make room, `tidy` begins to remove their files. Set once.
    pub fn when_full(&self, tidy: impl Fn() + Send + Sync + 'static) {
        // Whoever keeps files is made once for a process.
        let _ = self.tidy.set(tidy::Tidy(Box::new(tidy)));
    }

    /// Whether this host can sign and check.
    #[must_use]
    pub fn is_signing(&self) -> bool {
        self.signer.is_some()
    }

    /// With the host directories that everybody may be given, but for what lies in this state directory.
    #[must_use]
    pub fn with_roots(self, roots: &[PathBuf], state: &Path) -> Self {
        let allowed = Allowed::present(roots, vec![state.to_owned()]);
        Self { allowed: Arc::new(allowed), ..self }
    }

    /// A number that this process gives once: names what has no content of its own to be named by.
    fn sequence(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }
}
