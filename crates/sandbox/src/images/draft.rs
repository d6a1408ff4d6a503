//! What is being written, before anybody reads it.

use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_ambient::random;
use cofferdam_guest::removal::remove_tree;

/// What is being written: gone when dropped, unless it was moved into place.
#[derive(Debug)]
pub(crate) struct Draft(PathBuf);

impl Draft {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = match fs::symlink_metadata(&self.0) {
            Ok(found) if found.is_dir() => remove_tree(&self.0),
            Ok(_) => fs::remove_file(&self.0),
            Err(_) => Ok(()),
        };
    }
}

/// The directory of what is being written.
#[derive(Debug, Clone)]
pub(crate) struct Drafts(PathBuf);

impl Drafts {
    /// Those of a store.
    pub fn of(store: &Path) -> Self {
        Self(store.join("drafts"))
    }

    /// A path that nobody else writes to.
    pub fn draft(&self) -> Draft {
        Draft(self.0.join(random::secret_hex(16)))
    }
}
