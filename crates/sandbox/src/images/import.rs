//! Images from files: an OCI layout (a directory or a tar of one) and what `docker save` writes.

use std::fs::{self, DirBuilder, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use cofferdam_contracts::id::Digest;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use serde::Deserialize;

use super::draft::Draft;
use super::error::{ImageError, at};
use super::manifest::{
    CONFIG, DOCKER_LIST, Descriptor, INDEX, Index, LAYER, MAX_DOCUMENT, Manifest, parse, written,
};
use super::name::ImageName;
use super::root;
use super::store::{ImageRecord, Images};
use super::unpack;

/// An index may name an index; more than this is a circle.
const MAX_INDEXES: usize = 3;
/// Where a layout says what its author called the image.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// One image of a `docker save`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SaveManifest {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// What only the index knows about its images.
#[derive(Debug, Deserialize)]
struct IndexAnnotations {
    manifests: Vec<Annotations>,
}

#[derive(Debug, Deserialize)]
struct Annotations {
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

/// A layout's files. Nothing outside its directory is ever opened.
struct Layout {
    dir: OwnedFd,
    path: PathBuf,
    _draft: Option<Draft>,
}

impl Layout {
    fn open(images: &Images, path: &Path) -> Result<Self, ImageError> {
        let found = fs::metadata(path).map_err(at(path))?;
        let draft = if found.is_dir() { None } else { Some(extract(images, path)?) };
        let path = draft.as_ref().map_or_else(|| path.to_owned(), |draft| draft.path().to_owned());
        let dir = File::open(&path).map_err(at(&path))?.into();
        Ok(Self { dir, path, _draft: draft })
    }

    fn file(&self, name: &str) -> Result<File, ImageError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.dir, name, flags, Mode::empty(), resolve)
            .map(File::from)
            .map_err(|error| at(&self.path.join(name))(error.into()))
    }

    fn document(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let mut bytes = Vec::new();
        self.file(name)?
            .take(MAX_DOCUMENT + 1)
            .read_to_end(&mut bytes)
            .map_err(at(&self.path.join(name)))?;
        match u64::try_from(bytes.len()).is_ok_and(|size| size <= MAX_DOCUMENT) {
            true => Ok(bytes),
            false => Err(ImageError::TooLarge { what: "a document", limit: MAX_DOCUMENT }),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.file(name).is_ok()
    }
}

/// A tar's files, by the same rules as a layer's.
fn extract(images: &Images, path: &Path) -> Result<Draft, ImageError> {
    let draft = images.drafts.draft();
    DirBuilder::new().mode(0o700).create(draft.path()).map_err(at(draft.path()))?;
    unpack::apply(draft.path(), root::open(path)?, &images.bounds)?;
    Ok(draft)
}

impl Images {
    /// Takes in an image from a file or directory, under `name` or the name that is written in it.
    /// Blocking: it reads, checks and unpacks every layer.
    pub fn import(&self, path: &Path, name: Option<&ImageName>) -> Result<ImageRecord, ImageError> {
        let _adding = self.lock.adding()?;
        let layout = Layout::open(self, path)?;
        let (manifest, said) = if layout.has("index.json") {
            self.take_layout(&layout)?
        } else if layout.has("manifest.json") {
            self.take_saved(&layout)?
        } else {
            return Err(ImageError::malformed(
                path.display().to_string(),
                "it is neither an OCI layout nor a `docker save`: no index.json, no manifest.json",
            ));
        };
        let name = match (name, said) {
            (Some(name), _) => name.clone(),
            (None, Some(said)) => ImageName::parse(&said)?,
            (None, None) => {
                return Err(ImageError::malformed(
                    path.display().to_string(),
                    "it names no image: give --name",
                ));
            }
        };
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.admit(&manifest, &name, &format!("import {file}"))
    }

    /// Makes the root of an image whose blobs are here, and then gives the image its name.
    pub(crate) fn admit(
        &self,
        manifest: &Digest,
        name: &ImageName,
        source: &str,
    ) -> Result<ImageRecord, ImageError> {
        let (document, config) = self.blobs.image(manifest)?;
        let diff_ids = config.diff_ids(document.layers.len())?;
        self.roots.make(&document.layers, &diff_ids)?;
        self.name(name, manifest, source)
    }

    fn take_layout(&self, layout: &Layout) -> Result<(Digest, Option<String>), ImageError> {
        let bytes = layout.document("index.json")?;
        let annotated: IndexAnnotations = parse("index.json", &bytes)?;
        let said =
            annotated.manifests.first().and_then(|one| one.annotations.get(REF_NAME)).cloned();
        let mut index: Index = parse("index.json", &bytes)?;
        for _ in 0..MAX_INDEXES {
            let chosen = index.choose()?.clone();
            let digest = chosen.digest()?;
            if chosen.media_type == INDEX || chosen.media_type == DOCKER_LIST {
                index = parse("the index", &layout.document(&blob_name(&digest))?)?;
                continue;
            }
            self.take_blob(layout, &digest, MAX_DOCUMENT)?;
            let manifest: Manifest = self.blobs.document("the manifest", &digest)?;
            self.take_blob(layout, &manifest.config.digest()?, MAX_DOCUMENT)?;
            for layer in &manifest.layers {
                self.take_blob(layout, &layer.digest()?, self.bounds.blob_bytes)?;
            }
            return Ok((digest, said));
        }
        Err(ImageError::malformed("index.json", "its indexes name indexes without end"))
    }

    fn take_blob(&self, layout: &Layout, digest: &Digest, limit: u64) -> Result<(), ImageError> {
        if self.blobs.has(digest) {
            return Ok(());
        }
        self.blobs.copy(layout.file(&blob_name(digest))?, Some(digest), limit).map(|_| ())
    }

    fn take_saved(&self, layout: &Layout) -> Result<(Digest, Option<String>), ImageError> {
        let mut saved: Vec<SaveManifest> =
            parse("manifest.json", &layout.document("manifest.json")?)?;
        let (Some(saved), true) = (saved.pop(), saved.is_empty()) else {
            return Err(ImageError::malformed("manifest.json", "it must name exactly one image"));
        };
        let config = layout.file(&saved.config)?;
        let (config, size) = self.blobs.copy(config, None, MAX_DOCUMENT)?;
        let mut layers = Vec::new();
        for layer in &saved.layers {
            let (digest, size) =
                self.blobs.copy(layout.file(layer)?, None, self.bounds.blob_bytes)?;
            layers.push(Descriptor::new(LAYER, &digest, size));
        }
        let manifest = Manifest::new(Descriptor::new(CONFIG, &config, size), layers);
        let (bytes, _) = written(&manifest)?;
        let (digest, _) = self.blobs.copy(bytes.as_slice(), None, MAX_DOCUMENT)?;
        Ok((digest, saved.repo_tags.and_then(|tags| tags.into_iter().next())))
    }
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{digest}")
}
