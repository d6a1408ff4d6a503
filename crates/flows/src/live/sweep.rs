//! What snapshots leave: erased, named or removed, also after a process that was killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::SnapshotId;
use cofferdam_ledger::kept_files::KeptTable;
use cofferdam_ledger::snapshots::{PlainEnd, Resting, Unsealed};
use cofferdam_sandbox::{Host, IdRanges, has_swap};

use super::compared::Comparison;
use super::kept::{SEAL_LOOK, blocking, conflict, damaged};
use super::refuse;
use super::sealed::FileOwner;
use super::shelf::{FileUser, Found, Shelf};
use crate::Flows;
use crate::due::REST;
use crate::error::Result;
use crate::patience::patiently;

/// What templates keep ages by days, and is looked at this often.
const AGED: Duration = Duration::from_secs(600);
/// Another process may erase what rests here, or end with what is erased: both are looked for this often.
const ELSEWHERE: Duration = Duration::from_secs(5);
/// A sealer that lost its worker ends within seconds: a minute, half a second apart.
const TIDIES: usize = 120;
const TIDY_PAUSE: Duration = Duration::from_millis(500);
/// Of a sandbox whose layer was lost with its host's power, or with the process that held it.
const LOST: &str = "its files were lost before they were sealed: its host or its worker's processes were stopped at once";

impl Flows {
    /// Erases what no sandbox needs any more. What fails is tried again at the next call.
    pub(crate) async fn snapshots_tidy(&self) {
        if let Err(error) = self.tidied().await {
            tracing::warn!(%error, "snapshots that are not needed are not erased yet");
        }
    }

    /// The same a moment later: whoever was just answered has the processors.
    pub(super) fn snapshots_tidy_soon(&self) {
        let flows = self.clone();
        tokio::spawn(async move {
            clock::sleep(REST).await;
            flows.snapshots_tidy().await;
        });
    }

    /// Erases what templates keep as it ages, also where nobody builds any, and settles what another worker's death left, for as
    /// long as a worker lives.
    pub(crate) async fn kept_ages(self, host: Host) {
        let mut aged = Stopwatch::start();
        ids_reclaimed().await;
        loop {
            clock::sleep(ELSEWHERE).await;
            self.rests_bounded().await;
            if let Err(error) = self.rests_settled(&host, false).await {
                tracing::warn!(%error, "layers of processes that have ended are held by the record");
            }
            self.snapshots_tidy().await;
            if aged.elapsed() < AGED {
                continue;
            }
            aged = Stopwatch::start();
            self.templates_tidy().await;
            ids_reclaimed().await;
        }
    }

    /// Records of layers that are held by the record that they are not, where the process that had them has ended; of erased
    /// ones alone, where an answer waits.
    async fn rests_settled(&self, host: &Host, erased_alone: bool) -> Result<()> {
        let Some(shelf) = &self.kept else { return Ok(()) };
        let resting = self.ledger.snapshots().resting(&shelf.place(), erased_alone).await?;
        for Resting { id, is_erased, session } in resting {
            // Its task here says what becomes of it.
            if self.plain.has(&id) {
                continue;
            }
            let is_over = match shelf.user(&id) {
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
            self.ledger.snapshots().plain_ended(&id, PlainEnd::ProcessEnded).await?;
        }
        Ok(())
    }

    /// Ends rests that are longer than their tenants' are now.
    async fn rests_bounded(&self) {
        let (mut lengths, has_swap) = (BTreeMap::new(), has_swap());
        for tenant in self.plain.tenants() {
            // Where it cannot be read, it is as it was.
            if has_swap {
                lengths.insert(tenant, Duration::ZERO);
            } else if let Ok(length) = self.rest_length(&tenant).await {
                lengths.insert(tenant, length);
            }
        }
        self.plain.bound(lengths);
    }

    async fn tidied(&self) -> Result<()> {
        let Some(shelf) = &self.kept else { return Ok(()) };
        self.ledger.snapshots().erase_unneeded().await?;
        // Before any of them is gone: their user ids are known by them.
        if let Some(maker) = self.live.maker() {
            self.rests_settled(&maker.host, true).await?;
        }
        self.erased_removed(shelf, KeptTable::Snapshots).await
    }

    /// Removes files whose keys are destroyed.
    pub(super) async fn erased_removed(&self, shelf: &Arc<Shelf>, table: KeptTable) -> Result<()> {
        let rows = self.ledger.kept_files(table);
        for id in rows.erased(&shelf.place()).await? {
            if let Err(why) = self.plain.end(&id).await {
                tracing::warn!(snapshot = %id, why, "the layer of an erased snapshot has not ended");
                continue;
            }
            let (shelf, name) = (Arc::clone(shelf), id.clone());
            if shelf.is_written(&id) {
                // By the sealer of a worker that was lost, which ends within seconds.
                continue;
            }
            match blocking(move || shelf.remove(&name)).await {
                Ok(()) => rows.gone(&id).await?,
                Err(why) => {
                    tracing::warn!(file = %id, ?table, %why, "an erased file is still there")
                }
            }
        }
        Ok(())
    }

    /// Puts in order what killed processes left: files that are on record get their names, others are removed. What their
    /// sealers still write is waited for beside this.
    pub(crate) async fn snapshots_sweep(&self, host: &Host) -> Result<()> {
        self.uploads_sweep().await?;
        let Some(shelf) = &self.kept else { return Ok(()) };
        let fault = |why: std::io::Error| conflict(format!("the directory of snapshots: {why}"));
        let mut written = Vec::new();
        for id in shelf.left().map_err(fault)? {
            match self.ledger.kept_files(KeptTable::Snapshots).is_recorded(&id).await? {
                true if self.ledger.snapshots().is_sealed(&id).await? => {
                    shelf.rename(&id).map_err(fault)?;
                }
                // Looked at below.
                true => {}
                false if shelf.is_written(&id) => written.push(id),
                false => shelf.remove(&id).map_err(fault)?,
            }
        }
        self.kept_compared(Comparison::Start).await?;
        self.rests_settled(host, false).await?;
        let unsealed = self.ledger.snapshots().unsealed(&shelf.place(), None).await?;
        self.templates_tidy().await;
        let (flows, shelf, host) = (self.clone(), Arc::clone(shelf), host.clone());
        tokio::spawn(async move {
            for one in &unsealed {
                if let Err(error) = flows.settled(&shelf, one).await {
                    tracing::error!(snapshot = %one.id, %error, "the files of a paused sandbox are unsealed on record");
                }
                // Another process may have it still, or at rest.
                let is_nobodys = !shelf.is_written(&one.id) && !flows.plain.has(&one.id);
                if let (true, Some(session)) = (is_nobodys, &one.session) {
                    host.forget_ids(session);
                }
            }
            for id in written {
                if let Err(error) = flows.unwritten(&shelf, &id).await {
                    tracing::warn!(snapshot = %id, %error, "a file that is not on record is still there");
                }
            }
            // What is erased and still written, too.
            for _ in 0..TIDIES {
                flows.snapshots_tidy().await;
                match flows.ledger.kept_files(KeptTable::Snapshots).erased(&shelf.place()).await {
                    Ok(left) if left.is_empty() => return,
                    _ => clock::sleep(TIDY_PAUSE).await,
                }
            }
        });
        Ok(())
    }

    /// Waits for the file of a pause whose worker was lost, and records that its files are sealed, or lost.
    async fn settled(&self, shelf: &Arc<Shelf>, one: &Unsealed) -> Result<()> {
        let vault = self.vault()?;
        if *vault.fingerprint() != one.sealed_by {
            return Err(conflict("its key is sealed under another secrets key"));
        }
        let key = vault.open_key(&one.tenant, &one.id, &one.sealed_key);
        let key = key.ok_or_else(|| damaged(&one.id, "its key does not open"))?;
        let place = shelf.place();
        loop {
            // Its own worker may live, and record it.
            if patiently(|| self.ledger.snapshots().unsealed(&place, Some(&one.id)))
                .await?
                .is_empty()
            {
                return Ok(());
            }
            let (shelf, of, key) = (Arc::clone(shelf), one.clone(), key.clone());
            let found = blocking(move || {
                let owner = FileOwner { tenant: &of.tenant, snapshot: &of.id };
                shelf.find(owner, &key)
            });
            let found = found.await.map_err(|why| damaged(&one.id, &why.to_string()))?;
            match found {
                Found::Written => {}
                Found::Whole(file) => {
                    let end = Some(PlainEnd::ProcessEnded);
                    patiently(|| self.ledger.snapshots().sealed(&one.id, &file, end)).await?;
                    return Ok(());
                }
                Found::Lost => {
                    if patiently(|| self.ledger.snapshots().lost(&one.id, LOST)).await? {
                        tracing::error!(snapshot = %one.id, "the files of a paused sandbox were lost before they were sealed");
                        return Ok(());
                    }
                }
            }
            clock::sleep(SEAL_LOOK).await;
        }
    }

    /// Waits for the sealer of a pause that is not on record, and removes what it wrote: its key is nowhere.
    async fn unwritten(&self, shelf: &Arc<Shelf>, id: &SnapshotId) -> Result<()> {
        while shelf.is_written(id) {
            clock::sleep(SEAL_LOOK).await;
        }
        // It was another living worker's, and was recorded meanwhile.
        if !patiently(|| self.ledger.kept_files(KeptTable::Snapshots).is_recorded(id)).await? {
            let removed = shelf.remove(id);
            removed.map_err(|why| refuse(ErrorCode::Unavailable, why.to_string()))?;
        }
        Ok(())
    }
}

/// Begins to remove files of erased snapshots, and returns at once.
pub(crate) fn tidy_beside(flows: &Flows) {
    let flows = flows.clone();
    tokio::spawn(async move { flows.snapshots_tidy().await });
}

/// Gives user ids back whose wipe failed, once nothing of it is left.
async fn ids_reclaimed() {
    let looked = tokio::task::spawn_blocking(IdRanges::reclaim_failed);
    if let Err(error) = looked.await {
        tracing::warn!(%error, "user ids of failed wipes are not given back");
    }
}
