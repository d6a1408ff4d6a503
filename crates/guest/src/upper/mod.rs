//! What takes all writes of a sandbox, as a stream and back: every file, link, mode, owner, time and attribute, and what
//! was deleted of the layers below.
//!
//! ```text
//! stream:  MAGIC  entry*  Up head attributes  count                                  numbers little-endian
//! entry:   Dir name  entry*  Up head attributes        what is in a directory stands between the two
//!          File name names  head  extents  attributes
//!          Link name names  head  target  attributes
//!          Fifo | Socket  name names  head  attributes
//!          Same name number                            another name of the file with that number
//!          Whiteout name
//! ```
//! Owners are those inside: the first id of the sandbox's own is 0. Holes stay holes. A name is any bytes without NUL and
//! slash. Names are relative to the directory that they are in, so a tree is as large in the stream as it is by itself, however
//! deep it lies; what is held of it at either side is one directory's way up. Files with more than one name have numbers in the
//! order in which they come.
//!
//! The worker writes and reads it where the layer is the host's, a machine's init where it is the machine's. Whoever reads one
//! trusts nothing of it. Streams of before are read as well.

mod attributes;
mod first;
mod pack;
mod pass;
mod read;
mod unpack;
mod words;

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, chmodat, chownat, utimensat,
};

pub use pack::{measure, pack};
pub use pass::pass;
pub use unpack::unpack;

/// Ids of a sandbox's own, where its host gives it some.
pub const IDS: u32 = 65_536;

/// First bytes of a stream, with the version of its form.
const MAGIC: &[u8; 8] = b"cfdlyr02";
/// Bytes that are read and written at a time.
const PIECE: usize = 128 * 1024;
/// Whom the kernel shows for an id that a sandbox does not have.
pub const NOBODY: u32 = 65_534;
/// Ends the extents of a file; its size follows.
const NO_EXTENT: u64 = u64::MAX;

// Writer and reader have the same bounds: the kernel's, or what is said here.

/// Files, directories and links of one layer: a file system in memory of 16 GiB has as many inodes.
const MAX_ENTRIES: u64 = 4_000_000;
/// Directories below each other.
const MAX_DEPTH: usize = 1_000_000;
/// A name of a file, and of an attribute.
const MAX_NAME: usize = 255;
/// An attribute's value, and all names of a file's attributes.
const MAX_VALUE: usize = 64 * 1024;
/// A link's target.
const MAX_TARGET: usize = 4_096;

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
    /// The end of a directory.
    Up,
}

impl EntryKind {
    const ALL: [Self; 9] = [
        Self::End,
        Self::Dir,
        Self::File,
        Self::Link,
        Self::Same,
        Self::Fifo,
        Self::Socket,
        Self::Whiteout,
        Self::Up,
    ];

    fn byte(self) -> u8 {
        let at = Self::ALL.iter().position(|kind| *kind == self);
        at.and_then(|at| u8::try_from(at).ok()).unwrap_or(0)
    }

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// What every file has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Head {
    mode: u32,
    uid: u32,
    gid: u32,
    seconds: i64,
    nanos: u32,
}

/// Gives it its owner.
fn own(dir: &OwnedFd, name: &OsStr, head: &Head) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(head.uid), Gid::from_raw(head.gid));
    Ok(chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Gives it its mode and times, once it has its attributes.
fn close(dir: &OwnedFd, name: &OsStr, kind: EntryKind, head: &Head) -> io::Result<()> {
    if kind != EntryKind::Link {
        // No link is here: it was made by ourselves a moment ago.
        chmodat(dir, name, Mode::from_raw_mode(head.mode), AtFlags::empty())?;
    }
    let time = Timespec { tv_sec: head.seconds, tv_nsec: head.nanos.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// A directory or file, as the kernel knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct NodeId {
    device: u64,
    inode: u64,
}

fn node_id(found: &Stat) -> NodeId {
    NodeId { device: found.st_dev, inode: found.st_ino }
}

/// For calls that take a path.
fn path_of(dir: &OwnedFd, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)
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
