//! Reads any range of an object, in constant memory.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_contracts::id::{Digest, ObjectId, TenantId};
use object_store::ObjectStoreExt as _;
use object_store::path::Path as ObjectPath;
use ring::digest::{Context, SHA256};
use tokio::task::JoinHandle;

use crate::error::StoreError;
use crate::location::{kept, object_name, part};
use crate::seal::{ObjectKey, PIECE, PieceCipher, TAG, locate, pieces, sealed_size, wide};
use crate::store::Store;

/// Plain bytes of one read: four pieces.
const READ_BYTES: u64 = 1024 * 1024;

/// What is known of an object before it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectHead {
    /// Id of the object, as its row has it.
    pub id: ObjectId,
    /// Owner of the object.
    pub tenant: TenantId,
    /// Digest of the plain bytes.
    pub sha256: Digest,
    /// Number of plain bytes.
    pub size: u64,
}

/// An object that is read.
#[derive(Clone)]
pub struct ObjectReader {
    store: Store,
    head: Arc<ObjectHead>,
    cipher: Arc<PieceCipher>,
    /// Where it was when it was opened.
    path: ObjectPath,
    /// Where it is once it is on record.
    kept: ObjectPath,
}

impl std::fmt::Debug for ObjectReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectReader").field("head", &self.head).finish()
    }
}

impl ObjectReader {
    /// Looks at the file of an object, which must have the length that its size makes.
    ///
    /// # Errors
    /// A file that is missing or cut, or a store that is slow or fails.
    pub async fn open(
        store: &Store,
        head: ObjectHead,
        key: &ObjectKey,
    ) -> Result<Self, StoreError> {
        let refused = || StoreError::Broken("the cipher refused a key");
        let cipher = PieceCipher::new(key, &head.tenant, &head.id).ok_or_else(refused)?;
        let name = object_name(&head.sha256, &head.id);
        let (whole, early) = (kept(&head.sha256, &head.id), part(&head.id));
        let mut error = StoreError::Missing(name.clone());
        // Its process may give it its name meanwhile.
        for path in [&whole, &early, &whole].map(|path| ObjectPath::from(path.as_str())) {
            let found = match store.in_time(store.files().head(&path), &name).await {
                Ok(found) => found.size,
                Err(missing @ StoreError::Missing(_)) => {
                    error = missing;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let wanted = sealed_size(head.size);
            if found != wanted {
                return Err(StoreError::Cut { object: name, found, wanted });
            }
            let (head, cipher) = (Arc::new(head), Arc::new(cipher));
            let kept = ObjectPath::from(whole.as_str());
            return Ok(Self { store: store.clone(), head, cipher, path, kept });
        }
        Err(error)
    }

    /// What is known of it.
    #[must_use]
    pub fn head(&self) -> &ObjectHead {
        &self.head
    }

    /// Plain bytes of a range; those behind the end are left out. The caller bounds the range: all of it is in memory.
    ///
    /// # Errors
    /// Bytes that are missing or were changed, or a store that is slow or fails.
    pub async fn part(&self, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let size = self.head.size;
        let range = range.start.min(size)..range.end.min(size);
        let found = locate(size, &range);
        let name = object_name(&self.head.sha256, &self.head.id);
        let sealed = self.sealed(&found.sealed, &name).await?;
        let changed = || StoreError::Changed(name.clone());
        if wide(sealed.len()) != found.sealed.end.saturating_sub(found.sealed.start) {
            return Err(changed());
        }
        let mut sealed = Vec::from(sealed);
        let mut plain = Vec::with_capacity(sealed.len());
        for (number, piece) in (found.first..found.end).zip(sealed.chunks_mut(PIECE + TAG)) {
            let is_last = number + 1 == pieces(size);
            plain.extend_from_slice(self.cipher.open(number, is_last, piece).ok_or_else(changed)?);
        }
        let count = range.end.saturating_sub(range.start);
        plain.drain(..usize::try_from(found.skip).unwrap_or(usize::MAX).min(plain.len()));
        plain.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        match wide(plain.len()) == count {
            true => Ok(plain),
            false => Err(changed()),
        }
    }

    /// Sealed bytes of a range. Every read opens the file anew, and one that was a part may have its name by now: it never becomes a
    /// part again.
    async fn sealed(&self, range: &Range<u64>, name: &str) -> Result<Bytes, StoreError> {
        let read = self.store.files().get_range(&self.path, range.clone());
        match self.store.in_time(read, name).await {
            Err(StoreError::Missing(_)) if self.path != self.kept => {
                let again = self.store.files().get_range(&self.kept, range.clone());
                self.store.in_time(again, name).await
            }
            read => read,
        }
    }

    /// A range as it is read, 1 MiB at a time, with one read ahead.
    #[must_use]
    pub fn stream(self, range: Range<u64>) -> ObjectStream {
        let end = range.end.min(self.head.size);
        let mut stream = ObjectStream { reader: self, at: range.start.min(end), end, ahead: None };
        stream.read_ahead();
        stream
    }

    /// Reads all of it, and compares the digest; gives the number of bytes.
    ///
    /// # Errors
    /// Bytes that are missing or were changed, or a store that is slow or fails.
    pub async fn check(self) -> Result<u64, StoreError> {
        let (wanted, mut sha256) = (Arc::clone(&self.head), Context::new(&SHA256));
        // An empty object has a piece, too, which must open.
        if wanted.size == 0 {
            self.part(0..0).await?;
        }
        let mut stream = self.stream(0..wanted.size);
        while let Some(piece) = stream.next().await? {
            sha256.update(&piece);
        }
        match hex::encode(sha256.finish()) == wanted.sha256.as_str() {
            true => Ok(wanted.size),
            false => Err(StoreError::Changed(object_name(&wanted.sha256, &wanted.id))),
        }
    }
}

/// A range of an object as it is read. Dropped, nothing more is read.
#[derive(Debug)]
pub struct ObjectStream {
    reader: ObjectReader,
    /// First byte that is not read ahead.
    at: u64,
    end: u64,
    ahead: Option<JoinHandle<Result<Vec<u8>, StoreError>>>,
}

impl ObjectStream {
    fn read_ahead(&mut self) {
        if self.at >= self.end {
            return;
        }
        // Reads end where pieces end, so that no piece is opened twice.
        let to = (self.at / READ_BYTES).saturating_add(1).saturating_mul(READ_BYTES).min(self.end);
        let (reader, range) = (self.reader.clone(), self.at..to);
        self.at = to;
        self.ahead = Some(tokio::spawn(async move { reader.part(range).await }));
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// Bytes that are missing or were changed, or a store that is slow or fails.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        let Some(ahead) = self.ahead.take() else { return Ok(None) };
        let ended = |_| StoreError::Broken("a read ended with its process");
        let piece = ahead.await.map_err(ended)??;
        self.read_ahead();
        Ok(Some(Bytes::from(piece)))
    }
}

impl Drop for ObjectStream {
    fn drop(&mut self) {
        if let Some(ahead) = &self.ahead {
            ahead.abort();
        }
    }
}
