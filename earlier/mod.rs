//! Streams of the form before: whole paths, and directories that get their modes and times at the end. It is read and not
//! written any more: files that an earlier release sealed have it, and so does what an earlier agent hands out.
//!
//! ```text
//! entry:  kind  path  mode uid gid  mtime  attributes  [ extents | target | path of the same file ]
//! ```

mod read;
mod unpack;

use std::io;

use super::EntryKind;
use super::numbers::Numbers;
use super::read::Extent;
use read::EntryReader;

pub(super) use unpack::unpack;

/// Reads a stream to its end, and does nothing with it.
pub(super) fn pass_over(from: Numbers<'_>, piece: &mut [u8]) -> io::Result<()> {
    let mut entries = EntryReader::after_magic(from, 0);
    while let Some(entry) = entries.entry()? {
        if entry.kind == EntryKind::File {
            while let Extent::Bytes(..) = entries.extent(piece)? {}
        }
    }
    Ok(())
}
