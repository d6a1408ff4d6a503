//! Blobs: content under the name of its SHA-256.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

use cofferdam_contracts::canonical::digest_of;
use cofferdam_contracts::id::Digest;
use sha2::{Digest as _, Sha256};

use super::draft::{Draft, Drafts};
use super::error::{ImageError, at};
use super::manifest::{Config, MAX_DOCUMENT, Manifest, parse};

/// One read of a blob.
const PIECE: usize = 256 * 1024;

/// Hashes and counts what passes, and stops at a bound.
pub(crate) struct HashReader<R> {
    inner: R,
    hash: Sha256,
    room: u64,
    is_over: bool,
}

impl<R: Read> HashReader<R> {
    pub fn new(inner: R, limit: u64) -> Self {
        Self { inner, hash: Sha256::new(), room: limit, is_over: false }
    }

    /// Whether more came than the bound allows.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Bytes that may still come.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Reads what is left, and gives the digest of everything.
    pub fn finish(mut self) -> io::Result<Digest> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(digest_of(self.hash.finalize().as_slice()))
    }
}

impl<R: Read> Read for HashReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let wide = u64::try_from(count).unwrap_or(u64::MAX);
        let Some(room) = self.room.checked_sub(wide) else {
            self.is_over = true;
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "more than the bound"));
        };
        self.room = room;
        self.hash.update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

/// A blob that comes in pieces.
pub(crate) struct BlobWriter {
    draft: Draft,
    file: File,
    hash: Sha256,
    size: u64,
    limit: u64,
}

impl BlobWriter {
    pub fn push(&mut self, piece: &[u8]) -> Result<(), ImageError> {
        self.size = self.size.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        if self.size > self.limit {
            return Err(ImageError::TooLarge { what: "a blob", limit: self.limit });
        }
        self.hash.update(piece);
        self.file.write_all(piece).map_err(at(self.draft.path()))
    }
}

/// The blobs of a store.
#[derive(Debug, Clone)]
pub(crate) struct Blobs {
    dir: PathBuf,
    drafts: Drafts,
}

impl Blobs {
    /// Those of a store.
    pub fn of(store: &Path, drafts: Drafts) -> Self {
        Self { dir: store.join("blobs"), drafts }
    }

    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.dir.join(digest.as_str())
    }

    pub fn has(&self, digest: &Digest) -> bool {
        self.path(digest).is_file()
    }

    /// Begins a blob of at most `limit` bytes.
    pub fn begin(&self, limit: u64) -> Result<BlobWriter, ImageError> {
        let draft = self.drafts.draft();
        let file = File::create(draft.path()).map_err(at(draft.path()))?;
        Ok(BlobWriter { draft, file, hash: Sha256::new(), size: 0, limit })
    }

    /// Moves it into place, if it is what was wanted.
    pub fn end(
        &self,
        incoming: BlobWriter,
        wanted: Option<&Digest>,
    ) -> Result<(Digest, u64), ImageError> {
        let found = digest_of(incoming.hash.finalize().as_slice());
        if let Some(wanted) = wanted
            && *wanted != found
        {
            return Err(ImageError::Digest { what: "a blob", wanted: wanted.clone(), found });
        }
        let path = self.path(&found);
        incoming.file.sync_all().map_err(at(&path))?;
        fs::rename(incoming.draft.path(), &path).map_err(at(&path))?;
        Ok((found, incoming.size))
    }

    /// Copies a blob in; nothing is written where it is there already.
    pub fn copy(
        &self,
        mut from: impl Read,
        wanted: Option<&Digest>,
        limit: u64,
    ) -> Result<(Digest, u64), ImageError> {
        let mut incoming = self.begin(limit)?;
        let mut buffer = vec![0; PIECE];
        loop {
            let count = from.read(&mut buffer).map_err(at(incoming.draft.path()))?;
            if count == 0 {
                return self.end(incoming, wanted);
            }
            incoming.push(buffer.get(..count).unwrap_or_default())?;
        }
    }

    pub fn file(&self, digest: &Digest) -> Result<File, ImageError> {
        let path = self.path(digest);
        File::open(&path).map_err(at(&path))
    }

    /// A small blob's bytes.
    pub fn bytes(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, ImageError> {
        let mut bytes = Vec::new();
        let file = self.file(digest)?;
        file.take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(at(&self.path(digest)))?;
        match u64::try_from(bytes.len()).is_ok_and(|size| size <= limit) {
            true => Ok(bytes),
            false => Err(ImageError::TooLarge { what: "a document", limit }),
        }
    }

    /// The manifest and the configuration of a manifest's digest.
    pub fn image(&self, digest: &Digest) -> Result<(Manifest, Config), ImageError> {
        let manifest: Manifest = self.document("the manifest", digest)?;
        let config = self.document("the configuration", &manifest.config.digest()?)?;
        Ok((manifest, config))
    }

    pub fn document<T: serde::de::DeserializeOwned>(
        &self,
        what: &str,
        digest: &Digest,
    ) -> Result<T, ImageError> {
        parse(what, &self.bytes(digest, MAX_DOCUMENT)?)
    }
}
