//! What one tree may have.

/// Entries of one tree: the sources of a large project with what its package manager brought.
const MAX_ENTRIES: usize = 500_000;
/// Bytes of one tree.
const MAX_BYTES: u64 = 16 * 1024 * 1024 * 1024;

/// What a tree may have at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeBounds {
    /// Files, directories and links.
    pub entries: usize,
    /// Bytes of the files.
    pub bytes: u64,
}

impl Default for TreeBounds {
    fn default() -> Self {
        Self { entries: MAX_ENTRIES, bytes: MAX_BYTES }
    }
}
