//! The files of a snapshot on record, opened for a next sandbox.

use std::sync::Arc;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{SnapshotId, TenantId};
use cofferdam_flows::Result;
use cofferdam_ledger::snapshots::StoredSnapshot;
use cofferdam_sandbox::InitialFiles;

use crate::background::blocking;
use crate::patience::CREATE_PATIENCE;
use crate::refusal::{conflict, damaged, refuse};
use crate::snapshot::capture::SEAL_LOOK;
use crate::snapshot::comparison::unopened;
use crate::snapshot::resume_spec::ResumeSpec;
use crate::snapshot::snapshots::Snapshots;
use crate::snapshot::writer::FileOwner;
use crate::spec::checked;
use crate::template::host::base_name;
use crate::template::templates::Templates;

impl Snapshots {
    /// A snapshot on record, once its files are sealed.
    async fn once_sealed(&self, tenant: &TenantId, id: &SnapshotId) -> Result<StoredSnapshot> {
        let waited = Stopwatch::start();
        loop {
            let kept = self.live.0.ledger.snapshots().stored_snapshot(tenant, id).await?;
            let kept = kept.ok_or_else(|| Refusal::not_found("snapshot"))?;
            if kept.sha256.is_some() {
                return Ok(kept);
            }
            let left = CREATE_PATIENCE.saturating_sub(waited.elapsed());
            if left.is_zero() {
                let why = "the sandbox's files are still being sealed; try again";
                return Err(refuse(ErrorCode::Unavailable, why));
            }
            let over = async {
                if self.live.0.layers.sealed(id).await.is_none() {
                    clock::sleep(SEAL_LOOK).await;
                }
            };
            let _ = tokio::time::timeout(left, over).await;
        }
    }

    /// The files of a snapshot on record, once they are checked, and what was asked for with them. They lie on the image of
    /// their template as it is now.
    pub(crate) async fn open(
        &self,
        tenant: &TenantId,
        id: &SnapshotId,
    ) -> Result<(ResumeSpec, InitialFiles)> {
        let kept = self.once_sealed(tenant, id).await?;
        let store = Arc::clone(&self.live.0.store);
        if kept.place != store.place() {
            let why = "the snapshot's file is on another host; ask the server that made it";
            return Err(refuse(ErrorCode::WrongServer, why));
        }
        let vault = self.live.0.flows.secrets.vault()?;
        if *vault.fingerprint() != kept.sealed_by {
            let why = "the snapshot is sealed under another secrets key: copy secrets.key from the host that made it";
            return Err(conflict(why));
        }
        let key = vault.open_key(tenant, id, &kept.sealed_key);
        let key = key.ok_or_else(|| damaged(id, "its key does not open"))?;
        let (tenant, name) = (tenant.clone(), id.clone());
        let opened = blocking(move || {
            let owner = FileOwner { tenant: &tenant, snapshot: &name };
            store.open(owner, &key)
        });
        let opened = opened.await;
        let (resume_spec, filling) = opened.map_err(|why| {
            tracing::error!(snapshot = %id, %why, "a snapshot cannot be opened");
            damaged(id, unopened(&why))
        })?;
        self.fits(&resume_spec)?;
        // Its kernel could not write it, as is on record.
        let filling = if kept.view.memory { filling } else { filling.files_alone() };
        Ok((resume_spec, filling))
    }

    /// Refuses files whose template is another one now: what they change is not there, or is something else.
    pub(crate) fn fits(&self, resume_spec: &ResumeSpec) -> Result<()> {
        let (name, _) = checked(&resume_spec.request)?;
        let now = match (&resume_spec.built, &resume_spec.image) {
            // Its image is named by its digest, so it is there as it was or not at all.
            (Some(_), Some(_)) => return Ok(()),
            // The host's own programs, unless `base` was built since.
            (Some(_), None) => Templates::of(&self.live).host(&base_name()?)?.image,
            (None, _) => Templates::of(&self.live).host(&name)?.image,
        };
        match now == resume_spec.image {
            true => Ok(()),
            false => Err(conflict(format!(
                "the template {name} was built anew, and these files lie on the earlier one: add its image again \
                 (`cofferdam template add`)"
            ))),
        }
    }
}
