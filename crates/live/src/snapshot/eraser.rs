//! The end of kept files that nothing needs: their keys are destroyed first, then they are removed.

use std::sync::Arc;

use cofferdam_ambient::clock;
use cofferdam_flows::Result;
use cofferdam_ledger::snapshots::{LayerRelease, RetainedLayer};
use cofferdam_ledger::stored_files::StoredFileTable;
use cofferdam_sandbox::Host;

use crate::background::blocking;
use crate::live::Live;
use crate::patience::REST;
use crate::snapshot::store::{FileUser, SnapshotStore};

/// Erases kept files that nothing needs.
#[derive(Debug, Clone)]
pub(crate) struct Eraser {
    live: Live,
}

impl Eraser {
    /// Of this process.
    #[must_use]
    pub(crate) fn of(live: &Live) -> Self {
        Self { live: live.clone() }
    }

    /// Erases what no sandbox needs any more. What fails is tried again at the next call.
    pub(crate) async fn clean_up(&self) {
        if let Err(error) = self.tidied().await {
            tracing::warn!(%error, "snapshots that are not needed are not erased yet");
        }
    }

    /// The same a moment later: whoever was just answered has the processors.
    pub(crate) fn clean_up_soon(&self) {
        let live = self.live.clone();
        tokio::spawn(async move {
            clock::sleep(REST).await;
            Self::of(&live).clean_up().await;
        });
    }

    async fn tidied(&self) -> Result<()> {
        let store = &self.live.0.store;
        self.live.0.ledger.snapshots().erase_unneeded().await?;
        // Before any of them is gone: their user ids are known by them.
        if let Some(maker) = self.live.0.registry.maker() {
            self.rests_settled(&maker.host, true).await?;
        }
        self.erased_removed(store, StoredFileTable::Snapshots).await
    }

    /// Removes files whose keys are destroyed.
    pub(crate) async fn erased_removed(
        &self,
        store: &Arc<SnapshotStore>,
        table: StoredFileTable,
    ) -> Result<()> {
        let rows = self.live.0.ledger.stored_files(table);
        for id in rows.erased(&store.place()).await? {
            if let Err(why) = self.live.0.layers.end(&id).await {
                tracing::warn!(snapshot = %id, why, "the layer of an erased snapshot has not ended");
                continue;
            }
            let (store, name) = (Arc::clone(store), id.clone());
            if store.is_written(&id) {
                // By the sealer of a worker that was lost, which ends within seconds.
                continue;
            }
            match blocking(move || store.remove(&name)).await {
                Ok(()) => rows.record_removal(&id).await?,
                Err(why) => {
                    tracing::warn!(file = %id, ?table, %why, "an erased file is still there")
                }
            }
        }
        Ok(())
    }

    /// Records of layers that are held by the record that they are not, where the process that had them has ended; of erased
    /// ones alone, where an answer waits.
    pub(crate) async fn rests_settled(&self, host: &Host, erased_alone: bool) -> Result<()> {
        let store = &self.live.0.store;
        let resting =
            self.live.0.ledger.snapshots().retained_layers(&store.place(), erased_alone).await?;
        for RetainedLayer { id, is_erased, session } in resting {
            // Its task here says what becomes of it.
            if self.live.0.layers.has(&id) {
                continue;
            }
            let is_over = match store.user(&id) {
                FileUser::Somebody => false,
                FileUser::Nobody => true,
                FileUser::NoFile => is_erased,
            };
            if !is_over {
                continue;
            }
            if let Some(session) = &session {
                host.forget_ids(session);
            }
            self.live.0.ledger.snapshots().layer_release(&id, LayerRelease::ProcessEnded).await?;
        }
        Ok(())
    }
}
