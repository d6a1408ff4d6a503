//! A read-only file system whose files lie elsewhere: the metadata of an EROFS image, made from
//! trees, and the places of the host's files in it.
//!
//! ```text
//! block 0            super block at 1,024
//! block 1 ...        inodes of 64 bytes; number 0 is not used, number 1 is the root's
//! then               directories
//! then               links and files, each from a block of its own: only their places are kept
//! ```
//! The format is the kernel's `erofs_fs.h`; only its plainest forms are written: extended inodes,
//! flat data, no compression, no attributes.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::sync::OnceLock;

use sha2::{Digest as _, Sha256};

use super::tree::{self, Content, Node, Source};

/// The page size of every machine here.
pub(super) const BLOCK: u64 = 4_096;
const BLOCK_BITS: u8 = 12;
const MAGIC: u32 = 0xE0F5_E1E2;
const SUPER_AT: usize = 1_024;
/// Bytes of an inode, and of the unit in which they are numbered.
const INODE: u64 = 64;
const SLOT: u64 = 32;
const META_BLOCK: u64 = 1;
/// The number of the root: 16 bits, so it comes first.
const ROOT: u64 = 2;
/// Bytes of a directory's entry besides its name.
const ENTRY: usize = 12;
const IS_DIRECTORY: u8 = 2;

/// An EROFS image whose files are read from the host on demand.
#[derive(Debug)]
pub(super) struct Image {
    /// From the first block on.
    meta: Vec<u8>,
    /// What follows, in the order of the places.
    extents: Vec<Extent>,
    /// All of it, in blocks.
    blocks: u64,
    /// Set by the first call of [`Image::digest`].
    digest: OnceLock<[u8; 32]>,
}

/// Bytes behind the metadata.
#[derive(Debug)]
struct Extent {
    /// Number of its first block, each of 4,096 bytes.
    start: u64,
    length: u64,
    data: FileData,
}

#[derive(Debug)]
enum FileData {
    Bytes(Vec<u8>),
    File(Source),
}

/// Where a read goes.
pub(super) enum Piece<'a> {
    Bytes(&'a [u8]),
    /// A file and the offset in it.
    File(&'a Source, u64),
    Zeros,
}

impl Image {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.blocks * BLOCK
    }

    /// What lies at an offset, and how many of the wanted bytes that answers, at least one.
    pub fn at(&self, offset: u64, wanted: u64) -> (Piece<'_>, u64) {
        let meta = wide(self.meta.len());
        if offset < meta {
            let count = wanted.min(meta - offset);
            let from = narrow(offset);
            let bytes = self.meta.get(from..from + narrow(count)).unwrap_or_default();
            return (Piece::Bytes(bytes), count);
        }
        let next = self.extents.partition_point(|extent| extent.start * BLOCK <= offset);
        let until = self.extents.get(next).map_or(u64::MAX, |extent| extent.start * BLOCK);
        let gap = || (Piece::Zeros, wanted.min(until - offset));
        let Some(extent) = next.checked_sub(1).and_then(|last| self.extents.get(last)) else {
            return gap();
        };
        let inside = offset - extent.start * BLOCK;
        if inside >= extent.length {
            return gap();
        }
        let count = wanted.min(extent.length - inside);
        match &extent.data {
            FileData::File(source) => (Piece::File(source, inside), count),
            FileData::Bytes(bytes) => {
                let from = narrow(inside);
                let part = bytes.get(from..from + narrow(count)).unwrap_or_default();
                (Piece::Bytes(part), count)
            }
        }
    }

    /// What it shows, in short: all that a kernel may have read of it. Of a file its path, size and time.
    pub fn digest(&self) -> &[u8; 32] {
        self.digest.get_or_init(|| {
            let mut digest = Sha256::new_with_prefix(wide(self.meta.len()).to_le_bytes());
            digest.update(&self.meta);
            for Extent { start, length, data } in &self.extents {
                digest.update(start.to_le_bytes());
                digest.update(length.to_le_bytes());
                match data {
                    FileData::Bytes(bytes) => digest.update(bytes),
                    FileData::File(source) => source.mark(&mut digest),
                }
            }
            digest.finalize().into()
        })
    }

    /// The image of a tree.
    pub fn of(root: Node) -> io::Result<Self> {
        Builder::default().build(root)
    }
}

/// A node in its place.
struct InodeEntry {
    node: Node,
    /// The inode's number in slots.
    nid: u64,
    parent: u64,
    /// Names, numbers and kinds of a directory's entries, sorted.
    entries: Vec<(Vec<u8>, u64, u8)>,
}

#[derive(Default)]
struct Builder {
    numbered: Vec<InodeEntry>,
    directories: Vec<u8>,
    extents: Vec<Extent>,
}

impl Builder {
    fn build(mut self, root: Node) -> io::Result<Image> {
        self.number(root);
        let inodes = wide(self.numbered.len()) * INODE + ROOT * SLOT;
        let first_directory = META_BLOCK + inodes.div_ceil(BLOCK);
        let mut places = Vec::with_capacity(self.numbered.len());
        for one in &self.numbered {
            let block = first_directory + wide(self.directories.len()) / BLOCK;
            let size = match &one.node.content {
                Content::Directory(_) => {
                    let written = directory(one);
                    let size = wide(written.len());
                    self.directories.extend_from_slice(&written);
                    let whole = self.directories.len().next_multiple_of(narrow(BLOCK));
                    self.directories.resize(whole, 0);
                    size
                }
                _ => 0,
            };
            places.push((block, size));
        }
        let mut next = first_directory + wide(self.directories.len()) / BLOCK;
        let mut meta = vec![0; narrow(META_BLOCK * BLOCK + ROOT * SLOT)];
        for (one, (block, size)) in self.numbered.into_iter().zip(places) {
            let InodeEntry { node, .. } = one;
            let (_, kind) = node.kind();
            let Node { mode, uid, gid, mtime, nanos, content } = node;
            let (block, size) = match content {
                Content::Directory(_) => (block, size),
                Content::Empty => (0, 0),
                Content::Link(to) => {
                    place(&mut self.extents, &mut next, wide(to.len()), FileData::Bytes(to))
                }
                Content::File(source) => {
                    place(&mut self.extents, &mut next, source.size, FileData::File(source))
                }
            };
            Inode { kind, mode, uid, gid, mtime, nanos, block, size }.write(&mut meta)?;
        }
        meta.resize(meta.len().next_multiple_of(narrow(BLOCK)), 0);
        meta.append(&mut self.directories);
        let blocks = next;
        super_block(&mut meta, blocks, inodes / INODE)?;
        Ok(Image { meta, extents: self.extents, blocks, digest: OnceLock::new() })
    }

    /// Gives every node its number, level by level, and every directory those of its entries.
    fn number(&mut self, root: Node) {
        let mut open = VecDeque::from([(root, ROOT)]);
        let mut free = ROOT + INODE / SLOT;
        let mut nid = ROOT;
        while let Some((mut node, parent)) = open.pop_front() {
            let mut entries = Vec::new();
            if let Content::Directory(below) = &mut node.content {
                for (name, inner) in std::mem::take(below) {
                    entries.push((name_of(&name), free, inner.kind().0));
                    free += INODE / SLOT;
                    open.push_back((inner, nid));
                }
            }
            self.numbered.push(InodeEntry { node, nid, parent, entries });
            nid += INODE / SLOT;
        }
    }
}

fn name_of(name: &OsString) -> Vec<u8> {
    tree::bytes(name).to_vec()
}

/// A place behind everything else.
fn place(extents: &mut Vec<Extent>, next: &mut u64, length: u64, data: FileData) -> (u64, u64) {
    if length == 0 {
        return (0, 0);
    }
    let start = *next;
    *next += length.div_ceil(BLOCK);
    extents.push(Extent { start, length, data });
    (start, length)
}

/// The blocks of a directory: in each the entries, then their names. Its last block ends with the last
/// name.
fn directory(one: &InodeEntry) -> Vec<u8> {
    let mut entries = one.entries.clone();
    entries.push((b".".to_vec(), one.nid, IS_DIRECTORY));
    entries.push((b"..".to_vec(), one.parent, IS_DIRECTORY));
    entries.sort_unstable();
    let mut out = Vec::new();
    let mut rest = entries.as_slice();
    while !rest.is_empty() {
        let mut used = 0;
        let fits = rest.iter().take_while(|(name, ..)| {
            used += ENTRY + name.len();
            used <= narrow(BLOCK)
        });
        let (now, later) = rest.split_at(fits.count());
        out.resize(out.len().next_multiple_of(narrow(BLOCK)), 0);
        let mut name_at = ENTRY * now.len();
        for (name, nid, kind) in now {
            out.extend_from_slice(&nid.to_le_bytes());
            out.extend_from_slice(&u16::try_from(name_at).unwrap_or(0).to_le_bytes());
            out.extend_from_slice(&[*kind, 0]);
            name_at += name.len();
        }
        now.iter().for_each(|(name, ..)| out.extend_from_slice(name));
        rest = later;
    }
    out
}

/// What an image says of a node.
struct Inode {
    kind: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    /// Seconds and nanoseconds of the last change.
    mtime: u64,
    nanos: u32,
    /// Number of the first block of its data.
    block: u64,
    /// Bytes of its data.
    size: u64,
}

impl Inode {
    /// Writes it behind the others.
    fn write(&self, meta: &mut Vec<u8>) -> io::Result<()> {
        let Self { kind, mode, uid, gid, mtime, nanos, block, size } = *self;
        let number = wide(meta.len()) / INODE;
        // Version 1, extended, with flat data.
        meta.extend_from_slice(&1_u16.to_le_bytes());
        meta.extend_from_slice(&0_u16.to_le_bytes());
        meta.extend_from_slice(
            &u16::try_from(kind | mode).map_err(io::Error::other)?.to_le_bytes(),
        );
        meta.extend_from_slice(&0_u16.to_le_bytes());
        meta.extend_from_slice(&size.to_le_bytes());
        meta.extend_from_slice(&u32::try_from(block).map_err(io::Error::other)?.to_le_bytes());
        meta.extend_from_slice(&u32::try_from(number).map_err(io::Error::other)?.to_le_bytes());
        meta.extend_from_slice(&uid.to_le_bytes());
        meta.extend_from_slice(&gid.to_le_bytes());
        meta.extend_from_slice(&mtime.to_le_bytes());
        meta.extend_from_slice(&nanos.to_le_bytes());
        meta.extend_from_slice(&1_u32.to_le_bytes());
        meta.extend_from_slice(&[0; 16]);
        Ok(())
    }
}

fn super_block(meta: &mut [u8], blocks: u64, inodes: u64) -> io::Result<()> {
    let mut head = Vec::with_capacity(128);
    head.extend_from_slice(&MAGIC.to_le_bytes());
    // No sum, no compatible feature.
    head.extend_from_slice(&[0; 8]);
    head.extend_from_slice(&[BLOCK_BITS, 0]);
    head.extend_from_slice(&u16::try_from(ROOT).unwrap_or(0).to_le_bytes());
    head.extend_from_slice(&inodes.to_le_bytes());
    // Times.
    head.extend_from_slice(&[0; 12]);
    head.extend_from_slice(&u32::try_from(blocks).map_err(io::Error::other)?.to_le_bytes());
    head.extend_from_slice(&u32::try_from(META_BLOCK).unwrap_or(0).to_le_bytes());
    // Attributes, identity, name, features: none.
    head.resize(128, 0);
    let place = meta.get_mut(SUPER_AT..SUPER_AT + head.len());
    place.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(&head);
    Ok(())
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn narrow(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
