//! Host paths that a tenant names, opened once and never named again.
//!
//! ```text
//! text --HostPath--> AllowedPaths::open --openat2 beneath an allowed root--> HostHandle --mount_at--> a path of ours
//!                                        \--not a kernel file system, not a state directory
//! ```
//! **This module alone turns a tenant's text into a host path.** [`HostPath`] gives its text back for
//! messages only; everything else (mounts, overlays, reads, listings) uses the descriptor of [`HostHandle`],
//! so an exchange of names between check and use changes nothing.
//!
//! A tenant gets one answer for what is missing, outside, kept from everybody, or reached by a link that
//! leads out: the answer cannot tell which. The host's own admin, to whom everything is open, is told why.

mod change_time;
mod deny_list;
mod list;
mod mount;
mod open;
mod origin;
mod register;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_contracts::id::Digest;
use cofferdam_contracts::tree_upload;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat, openat2};

use super::open_flags::WITHIN;

pub(crate) use deny_list::is_state;
pub use deny_list::mark;
pub use list::ListError;
pub(crate) use mount::mount_at;

/// A path of the host as somebody said it: absolute, and not yet held against anything.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HostPath(String);

impl HostPath {
    /// What was said.
    #[must_use]
    pub fn said(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    fn path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// The content of a directory that a client sent, whose name is its digest.
    pub(crate) fn sent_tree(&self) -> Option<Digest> {
        tree_upload::named_by(&self.0)
    }
}

/// For messages: quoted and escaped, as text from outside must be.
impl fmt::Debug for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether symbolic links of a path are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Followed while they stay beneath the allowed root. An absolute link never does.
    Beneath,
    /// Refused. The host's own admin, to whom everything is open, may still use them.
    Refused,
}

/// A directory that the operator allows: as the configuration names it, and where it really is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowedRoot {
    said: PathBuf,
    real: PathBuf,
}

/// Which directories of the host may be given to tasks, and which are never given to anybody.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowedPaths {
    roots: Vec<AllowedRoot>,
    never: Vec<PathBuf>,
    /// Directory of programs that the operator installed for every task, although it lies in a state directory.
    programs: Option<PathBuf>,
}

/// Why a path is not opened. Where not everything is open, [`OpenError::Refused`] is the only answer.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Missing, outside, or kept from everybody.
    #[error("{0:?} is not there, or not within a directory that this run may be given")]
    Refused(HostPath),
    /// It would show what workers keep to themselves.
    #[error(
        "{0:?} lies in, or holds, a state directory of this program, which no task may see: name a \
         directory beside it"
    )]
    State(HostPath),
    /// It would show the host's kernel.
    #[error("{path:?} lies in {what}, a file system of the host's kernel, which no task may see")]
    Kernel {
        /// What was named.
        path: HostPath,
        /// Which file system.
        what: &'static str,
    },
    /// The kernel says no.
    #[error("{path:?} cannot be opened: {source}")]
    Open {
        /// What was named.
        path: HostPath,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl OpenError {
    /// Whether it would be refused a moment later, too: what is not there, or not ours to open, rather than a host
    /// that has no descriptors or a disk that fails.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Open { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::PermissionDenied
            ),
            _ => true,
        }
    }
}

impl AllowedPaths {
    /// These directories, with links resolved, and never what lies in or holds one of `never`.
    ///
    /// # Errors
    /// The directory that cannot be resolved, and why.
    pub fn new(roots: &[PathBuf], never: Vec<PathBuf>) -> Result<Self, (PathBuf, io::Error)> {
        let resolve = |said: &PathBuf| match said.canonicalize() {
            Ok(real) => Ok(AllowedRoot { said: said.clone(), real }),
            Err(error) => Err((said.clone(), error)),
        };
        let roots = roots.iter().map(resolve).collect::<Result<_, _>>()?;
        Ok(Self { roots, never, programs: None })
    }

    /// The same without what cannot be resolved.
    #[must_use]
    pub fn present(roots: &[PathBuf], never: Vec<PathBuf>) -> Self {
        let resolve = |said: &PathBuf| {
            Some(AllowedRoot { said: said.clone(), real: said.canonicalize().ok()? })
        };
        Self { roots: roots.iter().filter_map(resolve).collect(), never, programs: None }
    }

    /// These directories, which are where they are said to be. Looks at nothing.
    #[must_use]
    pub fn resolved(roots: &[PathBuf], never: Vec<PathBuf>) -> Self {
        let root = |real: &PathBuf| AllowedRoot { said: real.clone(), real: real.clone() };
        Self { roots: roots.iter().map(root).collect(), never, programs: None }
    }

    /// The same with a directory of the operator's own, real path, whose files are given to every task.
    #[must_use]
    pub fn with_programs(self, dir: PathBuf) -> Self {
        Self { programs: Some(dir), ..self }
    }

    /// What is never given.
    pub(crate) fn never(&self) -> &[PathBuf] {
        &self.never
    }

    /// The same host for its own admin: everything but what is never given.
    #[must_use]
    pub fn everything(&self) -> Self {
        let open = Self::resolved(&[PathBuf::from("/")], self.never.clone());
        Self { programs: self.programs.clone(), ..open }
    }

    /// This host with one directory alone, real path.
    pub(crate) fn just(&self, dir: &HostPath) -> Self {
        Self::resolved(&[dir.path().to_owned()], self.never.clone())
    }

    /// Whether every directory may be given, as to the host's own admin.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.roots.iter().any(|root| root.real == Path::new("/"))
    }

    /// Whether the text begins with an allowed directory. Looks at nothing, so it tells nothing.
    #[must_use]
    pub fn names(&self, path: &HostPath) -> bool {
        self.beginnings(path).next().is_some()
    }

    /// Opens what is named, or says why not, in the same words for everything that is not given.
    ///
    /// # Errors
    /// Missing, outside, or never given.
    pub fn open(&self, path: &HostPath, links: Links) -> Result<HostHandle, OpenError> {
        let opened = self.open_plainly(path, links);
        opened.map_err(|error| match self.is_open() {
            true => error,
            false => {
                tracing::info!(%error, "a host path was not given");
                OpenError::Refused(path.clone())
            }
        })
    }
}

/// A file or directory of the host that was opened: what is done with it is done by its descriptor.
#[derive(Debug, Clone)]
pub struct HostHandle {
    fd: Arc<OwnedFd>,
    said: HostPath,
    kind: FileType,
    mode: u32,
    len: u64,
}

impl HostHandle {
    fn new(fd: OwnedFd, said: HostPath, found: &Stat) -> Self {
        Self {
            fd: Arc::new(fd),
            said,
            kind: FileType::from_raw_mode(found.st_mode),
            mode: found.st_mode & 0o777,
            len: u64::try_from(found.st_size).unwrap_or(u64::MAX),
        }
    }

    /// A directory that this program made for its own use; no link leads to it.
    ///
    /// # Errors
    /// It is not there, or is something else.
    pub(crate) fn own(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty())?;
        let found = fstat(&fd)?;
        Ok(Self::new(fd, HostPath::said(path.display().to_string()), &found))
    }

    /// A file or directory of this program's own that stands for what was said; no link leads to it.
    ///
    /// # Errors
    /// It is not there.
    pub(crate) fn ours(path: &Path, said: HostPath) -> io::Result<Self> {
        let fd =
            openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let found = fstat(&fd)?;
        Ok(Self::new(fd, said, &found))
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    /// Its permissions, at most 0777.
    pub(crate) fn mode(&self) -> u32 {
        self.mode
    }

    /// Bytes of a file when it was opened.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// What was said, for messages.
    pub(crate) fn said(&self) -> &HostPath {
        &self.said
    }

    /// Where this process, and no other, finds it while it is open.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    /// Opens it for reading, or the regular file at `below` in it, never through a link.
    pub(crate) fn file(&self, below: &Path) -> io::Result<File> {
        // A pipe that is opened for reading would otherwise wait for its writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let plain = || io::Error::other("it is not a regular file");
        let file = match below.as_os_str().is_empty() {
            true if !self.is_file() => return Err(plain()),
            true => File::open(self.path())?,
            false => {
                // What is mounted below is not given with it, as in a share.
                File::from(openat2(&*self.fd, below, flags, Mode::empty(), WITHIN)?)
            }
        };
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(file),
            _ => Err(plain()),
        }
    }
}

impl AsFd for HostHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Something of the host that a sandbox is made of.
#[derive(Debug, Clone)]
pub(crate) enum HostSource {
    /// A path that this program chose.
    Ours(PathBuf),
    /// What a tenant named.
    Given(HostHandle),
}

impl HostSource {
    /// Where this process, and no other, finds it.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Ours(path) => path.clone(),
            Self::Given(opened) => opened.path(),
        }
    }

    /// For messages and for the record.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Ours(path) => path.display().to_string(),
            Self::Given(opened) => opened.said.0.clone(),
        }
    }
}
