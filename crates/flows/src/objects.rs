//! Large artifacts in a store beside the database: written, put on record, opened, and read again by a proof.
//!
//! ```text
//! begin --bytes--> finish --known and whole? that one : sealed key--> NewObject --the task's end commits--> record
//!                        '-- kept until then: the known one may be erased meanwhile --------------^
//! row --store, key, tenant--> ObjectReader
//! ```
//! A process without a store, or without the key of secrets, leaves everything in the database, within its bounds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::config::{ConfigKey, lower_of_both};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, ObjectId, TenantId};
use cofferdam_contracts::object::{FaultyObject, ObjectFault, ObjectReport};
use cofferdam_contracts::proof::{ProofReport, Verdict};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::objects::{ArtifactObject, NewObject, ObjectRow};
use cofferdam_sandbox::CollectBounds;
use cofferdam_store::{ObjectDraft, ObjectHead, ObjectWriter};
pub use cofferdam_store::{ObjectReader, ObjectStream, Store, StoreError, bytes_left};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use crate::draft_objects::DraftObject;
use crate::error::{Error, Result};
use crate::key_slots::KeySlots;
use crate::patience::patiently;
use crate::secrets::Secrets;
use crate::vault::Vault;

/// Faulty objects that a report names.
const MAX_FAULTS: usize = 100;
/// Rows of one read.
const PAGE: i64 = 256;
/// A tenant reads its objects once at a time: that takes a processor and the disk for minutes. So does the host's admin, who reads those
/// of all tenants.
static READINGS: LazyLock<KeySlots<Option<TenantId>>> = LazyLock::new(|| KeySlots::of(1));
/// How long a reading waits for the one before it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The objects of this installation's tenants, as far as this process reaches them.
#[derive(Debug, Clone)]
pub struct Objects {
    ledger: Ledger,
    secrets: Secrets,
    store: Option<Store>,
}

/// Why an object cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// Its store does not give it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It lies in another store, or its key does not open.
    #[error("{0}")]
    Elsewhere(&'static str),
}

impl ObjectError {
    /// What is wrong, for a program.
    #[must_use]
    pub const fn fault(&self) -> ObjectFault {
        match self {
            Self::Store(error) => error.fault(),
            Self::Elsewhere(_) => ObjectFault::Elsewhere,
        }
    }
}

impl From<ObjectError> for Error {
    fn from(error: ObjectError) -> Self {
        tracing::warn!(error = ?error, "an object of the artifact store cannot be read");
        let refusal = Refusal::new(ErrorCode::StoreFailed, error.to_string());
        Self::Refused(refusal.with(json!({"fault": error.fault()})))
    }
}

impl Objects {
    pub(crate) fn new(ledger: &Ledger, secrets: &Secrets, store: Option<Store>) -> Self {
        Self { ledger: ledger.clone(), secrets: secrets.clone(), store }
    }

    /// The store and the key that objects of it are sealed under; `None`: this process lacks one of them.
    fn sealing(&self) -> Option<(&Store, &Vault)> {
        self.store.as_ref().zip(self.secrets.vault().ok())
    }

    /// Whether large files go to a store.
    pub(crate) fn has_store(&self) -> bool {
        self.sealing().is_some()
    }

    /// What a task of this tenant's may leave, and whether large files of it go to a store.
    pub(crate) async fn bounds(&self, tenant: &TenantId) -> Result<(CollectBounds, bool)> {
        let rows = patiently(|| self.ledger.config().rows(tenant)).await?;
        let mib = lower_of_both(ConfigKey::ArtifactsMb, &rows);
        let bytes = mib.saturating_mul(1024 * 1024);
        let files = lower_of_both(ConfigKey::ArtifactFiles, &rows);
        let held = CollectBounds::default();
        Ok(match self.sealing() {
            Some(_) => (CollectBounds { bytes, files }, true),
            None => (
                CollectBounds { bytes: bytes.min(held.bytes), files: files.min(held.files) },
                false,
            ),
        })
    }

    /// Begins an object.
    pub(crate) async fn begin(&self, tenant: &TenantId) -> Result<ObjectWriter, ObjectError> {
        let (store, _) = self.sealing().ok_or(NO_STORE)?;
        Ok(ObjectWriter::begin(store, tenant).await?)
    }

    /// Rows of objects that were written, in their order. What the tenant has stored before, and is whole, is taken in the place of a
    /// new object. What was written stays until the rows are committed, and is settled then.
    pub(crate) async fn rows(
        &self,
        tenant: &TenantId,
        written: Vec<ObjectDraft>,
    ) -> Result<(Vec<NewObject>, Vec<DraftObject>)> {
        let Some((store, vault)) = self.sealing() else { return Ok((Vec::new(), Vec::new())) };
        let digests: Vec<&str> =
            written.iter().filter_map(|new| new.sha256().map(AsRef::as_ref)).collect();
        let asking = || self.ledger.objects().known(tenant, store.name(), &digests);
        let known = patiently(asking).await?;
        let mut rows: BTreeMap<String, NewObject> = BTreeMap::new();
        for row in known {
            match self.read_whole(&row).await {
                Ok(_) => rows.extend(again(row).map(|row| (row.sha256.clone().into(), row))),
                Err(error) => {
                    tracing::warn!(object = %row.id, ?error, "a stored object is faulty: its bytes are stored again");
                }
            }
        }
        let (mut all, mut staged) = (Vec::with_capacity(written.len()), Vec::new());
        let mut seen = BTreeSet::new();
        for draft in written {
            let refused =
                || Error::Corrupt { what: "object", why: "its key was not sealed".into() };
            let sha256 = draft.sha256().ok_or_else(refused)?.clone();
            if seen.insert(sha256.clone()) {
                let sealed_key = vault.seal_object_key(tenant, draft.id(), draft.key());
                let row = NewObject {
                    id: draft.id().clone(),
                    store: store.name().to_owned(),
                    sha256: sha256.clone(),
                    size: draft.size(),
                    sealed_key: sealed_key.ok_or_else(refused)?,
                    sealed_by: vault.fingerprint().clone(),
                };
                let is_used = !rows.contains_key(sha256.as_str());
                if is_used {
                    rows.insert(sha256.clone().into(), row.clone());
                }
                staged.push(DraftObject { draft, row, is_used });
            }
            all.extend(rows.get(sha256.as_str()).cloned());
        }
        Ok((all, staged))
    }

    /// Reads all of an object; gives the number of its bytes.
    async fn read_whole(&self, row: &ObjectRow) -> Result<u64, ObjectError> {
        Ok(self.open(row).await?.check().await?)
    }

    /// What was stored is on record with the end that was written. Where another end was, it is asked for: a statement whose answer
    /// was lost may have written it before it was sent again. What is not on record is removed; where that is not known, the next
    /// start asks.
    pub(crate) async fn settle(&self, is_written: Option<bool>, mut staged: Vec<DraftObject>) {
        staged.retain(|object| object.is_used);
        if staged.is_empty() {
            return;
        }
        let ids: Vec<_> = staged.iter().map(|object| object.draft.id().clone()).collect();
        let recorded = match is_written {
            Some(true) => Some(ids),
            Some(false) => {
                let found = self.ledger.objects().recorded(&ids).await.ok();
                found.map(|found| found.into_iter().map(|(id, _)| id).collect())
            }
            None => None,
        };
        let recorded: Option<BTreeSet<_>> = recorded.map(|ids: Vec<_>| ids.into_iter().collect());
        for DraftObject { draft, .. } in staged {
            match &recorded {
                Some(recorded) if recorded.contains(draft.id()) => draft.record().await,
                Some(_) => drop(draft),
                None => draft.leave(),
            }
        }
    }

    /// Opens an object on record, whose file must have the length that its size makes.
    ///
    /// # Errors
    /// An object of another store or key, or one whose file is missing or cut.
    pub async fn open(&self, row: &ObjectRow) -> Result<ObjectReader, ObjectError> {
        let (store, vault) = self.sealing().ok_or(NO_STORE)?;
        if store.name() != row.store {
            return Err(ObjectError::Elsewhere("the artifact lies in another artifact store"));
        }
        let sealed =
            row.sealed_key.as_ref().ok_or(ObjectError::Elsewhere("the artifact was erased"))?;
        let key = vault.open_object_key(&row.tenant, &row.id, sealed);
        let key = key.ok_or(ObjectError::Elsewhere(
            "the key of the artifact does not open: this host has another secrets key",
        ))?;
        let head = ObjectHead {
            id: row.id.clone(),
            tenant: row.tenant.clone(),
            sha256: row.sha256.clone(),
            size: row.size,
        };
        Ok(ObjectReader::open(store, head, &key).await?)
    }

    /// Every proof, and where `reads_objects` every object of a run or all, of a tenant or all: read and hashed.
    ///
    /// # Errors
    /// The ledger does not answer, a proof cannot run, or the tenant's objects are being read already.
    pub async fn prove(
        &self,
        run: Option<&str>,
        tenant: Option<&str>,
        reads_objects: bool,
    ) -> Result<ProofReport> {
        let mut report = self.ledger.prove(run, tenant).await?;
        if reads_objects {
            let objects = self.check(run, tenant).await?;
            if objects.faulty > 0 {
                report.verdict = Verdict::NoGo;
            }
            report.objects = Some(objects);
        }
        Ok(report)
    }

    async fn check(&self, run: Option<&str>, tenant: Option<&str>) -> Result<ObjectReport> {
        let _reading = read_slot(tenant, PATIENCE).await?;
        let mut report = ObjectReport::default();
        let mut after = None;
        loop {
            let page = self.ledger.objects().page(run, tenant, after.as_ref(), PAGE).await?;
            let Some(last) = page.last() else { return Ok(report) };
            after = Some(last.row.id.clone());
            for object in page {
                let read = self.read_whole(&object.row).await;
                // Erased since its row was read: key and file are gone, as they should be.
                if read.is_err() && self.ledger.objects().is_erased(&object.row.id).await? {
                    continue;
                }
                report.looked_at = report.looked_at.saturating_add(1);
                match read {
                    Ok(bytes) => report.bytes = report.bytes.saturating_add(bytes),
                    Err(error) => {
                        tracing::warn!(object = %object.row.id, ?error, "a stored object is faulty");
                        report.faulty = report.faulty.saturating_add(1);
                        if report.faults.len() < MAX_FAULTS {
                            report.faults.push(faulty(object, error.fault()));
                        }
                    }
                }
            }
        }
    }

    /// Removes files of objects of this store whose keys are destroyed, until `turn` is over, and says so on record; how many. A file that
    /// cannot be removed holds up no other. A process that is killed between leaves the rest to the next look: that of a collection, of
    /// an erasure, or of a worker that starts.
    ///
    /// # Errors
    /// The ledger does not answer; or what the first file said that cannot be removed, behind the others.
    async fn clear(&self, turn: Duration) -> Result<u64> {
        let Some(store) = self.store.clone() else { return Ok(0) };
        let begun = Stopwatch::start();
        let (mut all, mut after, mut faulty) = (0_u64, None, None);
        while begun.elapsed() <= turn {
            let page = self.ledger.objects().leaving(store.name(), after.as_ref(), PAGE).await?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            let store = store.clone();
            let remove = move || -> (Vec<ObjectId>, Option<StoreError>) {
                let mut fault = None;
                let is_gone = |(id, sha256): (ObjectId, Digest)| match store.remove(&sha256, &id) {
                    Ok(()) => Some(id),
                    Err(error) => {
                        fault.get_or_insert(error);
                        None
                    }
                };
                (page.into_iter().filter_map(is_gone).collect(), fault)
            };
            let (gone, fault) = tokio::task::spawn_blocking(remove).await?;
            faulty = faulty.or(fault);
            self.ledger.objects().files_gone(&gone).await?;
            all = all.saturating_add(u64::try_from(gone.len()).unwrap_or(u64::MAX));
        }
        match faulty {
            Some(error) => Err(ObjectError::from(error).into()),
            None => Ok(all),
        }
    }

    /// [`Objects::clear`] behind what is done already: its failure, and what it has no time for, are a later look's.
    pub(crate) async fn clear_within(&self, turn: Duration) {
        if let Err(error) = self.clear(turn).await {
            tracing::warn!(%error, "files of erased objects stay in the artifact store until the next look");
        }
    }

    /// Removes what processes that were killed left in the store, and names what they had put on record.
    pub(crate) async fn sweep(&self) -> Result<()> {
        let Some(store) = self.store.clone() else { return Ok(()) };
        self.clear_within(Duration::MAX).await;
        let found = {
            let store = store.clone();
            tokio::task::spawn_blocking(move || store.leftovers()).await?
        };
        let left = found.map_err(ObjectError::from)?;
        let recorded = match left.objects() {
            [] => Vec::new(),
            objects => self.ledger.objects().recorded(objects).await?,
        };
        for (id, sha256) in &recorded {
            store.keep(sha256, id).await.map_err(ObjectError::from)?;
        }
        let kept: Vec<_> = recorded.into_iter().map(|(id, _)| id).collect();
        let removed = tokio::task::spawn_blocking(move || left.remove_but(&kept)).await?;
        let removed = removed.map_err(ObjectError::from)?;
        if removed > 0 {
            tracing::info!(removed, "objects without a row are removed from the artifact store");
        }
        Ok(())
    }
}

const NO_STORE: ObjectError = ObjectError::Elsewhere(
    "this process has no artifact store, or no secrets key: start it with --objects, as the worker that ran the task",
);

/// The one reading of a tenant's objects, or of all tenants', until it is dropped. Waits for the one before it.
async fn read_slot(tenant: Option<&str>, patience: Duration) -> Result<OwnedSemaphorePermit> {
    let whose = tenant.map(TenantId::parse).transpose().map_err(Error::corrupt("tenant"))?;
    READINGS.take(&whose, patience).await.ok_or_else(|| {
        let why = "stored objects are being read for another proof: try again when it is over, or leave them out (`--no-objects`, \
                   `skipObjects=true`)";
        Refusal::new(ErrorCode::Unavailable, why).into()
    })
}

/// The row of an object that is taken again.
fn again(row: ObjectRow) -> Option<NewObject> {
    let ObjectRow { id, store, sha256, size, sealed_key, sealed_by, .. } = row;
    Some(NewObject { id, store, sha256, size, sealed_key: sealed_key?, sealed_by })
}

fn faulty(object: ArtifactObject, fault: ObjectFault) -> FaultyObject {
    let ArtifactObject { row, run, uri } = object;
    FaultyObject { object: row.id, sha256: row.sha256, size: row.size, run_id: run, uri, fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tenant_reads_its_objects_once_at_a_time() {
        let soon = Duration::from_millis(20);
        let held = read_slot(Some("acme"), soon).await.unwrap();
        let refused = read_slot(Some("acme"), soon).await.err().unwrap().refusal();
        assert_eq!(refused.code, ErrorCode::Unavailable);
        assert!(read_slot(Some("bravo"), soon).await.is_ok(), "another tenant");
        let all = read_slot(None, soon).await.unwrap();
        assert!(read_slot(None, soon).await.is_err());
        drop((held, all));
        assert!(read_slot(Some("acme"), soon).await.is_ok());
        assert!(read_slot(None, soon).await.is_ok());
    }
}
