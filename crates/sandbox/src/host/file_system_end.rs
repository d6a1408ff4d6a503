//! Whether a file system has ended: whether no mount and no open file of anybody keeps it any more.
//!
//! ```text
//! watch its root --unmount--> the kernel ends it with its last user, and says so to whoever watches: proof
//!                     \--it says nothing--> somebody has it: see `holders`
//! without a watch: the kernel gives the lowest free number to the next file system; whoever gets the number
//! of this one has the proof that it is free
//! ```
//! A mount table shows the mounts of one namespace, and a process may hold a file that no table knows: handed
//! to a socket, mapped, or below a mount that was detached. **The end of the file system itself is the only
//! thing that means all of them**, and costs two system calls and not a walk over all processes.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cofferdam_ambient::clock::Stopwatch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{fstat, stat, statvfs};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// The copies of our mounts that a runtime has while it starts another sandbox go within this time, and so
/// do those of a process that ended just now. What is held on purpose costs a wipe this much.
const END_MS: u64 = 1_000;
/// What nobody is seen to keep is waited for so much longer: a process that was killed is in no table any more while the kernel of
/// a busy host still closes its files.
const UNSEEN_END_MS: u64 = 4_000;
/// Between two looks at what others read of the same queue.
const SLICE_MS: i64 = 2;
/// One read: names are empty, since it is a file system's root that is watched.
const READ_BYTES: usize = 1_024;
/// File systems that are made and thrown away to get a number: those that a host has free below one that
/// was in use. Each takes 30 microseconds.
const MAX_NUMBERS: usize = 64;
/// A file system, told from every other one that there was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileSystem {
    /// Of a live one it is nobody else's; it is given out again.
    pub device: u64,
    /// Random in a tmpfs and in an overlay over one; 0 before Linux 5.13.
    pub id: u64,
}

impl FileSystem {
    /// The one that a path lies in.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { device: stat(path)?.st_dev, id: statvfs(path)?.f_fsid })
    }

    /// Whether both are the same one. A file of an overlay has the overlay's id, and a number that is not its.
    pub(crate) fn is(self, other: Self) -> bool {
        match (self.id, other.id) {
            (0, 0) => self.device == other.device,
            (one, other) => one == other,
        }
    }

    /// Its number as `mountinfo` writes it.
    pub(crate) fn number(self) -> String {
        let device = self.device;
        format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
    }

    /// For the record: what [`FileSystem::parse`] reads.
    pub(crate) fn text(self) -> String {
        format!("file system {} id {:016x}", self.number(), self.id)
    }

    /// Reads the beginning of a text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix("file system ")?.split(' ');
        let (major, minor) = words.next()?.split_once(':')?;
        let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let id = words.next().filter(|word| *word == "id").and_then(|_| words.next())?;
        Some(Self { device, id: u64::from_str_radix(id, 16).ok()? })
    }
}

/// A watch on a file system that is about to be unmounted.
#[derive(Debug)]
pub(crate) struct Witness(i32);

/// The queue of this process: one for all, since a process may have few, and closing one waits for the
/// kernel.
struct Watcher {
    queue: OwnedFd,
    ended: Mutex<BTreeSet<i32>>,
}

fn watcher() -> Option<&'static Watcher> {
    static WATCHER: OnceLock<Option<Watcher>> = OnceLock::new();
    let make = || {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        Some(Watcher { queue, ended: Mutex::default() })
    };
    WATCHER.get_or_init(make).as_ref()
}

impl Witness {
    /// Watches the file system whose root this is. `None`: the kernel gives this process no watch.
    pub(crate) fn of(root: &Path) -> Option<Self> {
        // Of a root that nobody moves: only its end is ever told.
        let flags = WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        inotify::add_watch(&watcher()?.queue, root, flags).ok().map(Self)
    }

    /// Whether it has ended, or does within a second.
    pub(crate) fn has_ended(&self) -> bool {
        self.ends_within(END_MS)
    }

    /// The same for one that nobody is seen to keep.
    pub(crate) fn has_ended_unseen(&self) -> bool {
        self.ends_within(UNSEEN_END_MS)
    }

    fn ends_within(&self, most_ms: u64) -> bool {
        let Some(watcher) = watcher() else { return false };
        let clock = Stopwatch::start();
        loop {
            if watcher.read().contains(&self.0) {
                return true;
            }
            if clock.elapsed_ms() >= most_ms {
                return false;
            }
            // Another wipe may read what is meant for this one.
            let slice = Timespec { tv_sec: 0, tv_nsec: SLICE_MS * 1_000_000 };
            let _ = poll(&mut [PollFd::new(&watcher.queue, PollFlags::IN)], Some(&slice));
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        if let Some(watcher) = watcher()
            && !watcher.lock().remove(&self.0)
        {
            // Nobody waits for it any more; one that ended meanwhile is not there.
            let _ = inotify::remove_watch(&watcher.queue, self.0);
            watcher.read().remove(&self.0);
        }
    }
}

impl Watcher {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watches whose file systems have ended, as far as the kernel has told.
    fn read(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        let mut ended = self.lock();
        let mut buffer = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut reader = Reader::new(&self.queue, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::UNMOUNT) => {
                    ended.insert(event.wd());
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return ended,
            }
        }
    }
}

/// Whether the number of a file system without a disk is free, which a live one's never is. `false` proves
/// nothing: another file system may have it already.
pub(crate) fn is_free(file_system: FileSystem) -> bool {
    if rustix::fs::major(file_system.device) != 0 {
        return false;
    }
    let mut made = Vec::new();
    for _ in 0..MAX_NUMBERS {
        let Ok((fd, number)) = fresh() else { return false };
        if number >= file_system.device {
            return number == file_system.device;
        }
        made.push(fd);
    }
    false
}

/// A file system of nobody, mounted nowhere, and its number.
fn fresh() -> io::Result<(OwnedFd, u64)> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let made = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let number = fstat(&made)?.st_dev;
    Ok((made, number))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;
    use crate::host::mounts;
    use crate::host::mounts::enter_private_mounts;

    #[test]
    fn m5_a_file_system_ends_with_its_last_open_file_and_not_with_its_mount() {
        enter_private_mounts().unwrap();
        let dir = tempfile::tempdir().unwrap();
        mounts::mount_tmpfs(dir.path(), 1).unwrap();
        let seen = FileSystem::of(dir.path()).unwrap();
        assert_eq!(FileSystem::parse(&format!("{} of /x", seen.text())), Some(seen));
        let witness = Witness::of(dir.path()).unwrap();
        fs::write(dir.path().join("s"), "secret").unwrap();
        let held = File::open(dir.path().join("s")).unwrap();
        mounts::detach(dir.path()).unwrap();
        assert!(!witness.has_ended() && !is_free(seen));
        drop(held);
        assert!(witness.has_ended());
    }

    #[test]
    fn what_is_no_file_systems_name_is_not_one() {
        for text in ["", "file system", "file system 0:x id 0", "file system 0:1 id", "mount /x"] {
            assert_eq!(FileSystem::parse(text), None, "{text}");
        }
    }
}
