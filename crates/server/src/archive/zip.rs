//! A zip whose files are stored as they are (PKWARE's APPNOTE 6.3.10; Info-ZIP's modes of Unix): sizes and places beyond 32 bits in
//! zip64's fields, names as their bytes are, with the flag of UTF-8 where they are that.
//!
//! ```text
//! local header, name, content [, descriptor] ...  central header, name ...  [zip64 end, locator]  end
//! ```
//! A file whose checksum is not known before its bytes has a descriptor behind them (bit 3), which readers of the central
//! directory do not need.

use cofferdam_contracts::artifact::ArtifactMode;
use crc32fast::Hasher;

use super::{ArchiveEntry, ArchiveError};

/// Bytes of an archive's list, which is in memory until its end: half a million entries with names of 40 characters.
pub(crate) const MAX_LIST_BYTES: u64 = 64 * 1024 * 1024;
/// Bytes of an entry in the list beside its name, at most: its fields, a directory's `/`, and the extra fields of time and zip64.
const LISTED: u64 = 46 + 1 + 9 + 28;

/// Bytes that an entry takes in the list, at most.
pub(crate) fn listed_bytes(name: usize) -> u64 {
    LISTED.saturating_add(u64::try_from(name).unwrap_or(u64::MAX))
}

/// What fields of 32 and 16 bits say where zip64's field has the number.
const LARGE: u64 = 0xffff_ffff;
const MANY: u64 = 0xffff;
/// Version 2.0 for directories, 4.5 for zip64; made by Unix.
const PLAIN_VERSION: u16 = 20;
const LARGE_VERSION: u16 = 45;
const UNIX: u16 = 3 << 8;
const DESCRIPTOR: u16 = 1 << 3;
const UTF8: u16 = 1 << 11;
/// 1980-01-01, the first day that MS-DOS knows: readers take the time from the extra field.
const FIRST_DAY: u16 = (1 << 5) | 1;
/// Types of files in a mode of Unix.
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const DIRECTORY: u32 = 0o040_000;

/// An archive that is being written.
#[derive(Default)]
pub(crate) struct ZipWriter {
    /// Bytes written so far.
    at: u64,
    /// The central directory so far.
    central: Vec<u8>,
    count: u64,
    open: Option<OpenEntry>,
}

/// The entry whose content comes.
struct OpenEntry {
    entry: ArchiveEntry,
    flags: u16,
    from: u64,
    owed: u64,
    crc: Hasher,
}

impl ZipWriter {
    pub(super) fn begin(
        &mut self,
        mut entry: ArchiveEntry,
        out: &mut Vec<u8>,
    ) -> Result<(), ArchiveError> {
        let list = u64::try_from(self.central.len()).unwrap_or(u64::MAX);
        if list.saturating_add(listed_bytes(entry.name.len())) > MAX_LIST_BYTES {
            return Err(ArchiveError::List);
        }
        if entry.mode == ArtifactMode::Directory {
            entry.name.push(b'/');
        }
        let length = u16::try_from(entry.name.len());
        let length = length.map_err(|_| ArchiveError::Name(entry.name.len()))?;
        let is_utf8 = !entry.name.is_ascii() && std::str::from_utf8(&entry.name).is_ok();
        if let Some(target) = &entry.target {
            entry.crc = Some(crc32fast::hash(target));
        }
        let mut flags = if is_utf8 { UTF8 } else { 0 };
        if entry.crc.is_none() {
            flags |= DESCRIPTOR;
        }
        let is_large = entry.size >= LARGE;
        let mut head = Vec::new();
        put32(&mut head, 0x0403_4b50);
        put16(&mut head, if is_large { LARGE_VERSION } else { PLAIN_VERSION });
        put16(&mut head, flags);
        // Stored; then the time and the day.
        put16(&mut head, 0);
        put16(&mut head, 0);
        put16(&mut head, FIRST_DAY);
        let is_known = entry.crc.is_some();
        put32(&mut head, entry.crc.unwrap_or(0));
        let size = match (is_known, is_large) {
            (_, true) => LARGE,
            (true, false) => entry.size,
            (false, false) => 0,
        };
        put_u32(&mut head, size);
        put_u32(&mut head, size);
        put16(&mut head, length);
        let mut extra = modified(entry.modified_s);
        if is_large {
            let size = if is_known { entry.size } else { 0 };
            zip64(&mut extra, &[size, size]);
        }
        put_u16(&mut head, extra.len());
        head.extend_from_slice(&entry.name);
        head.extend_from_slice(&extra);
        let from = self.at;
        self.put(&head, out);
        let owed = entry.size;
        let target = entry.target.clone();
        self.open = Some(OpenEntry { entry, flags, from, owed, crc: Hasher::new() });
        match target {
            Some(target) => self.data(&target, out),
            None => Ok(()),
        }
    }

    pub(super) fn data(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ArchiveError> {
        let open = self.open.as_mut().ok_or(ArchiveError::Size)?;
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        open.owed = open.owed.checked_sub(size).ok_or(ArchiveError::Size)?;
        open.crc.update(bytes);
        self.put(bytes, out);
        Ok(())
    }

    pub(super) fn end(&mut self, out: &mut Vec<u8>) -> Result<(), ArchiveError> {
        let open = self.open.take().ok_or(ArchiveError::Size)?;
        let OpenEntry { entry, flags, from, owed, crc } = open;
        let crc = crc.finalize();
        if owed > 0 || entry.crc.is_some_and(|known| known != crc) {
            return Err(ArchiveError::Size);
        }
        if entry.crc.is_none() {
            let mut descriptor = Vec::new();
            put32(&mut descriptor, 0x0807_4b50);
            put32(&mut descriptor, crc);
            for _ in 0..2 {
                match entry.size >= LARGE {
                    true => put64(&mut descriptor, entry.size),
                    false => put_u32(&mut descriptor, entry.size),
                }
            }
            self.put(&descriptor, out);
        }
        self.list(&entry, flags, from, crc);
        self.count += 1;
        Ok(())
    }

    /// Notes an entry in the central directory.
    fn list(&mut self, entry: &ArchiveEntry, flags: u16, from: u64, crc: u32) {
        let mut numbers = Vec::new();
        if entry.size >= LARGE {
            numbers.extend([entry.size, entry.size]);
        }
        if from >= LARGE {
            numbers.push(from);
        }
        let mut extra = modified(entry.modified_s);
        zip64(&mut extra, &numbers);
        let version = if numbers.is_empty() { PLAIN_VERSION } else { LARGE_VERSION };
        let kind = match entry.mode {
            ArtifactMode::File | ArtifactMode::Executable => REGULAR,
            ArtifactMode::Link => SYMLINK,
            ArtifactMode::Directory => DIRECTORY,
        };
        // Unix in the upper half; MS-DOS's bit of a directory in the lower.
        let is_directory = u32::from(entry.mode == ArtifactMode::Directory);
        let attributes = ((kind | entry.mode.permissions()) << 16) | (is_directory << 4);
        let head = &mut self.central;
        put32(head, 0x0201_4b50);
        put16(head, UNIX | version);
        put16(head, version);
        put16(head, flags);
        put16(head, 0);
        put16(head, 0);
        put16(head, FIRST_DAY);
        put32(head, crc);
        put_u32(head, entry.size);
        put_u32(head, entry.size);
        put_u16(head, entry.name.len());
        put_u16(head, extra.len());
        // No comment, the first disk, no attributes inside.
        for _ in 0..3 {
            put16(head, 0);
        }
        put32(head, attributes);
        put_u32(head, from);
        head.extend_from_slice(&entry.name);
        head.extend_from_slice(&extra);
    }

    pub(super) fn finish(mut self, out: &mut Vec<u8>) {
        let (from, count) = (self.at, self.count);
        let central = std::mem::take(&mut self.central);
        let size = u64::try_from(central.len()).unwrap_or(u64::MAX);
        self.put(&central, out);
        let mut end = Vec::new();
        if count >= MANY || size >= LARGE || from >= LARGE {
            let at = self.at;
            put32(&mut end, 0x0606_4b50);
            put64(&mut end, 44);
            put16(&mut end, UNIX | LARGE_VERSION);
            put16(&mut end, LARGE_VERSION);
            put32(&mut end, 0);
            put32(&mut end, 0);
            for number in [count, count, size, from] {
                put64(&mut end, number);
            }
            put32(&mut end, 0x0706_4b50);
            put32(&mut end, 0);
            put64(&mut end, at);
            put32(&mut end, 1);
        }
        put32(&mut end, 0x0605_4b50);
        put32(&mut end, 0);
        let few = u16::try_from(count.min(MANY)).unwrap_or(u16::MAX);
        put16(&mut end, few);
        put16(&mut end, few);
        put_u32(&mut end, size);
        put_u32(&mut end, from);
        put16(&mut end, 0);
        self.put(&end, out);
    }

    fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(bytes);
        self.at = self.at.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    }
}

/// The extra field `UT`: when it was last modified.
fn modified(seconds: u64) -> Vec<u8> {
    let mut extra = Vec::new();
    put16(&mut extra, 0x5455);
    put16(&mut extra, 5);
    extra.push(1);
    put_u32(&mut extra, seconds);
    extra
}

/// The extra field of zip64, if it has a number.
fn zip64(extra: &mut Vec<u8>, numbers: &[u64]) {
    if numbers.is_empty() {
        return;
    }
    put16(extra, 1);
    put_u16(extra, numbers.len().saturating_mul(8));
    numbers.iter().for_each(|number| put64(extra, *number));
}

fn put16(out: &mut Vec<u8>, number: u16) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// A number that may be too large for its field, which then is full.
fn put_u32(out: &mut Vec<u8>, number: u64) {
    put32(out, u32::try_from(number).unwrap_or(u32::MAX));
}

fn put_u16(out: &mut Vec<u8>, number: usize) {
    put16(out, u16::try_from(number).unwrap_or(u16::MAX));
}

#[cfg(test)]
mod tests {
    use super::super::tests::entry;
    use super::*;

    fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
        bytes[at..at + size].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    /// Signatures of an archive's records, where they stand.
    fn found(bytes: &[u8], signature: u32) -> Vec<usize> {
        let wanted = signature.to_le_bytes();
        (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&wanted)).collect()
    }

    #[test]
    fn entries_say_names_modes_sizes_and_checksums() {
        let (mut out, mut zip) = (Vec::new(), ZipWriter::default());
        let all: [(&[u8], ArtifactMode, &[u8]); 4] = [
            ("\u{e9}\n".as_bytes(), ArtifactMode::Executable, b"one"),
            (b"x\xff", ArtifactMode::File, b""),
            (b"dir", ArtifactMode::Directory, b""),
            (b"link", ArtifactMode::Link, b"dir/there"),
        ];
        for (name, mode, content) in all {
            zip.begin(entry(name, mode, content), &mut out).unwrap();
            if mode != ArtifactMode::Link {
                zip.data(content, &mut out).unwrap();
            }
            zip.end(&mut out).unwrap();
        }
        zip.finish(&mut out);
        let central = found(&out, 0x0201_4b50);
        assert_eq!(central.len(), 4);
        let flags: Vec<u64> = central.iter().map(|at| number(&out, at + 8, 2)).collect();
        assert_eq!(flags, [0x808, 0x008, 0x008, 0], "UTF-8, and descriptors of what was not known");
        let modes: Vec<u64> = central.iter().map(|at| number(&out, at + 38, 4)).collect();
        assert_eq!(
            modes,
            [0o100_755 << 16, 0o100_644 << 16, (0o040_755 << 16) | 16, 0o120_777 << 16]
        );
        assert_eq!(number(&out, central[0] + 16, 4), u64::from(crc32fast::hash(b"one")));
        assert_eq!(number(&out, central[3] + 20, 4), 9);
        let from = usize::try_from(number(&out, central[3] + 42, 4)).unwrap();
        assert_eq!(number(&out, from, 4), 0x0403_4b50);
        let end = *found(&out, 0x0605_4b50).last().unwrap();
        assert_eq!((number(&out, end + 8, 2), end + 22), (4, out.len()));
        assert_eq!(number(&out, end + 16, 4), u64::try_from(central[0]).unwrap());
    }

    #[test]
    fn the_list_of_entries_has_a_bound() {
        let (mut out, mut zip) = (Vec::new(), ZipWriter::default());
        zip.begin(entry(b"long/name", ArtifactMode::Directory, b""), &mut out).unwrap();
        zip.end(&mut out).unwrap();
        let listed = u64::try_from(zip.central.len()).unwrap();
        assert!(listed <= listed_bytes(9) && listed + 28 >= listed_bytes(9), "{listed}");
        let large = ArchiveEntry { size: LARGE + 5, ..entry(b"a", ArtifactMode::File, b"") };
        zip.central.clear();
        zip.list(&large, 0, LARGE + 7, 1);
        assert!(u64::try_from(zip.central.len()).unwrap() <= listed_bytes(1));
        let room = usize::try_from(MAX_LIST_BYTES - listed_bytes(1)).unwrap();
        zip.central = vec![0; room];
        zip.begin(entry(b"a", ArtifactMode::File, b""), &mut out).unwrap();
        zip.end(&mut out).unwrap();
        zip.central = vec![0; room + 1];
        let before = out.len();
        let refused = zip.begin(entry(b"a", ArtifactMode::File, b""), &mut out);
        assert_eq!((refused, out.len()), (Err(ArchiveError::List), before));
    }

    #[test]
    fn a_known_checksum_stands_in_front_and_is_held() {
        let (mut out, mut zip) = (Vec::new(), ZipWriter::default());
        let known =
            |crc| ArchiveEntry { crc: Some(crc), ..entry(b"a", ArtifactMode::File, b"one") };
        zip.begin(known(crc32fast::hash(b"one")), &mut out).unwrap();
        zip.data(b"one", &mut out).unwrap();
        zip.end(&mut out).unwrap();
        assert_eq!((number(&out, 6, 2), number(&out, 18, 4)), (0, 3), "no descriptor");
        zip.begin(known(1), &mut out).unwrap();
        zip.data(b"one", &mut out).unwrap();
        assert_eq!(zip.end(&mut out), Err(ArchiveError::Size));
    }

    #[test]
    fn what_is_beyond_32_bits_is_in_zip64s_fields() {
        let (mut out, mut zip) = (Vec::new(), ZipWriter::default());
        let size = LARGE + 5;
        let large = ArchiveEntry { size, ..entry(b"a", ArtifactMode::File, b"") };
        zip.begin(large.clone(), &mut out).unwrap();
        assert_eq!((number(&out, 4, 2), number(&out, 22, 4)), (45, LARGE));
        // As if so many bytes had come.
        zip.open = None;
        zip.at = LARGE + 100;
        zip.list(&large, 0, LARGE + 7, 1);
        zip.count = MANY + 1;
        let central = zip.central.clone();
        let extra = 46 + 1 + 9;
        assert_eq!((number(&central, extra, 2), number(&central, extra + 2, 2)), (1, 24));
        assert_eq!(number(&central, extra + 4, 8), size);
        assert_eq!(number(&central, extra + 20, 8), LARGE + 7);
        let mut end = Vec::new();
        zip.finish(&mut end);
        let record = found(&end, 0x0606_4b50)[0];
        assert_eq!(number(&end, record + 24, 8), MANY + 1);
        assert_eq!(number(&end, record + 48, 8), LARGE + 100);
        let last = found(&end, 0x0605_4b50)[0];
        assert_eq!((number(&end, last + 8, 2), number(&end, last + 16, 4)), (MANY, LARGE));
    }
}
