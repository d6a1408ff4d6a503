//! The long-lived sandboxes of a process, and what their operations share.

use cofferdam_flows::Flows;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::listen::Wakes;
use std::path::Path;
use std::sync::Arc;

use crate::layer::local_layers::LocalLayers;
use crate::registry::Registry;
use crate::snapshot::allowance::PendingBytes;
use crate::snapshot::store::SnapshotStore;

/// The long-lived sandboxes of this process.
#[derive(Debug, Clone)]
pub struct Live(pub(crate) Arc<Inner>);

/// What every operation needs.
#[derive(Debug)]
pub(crate) struct Inner {
    /// Runs, and the rules of tenants.
    pub flows: Flows,
    pub ledger: Ledger,
    pub wakes: Wakes,
    /// Where this host keeps the files of snapshots.
    pub store: Arc<SnapshotStore>,
    /// Where this host keeps what clients sent for builds of templates.
    pub uploads: Arc<SnapshotStore>,
    /// What is being kept and is on no record yet.
    pub unrecorded: Arc<PendingBytes>,
    /// Layers of paused sandboxes that are to be sealed.
    pub layers: Arc<LocalLayers>,
    /// Sandboxes that this process holds, and those that it asked for.
    pub registry: Arc<Registry>,
    /// The state directory of this host, where its templates are.
    pub state_dir: Box<Path>,
}
