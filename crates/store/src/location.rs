//! The directory of a store: who it is, which processes write to it, and where files are.
//!
//! ```text
//! DIR/store            name of the store: 32 hexadecimal digits
//! DIR/processes/P      locked by the process that writes objects whose ids begin with P
//! DIR/parts/ID         written, its row perhaps not yet committed
//! DIR/kept/AA/SHA.ID   on record
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_ambient::file_lock::FileLock;
use cofferdam_ambient::random::{secret_bytes, secret_hex};
use cofferdam_contracts::id::{Digest, ObjectId};

use crate::error::StoreError;

/// Below the directory: objects that are written.
pub(crate) const PARTS: &str = "parts";
/// Below the directory: objects that are on record.
pub(crate) const KEPT: &str = "kept";
const PROCESSES: &str = "processes";
const NAME: &str = "store";
/// Random bytes of a store's name.
const NAME_BYTES: usize = 16;

/// Where an object on record is, below the directory.
pub(crate) fn kept(sha256: &Digest, id: &ObjectId) -> String {
    let shard = sha256.as_str().get(..2).unwrap_or_default();
    format!("{KEPT}/{shard}/{}", object_name(sha256, id))
}

/// Where an object is before it is on record, below the directory.
pub(crate) fn part(id: &ObjectId) -> String {
    format!("{PARTS}/{id}")
}

/// What messages call an object: the name of its file.
pub(crate) fn object_name(sha256: &Digest, id: &ObjectId) -> String {
    format!("{sha256}.{id}")
}

/// Makes what is not there yet, for the owner alone.
pub(crate) fn make(dir: &Path) -> Result<(), StoreError> {
    for part in [dir.to_owned(), dir.join(PARTS), dir.join(KEPT), dir.join(PROCESSES)] {
        match DirBuilder::new().recursive(true).mode(0o700).create(&part) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(StoreError::file(part)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The store's name, made by the process that comes first. A link is made only where no file is: two that start at once end up
/// with one name.
pub(crate) fn name(dir: &Path) -> Result<String, StoreError> {
    let path = dir.join(NAME);
    let read = || match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let made = || -> io::Result<()> {
        let draft = dir.join(format!("{NAME}.{}", secret_hex(8)));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(secret_hex(NAME_BYTES).as_bytes())?;
        file.sync_all()?;
        let linked = fs::hard_link(&draft, &path);
        fs::remove_file(&draft)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    };
    let found = read().map_err(StoreError::file(&path))?;
    let name = match found {
        Some(name) => name,
        None => {
            made().map_err(StoreError::file(&path))?;
            read().map_err(StoreError::file(&path))?.unwrap_or_default()
        }
    };
    // An object's id has the form of a name.
    match ObjectId::parse(&name) {
        Ok(name) => Ok(name.into()),
        Err(error) => Err(StoreError::file(path)(io::Error::other(error))),
    }
}

/// A process that writes, until it is dropped or ends.
#[derive(Debug)]
pub(crate) struct Process {
    /// First half of its objects' ids.
    pub name: String,
    path: PathBuf,
    lock: Option<FileLock>,
}

impl Process {
    pub(crate) fn join(dir: &Path) -> Result<Self, StoreError> {
        loop {
            let name = hex::encode(secret_bytes::<8>());
            let path = dir.join(PROCESSES).join(&name);
            let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            let file = opened.map_err(StoreError::file(&path))?;
            let lock = FileLock::exclusive(file).map_err(StoreError::file(&path))?;
            // A sweep may have taken it for a dead one's before it was locked.
            if is_at(&lock, &path) {
                return Ok(Self { name, path, lock: Some(lock) });
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Whoever has objects in parts/ is asked for them by the next start: its file stays then.
        drop(self.lock.take());
        let parts = self.path.parent().and_then(Path::parent).map(|dir| dir.join(PARTS));
        let left = parts.and_then(|parts| fs::read_dir(parts).ok());
        let is_of_it = |entry: io::Result<fs::DirEntry>| {
            entry.is_ok_and(|e| e.file_name().to_string_lossy().starts_with(&self.name))
        };
        if left.is_some_and(|mut left| !left.any(is_of_it)) {
            // What remains is removed by the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    file.metadata()
        .and_then(|own| fs::metadata(path).map(|there| same(own, there)))
        .unwrap_or(false)
}

/// A process that ended, whose file is locked while its leftovers are looked at.
#[derive(Debug)]
pub(crate) struct DeadProcess {
    pub name: String,
    path: PathBuf,
    _lock: FileLock,
}

impl DeadProcess {
    /// Its leftovers are gone.
    pub(crate) fn forget(self) -> Result<(), StoreError> {
        fs::remove_file(&self.path).map_err(StoreError::file(&self.path))
    }
}

/// The processes that ended without having removed their file.
pub(crate) fn dead(dir: &Path) -> Result<Vec<DeadProcess>, StoreError> {
    let at = dir.join(PROCESSES);
    let mut dead = Vec::new();
    for entry in fs::read_dir(&at).map_err(StoreError::file(&at))? {
        let path = entry.map_err(StoreError::file(&at))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let file = match OpenOptions::new().write(true).open(&path) {
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened.map_err(StoreError::file(&path))?,
        };
        let lock = FileLock::try_exclusive(file).map_err(StoreError::file(&path))?;
        if let (Some(name), Some(lock)) = (name, lock) {
            dead.push(DeadProcess { name, path, _lock: lock });
        }
    }
    Ok(dead)
}
