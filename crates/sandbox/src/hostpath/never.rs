//! What is never given to anybody: state directories, and the kernel's own file systems.
//!
//! Directories are told by device and inode, never by text: a bind mount or a link gives a directory
//! another name, and not another identity.

use std::fs::{OpenOptions, symlink_metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, fstatfs, openat, statat};
use rustix::io::Errno;

use super::Opened;

/// In every state directory: whose it is, for workers that have another one.
const MARK: &str = ".cofferdam-state";
/// Directories that hold state directories, or parts of them, wherever a worker's own one lies.
const ALWAYS: [&str; 2] = ["/var/lib/cofferdam", "/run/cofferdam"];
/// Where live directories lie, and what their names begin with.
const LIVE: [&str; 2] = ["/run", "/dev/shm"];
const LIVE_NAME: &str = "cofferdam.";
/// Directories above each other: paths have at most 4,096 bytes, two for each.
const MAX_DEPTH: usize = 2_048;

/// File systems that show the kernel instead of files, by the number that `statfs(2)` gives.
const KERNELS: [(u64, &str); 19] = [
    (0x0000_9fa0, "/proc"),
    (0x6265_6572, "/sys"),
    (0x0027_e0eb, "a cgroup tree"),
    (0x6367_7270, "a cgroup tree"),
    (0x0000_1cd1, "/dev/pts"),
    (0x1980_0202, "a message queue tree"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x7363_6673, "securityfs"),
    (0xf97c_ff8c, "selinuxfs"),
    (0x5a3c_69f0, "apparmorfs"),
    (0x6265_6570, "configfs"),
    (0x6165_676c, "pstore"),
    (0xde5e_81e4, "efivarfs"),
    (0x4249_4e4d, "binfmt_misc"),
    (0xcafe_4a11, "a BPF tree"),
    (0x6e73_6673, "nsfs"),
    (0x6759_6969, "rpc_pipefs"),
    (0x5049_4446, "pidfs"),
];

/// A directory, whatever it is called.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

/// Marks a directory as a state directory, if it is not marked yet.
///
/// # Errors
/// It cannot be written.
pub fn mark(state: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o444).open(state.join(MARK));
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Which of the kernel's file systems something lies in, if it does.
pub(super) fn kernels(opened: &Opened) -> io::Result<Option<&'static str>> {
    let kind = u64::try_from(fstatfs(opened)?.f_type).unwrap_or(0);
    Ok(KERNELS.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name))
}

/// Whether a directory lies in a directory that is kept from everybody; where `holds` asks for it, also
/// whether such a directory lies in it. `/dev` is kept too: its file system is one of files by its number.
pub(super) fn is_kept(dir: &OwnedFd, holds: bool, never: &[PathBuf]) -> io::Result<bool> {
    let above = ancestors(dir)?;
    let all = never.iter().map(PathBuf::as_path).chain(ALWAYS.map(Path::new));
    let kept: Vec<&Path> = all.chain([Path::new("/dev")]).collect();
    if kept.iter().filter_map(|path| identity(path)).any(|one| is_in(&above, one)) {
        return Ok(true);
    }
    if above.iter().any(|(_, is_marked)| *is_marked) || is_live(&above) {
        return Ok(true);
    }
    let Some((own, _)) = above.first().filter(|_| holds) else { return Ok(false) };
    for path in kept.iter().filter(|path| **path != Path::new("/dev")) {
        // What is not there holds nothing.
        let Ok(inner) = openat(CWD, *path, DIRECTORY, Mode::empty()) else { continue };
        if is_in(&ancestors(&inner)?, *own) {
            return Ok(true);
        }
    }
    Ok(false)
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn is_in(above: &[(Identity, bool)], one: Identity) -> bool {
    above.iter().any(|(other, _)| *other == one)
}

/// The directory and those above it, the nearest first, and which are marked as state directories.
fn ancestors(dir: &OwnedFd) -> io::Result<Vec<(Identity, bool)>> {
    let mut above = Vec::new();
    let mut at = openat(dir, ".", DIRECTORY, Mode::empty())?;
    for _ in 0..MAX_DEPTH {
        let found = of(&at)?;
        if above.last().is_some_and(|(last, _)| *last == found) {
            return Ok(above);
        }
        above.push((found, is_marked(&at)?));
        at = openat(&at, "..", DIRECTORY, Mode::empty())?;
    }
    Err(io::Error::other("directories above each other without an end"))
}

fn of(dir: impl AsFd) -> io::Result<Identity> {
    let found = fstat(dir)?;
    Ok(Identity { device: found.st_dev, inode: found.st_ino })
}

fn identity(path: &Path) -> Option<Identity> {
    let found = path.metadata().ok()?;
    Some(Identity { device: found.dev(), inode: found.ino() })
}

fn is_marked(dir: &OwnedFd) -> io::Result<bool> {
    match statat(dir, MARK, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether one of the directories is the live directory of any worker: they lie side by side.
fn is_live(above: &[(Identity, bool)]) -> bool {
    let beside =
        LIVE.iter().filter(|dir| identity(Path::new(dir)).is_some_and(|one| is_in(above, one)));
    let named = beside.filter_map(|dir| Path::new(dir).read_dir().ok()).flatten().flatten();
    let live = named
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(LIVE_NAME.as_bytes()));
    live.filter_map(|entry| symlink_metadata(entry.path()).ok())
        .any(|found| is_in(above, Identity { device: found.dev(), inode: found.ino() }))
}
