//! Where a process's wires listen: a directory of its own that nobody else may enter, gone with the process,
//! or, where that was killed, with the next one that starts.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use cofferdam_ambient::file_lock::FileLock;
use cofferdam_ambient::random::secret_hex;

/// Directories of ours begin so.
const PREFIX: &str = "cofferdam-wire-";
/// One that is being made; it gets its name once its lock is held.
const FRESH: &str = ".cofferdam-wire-";
/// Held while the process lives.
const LOCK: &str = "lock";

/// A socket's path has 107 bytes at most, and ours adds some 50.
const MAX_ABOVE: usize = 55;

/// A directory with one socket's directory for each wire.
#[derive(Debug)]
pub(super) struct WireDir {
    path: PathBuf,
    _lock: FileLock,
}

impl WireDir {
    pub(super) fn make() -> io::Result<Self> {
        let above = above();
        sweep(&above);
        let name = secret_hex(8);
        let fresh = above.join(format!("{FRESH}{name}"));
        let private = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        private(&fresh)?;
        let lock = FileLock::exclusive(File::create(fresh.join(LOCK))?)?;
        private(&fresh.join("quick"))?;
        private(&fresh.join("patient"))?;
        let path = above.join(format!("{PREFIX}{name}"));
        std::fs::rename(&fresh, &path)?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Nothing connects any more.
    pub(super) fn remove(&self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }

    /// Makes it another user's: a process that is about to become that user goes on meeting its wires.
    pub(super) fn give(&self, uid: u32, gid: u32) -> io::Result<()> {
        let own = |path: &Path| std::os::unix::fs::lchown(path, Some(uid), Some(gid));
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.is_dir() {
                std::fs::read_dir(&path)?.try_for_each(|socket| own(&socket?.path()))?;
            }
            own(&path)?;
        }
        own(&self.path)
    }
}

impl Drop for WireDir {
    fn drop(&mut self) {
        self.remove();
    }
}

fn above() -> PathBuf {
    let given = std::env::temp_dir();
    match given.as_os_str().len() <= MAX_ABOVE {
        true => given,
        false => PathBuf::from("/tmp"),
    }
}

/// Takes away what killed processes of this user left: nobody holds its lock.
fn sweep(above: &Path) {
    let own = nix::unistd::geteuid().as_raw();
    let entries = std::fs::read_dir(above).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    for path in ours.map(|entry| entry.path()) {
        let is_mine = path.symlink_metadata().is_ok_and(|m| m.is_dir() && m.uid() == own);
        let is_left =
            || matches!(File::open(path.join(LOCK)).and_then(FileLock::try_exclusive), Ok(Some(_)));
        if is_mine && is_left() {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_swept_and_what_lives_is_not() {
        let live = WireDir::make().unwrap();
        let left = above().join(format!("{PREFIX}{}", secret_hex(8)));
        std::fs::create_dir(&left).unwrap();
        File::create(left.join(LOCK)).unwrap();
        let other = WireDir::make().unwrap();
        assert!(live.path().exists() && other.path().exists() && !left.exists());
    }
}
