//! What takes all writes of a sandbox, as a stream and back: every file, link, mode, owner, time and attribute, and what
//! was deleted of the layers below.
//!
//! ```text
//! stream: MAGIC  entry*  END count
//! entry:  kind  path  mode uid gid  mtime  attributes  [ extents | target ]      numbers little-endian
//! ```
//! Owners are those inside: the first id of the sandbox's own is 0. Holes stay holes. A name is any bytes without NUL and
//! slash. Entries of a directory follow it; a hard link follows the file that it is.
//!
//! The worker writes and reads it where the layer is the host's, a machine's init where it is the machine's. Whoever reads one
//! trusts nothing of it.

mod attributes;
mod pack;
mod pass;
mod read;
mod unpack;

use std::io;

pub use pack::pack;
pub use pass::pass;
pub use unpack::unpack;

/// Ids of a sandbox's own, where its host gives it some.
pub const IDS: u32 = 65_536;

/// First bytes of a stream, with the version of its form.
const MAGIC: &[u8; 8] = b"cfdlyr01";
/// Bytes that are read and written at a time.
const PIECE: usize = 128 * 1024;
/// Files, directories and links of one layer: a file system in memory of 16 GiB has as many inodes.
const MAX_ENTRIES: u64 = 4_000_000;
/// Bytes of all attributes together. Those of directories are in memory until the last entry was written.
const MAX_ATTRIBUTE_BYTES: usize = 64 * 1024 * 1024;
/// Whom the kernel shows for an id that a sandbox does not have.
pub const NOBODY: u32 = 65_534;
/// Ends the extents of a file; its size follows.
const NO_EXTENT: u64 = u64::MAX;
/// An attribute's name and value, as the kernel bounds them.
const MAX_NAME: usize = 255;
const MAX_VALUE: usize = 64 * 1024;
/// A path or a target, as the kernel bounds them.
const MAX_PATH: usize = 4_096;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    End,
    Dir,
    File,
    /// A symbolic link.
    Link,
    /// Another name of a file that came before.
    Same,
    Fifo,
    Socket,
    /// What the layers below have under this name is deleted.
    Whiteout,
}

impl EntryKind {
    const ALL: [Self; 8] = [
        Self::End,
        Self::Dir,
        Self::File,
        Self::Link,
        Self::Same,
        Self::Fifo,
        Self::Socket,
        Self::Whiteout,
    ];

    fn byte(self) -> u8 {
        let at = Self::ALL.iter().position(|kind| *kind == self);
        at.and_then(|at| u8::try_from(at).ok()).unwrap_or(0)
    }

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// What every entry has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Head {
    mode: u32,
    uid: u32,
    gid: u32,
    seconds: i64,
    nanos: u32,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// An id as the sandbox sees it, of ids that begin at `first`; 0 is the host's own ids.
fn inside(id: u32, first: u32) -> u32 {
    if first == 0 {
        return id;
    }
    id.checked_sub(first).filter(|id| *id < IDS).unwrap_or(NOBODY)
}

/// The same back.
fn outside(id: u32, first: u32) -> io::Result<u32> {
    // It means nobody's to the kernel: a change to it is none.
    if id == u32::MAX {
        return Err(wrong("an owner without a number"));
    }
    if first == 0 {
        return Ok(id);
    }
    let known = Some(id).filter(|id| *id < IDS);
    let found = known.and_then(|id| id.checked_add(first));
    found.ok_or_else(|| wrong(&format!("the owner {id}, whom no sandbox of this class can have")))
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the stream has {what}"))
}
