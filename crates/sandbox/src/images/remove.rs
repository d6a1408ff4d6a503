//! Taking an image's name away, and then everything that no name needs any more.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

use cofferdam_ambient::file_lock::FileLock;
use cofferdam_contracts::id::Digest;
use cofferdam_guest::removal::remove_tree;

use super::chain::{chains, empty};
use super::error::{ImageError, at};
use super::name::{ImageName, ImageRef};
use super::store::Images;

/// What names still need.
#[derive(Default)]
struct References {
    blobs: BTreeSet<String>,
    roots: BTreeSet<String>,
}

impl Images {
    /// Removes a name, and the content that only it needed. Refused while a sandbox runs on it.
    pub fn remove(&self, name: &ImageName) -> Result<(), ImageError> {
        let named = self.names.find(&ImageRef { name: name.clone(), digest: None })?;
        let root = self.roots.path(&self.chain_of(&named.manifest)?);
        // Held until the name is gone: whoever comes later finds no name.
        let held = exclusive(&root)?;
        if root.is_dir() && held.is_none() {
            return Err(ImageError::InUse(name.to_string()));
        }
        let path = self.names.path(name);
        fs::remove_file(&path).map_err(at(&path))?;
        drop(held);
        // Whoever adds an image needs what has no name yet; the next removal sweeps then.
        self.sweep()
    }

    /// Removes what no name needs, unless somebody is adding an image.
    pub(crate) fn sweep(&self) -> Result<(), ImageError> {
        let Some(_sweeping) = self.lock.sweeping()? else { return Ok(()) };
        let mut needed = References::default();
        for file in self.names.all()? {
            let (manifest, _) = self.blobs.image(&file.manifest)?;
            needed.roots.insert(self.chain_of(&file.manifest)?.to_string());
            needed.blobs.insert(file.manifest.to_string());
            needed.blobs.insert(manifest.config.digest()?.to_string());
            for layer in &manifest.layers {
                needed.blobs.insert(layer.digest()?.to_string());
            }
        }
        for (place, keep) in
            [("blobs", &needed.blobs), ("roots", &needed.roots), ("drafts", &BTreeSet::new())]
        {
            let dir = self.dir.join(place);
            for entry in fs::read_dir(&dir).map_err(at(&dir))? {
                let entry = entry.map_err(at(&dir))?;
                if !keep.contains(&*entry.file_name().to_string_lossy()) {
                    self.discard(&entry.path())?;
                }
            }
        }
        Ok(())
    }

    /// Out of sight in one move, and then away. A root that a sandbox holds stays for the next time.
    fn discard(&self, path: &Path) -> Result<(), ImageError> {
        let found = fs::symlink_metadata(path).map_err(at(path))?;
        if !found.is_dir() {
            return fs::remove_file(path).map_err(at(path));
        }
        let Some(_held) = exclusive(path)? else { return Ok(()) };
        let draft = self.drafts.draft();
        fs::rename(path, draft.path()).map_err(at(path))?;
        remove_tree(draft.path()).map_err(at(draft.path()))
    }

    pub(crate) fn chain_of(&self, manifest: &Digest) -> Result<Digest, ImageError> {
        let (manifest, config) = self.blobs.image(manifest)?;
        let diff_ids = config.diff_ids(manifest.layers.len())?;
        Ok(chains(&diff_ids).pop().unwrap_or_else(empty))
    }
}

/// `None`: somebody holds it, or it is not there.
fn exclusive(dir: &Path) -> Result<Option<FileLock>, ImageError> {
    let Ok(file) = File::open(dir) else { return Ok(None) };
    FileLock::try_exclusive(file).map_err(at(dir))
}
