//! Who gives copies, and who takes them away.
//!
//! A copy is given, and marked as used, under the shared lock of its store. It is put to its name, and taken from it, under the exclusive
//! one: what was used since it was looked at stays. Nothing is read, copied or emptied under either. A draft has a lock of its own while it
//! is filled, however long that takes.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use cofferdam_ambient::file_lock::{FileLock, lock_file};

const NAME: &str = "lock";

/// Until it is dropped, no copy of the store goes.
pub(super) fn giving(store: &Path) -> io::Result<FileLock> {
    FileLock::shared(lock_file(&store.join(NAME))?)
}

/// Until it is dropped, no copy of the store comes, goes or is given.
pub(super) fn changing(store: &Path) -> io::Result<FileLock> {
    FileLock::exclusive(lock_file(&store.join(NAME))?)
}

/// Until it is dropped, only the caller changes a tenant's directory below the store, which is made on the way.
pub(super) fn alone(dir: &Path) -> io::Result<FileLock> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    FileLock::exclusive(lock_file(&dir.with_extension("lock"))?)
}

/// Held while a draft is filled, or emptied; `None`: by another one.
pub(super) fn of_draft(draft: &Path) -> io::Result<Option<FileLock>> {
    FileLock::try_exclusive(File::open(draft)?)
}
