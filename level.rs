//! A directory that is being packed: its names in batches, so that one with millions of them takes no memory for each.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{RawDir, SeekFrom, Stat, fstat, seek};

/// Bytes of names that a directory near the top has in memory; deeper ones have less, so that all together are bounded.
const BATCH: usize = 64 * 1024;
/// What the deepest have.
const LEAST: usize = 256;
/// Depth at which a batch is half as large.
const HALF: usize = 16;
/// What the kernel is asked for at a time: the longest entry has 280 bytes.
const LISTED: usize = 8 * 1024;

/// The same directory has the same.
pub(super) type Identity = (u64, u64);

pub(super) fn identity(found: &Stat) -> Identity {
    (found.st_dev, found.st_ino)
}

/// One that is open, or has an open one below it.
pub(super) struct Level {
    pub id: Identity,
    pub name: Vec<u8>,
    batch: std::vec::IntoIter<Vec<u8>>,
    /// Where the next batch begins; `None`: there is none.
    next: Option<u64>,
}

impl Level {
    pub(super) fn of(dir: &OwnedFd, name: Vec<u8>) -> io::Result<Self> {
        let id = identity(&fstat(dir)?);
        Ok(Self { id, name, batch: Vec::new().into_iter(), next: Some(0) })
    }

    /// The next name in it. `depth`: how many directories are above it.
    pub(super) fn name(&mut self, dir: &OwnedFd, depth: usize) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(name) = self.batch.next() {
                return Ok(Some(name));
            }
            let Some(from) = self.next else { return Ok(None) };
            seek(dir, SeekFrom::Start(from))?;
            let most = BATCH.checked_div(1 + depth / HALF).unwrap_or(LEAST).max(LEAST);
            self.fill(dir, most)?;
        }
    }

    fn fill(&mut self, dir: &OwnedFd, most: usize) -> io::Result<()> {
        let mut listed = [MaybeUninit::uninit(); LISTED];
        let mut entries = RawDir::new(dir, &mut listed);
        let (mut names, mut bytes) = (Vec::new(), 0usize);
        self.next = None;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            bytes = bytes.saturating_add(name.len()).saturating_add(size_of::<Vec<u8>>());
            names.push(name.to_vec());
            if bytes >= most {
                self.next = Some(entry.next_entry_cookie());
                break;
            }
        }
        names.sort_unstable();
        self.batch = names.into_iter();
        Ok(())
    }
}
