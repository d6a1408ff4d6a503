//! What snapshots leave: erased, named or removed, also after a process that was killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::SnapshotId;
use cofferdam_flows::{Result, patiently};
use cofferdam_ledger::snapshots::{LayerRelease, PendingSnapshot};
use cofferdam_ledger::stored_files::StoredFileTable;
use cofferdam_sandbox::{Host, IdRanges, has_swap};

use crate::background::blocking;
use crate::layer::layers::Layers;
use crate::live::Live;
use crate::refusal::{conflict, damaged, refuse};
use crate::snapshot::capture::SEAL_LOOK;
use crate::snapshot::comparison::Comparison;
use crate::snapshot::eraser::Eraser;
use crate::snapshot::snapshots::Snapshots;
use crate::snapshot::store::{FileState, SnapshotStore};
use crate::snapshot::writer::FileOwner;
use crate::template::build::Builds;
use crate::template::uploads::Uploads;

/// What templates keep ages by days, and is looked at this often.
const AGED: Duration = Duration::from_secs(600);
/// Another process may erase what is retained here, or end with what is erased: both are looked for this often.
const ELSEWHERE: Duration = Duration::from_secs(5);
/// A sealer that lost its worker ends within seconds: a minute, half a second apart.
const TIDIES: usize = 120;
const CLEANUP_PAUSE: Duration = Duration::from_millis(500);
/// Of a sandbox whose layer was lost with its host's power, or with the process that held it.
const LOST: &str = "its files were lost before they were sealed: its host or its worker's processes were stopped at once";

/// What removes kept files that nothing needs, and puts in order what killed processes left.
#[derive(Debug, Clone)]
pub(crate) struct Sweep {
    pub(crate) live: Live,
}

impl Sweep {
    /// Of this process.
    #[must_use]
    pub(crate) fn of(live: &Live) -> Self {
        Self { live: live.clone() }
    }

    /// Erases what templates keep as it ages, also where nobody builds any, and settles what another worker's death left, for as
    /// long as a worker lives.
    pub(crate) async fn ages(self, host: Host) {
        let mut aged = Stopwatch::start();
        ids_reclaimed().await;
        loop {
            clock::sleep(ELSEWHERE).await;
            self.rests_bounded().await;
            if let Err(error) = Eraser::of(&self.live).rests_settled(&host, false).await {
                tracing::warn!(%error, "layers of processes that have ended are held by the record");
            }
            Eraser::of(&self.live).clean_up().await;
            if aged.elapsed() < AGED {
                continue;
            }
            aged = Stopwatch::start();
            Builds::of(&self.live).clean_up().await;
            ids_reclaimed().await;
        }
    }

    /// Ends retentions that are longer than their tenants' are now.
    async fn rests_bounded(&self) {
        let (mut lengths, has_swap) = (BTreeMap::new(), has_swap());
        for tenant in self.live.0.layers.tenants() {
            // Where it cannot be read, it is as it was.
            if has_swap {
                lengths.insert(tenant, Duration::ZERO);
            } else if let Ok(length) = Layers::of(&self.live).retention_period(&tenant).await {
                lengths.insert(tenant, length);
            }
        }
        self.live.0.layers.bound(lengths);
    }

    /// Puts in order what killed processes left: files that are on record get their names, others are removed. What their
    /// sealers still write is waited for beside this.
    pub(crate) async fn sweep(&self, host: &Host) -> Result<()> {
        Uploads::of(&self.live).sweep().await?;
        let store = &self.live.0.store;
        let fault = |why: std::io::Error| conflict(format!("the directory of snapshots: {why}"));
        let mut written = Vec::new();
        for id in store.left().map_err(fault)? {
            match self
                .live
                .0
                .ledger
                .stored_files(StoredFileTable::Snapshots)
                .is_recorded(&id)
                .await?
            {
                true if self.live.0.ledger.snapshots().is_sealed(&id).await? => {
                    store.rename(&id).map_err(fault)?;
                }
                // Looked at below.
                true => {}
                false if store.is_written(&id) => written.push(id),
                false => store.remove(&id).map_err(fault)?,
            }
        }
        Snapshots::of(&self.live).compared(Comparison::Start).await?;
        Eraser::of(&self.live).rests_settled(host, false).await?;
        let unsealed = self.live.0.ledger.snapshots().unsealed(&store.place(), None).await?;
        Builds::of(&self.live).clean_up().await;
        let (live, store, host) = (self.live.clone(), Arc::clone(store), host.clone());
        tokio::spawn(async move {
            for one in &unsealed {
                if let Err(error) = Sweep::of(&live).settled(&store, one).await {
                    tracing::error!(snapshot = %one.id, %error, "the files of a paused sandbox are unsealed on record");
                }
                // Another process may have it still, or retain it.
                let is_nobodys = !store.is_written(&one.id) && !live.0.layers.has(&one.id);
                if let (true, Some(session)) = (is_nobodys, &one.session) {
                    host.forget_ids(session);
                }
            }
            for id in written {
                if let Err(error) = Sweep::of(&live).unwritten(&store, &id).await {
                    tracing::warn!(snapshot = %id, %error, "a file that is not on record is still there");
                }
            }
            // What is erased and still written, too.
            for _ in 0..TIDIES {
                Eraser::of(&live).clean_up().await;
                match live
                    .0
                    .ledger
                    .stored_files(StoredFileTable::Snapshots)
                    .erased(&store.place())
                    .await
                {
                    Ok(left) if left.is_empty() => return,
                    _ => clock::sleep(CLEANUP_PAUSE).await,
                }
            }
        });
        Ok(())
    }

    /// Waits for the file of a pause whose worker was lost, and records that its files are sealed, or lost.
    async fn settled(&self, store: &Arc<SnapshotStore>, one: &PendingSnapshot) -> Result<()> {
        let vault = self.live.0.flows.secrets.vault()?;
        if *vault.fingerprint() != one.sealed_by {
            return Err(conflict("its key is sealed under another secrets key"));
        }
        let key = vault.open_key(&one.tenant, &one.id, &one.sealed_key);
        let key = key.ok_or_else(|| damaged(&one.id, "its key does not open"))?;
        let place = store.place();
        loop {
            // Its own worker may live, and record it.
            if patiently(|| self.live.0.ledger.snapshots().unsealed(&place, Some(&one.id)))
                .await?
                .is_empty()
            {
                return Ok(());
            }
            let (store, of, key) = (Arc::clone(store), one.clone(), key.clone());
            let found = blocking(move || {
                let owner = FileOwner { tenant: &of.tenant, snapshot: &of.id };
                store.find(owner, &key)
            });
            let found = found.await.map_err(|why| damaged(&one.id, &why.to_string()))?;
            match found {
                FileState::Written => {}
                FileState::Whole(file) => {
                    let end = Some(LayerRelease::ProcessEnded);
                    patiently(|| self.live.0.ledger.snapshots().sealed(&one.id, &file, end))
                        .await?;
                    return Ok(());
                }
                FileState::Lost => {
                    if patiently(|| self.live.0.ledger.snapshots().record_loss(&one.id, LOST))
                        .await?
                    {
                        tracing::error!(snapshot = %one.id, "the files of a paused sandbox were lost before they were sealed");
                        return Ok(());
                    }
                }
            }
            clock::sleep(SEAL_LOOK).await;
        }
    }

    /// Waits for the sealer of a pause that is not on record, and removes what it wrote: its key is nowhere.
    async fn unwritten(&self, store: &Arc<SnapshotStore>, id: &SnapshotId) -> Result<()> {
        while store.is_written(id) {
            clock::sleep(SEAL_LOOK).await;
        }
        // It was another living worker's, and was recorded meanwhile.
        if !patiently(|| {
            self.live.0.ledger.stored_files(StoredFileTable::Snapshots).is_recorded(id)
        })
        .await?
        {
            let removed = store.remove(id);
            removed.map_err(|why| refuse(ErrorCode::Unavailable, why.to_string()))?;
        }
        Ok(())
    }
}

/// Gives user ids back whose wipe failed, once nothing of it is left.
async fn ids_reclaimed() {
    let looked = tokio::task::spawn_blocking(IdRanges::reclaim_failed);
    if let Err(error) = looked.await {
        tracing::warn!(%error, "user ids of failed wipes are not given back");
    }
}
