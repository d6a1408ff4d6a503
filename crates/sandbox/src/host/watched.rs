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

/// Every change.
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
struct WatchedTrees {
    queue: OwnedFd,
    /// By their roots.
    trees: BTreeMap<PathBuf, WatchedTree>,
    /// Whose a watch is.
    roots: BTreeMap<i32, PathBuf>,
}

struct WatchedTree {
    /// Which directory it was.
    root: (u64, u64),
    digest: Option<Digest>,
    was_touched: bool,
}

/// Has a tree watched from now on, for as long as this process lives or the tree is there. Where the kernel gives no watch, looks
/// cost what they cost.
pub(super) fn watch(root: &Path) {
    let Some(mut all) = all() else { return };
    let made = (|| {
        let tree = WatchedTree { root: identity(root)?, digest: None, was_touched: true };
        all.add(root)?;
        io::Result::Ok(tree)
    })();
    match made {
        Ok(tree) => drop(all.trees.insert(root.to_owned(), tree)),
        Err(error) => {
            tracing::debug!(root = %root.display(), %error, "a tree of ours cannot be watched");
        }
    }
}

/// The digest of a tree; `describe` walks it.
pub(super) fn digest(
    root: &Path,
    describe: impl FnOnce() -> io::Result<Option<Digest>>,
) -> io::Result<Option<Digest>> {
    let Some(mut all) = all() else { return describe() };
    all.hear();
    let found = all.trees.get(root).map(|tree| (tree.root, tree.digest.clone(), tree.was_touched));
    let Some((own, digest, was_touched)) = found else {
        drop(all);
        return describe();
    };
    let is_same = identity(root)? == own;
    if let Some(digest) = digest.filter(|_| is_same && !was_touched) {
        return Ok(Some(digest));
    }
    // A directory that came meanwhile has no watch, and one that went has none any more.
    let is_watched = is_same && all.add(root).is_ok();
    all.hear();
    all.settle(root, None);
    let found = describe()?;
    all.hear();
    let was_touched = all.trees.get(root).is_none_or(|tree| tree.was_touched);
    if is_watched && !was_touched {
        all.settle(root, found.clone());
    }
    Ok(found)
}

/// Everything that this process watches; `None`: the kernel gives it no queue.
fn all() -> Option<MutexGuard<'static, WatchedTrees>> {
    static ALL: OnceLock<Option<Mutex<WatchedTrees>>> = OnceLock::new();
    let make = || {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        Some(Mutex::new(WatchedTrees { queue, trees: BTreeMap::new(), roots: BTreeMap::new() }))
    };
    let all = ALL.get_or_init(make).as_ref()?;
    Some(all.lock().unwrap_or_else(PoisonError::into_inner))
}

fn identity(root: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(root)?;
    Ok((found.dev(), found.ino()))
}

impl WatchedTrees {
    /// Watches every directory of a tree; one that is watched already is watched on.
    fn add(&mut self, root: &Path) -> io::Result<()> {
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

    fn settle(&mut self, root: &Path, digest: Option<Digest>) {
        if let Some(tree) = self.trees.get_mut(root) {
            (tree.digest, tree.was_touched) = (digest, false);
        }
    }

    /// Notes which trees were touched since the last time.
    fn hear(&mut self) {
        let mut buffer = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut reader = Reader::new(&self.queue, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let touched = self.roots.get(&event.wd()).cloned();
                    if event.events().contains(ReadFlags::IGNORED) {
                        self.roots.remove(&event.wd());
                    }
                    match touched {
                        Some(root) => {
                            if let Some(tree) = self.trees.get_mut(&root) {
                                tree.was_touched = true;
                            }
                        }
                        // Words were lost.
                        None => self.trees.values_mut().for_each(|tree| tree.was_touched = true),
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // Nothing is known then.
                Err(_) => {
                    self.trees.values_mut().for_each(|tree| tree.was_touched = true);
                    return;
                }
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
