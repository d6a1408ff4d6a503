//! Names of images: a file each, with the digest of its manifest.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use cofferdam_ambient::clock;
use cofferdam_contracts::id::Digest;
use serde::{Deserialize, Serialize};

use super::draft::Drafts;
use super::error::{ImageError, at};
use super::manifest::{parse, written};
use super::name::{ImageName, ImageRef};

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

/// The names of a store.
#[derive(Debug, Clone)]
pub(crate) struct ImageNames {
    dir: PathBuf,
    drafts: Drafts,
}

impl ImageNames {
    /// Those of a store.
    pub fn of(store: &Path, drafts: Drafts) -> Self {
        Self { dir: store.join("names"), drafts }
    }

    pub fn all(&self) -> Result<Vec<NameFile>, ImageError> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(at(&self.dir))? {
            let path = entry.map_err(at(&self.dir))?.path();
            match fs::read(&path) {
                Ok(bytes) => all.push(parse("a name's file", &bytes)?),
                // Removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(at(&path)(error)),
            }
        }
        Ok(all)
    }

    pub fn find(&self, wanted: &ImageRef) -> Result<NameFile, ImageError> {
        let path = self.path(&wanted.name);
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

    pub fn path(&self, name: &ImageName) -> PathBuf {
        self.dir.join(name.file())
    }

    /// Gives a name to a manifest whose blobs and root are in place. Last, and in one move.
    pub fn assign(
        &self,
        name: &ImageName,
        manifest: &Digest,
        source: &str,
    ) -> Result<NameFile, ImageError> {
        let file = NameFile {
            schema_version: 1,
            name: name.to_string(),
            manifest: manifest.clone(),
            source: source.to_owned(),
            created_at_ms: clock::now_ms(),
        };
        let (bytes, _) = written(&file)?;
        let draft = self.drafts.draft();
        let write = || -> io::Result<()> {
            fs::write(draft.path(), &bytes)?;
            File::open(draft.path())?.sync_all()?;
            fs::rename(draft.path(), self.path(name))
        };
        write().map_err(at(&self.path(name)))?;
        Ok(file)
    }
}
