//! What both forms of a stream are made of: numbers, texts, heads and parts of files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{Mode, OFlags, openat};

use super::{Head, MAX_NAME, MAX_VALUE, NO_EXTENT, attributes, outside, wrong};

/// A part of a file, or its end.
pub(super) enum Extent {
    /// So many bytes from this offset on.
    Bytes(u64, usize),
    /// The file's size.
    End(u64),
}

/// Reads them, for owners that begin at `first`.
pub(super) struct Words<'a> {
    from: &'a mut dyn Read,
    first: u32,
}

impl<'a> Words<'a> {
    pub fn of(from: &'a mut dyn Read, first: u32) -> Self {
        Self { from, first }
    }

    pub fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub fn short(&mut self) -> io::Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn number(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn wide(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A text of any bytes with its length before it.
    pub fn text(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let size = self.short()?;
        self.some(usize::from(size), most)
    }

    /// What a file has besides its attributes.
    pub fn head(&mut self) -> io::Result<Head> {
        let (mode, uid, gid) = (self.number()?, self.number()?, self.number()?);
        let seconds = self.array().map(i64::from_le_bytes)?;
        let nanos = self.number()?;
        let (uid, gid) = (outside(uid, self.first)?, outside(gid, self.first)?);
        Ok(Head { mode: mode & 0o7777, uid, gid, seconds, nanos })
    }

    /// An attribute's name, and the length of its value, which follows.
    pub fn attribute(&mut self) -> io::Result<(Vec<u8>, usize)> {
        let name = self.text(MAX_NAME)?;
        attributes::check(&name)?;
        Ok((name, usize::try_from(self.number()?).unwrap_or(usize::MAX)))
    }

    /// The value of the attribute read last: `size` bytes, at most 64 KiB.
    pub fn value(&mut self, size: usize) -> io::Result<Vec<u8>> {
        self.some(size, MAX_VALUE)
    }

    /// The next part of a file.
    pub fn extent(&mut self, piece: &mut [u8]) -> io::Result<Extent> {
        let at = self.wide()?;
        if at == NO_EXTENT {
            return self.wide().map(Extent::End);
        }
        let size = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        let bytes = piece.get_mut(..size).ok_or_else(|| wrong("a piece that is too long"))?;
        self.from.read_exact(bytes)?;
        Ok(Extent::Bytes(at, size))
    }

    fn some(&mut self, size: usize, most: usize) -> io::Result<Vec<u8>> {
        if size > most {
            return Err(wrong("a longer text than there can be"));
        }
        let mut bytes = vec![0; size];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Makes a file of the parts that `next` gives; what lies between them are holes.
pub(super) fn fill(
    dir: &OwnedFd,
    name: &OsStr,
    piece: &mut [u8],
    mut next: impl FnMut(&mut [u8]) -> io::Result<Extent>,
) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = File::from(openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
    loop {
        match next(piece)? {
            Extent::Bytes(at, size) => {
                file.write_all_at(piece.get(..size).unwrap_or_default(), at)?;
            }
            Extent::End(size) => return file.set_len(size),
        }
    }
}
