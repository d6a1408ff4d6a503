//! Copies that no run needs.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use cofferdam_ambient::{clock, random};
use cofferdam_contracts::id::Digest;
use cofferdam_guest::removal::remove_tree;

use super::lock;
use super::store::TreeStore;

/// A copy of the state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTree {
    /// The name of its directory, which is the digest that it was bound by.
    pub copy: Digest,
    /// How long nothing was made of it.
    pub idle: Duration,
    /// When something was, in nanoseconds since the epoch.
    pub used_ns: i128,
}

/// Drafts and removals that were left by a process that is gone are removed after this time; those of one that lives have a lock.
const LEFT: Duration = Duration::from_secs(3_600);

impl TreeStore {
    /// The copies that are here. Drafts, removals and indexes that were left are removed on the way.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn list(&self) -> io::Result<Vec<StoredTree>> {
        let mut stored = Vec::new();
        let names = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(stored),
            names => names?,
        };
        for found in names {
            let found = found?;
            let Ok(stat) = found.metadata() else { continue };
            let idle = idle_of(&stat);
            let Ok(name) = found.file_name().into_string() else { continue };
            match Digest::parse(&name) {
                Ok(copy) => stored.push(StoredTree { copy, idle, used_ns: used_ns(&stat) }),
                Err(_) if name.starts_with('.') && idle > LEFT => remove_left(&found.path())?,
                Err(_) => {}
            }
        }
        Ok(stored)
    }

    /// Removes a copy, unless it was used since it was looked at; whether it is gone. A sandbox that was made of it keeps none of its
    /// files, so the caller knows that none ran then.
    ///
    /// # Errors
    /// The kernel keeps a part of it.
    pub fn remove(&self, looked_at: &StoredTree) -> io::Result<bool> {
        let at = self.dir.join(looked_at.copy.as_str());
        let gone = self.dir.join(format!(".gone-{}", random::secret_hex(8)));
        let changing = lock::changing(&self.dir)?;
        match fs::symlink_metadata(&at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error),
            Ok(found) if used_ns(&found) != looked_at.used_ns => return Ok(false),
            Ok(_) => fs::rename(&at, &gone)?,
        }
        drop(changing);
        remove_left(&gone)?;
        Ok(true)
    }

    /// Removes the indexes of directories whose copy is gone: they would only be read.
    ///
    /// # Errors
    /// They cannot be listed or removed.
    pub fn remove_indexes(&self, kept: &BTreeSet<Digest>, idle: Duration) -> io::Result<()> {
        let names = match fs::read_dir(self.dir.join("index")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            names => names?,
        };
        for found in names {
            let found = found?;
            if found.metadata().is_ok_and(|stat| idle_of(&stat) < idle) {
                continue;
            }
            // A name with more was a draft.
            let is_kept = found.path().extension().is_none()
                && super::index::copy_of(&found.path()).is_some_and(|copy| kept.contains(&copy));
            if !is_kept {
                fs::remove_file(found.path())?;
            }
        }
        Ok(())
    }
}

/// Removes what has no name any more, unless another one fills or removes it.
fn remove_left(draft: &Path) -> io::Result<()> {
    match lock::of_draft(draft) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        held => held?.map_or(Ok(()), |_held| remove_tree(draft)),
    }
}

pub(super) fn used_ns(found: &fs::Metadata) -> i128 {
    i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec())
}

pub(super) fn idle_of(found: &fs::Metadata) -> Duration {
    let ms = clock::host_ms().saturating_sub(found.mtime().saturating_mul(1_000));
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
