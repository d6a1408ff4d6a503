//! The memory of a sandbox in a stream before its files, and on its way to the kernel that goes on with it.
//!
//! ```text
//! pieces (`cofferdam_guest::pieces`); where the kernel did not write all of it, what came is nothing
//! ```
//! Between the sealed file and the kernel it is in memory of the worker alone: a file without a name, which a link in the
//! sandbox's directory leads the runtime to.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use cofferdam_guest::pieces::copied;
use nix::sys::memfd::{MFdFlags, memfd_create};
use rustix::fs::statvfs;

use crate::host::live;

/// Bytes of one piece: what a pipe gives at once.
pub(crate) const MAX_PIECE: usize = 1024 * 1024;
/// What a kernel writes beside the pages of its processes.
const OWN_BYTES: u64 = 64 * 1024 * 1024;
/// The name that runsc looks for.
const IMAGE: &str = "checkpoint.img";

/// A file in memory, which no child of ours has.
pub(crate) fn unnamed() -> io::Result<File> {
    Ok(File::from(memfd_create(c"memory", MFdFlags::MFD_CLOEXEC)?))
}

/// The memory that a sandbox begins with.
#[derive(Debug)]
pub(crate) struct StoredMemory {
    /// What the link leads to.
    _file: File,
    /// The directory with the link.
    pub dir: PathBuf,
}

impl StoredMemory {
    /// Bytes that a sandbox with so many of memory may have in a stream. Pure.
    pub(crate) fn most(mem_bytes: u64) -> u64 {
        mem_bytes.saturating_add(OWN_BYTES)
    }

    /// Whether the disk of this directory has room for so many bytes; where nobody can say, a write will.
    pub(crate) fn fits(dir: &Path, bytes: u64) -> bool {
        let free = statvfs(dir).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        free.map_or(true, |free| free >= bytes)
    }

    /// Reads its part of a stream, for the sandbox of this directory; without one it is passed over. `None` also where there is
    /// nothing whole. Blocking.
    pub(crate) fn read(from: &mut dyn Read, dir: Option<&Path>) -> io::Result<Option<Self>> {
        let mut file = dir.map(|_| unnamed()).transpose()?;
        let is_whole = match &mut file {
            Some(file) => copied(from, MAX_PIECE, file)?,
            None => copied(from, MAX_PIECE, &mut io::sink())?,
        };
        let (Some(file), Some(dir), true) = (file, dir, is_whole) else { return Ok(None) };
        let dir = dir.join("memory");
        live::private_dir(&dir)?;
        let leads = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        symlink(leads, dir.join(IMAGE))?;
        Ok(Some(Self { _file: file, dir }))
    }
}

impl Drop for StoredMemory {
    fn drop(&mut self) {
        // With the sandbox's directory at the latest.
        let _ = fs::remove_file(self.dir.join(IMAGE));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use cofferdam_guest::pieces::PieceWriter;

    fn stream(bytes: &[u8], is_whole: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let mut pieces = PieceWriter::to(&mut out, MAX_PIECE);
        pieces.write_all(bytes).unwrap();
        pieces.finish(is_whole).unwrap();
        out.extend_from_slice(b"files");
        out
    }

    #[test]
    fn a_disk_takes_no_more_than_it_has() {
        let dir = tempfile::tempdir().unwrap();
        assert!(StoredMemory::fits(dir.path(), 1));
        assert!(!StoredMemory::fits(dir.path(), u64::MAX));
    }

    #[test]
    fn a_memory_is_whole_or_nothing_and_the_files_follow_either_way() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = vec![7; MAX_PIECE + 3];
        let whole = stream(&bytes, true);
        let mut from = whole.as_slice();
        let memory = StoredMemory::read(&mut from, Some(dir.path())).unwrap().unwrap();
        assert_eq!(
            (fs::read(memory.dir.join(IMAGE)).unwrap(), from),
            (bytes.clone(), &b"files"[..])
        );
        drop(memory);
        assert!(!dir.path().join("memory").join(IMAGE).is_symlink());
        for (stream, dir) in [
            (stream(&bytes, false), Some(dir.path())),
            (whole.clone(), None),
            (stream(b"", false), None),
        ] {
            let mut from = stream.as_slice();
            assert!(StoredMemory::read(&mut from, dir).unwrap().is_none());
            assert_eq!(from, b"files");
        }
        let mut cut = &whole[..MAX_PIECE];
        assert!(StoredMemory::read(&mut cut, Some(dir.path())).is_err());
    }
}
