//! The layers of paused sandboxes that this process holds, each reached by its task.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_contracts::id::{SnapshotId, TenantId};
use cofferdam_sandbox::PlainLayer;
use tokio::sync::{mpsc, oneshot, watch};

use crate::layer::left::RestLengths;
use crate::layer::spare::SpareSealer;
use crate::snapshot::again::Again;

/// The layers that this process holds.
#[derive(Debug, Default)]
pub(crate) struct PlainLayers {
    all: Mutex<HashMap<SnapshotId, Tended>>,
    /// For the next one.
    pub spare: Arc<SpareSealer>,
    /// Whether none may rest any more.
    closed: watch::Sender<bool>,
    lengths: watch::Sender<RestLengths>,
}

/// How one of them is reached.
#[derive(Debug, Clone)]
pub(crate) struct Tended {
    pub again: Arc<Again>,
    pub asks: mpsc::UnboundedSender<Ask>,
    pub tenant: TenantId,
    /// Whether its files are sealed. Ends with its task.
    pub sealed: watch::Receiver<bool>,
}

/// What its task is asked.
#[derive(Debug)]
pub(crate) enum Ask {
    Lend(oneshot::Sender<Lending>),
    Back,
    Begun,
    End(oneshot::Sender<Result<(), String>>),
}

/// What came of asking for a layer.
#[derive(Debug)]
pub(crate) enum Lending {
    /// It is the next life's, if that begins.
    Lent(Lent, Arc<PlainLayer>),
    /// Another life has it.
    Busy,
}

/// A layer that a life is to begin with. Dropped, it is given back.
#[derive(Debug)]
pub(crate) struct Lent(pub Option<mpsc::UnboundedSender<Ask>>);

impl Lent {
    /// That life is on record as running.
    pub(crate) fn begun(mut self) {
        if let Some(asks) = self.0.take() {
            let _ = asks.send(Ask::Begun);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(asks) = self.0.take() {
            let _ = asks.send(Ask::Back);
        }
    }
}

impl PlainLayers {
    /// What was asked for with the files of this snapshot, where its layer is here.
    pub(crate) fn again(&self, id: &SnapshotId) -> Option<Arc<Again>> {
        self.lock().get(id).map(|tended| Arc::clone(&tended.again))
    }

    /// Asks for a layer; `None`: it is not here any more.
    pub(crate) async fn lend(&self, id: &SnapshotId) -> Option<Lending> {
        let tended = self.lock().get(id).cloned()?;
        let (reply, replied) = oneshot::channel();
        tended.asks.send(Ask::Lend(reply)).ok()?;
        replied.await.ok()
    }

    /// Ends a layer whose snapshot is erased. A life that has it keeps it.
    pub(crate) async fn end(&self, id: &SnapshotId) -> Result<(), String> {
        let Some(tended) = self.lock().get(id).cloned() else { return Ok(()) };
        let (reply, replied) = oneshot::channel();
        if tended.asks.send(Ask::End(reply)).is_err() {
            return Ok(());
        }
        replied.await.unwrap_or(Ok(()))
    }

    /// Until the files of a layer are sealed, or this process does not hold it any more; `None`: it does not. `true`: it may be
    /// lent still.
    pub(crate) async fn sealed(&self, id: &SnapshotId) -> Option<bool> {
        let mut tended = self.lock().get(id).cloned()?;
        Some(tended.sealed.wait_for(|sealed| *sealed).await.is_ok())
    }

    /// Ends those that rest, and waits until this process holds none.
    pub(crate) async fn settled(&self) {
        self.closed.send_replace(true);
        loop {
            let Some(mut tended) = self.lock().values().next().cloned() else { return };
            while tended.sealed.changed().await.is_ok() {}
        }
    }

    /// Whether none may rest any more, now and later.
    pub(crate) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// How long they may rest now.
    pub(crate) fn lengths(&self) -> watch::Receiver<RestLengths> {
        self.lengths.subscribe()
    }

    /// Bounds them, where that is less than when they began.
    pub(crate) fn bound(&self, lengths: RestLengths) {
        self.lengths.send_if_modified(|now| {
            let is_new = *now != lengths;
            *now = lengths;
            is_new
        });
    }

    /// Whose they are.
    pub(crate) fn tenants(&self) -> BTreeSet<TenantId> {
        self.lock().values().map(|tended| tended.tenant.clone()).collect()
    }

    /// Whether this process holds the layer.
    pub(crate) fn has(&self, id: &SnapshotId) -> bool {
        self.lock().contains_key(id)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<SnapshotId, Tended>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
