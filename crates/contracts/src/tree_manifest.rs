//! The text of a tree, as a client that has it elsewhere sends it: each entry with the digest of its bytes.
//!
//! The text is that of which a tree's digest is taken (`docs/code-in.md`), so what was parsed needs no second form:
//! ```text
//! cofferdam-tree 1
//! d 755 0 - 0 ␣
//! f 644 5 <sha256> 5 a.txt
//! l 777 0 - 4 link 5 a.txt
//! ```
//! **What could harm the one who unpacks a tree is refused here**: names and links that lead out of it, entries below a file or a
//! link, two entries of one name. A name may have newlines and bytes that are not UTF-8: its length says where it ends.

use std::collections::HashSet;

use crate::id::Digest;

const HEAD: &[u8] = b"cofferdam-tree 1\n";
/// Bytes of a manifest: half a million entries with names of common length.
pub const MAX_MANIFEST_BYTES: usize = 64 * 1024 * 1024;
/// The kernel's own bound of a path, and of a link's target.
const MAX_PATH_BYTES: usize = 4_095;
/// The kernel's own bound of a name.
const MAX_NAME_BYTES: usize = 255;
/// Digits of a number: those of 2^63.
const MAX_DIGITS: usize = 19;

/// A file, directory or link of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestEntry<'a> {
    /// Relative to the tree, with slashes; empty: the tree itself.
    pub path: &'a [u8],
    /// Permissions, at most 0777.
    pub mode: u32,
    /// Directory, file or link, with what only that has.
    pub kind: ManifestKind<'a>,
}

/// Kinds of entries; devices, sockets and pipes have none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestKind<'a> {
    /// A directory; its entries follow.
    Directory,
    /// A regular file.
    File {
        /// Size in bytes.
        size: u64,
        /// SHA-256 of its bytes.
        sha256: Digest,
    },
    /// A symbolic link with its target, which stays in the tree by its text.
    Link(&'a [u8]),
}

/// Why a manifest is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {entry} of the manifest: {why}")]
pub struct ManifestFault {
    /// Number of the entry, from 1; 0: the first line.
    pub entry: usize,
    /// Reason, for a person.
    pub why: &'static str,
}

/// What a manifest may have at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManifestBounds {
    /// Files, directories and links.
    pub entries: usize,
    /// Bytes of all files.
    pub bytes: u64,
}

/// The beginning of a manifest, which [`push`] goes on with.
#[must_use]
pub fn begin() -> Vec<u8> {
    HEAD.to_vec()
}

/// Writes the next entry. Callers give entries in the order of the bytes of their paths, the tree itself first.
pub fn push(text: &mut Vec<u8>, entry: &ManifestEntry<'_>) {
    let sized = |text: &mut Vec<u8>, bytes: &[u8]| {
        text.extend_from_slice(format!(" {} ", bytes.len()).as_bytes());
        text.extend_from_slice(bytes);
    };
    let fields = match &entry.kind {
        ManifestKind::Directory => format!("d {:o} 0 -", entry.mode),
        ManifestKind::File { size, sha256 } => format!("f {:o} {size} {sha256}", entry.mode),
        ManifestKind::Link(_) => format!("l {:o} 0 -", entry.mode),
    };
    text.extend_from_slice(fields.as_bytes());
    sized(text, entry.path);
    if let ManifestKind::Link(target) = &entry.kind {
        sized(text, target);
    }
    text.push(b'\n');
}

/// Parses a whole manifest.
///
/// # Errors
/// The first entry that breaks a rule or a bound.
pub fn parse(text: &[u8], bounds: ManifestBounds) -> Result<Vec<ManifestEntry<'_>>, ManifestFault> {
    let fault = |entry, why| ManifestFault { entry, why };
    if text.len() > MAX_MANIFEST_BYTES {
        return Err(fault(0, "it is larger than 64 MiB"));
    }
    let mut rest =
        text.strip_prefix(HEAD).ok_or(fault(0, "its first line is not `cofferdam-tree 1`"))?;
    let mut entries: Vec<ManifestEntry<'_>> = Vec::new();
    // In the order of bytes `a-b` stands between `a` and `a/b`: no stack would do.
    let mut directories: HashSet<&[u8]> = HashSet::new();
    let mut bytes = 0_u64;
    while !rest.is_empty() {
        let number = entries.len() + 1;
        if number > bounds.entries {
            return Err(fault(number, "there are more entries than a tree may have"));
        }
        let mut fields = EntryReader(rest);
        let entry = fields.entry().map_err(|why| fault(number, why))?;
        rest = fields.0;
        let order = entries.last().map(|last| last.path < entry.path);
        let is_first = order.is_none();
        if is_first && (!entry.path.is_empty() || entry.kind != ManifestKind::Directory) {
            return Err(fault(number, "the first one is not the directory itself"));
        }
        if order == Some(false) {
            return Err(fault(
                number,
                "it does not follow the one before it in the order of names",
            ));
        }
        if !is_first {
            check_name(entry.path).map_err(|why| fault(number, why))?;
            if !directories.contains(parent(entry.path)) {
                return Err(fault(number, "it lies in no directory of the manifest"));
            }
        }
        match &entry.kind {
            ManifestKind::Directory => {
                directories.insert(entry.path);
            }
            ManifestKind::File { size, .. } => bytes = bytes.saturating_add(*size),
            ManifestKind::Link(target) => {
                check_target(entry.path, target).map_err(|why| fault(number, why))?;
            }
        }
        if bytes > bounds.bytes {
            return Err(fault(number, "its files have more bytes than a tree may have"));
        }
        entries.push(entry);
    }
    match entries.is_empty() {
        true => Err(fault(0, "it has no entries")),
        false => Ok(entries),
    }
}

fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    path.get(..end).unwrap_or_default()
}

fn check_name(path: &[u8]) -> Result<(), &'static str> {
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" => return Err("its path is absolute, or has an empty name"),
            b"." | b".." => return Err("its path has the name `.` or `..`"),
            part if part.contains(&0) => return Err("its path has a NUL"),
            part if part.len() > MAX_NAME_BYTES => return Err("a name is longer than 255 bytes"),
            _ => {}
        }
    }
    Ok(())
}

/// A link leads to something in the tree by its text: each `..` leaves a directory that the link lies in.
fn check_target(path: &[u8], target: &[u8]) -> Result<(), &'static str> {
    if target.is_empty() || target.contains(&0) {
        return Err("its target is empty, or has a NUL");
    }
    if target.starts_with(b"/") {
        return Err("its target is absolute: a link leads to something in the tree");
    }
    let mut depth = path.iter().filter(|byte| **byte == b'/').count();
    for part in target.split(|byte| *byte == b'/') {
        depth = match part {
            b"" | b"." => depth,
            b".." => depth.checked_sub(1).ok_or("its target leads out of the tree")?,
            _ => depth.saturating_add(1),
        };
    }
    Ok(())
}

/// What is still to be read.
struct EntryReader<'a>(&'a [u8]);

impl<'a> EntryReader<'a> {
    fn entry(&mut self) -> Result<ManifestEntry<'a>, &'static str> {
        let kind = self.field(1)?;
        let mode = self.field(3)?;
        let mode = std::str::from_utf8(mode).map_err(|_| "its permissions are not octal")?;
        let is_octal = mode.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        let is_shortest = mode == "0" || !mode.starts_with('0');
        let mode = u32::from_str_radix(mode, 8).map_err(|_| "its permissions are not octal")?;
        if !is_octal || !is_shortest {
            return Err("its permissions are not octal");
        }
        let size = self.number()?;
        let sha256 = self.field(64)?;
        let length = usize::try_from(self.number()?).map_err(|_| "its path is too long")?;
        let path = self.sized(length)?;
        let kind = match kind {
            b"d" if size == 0 && sha256 == b"-" => ManifestKind::Directory,
            b"f" => {
                let sha256 = std::str::from_utf8(sha256).ok().and_then(|text| text.parse().ok());
                ManifestKind::File {
                    size,
                    sha256: sha256.ok_or("its digest is not 64 hexadecimal digits")?,
                }
            }
            b"l" if size == 0 && sha256 == b"-" && mode == 0o777 => {
                self.skip(b' ')?;
                let length =
                    usize::try_from(self.number()?).map_err(|_| "its target is too long")?;
                ManifestKind::Link(self.sized(length)?)
            }
            _ => return Err("it is neither a directory nor a file nor a link"),
        };
        self.skip(b'\n')?;
        Ok(ManifestEntry { path, mode, kind })
    }

    /// Up to the next blank, which is taken, too.
    fn field(&mut self, most: usize) -> Result<&'a [u8], &'static str> {
        let window = self.0.get(..self.0.len().min(most.saturating_add(1))).unwrap_or_default();
        let end =
            window.iter().position(|byte| *byte == b' ').ok_or("a field is cut, or too long")?;
        let (field, rest) = self.0.split_at_checked(end).ok_or("a field is cut")?;
        self.0 = rest.get(1..).unwrap_or_default();
        Ok(field)
    }

    fn number(&mut self) -> Result<u64, &'static str> {
        let digits = self.field(MAX_DIGITS)?;
        let is_shortest = digits == b"0" || !digits.starts_with(b"0");
        let text = std::str::from_utf8(digits).map_err(|_| "a number is malformed")?;
        match is_shortest && !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit()) {
            true => text.parse().map_err(|_| "a number is too large"),
            false => Err("a number is malformed"),
        }
    }

    fn sized(&mut self, length: usize) -> Result<&'a [u8], &'static str> {
        if length > MAX_PATH_BYTES {
            return Err("a path or target is longer than 4,095 bytes");
        }
        let (taken, rest) = self.0.split_at_checked(length).ok_or("a path or target is cut")?;
        self.0 = rest;
        Ok(taken)
    }

    fn skip(&mut self, byte: u8) -> Result<(), &'static str> {
        match self.0.split_first() {
            Some((first, rest)) if *first == byte => {
                self.0 = rest;
                Ok(())
            }
            _ => Err("something stands where it ends"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: ManifestBounds = ManifestBounds { entries: 10, bytes: 100 };
    const SUM: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn text(lines: &str) -> Vec<u8> {
        format!("cofferdam-tree 1\nd 755 0 - 0 \n{}", lines.replace('$', SUM)).into_bytes()
    }

    fn refusal(lines: &str) -> String {
        parse(&text(lines), BOUNDS).unwrap_err().to_string()
    }

    #[test]
    fn what_a_tree_has_is_read_as_it_is() {
        let whole =
            text("d 700 0 - 1 a\nf 644 5 $ 3 a-b\nf 644 5 $ 5 a/b\nc\nl 777 0 - 3 a/l 4 ../x\n");
        let entries = parse(&whole, BOUNDS).unwrap();
        assert_eq!(entries.len(), 5);
        assert_eq!((entries[1].path, entries[1].mode), (&b"a"[..], 0o700));
        assert_eq!(entries[3].path, b"a/b\nc", "a name may have a newline");
        assert_eq!(entries[4].kind, ManifestKind::Link(b"../x"));
        let mut again = begin();
        entries.iter().for_each(|entry| push(&mut again, entry));
        assert_eq!(again, whole, "what is parsed is written as it was");
        for end in 0..whole.len() {
            assert!(
                parse(&whole[..end], BOUNDS).map_or(true, |entries| entries.len() < 5),
                "cut at {end}"
            );
        }
    }

    #[test]
    fn names_and_links_that_lead_out_are_refused_in_words() {
        for (lines, words) in [
            ("f 644 1 $ 2 ..\n", "`.` or `..`"),
            ("d 755 0 - 1 a\nf 644 1 $ 6 a/../b\n", "`.` or `..`"),
            ("f 644 1 $ 4 /etc\n", "absolute"),
            ("f 644 1 $ 3 a\0b\n", "NUL"),
            ("f 644 1 $ 3 a/b\n", "lies in no directory"),
            ("f 644 1 $ 1 a\nf 644 1 $ 3 a/b\n", "lies in no directory"),
            ("l 777 0 - 1 a 1 .\nf 644 1 $ 3 a/b\n", "lies in no directory"),
            ("f 644 1 $ 1 b\nf 644 1 $ 1 a\n", "order of names"),
            ("f 644 1 $ 1 a\nf 644 1 $ 1 a\n", "order of names"),
            ("l 777 0 - 1 a 4 /etc\n", "absolute"),
            ("l 777 0 - 1 a 2 ..\n", "leads out"),
            ("d 755 0 - 1 a\nl 777 0 - 3 a/l 5 ../..\n", "leads out"),
            ("c 644 0 - 1 a\n", "neither a directory"),
            ("f 644 1 - 1 a\n", "digest"),
            ("f 644 101 $ 1 a\n", "more bytes"),
            ("f 0644 1 $ 1 a\n", "too long"),
            ("f 888 1 $ 1 a\n", "octal"),
            ("f 644 01 $ 1 a\n", "a number is malformed"),
            ("f 644 1 $ 9999 a\n", "longer than 4,095"),
            ("f 644 1 $ 1 ab\n", "where it ends"),
        ] {
            let said = refusal(lines);
            assert!(said.contains(words), "{lines:?}: {said}");
        }
        assert!(parse(b"cofferdam-tree 2\n", BOUNDS).is_err() && parse(b"", BOUNDS).is_err());
        let many: String = (0..10).map(|n| format!("f 644 1 {SUM} 1 {n}\n")).collect();
        assert!(refusal(&many).contains("more entries"));
    }
}
