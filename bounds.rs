//! Bounds of a stream: one table, for who writes it and who reads it.
//!
//! A layer beyond one of them is refused while it is measured, before anything is promised of it.

/// Files, directories and links of one layer: a file system in memory of 16 GiB has as many inodes.
pub(super) const MAX_ENTRIES: u64 = 4_000_000;
/// Directories within each other. Each has an identity in the memory of who writes or reads.
pub(super) const MAX_DEPTH: usize = 65_536;
/// Files with more than one name of which not every name came yet: each has a number in the memory of who writes.
pub(super) const MAX_LINKED: usize = 1_000_000;
/// A name, as the kernel bounds it.
pub(super) const MAX_NAME: usize = 255;
/// The target of a symbolic link, as the kernel bounds it.
pub(super) const MAX_TARGET: usize = 4_095;
/// Extended attributes of one file: the kernel lists 64 KiB of names, and none that is kept has less than seven bytes.
pub(super) const MAX_ATTRIBUTES: usize = 10_000;
/// Name and value of an attribute, as the kernel bounds them.
pub(super) const MAX_ATTRIBUTE_NAME: usize = 255;
pub(super) const MAX_VALUE: usize = 64 * 1024;
/// Bytes that are read and written at a time.
pub(super) const PIECE: usize = 128 * 1024;

/// Bytes of all attributes together in the earlier form, whose reader holds those of directories until the last entry.
pub(super) const EARLIER_ATTRIBUTE_BYTES: usize = 64 * 1024 * 1024;
/// A path in the earlier form.
pub(super) const EARLIER_PATH: usize = 4_096;
/// Bytes of the paths of all directories in the earlier form, which its reader holds until the last entry.
pub(super) const EARLIER_DIRECTORY_BYTES: usize = 256 * 1024 * 1024;
