//! The files of one moment of a sandbox: sealed, and put on record.
//!
//! ```text
//! pause:    stop -> layer held by its sealer, room for its file -> snapshot and pause on record -> processes killed
//!           -> wiped but for the layer -> answer; meanwhile sealed, fsync -> layer retained or ended -> on record (`layer`)
//! snapshot: stop -> file (`copy`) -> go on -> fsync -> on record            fork: the same without a record, once for all its sandboxes
//! ```
//! A layer that does not lie in memory is sealed before its pause is on record, as those of snapshots are. Killed at any point,
//! a sandbox is what the ledger says: it ran and ended with its worker, or it is paused and its files are in a whole file or
//! in a layer that a living process seals. One whose layer is lost before (a reboot) is reported as ended.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{BuildId, Digest, LiveId, SnapshotId};
use cofferdam_contracts::snapshot::{MAX_SNAPSHOT_NAME, SnapshotKind, SnapshotView};
use cofferdam_flows::{Result, patiently};
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::snapshots::{NewSnapshotFiles, SnapshotForm};
use cofferdam_ledger::stored_files::StoredFileTable;
use cofferdam_ledger::template_layers::NewLayer;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::background::{blocking, detached};
use crate::handle::LiveHandle;
use crate::live::Live;
use crate::message::Message;
use crate::refusal::{conflict, over, refuse};
use crate::snapshot::eraser::Eraser;
use crate::snapshot::resume_spec::ResumeSpec;
use crate::snapshot::snapshots::Snapshots;
use crate::snapshot::store::{SnapshotFile, SnapshotStore};

/// Between two looks at a file that another process writes.
pub(crate) const SEAL_LOOK: Duration = Duration::from_millis(50);

/// The file of a snapshot, once it outlives the host's power.
pub(crate) async fn synced(kept: SnapshotFile) -> Result<SnapshotFile> {
    let kept = blocking(move || kept.sync().map(|()| kept));
    kept.await.map_err(|why| refuse(ErrorCode::Unavailable, why.to_string()))
}

pub(crate) fn audit<'a>(
    who: &'a Principal,
    op: &'a str,
    held: &'a LiveHandle,
    kept: &SnapshotFile,
) -> Audit<'a> {
    let detail = json!({"snapshot": kept.id, "bytes": kept.bytes, "memory": kept.memory});
    Audit { detail: Some(detail), ..Audit::by(who, op, held.facts.id.as_str()) }
}

/// Where the file of a snapshot is, and its key, sealed.
pub(crate) struct FileLocation {
    pub store: Arc<SnapshotStore>,
    place: String,
    sealed_key: Vec<u8>,
    sealed_by: Digest,
}

impl FileLocation {
    pub(crate) fn row<'a>(
        &'a self,
        held: &'a LiveHandle,
        kept: &'a SnapshotFile,
        kind: SnapshotKind,
        name: Option<&'a str>,
        form: SnapshotForm<'a>,
    ) -> NewSnapshotFiles<'a> {
        NewSnapshotFiles {
            id: &kept.id,
            live: &held.facts.id,
            run: &held.facts.run,
            kind,
            memory: kept.memory,
            name,
            place: &self.place,
            bytes: kept.bytes,
            form,
            sealed_key: &self.sealed_key,
            sealed_by: &self.sealed_by,
        }
    }
}

/// What the files of one moment of a sandbox that goes on are kept as.
pub(crate) enum SnapshotPurpose<'a> {
    /// What its user asked for.
    Snapshot,
    /// A layer of a build.
    Layer(NewLayer<'a>),
    /// What this build leaves, which may be a layer.
    Template(&'a BuildId, Option<NewLayer<'a>>),
}

/// Keeps the files of a sandbox that runs and goes on.
#[derive(Debug, Serialize, Deserialize)]
pub struct TakeSnapshot {
    /// Caller; the sandbox must belong to the tenant of this key.
    pub who: Principal,
    /// Sandbox that must run in this process.
    pub id: LiveId,
    /// What its user calls it.
    pub name: Option<String>,
}

impl Message for TakeSnapshot {
    type Reply = SnapshotView;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        Snapshots::of(live).take(&self.who, &self.id, self.name).await
    }
}

/// Deletes a snapshot of the caller's tenant: its key is destroyed, and its file removed.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeleteSnapshot {
    /// Caller; the snapshot must belong to the tenant of this key.
    pub who: Principal,
    /// Snapshot to delete, by the id that its creation answered.
    pub id: SnapshotId,
}

impl Message for DeleteSnapshot {
    type Reply = ();

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        Snapshots::of(live).delete(&self.who, &self.id).await
    }
}

impl Snapshots {
    /// Puts sealed files on record, and gives them their name.
    ///
    /// # Errors
    /// They are not on record: its sandbox has ended, or the database does not say.
    pub(crate) async fn record_as(
        &self,
        who: &Principal,
        held: &LiveHandle,
        mut kept: SnapshotFile,
        name: Option<&str>,
        what: SnapshotPurpose<'_>,
    ) -> Result<SnapshotFile> {
        let filed = self.filed(held, &kept)?;
        let (kind, op) = match &what {
            SnapshotPurpose::Snapshot => (SnapshotKind::Snapshot, "sandbox.snapshot"),
            SnapshotPurpose::Layer(_) => (SnapshotKind::Layer, "template.layer"),
            SnapshotPurpose::Template(..) => (SnapshotKind::Template, "template.ready"),
        };
        let new = filed.row(held, &kept, kind, name, SnapshotForm::Sealed(&kept.sha256));
        let audit = audit(who, op, held, &kept);
        let ledger = &self.live.0.ledger;
        let added = match &what {
            SnapshotPurpose::Snapshot => ledger.snapshots().add(&new, &audit).await,
            SnapshotPurpose::Layer(layer) => ledger.layers().add(&new, layer, &audit).await,
            SnapshotPurpose::Template(build, layer) => {
                ledger.builds().ready(build, &new, layer.as_ref(), &audit).await
            }
        };
        if !self.recorded(&mut kept, added, StoredFileTable::Snapshots).await? {
            return Err(over());
        }
        filed.store.give_name(&mut kept);
        Ok(kept)
    }

    pub(crate) fn filed(&self, held: &LiveHandle, kept: &SnapshotFile) -> Result<FileLocation> {
        let (store, vault) = (Arc::clone(&self.live.0.store), self.live.0.flows.secrets.vault()?);
        let sealed_key = vault.seal_key(&held.facts.tenant, &kept.id, &kept.key);
        let sealed_key =
            sealed_key.ok_or_else(|| conflict("the snapshot's key could not be sealed"))?;
        let (place, sealed_by) = (store.place(), vault.fingerprint().clone());
        Ok(FileLocation { store, place, sealed_key, sealed_by })
    }

    /// Whether kept files are on record. A commit whose answer was lost may have happened: the ledger is asked until it says,
    /// and where it does not, the file is left for the next start.
    pub(crate) async fn recorded(
        &self,
        kept: &mut SnapshotFile,
        outcome: cofferdam_ledger::Result<bool>,
        table: StoredFileTable,
    ) -> Result<bool> {
        let error = match outcome {
            Ok(recorded) => return Ok(recorded),
            Err(error) => error,
        };
        match patiently(|| self.live.0.ledger.stored_files(table).is_recorded(&kept.id)).await {
            Ok(true) => Ok(true),
            Ok(false) => Err(error.into()),
            Err(_) => {
                kept.leave();
                Err(error.into())
            }
        }
    }

    /// Keeps the files of a sandbox that runs and goes on.
    ///
    /// # Errors
    /// As for a pause; or the name is out of bounds.
    async fn take(
        &self,
        who: &Principal,
        id: &LiveId,
        name: Option<String>,
    ) -> Result<SnapshotView> {
        let fits = |n: &String| (1..=MAX_SNAPSHOT_NAME).contains(&n.len()) && !n.contains('\0');
        if !name.as_ref().is_none_or(fits) {
            let why =
                format!("name: a snapshot's name has 1 to {MAX_SNAPSHOT_NAME} bytes, and no NUL");
            return Err(refuse(ErrorCode::PolicyViolation, why));
        }
        let held = self.live.handle(who, id).await?;
        let (live, who) = (self.live.clone(), who.clone());
        detached(async move { Snapshots::of(&live).take_held(&who, &held, name.as_deref()).await })
            .await
    }

    async fn take_held(
        &self,
        who: &Principal,
        held: &Arc<LiveHandle>,
        name: Option<&str>,
    ) -> Result<SnapshotView> {
        self.live.0.flows.secrets.vault()?;
        let kept = self.snapshot(held, held.resume_spec()).await?;
        let kept = self.record_as(who, held, kept, name, SnapshotPurpose::Snapshot).await?;
        let view =
            self.live.0.ledger.snapshots().stored_snapshot(&held.facts.tenant, &kept.id).await?;
        Ok(view.ok_or_else(|| Refusal::not_found("snapshot"))?.view)
    }

    /// The files of one moment of a sandbox, which goes on before they are on the disk.
    pub(crate) async fn snapshot(
        &self,
        held: &Arc<LiveHandle>,
        resume_spec: ResumeSpec,
    ) -> Result<SnapshotFile> {
        let keeping = held.keeping.lock().await;
        if !held.goes_on() {
            return Err(over());
        }
        let (still, kept) = self.keep_files(held, resume_spec).await?;
        drop(still);
        drop(keeping);
        synced(kept).await
    }

    /// Deletes a snapshot of the caller's tenant: its key is destroyed, and its file removed.
    ///
    /// # Errors
    /// There is none of this id, or a sandbox is paused into it.
    async fn delete(&self, who: &Principal, id: &SnapshotId) -> Result<()> {
        let audit = Audit::by(who, "snapshot.delete", id.as_str());
        self.live.0.ledger.snapshots().erase(id, &audit).await?;
        Eraser::of(&self.live).clean_up().await;
        Ok(())
    }
}
