//! A stream, entry by entry. Everything that a text of it can say is checked here, whoever wrote it and whatever is done with
//! it.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use super::super::{
    EntryKind, Head, MAX_ENTRIES, MAX_NAME, MAX_TARGET, MAX_VALUE, NO_EXTENT, attributes, outside,
    wrong,
};

/// Bytes of all attributes together. Those of directories are in memory until the last entry was written.
const MAX_ATTRIBUTE_BYTES: usize = 64 * 1024 * 1024;

/// What an entry says before its bytes.
pub(super) struct FirstEntry {
    pub kind: EntryKind,
    /// Below the layer, without a link to follow by itself; empty: the layer itself, which comes first.
    pub path: PathBuf,
    pub head: Head,
    /// Of a symbolic link, any bytes; of another name, a path of this layer.
    pub target: Vec<u8>,
}

/// A part of a file, or its end.
pub(super) enum FirstExtent {
    /// So many bytes from this offset on.
    Bytes(u64, usize),
    /// The file's size.
    End(u64),
}

/// Reads them.
pub(super) struct FirstReader<'a> {
    from: &'a mut dyn Read,
    first: u32,
    count: u64,
    /// That attributes may still have.
    attribute_bytes: usize,
}

impl<'a> FirstReader<'a> {
    /// Begins behind the stream's first bytes, for owners that begin at `first`.
    pub fn begin(from: &'a mut dyn Read, first: u32) -> Self {
        Self { from, first, count: 0, attribute_bytes: MAX_ATTRIBUTE_BYTES }
    }

    /// The next entry. `None`: it was the end, and the stream is whole.
    pub fn entry(&mut self) -> io::Result<Option<FirstEntry>> {
        let [kind] = self.array()?;
        let kind = EntryKind::of(kind).filter(|kind| *kind != EntryKind::Up);
        let kind = kind.ok_or_else(|| wrong("an entry of no known kind"))?;
        if kind == EntryKind::End {
            return match self.wide()? == self.count {
                true => Ok(None),
                false => Err(wrong("another number of entries than it says")),
            };
        }
        let (path, head) = (self.path()?, self.head()?);
        let is_top = path.as_os_str().is_empty();
        if is_top != (self.count == 0) || is_top && kind != EntryKind::Dir {
            return Err(wrong("no root at its head, two roots, or one that is not a directory"));
        }
        self.count = self.count.saturating_add(1);
        if self.count > MAX_ENTRIES {
            return Err(wrong("too many entries"));
        }
        let target = match kind {
            EntryKind::Link => self.text(MAX_TARGET)?,
            EntryKind::Same => self.path()?.into_os_string().into_vec(),
            _ => Vec::new(),
        };
        Ok(Some(FirstEntry { kind, path, head, target }))
    }

    /// The next part of the file that was just named.
    pub fn extent(&mut self, piece: &mut [u8]) -> io::Result<FirstExtent> {
        let at = self.wide()?;
        if at == NO_EXTENT {
            return self.wide().map(FirstExtent::End);
        }
        let size = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        let bytes = piece.get_mut(..size).ok_or_else(|| wrong("a piece that is too long"))?;
        self.from.read_exact(bytes)?;
        Ok(FirstExtent::Bytes(at, size))
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn wide(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn number(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn some(&mut self, size: usize, most: usize) -> io::Result<Vec<u8>> {
        if size > most {
            return Err(wrong("a longer text than there can be"));
        }
        let mut bytes = vec![0; size];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn text(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let size = self.array().map(u16::from_le_bytes)?;
        self.some(usize::from(size), most)
    }

    fn path(&mut self) -> io::Result<PathBuf> {
        let bytes = self.text(MAX_TARGET)?;
        let path = Path::new(OsStr::from_bytes(&bytes));
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        match plain && !bytes.contains(&0) {
            true => Ok(path.to_owned()),
            false => Err(wrong("a path that leads elsewhere")),
        }
    }

    fn head(&mut self) -> io::Result<Head> {
        let (mode, uid, gid) = (self.number()?, self.number()?, self.number()?);
        let seconds = self.array().map(i64::from_le_bytes)?;
        let nanos = self.number()?;
        let count = self.array().map(u16::from_le_bytes)?;
        let mut attributes = Vec::new();
        for _ in 0..count {
            let name = self.text(MAX_NAME)?;
            attributes::check(&name)?;
            let size = usize::try_from(self.number()?).unwrap_or(usize::MAX);
            let left = self.attribute_bytes.checked_sub(name.len().saturating_add(size));
            self.attribute_bytes = left.ok_or_else(|| wrong("too many bytes of attributes"))?;
            attributes.push((name, self.some(size, MAX_VALUE)?));
        }
        let (uid, gid) = (outside(uid, self.first)?, outside(gid, self.first)?);
        Ok(Head { mode: mode & 0o7777, uid, gid, seconds, nanos, attributes })
    }
}
