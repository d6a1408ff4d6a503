//! A stream, written into an empty layer.
//!
//! No name of it leads out of the layer: each is one name in a directory that was made here. Directories get their modes and
//! times when they end, so that nothing is changed by what follows.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chmodat, chownat, fstat,
    ftruncate, makedev, mkdirat, mknodat, openat, symlinkat, utimensat,
};
use rustix::io::pwrite;

use super::bounds::PIECE;
use super::level::{Identity, identity};
use super::linked::{LinkedFiles, unknown};
use super::numbers::Numbers;
use super::read::{Extent, LayerItem, LayerReader};
use super::{EntryKind, StreamForm, attributes, earlier};

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Writes a stream's files into `upper`, which is empty, for owners that begin at `first`.
///
/// # Errors
/// A stream that is cut off or not of this form; what the layer has no room for.
pub fn unpack(upper: &Path, first: u32, from: &mut dyn Read) -> io::Result<()> {
    let form = StreamForm::read(from)?;
    let from = Numbers(from);
    if form == StreamForm::Paths {
        return earlier::unpack(upper, first, from);
    }
    let dir = rustix::fs::open(upper, DIRECTORY, Mode::empty())?;
    let mut restoring = Restoring {
        from: LayerReader::after_magic(from, first),
        first,
        top: dir.try_clone()?,
        dir,
        above: Vec::new(),
        linked: None,
        piece: vec![0; PIECE],
    };
    while let Some(item) = restoring.from.item()? {
        restoring.item(item)?;
    }
    Ok(())
}

struct Restoring<'a> {
    from: LayerReader<'a>,
    first: u32,
    top: OwnedFd,
    /// The directory that is being filled.
    dir: OwnedFd,
    /// Those above it: it is left to no other one.
    above: Vec<Identity>,
    linked: Option<LinkedFiles>,
    piece: Vec<u8>,
}

impl Restoring<'_> {
    fn item(&mut self, item: LayerItem) -> io::Result<()> {
        match item {
            // The layer itself.
            LayerItem::Dir(name) if name.is_empty() => Ok(()),
            LayerItem::Dir(name) => {
                let name = self.name(&name)?;
                self.down(name)
            },
            LayerItem::Up => self.up(),
            LayerItem::File(name, number) => {
                let name = self.name(&name)?;
                self.bytes(name)?;
                self.made(EntryKind::File, name, number)
            }
            LayerItem::Link(name, number, target) => {
                let name = self.name(&name)?;
                symlinkat(OsStr::from_bytes(&target), &self.dir, name)?;
                self.made(EntryKind::Link, name, number)
            }
            LayerItem::Node(kind, name, number) => {
                let name = self.name(&name)?;
                let node = match kind {
                    EntryKind::Fifo => FileType::Fifo,
                    _ => FileType::Socket,
                };
                mknodat(&self.dir, name, node, Mode::RUSR | Mode::WUSR, 0)?;
                self.made(kind, name, number)
            }
            LayerItem::Same(name, number, is_last) => {
                let name = self.name(&name)?;
                let linked = self.linked.as_ref().ok_or_else(unknown)?;
                linked.give((number, is_last), &self.dir, name)
            }
            LayerItem::Whiteout(name) => {
                let name = self.name(&name)?;
                let node = FileType::CharacterDevice;
                Ok(mknodat(&self.dir, name, node, Mode::empty(), makedev(0, 0))?)
            }
        }
    }

    /// A name that is about to be made in this directory.
    fn name<'n>(&mut self, name: &'n [u8]) -> io::Result<&'n OsStr> {
        if let (true, Some(linked)) = (self.above.is_empty(), &mut self.linked) {
            linked.make_way(name)?;
        }
        Ok(OsStr::from_bytes(name))
    }

    fn down(&mut self, name: &OsStr) -> io::Result<()> {
        mkdirat(&self.dir, name, Mode::RWXU)?;
        let below = openat(&self.dir, name, DIRECTORY, Mode::empty())?;
        self.above.push(identity(&fstat(&self.dir)?));
        self.dir = below;
        Ok(())
    }

    fn up(&mut self) -> io::Result<()> {
        let above = match self.above.pop() {
            None => None,
            Some(known) => {
                let above = openat(&self.dir, "..", DIRECTORY, Mode::empty())?;
                match identity(&fstat(&above)?) == known {
                    true => Some(above),
                    false => return Err(io::Error::other("a directory was moved meanwhile")),
                }
            }
        };
        if above.is_none() {
            // Before the layer itself gets its time.
            self.linked = None;
        }
        self.dress(EntryKind::Dir, OsStr::new("."))?;
        if let Some(above) = above {
            self.dir = above;
        }
        Ok(())
    }

    /// What was just made, which has other names if it has a number.
    fn made(&mut self, kind: EntryKind, name: &OsStr, number: u32) -> io::Result<()> {
        if number > 0 {
            let linked = match self.linked.take() {
                Some(linked) => linked,
                None => LinkedFiles::new(self.top.try_clone()?)?,
            };
            self.linked.insert(linked).hold(number, &self.dir, name)?;
        }
        self.dress(kind, name)
    }

    fn bytes(&mut self, name: &OsStr) -> io::Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR)?;
        loop {
            let (at, size) = match self.from.extent(&mut self.piece)? {
                Extent::Bytes(at, size) => (at, size),
                Extent::End(size) => return Ok(ftruncate(&file, size)?),
            };
            let bytes = self.piece.get(..size).unwrap_or_default();
            let mut done = 0;
            while done < size {
                let offset = at.saturating_add(u64::try_from(done).unwrap_or(0));
                let wrote = pwrite(&file, bytes.get(done..).unwrap_or_default(), offset)?;
                if wrote == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                done = done.saturating_add(wrote);
            }
        }
    }

    /// Owner, attributes, mode and time, in this order: a change of the owner takes set-id bits and capabilities away.
    fn dress(&mut self, kind: EntryKind, name: &OsStr) -> io::Result<()> {
        let (dir, dress) = (&self.dir, self.from.dress()?);
        let (uid, gid) = (Uid::from_raw(dress.uid), Gid::from_raw(dress.gid));
        chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        let own = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
        while let Some(attribute) = self.from.attribute()? {
            attributes::write(&own, &[attribute], self.first)?;
        }
        if kind != EntryKind::Link {
            // No link is here: it was made by ourselves a moment ago.
            chmodat(dir, name, Mode::from_raw_mode(dress.mode), AtFlags::empty())?;
        }
        let time = Timespec { tv_sec: dress.seconds, tv_nsec: dress.nanos.into() };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}
