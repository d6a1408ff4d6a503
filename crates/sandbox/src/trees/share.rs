//! What a tenant's copies of host directories may take of the disk.
//!
//! ```text
//! <state>/trees/shares/<SHA-256 of the tenant>/<copy>: bytes that the copy takes at most; its time: the tenant's last use of it
//! ```
//! A tenant has a mark for each copy that it bound, also where another tenant has one for the same copy. Marks are added up first: copies
//! take less where they share files. Where the sum is too large, the files are looked at, and one that several copies have counts a part
//! for each. So the shares of all tenants together are what is on the disk.
//!
//! **A mark counts while its copy is there.** A tenant binds under its lock, so that what it has does not grow between the look and the
//! copy. Copies of sent directories have no marks: their files count where they were sent.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_ambient::file_lock::FileLock;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::{Digest, TenantId};

use super::bounds::TreeBounds;
use super::entry::Entry;
use super::error::TreeError;
use super::lock;
use super::store::TreeStore;
use super::sweep::{StoredTree, idle_of, used_ns};
use super::walk::walk;
use crate::host::hostpath::{HostHandle, HostPath};

/// What a file, a directory or a link takes at least, and by which files grow.
const BLOCK: u64 = 4 * 1024;
/// What a copy takes beside its entries: its directory, the boot's name, its mark and its index.
const COPY_BYTES: u64 = 4 * BLOCK;
/// What an entry takes beside its path, in its directory and in the index, at most.
const RECORD_BYTES: u64 = 128;

/// A tenant's part of the copies of a state directory.
#[derive(Debug, Clone)]
pub struct TreeShare {
    dir: PathBuf,
    store: TreeStore,
    quota: u64,
}

/// A copy of the tenant's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnTree {
    /// As it is in the store.
    pub stored: StoredTree,
    /// How long the tenant has not bound it.
    pub idle: Duration,
    /// When it did, in nanoseconds since the epoch.
    used_ns: i128,
    /// Bytes that it takes at most.
    most: u64,
}

/// A copy that the tenant gives up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeRelease {
    /// As it was looked at.
    pub tree: OwnTree,
    /// No other tenant's run needs it: it may go from the disk.
    pub is_own: bool,
}

/// What a copy takes of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DiskUse {
    /// Bytes if it shared no file with another copy.
    pub most: u64,
    /// A file that several copies have counts a part for each.
    pub part: u64,
    /// Bytes that are free once it goes.
    pub alone: u64,
}

impl DiskUse {
    pub(super) fn of<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        let mut used = Self { most: COPY_BYTES, part: COPY_BYTES, alone: COPY_BYTES };
        for entry in entries {
            let path = u64::try_from(entry.path.len()).unwrap_or(u64::MAX);
            let record = path.saturating_add(RECORD_BYTES);
            let (size, links) = match entry.key() {
                Some(key) => (key.size, u64::from(entry.links.max(1))),
                None => (0, 1),
            };
            let size = size.max(1).div_ceil(BLOCK).saturating_mul(BLOCK);
            let add = |to: u64, size: u64| to.saturating_add(size).saturating_add(record);
            used.most = add(used.most, size);
            used.part = add(used.part, size.div_ceil(links));
            used.alone = add(used.alone, if links == 1 { size } else { 0 });
        }
        used
    }

    /// Of what lies here; nothing, once it is gone.
    pub(super) fn of_tree(root: &Path) -> Result<Self, TreeError> {
        let opened = match HostHandle::ours(root, HostPath::said("")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            opened => opened.map_err(|source| TreeError::Io { path: root.to_owned(), source })?,
        };
        let bounds = TreeBounds { entries: usize::MAX, bytes: u64::MAX };
        Ok(Self::of(&walk(&opened, bounds)?))
    }
}

impl TreeShare {
    /// A tenant's, of so many bytes. Looks at nothing.
    #[must_use]
    pub fn of(store: &TreeStore, tenant: &TenantId, quota: u64) -> Self {
        let name = digest_bytes(tenant.as_str().as_bytes());
        Self { dir: all(store).join(name.as_str()), store: store.clone(), quota }
    }

    /// Until it is dropped, the tenant binds nothing else here.
    pub(super) fn alone(&self) -> io::Result<FileLock> {
        lock::alone(&self.dir)
    }

    /// The tenant's copies that are here.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn list(&self) -> io::Result<Vec<OwnTree>> {
        let mut trees = Vec::new();
        let names = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(trees),
            names => names?,
        };
        for found in names {
            let found = found?;
            let name = found.file_name();
            let Some(copy) = name.to_str().and_then(|name| Digest::parse(name).ok()) else {
                continue;
            };
            let (Ok(mark), Ok(here)) =
                (found.metadata(), fs::symlink_metadata(self.store.dir.join(copy.as_str())))
            else {
                continue;
            };
            let stored = StoredTree { copy, idle: idle_of(&here), used_ns: used_ns(&here) };
            // One that was cut by a power failure: its files are looked at.
            let text = fs::read_to_string(found.path()).ok();
            let most = text.and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
            let (idle, used_ns) = (idle_of(&mark), used_ns(&mark));
            trees.push(OwnTree { stored, idle, used_ns, most });
        }
        Ok(trees)
    }

    /// Refuses a copy with these entries that does not fit beside those that the tenant has. `new`: bytes that it takes beside them, of
    /// those that it takes at most; asked for only where files in common decide.
    pub(super) fn admit(
        &self,
        entries: &[Entry],
        new: impl FnOnce(u64) -> Result<u64, TreeError>,
    ) -> Result<(), TreeError> {
        let trees = self.list().map_err(|source| self.fault(source))?;
        let most = DiskUse::of(entries).most;
        let sum = trees.iter().fold(most, |sum, tree| sum.saturating_add(tree.most));
        if sum <= self.quota {
            return Ok(());
        }
        let (new, mut held) = (new(most)?, 0_u64);
        for tree in &trees {
            held = held.saturating_add(self.used_by(&tree.stored.copy)?.part);
        }
        match held.saturating_add(new) <= self.quota {
            true => Ok(()),
            false => Err(TreeError::Share { new, held, quota: self.quota }),
        }
    }

    /// Makes a copy that is here one of the tenant's.
    pub(super) fn take(&self, copy: &Digest, entries: &[Entry]) -> Result<(), TreeError> {
        if !self.dir.join(copy.as_str()).exists() {
            self.admit(entries, |_| Ok(self.used_by(copy)?.part))?;
        }
        self.mark(copy, entries).map_err(|source| self.fault(source))
    }

    /// Marks a copy as the tenant's, and as used by it now.
    pub(super) fn mark(&self, copy: &Digest, entries: &[Entry]) -> io::Result<()> {
        fs::write(self.dir.join(copy.as_str()), DiskUse::of(entries).most.to_string())
    }

    /// Gives copies up in this order until so many bytes are free for the tenant; whether some are. Where all of them together free
    /// less, none goes. A copy stays on the disk while another tenant has it, and one that was used since it was looked at stays the
    /// tenant's.
    ///
    /// # Errors
    /// The kernel keeps a part of one.
    pub fn release(&self, order: &[TreeRelease], wanted: u64) -> Result<bool, TreeError> {
        let _alone = self.alone().map_err(|source| self.fault(source))?;
        let mut most = 0_u64;
        for release in order {
            most = most.saturating_add(self.used_by(&release.tree.stored.copy)?.part);
        }
        let mut freed = 0_u64;
        if most < wanted {
            return Ok(false);
        }
        for release in order {
            freed = freed.saturating_add(self.give_up(release)?);
            if freed >= wanted {
                break;
            }
        }
        Ok(freed > 0)
    }

    /// Bytes that are free for the tenant then.
    fn give_up(&self, release: &TreeRelease) -> Result<u64, TreeError> {
        let TreeRelease { tree, is_own } = release;
        let failed = |source| self.fault(source);
        let mark = self.dir.join(tree.stored.copy.as_str());
        if !fs::symlink_metadata(&mark).is_ok_and(|found| used_ns(&found) == tree.used_ns) {
            return Ok(0);
        }
        let used = self.used_by(&tree.stored.copy)?;
        let freed = match (self.is_of_another(&tree.stored.copy).map_err(failed)?, *is_own) {
            (true, _) => used.part,
            (false, true) if self.store.remove(&tree.stored).map_err(failed)? => used.alone,
            // Used since, or needed by one who has no mark: it stays, and counts.
            (false, _) => return Ok(0),
        };
        fs::remove_file(mark).map_err(failed)?;
        Ok(freed)
    }

    fn is_of_another(&self, copy: &Digest) -> io::Result<bool> {
        let others = dirs(&self.store)?.into_iter().filter(|dir| *dir != self.dir);
        Ok(others.into_iter().any(|dir| dir.join(copy.as_str()).exists()))
    }

    fn used_by(&self, copy: &Digest) -> Result<DiskUse, TreeError> {
        DiskUse::of_tree(&self.store.dir.join(copy.as_str()).join("root"))
    }

    fn fault(&self, source: io::Error) -> TreeError {
        TreeError::Io { path: self.dir.clone(), source }
    }
}

impl TreeStore {
    /// Removes the marks of copies that are gone.
    ///
    /// # Errors
    /// They cannot be listed or removed.
    pub fn remove_marks(&self) -> io::Result<()> {
        for dir in dirs(self)? {
            for found in fs::read_dir(dir)? {
                let found = found?;
                if self.dir.join(found.file_name()).exists() {
                    continue;
                }
                match fs::remove_file(found.path()) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn all(store: &TreeStore) -> PathBuf {
    store.dir.join("shares")
}

/// Those of all tenants; beside each one lies its lock.
fn dirs(store: &TreeStore) -> io::Result<Vec<PathBuf>> {
    let names = match fs::read_dir(all(store)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names?,
    };
    let paths: Vec<_> = names.map(|found| Ok(found?.path())).collect::<io::Result<_>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_none()).collect())
}
