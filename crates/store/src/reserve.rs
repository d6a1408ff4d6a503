//! What is left free on the file system of a state directory: the database writes there too, and stops where it cannot.

use std::path::Path;

use rustix::fs::{StatVfs, statvfs};
use rustix::io::Errno;

/// Part of the bytes and of the file entries that is left to others.
const PART: u64 = 10;
/// Bytes of that part at most.
const MAX_BYTES: u64 = 1 << 30;
/// File entries of that part at most.
const MAX_ENTRIES: u64 = 10_000;

/// Bytes that are free beyond the reserve. Pure.
#[must_use]
pub fn bytes_left(found: &StatVfs) -> u64 {
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    usable(bytes(found.f_bavail), bytes(found.f_blocks))
}

/// Bytes of a disk that may be used, of so many in all.
fn usable(free: u64, all: u64) -> u64 {
    free.saturating_sub(MAX_BYTES.min(all / PART))
}

/// Whether more than the reserve is free where this directory lies. Blocking.
pub(crate) fn has_room(dir: &Path) -> Result<bool, Errno> {
    Ok(is_beyond(&statvfs(dir)?))
}

fn is_beyond(found: &StatVfs) -> bool {
    // A file system that makes entries as it needs them counts none.
    let has_entries = found.f_files == 0 || found.f_favail > MAX_ENTRIES.min(found.f_files / PART);
    bytes_left(found) > 0 && has_entries
}

#[cfg(test)]
mod tests {
    use rustix::fs::StatVfsMountFlags;

    use super::*;

    fn found(free: u64, blocks: u64, entries_free: u64, entries: u64) -> StatVfs {
        StatVfs {
            f_bsize: 4_096,
            f_frsize: 4_096,
            f_blocks: blocks,
            f_bfree: blocks,
            f_bavail: free,
            f_files: entries,
            f_ffree: entries,
            f_favail: entries_free,
            f_fsid: 1,
            f_flag: StatVfsMountFlags::empty(),
            f_namemax: 255,
        }
    }

    #[test]
    fn the_database_keeps_a_part_of_its_disk() {
        assert_eq!(usable(5 * MAX_BYTES, 100 * MAX_BYTES), 4 * MAX_BYTES);
        assert_eq!(usable(100, 1_000), 0);
        assert_eq!(usable(500, 1_000), 400);
    }

    #[test]
    fn a_part_of_bytes_and_entries_is_left_to_others() {
        let gib = (1 << 30) / 4_096;
        for (free, blocks, entries_free, entries, is_room) in [
            (101, 1_000, 500, 1_000, true),
            (100, 1_000, 500, 1_000, false),
            (gib + 1, 100 * gib, 500, 1_000, true),
            (gib, 100 * gib, 500, 1_000, false),
            (500, 1_000, 101, 1_000, true),
            (500, 1_000, 100, 1_000, false),
            (500, 1_000, MAX_ENTRIES + 1, 9_000_000, true),
            (500, 1_000, MAX_ENTRIES, 9_000_000, false),
            (500, 1_000, 0, 0, true),
        ] {
            let found = found(free, blocks, entries_free, entries);
            assert_eq!(
                is_beyond(&found),
                is_room,
                "{free} of {blocks}, {entries_free} of {entries}"
            );
        }
    }
}
