//! The files below an opened directory, by its descriptor: no link is followed on the way, and neither what is
//! mounted there nor a state directory is looked into. A share of the directory would not show them either.

use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, openat, openat2, statat};
use rustix::io::Errno;

use super::{HostHandle, deny_list, origin};
use crate::host::open_flags::{DIRECTORY, WITHIN};

/// Directories in each other. Each costs one open descriptor while it is listed.
const MAX_DEPTH: usize = 200;

/// Why a directory is not listed.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// More than asked for.
    #[error("more than {0} entries")]
    Many(usize),
    /// Directories in each other.
    #[error("directories in each other beyond {MAX_DEPTH}")]
    Deep,
    /// A directory in the tree cannot be opened or listed.
    #[error("{path:?} cannot be read")]
    Read {
        /// From the directory.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

struct ListWalk<'a> {
    left: usize,
    most: usize,
    /// The mount that the directory itself is reached by.
    mount: u64,
    visit: &'a mut dyn FnMut(&Path, bool) -> ControlFlow<()>,
}

impl HostHandle {
    /// Gives everything below this directory but directories by its relative path, in the order of the
    /// names, and whether it is a regular file, until `visit` breaks. Looks at `most` entries at most.
    ///
    /// # Errors
    /// Too many entries, or one that cannot be read.
    pub fn entries(
        &self,
        most: usize,
        visit: &mut dyn FnMut(&Path, bool) -> ControlFlow<()>,
    ) -> Result<(), ListError> {
        let top = openat(self, ".", DIRECTORY, Mode::empty());
        let top = top.map_err(|errno| unread(Path::new("."), errno.into()))?;
        let mount = origin::mount_of(&top).map_err(|source| unread(Path::new("."), source))?;
        ListWalk { left: most, most, mount, visit }.dir(&top, Path::new(""), 0).map(|_| ())
    }
}

impl ListWalk<'_> {
    fn dir(
        &mut self,
        dir: &OwnedFd,
        path: &Path,
        depth: usize,
    ) -> Result<ControlFlow<()>, ListError> {
        if depth > MAX_DEPTH {
            return Err(ListError::Deep);
        }
        for name in self.names(dir, path)? {
            let below = path.join(&name);
            // What went away meanwhile was not there.
            let Ok(found) = statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let Ok(mount) = origin::mount_at(dir, &name) else { continue };
            if mount != self.mount {
                continue;
            }
            let flow = match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => {
                    let inner = match openat2(dir, &name, DIRECTORY, Mode::empty(), WITHIN) {
                        // Mounted since.
                        Err(Errno::XDEV) => continue,
                        inner => inner.map_err(|errno| unread(&below, errno.into()))?,
                    };
                    if deny_list::is_state(&inner).map_err(|source| unread(&below, source))? {
                        continue;
                    }
                    self.dir(&inner, &below, depth + 1)?
                }
                kind => (self.visit)(&below, kind == FileType::RegularFile),
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn names(&mut self, dir: &OwnedFd, path: &Path) -> Result<Vec<OsString>, ListError> {
        let fault = |errno: rustix::io::Errno| unread(path, errno.into());
        let mut names = Vec::new();
        for entry in Dir::read_from(dir).map_err(fault)? {
            let name = entry.map_err(fault)?.file_name().to_bytes().to_vec();
            if matches!(name.as_slice(), b"." | b"..") {
                continue;
            }
            self.left = self.left.checked_sub(1).ok_or(ListError::Many(self.most))?;
            names.push(OsString::from_vec(name));
        }
        names.sort_unstable();
        Ok(names)
    }
}

fn unread(path: &Path, source: io::Error) -> ListError {
    ListError::Read { path: path.to_owned(), source }
}
