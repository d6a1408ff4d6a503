//! A store: a directory of this host, opened by any number of processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cofferdam_contracts::id::{Digest, ObjectId};
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStoreExt as _, Result as ObjectResult};

use crate::error::StoreError;
use crate::location::{self, Process};
use crate::reserve::has_room;
use crate::sweep::{Leftovers, remove};

/// How long one operation may take: a disk that answers no read or write of 1 MiB for so long answers none.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store of objects. Clones are one store.
#[derive(Debug, Clone)]
pub struct Store(Arc<OpenStore>);

#[derive(Debug)]
struct OpenStore {
    files: LocalFileSystem,
    dir: PathBuf,
    name: String,
    process: Process,
    next: AtomicU64,
    patience: Duration,
}

impl Store {
    /// Opens the store of a directory, which is made where it is absent. Blocking.
    ///
    /// # Errors
    /// A directory or file that cannot be made, read or locked.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::with_patience(dir, PATIENCE)
    }

    /// With another time that one operation may take.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub fn with_patience(dir: &Path, patience: Duration) -> Result<Self, StoreError> {
        location::make(dir)?;
        let name = location::name(dir)?;
        let process = Process::join(dir)?;
        let files = LocalFileSystem::new_with_prefix(dir)
            .map_err(|error| StoreError::of(error, ""))?
            .with_fsync(true);
        let dir = dir.to_owned();
        Ok(Self(Arc::new(OpenStore {
            files,
            dir,
            name,
            process,
            next: AtomicU64::new(0),
            patience,
        })))
    }

    /// Name of the store, as rows have it: 32 hexadecimal digits, made with the directory.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What processes that were killed left here. Blocking.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn leftovers(&self) -> Result<Leftovers, StoreError> {
        Leftovers::find(&self.0.dir)
    }

    /// Gives an object that is on record its name. One that has it already, or is gone, stays as it is: its reader says so.
    ///
    /// # Errors
    /// A store that is slow or fails.
    pub async fn keep(&self, sha256: &Digest, id: &ObjectId) -> Result<(), StoreError> {
        let (from, to) = (location::part(id), location::kept(sha256, id));
        let (from, to) = (ObjectPath::from(from), ObjectPath::from(to));
        let renamed = self.in_time(self.0.files.rename(&from, &to), id.as_str()).await;
        match renamed {
            Err(StoreError::Missing(_)) => Ok(()),
            renamed => renamed,
        }
    }

    /// Removes an object's file wherever it is: its key is destroyed, or it never was on record. Blocking.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub fn remove(&self, sha256: &Digest, id: &ObjectId) -> Result<(), StoreError> {
        remove(&self.0.dir.join(location::part(id)))?;
        remove(&self.0.dir.join(location::kept(sha256, id)))
    }

    /// Whether another piece may be written.
    pub(crate) async fn room(&self) -> Result<(), StoreError> {
        let store = self.clone();
        let look = tokio::task::spawn_blocking(move || has_room(&store.0.dir));
        let found = tokio::time::timeout(self.0.patience, look).await;
        let found = found.map_err(|_| StoreError::Slow(self.0.patience))?;
        let found = found.map_err(|_| StoreError::Broken("a look at its disk ended early"))?;
        match found.map_err(|errno| StoreError::file(&self.0.dir)(errno.into()))? {
            true => Ok(()),
            false => Err(StoreError::Full),
        }
    }

    pub(crate) fn files(&self) -> &LocalFileSystem {
        &self.0.files
    }

    /// Where a part is on this host.
    pub(crate) fn part_file(&self, id: &ObjectId) -> PathBuf {
        self.0.dir.join(location::part(id))
    }

    /// An id that no other object of any process has.
    pub(crate) fn next_id(&self) -> Result<ObjectId, StoreError> {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let id = ObjectId::parse(&format!("{}{number:016x}", self.0.process.name));
        id.map_err(|_| StoreError::Broken("the name of this process"))
    }

    /// An operation within the time that one may take.
    pub(crate) async fn in_time<T>(
        &self,
        work: impl Future<Output = ObjectResult<T>>,
        object: &str,
    ) -> Result<T, StoreError> {
        let done = tokio::time::timeout(self.0.patience, work).await;
        done.map_err(|_| StoreError::Slow(self.0.patience))?
            .map_err(|error| StoreError::of(error, object))
    }
}
