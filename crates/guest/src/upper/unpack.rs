//! A stream, written into an empty layer.
//!
//! It is walked as it was written: one directory is open at a time, and the way up is checked to be the one that led down. No name of it
//! leads out of the layer. A directory gets its owner, attributes, mode and times when it is left.

use std::ffi::OsStr;
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, fstat, linkat, makedev, mkdirat, mknodat, openat,
    renameat_with, symlinkat, unlinkat,
};

use super::read::{EntryReader, LayerEntry};
use super::words::fill;
use super::{
    EntryKind, Head, MAGIC, NodeId, PIECE, attributes, close, first, node_id, own, path_of, wrong,
};

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Writes a stream's files into `upper`, which is empty, for owners that begin at `first`.
///
/// # Errors
/// A stream that is cut off or not of this form; what the layer has no room for.
pub fn unpack(upper: &Path, first: u32, from: &mut dyn Read) -> io::Result<()> {
    let mut magic = [0; MAGIC.len()];
    from.read_exact(&mut magic)?;
    match &magic {
        MAGIC => LayerUnpacker::of(upper, first)?.all(from),
        first::MAGIC => first::unpack(upper, first, from),
        _ => Err(wrong("another form, or another version of it")),
    }
}

struct LayerUnpacker {
    first: u32,
    top: OwnedFd,
    /// The directory that is open.
    at: OwnedFd,
    /// Those above it.
    above: Vec<NodeId>,
    piece: Vec<u8>,
    /// Where files with more than one name lie by their numbers until the last one came.
    links: Option<LinkStore>,
    shared: u32,
}

impl LayerUnpacker {
    fn of(upper: &Path, first: u32) -> io::Result<Self> {
        let top = rustix::fs::open(upper, DIRECTORY, Mode::empty())?;
        let (at, above, piece) = (top.try_clone()?, Vec::new(), vec![0; PIECE]);
        Ok(Self { first, top, at, above, piece, links: None, shared: 0 })
    }

    fn all(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut entries = EntryReader::begin(from, self.first);
        while let Some(entry) = entries.entry()? {
            self.entry(&entry, &mut entries)?;
        }
        Ok(())
    }

    /// Writes one entry, with the bytes that follow it.
    fn entry(&mut self, entry: &LayerEntry, from: &mut EntryReader<'_>) -> io::Result<()> {
        let name = OsStr::from_bytes(&entry.name);
        let node = |kind| mknodat(&self.at, name, kind, Mode::RUSR | Mode::WUSR, 0);
        match entry.kind {
            EntryKind::Dir => {
                let place = place(&self.at)?;
                mkdirat(&self.at, name, Mode::RWXU)?;
                self.at = openat(&self.at, name, DIRECTORY, Mode::empty())?;
                self.above.push(place);
                return Ok(());
            }
            EntryKind::Up => return self.up(&entry.head, from),
            EntryKind::Whiteout => {
                let kind = FileType::CharacterDevice;
                return Ok(mknodat(&self.at, name, kind, Mode::empty(), makedev(0, 0))?);
            }
            EntryKind::Same => return self.same(name, entry.number),
            EntryKind::File => {
                fill(&self.at, name, &mut self.piece, |piece| from.extent(piece))?;
            }
            EntryKind::Link => symlinkat(OsStr::from_bytes(&entry.target), &self.at, name)?,
            EntryKind::Fifo => node(FileType::Fifo)?,
            EntryKind::Socket => node(FileType::Socket)?,
            EntryKind::End => return Err(wrong("an end within a directory")),
        }
        own(&self.at, name, &entry.head)?;
        self.attributes(name, from)?;
        close(&self.at, name, entry.kind, &entry.head)?;
        if entry.names > 1 {
            self.share(name, entry.names)?;
        }
        Ok(())
    }

    /// Leaves a directory.
    fn up(&mut self, head: &Head, from: &mut EntryReader<'_>) -> io::Result<()> {
        let above = self.above.pop();
        if above.is_none() {
            self.clear()?;
        }
        // Before its mode may close it.
        let next = above.map(|above| self.parent(above)).transpose()?;
        let this = OsStr::new(".");
        own(&self.at, this, head)?;
        self.attributes(this, from)?;
        close(&self.at, this, EntryKind::Dir, head)?;
        if let Some(next) = next {
            self.at = next;
        }
        Ok(())
    }

    fn parent(&self, above: NodeId) -> io::Result<OwnedFd> {
        let parent = openat(&self.at, "..", DIRECTORY, Mode::empty())?;
        match place(&parent)? == above {
            true => Ok(parent),
            false => Err(io::Error::other("a directory was moved while the layer was filled")),
        }
    }

    fn attributes(&self, name: &OsStr, from: &mut EntryReader<'_>) -> io::Result<()> {
        while let Some((attribute, value)) = from.attribute()? {
            attributes::write(&path_of(&self.at, name), &attribute, value, self.first)?;
        }
        Ok(())
    }

    /// A file of which other names are to come.
    fn share(&mut self, name: &OsStr, names: u32) -> io::Result<()> {
        let number = self.shared;
        self.shared = self.shared.saturating_add(1);
        if self.links.is_none() {
            self.links = Some(LinkStore::make(&self.top)?);
        }
        let Some(links) = &self.links else { return Ok(()) };
        linkat(&self.at, name, &links.dir, number.to_string(), AtFlags::empty())?;
        links.set_due(number, names.saturating_sub(1))
    }

    fn same(&mut self, name: &OsStr, number: u32) -> io::Result<()> {
        let Some(links) = &self.links else { return Err(wrong(TOO_MANY_NAMES)) };
        let due = links.due(number)?.checked_sub(1).ok_or_else(|| wrong(TOO_MANY_NAMES))?;
        links.set_due(number, due)?;
        if due > 0 {
            let (from, to) = (&links.dir, &self.at);
            return Ok(linkat(from, number.to_string(), to, name, AtFlags::empty())?);
        }
        // The last one takes the place in the store, so that it never has more names than it had.
        let flags = RenameFlags::NOREPLACE;
        Ok(renameat_with(&links.dir, number.to_string(), &self.at, name, flags)?)
    }

    /// The files stay; their numbers go.
    fn clear(&mut self) -> io::Result<()> {
        let Some(links) = self.links.take() else { return Ok(()) };
        for number in 0..self.shared {
            if links.due(number)? > 0 {
                unlinkat(&links.dir, number.to_string(), AtFlags::empty())?;
            }
        }
        let LinkStore { name, dir, .. } = links;
        drop(dir);
        Ok(unlinkat(&self.top, &*name, AtFlags::REMOVEDIR)?)
    }
}

const TOO_MANY_NAMES: &str = "more names of a file than it says";

/// In the layer's root, under a name that no stream can know: files by their numbers. How many names are to come of each is in a
/// file of the layer as well, so that nothing here grows with the stream.
struct LinkStore {
    name: String,
    dir: OwnedFd,
    /// A number of four bytes for each file; it has no name.
    due: File,
}

impl LinkStore {
    fn make(top: &OwnedFd) -> io::Result<Self> {
        let name = format!(".cofferdam-{:016x}", RandomState::new().build_hasher().finish());
        mkdirat(top, &*name, Mode::RWXU)?;
        let dir = openat(top, &*name, DIRECTORY, Mode::empty())?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let due = File::from(openat(&dir, DUE, flags, Mode::RUSR | Mode::WUSR)?);
        unlinkat(&dir, DUE, AtFlags::empty())?;
        Ok(Self { name, dir, due })
    }

    fn set_due(&self, number: u32, due: u32) -> io::Result<()> {
        self.due.write_all_at(&due.to_le_bytes(), u64::from(number) * DUE_BYTES)
    }

    fn due(&self, number: u32) -> io::Result<u32> {
        let mut due = [0; 4];
        self.due.read_exact_at(&mut due, u64::from(number) * DUE_BYTES)?;
        Ok(u32::from_le_bytes(due))
    }
}

const DUE: &str = "due";
const DUE_BYTES: u64 = 4;

fn place(dir: &OwnedFd) -> io::Result<NodeId> {
    Ok(node_id(&fstat(dir)?))
}
