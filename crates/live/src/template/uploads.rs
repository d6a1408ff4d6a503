//! Archives that clients send for the COPY steps of a template: sealed on this host, and counted, as snapshots are.
//!
//! ```text
//! pieces --> ID.part (locked, sealed) --> fsync --> the row commits --> ID.snap
//! ```
//! A row's key is destroyed a day after its last use, and with its template; then the file is removed.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, TemplateId, TenantId};
use cofferdam_contracts::template_build::MAX_UPLOAD_BYTES;
use cofferdam_flows::{Error, Result};
use cofferdam_ledger::stored_files::StoredFileTable;
use cofferdam_ledger::template_files::{NewUpload, Upload};
use flate2::read::MultiGzDecoder;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::background::blocking;
use crate::guest::file::ByteSink;
use crate::ids::fresh;
use crate::live::Live;
use crate::message::Message;
use crate::refusal::{conflict, refuse};
use crate::snapshot::capture::synced;
use crate::snapshot::eraser::Eraser;
use crate::snapshot::new_file::NewFile;
use crate::snapshot::reader::SnapshotReader;
use crate::snapshot::snapshots::Snapshots;
use crate::snapshot::writer::FileOwner;
use crate::template::upload_digest::{PACKED, TarDigest};

/// Bytes of a tar that are read at once.
const PIECE: usize = 256 * 1_024;

/// Whether a template has an archive of this name that this host can open.
#[derive(Debug, Serialize, Deserialize)]
pub struct FindUpload {
    /// Whose it is.
    pub tenant: TenantId,
    /// Template whose COPY steps use the archive.
    pub template: TemplateId,
    /// What the client calls it.
    pub hash: Digest,
}

impl Message for FindUpload {
    type Reply = bool;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        Uploads::of(live).is_present(&self.tenant, &self.template, &self.hash).await
    }
}

/// Takes an archive in pieces, after which comes `None`: one that ends otherwise broke off.
#[derive(Debug, Serialize, Deserialize)]
pub struct SendUpload {
    /// Whose it is.
    pub tenant: TenantId,
    /// The key that asked for its link.
    pub key_id: String,
    /// Template whose COPY steps use the archive.
    pub template: TemplateId,
    /// What the client calls it.
    pub hash: Digest,
}

impl Message for SendUpload {
    type Reply = ByteSink<Error>;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        let uploads = Uploads::of(live);
        Ok(ByteSink::of(|pieces| async move {
            let Self { tenant, key_id, template, hash } = self;
            uploads.take(&tenant, &key_id, &template, &hash, pieces).await
        }))
    }
}

/// What clients sent for builds of templates.
#[derive(Debug, Clone)]
pub struct Uploads {
    pub(crate) live: Live,
}

impl Uploads {
    /// Of this process.
    #[must_use]
    pub fn of(live: &Live) -> Self {
        Self { live: live.clone() }
    }
}

impl Uploads {
    /// Whether a template has an archive of this name that this host can open.
    ///
    /// # Errors
    /// The ledger cannot be read.
    async fn is_present(
        &self,
        tenant: &TenantId,
        template: &TemplateId,
        hash: &Digest,
    ) -> Result<bool> {
        Ok(self.find(tenant, template, hash).await?.is_some())
    }

    /// An archive of this name that this host can open; from now on it is in use.
    pub(crate) async fn find(
        &self,
        tenant: &TenantId,
        template: &TemplateId,
        hash: &Digest,
    ) -> Result<Option<Upload>> {
        let found = self.live.0.ledger.builds().upload(tenant, template, hash).await?;
        let here = Arc::clone(&self.live.0.uploads).place();
        Ok(found.filter(|found| found.place == here))
    }

    /// Takes an archive in pieces, after which comes `None`: one that ends otherwise broke off.
    ///
    /// # Errors
    /// It broke off or is too large, the tenant's quota is full, or there is no room.
    async fn take(
        &self,
        tenant: &TenantId,
        key_id: &str,
        template: &TemplateId,
        hash: &Digest,
        mut pieces: mpsc::Receiver<Option<Bytes>>,
    ) -> Result<()> {
        let (store, vault, id) =
            (Arc::clone(&self.live.0.uploads), self.live.0.flows.secrets.vault()?, fresh()?);
        let writer = Arc::clone(&store);
        let room = Snapshots::of(&self.live).room(tenant).await?;
        let shared = Arc::clone(&room);
        let written = blocking(move || {
            let new = NewFile { store: &writer, id, room: &shared };
            new.keep_bytes(|out| {
                let (mut size, mut content) = (0u64, TarDigest::new());
                loop {
                    match pieces.blocking_recv() {
                        Some(Some(piece)) => {
                            let more = u64::try_from(piece.len()).unwrap_or(u64::MAX);
                            size = size.saturating_add(more);
                            if size > MAX_UPLOAD_BYTES {
                                let why = format!("an upload has at most {MAX_UPLOAD_BYTES} bytes");
                                return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
                            }
                            content.push(&piece);
                            out.write_all(&piece)?;
                        }
                        Some(None) if size > 0 => return Ok(content.finish()),
                        _ => return Err(io::ErrorKind::UnexpectedEof.into()),
                    }
                }
            })
        });
        let (content, kept) = written.await.map_err(|why| match why.kind() {
            // Without words of its own it is the end of the room.
            io::ErrorKind::FileTooLarge if why.get_ref().is_none() => room.fault(&why),
            io::ErrorKind::FileTooLarge => refuse(ErrorCode::PolicyViolation, why.to_string()),
            io::ErrorKind::UnexpectedEof => {
                refuse(ErrorCode::PolicyViolation, "the upload is empty or broke off")
            }
            _ => refuse(ErrorCode::Unavailable, why.to_string()),
        })?;
        let mut kept = synced(kept).await?;
        let sealed_key = vault.seal_key(tenant, &kept.id, &kept.key);
        let sealed_key =
            sealed_key.ok_or_else(|| conflict("the upload's key could not be sealed"))?;
        let place = store.place();
        let new = NewUpload {
            key_id,
            id: &kept.id,
            template,
            tenant,
            hash,
            place: &place,
            bytes: kept.bytes,
            sealed_key: &sealed_key,
            sealed_by: vault.fingerprint(),
            content: content.as_ref(),
        };
        let added = self.live.0.ledger.builds().upload_add(&new).await;
        if !Snapshots::of(&self.live).recorded(&mut kept, added, StoredFileTable::Uploads).await? {
            // It was looked at before the first byte, and minutes may lie between.
            let is_revoked = self.live.0.ledger.keys().is_revoked(key_id).await?;
            return Err(match is_revoked {
                true => refuse(
                    ErrorCode::Forbidden,
                    "the key that asked for this upload link is revoked",
                ),
                false => Refusal::not_found("template").into(),
            });
        }
        store.give_name(&mut kept);
        // Its lock: one that another upload erased meanwhile is removed by whoever is last.
        drop(kept);
        self.clean_up().await;
        Ok(())
    }

    /// The tar of an archive, in pieces that are fed as they are taken. What breaks off is no end of a tar.
    pub(crate) async fn tar(
        &self,
        tenant: &TenantId,
        template: &TemplateId,
        hash: &Digest,
        content: Option<Digest>,
        most: u64,
    ) -> Result<mpsc::Receiver<Bytes>> {
        let found = self.live.0.ledger.builds().upload(tenant, template, hash).await?;
        let missing = || conflict("the files of this step were not uploaded, or not lately");
        let found = found.ok_or_else(missing)?;
        // What this build leaves is on record as made of those that it began with.
        if found.content != content {
            return Err(conflict(
                "the files of this step were replaced while the build ran; build again",
            ));
        }
        let (store, vault) = (Arc::clone(&self.live.0.uploads), self.live.0.flows.secrets.vault()?);
        if found.place != store.place() || *vault.fingerprint() != found.sealed_by {
            return Err(conflict("the files of this step lie on another host"));
        }
        let key = vault.open_key(tenant, &found.id, &found.sealed_key);
        let key = key.ok_or_else(|| conflict("the upload's key does not open"))?;
        let of = tenant.clone();
        let opened = blocking(move || {
            let owner = FileOwner { tenant: &of, snapshot: &found.id };
            SnapshotReader::new(store.file(&found.id)?, &key, owner)
        });
        let opened =
            opened.await.map_err(|why| conflict(format!("the upload cannot be read: {why}")))?;
        let (pieces, tar) = mpsc::channel(2);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = fed(opened, most, &pieces) {
                tracing::debug!(%error, "an upload is not a whole archive");
            }
        });
        Ok(tar)
    }

    /// Erases archives that nothing needs any more. What fails is tried again at the next call.
    pub(crate) async fn clean_up(&self) {
        if let Err(error) = self.tidied().await {
            tracing::warn!(%error, "uploads that are not needed are not erased yet");
        }
    }

    async fn tidied(&self) -> Result<()> {
        let store = &self.live.0.uploads;
        self.live.0.ledger.builds().end_unstarted().await?;
        self.live.0.ledger.builds().uploads_erase_unneeded().await?;
        Eraser::of(&self.live).erased_removed(store, StoredFileTable::Uploads).await
    }

    /// Puts in order what killed processes left.
    pub(crate) async fn sweep(&self) -> Result<()> {
        let store = &self.live.0.uploads;
        let fault = |why: io::Error| conflict(format!("the directory of uploads: {why}"));
        for id in store.left().map_err(fault)? {
            match self.live.0.ledger.stored_files(StoredFileTable::Uploads).is_recorded(&id).await?
            {
                true => store.rename(&id).map_err(fault)?,
                false if store.is_written(&id) => {}
                false => store.remove(&id).map_err(fault)?,
            }
        }
        Ok(())
    }
}

/// Feeds a tar, packed or not, up to this many bytes of it. Blocking.
fn fed(mut from: impl Read, most: u64, pieces: &mpsc::Sender<Bytes>) -> io::Result<()> {
    let mut head = [0; PACKED.len()];
    from.read_exact(&mut head)?;
    let whole = (&head[..]).chain(from);
    let mut tar: Box<dyn Read> = match head == PACKED {
        true => Box::new(MultiGzDecoder::new(whole)),
        false => Box::new(whole),
    };
    let mut left = most;
    loop {
        let mut piece = vec![0; PIECE];
        let count = tar.read(&mut piece)?;
        if count == 0 {
            return Ok(());
        }
        piece.truncate(count);
        left = left
            .checked_sub(u64::try_from(count).unwrap_or(u64::MAX))
            .ok_or(io::ErrorKind::FileTooLarge)?;
        if pieces.blocking_send(Bytes::from(piece)).is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn all(bytes: &[u8], most: u64) -> (io::Result<()>, Vec<u8>) {
        let (pieces, mut tar) = mpsc::channel(64);
        let done = fed(bytes, most, &pieces);
        drop(pieces);
        let mut all = Vec::new();
        while let Ok(piece) = tar.try_recv() {
            all.extend_from_slice(&piece);
        }
        (done, all)
    }

    #[test]
    fn a_tar_is_fed_packed_or_not_and_within_its_bound() {
        let plain = vec![7; 300_000];
        let (done, fed) = all(&plain, 1 << 20);
        assert!(done.is_ok() && fed == plain);
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(&plain).unwrap();
        let packed = packer.finish().unwrap();
        let (done, fed) = all(&packed, 1 << 20);
        assert!(done.is_ok() && fed == plain);
        // A small archive of very many bytes.
        assert_eq!(all(&packed, 1_000).0.unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(all(&packed[..packed.len() / 2], 1 << 20).0.is_err());
        assert!(all(b"x", 9).0.is_err());
    }
}
