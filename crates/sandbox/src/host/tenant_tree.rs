//! The files of a tenant's tree, as this host reads them.
//!
//! Any name in it may be a link, and what a sandbox runs may change it while it is read. So the kernel resolves each directory
//! below the top without following anything, and what lies in one is named by its descriptor and one name.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, lgetxattr, openat, openat2, readlinkat, statat,
};
use rustix::io::Errno;

use super::open_flags::{DIRECTORY, WITHIN};

/// A tree that a tenant wrote, to be read. It cannot be joined to.
#[derive(Debug)]
pub(crate) struct TenantTree(OwnedFd);

/// A directory of it.
#[derive(Debug)]
pub(crate) struct TenantDir(OwnedFd);

impl TenantTree {
    pub(crate) fn open(top: &Path) -> io::Result<Self> {
        Ok(Self(openat(CWD, top, DIRECTORY, Mode::empty())?))
    }

    /// A directory below it, no link leading there; the top has an empty path.
    pub(crate) fn dir(&self, path: &Path) -> io::Result<TenantDir> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(TenantDir(openat2(&self.0, path, DIRECTORY, Mode::empty(), WITHIN)?))
    }
}

impl TenantDir {
    /// What it has, in order. `None`: more than `most`.
    pub(crate) fn names(&self, most: u64) -> io::Result<Option<Vec<OsString>>> {
        let (mut names, mut count) = (Vec::new(), 0_u64);
        for entry in Dir::read_from(&self.0)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if matches!(name.as_slice(), b"." | b"..") {
                continue;
            }
            count = count.saturating_add(1);
            if count > most {
                return Ok(None);
            }
            names.push(OsString::from_vec(name));
        }
        names.sort_unstable();
        Ok(Some(names))
    }

    /// What stands there, itself.
    pub(crate) fn stat(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The file that was found there: an error where another thing stands there by now.
    pub(crate) fn file(&self, name: &OsStr, found: &Stat) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.0, name, flags, Mode::empty())?);
        let opened = file.metadata()?;
        let is_it = opened.dev() == found.st_dev && opened.ino() == found.st_ino;
        if !is_it || !opened.is_file() {
            return Err(io::Error::other("another file took its place while it was read"));
        }
        Ok(file)
    }

    /// Where a link leads.
    pub(crate) fn link(&self, name: &OsStr) -> io::Result<PathBuf> {
        let target = readlinkat(&self.0, name, Vec::new())?;
        Ok(PathBuf::from(OsStr::from_bytes(target.to_bytes())))
    }

    /// Whether it has an attribute of this name.
    pub(crate) fn has_attribute(&self, name: &OsStr, attribute: &str) -> bool {
        let own = PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd())).join(name);
        let mut value = [0_u8; 1];
        // Too long for our byte is there too.
        !matches!(lgetxattr(&own, attribute, &mut value), Err(Errno::NODATA | Errno::OPNOTSUPP))
    }
}

/// What an entry is.
pub(crate) fn kind_of(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

/// How an overlay says that what lies below under this name is gone.
pub(crate) fn is_whiteout(found: &Stat) -> bool {
    kind_of(found) == FileType::CharacterDevice && found.st_rdev == 0
}

/// Bytes of a file, as the kernel counts them.
pub(crate) fn size_of(found: &Stat) -> u64 {
    u64::try_from(found.st_size).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a3f1_what_is_swapped_for_a_link_while_it_is_read_shows_nothing_of_the_host() {
        let outer = tempfile::tempdir().unwrap();
        let (top, host) = (outer.path().join("top"), outer.path().join("host"));
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::create_dir_all(host.join("b")).unwrap();
        for dir in [&top.join("a/b"), &host.join("b"), &host] {
            fs::write(dir.join("file"), "x").unwrap();
        }
        let tree = TenantTree::open(&top).unwrap();
        let dir = tree.dir(Path::new("a/b")).unwrap();
        assert_eq!(dir.names(1).unwrap().unwrap(), ["file"]);
        let found = dir.stat(OsStr::new("file")).unwrap();
        // A directory on the way, and then the file itself.
        fs::rename(top.join("a"), top.join("was")).unwrap();
        symlink(&host, top.join("a")).unwrap();
        for path in ["a", "a/b", "../host", "/"] {
            assert!(tree.dir(Path::new(path)).is_err(), "{path}");
        }
        fs::remove_file(top.join("was/b/file")).unwrap();
        symlink(host.join("file"), top.join("was/b/file")).unwrap();
        assert!(dir.file(OsStr::new("file"), &found).is_err());
        // Made before the link goes: a file system gives a number again.
        fs::write(top.join("another"), "another").unwrap();
        fs::rename(top.join("another"), top.join("was/b/file")).unwrap();
        assert!(dir.file(OsStr::new("file"), &found).is_err());
        assert!(TenantTree::open(&top.join("a")).is_err(), "the top is no link either");
        assert!(tree.dir(Path::new("")).unwrap().names(1).unwrap().is_none());
    }
}
