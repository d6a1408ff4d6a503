//! From a text to a descriptor, beneath an allowed root all the way.
//!
//! The kernel resolves every step from the root's descriptor and refuses to leave it. The last name is
//! opened in its directory's descriptor by itself: a file has no way up, so its directory says where it is.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat};
use rustix::io::Errno;

use super::{AllowedPaths, AllowedRoot, HostHandle, HostPath, Links, OpenError, deny_list};

/// Links at the end of a path that are followed: half of what the kernel follows in all.
const MAX_LINKS: usize = 20;
/// A name with `..` in it is looked up again if a rename came in between; a burst of renames ends.
const MAX_TRIES: usize = 64;

/// What was found: its descriptor, and that of the directory that holds it.
struct OpenEntry {
    fd: OwnedFd,
    dir: Option<OwnedFd>,
}

impl AllowedPaths {
    /// The roots that a text begins with, and what follows.
    pub(super) fn beginnings<'a>(
        &'a self,
        path: &'a HostPath,
    ) -> impl Iterator<Item = (&'a AllowedRoot, &'a Path)> {
        let text = path.path();
        let absolute = text.is_absolute() && !text.as_os_str().as_bytes().contains(&0);
        self.roots.iter().filter(move |_| absolute).filter_map(move |root| {
            let rest = text.strip_prefix(&root.said).or_else(|_| text.strip_prefix(&root.real));
            Some((root, rest.ok()?))
        })
    }

    /// The same as [`AllowedPaths::open`], with the reason.
    pub(super) fn open_plainly(
        &self,
        path: &HostPath,
        links: Links,
    ) -> Result<HostHandle, OpenError> {
        if let Some(found) = self.program(path)? {
            return Ok(found);
        }
        let mut last = OpenError::Refused(path.clone());
        for (root, rest) in self.beginnings(path) {
            let fault = |source: io::Error| OpenError::Open { path: path.clone(), source };
            match find(root, rest, links).map_err(|errno| fault(errno.into())) {
                Ok(found) => return self.admit(path, found),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// A file that the operator installed for every task; the directory itself is never given.
    fn program(&self, path: &HostPath) -> Result<Option<HostHandle>, OpenError> {
        let Some(dir) = &self.programs else { return Ok(None) };
        let Ok(rest) = path.path().strip_prefix(dir) else { return Ok(None) };
        let fault = |source: io::Error| OpenError::Open { path: path.clone(), source };
        let root = AllowedRoot { said: dir.clone(), real: dir.clone() };
        let found = find(&root, rest, Links::Refused).map_err(|errno| fault(errno.into()))?;
        let stat = fstat(&found.fd).map_err(|errno| fault(errno.into()))?;
        let opened = HostHandle::new(found.fd, path.clone(), &stat);
        match opened.is_file() {
            true => Ok(Some(opened)),
            false => Err(OpenError::State(path.clone())),
        }
    }

    /// Holds what was found against what is never given.
    fn admit(
        &self,
        path: &HostPath,
        OpenEntry { fd, dir }: OpenEntry,
    ) -> Result<HostHandle, OpenError> {
        let fault = |source: io::Error| OpenError::Open { path: path.clone(), source };
        let found = fstat(&fd).map_err(|errno| fault(errno.into()))?;
        let opened = HostHandle::new(fd, path.clone(), &found);
        if let Some(what) = deny_list::kernels(&opened).map_err(fault)? {
            return Err(OpenError::Kernel { path: path.clone(), what });
        }
        let holder = match &dir {
            Some(dir) if !opened.is_dir() => dir,
            _ => &*opened.fd,
        };
        match deny_list::is_kept(&opened, holder, &self.never).map_err(fault)? {
            true => Err(OpenError::State(path.clone())),
            false => Ok(opened),
        }
    }
}

/// Opens a path beneath a root.
fn find(root: &AllowedRoot, rest: &Path, links: Links) -> Result<OpenEntry, Errno> {
    let plain = ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let top = openat2(CWD, &root.real, PATH | OFlags::DIRECTORY, Mode::empty(), plain)?;
    // Where everything is open there is nothing to leave, and an absolute link begins where the root is.
    let is_open = root.real == Path::new("/");
    let within = match (is_open, links) {
        (true, _) => ResolveFlags::NO_MAGICLINKS | ResolveFlags::IN_ROOT,
        (false, Links::Beneath) => ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH,
        (false, Links::Refused) => plain | ResolveFlags::BENEATH,
    };
    let mut rest = rest.to_owned();
    for _ in 0..=MAX_LINKS {
        let (above, Some(name)) = split(&rest) else {
            let whole = if rest.as_os_str().is_empty() { Path::new(".") } else { &rest };
            let fd = beneath(&top, whole, OFlags::DIRECTORY, within)?;
            return Ok(OpenEntry { fd, dir: None });
        };
        let dir = beneath(&top, &above, OFlags::DIRECTORY, within)?;
        let fd = openat(&dir, name, PATH | OFlags::NOFOLLOW, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::Symlink {
            return Ok(OpenEntry { fd, dir: Some(dir) });
        }
        let target = readlinkat(&fd, "", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        rest = match target.strip_prefix("/") {
            Ok(from_top) if is_open => from_top.to_owned(),
            Err(_) if is_open || links == Links::Beneath => above.join(target),
            Ok(_) => return Err(Errno::XDEV),
            Err(_) => return Err(Errno::LOOP),
        };
    }
    Err(Errno::LOOP)
}

const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

fn beneath(
    top: &OwnedFd,
    path: &Path,
    kind: OFlags,
    within: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut tries = 0;
    loop {
        match openat2(top, path, PATH | kind, Mode::empty(), within) {
            Err(Errno::AGAIN) if tries < MAX_TRIES => tries += 1,
            done => return done,
        }
    }
}

/// The directory part, and the last name if it is one; `..` is not.
fn split(rest: &Path) -> (PathBuf, Option<&OsStr>) {
    let mut parts = rest.components();
    match parts.next_back() {
        Some(Component::Normal(name)) => {
            let above = parts.as_path();
            let is_top = above.as_os_str().is_empty();
            let above = if is_top { Path::new(".") } else { above };
            (above.to_owned(), Some(name))
        }
        _ => (PathBuf::new(), None),
    }
}
