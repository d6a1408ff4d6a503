//! The root of a sandbox, or any tree that a tenant may have written, as this host may use it.
//!
//! A second life begins with what a tenant left: any name in it may be a link, and a path that is joined to it is resolved by
//! the host, from the host's root. So the path is private here, and each operation gives a descriptor that the kernel resolved
//! within the root. Nothing that a runtime binds lies at a path below it (`Traces::beside`).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chmodat, chownat, fchmod, fchown,
    mkdirat, openat, openat2, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

/// What a runtime or this program mounts at, or looks below. Absent ones are made.
const DIRECTORIES: [&str; 6] = [".cofferdam", "dev", "proc", "sys", "tmp", "usr"];
const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// A tree that a tenant may have written. It cannot be joined to.
#[derive(Debug)]
pub(crate) struct TenantRoot {
    top: OwnedFd,
    /// Owner of what is made in it.
    first: u32,
}

impl TenantRoot {
    /// What is mounted there; what is missing and made in it belongs to the user of this number.
    pub(crate) fn open(at: &Path, first: u32) -> io::Result<Self> {
        let top = openat(CWD, at, PATH | OFlags::DIRECTORY, Mode::empty())?;
        Ok(Self { top, first })
    }

    /// The first of the directories that every sandbox has which is something else in this one.
    pub(crate) fn displaced(&self) -> io::Result<Option<&'static str>> {
        for name in DIRECTORIES {
            match self.strict(Path::new(name)) {
                Ok(_) | Err(Errno::NOENT) => {}
                // What is deleted is missing in a root, and made anew; this is what takes the writes of one.
                Err(Errno::NOTDIR) if self.is_deleted(name)? => {}
                Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Some(name)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    fn is_deleted(&self, name: &str) -> io::Result<bool> {
        let found = statat(&self.top, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_node = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice;
        Ok(is_node && found.st_rdev == 0)
    }

    /// A directory that no link leads to, made with this mode where it is missing.
    pub(crate) fn dir(&self, path: &Path, mode: u32) -> io::Result<OwnedFd> {
        self.walk(path, true, mode, |below| self.strict(below))
    }

    /// A directory that is there, and that no link leads to.
    pub(crate) fn found(&self, path: &Path) -> io::Result<OwnedFd> {
        Ok(self.strict(path)?)
    }

    /// A place to mount at: links lead nowhere but into the root, as a runtime takes them. What is missing is made.
    pub(crate) fn target(&self, path: &Path, is_dir: bool) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        self.walk(path, is_dir, 0o755, |below| {
            openat2(&self.top, below, PATH, Mode::empty(), resolve)
        })
    }

    /// Makes a file of this name anew in one of its directories. A link of that name is taken away and not followed; a directory stays.
    pub(crate) fn put(&self, dir: &OwnedFd, name: &str, text: &[u8]) -> io::Result<()> {
        match unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let mode = Mode::from_raw_mode(0o644);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(dir, name, flags, mode)?);
        let (uid, gid) = (Uid::from_raw(self.first), Gid::from_raw(self.first));
        fchown(&file, Some(uid), Some(gid))?;
        fchmod(&file, mode)?;
        file.write_all(text)
    }

    /// A link at the top, in place of an empty directory, unless something else has that name.
    pub(crate) fn link(&self, at: &str, to: &str) -> io::Result<()> {
        let name = at.trim_start_matches('/');
        match symlinkat(to, &self.top, name) {
            // An empty directory of the image's gives way; anything else stays.
            Err(Errno::EXIST) => match unlinkat(&self.top, name, AtFlags::REMOVEDIR) {
                Ok(()) => symlinkat(to, &self.top, name)?,
                Err(Errno::NOTEMPTY | Errno::NOTDIR | Errno::BUSY) => return Ok(()),
                Err(error) => return Err(error.into()),
            },
            made => made?,
        }
        let (uid, gid) = (Uid::from_raw(self.first), Gid::from_raw(self.first));
        Ok(chownat(&self.top, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn strict(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let resolve =
            ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.top, path, PATH | OFlags::DIRECTORY, Mode::empty(), resolve)
    }

    fn walk(
        &self,
        path: &Path,
        is_dir: bool,
        mode: u32,
        find: impl Fn(&Path) -> Result<OwnedFd, Errno>,
    ) -> io::Result<OwnedFd> {
        let names: Vec<&OsStr> = path
            .components()
            .filter_map(|part| match part {
                Component::Normal(name) => Some(name),
                _ => None,
            })
            .collect();
        let mut below = PathBuf::new();
        let mut at = self.top.as_fd().try_clone_to_owned()?;
        for (index, name) in names.iter().enumerate() {
            below.push(name);
            let is_last = index + 1 == names.len();
            at = match find(&below) {
                Err(Errno::NOENT) => {
                    let mode = if is_last { mode } else { 0o755 };
                    self.make(&at, name, is_dir || !is_last, mode)?;
                    find(&below)?
                }
                found => found?,
            };
        }
        Ok(at)
    }

    fn make(&self, at: &OwnedFd, name: &OsStr, is_dir: bool, mode: u32) -> io::Result<()> {
        if is_dir {
            mkdirat(at, name, Mode::from_raw_mode(0o700))?;
            // Whatever this process takes off the modes of new files.
            chmodat(at, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
        } else {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            openat(at, name, flags, Mode::from_raw_mode(0o644))?;
        }
        let (uid, gid) = (Uid::from_raw(self.first), Gid::from_raw(self.first));
        Ok(chownat(at, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// Where this process, and no other, finds what it opened: for calls that take a path.
pub(crate) fn held(opened: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}

/// A copy of the mount that was opened, from there on and with what is mounted below, attached nowhere.
pub(crate) fn copy_of(opened: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(opened, "", flags)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use rustix::process::getuid;

    use super::*;

    #[test]
    fn a3f1_no_link_of_a_tenants_tree_leads_this_host_out_of_it() {
        let outer = tempfile::tempdir().unwrap();
        let (root, host) = (outer.path().join("root"), outer.path().join("host"));
        for dir in [&root, &host] {
            fs::create_dir(dir).unwrap();
        }
        let tree = TenantRoot::open(&root, getuid().as_raw()).unwrap();
        assert_eq!(tree.displaced().unwrap(), None, "what is absent is made");
        for name in DIRECTORIES {
            let at = root.join(name);
            for to in [host.as_path(), Path::new("../host"), Path::new("/proc/self/root")] {
                symlink(to, &at).unwrap();
                assert_eq!(tree.displaced().unwrap(), Some(name));
                assert!(tree.dir(Path::new(name), 0o755).is_err());
                assert!(tree.dir(&Path::new("/").join(name).join("below"), 0o755).is_err());
                fs::remove_file(&at).unwrap();
            }
            fs::write(&at, "a file").unwrap();
            assert_eq!(tree.displaced().unwrap(), Some(name));
            fs::remove_file(&at).unwrap();
        }
        // A target follows links as a runtime does, to a place in the root.
        symlink("/host", root.join("link")).unwrap();
        fs::create_dir(root.join("host")).unwrap();
        tree.target(Path::new("/link/made"), true).unwrap();
        assert!(root.join("host/made").is_dir() && fs::read_dir(&host).unwrap().next().is_none());
        // A file is made anew in place of a link, and a directory of its name stays.
        fs::write(host.join("hosts"), "the host's").unwrap();
        symlink(host.join("hosts"), root.join("host/hosts")).unwrap();
        let dir = tree.dir(Path::new("host"), 0o755).unwrap();
        tree.put(&dir, "hosts", b"own").unwrap();
        tree.put(&dir, "made", b"own").unwrap();
        let read = |at: PathBuf| fs::read_to_string(at).unwrap();
        assert_eq!(
            (read(host.join("hosts")), read(root.join("host/hosts"))),
            ("the host's".to_owned(), "own".to_owned())
        );
        assert!(root.join("host/made").is_dir());
        let tmp = tree.dir(Path::new("tmp"), 0o1777).unwrap();
        let (made, found) = (fs::metadata(root.join("tmp")).unwrap(), fs::metadata(held(&tmp)));
        assert_eq!(
            (made.ino(), made.permissions().mode() & 0o7777),
            (found.unwrap().ino(), 0o1777)
        );
    }
}
