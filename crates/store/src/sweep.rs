//! What processes that were killed left in a store.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cofferdam_contracts::id::ObjectId;

use crate::error::StoreError;
use crate::location::{DeadProcess, PARTS, dead};

/// Whole objects of processes that ended, of which only the ledger knows whether they are on record. Until this is dropped no other
/// process looks at them.
#[derive(Debug)]
pub struct Leftovers {
    dir: PathBuf,
    dead: Vec<DeadProcess>,
    objects: Vec<ObjectId>,
}

impl Leftovers {
    /// Removes what was being written, and lists what is whole.
    pub(crate) fn find(dir: &Path) -> Result<Self, StoreError> {
        let dead = dead(dir)?;
        let parts = dir.join(PARTS);
        let mut objects = Vec::new();
        if dead.is_empty() {
            return Ok(Self { dir: dir.to_owned(), dead, objects });
        }
        for entry in fs::read_dir(&parts).map_err(StoreError::file(&parts))? {
            let entry = entry.map_err(StoreError::file(&parts))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !dead.iter().any(|process| name.starts_with(&process.name)) {
                continue;
            }
            match ObjectId::parse(&name) {
                Ok(id) => objects.push(id),
                // The library writes beside the name, with a number behind it.
                Err(_) => remove(&entry.path())?,
            }
        }
        Ok(Self { dir: dir.to_owned(), dead, objects })
    }

    /// Number of objects that were whole and had no row.
    #[must_use]
    pub fn objects(&self) -> &[ObjectId] {
        &self.objects
    }

    /// Removes those that are not on record. The others keep their places, and their process stays known until its objects are
    /// named; gives how many were removed.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub fn remove_but(self, recorded: &[ObjectId]) -> Result<usize, StoreError> {
        let mut removed = 0;
        for id in self.objects.iter().filter(|id| !recorded.contains(id)) {
            remove(&self.dir.join(PARTS).join(id.as_str()))?;
            removed += 1;
        }
        for process in self.dead {
            process.forget()?;
        }
        Ok(removed)
    }
}

/// Removes a file that may be gone.
pub(crate) fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::file(path)(error)),
        _ => Ok(()),
    }
}
