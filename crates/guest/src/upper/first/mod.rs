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

#[cfg(test)]
mod tests {
    use super::*;

    /// Directories below one of a long path, without end.
    struct Endless {
        held: Vec<u8>,
        count: usize,
    }

    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.held.is_empty() {
                let above = vec!["d".repeat(250); self.count.min(15)].join("/");
                let path = match self.count {
                    0..=15 => above,
                    count => format!("{above}/{count}"),
                };
                self.count += 1;
                self.held.push(EntryKind::Dir.byte());
                self.held.extend(u16::try_from(path.len()).unwrap().to_le_bytes());
                self.held.extend(path.as_bytes());
                // Mode, owners, time; no attributes.
                self.held.extend([0; 4 * 3 + 8 + 4 + 2]);
            }
            let count = into.len().min(self.held.len());
            let (now, later) = self.held.split_at(count);
            into.get_mut(..count).unwrap().copy_from_slice(now);
            self.held = later.to_vec();
            Ok(count)
        }
    }

    #[test]
    fn a3f6_a_stream_of_before_has_a_bound_of_paths() {
        let dir = tempfile::tempdir().unwrap();
        let mut endless = Endless { held: Vec::new(), count: 0 };
        let refused = unpack(dir.path(), 0, &mut endless).unwrap_err();
        assert!(refused.to_string().contains("directories' paths"), "{refused}");
        assert!(endless.count < 20_000, "{}", endless.count);
    }
}
