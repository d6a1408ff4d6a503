//! A stream, entry by entry. Everything that a text of it can say is checked here, whoever wrote it and whatever is done with
//! it.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use super::super::words::{Extent, Words};
use super::super::{EntryKind, Head, MAX_ENTRIES, MAX_TARGET, wrong};

/// Bytes of all attributes together. Those of directories are in memory until the last entry was written.
const MAX_ATTRIBUTE_BYTES: usize = 64 * 1024 * 1024;

/// An extended attribute of a file.
pub(super) struct FirstAttribute {
    pub name: Vec<u8>,
    pub value: Vec<u8>,
}

/// What an entry says before its bytes.
pub(super) struct FirstEntry {
    pub kind: EntryKind,
    /// Below the layer, without a link to follow by itself; empty: the layer itself, which comes first.
    pub path: PathBuf,
    pub head: Head,
    pub attributes: Vec<FirstAttribute>,
    /// Of a symbolic link, any bytes; of another name, a path of this layer.
    pub target: Vec<u8>,
}

/// Reads a stream of the first form entry by entry, and checks each.
pub(super) struct FirstReader<'a> {
    words: Words<'a>,
    count: u64,
    /// That attributes may still have.
    attribute_bytes: usize,
}

impl<'a> FirstReader<'a> {
    /// Begins behind the stream's first bytes, for owners that begin at `first`.
    pub fn begin(from: &'a mut dyn Read, first: u32) -> Self {
        Self { words: Words::of(from, first), count: 0, attribute_bytes: MAX_ATTRIBUTE_BYTES }
    }

    /// The next entry. `None`: it was the end, and the stream is whole.
    pub fn entry(&mut self) -> io::Result<Option<FirstEntry>> {
        let [kind] = self.words.array()?;
        let kind = EntryKind::of(kind).filter(|kind| *kind != EntryKind::Up);
        let kind = kind.ok_or_else(|| wrong("an entry of no known kind"))?;
        if kind == EntryKind::End {
            return match self.words.wide()? == self.count {
                true => Ok(None),
                false => Err(wrong("another number of entries than it says")),
            };
        }
        let (path, head) = (self.path()?, self.words.head()?);
        let attributes = self.attributes()?;
        let is_top = path.as_os_str().is_empty();
        if is_top != (self.count == 0) || is_top && kind != EntryKind::Dir {
            return Err(wrong("no root at its head, two roots, or one that is not a directory"));
        }
        self.count = self.count.saturating_add(1);
        if self.count > MAX_ENTRIES {
            return Err(wrong("too many entries"));
        }
        let target = match kind {
            EntryKind::Link => self.words.text(MAX_TARGET)?,
            EntryKind::Same => self.path()?.into_os_string().into_vec(),
            _ => Vec::new(),
        };
        Ok(Some(FirstEntry { kind, path, head, attributes, target }))
    }

    /// The next part of the file that was just named.
    pub fn extent(&mut self, piece: &mut [u8]) -> io::Result<Extent> {
        self.words.extent(piece)
    }

    fn path(&mut self) -> io::Result<PathBuf> {
        let bytes = self.words.text(MAX_TARGET)?;
        let path = Path::new(OsStr::from_bytes(&bytes));
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        match plain && !bytes.contains(&0) {
            true => Ok(path.to_owned()),
            false => Err(wrong("a path that leads elsewhere")),
        }
    }

    fn attributes(&mut self) -> io::Result<Vec<FirstAttribute>> {
        let mut attributes = Vec::new();
        for _ in 0..self.words.short()? {
            let (name, size) = self.words.attribute()?;
            let left = self.attribute_bytes.checked_sub(name.len().saturating_add(size));
            self.attribute_bytes = left.ok_or_else(|| wrong("too many bytes of attributes"))?;
            attributes.push(FirstAttribute { name, value: self.words.value(size)? });
        }
        Ok(attributes)
    }
}
