//! The form of streams before version 2: whole paths, and what directories get at the end. Files that were sealed so, and machines
//! that were kept with an older agent, are read; nothing is written so.

mod read;
mod unpack;

use std::io::{self, Read};

use super::words::Extent;
use super::{EntryKind, PIECE};
use read::FirstReader;
pub(super) use unpack::unpack;

/// First bytes of such a stream.
pub(super) const MAGIC: &[u8; 8] = b"cfdlyr01";

/// Reads a stream from behind its first bytes to its end: an error where it is not of this form.
pub(super) fn check(from: &mut dyn Read) -> io::Result<()> {
    let mut entries = FirstReader::begin(from, 0);
    let mut piece = vec![0; PIECE];
    while let Some(entry) = entries.entry()? {
        if entry.kind == EntryKind::File {
            while let Extent::Bytes(..) = entries.extent(&mut piece)? {}
        }
    }
    Ok(())
}
