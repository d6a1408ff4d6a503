//! Files with more than one name while a stream is unpacked: each has a name in a directory of ours until its last one comes.
//! So the kernel holds them, and no memory of ours. A name that waits is one that a later one replaces: never are there more
//! names in the layer than it had.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, RenameFlags, linkat, mkdirat, openat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::wrong;

/// Its name, with as many of these letters as it takes to be no other's.
const NAME: &str = ".cofferdam-names";

/// The directory. It is removed when this is dropped.
pub(super) struct LinkedFiles {
    top: OwnedFd,
    dir: OwnedFd,
    name: String,
}

impl LinkedFiles {
    /// Makes it at the top of a layer.
    pub(super) fn new(top: OwnedFd) -> io::Result<Self> {
        let mut name = NAME.to_owned();
        loop {
            match mkdirat(&top, &name, Mode::RWXU) {
                Err(Errno::EXIST) => name.push('-'),
                made => break made?,
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(&top, &name, flags, Mode::empty())?;
        Ok(Self { top, dir, name })
    }

    /// Leaves a name at the top to the layer, if it is this one's.
    pub(super) fn make_way(&mut self, name: &[u8]) -> io::Result<()> {
        while self.name.as_bytes() == name {
            let mut other = format!("{}-", self.name);
            loop {
                let flags = RenameFlags::NOREPLACE;
                match renameat_with(&self.top, &self.name, &self.top, &other, flags) {
                    Err(Errno::EXIST) => other.push('-'),
                    moved => break moved?,
                }
            }
            self.name = other;
        }
        Ok(())
    }

    /// Holds a file that was just made.
    pub(super) fn hold(&self, number: u32, dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
        Ok(linkat(dir, name, &self.dir, number.to_string(), AtFlags::empty())?)
    }

    /// Gives a file that is held another name, which may be its last.
    pub(super) fn give(
        &self,
        (number, is_last): (u32, bool),
        dir: &OwnedFd,
        name: &OsStr,
    ) -> io::Result<()> {
        let held = number.to_string();
        let given = match is_last {
            true => renameat_with(&self.dir, held, dir, name, RenameFlags::NOREPLACE),
            false => linkat(&self.dir, held, dir, name, AtFlags::empty()),
        };
        match given {
            Err(Errno::NOENT) => Err(unknown()),
            given => Ok(given?),
        }
    }

    fn clear(&self) -> io::Result<()> {
        for entry in Dir::read_from(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                unlinkat(&self.dir, OsStr::from_bytes(name), AtFlags::empty())?;
            }
        }
        Ok(unlinkat(&self.top, &self.name, AtFlags::REMOVEDIR)?)
    }
}

pub(super) fn unknown() -> io::Error {
    wrong("another name of a file that did not come before")
}

impl Drop for LinkedFiles {
    fn drop(&mut self) {
        // A layer that is not whole is not used.
        let _ = self.clear();
    }
}
