//! The directory that holds the images.

use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_contracts::id::Digest;
use serde::Serialize;

use super::blob::Blobs;
use super::draft::Drafts;
use super::error::{ImageError, at};
use super::lock::StoreLock;
use super::manifest::Manifest;
use super::name::ImageName;
use super::names::{ImageNames, NameFile};
use super::root::ImageRoots;
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
    /// Whether `blob_bytes`, `layer_bytes` and `layer_entries` hold for all layers of an image together.
    pub of_all_layers: bool,
}

impl Default for StoreBounds {
    fn default() -> Self {
        Self {
            blob_bytes: 8 << 30,
            layer_bytes: 32 << 30,
            layer_entries: 1_000_000,
            of_all_layers: false,
        }
    }
}

/// The images of a state directory.
#[derive(Debug, Clone)]
pub struct Images {
    pub(crate) dir: PathBuf,
    pub(crate) bounds: StoreBounds,
    pub(crate) blobs: Blobs,
    pub(crate) roots: ImageRoots,
    pub(crate) names: ImageNames,
    pub(crate) drafts: Drafts,
    pub(crate) lock: StoreLock,
}

/// An image that has a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageRecord {
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
        let drafts = Drafts::of(&dir);
        let blobs = Blobs::of(&dir, drafts.clone());
        Ok(Self {
            roots: ImageRoots::of(&dir, blobs.clone(), drafts.clone(), bounds),
            names: ImageNames::of(&dir, drafts.clone()),
            lock: StoreLock::of(&dir),
            blobs,
            drafts,
            bounds,
            dir,
        })
    }

    /// Everything that has a name, in the order of the names.
    pub fn list(&self) -> Result<Vec<ImageRecord>, ImageError> {
        let mut named = Vec::new();
        for file in self.names.all()? {
            named.push(self.described(file)?);
        }
        named.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(named)
    }

    /// Gives a name to a manifest whose blobs and root are in place.
    pub(crate) fn name(
        &self,
        name: &ImageName,
        manifest: &Digest,
        source: &str,
    ) -> Result<ImageRecord, ImageError> {
        self.described(self.names.assign(name, manifest, source)?)
    }

    fn described(&self, file: NameFile) -> Result<ImageRecord, ImageError> {
        let manifest: Manifest = self.blobs.document("the manifest", &file.manifest)?;
        Ok(ImageRecord {
            name: file.name,
            digest: file.manifest,
            source: file.source,
            created_at_ms: file.created_at_ms,
            bytes: manifest.layers.iter().map(|layer| layer.size).sum(),
            layers: manifest.layers.len(),
        })
    }
}
