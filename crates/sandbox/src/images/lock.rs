//! Who adds images and who sweeps: never both at once, in any process.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::error::{ImageError, at};

/// While it is held, nothing is swept away.
#[derive(Debug)]
pub(crate) struct AddGuard(#[expect(dead_code, reason = "its lock ends with it")] File);

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
        let file = self.file()?;
        flock(&file, FlockOperation::LockShared).map_err(|error| at(&self.path)(error.into()))?;
        Ok(AddGuard(file))
    }

    /// Held by whoever sweeps; `None` while somebody adds.
    pub fn sweeping(&self) -> Result<Option<AddGuard>, ImageError> {
        let file = self.file()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(AddGuard(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(at(&self.path)(error.into())),
        }
    }

    fn file(&self) -> Result<File, ImageError> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.path)
            .map_err(at(&self.path))
    }
}
