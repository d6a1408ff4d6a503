//! The layers of paused sandboxes that this process holds. Each is reached through its task.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_contracts::id::{SnapshotId, TenantId};
use tokio::sync::{mpsc, oneshot, watch};

use crate::layer::loan::{Ask, LoanAnswer};
use crate::layer::retention::RetentionPeriods;
use crate::layer::sealer::spare::SpareSealer;
use crate::snapshot::resume_spec::ResumeSpec;

/// The layers that this process holds.
#[derive(Debug, Default)]
pub(crate) struct LocalLayers {
    all: Mutex<HashMap<SnapshotId, LayerAddress>>,
    /// The sealer of the next pause.
    pub spare: Arc<SpareSealer>,
    /// Whether this process stops: no layer may be retained any more.
    closed: watch::Sender<bool>,
    /// How long layers may be retained now.
    lengths: watch::Sender<RetentionPeriods>,
}

/// How one layer is reached.
#[derive(Debug, Clone)]
pub(crate) struct LayerAddress {
    /// What was asked for with its files.
    pub resume_spec: Arc<ResumeSpec>,
    /// Leads to its task.
    pub asks: mpsc::UnboundedSender<Ask>,
    pub tenant: TenantId,
    /// Whether its files are sealed. Closes with its task.
    pub sealed: watch::Receiver<bool>,
}

impl LocalLayers {
    /// This process holds a layer from now on.
    pub(crate) fn put(&self, id: SnapshotId, held: LayerAddress) {
        self.lock().insert(id, held);
    }

    /// This process does not hold the layer any more.
    pub(crate) fn remove(&self, id: &SnapshotId) {
        self.lock().remove(id);
    }

    /// What was asked for with the files of this snapshot, where its layer is here.
    pub(crate) fn resume_spec(&self, id: &SnapshotId) -> Option<Arc<ResumeSpec>> {
        self.lock().get(id).map(|held| Arc::clone(&held.resume_spec))
    }

    /// Asks for a layer, for the next life of its sandbox.
    pub(crate) async fn borrow(&self, id: &SnapshotId) -> LoanAnswer {
        let Some(held) = self.lock().get(id).cloned() else { return LoanAnswer::File };
        let (reply, replied) = oneshot::channel();
        if held.asks.send(Ask::Lend(reply)).is_err() {
            return LoanAnswer::File;
        }
        replied.await.unwrap_or(LoanAnswer::File)
    }

    /// Ends a layer whose snapshot is erased; one that is lent, once it is given back. A life that has begun keeps it.
    ///
    /// # Errors
    /// Which process keeps the layer.
    pub(crate) async fn end(&self, id: &SnapshotId) -> Result<(), String> {
        let Some(held) = self.lock().get(id).cloned() else { return Ok(()) };
        let (reply, replied) = oneshot::channel();
        if held.asks.send(Ask::End(reply)).is_err() {
            return Ok(());
        }
        replied.await.unwrap_or(Ok(()))
    }

    /// Waits until the files of a layer are sealed. `true`: it may be lent still; `false`: this process does not hold it any more.
    /// `None`: this process did not hold it before.
    pub(crate) async fn sealed(&self, id: &SnapshotId) -> Option<bool> {
        let mut held = self.lock().get(id).cloned()?;
        Some(held.sealed.wait_for(|sealed| *sealed).await.is_ok())
    }

    /// Ends the layers that are retained, and waits until this process holds no layer.
    pub(crate) async fn settled(&self) {
        self.closed.send_replace(true);
        loop {
            let Some(mut held) = self.lock().values().next().cloned() else { return };
            while held.sealed.changed().await.is_ok() {}
        }
    }

    /// Whether this process stops, now and later.
    pub(crate) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// How long layers may be retained, now and later.
    pub(crate) fn lengths(&self) -> watch::Receiver<RetentionPeriods> {
        self.lengths.subscribe()
    }

    /// Bounds retentions, also those that began with more time.
    pub(crate) fn bound(&self, lengths: RetentionPeriods) {
        self.lengths.send_if_modified(|now| {
            let is_new = *now != lengths;
            *now = lengths;
            is_new
        });
    }

    /// Tenants with a layer here.
    pub(crate) fn tenants(&self) -> BTreeSet<TenantId> {
        self.lock().values().map(|held| held.tenant.clone()).collect()
    }

    /// Whether this process holds the layer.
    pub(crate) fn has(&self, id: &SnapshotId) -> bool {
        self.lock().contains_key(id)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SnapshotId, LayerAddress>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
