//! What becomes of a layer, on record: sealed, retained, ended, the next life's, or never sealed.

use cofferdam_flows::patiently;
use cofferdam_ledger::failpoint::fail_point;
use cofferdam_ledger::snapshots::{LayerRelease, SealedFile};
use cofferdam_ledger::stored_files::StoredFileTable;
use std::sync::Arc;

use super::LayerTask;
use crate::background::blocking;
use crate::layer::layers::Layers;
use crate::layer::retry::TRIES;
use crate::layer::sealer::line::Line;
use crate::layer::transitions::Event;

impl LayerTask {
    /// The file is whole: it gets its name, the layer is retained or ends, and both are on record.
    pub(super) async fn settle(&mut self, file: &SealedFile, line: Line) -> Event {
        let (store, id) = (Arc::clone(&self.store), self.kept.id.clone());
        fail_point("layer.written");
        if let Err(why) = blocking(move || store.rename(&id)).await {
            // It is whole and is found all the same.
            tracing::warn!(snapshot = %self.kept.id, %why, "a snapshot's file keeps the name of a part until the next start");
        }
        line.end().await;
        // Its sandbox had more, of which the retention takes a part: on a host whose memory that was, there is none before.
        self.memory.had().await;
        self.memory.give_up();
        let rest = match (self.was_lent, self.layer.sizes()) {
            (false, Ok(sizes)) => Layers::of(&self.live).retention(&self.tenant, sizes.about).await,
            _ => None,
        };
        let mut end = None;
        if rest.is_none() {
            let looked = self.look().await;
            fail_point("layer.ended");
            end = looked.is_ok().then_some(LayerRelease::Ended);
        }
        let ledger = &self.live.0.ledger;
        match patiently(|| ledger.snapshots().sealed(&self.kept.id, file, end)).await {
            Ok(true) if end.is_some() => return Event::Ended,
            Ok(true) => {
                fail_point("layer.rests");
                self.sealed.send_replace(true);
                return rest.map_or(Event::InUse(None), Event::Rests);
            }
            Ok(false) => self.unrecorded().await,
            Err(error) => {
                tracing::error!(snapshot = %self.kept.id, %error, "a sealed snapshot is on record as unsealed until the next start");
            }
        }
        Event::InUse(rest)
    }

    /// It was erased before it was sealed, and is removed as what is erased; or its pause was never on record.
    async fn unrecorded(&mut self) {
        let ledger = &self.live.0.ledger;
        let recorded = patiently(|| {
            ledger.stored_files(StoredFileTable::Snapshots).is_recorded(&self.kept.id)
        })
        .await;
        if matches!(recorded, Ok(false)) {
            let (store, id) = (Arc::clone(&self.store), self.kept.id.clone());
            if let Err(why) = blocking(move || store.remove(&id)).await {
                tracing::warn!(snapshot = %self.kept.id, %why, "a file that is not on record is still there");
            }
        }
    }

    /// The layer is not held any more.
    pub(super) async fn ended(&mut self, why: LayerRelease) {
        let (snapshot, ledger) = (&self.kept.id, &self.live.0.ledger);
        if let Err(error) = patiently(|| ledger.snapshots().layer_release(snapshot, why)).await {
            tracing::error!(%snapshot, %error, "a layer that has ended is held by the record until the next start");
        }
    }

    /// No further sealer is tried: the layer stays in memory as long as this process runs, and a resume has it until then.
    pub(super) async fn unsealable(&mut self, why: &str) {
        let (snapshot, tenant) = (&self.kept.id, &self.tenant);
        tracing::error!(%snapshot, why, tries = TRIES, "the files of a paused sandbox cannot be sealed: they are lost with this process");
        let ledger = &self.live.0.ledger;
        let told = patiently(|| ledger.snapshots().unsealable(tenant, snapshot, why)).await;
        if let Err(error) = told {
            tracing::error!(%snapshot, %error, "and that is not on record");
        }
    }
}
