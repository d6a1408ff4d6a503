//! How large a base may be, and the one account of what a copy or an unpacked tree has used of that.

use super::error::CacheError;

/// Bytes of a base's files. They are copied from memory to disk before the first task begins; 4 GiB
/// holds the largest Python stacks, and beyond it that wait costs more than a build does.
const MAX_BASE_BYTES: u64 = 4 << 30;
/// Entries of a base: a large `node_modules`. Each is looked at before and after every task on it.
const MAX_BASE_ENTRIES: u64 = 100_000;

/// What one base may be at most: beyond it the build is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of its files.
    pub bytes: u64,
    /// Number of its files, directories and links.
    pub entries: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { bytes: MAX_BASE_BYTES, entries: MAX_BASE_ENTRIES }
    }
}

impl Bounds {
    pub(super) const fn too_many_entries(&self) -> CacheError {
        CacheError::TooLarge { what: "the entries of a base", limit: self.entries }
    }
}

/// Bytes and entries of one base that were met, never more than its bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    bounds: Bounds,
    bytes: u64,
    entries: u64,
}

impl Usage {
    pub(super) const fn new(bounds: Bounds) -> Self {
        Self { bounds, bytes: 0, entries: 0 }
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) const fn entries(&self) -> u64 {
        self.entries
    }

    pub(super) const fn left(&self) -> Bounds {
        Bounds {
            bytes: self.bounds.bytes.saturating_sub(self.bytes),
            entries: self.bounds.entries.saturating_sub(self.entries),
        }
    }

    pub(super) fn add_entry(&mut self) -> Result<(), CacheError> {
        if self.left().entries == 0 {
            return Err(self.bounds.too_many_entries());
        }
        self.entries += 1;
        Ok(())
    }

    /// Whether so many more bytes would fit; none is counted.
    pub(super) fn fits(&self, more: u64) -> Result<(), CacheError> {
        match more <= self.left().bytes {
            true => Ok(()),
            false => {
                let limit = self.bounds.bytes;
                Err(CacheError::TooLarge { what: "the bytes of a base", limit })
            }
        }
    }

    pub(super) fn add_bytes(&mut self, more: u64) -> Result<(), CacheError> {
        self.fits(more)?;
        self.bytes += more;
        Ok(())
    }
}
