//! What copies may take of their file system: looked at before one is begun, and while it is written, since others write too.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::statvfs;

use super::error::TreeError;
use super::walk::fault;

/// Inodes that a copy leaves free, where the file system counts them.
pub(super) const INODES_LEFT: u64 = 10_000;
/// After so many bytes it is looked at again: the copies that are written at once take a part of [`super::store::ROOM_LEFT`].
const LOOK_BYTES: u64 = 16 * 1024 * 1024;
/// A file counts as so many bytes at least, so that small ones are looked at for their inodes.
const FILE_BYTES: u64 = 16 * 1024;
/// What a directory takes at least.
pub(super) const DIR_BYTES: u64 = 4 * 1024;

/// What one copy may take.
#[derive(Debug)]
pub(super) struct DiskAllowance {
    dir: PathBuf,
    /// Bytes that stay free.
    reserve: u64,
    written: AtomicU64,
}

impl DiskAllowance {
    pub(super) fn below(dir: &Path, reserve: u64) -> Self {
        Self { dir: dir.to_owned(), reserve, written: AtomicU64::new(0) }
    }

    /// Whether so much fits: bytes of files, entries that become inodes, and directories of them.
    pub(super) fn fits(&self, bytes: u64, entries: u64, dirs: u64) -> Result<(), TreeError> {
        let found = statvfs(&self.dir).map_err(|errno| fault(&self.dir, errno))?;
        let left = found.f_bavail.saturating_mul(found.f_frsize);
        // Without a number of its own, a file system makes inodes as it needs them.
        let inodes = if found.f_files == 0 { u64::MAX } else { found.f_favail };
        let wanted = bytes.saturating_add(dirs.saturating_mul(DIR_BYTES));
        let is_room = wanted.saturating_add(self.reserve) <= left
            && entries.saturating_add(INODES_LEFT) < inodes;
        match is_room {
            true => Ok(()),
            false => Err(TreeError::Room { wanted, entries, left, inodes, dir: self.dir.clone() }),
        }
    }

    /// Whether a file may be begun.
    pub(super) fn file(&self) -> Result<(), TreeError> {
        self.written(FILE_BYTES)
    }

    /// Whether more may be written after these bytes.
    pub(super) fn written(&self, bytes: u64) -> Result<(), TreeError> {
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        match before == 0 || before / LOOK_BYTES != before.saturating_add(bytes) / LOOK_BYTES {
            true => self.fits(0, 0, 0),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_free_is_looked_at_before_and_while_a_copy_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let allowance = DiskAllowance::below(dir.path(), 0);
        assert!(allowance.fits(1, 1, 1).is_ok());
        for (bytes, entries, dirs) in [(u64::MAX, 0, 0), (0, u64::MAX, 0), (0, 0, u64::MAX)] {
            let full = allowance.fits(bytes, entries, dirs);
            assert!(matches!(full, Err(TreeError::Room { .. })), "{bytes} {entries} {dirs}");
        }
        let allowance = DiskAllowance { reserve: u64::MAX, ..allowance };
        assert!(allowance.file().is_err(), "the first file is looked at");
        let looks = (0..3_000).filter(|_| allowance.file().is_err()).count();
        assert_eq!(looks, 2, "small files are looked at for every 1,024");
        assert!(allowance.written(LOOK_BYTES).is_err());
    }
}
