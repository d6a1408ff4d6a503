//! Files and directories for the host, never through a symbolic link: a path is walked component by
//! component with descriptors, so that a task cannot exchange one in the middle.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use bytes::Bytes;
use cofferdam_guest::frame::{self, Kind};
use cofferdam_guest::name;
use cofferdam_guest::removal::remove_tree;
use cofferdam_guest::tree::{Entry, NewDir, NodeKind, Path, Remove, Rename};
use cofferdam_guest::wire::{CollectEnd, FileHead};
use hyper::{Response, StatusCode};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, MemfdFlags, Mode, OFlags, Stat, Uid, fchmod, fchown,
    memfd_create, mkdirat, openat, readlinkat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::path::Arg;
use tokio::sync::mpsc::Sender;

use super::answer::{self, Answer, done, json, refuse};
use super::collect;

/// Above it are set-user-id and set-group-id, which `no_new_privs` makes useless.
const MAX_MODE: u32 = 0o1777;
/// The kernel's own bounds on a path and on one name.
const MAX_PATH: usize = 4_096;
/// Bytes of a file that the kernel writes as it is read, and calls empty: those of `/proc` have some thousand.
const MAX_UNSIZED: u64 = 1 << 20;

/// Why a path was not used.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("{0:?} is not an absolute path of plain names below the root")]
    Path(String),
    #[error("{0:?} does not exist")]
    Absent(String),
    #[error("{0:?} leads through something that is not a directory, such as a symbolic link")]
    Link(String),
    #[error("{0:?} is not a regular file")]
    File(String),
    #[error("{path:?} holds {size} bytes, more than {most}")]
    Large { path: String, size: u64, most: u64 },
    #[error("{path:?}: {source}")]
    Io { path: String, source: io::Error },
}

impl TreeError {
    fn of(path: &str, errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::Absent(path.to_owned()),
            Errno::NOTDIR | Errno::LOOP => Self::Link(path.to_owned()),
            other => Self::Io { path: path.to_owned(), source: other.into() },
        }
    }

    /// As an answer.
    pub fn refusal(&self) -> Response<Answer> {
        let status = match self {
            Self::Path(_) => StatusCode::BAD_REQUEST,
            Self::Absent(_) => StatusCode::NOT_FOUND,
            Self::Large { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::CONFLICT,
        };
        refuse(status, self.to_string())
    }
}

type Result<T> = std::result::Result<T, TreeError>;

fn names(path: &str) -> Result<Vec<&str>> {
    let bad = || TreeError::Path(path.chars().take(200).collect());
    let rest = path.strip_prefix('/').ok_or_else(bad)?.trim_end_matches('/');
    let names: Vec<&str> = if rest.is_empty() { Vec::new() } else { rest.split('/').collect() };
    let plain = names.iter().all(|name| !matches!(*name, "" | "." | ".."));
    (plain && path.len() < MAX_PATH && !path.contains('\0')).then_some(names).ok_or_else(bad)
}

/// The directory of one name in another, unless it is a link.
pub fn step(at: &OwnedFd, name: impl Arg, path: &str) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty()).map_err(|errno| TreeError::of(path, errno))
}

fn root() -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, "/", flags, Mode::empty()).map_err(|errno| TreeError::of("/", errno))
}

/// The directory that holds what `path` names below another, and its last name. No link is followed,
/// whoever exchanges what meanwhile.
pub fn holder_below<'a>(at: &OwnedFd, path: &'a str) -> Result<(OwnedFd, &'a str)> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let start = at.try_clone().map_err(|source| TreeError::Io { path: path.to_owned(), source })?;
    let steps = above.split('/').filter(|name| !name.is_empty());
    Ok((steps.into_iter().try_fold(start, |at, name| step(&at, name, path))?, name))
}

/// The directory at a path, as a handle without rights of its own.
pub fn directory(path: &str) -> Result<OwnedFd> {
    names(path)?.into_iter().try_fold(root()?, |at, name| step(&at, name, path))
}

/// The directory that holds a node, and the node's name.
fn holder(path: &str) -> Result<(OwnedFd, &str)> {
    let mut names = names(path)?;
    let name = names.pop().ok_or_else(|| TreeError::Path(path.to_owned()))?;
    let at = names.into_iter().try_fold(root()?, |at, name| step(&at, name, path))?;
    Ok((at, name))
}

/// A path that the standard library can use, through a handle that it cannot leave.
pub fn through(handle: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

fn entry(name: &str, mangled: bool, stat: &Stat) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => NodeKind::File,
        FileType::Directory => NodeKind::Dir,
        FileType::Symlink => NodeKind::Link,
        _ => NodeKind::Other,
    };
    Entry {
        name: name.to_owned(),
        mangled,
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        mtime: stat.st_mtime,
        uid: stat.st_uid,
        gid: stat.st_gid,
        target: None,
    }
}

/// An entry with its target, if it is a link.
fn entry_at(at: &OwnedFd, name: impl Arg + Copy, shown: &str, mangled: bool, stat: &Stat) -> Entry {
    let mut found = entry(shown, mangled, stat);
    if found.kind == NodeKind::Link {
        let target = readlinkat(at, name, Vec::new());
        found.target = target.ok().map(|target| target.to_string_lossy().into_owned());
    }
    found
}

fn answer(outcome: Result<()>) -> Response<Answer> {
    match outcome {
        Ok(()) => done(),
        Err(error) => error.refusal(),
    }
}

/// Answers `POST /v1/stat`: describes the node at a path, following no link.
pub fn stat(request: &Path) -> Response<Answer> {
    let found = holder(&request.path).and_then(|(at, name)| {
        statat(&at, name, AtFlags::SYMLINK_NOFOLLOW)
            .map(|stat| entry_at(&at, name, name, false, &stat))
            .map_err(|errno| TreeError::of(&request.path, errno))
    });
    match found {
        Ok(entry) => json(StatusCode::OK, &entry),
        Err(error) => error.refusal(),
    }
}

/// `POST /v1/read`: refused before the first byte, if at all.
pub fn read(request: Path) -> Response<Answer> {
    let (file, size) = match open(&request) {
        Ok(opened) => opened,
        Err(error) => return error.refusal(),
    };
    let (frames, response) = answer::frames();
    tokio::spawn(async move {
        let sent =
            collect::send(file, FileHead { path: request.path, size, kind: None }, &frames).await;
        end(&frames, 1, sent.err().map(|error| error.to_string())).await;
    });
    response
}

fn open(request: &Path) -> Result<(File, u64)> {
    let (mut file, size) = whole(request)?;
    let Some((from, to)) = request.part else { return Ok((file, size)) };
    let from = from.min(size);
    let fault = |source| TreeError::Io { path: request.path.clone(), source };
    file.seek(SeekFrom::Start(from)).map_err(fault)?;
    Ok((file, to.min(size).saturating_sub(from)))
}

fn whole(request: &Path) -> Result<(File, u64)> {
    let path = &request.path;
    let (at, name) = holder(path)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(
        openat(&at, name, flags, Mode::empty()).map_err(|errno| TreeError::of(path, errno))?,
    );
    let fault = |source| TreeError::Io { path: path.clone(), source };
    let found = file.metadata().map_err(fault)?;
    match (found.is_file(), found.len()) {
        (false, _) => Err(TreeError::File(path.clone())),
        (true, size) if size > request.most => {
            Err(TreeError::Large { path: path.clone(), size, most: request.most })
        }
        (true, 0) if is_own(path) => {
            Err(TreeError::Io { path: path.clone(), source: Errno::ACCESS.into() })
        }
        (true, 0) => unsized_file(file, request.most.min(MAX_UNSIZED), path),
        (true, size) => Ok((file, size)),
    }
}

/// Whether it is a file of this process in `/proc`. The kernel refuses most of them to whoever else is inside, and nothing to itself.
fn is_own(path: &str) -> bool {
    let own = std::process::id().to_string();
    matches!(names(path).as_deref(), Ok(["proc", pid, ..]) if *pid == own || pid.ends_with("self"))
}

/// A file that says that it is empty, with what is in it all the same: of `/proc` and `/sys` nobody knows a size before the end.
fn unsized_file(mut file: File, most: u64, path: &str) -> Result<(File, u64)> {
    let fault = |source| TreeError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let read = (&mut file).take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(fault)?;
    let size = u64::try_from(read).unwrap_or(u64::MAX);
    match size {
        0 => Ok((file, 0)),
        _ if size > most => Err(TreeError::Large { path: path.to_owned(), size, most }),
        _ => {
            let copy = memfd_create("unsized", MemfdFlags::CLOEXEC);
            let mut copy = File::from(copy.map_err(|errno| fault(errno.into()))?);
            copy.write_all(&bytes).and_then(|()| copy.rewind()).map_err(fault)?;
            Ok((copy, size))
        }
    }
}

/// `POST /v1/list`: in the directory's own order, as it is read.
pub fn list(request: Path) -> Response<Answer> {
    let opened = directory(&request.path).and_then(|handle| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = openat(&handle, ".", flags, Mode::empty());
        open.and_then(|fd| Ok((Dir::read_from(&fd)?, fd)))
            .map_err(|errno| TreeError::of(&request.path, errno))
    });
    let (mut entries, at) = match opened {
        Ok(opened) => opened,
        Err(error) => return error.refusal(),
    };
    let (frames, response) = answer::frames();
    tokio::spawn(async move {
        let mut count = 0;
        let mut error = None;
        for next in entries.by_ref() {
            let next = match next {
                Ok(next) if matches!(next.file_name().to_bytes(), b"." | b"..") => continue,
                Ok(next) => next,
                Err(errno) => {
                    error = Some(errno.to_string());
                    break;
                }
            };
            if count == request.most {
                error = Some(format!("more than {} entries", request.most));
                break;
            }
            // One that is gone meanwhile is not there.
            let Ok(stat) = statat(&at, next.file_name(), AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let (name, mangled) = match next.file_name().to_str() {
                Ok(name) => (name.to_owned(), false),
                Err(_) => (name::encode(next.file_name().to_bytes()), true),
            };
            let item = serde_json::to_vec(&entry_at(&at, next.file_name(), &name, mangled, &stat))
                .unwrap_or_default();
            if frames.send(frame::encode(Kind::Item, &item)).await.is_err() {
                return;
            }
            count += 1;
        }
        end(&frames, count, error).await;
    });
    response
}

/// The last frame of a stream of things.
pub async fn end(frames: &Sender<Bytes>, files: u64, error: Option<String>) {
    let json = serde_json::to_vec(&CollectEnd::of(files, error)).unwrap_or_default();
    // An error means that the host hung up.
    let _ = frames.send(frame::encode(Kind::End, &json)).await;
}

/// Answers `POST /v1/mkdir`: makes a directory and those above it.
pub fn mkdir(request: &NewDir) -> Response<Answer> {
    answer(make(request))
}

fn make(request: &NewDir) -> Result<()> {
    let path = &request.path;
    let fault = |errno| TreeError::of(path, errno);
    let names = names(path)?;
    if names.is_empty() || request.mode > MAX_MODE {
        return Err(TreeError::Path(path.clone()));
    }
    let mut at = root()?;
    for name in names {
        match mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => at = step(&at, name, path)?,
            Err(errno) => return Err(fault(errno)),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let made = openat(&at, ".", flags, Mode::empty()).map_err(fault)?;
    if let Some(owner) = request.owner {
        let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
        fchown(&made, Some(uid), Some(gid)).map_err(fault)?;
    }
    fchmod(&made, Mode::from_raw_mode(request.mode)).map_err(fault)
}

/// Answers `POST /v1/remove`: removes a node, a full directory only if `recursive`.
pub fn remove(request: &Remove) -> Response<Answer> {
    let path = &request.path;
    answer(holder(path).and_then(|(at, name)| {
        let fault = |errno| TreeError::of(path, errno);
        let found = statat(&at, name, AtFlags::SYMLINK_NOFOLLOW).map_err(fault)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            return unlinkat(&at, name, AtFlags::empty()).map_err(fault);
        }
        if !request.recursive {
            return unlinkat(&at, name, AtFlags::REMOVEDIR).map_err(fault);
        }
        remove_tree(&through(&at).join(name))
            .map_err(|source| TreeError::Io { path: path.clone(), source })
    }))
}

/// Answers `POST /v1/rename`: moves a node by rename(2), which replaces a file at the target.
pub fn rename(request: &Rename) -> Response<Answer> {
    answer(holder(&request.from).and_then(|(from_dir, from)| {
        let (to_dir, to) = holder(&request.to)?;
        renameat(&from_dir, from, &to_dir, to).map_err(|errno| TreeError::of(&request.from, errno))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_absolute_paths_have_names() {
        assert_eq!(names("/a/b").unwrap(), ["a", "b"]);
        assert_eq!(names("/").unwrap(), [""; 0]);
        let long = format!("/{}", "x".repeat(MAX_PATH));
        for bad in ["", "a", "/a/../b", "/./a", "/a//b", "/a\0b", &long] {
            assert!(names(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_link_in_the_middle_or_at_the_end_is_not_followed() {
        let dir = std::env::temp_dir().join(format!("cofferdam-tree-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("real")).unwrap();
        std::fs::write(dir.join("real/file"), "x").unwrap();
        std::os::unix::fs::symlink("real", dir.join("link")).unwrap();
        std::os::unix::fs::symlink("real/file", dir.join("leaf")).unwrap();
        let at = |name: &str| Path::whole(dir.join(name).to_str().unwrap().into(), 9);
        assert_eq!(open(&at("real/file")).unwrap().1, 1);
        assert!(matches!(open(&at("link/file")), Err(TreeError::Link(_))));
        assert!(matches!(open(&at("leaf")), Err(TreeError::Link(_))));
        assert!(matches!(open(&at("real")), Err(TreeError::File(_))));
        assert!(matches!(open(&at("none")), Err(TreeError::Absent(_))));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a3f3_a_part_of_a_file_is_found_without_reading_what_lies_before_it() {
        let at = std::env::temp_dir().join(format!("cofferdam-part-{}", std::process::id()));
        // Sparse: whoever read up to its end would read for minutes.
        let size = 1_u64 << 42;
        std::fs::File::create(&at).unwrap().set_len(size).unwrap();
        let part = |from, to| {
            let part = Some((from, to));
            let path = at.to_str().unwrap().to_owned();
            let (mut file, left) = open(&Path { path, most: size, part }).unwrap();
            (file.stream_position().unwrap(), left)
        };
        assert_eq!(part(size - 1, size), (size - 1, 1));
        assert_eq!(part(10, 30), (10, 20));
        assert_eq!((part(5, 4), part(size, u64::MAX)), ((5, 0), (size, 0)));
        std::fs::remove_file(at).unwrap();
    }

    #[test]
    fn what_the_kernel_writes_as_it_is_read_has_its_bytes_and_an_end() {
        let at = |path: &str, most| Path::whole(path.to_owned(), most);
        let (mut file, size) = open(&at("/proc/version", 4_096)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert!(size > 0 && text.len() == usize::try_from(size).unwrap(), "{size}: {text}");
        assert_eq!(text, std::fs::read_to_string("/proc/version").unwrap());
        let part = Path { part: Some((2, 7)), ..at("/proc/version", 4_096) };
        assert_eq!(open(&part).unwrap().1, 5);
        assert!(matches!(open(&at("/proc/version", 5)), Err(TreeError::Large { most: 5, .. })));
        let own = std::process::id();
        for name in ["environ".to_owned(), "maps".to_owned(), format!("task/{own}/auxv")] {
            let refused = open(&at(&format!("/proc/{own}/{name}"), MAX_UNSIZED));
            let is_denied = |why: &io::Error| why.kind() == io::ErrorKind::PermissionDenied;
            assert!(
                matches!(&refused, Err(TreeError::Io { source, .. }) if is_denied(source)),
                "{name}"
            );
        }
        assert!(
            is_own("/proc/self/maps")
                && is_own("/proc/thread-self/maps")
                && !is_own("/proc/version")
        );
    }

    #[test]
    fn a3f4_a_deep_tree_is_removed_without_recursion() {
        let top = std::env::temp_dir().join(format!("cofferdam-deep-{}", std::process::id()));
        std::fs::create_dir(&top).unwrap();
        let mut at = step(&root().unwrap(), &*top, "").unwrap();
        for _ in 0..5_000 {
            mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = step(&at, "d", "").unwrap();
        }
        drop(at);
        let request = Remove { path: top.to_str().unwrap().to_owned(), recursive: true };
        let small = std::thread::Builder::new().stack_size(128 * 1024);
        let removed = small.spawn(move || remove(&request).status());
        assert!(removed.unwrap().join().unwrap().is_success() && !top.exists());
    }
}
