//! Advisory file locks: start-up is serialised, users are counted, a crash releases everything. Some are shared with a child for as
//! long as it lives.
#![expect(clippy::disallowed_methods, reason = "children share these locks on purpose")]

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_ambient::file_lock::FileLock;

use super::error::ClusterError;

/// Somebody else's start takes a second, their crash recovery perhaps a minute.
const PATIENCE: Duration = Duration::from_secs(150);
const PAUSE: Duration = Duration::from_millis(5);

/// Waits for the exclusive lock.
pub(super) async fn exclusive(path: &Path) -> Result<File, ClusterError> {
    wait(path, File::try_lock).await
}

/// Waits for a lock that others may share.
pub(super) async fn shared(path: &Path) -> Result<File, ClusterError> {
    wait(path, File::try_lock_shared).await
}

/// The exclusive lock, without waiting; `None` where somebody else has one.
pub(super) fn now(path: &Path) -> Option<File> {
    let file = open(path).ok()?;
    file.try_lock().ok().map(|()| file)
}

/// Whether the file is there and nobody has locked it.
pub(super) fn is_free(path: &Path) -> bool {
    let there = OpenOptions::new().read(true).write(true).open(path);
    there.is_ok_and(|file| matches!(FileLock::try_exclusive(file), Ok(Some(_))))
}

/// Gives up a shared lock; true when nobody else had one, and then the lock is exclusive.
pub(super) fn is_last(file: &File) -> bool {
    file.unlock().is_ok() && file.try_lock().is_ok()
}

async fn wait(
    path: &Path,
    take: fn(&File) -> Result<(), TryLockError>,
) -> Result<File, ClusterError> {
    let file = open(path).map_err(ClusterError::io("open", path))?;
    let waiting = Stopwatch::start();
    loop {
        match take(&file) {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(source)) => return Err(ClusterError::io("lock", path)(source)),
            Err(TryLockError::WouldBlock) if waiting.elapsed() > PATIENCE => {
                return Err(ClusterError::Timeout {
                    what: "another process's start or stop of the database",
                    path: path.to_owned(),
                    waited: PATIENCE,
                });
            }
            Err(TryLockError::WouldBlock) => clock::sleep(PAUSE).await,
        }
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}
