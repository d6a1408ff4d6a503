//! What a sealer reads and what it writes, open.

use std::os::fd::OwnedFd;

/// The layer of a sandbox.
#[derive(Debug)]
pub(crate) struct LayerHandle {
    pub dir: OwnedFd,
    /// The user id at which its owners begin.
    pub first_id: u32,
}

/// The file that it is sealed into.
#[derive(Debug)]
pub(crate) struct FileHandle {
    pub file: OwnedFd,
    /// Bytes that it may have.
    pub most: u64,
}
