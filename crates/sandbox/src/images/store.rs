//! The directory that holds the images, and its lock.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use cofferdam_ambient::{clock, random};
use cofferdam_contracts::id::Digest;
use cofferdam_guest::removal::remove_tree;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::error::{ImageError, at};
use super::manifest::{Config, MAX_DOCUMENT, Manifest, parse};
use super::name::{ImageName, ImageRef};
use crate::host::live;

/// What an image may be at most; an image beyond it is refused while it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreBounds {
    /// Bytes of one blob as it comes, compressed: the largest images in use have layers of some GiB.
    pub blob_bytes: u64,
    /// Bytes of all files of a layer, unpacked: a small compressed layer can hold any number.
    pub layer_bytes: u64,
    /// Entries of a layer: a full distribution has 100,000.
    pub layer_entries: u64,
}

impl Default for StoreBounds {
    fn default() -> Self {
        Self { blob_bytes: 8 << 30, layer_bytes: 32 << 30, layer_entries: 1_000_000 }
    }
}

/// The images of a state directory.
#[derive(Debug, Clone)]
pub struct Images {
    pub(crate) dir: PathBuf,
    pub(crate) bounds: StoreBounds,
}

/// A name's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct NameFile {
    pub schema_version: u32,
    pub name: String,
    pub manifest: Digest,
    pub source: String,
    pub created_at_ms: i64,
}

/// An image that has a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NamedImage {
    /// What `image:` takes.
    pub name: String,
    /// Digest of its manifest: pins it.
    pub digest: Digest,
    /// Where it came from, in words.
    pub source: String,
    /// When it got this name, ms since the epoch.
    pub created_at_ms: i64,
    /// Bytes of its layers as they came.
    pub bytes: u64,
    /// Number of its layers.
    pub layers: usize,
}

/// What is being written: gone when dropped, unless it was moved into place.
#[derive(Debug)]
pub(crate) struct Draft(PathBuf);

impl Draft {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = match fs::symlink_metadata(&self.0) {
            Ok(found) if found.is_dir() => remove_tree(&self.0),
            Ok(_) => fs::remove_file(&self.0),
            Err(_) => Ok(()),
        };
    }
}

/// While it is held, nothing is swept away.
#[derive(Debug)]
pub(crate) struct Adding(#[expect(dead_code, reason = "its lock ends with it")] File);

impl Images {
    /// The images of a state directory; made where they are not there. Only root may look inside:
    /// a root file system holds programs that would be set-user-id for anybody who reached them.
    pub fn open(state_dir: &Path) -> Result<Self, ImageError> {
        Self::bounded(state_dir, StoreBounds::default())
    }

    /// The same with bounds of its own.
    pub fn bounded(state_dir: &Path, bounds: StoreBounds) -> Result<Self, ImageError> {
        let dir = fs::canonicalize(state_dir).map_err(at(state_dir))?.join("images");
        for path in [
            dir.clone(),
            dir.join("blobs"),
            dir.join("roots"),
            dir.join("names"),
            dir.join("drafts"),
        ] {
            live::private_dir(&path).map_err(at(&path))?;
        }
        Ok(Self { dir, bounds })
    }

    /// Everything that has a name, in the order of the names.
    pub fn list(&self) -> Result<Vec<NamedImage>, ImageError> {
        let mut named = Vec::new();
        for file in self.names()? {
            named.push(self.described(file)?);
        }
        named.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(named)
    }

    pub(crate) fn names(&self) -> Result<Vec<NameFile>, ImageError> {
        let dir = self.dir.join("names");
        let mut all = Vec::new();
        for entry in fs::read_dir(&dir).map_err(at(&dir))? {
            let path = entry.map_err(at(&dir))?.path();
            match fs::read(&path) {
                Ok(bytes) => all.push(parse("a name's file", &bytes)?),
                // Removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(at(&path)(error)),
            }
        }
        Ok(all)
    }

    pub(crate) fn named(&self, wanted: &ImageRef) -> Result<NameFile, ImageError> {
        let path = self.name_path(&wanted.name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ImageError::Unknown(wanted.name.to_string()));
            }
            Err(error) => return Err(at(&path)(error)),
        };
        let file: NameFile = parse("a name's file", &bytes)?;
        match &wanted.digest {
            Some(digest) if *digest != file.manifest => Err(ImageError::Moved {
                name: file.name,
                found: file.manifest,
                wanted: digest.clone(),
            }),
            _ => Ok(file),
        }
    }

    pub(crate) fn name_path(&self, name: &ImageName) -> PathBuf {
        self.dir.join("names").join(name.file())
    }

    /// Gives a name to a manifest whose blobs and root are in place. Last, and in one move.
    pub(crate) fn name(
        &self,
        name: &ImageName,
        manifest: &Digest,
        source: &str,
    ) -> Result<NamedImage, ImageError> {
        let file = NameFile {
            schema_version: 1,
            name: name.to_string(),
            manifest: manifest.clone(),
            source: source.to_owned(),
            created_at_ms: clock::now_ms(),
        };
        let (bytes, _) = super::manifest::written(&file)?;
        let draft = self.draft();
        let write = || -> io::Result<()> {
            fs::write(draft.path(), &bytes)?;
            File::open(draft.path())?.sync_all()?;
            fs::rename(draft.path(), self.name_path(name))
        };
        write().map_err(at(&self.name_path(name)))?;
        self.described(file)
    }

    fn described(&self, file: NameFile) -> Result<NamedImage, ImageError> {
        let manifest: Manifest = self.document("the manifest", &file.manifest)?;
        Ok(NamedImage {
            name: file.name,
            digest: file.manifest,
            source: file.source,
            created_at_ms: file.created_at_ms,
            bytes: manifest.layers.iter().map(|layer| layer.size).sum(),
            layers: manifest.layers.len(),
        })
    }

    /// The manifest and the configuration of a manifest's digest.
    pub(crate) fn image(&self, digest: &Digest) -> Result<(Manifest, Config), ImageError> {
        let manifest: Manifest = self.document("the manifest", digest)?;
        let config = self.document("the configuration", &manifest.config.digest()?)?;
        Ok((manifest, config))
    }

    pub(crate) fn document<T: serde::de::DeserializeOwned>(
        &self,
        what: &str,
        digest: &Digest,
    ) -> Result<T, ImageError> {
        parse(what, &self.blob_bytes(digest, MAX_DOCUMENT)?)
    }

    /// A path that nobody else writes to.
    pub(crate) fn draft(&self) -> Draft {
        Draft(self.dir.join("drafts").join(random::secret_hex(16)))
    }

    /// Held by whoever adds an image, any number at once.
    pub(crate) fn adding(&self) -> Result<Adding, ImageError> {
        let (path, file) = self.lock_file()?;
        flock(&file, FlockOperation::LockShared).map_err(|error| at(&path)(error.into()))?;
        Ok(Adding(file))
    }

    /// Held by whoever sweeps; `None` while somebody adds.
    pub(crate) fn sweeping(&self) -> Result<Option<Adding>, ImageError> {
        let (path, file) = self.lock_file()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Adding(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(at(&path)(error.into())),
        }
    }

    fn lock_file(&self) -> Result<(PathBuf, File), ImageError> {
        let path = self.dir.join("lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(at(&path))?;
        Ok((path, file))
    }
}
