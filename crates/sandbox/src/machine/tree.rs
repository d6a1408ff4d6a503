//! Directories of the host as a machine's disk shows them: looked at once, read when asked for.
//!
//! A file is opened below its root without following a link, and only read if it is the very file
//! that was seen before: whoever exchanges it meanwhile gets the machine an error and nobody else's
//! bytes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_guest::wire::User;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, readlinkat,
    statat,
};
use sha2::{Digest as _, Sha256};

/// Nodes of all trees of one machine: five times a large `/usr`. A description takes about 200 bytes of the
/// worker's memory for each.
const MAX_NODES: usize = 1_000_000;
/// Directories in each other. Paths cannot be longer than 4,096 bytes anyway.
const MAX_DEPTH: usize = 512;

/// A file, directory, link, socket or pipe, without its name.
#[derive(Debug)]
pub(super) struct Node {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: u64,
    pub nanos: u32,
    pub content: Content,
}

/// What it holds.
#[derive(Debug)]
pub(super) enum Content {
    Directory(BTreeMap<OsString, Node>),
    File(Source),
    Link(Vec<u8>),
    /// A socket or a pipe: they are there and hold nothing.
    Empty,
}

/// A file of the host.
#[derive(Debug, Clone)]
pub(super) struct Source {
    root: Arc<OwnedFd>,
    path: PathBuf,
    device: u64,
    inode: u64,
    mtime: (i64, i64),
    pub size: u64,
}

impl Source {
    /// Opens it, if it is still the one that was seen.
    pub fn open(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let file: File = if self.path.as_os_str().is_empty() {
            self.root.try_clone()?.into()
        } else {
            openat2(&*self.root, &self.path, flags, Mode::empty(), inside)?.into()
        };
        let found = file.metadata()?;
        let same = found.is_file()
            && (found.dev(), found.ino()) == (self.device, self.inode)
            && (found.mtime(), found.mtime_nsec()) == self.mtime
            && found.len() == self.size;
        if same { Ok(file) } else { Err(io::Error::other("the file was changed meanwhile")) }
    }

    /// What tells it from another file, also after the host's next start.
    pub fn mark(&self, digest: &mut Sha256) {
        let path = self.path.as_os_str().as_bytes();
        digest.update(u64::try_from(path.len()).unwrap_or(u64::MAX).to_le_bytes());
        digest.update(path);
        digest.update(self.mtime.0.to_le_bytes());
        digest.update(self.mtime.1.to_le_bytes());
    }

    /// Fills the buffer from this offset; what is beyond the end is zeros.
    pub fn read(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(u64::try_from(done).unwrap_or(u64::MAX));
            match file.read_at(rest, at) {
                Ok(0) => {
                    rest.fill(0);
                    break;
                }
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A directory that was made up.
pub(super) fn directory(entries: impl IntoIterator<Item = (String, Node)>) -> Node {
    let entries = entries.into_iter().map(|(name, node)| (name.into(), node)).collect();
    Node { mode: 0o755, uid: 0, gid: 0, mtime: 0, nanos: 0, content: Content::Directory(entries) }
}

/// Looks at a file or directory of the host. What belongs to its owner belongs to `user` inside, where there is one. `seen`
/// counts the nodes of a machine.
pub(super) fn look(path: &Path, user: Option<User>, seen: &mut usize) -> io::Result<Node> {
    let found = fs::metadata(path)?;
    let kind = if found.is_dir() { OFlags::DIRECTORY } else { OFlags::NONBLOCK };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | kind;
    let root = Arc::new(openat(CWD, path, flags, Mode::empty())?);
    let stat = statat(&*root, "", AtFlags::EMPTY_PATH)?;
    let owner = user.map(|user| (User { uid: stat.st_uid, gid: stat.st_gid }, user));
    let walk = NodeWalk { root: &root, owner };
    walk.node(Arc::clone(&root), &stat, Path::new(""), 0, seen)
}

struct NodeWalk<'a> {
    root: &'a Arc<OwnedFd>,
    /// The owner of the top, and whom that is inside.
    owner: Option<(User, User)>,
}

impl NodeWalk<'_> {
    /// The node behind an open handle.
    fn node(
        &self,
        handle: Arc<OwnedFd>,
        stat: &Stat,
        path: &Path,
        depth: usize,
        seen: &mut usize,
    ) -> io::Result<Node> {
        let content = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Content::Directory(self.entries(&handle, path, depth, seen)?),
            FileType::RegularFile => Content::File(self.source(stat, path)),
            _ => Content::Empty,
        };
        Ok(self.described(stat, content))
    }

    fn described(&self, stat: &Stat, content: Content) -> Node {
        let mut node = described(stat, content);
        if let Some((owner, user)) = self.owner {
            if node.uid == owner.uid {
                node.uid = user.uid;
            }
            if node.gid == owner.gid {
                node.gid = user.gid;
            }
        }
        node
    }

    fn source(&self, stat: &Stat, path: &Path) -> Source {
        Source {
            root: Arc::clone(self.root),
            path: path.to_owned(),
            device: stat.st_dev,
            inode: stat.st_ino,
            mtime: (stat.st_mtime, stat.st_mtime_nsec.cast_signed()),
            size: u64::try_from(stat.st_size).unwrap_or(0),
        }
    }

    fn entries(
        &self,
        handle: &OwnedFd,
        path: &Path,
        depth: usize,
        seen: &mut usize,
    ) -> io::Result<BTreeMap<OsString, Node>> {
        if depth > MAX_DEPTH {
            return Err(io::Error::other("directories in each other without an end"));
        }
        let mut entries = BTreeMap::new();
        for entry in Dir::read_from(handle)? {
            let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
            if name == "." || name == ".." {
                continue;
            }
            *seen += 1;
            if *seen > MAX_NODES {
                return Err(io::Error::other(format!("more than {MAX_NODES} files")));
            }
            // What went away meanwhile was not there.
            let Ok(stat) = statat(handle, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let below = path.join(&name);
            let content = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    let flags =
                        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let inner = openat(handle.as_fd(), &name, flags, Mode::empty())?;
                    Content::Directory(self.entries(&inner, &below, depth + 1, seen)?)
                }
                FileType::RegularFile => Content::File(self.source(&stat, &below)),
                FileType::Symlink => {
                    let to = readlinkat(handle, &name, Vec::new())?;
                    Content::Link(to.as_bytes().to_vec())
                }
                FileType::Fifo | FileType::Socket => Content::Empty,
                // Devices open nothing in a machine: they are not shown at all.
                _ => continue,
            };
            entries.insert(name, self.described(&stat, content));
        }
        Ok(entries)
    }
}

fn described(stat: &Stat, content: Content) -> Node {
    Node {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: u64::try_from(stat.st_mtime).unwrap_or(0),
        nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        content,
    }
}

impl Node {
    /// The number of its kind in an EROFS directory, and its type as a mode.
    pub fn kind(&self) -> (u8, u32) {
        match self.content {
            Content::File(_) => (1, 0o100_000),
            Content::Directory(_) => (2, 0o040_000),
            // A pipe; which of both it was makes no difference where nobody listens.
            Content::Empty => (5, 0o010_000),
            Content::Link(_) => (7, 0o120_000),
        }
    }
}

/// The bytes of a name.
pub(super) fn bytes(name: &OsString) -> &[u8] {
    name.as_bytes()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn r05_what_belongs_to_the_owner_of_a_directory_belongs_to_the_user_inside() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        for name in ["mine", "sub/mine", "another's"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let owner = fs::metadata(dir.path()).unwrap();
        // Who may not give files away has none of another's.
        let is_given = chown(dir.path().join("another's"), Some(7), Some(8)).is_ok();
        let of = |user: Option<User>| {
            let top = look(dir.path(), user, &mut 0).unwrap();
            let top_owner = (top.uid, top.gid);
            let Content::Directory(entries) = top.content else { panic!("no directory") };
            let owner_of = |name: &str| {
                (entries[&OsString::from(name)].uid, entries[&OsString::from(name)].gid)
            };
            let Content::Directory(below) = &entries[&OsString::from("sub")].content else {
                panic!("no directory")
            };
            let deep = &below[&OsString::from("mine")];
            [
                top_owner,
                owner_of("mine"),
                owner_of("sub"),
                (deep.uid, deep.gid),
                owner_of("another's"),
            ]
        };
        let as_it_is = (owner.uid(), owner.gid());
        let others = if is_given { (7, 8) } else { as_it_is };
        assert_eq!(of(None), [as_it_is, as_it_is, as_it_is, as_it_is, others]);
        let others = if is_given { (7, 8) } else { (1_000, 50) };
        let user = Some(User { uid: 1_000, gid: 50 });
        assert_eq!(of(user), [(1_000, 50), (1_000, 50), (1_000, 50), (1_000, 50), others]);
    }
}
