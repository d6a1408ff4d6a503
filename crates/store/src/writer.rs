//! Writes an object as its bytes come, in constant memory.

use std::collections::VecDeque;

use cofferdam_ambient::random::secret_bytes;
use cofferdam_contracts::id::{Digest, ObjectId, TenantId};
use object_store::path::Path as ObjectPath;
use object_store::{MultipartUpload, ObjectStoreExt as _, PutPayload, Result as ObjectResult};
use ring::digest::{Context, SHA256};
use tokio::task::JoinHandle;

use crate::error::StoreError;
use crate::location;
use crate::seal::{MAGIC, ObjectKey, PIECE, PieceCipher, TAG, wide};
use crate::store::Store;
use crate::sweep::remove;

/// Sealed bytes of one write.
const WRITE_BYTES: usize = 4 * (PIECE + TAG);
/// Writes that are under way: one is sealed while another is written.
const WAITING: usize = 2;

/// An object that is being written. Dropped, nothing of it is left.
pub struct ObjectWriter {
    store: Store,
    id: ObjectId,
    tenant: TenantId,
    key: ObjectKey,
    cipher: PieceCipher,
    sha256: Context,
    size: u64,
    /// Sealed pieces, and from `open` on plain bytes of the next one.
    held: Vec<u8>,
    open: usize,
    number: u64,
    upload: Box<dyn MultipartUpload>,
    writes: VecDeque<JoinHandle<ObjectResult<()>>>,
}

impl std::fmt::Debug for ObjectWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectWriter").field("id", &self.id).field("size", &self.size).finish()
    }
}

impl ObjectWriter {
    /// Begins an object of a tenant's.
    ///
    /// # Errors
    /// A store that is full, slow or fails.
    pub async fn begin(store: &Store, tenant: &TenantId) -> Result<Self, StoreError> {
        let id = store.next_id()?;
        let key = ObjectKey::new(secret_bytes());
        let refused = || StoreError::Broken("the cipher refused a key");
        let cipher = PieceCipher::new(&key, tenant, &id).ok_or_else(refused)?;
        let path = ObjectPath::from(location::part(&id));
        let upload = store.in_time(store.files().put_multipart(&path), id.as_str()).await?;
        let mut held = Vec::with_capacity(WRITE_BYTES + MAGIC.len());
        held.extend_from_slice(MAGIC);
        Ok(Self {
            store: store.clone(),
            id,
            tenant: tenant.clone(),
            key,
            cipher,
            sha256: Context::new(&SHA256),
            size: 0,
            held,
            open: MAGIC.len(),
            number: 0,
            upload,
            writes: VecDeque::new(),
        })
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// A store that is full, slow or fails: then the object is lost, and its file is removed.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        self.sha256.update(bytes);
        self.size = self.size.saturating_add(wide(bytes.len()));
        while !bytes.is_empty() {
            // A full piece is sealed once it is known that it is not the last.
            if self.held.len().saturating_sub(self.open) >= PIECE {
                self.seal(false)?;
                if self.held.len() >= WRITE_BYTES {
                    self.send().await?;
                }
            }
            let room = PIECE.saturating_sub(self.held.len().saturating_sub(self.open));
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.held.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn seal(&mut self, is_last: bool) -> Result<(), StoreError> {
        let sealed = self.cipher.seal(self.number, is_last, &mut self.held, self.open);
        sealed.ok_or(StoreError::Broken("the cipher refused a piece"))?;
        self.number = self.number.saturating_add(1);
        self.open = self.held.len();
        Ok(())
    }

    /// Has what is sealed written beside us, while there is room: others write at this moment as well.
    async fn send(&mut self) -> Result<(), StoreError> {
        self.store.room().await?;
        while self.writes.len() >= WAITING {
            self.written().await?;
        }
        let next = Vec::with_capacity(WRITE_BYTES);
        let sealed = std::mem::replace(&mut self.held, next);
        self.open = 0;
        self.writes.push_back(tokio::spawn(self.upload.put_part(PutPayload::from(sealed))));
        Ok(())
    }

    async fn written(&mut self) -> Result<(), StoreError> {
        let Some(write) = self.writes.pop_front() else { return Ok(()) };
        let ended = |_| StoreError::Broken("a write ended with its process");
        let write = async { Ok(write.await) };
        self.store
            .in_time(write, self.id.as_str())
            .await?
            .map_err(ended)?
            .map_err(|error| StoreError::of(error, self.id.as_str()))
    }

    /// Writes the last piece, and has all of it on the disk.
    ///
    /// # Errors
    /// A store that is full, slow or fails: then the object is lost, and its file is removed.
    pub async fn finish(mut self) -> Result<ObjectDraft, StoreError> {
        self.seal(true)?;
        self.send().await?;
        while !self.writes.is_empty() {
            self.written().await?;
        }
        self.store.in_time(self.upload.complete(), self.id.as_str()).await?;
        let Self { store, id, tenant, key, sha256, size, .. } = self;
        // From here on its file is removed unless it is on record.
        let mut staged =
            ObjectDraft { store, id, tenant, key, sha256: None, size, is_recorded: false };
        staged.sha256 = Digest::parse(&hex::encode(sha256.finish())).ok();
        Ok(staged)
    }
}

/// An object that is whole and not yet on record. Dropped, its file is removed.
#[derive(Debug)]
pub struct ObjectDraft {
    store: Store,
    id: ObjectId,
    tenant: TenantId,
    key: ObjectKey,
    sha256: Option<Digest>,
    size: u64,
    is_recorded: bool,
}

impl ObjectDraft {
    /// Id of the object, for its row.
    #[must_use]
    pub const fn id(&self) -> &ObjectId {
        &self.id
    }

    /// Owner of the object: its key opens for this tenant alone.
    #[must_use]
    pub const fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// Key of the object, to be sealed for its row.
    #[must_use]
    pub const fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Digest of the plain bytes; `None` cannot be: SHA-256 has 64 digits.
    #[must_use]
    pub const fn sha256(&self) -> Option<&Digest> {
        self.sha256.as_ref()
    }

    /// Number of plain bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Name of the store that has it.
    #[must_use]
    pub fn store_name(&self) -> &str {
        self.store.name()
    }

    /// Its row is committed: it gets its name. Where that fails it is found as a part all the same.
    pub async fn record(mut self) {
        self.is_recorded = true;
        let Some(sha256) = &self.sha256 else { return };
        if let Err(error) = self.store.keep(sha256, &self.id).await {
            tracing::warn!(object = %self.id, %error, "an object keeps the name of a part until the next start");
        }
    }

    /// Whether its row is committed is not known: the next start asks the ledger.
    pub fn leave(mut self) {
        self.is_recorded = true;
    }
}

impl Drop for ObjectDraft {
    fn drop(&mut self) {
        if !self.is_recorded
            && let Err(error) = remove(&self.store.part_file(&self.id))
        {
            tracing::warn!(object = %self.id, %error, "an object without a row stays until the next start");
        }
    }
}
