//! Who adds images and who sweeps: never both at once, in any process.

use std::fs::File;
use std::path::{Path, PathBuf};

use cofferdam_ambient::file_lock::{FileLock, lock_file};

use super::error::{ImageError, at};

/// While it is held, nothing is swept away.
#[derive(Debug)]
pub(crate) struct AddGuard(#[expect(dead_code, reason = "its lock ends with it")] FileLock);

/// The lock of a store.
#[derive(Debug, Clone)]
pub(crate) struct StoreLock {
    path: PathBuf,
}

impl StoreLock {
    /// That of a store.
    pub fn of(store: &Path) -> Self {
        Self { path: store.join("lock") }
    }

    /// Held by whoever adds an image, any number at once.
    pub fn adding(&self) -> Result<AddGuard, ImageError> {
        FileLock::shared(self.file()?).map(AddGuard).map_err(at(&self.path))
    }

    /// Held by whoever sweeps; `None` while somebody adds.
    pub fn sweeping(&self) -> Result<Option<AddGuard>, ImageError> {
        let lock = FileLock::try_exclusive(self.file()?).map_err(at(&self.path))?;
        Ok(lock.map(AddGuard))
    }

    fn file(&self) -> Result<File, ImageError> {
        lock_file(&self.path).map_err(at(&self.path))
    }
}
