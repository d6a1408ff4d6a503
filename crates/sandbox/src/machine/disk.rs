//! A machine's disk: two partitions of fixed places and sizes, so that every machine has the same one
//! until it mounts it; a stored machine has read the table of them.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::Digest;

use super::erofs::{Image, Piece};
use super::tree::Source;

const SECTOR: u64 = 512;
/// Where the partitions start. Each reaches to the next, or to the end, whatever is in it.
const FIRST: u64 = 1024 * 1024;
const SECOND: u64 = 1 << 40;
/// Bytes of the whole: just what 32 bits of sectors can say.
pub(super) const SIZE: u64 = (1 << 41) - SECTOR;
/// Open files that are kept for the next read: a machine reads a handful of files at once.
const OPEN_FILES: usize = 16;

/// What it shows.
#[derive(Debug)]
pub(crate) struct Disk {
    table: Vec<u8>,
    parts: [(u64, Arc<Image>); 2],
}

impl Disk {
    pub(super) fn new(first: Arc<Image>, second: Arc<Image>) -> io::Result<Self> {
        if first.size() > SECOND - FIRST || second.size() > SIZE - SECOND {
            return Err(io::Error::other("more bytes than a machine's disk has"));
        }
        let parts = [(FIRST, first), (SECOND, second)];
        // A program that no machine runs, four entries, and the mark.
        let mut table = vec![0; 446];
        for (start, end) in [(FIRST, SECOND), (SECOND, SIZE)] {
            // Kind 0x83; the geometry of old is all zero, which nobody reads.
            table.extend_from_slice(&[0, 0, 0, 0, 0x83, 0, 0, 0]);
            for count in [start / SECTOR, (end - start) / SECTOR] {
                let count = u32::try_from(count).map_err(io::Error::other)?;
                table.extend_from_slice(&count.to_le_bytes());
            }
        }
        table.resize(510, 0);
        table.extend_from_slice(&[0x55, 0xAA]);
        Ok(Self { table, parts })
    }

    /// What it shows, in short.
    pub fn digest(&self) -> Digest {
        let [(_, first), (_, second)] = &self.parts;
        digest_bytes(&[first.digest().as_slice(), second.digest()].concat())
    }

    /// What lies at an offset, and how many of the wanted bytes that answers, at least one.
    fn at(&self, offset: u64, wanted: u64) -> (Piece<'_>, u64) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        if let Some(rest) = self.table.get(from..).filter(|rest| !rest.is_empty()) {
            let count = rest.len().min(usize::try_from(wanted).unwrap_or(usize::MAX));
            let piece = Piece::Bytes(rest.get(..count).unwrap_or_default());
            return (piece, u64::try_from(count).unwrap_or(0));
        }
        for (start, image) in &self.parts {
            let inside = offset.checked_sub(*start).filter(|inside| *inside < image.size());
            if let Some(inside) = inside {
                return image.at(inside, wanted.min(image.size() - inside));
            }
        }
        let next = self.parts.iter().map(|(start, _)| *start).find(|start| *start > offset);
        (Piece::Zeros, next.map_or(wanted, |next| wanted.min(next - offset)))
    }
}

/// What a machine's disk shows at the moment: one that waits for its sandbox has an empty disk until then.
#[derive(Debug)]
pub(crate) struct CurrentDisk(Mutex<Arc<Disk>>);

impl CurrentDisk {
    pub fn new(disk: Arc<Disk>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(disk)))
    }

    /// From the next read on.
    pub fn show(&self, disk: Arc<Disk>) {
        *self.lock() = disk;
    }

    fn now(&self) -> Arc<Disk> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Disk>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a disk.
pub(super) struct Reader {
    shown: Arc<CurrentDisk>,
    disk: Arc<Disk>,
    /// By the address of their description, which the disk keeps in its place; the one used last
    /// comes last.
    open: VecDeque<(usize, File)>,
}

impl Reader {
    pub fn new(shown: Arc<CurrentDisk>) -> Self {
        Self { disk: shown.now(), shown, open: VecDeque::new() }
    }

    /// Fills the buffer with what lies at this offset.
    pub fn read(&mut self, mut offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let disk = self.shown.now();
        if !Arc::ptr_eq(&disk, &self.disk) {
            // Descriptions of the other disk may come to lie where those of this one lay.
            self.open.clear();
            self.disk = Arc::clone(&disk);
        }
        let mut rest = buffer;
        while !rest.is_empty() {
            let wanted = u64::try_from(rest.len()).unwrap_or(u64::MAX);
            let (piece, count) = disk.at(offset, wanted);
            let (now, later) = rest.split_at_mut(usize::try_from(count).unwrap_or(0));
            match piece {
                Piece::Bytes(bytes) => now.copy_from_slice(bytes),
                Piece::Zeros => now.fill(0),
                Piece::File(source, at) => Source::read(self.file(source)?, at, now)?,
            }
            offset += count;
            rest = later;
        }
        Ok(())
    }

    fn file(&mut self, source: &Source) -> io::Result<&File> {
        let key = std::ptr::from_ref(source).addr();
        let found = self.open.iter().position(|(one, _)| *one == key);
        let file = match found.and_then(|index| self.open.remove(index)) {
            Some((_, file)) => file,
            None => source.open()?,
        };
        if self.open.len() >= OPEN_FILES {
            self.open.pop_front();
        }
        self.open.push_back((key, file));
        let last = self.open.back().ok_or(io::ErrorKind::NotFound)?;
        Ok(&last.1)
    }
}
