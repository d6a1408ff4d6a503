//! A stream, item by item. Everything that a text of it can say is checked here, whoever wrote it and whatever is done with
//! it.

use std::io;

use super::bounds::{MAX_ATTRIBUTES, MAX_DEPTH, MAX_ENTRIES, MAX_NAME, MAX_TARGET};
use super::numbers::Numbers;
use super::{EntryKind, NO_EXTENT, outside, wrong};

/// What comes next. Each name is one name: neither a path nor a way up.
pub(super) enum LayerItem {
    /// A directory, with what is in it up to its [`LayerItem::Up`]. Without a name: the layer itself, which comes first.
    Dir(Vec<u8>),
    /// The end of a directory; its dress follows.
    Up,
    /// Its extents follow, then its dress.
    File(Vec<u8>, u32),
    /// A symbolic link with its target; its dress follows.
    Link(Vec<u8>, u32, Vec<u8>),
    /// A pipe or a socket; its dress follows.
    Node(EntryKind, Vec<u8>, u32),
    /// Another name of a file that came with this number, and whether it is the last one.
    Same(Vec<u8>, u32, bool),
    Whiteout(Vec<u8>),
}

/// What a file is dressed in. Its attributes follow.
pub(super) struct Dress {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub seconds: i64,
    pub nanos: u32,
}

/// A part of a file, or its end.
pub(super) enum Extent {
    /// So many bytes from this offset on.
    Bytes(u64, usize),
    /// The file's size.
    End(u64),
}

impl Extent {
    /// The next part of the file that was just named.
    pub(super) fn read(from: &mut Numbers<'_>, piece: &mut [u8]) -> io::Result<Self> {
        let at = from.wide()?;
        if at == NO_EXTENT {
            return from.wide().map(Self::End);
        }
        let size = usize::try_from(from.number()?).unwrap_or(usize::MAX);
        let bytes = piece.get_mut(..size).ok_or_else(|| wrong("a piece that is too long"))?;
        from.0.read_exact(bytes)?;
        Ok(Self::Bytes(at, size))
    }
}

/// Reads them.
pub(super) struct LayerReader<'a> {
    from: Numbers<'a>,
    first: u32,
    count: u64,
    /// Directories that are open.
    depth: usize,
    /// Attributes that are still to be read.
    attributes: u16,
}

impl<'a> LayerReader<'a> {
    /// Reads what follows the first bytes, for owners that begin at `first`.
    pub(super) fn after_magic(from: Numbers<'a>, first: u32) -> Self {
        Self { from, first, count: 0, depth: 0, attributes: 0 }
    }

    /// The next item. `None`: it was the end, and the stream is whole.
    pub(super) fn item(&mut self) -> io::Result<Option<LayerItem>> {
        let [kind] = self.from.array()?;
        let kind = EntryKind::of(kind).ok_or_else(|| wrong("an entry of no known kind"))?;
        let is_between = self.depth == 0;
        match kind {
            EntryKind::End if is_between && self.count > 0 => {
                return match self.from.wide()? == self.count {
                    true => Ok(None),
                    false => Err(wrong("another number of entries than it says")),
                };
            }
            EntryKind::Up if !is_between => {
                self.depth = self.depth.saturating_sub(1);
                return Ok(Some(LayerItem::Up));
            }
            EntryKind::End | EntryKind::Up => {
                return Err(wrong("an end where nothing ends"));
            }
            _ => {}
        }
        let name = self.from.text(MAX_NAME)?;
        if is_between && (self.count > 0 || kind != EntryKind::Dir || !name.is_empty()) {
            return Err(wrong("no root at its head, two roots, or one that is not a directory"));
        }
        let leads_elsewhere = matches!(name.as_slice(), b"" | b"." | b"..")
            || name.iter().any(|byte| matches!(byte, 0 | b'/'));
        if !is_between && leads_elsewhere {
            return Err(wrong("a name that leads elsewhere"));
        }
        self.count = self.count.saturating_add(1);
        if self.count > MAX_ENTRIES {
            return Err(wrong("too many entries"));
        }
        Ok(Some(match kind {
            EntryKind::Dir => {
                self.depth = self.depth.saturating_add(1);
                if self.depth > MAX_DEPTH {
                    return Err(wrong("too many directories within each other"));
                }
                LayerItem::Dir(name)
            }
            EntryKind::File => LayerItem::File(name, self.from.number()?),
            EntryKind::Link => {
                let number = self.from.number()?;
                LayerItem::Link(name, number, self.from.text(MAX_TARGET)?)
            }
            EntryKind::Same => {
                let (number, [is_last]) = (self.from.number()?, self.from.array()?);
                LayerItem::Same(name, number, is_last != 0)
            }
            EntryKind::Whiteout => LayerItem::Whiteout(name),
            kind => LayerItem::Node(kind, name, self.from.number()?),
        }))
    }

    /// The next part of the file that was just named.
    pub(super) fn extent(&mut self, piece: &mut [u8]) -> io::Result<Extent> {
        Extent::read(&mut self.from, piece)
    }

    pub(super) fn dress(&mut self) -> io::Result<Dress> {
        let from = &mut self.from;
        let (mode, uid, gid) = (from.number()?, from.number()?, from.number()?);
        let seconds = from.array().map(i64::from_le_bytes)?;
        let nanos = from.number()?;
        self.attributes = from.short()?;
        if usize::from(self.attributes) > MAX_ATTRIBUTES {
            return Err(wrong("too many attributes"));
        }
        let (uid, gid) = (outside(uid, self.first)?, outside(gid, self.first)?);
        Ok(Dress { mode: mode & 0o7777, uid, gid, seconds, nanos })
    }

    /// The next attribute of what was just dressed.
    pub(super) fn attribute(&mut self) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
        let Some(left) = self.attributes.checked_sub(1) else { return Ok(None) };
        self.attributes = left;
        let (name, size) = self.from.attribute()?;
        Ok(Some((name, self.from.value(size)?)))
    }

    /// Reads what follows an item, and does nothing with it.
    pub(super) fn pass_over(&mut self, item: &LayerItem, piece: &mut [u8]) -> io::Result<()> {
        match item {
            LayerItem::Dir(_) | LayerItem::Same(..) | LayerItem::Whiteout(_) => return Ok(()),
            LayerItem::File(..) => while let Extent::Bytes(..) = self.extent(piece)? {},
            LayerItem::Up | LayerItem::Link(..) | LayerItem::Node(..) => {}
        }
        self.dress()?;
        while self.attribute()?.is_some() {}
        Ok(())
    }
}
