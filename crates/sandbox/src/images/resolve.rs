//! From `envRef: image:NAME` to the directory, environment and user that a plan needs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cofferdam_ambient::file_lock::FileLock;

use super::chain::{chains, empty};
use super::error::{ImageError, at};
use super::manifest::Settings;
use super::name::{ImageName, ImageRef, text_of};
use super::store::Images;
use crate::host::account::{self, Account};
use crate::host::hostpath::HostSource;

/// How an `envRef` names an image.
pub(crate) const SCHEME: &str = "image:";

/// An image, resolved against this host: nothing about it changes any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRoot {
    /// `image:NAME@sha256:HEX`, for the record.
    pub pinned: String,
    /// Directory of the unpacked image, the lowest layer of a sandbox's root.
    pub root: PathBuf,
    /// The image's environment.
    pub env: BTreeMap<String, String>,
    /// The image's working directory.
    pub workdir: Option<String>,
    /// The image's user, if it names one.
    pub user: Option<Account>,
}

impl Images {
    /// Finds an image by what follows `image:`.
    pub fn resolve(&self, text: &str) -> Result<ImageRoot, ImageError> {
        self.rooted_as(&ImageRef::parse(text)?).map(|(root, _)| root)
    }

    /// Finds an image by its name, with its settings.
    pub(crate) fn rooted(&self, name: &ImageName) -> Result<(ImageRoot, Settings), ImageError> {
        self.rooted_as(&ImageRef { name: name.clone(), digest: None })
    }

    fn rooted_as(&self, wanted: &ImageRef) -> Result<(ImageRoot, Settings), ImageError> {
        let named = self.names.find(wanted)?;
        let (manifest, config) = self.blobs.image(&named.manifest)?;
        let diff_ids = config.diff_ids(manifest.layers.len())?;
        let root = self.roots.path(&chains(&diff_ids).pop().unwrap_or_else(empty));
        if !root.is_dir() {
            return Err(ImageError::Unknown(named.name));
        }
        let pinned = format!("{SCHEME}{}@{}", named.name, text_of(&named.manifest));
        let found = ImageRoot::new(pinned, root, &config.config)?;
        Ok((found, config.config))
    }
}

impl ImageRoot {
    pub(crate) fn new(
        pinned: String,
        root: PathBuf,
        settings: &Settings,
    ) -> Result<Self, ImageError> {
        let env = settings.environment();
        let user = account(&root, &settings.user)?;
        let workdir =
            Some(settings.working_dir.clone()).filter(|dir| !matches!(dir.as_str(), "" | "/"));
        Ok(Self { pinned, root, env, workdir, user })
    }
}

/// A root file system in use: it is not taken away while this lives, whichever process asks.
#[derive(Debug)]
pub(crate) struct RootGuard(#[expect(dead_code, reason = "its lock ends with it")] FileLock);

/// Holds a base that is an image's root; `None` for every other base.
pub(crate) fn hold(state: &Path, base: &HostSource) -> io::Result<Option<RootGuard>> {
    let HostSource::Ours(base) = base else { return Ok(None) };
    if !base.starts_with(state.join("images")) {
        return Ok(None);
    }
    hold_root(base).map(Some)
}

/// Holds an image's root.
pub(crate) fn hold_root(base: &Path) -> io::Result<RootGuard> {
    let file = FileLock::shared(File::open(base)?)?;
    // It may have been swept away between the plan and the lock.
    let (ours, named) = (file.metadata()?, fs::symlink_metadata(base)?);
    match (ours.dev(), ours.ino()) == (named.dev(), named.ino()) {
        true => Ok(RootGuard(file)),
        false => Err(io::Error::new(io::ErrorKind::NotFound, "the image was removed meanwhile")),
    }
}

/// Looks the image's `USER` up. Without one there is none, and the home directory is the sandbox's own default.
fn account(root: &Path, text: &str) -> Result<Option<Account>, ImageError> {
    let named = text.split(':').next().is_some_and(|name| !name.is_empty());
    if !named {
        return Ok(None);
    }
    let dir = File::open(root).map_err(at(root))?;
    let found = account::find(&dir, text);
    let malformed =
        |error| ImageError::malformed("the configuration", format!("its USER: {error}"));
    found.map(Some).map_err(malformed)
}
