//! How directories of trees that others write are opened.

use rustix::fs::{OFlags, ResolveFlags};

/// A directory itself, never what a link of its name leads to.
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Below the directory that a path begins at, on its file system, through no link.
pub(crate) const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_XDEV)
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);
