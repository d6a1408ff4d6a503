//! What is never given to anybody: state directories, and the kernel's own file systems.
//!
//! Directories are told by device and inode, never by text: a bind mount or a link gives a directory
//! another name, and not another identity. What a bind mount takes out of a state directory is told by where it
//! comes from ([`origin`]), and what holds one by the host's [`register`] and a look at what lies near.

use std::fs::{self, OpenOptions, Permissions, symlink_metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, fstatfs, openat, statat};
use rustix::io::Errno;

use super::{HostHandle, origin, register};

/// In every state directory: whose it is, for workers that have another one.
const MARK: &str = ".cofferdam-state";
/// The mark's mode. The set-group-id bit of a file that is never executed changes nothing, and a task can give it to no
/// file that it writes to the host (decisions 0042 and 0086): a task's file of this name does not count.
const MARK_MODE: u32 = 0o2444;
const SET_GROUP_ID: u32 = 0o2000;
/// Directories that hold state directories, or parts of them, wherever a worker's own one lies.
const ALWAYS: [&str; 2] = ["/var/lib/cofferdam", "/run/cofferdam"];
/// Where live directories lie, and what their names begin with.
const LIVE: [&str; 2] = ["/run", "/dev/shm"];
const LIVE_NAME: &str = "cofferdam.";
/// Directories above each other: paths have at most 4,096 bytes, two for each.
const MAX_DEPTH: usize = 2_048;
/// Bind mounts of bind mounts that are followed to where they come from.
const MAX_ORIGINS: usize = 8;
/// Entries of a directory, and of those in it, that are looked at for a mark: a millisecond. The register knows
/// what lies deeper; this finds what root did not write down.
const MAX_NEAR: usize = 1_024;

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
    if let Err(error) = made
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    // A file's maker who is in another group than the directory's may not set the bit: the register has it then.
    fs::set_permissions(state.join(MARK), Permissions::from_mode(MARK_MODE))?;
    // On a host whose system is read-only there is no register: what lies near is found without.
    if let Err(error) = register::add(state, |path| path.join(MARK).symlink_metadata().is_ok()) {
        tracing::warn!(%error, "this host's register of state directories cannot be written");
    }
    Ok(())
}

/// Which of the kernel's file systems something lies in, if it does.
pub(super) fn kernels(opened: &HostHandle) -> io::Result<Option<&'static str>> {
    let kind = u64::try_from(fstatfs(opened)?.f_type).unwrap_or(0);
    Ok(KERNELS.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name))
}

/// Whether what was opened lies in a directory that is kept from everybody; where it is a directory, also
/// whether such a directory lies in it. `/dev` is kept too: its file system is one of files by its number.
/// `dir`: the directory itself, or the one that holds a file.
pub(super) fn is_kept(opened: &HostHandle, dir: &OwnedFd, never: &[PathBuf]) -> io::Result<bool> {
    let holds = opened.is_dir();
    let mut above = ancestors(dir)?;
    if !holds {
        above.extend(of_a_mounted_file(opened, dir)?);
    }
    let all = never.iter().map(PathBuf::as_path).chain(ALWAYS.map(Path::new));
    let kept: Vec<&Path> = all.chain([Path::new("/dev")]).collect();
    if kept.iter().filter_map(|path| identity(path)).any(|one| is_in(&above, one)) {
        return Ok(true);
    }
    if above.iter().any(|dir| dir.is_marked) || is_live(&above) {
        return Ok(true);
    }
    let Some(own) = above.first().filter(|_| holds) else { return Ok(false) };
    let written = register::all()?;
    let inner = kept.iter().copied().filter(|path| *path != Path::new("/dev"));
    for path in inner.chain(written.iter().map(PathBuf::as_path)) {
        // What is not there holds nothing, and what lost its mark is no state directory of another one.
        let Ok(inner) = openat(CWD, path, DIRECTORY, Mode::empty()) else { continue };
        let counts = kept.contains(&path) || is_marked(&inner)?;
        if counts && is_in(&ancestors(&inner)?, own.id) {
            return Ok(true);
        }
    }
    is_near(dir, 2, &mut { MAX_NEAR })
}

/// Whether a directory is one that was marked, in a listing.
pub(crate) fn is_state(dir: &OwnedFd) -> io::Result<bool> {
    is_marked(dir)
}

/// Whether a directory in this one, or in one of those, is marked.
fn is_near(dir: &OwnedFd, deep: usize, left: &mut usize) -> io::Result<bool> {
    for entry in Dir::read_from(openat(dir, ".", LISTED, Mode::empty())?)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Some(fewer) = left.checked_sub(1) else { return Ok(false) };
        *left = fewer;
        if !matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
            continue;
        }
        // What cannot be listed, or went away, is looked at no further.
        let Ok(inner) = openat(dir, name, LISTED, Mode::empty()) else { continue };
        if is_marked(&inner)? || (deep > 1 && is_near(&inner, deep - 1, left)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

const LISTED: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The directories that a file lies in by its origin, where it is mounted itself.
fn of_a_mounted_file(file: &HostHandle, dir: &OwnedFd) -> io::Result<Vec<Ancestor>> {
    let number = origin::mount_of(file)?;
    if number == origin::mount_of(dir)? {
        return Ok(Vec::new());
    }
    match origin::origin(file, number)? {
        Some(above) => ancestors(&above),
        None => Ok(Vec::new()),
    }
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory, or one above it.
struct Ancestor {
    id: Identity,
    /// Whether it has the mark of a state directory.
    is_marked: bool,
}

fn is_in(above: &[Ancestor], one: Identity) -> bool {
    above.iter().any(|other| other.id == one)
}

/// The directory and those above it, the nearest first, and which are marked as state directories: by its name,
/// and by where the mounts on the way come from.
fn ancestors(dir: &OwnedFd) -> io::Result<Vec<Ancestor>> {
    let mut above = Vec::new();
    let mut begin = vec![openat(dir, ".", DIRECTORY, Mode::empty())?];
    let mut origins = 0;
    while let Some(mut at) = begin.pop() {
        let mut last = None;
        for depth in 0.. {
            if depth == MAX_DEPTH {
                return Err(io::Error::other("directories above each other without an end"));
            }
            let found = of(&at)?;
            if last == Some(found) {
                break;
            }
            above.push(Ancestor { id: found, is_marked: is_marked(&at)? });
            let parent = openat(&at, "..", DIRECTORY, Mode::empty())?;
            let number = origin::mount_of(&at)?;
            if origin::mount_of(&parent)? != number {
                origins += 1;
                if origins > MAX_ORIGINS {
                    return Err(io::Error::other("mounts of mounts without an end"));
                }
                begin.extend(origin::origin(&at, number)?);
            }
            (last, at) = (Some(found), parent);
        }
    }
    Ok(above)
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
        Ok(found) => {
            let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
            Ok(is_file && found.st_mode & SET_GROUP_ID != 0)
        }
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether one of the directories is the live directory of any worker: they lie side by side.
fn is_live(above: &[Ancestor]) -> bool {
    let beside =
        LIVE.iter().filter(|dir| identity(Path::new(dir)).is_some_and(|one| is_in(above, one)));
    let named = beside.filter_map(|dir| Path::new(dir).read_dir().ok()).flatten().flatten();
    let live = named
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(LIVE_NAME.as_bytes()));
    live.filter_map(|entry| symlink_metadata(entry.path()).ok())
        .any(|found| is_in(above, Identity { device: found.dev(), inode: found.ino() }))
}
