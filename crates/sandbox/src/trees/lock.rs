//! Who gives copies, and who takes them away.
//!
//! A copy is given, and marked as used, under the shared lock of its store. It is put to its name, and taken from it, under the exclusive
//! one: what was used since it was looked at stays. Nothing is read, copied or emptied under either. A draft has a lock of its own while it
//! is filled, however long that takes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use cofferdam_ambient::file_lock::FileLock;

const NAME: &str = "lock";

/// Until it is dropped, no copy of the store goes.
pub(super) fn giving(store: &Path) -> io::Result<FileLock> {
    FileLock::shared(file(store)?)
}

/// Until it is dropped, no copy of the store comes, goes or is given.
pub(super) fn changing(store: &Path) -> io::Result<FileLock> {
    FileLock::exclusive(file(store)?)
}

/// Held while a draft is filled, or emptied; `None`: by another one.
pub(super) fn of_draft(draft: &Path) -> io::Result<Option<FileLock>> {
    FileLock::try_exclusive(File::open(draft)?)
}

fn file(store: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(store.join(NAME))
}
