//! Locks of files, which every process of a host sees.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// A file that is locked until the value is dropped, or its process ends.
///
/// The drop unlocks it instead of closing it only: a child that was forked meanwhile and has not executed its program yet holds the
/// same open file, and with it the lock. Whoever shares a lock with a child on purpose has a plain `File`.
#[derive(Debug)]
pub struct FileLock(File);

/// A file that is there for its lock alone; made where it is not there, for its owner.
pub fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

impl FileLock {
    /// Waits until nobody else has a lock of the file.
    #[expect(clippy::disallowed_methods, reason = "unlocked by the drop")]
    pub fn exclusive(file: File) -> io::Result<Self> {
        file.lock().map(|()| Self(file))
    }

    /// Waits until nobody has an exclusive lock of the file.
    #[expect(clippy::disallowed_methods, reason = "unlocked by the drop")]
    pub fn shared(file: File) -> io::Result<Self> {
        file.lock_shared().map(|()| Self(file))
    }

    /// `None`: somebody has a lock of the file.
    #[expect(clippy::disallowed_methods, reason = "unlocked by the drop")]
    pub fn try_exclusive(file: File) -> io::Result<Option<Self>> {
        let tried = file.try_lock();
        Self::tried(file, tried)
    }

    /// `None`: somebody has an exclusive lock of the file.
    #[expect(clippy::disallowed_methods, reason = "unlocked by the drop")]
    pub fn try_shared(file: File) -> io::Result<Option<Self>> {
        let tried = file.try_lock_shared();
        Self::tried(file, tried)
    }

    fn tried(file: File, tried: Result<(), TryLockError>) -> io::Result<Option<Self>> {
        match tried {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Deref for FileLock {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Where it fails, the close that follows unlocks it.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lock_is_free_while_a_forked_child_has_the_file() {
        let path = std::env::temp_dir().join(format!("{}-lock", crate::random::secret_hex(8)));
        let open = || File::options().create(true).append(true).open(&path).unwrap();
        let takes: [fn(File) -> io::Result<FileLock>; 2] = [FileLock::exclusive, FileLock::shared];
        for take in takes {
            let held = take(open()).unwrap();
            // What a child has between its fork and its program.
            let _of_child = held.try_clone().unwrap();
            assert!(FileLock::try_exclusive(open()).unwrap().is_none());
            drop(held);
            assert!(FileLock::try_exclusive(open()).unwrap().is_some());
            assert!(FileLock::try_shared(open()).unwrap().is_some());
        }
        std::fs::remove_file(path).unwrap();
    }
}
