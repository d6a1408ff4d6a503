//! Trees of ours that nobody changes, and that the kernel watches for us: described once, and again when it said anything.
//!
//! ```text
//! watch every directory -> describe -> nothing was said meanwhile: kept
//!                                   -> each look: nothing was said since, so it is as it was | described anew
//! ```
//! A look at a tree of a thousand files is one system call so. What a watch hears is every file that is written, made, moved or
//! changed there by anybody of this host, and not that one is opened: overlays of newer kernels open a base's files, too. A
//! write by a mapping is heard when its file is closed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cofferdam_contracts::id::Digest;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Directories of one tree: a workstation's `/etc` has 300.
const MAX_DIRS: usize = 4_096;
const READ_BYTES: usize = 16 * 1024;

/// Events that may change a directory's digest; a link is not followed.
const HEARD: WatchFlags = WatchFlags::MODIFY
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::DONT_FOLLOW);

/// What is watched, by one queue: a process may have few.
struct TreeWatches {
    queue: OwnedFd,
    /// By their roots.
    trees: BTreeMap<PathBuf, TreeWatch>,
    /// Whose a watch is.
    roots: BTreeMap<i32, PathBuf>,
}

struct TreeWatch {
    /// Which directory it was.
    root: (u64, u64),
    /// `None`: it is not described, or was touched since.
    digest: Option<Digest>,
}

/// Has a tree watched from the next look on, for as long as this process lives or the tree is there. Where the kernel gives no
/// watch, looks cost what they cost.
pub(super) fn watch(root: &Path) {
    if let (Some(mut all), Ok(own)) = (all(), identity(root)) {
        all.trees.insert(root.to_owned(), TreeWatch { root: own, digest: None });
    }
}

/// The digest of a tree; `describe` walks it.
pub(super) fn digest(
    root: &Path,
    describe: impl FnOnce() -> io::Result<Option<Digest>>,
) -> io::Result<Option<Digest>> {
    let Some(mut all) = all() else { return describe() };
    all.hear();
    let Some(tree) = all.trees.get(root) else {
        drop(all);
        return describe();
    };
    let is_same = identity(root)? == tree.root;
    if let Some(digest) = tree.digest.as_ref().filter(|_| is_same) {
        return Ok(Some(digest.clone()));
    }
    // A directory that came meanwhile has no watch, and one that went has none any more.
    let is_watched = is_same && all.add(root);
    all.hear();
    let found = describe()?;
    if let Some(tree) = all.trees.get_mut(root).filter(|_| is_watched) {
        tree.digest.clone_from(&found);
    }
    // What was said meanwhile lets it go again.
    all.hear();
    Ok(found)
}

/// Everything that this process watches; `None`: the kernel gives it no queue.
fn all() -> Option<MutexGuard<'static, TreeWatches>> {
    static ALL: OnceLock<Option<Mutex<TreeWatches>>> = OnceLock::new();
    let make = || {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        Some(Mutex::new(TreeWatches { queue, trees: BTreeMap::new(), roots: BTreeMap::new() }))
    };
    let all = ALL.get_or_init(make).as_ref()?;
    Some(all.lock().unwrap_or_else(PoisonError::into_inner))
}

fn identity(root: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(root)?;
    Ok((found.dev(), found.ino()))
}

impl TreeWatches {
    /// Watches every directory of a tree, and one that is watched already on. Whether it could: a tree that it cannot watch is none of
    /// these any more.
    fn add(&mut self, root: &Path) -> bool {
        let Err(error) = self.add_all(root) else { return true };
        tracing::debug!(root = %root.display(), %error, "a tree of ours cannot be watched");
        self.trees.remove(root);
        false
    }

    fn add_all(&mut self, root: &Path) -> io::Result<()> {
        let (mut open, mut dirs) = (vec![root.to_owned()], 0);
        while let Some(dir) = open.pop() {
            dirs += 1;
            if dirs > MAX_DIRS {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            let watch = inotify::add_watch(&self.queue, &dir, HEARD)?;
            self.roots.insert(watch, root.to_owned());
            for entry in fs::read_dir(&dir)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    open.push(entry.path());
                }
            }
        }
        Ok(())
    }

    /// Lets the digests go of trees that were touched since the last time.
    fn hear(&mut self) {
        let mut buffer = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut reader = Reader::new(&self.queue, &mut buffer);
        loop {
            let root = match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {
                    self.roots.remove(&event.wd())
                }
                Ok(event) => self.roots.get(&event.wd()).cloned(),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return,
                Err(_) => return self.trees.values_mut().for_each(|tree| tree.digest = None),
            };
            match root {
                Some(root) => {
                    if let Some(tree) = self.trees.get_mut(&root) {
                        tree.digest = None;
                    }
                }
                // Words were lost, or are of a watch that ended: of which tree is not known.
                None => self.trees.values_mut().for_each(|tree| tree.digest = None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::host::base::{tree_digest, tree_digest_of};

    #[test]
    fn every_change_of_a_watched_tree_changes_its_digest_and_none_costs_no_walk() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/f"), "one").unwrap();
        symlink("f", at("a/b/l")).unwrap();
        watch(dir.path());
        let walks = std::cell::Cell::new(0);
        let look = || {
            let walk = || {
                walks.set(walks.get() + 1);
                tree_digest_of(dir.path(), 100)
            };
            digest(dir.path(), walk).unwrap().unwrap()
        };
        let first = look();
        assert_eq!((look(), look(), walks.get()), (first.clone(), first.clone(), 1));
        assert_eq!(tree_digest(dir.path()).unwrap(), Some(first.clone()));
        let mut last = first;
        let changes: [(&str, &dyn Fn()); 8] = [
            ("written", &|| fs::write(at("a/b/f"), "two").unwrap()),
            ("made", &|| fs::write(at("a/g"), "").unwrap()),
            ("a mode", &|| {
                fs::set_permissions(at("a/g"), fs::Permissions::from_mode(0o600)).unwrap()
            }),
            ("moved", &|| fs::rename(at("a/g"), at("a/b/h")).unwrap()),
            ("a directory", &|| fs::create_dir(at("a/c")).unwrap()),
            ("in a directory that came later", &|| fs::write(at("a/c/f"), "").unwrap()),
            ("removed", &|| fs::remove_file(at("a/c/f")).unwrap()),
            ("a link", &|| {
                fs::remove_file(at("a/b/l")).unwrap();
                symlink("h", at("a/b/l")).unwrap();
            }),
        ];
        for (what, change) in changes {
            change();
            let walked = walks.get();
            let now = look();
            assert_ne!(now, last, "{what}");
            assert_eq!((look(), walks.get()), (now.clone(), walked + 1), "{what}");
            last = now;
        }
        // What is only read is as it was.
        fs::read(at("a/b/f")).unwrap();
        let walked = walks.get();
        assert_eq!((look(), walks.get()), (last, walked));
    }

    #[test]
    fn a_tree_that_took_the_place_of_a_watched_one_is_not_it() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
        for at in [&one, &other] {
            fs::create_dir(at).unwrap();
        }
        watch(&one);
        let look = || digest(&one, || tree_digest_of(&one, 100)).unwrap();
        let before = look();
        fs::write(other.join("f"), "").unwrap();
        fs::rename(&one, dir.path().join("old")).unwrap();
        fs::rename(&other, &one).unwrap();
        let after = look();
        assert_ne!(before, after);
        fs::write(one.join("g"), "").unwrap();
        assert_ne!(look(), after, "nothing watches this one");
    }
}
