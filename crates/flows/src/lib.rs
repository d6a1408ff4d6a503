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
//! retry_entry stages
//! graph_run round
//! graph_gates graph_rows
//! task
//! live_sandboxes resume
//! drive ready_sandbox
//! deps gates::wait input_files task_outputs task_trees
//! gates::consent host_plan task_input task_streams verdict
//! output_files
//! dispatches::import dispatches::watch takeover workflow_context
//! compile dispatches flight intents models::calls ops retry settle submit triggers
//! cache delegations dispatches::equip dispatches::work heartbeat links models::gateway models::keys repo_refs retention runs
//!    service_images strict
//! static_recipe dispatches::agents dispatches::model executor gates::reply task_secrets models::ask models::prompt
//!    models::providers models::send notify objects project_patch recipes test_reports tree_shares
//! applies bases checks config dispatches::events dispatches::programs egress floor flow keys models::admit
//!    models::client own_tasks patience driver plan_text quota secrets webhooks
//! admission graph tree_sweep trees
//! graph::refusal
//! graph::state
//! graph::failure graph::group
//! graph::action
//! file_lister tree_uploads
//! ask attempt feed session_states box_future decide dispatches::changes dispatches::event_line dispatches::findings
//!    dispatches::project dispatches::tool_uses dispatches::tools disk_reads due error evict fresh_ids gates guesses
//!    handoff host memory models models::hash models::judge models::leak models::pipe models::answer_budget models::prompt_position
//!    outbound output output_values patches run_files key_slots sign slots active_workflows toolchains vault
//! client_input
//! input_queue draft_objects
//! ```

mod active_workflows;
mod admission;
mod applies;
mod ask;
mod attempt;
mod bases;
mod box_future;
mod cache;
pub mod checks;
mod claims;
mod client_input;
mod compile;
pub mod config;
pub mod decide;
pub mod delegations;
mod deps;
pub mod disk_reads;
mod dispatches;
mod draft_objects;
mod drive;
mod driver;
mod due;
pub mod egress;
mod error;
mod evict;
mod executor;
pub mod feed;
mod file_lister;
mod flight;
pub mod floor;
mod flow;
mod fresh_ids;
mod gates;
pub mod graph;
mod graph_gates;
mod graph_rows;
mod graph_run;
mod guesses;
mod handoff;
mod heartbeat;
mod host;
mod host_plan;
mod input_files;
mod input_queue;
pub mod intents;
pub mod key_slots;
pub mod keys;
pub mod links;

mod live_sandboxes;
mod memory;
mod models;
mod notify;
pub mod objects;
pub mod ops;
mod outbound;
mod output;
mod output_files;
mod output_values;
mod own_tasks;
mod patches;
mod patience;
mod plan_text;
pub mod project_patch;
mod quota;
mod ready_sandbox;
pub mod recipes;
mod repo_refs;
mod resume;
mod retention;
pub mod retry;
mod retry_entry;
mod round;
mod run;
pub mod run_files;
mod runs;
pub mod secrets;
mod service_images;
mod session_states;
pub mod settle;
mod sign;
mod slots;
mod stages;
pub mod static_recipe;
mod strict;
pub mod submit;
mod takeover;
mod task;
mod task_input;
mod task_outputs;
mod task_secrets;
mod task_streams;
mod task_trees;
mod test_reports;
mod toolchains;
mod tree_shares;
mod tree_sweep;
mod tree_uploads;
mod trees;
pub mod triggers;
mod vault;
mod verdict;
pub mod webhooks;
mod worker;
mod workflow_context;

pub use applies::Applies;
pub use attempt::End;
pub use bases::Bases;
pub use box_future::BoxFuture;
pub use dispatches::Dispatches;
pub use driver::{DriverJob, PlannerDriver, PlannerDrivers};
pub use error::{Error, Result};
pub use fresh_ids::FreshIds;
pub use gates::reply::Gates;
pub use host::host_id;
pub use host_plan::{HostPlan, PlanFailure};
pub use live_sandboxes::{Attempt, LiveSandboxes};
pub use memory::{MemoryBudget, MemoryExcess, MemoryShare, MemoryShortage};
pub use models::{Models, Prompts};
pub use outbound::Reach;
pub use output::WATCH_BYTES;
pub use own_tasks::{OwnTasks, TaskReservation};
pub use patience::patiently;
pub use quota::Quota;
pub use ready_sandbox::ReadySandbox;
pub use retention::Retentions;
pub use runs::Runs;
pub use sign::Signer;
pub use tree_uploads::{ManifestPart, Uploads};
pub use vault::{FileKey, Vault, VaultError};
pub use worker::{StartError, Worker, WorkerConfig};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_ambient::random::Ids;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::listen::Wakes;
use cofferdam_sandbox::AllowedPaths;
use cofferdam_store::Store;

use crate::config::Config;
use crate::keys::Keys;
use crate::objects::Objects;
use crate::recipes::Recipes;
use crate::secrets::Secrets;
use crate::triggers::Triggers;
use crate::webhooks::Webhooks;

/// What the API, the command line and a worker ask for, a service a noun; and the ledger, which they read.
#[derive(Debug, Clone)]
pub struct Flows {
    /// Connection to the ledger.
    pub ledger: Ledger,
    /// Wake-ups by notification.
    pub wakes: Wakes,
    /// Source of new ids, such as those of intents and runs.
    pub ids: FreshIds,
    /// What tenants may store.
    pub quota: Quota,
    /// Runs, from their submission to their settlement.
    pub runs: Runs,
    /// Templates of intents.
    pub recipes: Recipes,
    /// Patches that were written to repositories.
    pub applies: Applies,
    /// Gates, reply links and delegations.
    pub gates: Gates,
    /// Agents that work alone in sandboxes.
    pub dispatches: Dispatches,
    /// Large artifacts in a store.
    pub objects: Objects,
    /// Directories that clients send.
    pub uploads: Uploads,
    /// Secrets, and the key that they are sealed under.
    pub secrets: Secrets,
    /// Providers of models.
    pub models: Models,
    /// Creates, lists and revokes API keys.
    pub keys: Keys,
    /// Schedules and hooks, which start runs.
    pub triggers: Triggers,
    /// Endpoints that receive events.
    pub webhooks: Webhooks,
    /// Configuration of the installation and of tenants.
    pub config: Config,
    /// Bases of the dependency cache.
    pub bases: Bases,
    /// Erasures, retention, and who uses what.
    pub retention: Retentions,
}

/// What [`Flows`] is made with. What is left out is absent: no signature, no secrets, no directory of the host.
#[derive(Debug)]
pub struct FlowsSetup<'a> {
    /// Connection to the ledger.
    pub ledger: Ledger,
    /// Wake-ups by notification.
    pub wakes: Wakes,
    /// Where ids come from.
    pub ids: Ids,
    /// The installation's key, with which webhooks and reply links are signed.
    pub signer: Option<Signer>,
    /// The key that secrets are sealed under.
    pub vault: Option<Vault>,
    /// Where large artifacts are stored.
    pub store: Option<Store>,
    /// Which addresses webhooks may reach.
    pub reach: Reach,
    /// Host directories that everybody may be given.
    pub roots: &'a [PathBuf],
    /// The state directory: of it nothing may be given, and what clients send lies there.
    pub state_dir: Option<&'a Path>,
    /// Whether models without a credential are refused.
    pub is_strict: bool,
}

impl FlowsSetup<'_> {
    /// With nothing else.
    #[must_use]
    pub fn of(ledger: Ledger, wakes: Wakes, ids: Ids) -> Self {
        Self {
            ledger,
            wakes,
            ids,
            signer: None,
            vault: None,
            store: None,
            reach: Reach::default(),
            roots: &[],
            state_dir: None,
            is_strict: false,
        }
    }
}

impl Flows {
    /// Over one ledger.
    #[must_use]
    pub fn new(setup: FlowsSetup<'_>) -> Self {
        let FlowsSetup { ledger, wakes, ids, vault, store, reach, is_strict, .. } = setup;
        let signer = setup.signer.map(Arc::new);
        let allowed = match setup.state_dir {
            Some(state) => AllowedPaths::present(setup.roots, vec![state.to_owned()]),
            None => AllowedPaths::default(),
        };
        // One counter: a number names one thing of this process, whichever service draws it.
        let (ids, quota) = (FreshIds::new(ids), Quota::new(&ledger));
        let secrets = Secrets::new(&ledger, vault);
        let models = Models::new(&ledger, &wakes, &secrets, is_strict);
        let applies = Applies::new(&ledger);
        let objects = Objects::new(&ledger, &secrets, store);
        let uploads = Uploads::new(&ledger, setup.state_dir);
        let runs = Runs::new(&ledger, &ids, &quota, &models, &applies, &uploads);
        Self {
            triggers: Triggers::new(&ledger, &runs, &secrets),
            runs,
            recipes: Recipes::new(&ledger, &quota),
            applies,
            gates: Gates::new(&ledger, signer.clone()),
            retention: Retentions::new(&ledger, &objects, &uploads),
            objects,
            uploads,
            dispatches: Dispatches::new(&ledger, &ids, allowed, &quota, &models),
            secrets,
            models,
            keys: Keys::new(&ledger),
            webhooks: Webhooks::new(&ledger, &wakes, signer, reach),
            config: Config::new(&ledger),
            bases: Bases::new(&ledger),
            ledger,
            wakes,
            ids,
            quota,
        }
    }
}
