//! A stream, entry by entry. Everything that a text of it can say is checked here, whoever wrote it and whatever is done with
//! it.

use std::io::{self, Read};

use super::words::{Extent, Words};
use super::{EntryKind, Head, MAX_DEPTH, MAX_ENTRIES, MAX_NAME, MAX_TARGET, wrong};

/// What an entry says before its bytes.
pub(super) struct LayerEntry {
    pub kind: EntryKind,
    /// In the directory that is open; empty: it is left.
    pub name: Vec<u8>,
    /// How many names it has.
    pub names: u32,
    pub head: Head,
    /// Of a symbolic link, any bytes.
    pub target: Vec<u8>,
    /// Of another name: which file's.
    pub number: u32,
}

/// Reads a layer's stream entry by entry, and checks names, depth and counts.
pub(super) struct EntryReader<'a> {
    words: Words<'a>,
    count: u64,
    depth: usize,
    /// Files with more than one name, so far.
    shared: u32,
    /// Attributes of the last entry that are to be read.
    attributes: u16,
    is_over: bool,
}

impl<'a> EntryReader<'a> {
    /// Begins behind the stream's first bytes, for owners that begin at `first`.
    pub fn begin(from: &'a mut dyn Read, first: u32) -> Self {
        let words = Words::of(from, first);
        Self { words, count: 1, depth: 0, shared: 0, attributes: 0, is_over: false }
    }

    /// The next entry, once the last one's extents and attributes were read. `None`: the stream was whole.
    pub fn entry(&mut self) -> io::Result<Option<LayerEntry>> {
        if self.is_over {
            return match self.words.wide()? == self.count {
                true => Ok(None),
                false => Err(wrong("another number of entries than it says")),
            };
        }
        let [kind] = self.words.array()?;
        let kind = EntryKind::of(kind).filter(|kind| *kind != EntryKind::End);
        let kind = kind.ok_or_else(|| wrong("an entry of no known kind"))?;
        let mut entry = LayerEntry {
            kind,
            name: Vec::new(),
            names: 1,
            head: Head::default(),
            target: Vec::new(),
            number: 0,
        };
        if kind == EntryKind::Up {
            entry.head = self.words.head()?;
            self.attributes = self.words.short()?;
            self.is_over = self.depth == 0;
            self.depth = self.depth.saturating_sub(1);
            return Ok(Some(entry));
        }
        self.count = self.count.saturating_add(1);
        if self.count > MAX_ENTRIES {
            return Err(wrong("too many entries"));
        }
        entry.name = self.name()?;
        match kind {
            EntryKind::Dir => {
                self.depth = self.depth.saturating_add(1);
                if self.depth > MAX_DEPTH {
                    return Err(wrong("too many directories below each other"));
                }
            }
            EntryKind::Same => {
                entry.number = self.words.number()?;
                if entry.number >= self.shared {
                    return Err(wrong("another name of a file that did not come"));
                }
            }
            EntryKind::Whiteout => {}
            _ => {
                entry.names = self.words.number()?;
                entry.head = self.words.head()?;
                if kind == EntryKind::Link {
                    entry.target = self.words.text(MAX_TARGET)?;
                }
                if entry.names > 1 {
                    self.shared = self.shared.saturating_add(1);
                }
                if kind != EntryKind::File {
                    self.attributes = self.words.short()?;
                }
            }
        }
        Ok(Some(entry))
    }

    /// The next part of the file that was just named.
    pub fn extent(&mut self, piece: &mut [u8]) -> io::Result<Extent> {
        let extent = self.words.extent(piece)?;
        if matches!(extent, Extent::End(_)) {
            self.attributes = self.words.short()?;
        }
        Ok(extent)
    }

    /// The next attribute of the last entry, behind its extents.
    pub fn attribute(&mut self) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
        let Some(left) = self.attributes.checked_sub(1) else { return Ok(None) };
        self.attributes = left;
        let (name, size) = self.words.attribute()?;
        Ok(Some((name, self.words.value(size)?)))
    }

    fn name(&mut self) -> io::Result<Vec<u8>> {
        let name = self.words.text(MAX_NAME)?;
        let leads = matches!(name.as_slice(), b"" | b"." | b"..");
        match leads || name.contains(&0) || name.contains(&b'/') {
            true => Err(wrong("a name that leads elsewhere")),
            false => Ok(name),
        }
    }
}
