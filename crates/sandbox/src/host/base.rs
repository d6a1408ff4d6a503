//! The lower layers: the skeleton around the host's `/usr`, and the agent.
//!
//! Each is written once into a directory that is named by its own content and moved into place as
//! a whole, so that a half-written one is never used and two workers may write it at once. The
//! digest of a base before and after a task shows that no task changed it.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use cofferdam_ambient::random;
use cofferdam_contracts::canonical::{digest, digest_bytes};
use cofferdam_contracts::id::Digest;

use super::guest::{AGENT, AGENT_PATH, GITCONFIG, GITCONFIG_PATH, NOTHING, POLLING_AGENT};
use super::{etc, tree_watch};
use crate::host::error::HostError;
use crate::host::hostpath::{AllowedPaths, HostPath, HostSource, Links, OpenError};

/// Directories of the root that a merged `/usr` turns into links and others keep as directories.
const USR_NAMES: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// What a Debian program needs of `/etc` to find its alternatives.
const ALTERNATIVES: &str = "/etc/alternatives";
/// Files of the host that the skeleton has copies of, where the host has them. The libraries that the loader knows: where one is
/// newer than that, the loader looks for it. The authorities that are trusted: some programs read them as they start, with or
/// without a network (Debian 13's pip), and Java in a form of its own.
const COPIES: [&str; 3] =
    ["etc/ld.so.cache", "etc/ssl/certs/ca-certificates.crt", "etc/ssl/certs/java/cacerts"];
/// A cache of 1 MiB knows 10,000 libraries, and 150 authorities take 0.2 MiB.
const MAX_COPY: u64 = 16 * 1024 * 1024;
/// Entries that a digest looks at. A base beyond it would cost more time than its task.
const MAX_ENTRIES: usize = 20_000;

const DIRS: [(&str, u32); 29] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/alternatives", 0o755),
    ("etc/pam.d", 0o755),
    ("etc/ssl", 0o755),
    ("etc/ssl/certs", 0o755),
    ("etc/ssl/certs/java", 0o755),
    ("home", 0o755),
    ("home/user", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/mail", 0o755),
    ("var/opt", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
    ("work", 0o755),
];
/// Whoever is root becomes another user, and nobody else does: what a host asks for concerns its own people.
const PAM_AUTH: &str = "auth sufficient pam_rootok.so\nauth requisite pam_deny.so\n";
const PAM_ACCOUNT: &str = "account required pam_permit.so\n";
const PAM_SESSION: &str = "session required pam_permit.so\n";
/// Links that a program looks for, where the host has none to copy. The time is everybody's: a task's results are not the
/// host's place.
const LINKS: [(&str, &str); 3] = [
    ("etc/localtime", "/usr/share/zoneinfo/Etc/UTC"),
    ("var/lock", "/run/lock"),
    ("var/run", "/run"),
];
const FILES: [(&str, &str); 14] = [
    ("etc/group", "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"),
    ("etc/hostname", "cofferdam\n"),
    ("etc/hosts", "127.0.0.1 localhost cofferdam\n::1 localhost cofferdam\n"),
    // No host's own: it would say which one.
    ("etc/machine-id", "c0ffe2da3c0ffe2da3c0ffe2da3c0ffe\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    ("etc/pam.d/common-account", PAM_ACCOUNT),
    ("etc/pam.d/common-auth", PAM_AUTH),
    ("etc/pam.d/common-password", "password requisite pam_deny.so\n"),
    ("etc/pam.d/common-session", PAM_SESSION),
    ("etc/pam.d/common-session-noninteractive", PAM_SESSION),
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("etc/resolv.conf", ""),
    ("etc/shells", "/bin/sh\n/bin/bash\n"),
    ("etc/timezone", "Etc/UTC\n"),
];
/// Mount points and work places that any root file system gets, whatever it was made for.
const GUEST_DIRS: [(&str, u32); 8] = [
    (".cofferdam", 0o755),
    (NOTHING, 0o555),
    ("dev", 0o755),
    ("proc", 0o555),
    ("run", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("work", 0o755),
];

/// The lowest layer of a sandbox: what is below everything that it writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// A directory of the state directory: the host's skeleton, or an image's root.
    Ours(PathBuf),
    /// A directory that a request names.
    Given(HostPath),
}

impl Base {
    /// Whether it is this directory of ours.
    pub(crate) fn is(&self, path: &Path) -> bool {
        matches!(self, Self::Ours(ours) if ours == path)
    }

    /// Opens it. A link on the way is refused: a directory that a tenant may write in would lead to
    /// another base at every start.
    pub(crate) fn open(&self, allowed: &AllowedPaths) -> Result<HostSource, OpenError> {
        match self {
            Self::Ours(path) => Ok(HostSource::Ours(path.clone())),
            Self::Given(path) => allowed.open(path, Links::Refused).map(HostSource::Given),
        }
    }
}

/// Host directories that are shown read-only at the same place.
pub(crate) fn binds() -> Vec<PathBuf> {
    let usr = USR_NAMES
        .iter()
        .map(|name| Path::new("/").join(name))
        .filter(|path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()));
    let etc = Some(PathBuf::from(ALTERNATIVES)).filter(|path| path.is_dir());
    std::iter::once(PathBuf::from("/usr")).chain(usr).chain(etc).collect()
}

/// Writes the skeleton of `envRef: host` below `dir` and gives its path.
pub(crate) fn skeleton(dir: &Path) -> Result<PathBuf, HostError> {
    let links: Vec<(&str, PathBuf)> = USR_NAMES
        .iter()
        .filter_map(|name| Some((*name, fs::read_link(Path::new("/").join(name)).ok()?)))
        .collect();
    let plain: Vec<&str> =
        USR_NAMES.iter().copied().filter(|name| Path::new("/").join(name).is_dir()).collect();
    let copies = COPIES.map(|name| (name, copy_of(name)));
    let described = copies.each_ref().map(|(_, bytes)| bytes.as_deref().map(digest_bytes));
    let packages = etc::of_packages(Path::new("/"));
    let packed: Vec<_> =
        packages.files.iter().map(|(name, bytes)| (name, digest_bytes(bytes))).collect();
    let name =
        digest(&(&DIRS, &FILES, &LINKS, &links, &plain, &described, &packed, &packages.links))?;
    place(dir, &format!("host-{name}"), |at| {
        for (name, mode) in DIRS {
            make_dir(at, name, mode)?;
        }
        for (name, text) in FILES {
            write(&at.join(name), text.as_bytes(), 0o644)?;
        }
        for (name, bytes) in copies.iter().filter_map(|(name, bytes)| Some((name, bytes.as_ref()?)))
        {
            write(&at.join(name), bytes, 0o644)?;
        }
        for (name, target) in &links {
            symlink(target, at.join(name))?;
        }
        for (name, target) in LINKS {
            symlink(target, at.join(name))?;
        }
        let parents = packages.files.keys().chain(packages.links.keys());
        for parent in parents.filter_map(|name| at.join(name).parent().map(Path::to_owned)) {
            DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        // What is a sandbox's own is there already.
        for (name, bytes) in packages.files.iter().filter(|(name, _)| !at.join(name).exists()) {
            write(&at.join(name), bytes, 0o644)?;
        }
        for (name, target) in &packages.links {
            match symlink(target, at.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        for name in plain.iter().filter(|name| !links.iter().any(|(link, _)| link == *name)) {
            make_dir(at, name, 0o755)?;
        }
        Ok(())
    })
}

/// The host's file, unless it is none.
fn copy_of(name: &str) -> Option<Vec<u8>> {
    let path = Path::new("/").join(name);
    let fits = fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() <= MAX_COPY);
    if fits { fs::read(&path).ok() } else { None }
}

/// Writes the agent's layer below `dir` and gives its path.
pub(crate) fn guest(dir: &Path) -> Result<PathBuf, HostError> {
    layer(dir, AGENT)
}

/// The same of the agent for gVisor.
pub(crate) fn polling_guest(dir: &Path) -> Result<PathBuf, HostError> {
    layer(dir, POLLING_AGENT)
}

fn layer(dir: &Path, agent: &[u8]) -> Result<PathBuf, HostError> {
    let content = digest_bytes(&[agent, GITCONFIG.as_bytes()].concat());
    let name = format!("{content}-{}", GUEST_DIRS.len());
    place(dir, &name, |at| {
        for (name, mode) in GUEST_DIRS {
            make_dir(at, name, mode)?;
        }
        write(&at.join(GITCONFIG_PATH.trim_start_matches('/')), GITCONFIG.as_bytes(), 0o644)?;
        write(&at.join(AGENT_PATH.trim_start_matches('/')), agent, 0o555)
    })
}

/// Makes an empty directory below `dir` and gives its path.
pub(crate) fn empty(dir: &Path) -> Result<PathBuf, HostError> {
    place(dir, "empty", |_| Ok(()))
}

/// Makes a directory as a whole, unless it is there already.
pub(crate) fn place(
    dir: &Path,
    name: &str,
    fill: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<PathBuf, HostError> {
    let done = dir.join(name);
    if done.is_dir() {
        return Ok(done);
    }
    // A name of its own for every writer; whoever moves first wins, the other finds it done.
    let draft = dir.join(format!(".draft-{}", random::secret_hex(8)));
    let fault = |source| HostError::State { path: done.clone(), source };
    DirBuilder::new().mode(0o755).create(&draft).map_err(fault)?;
    fill(&draft).map_err(fault)?;
    if let Err(source) = fs::rename(&draft, &done) {
        fs::remove_dir_all(&draft).map_err(fault)?;
        if !done.is_dir() {
            return Err(HostError::State { path: done, source });
        }
    }
    Ok(done)
}

fn make_dir(at: &Path, name: &str, mode: u32) -> io::Result<()> {
    let path = at.join(name);
    fs::create_dir(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(mode))
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    fs::write(path, bytes)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Digest of a tree's paths and metadata (kind, mode, owner, size, change of content, target of a
/// link), in the order of the names. `None`: the tree has more than 20,000 entries.
///
/// A base that is watched is walked only where anything happened in it.
pub(crate) fn tree_digest(root: &Path) -> io::Result<Option<Digest>> {
    tree_watch::digest(root, || tree_digest_of(root, MAX_ENTRIES))
}

/// The base's digest, and again whenever it is asked for, without a walk.
pub(crate) fn watched_digest(root: &Path) -> io::Result<Option<Digest>> {
    tree_watch::watch(root);
    tree_digest(root)
}

/// The same by a walk, with another bound.
pub(crate) fn tree_digest_of(root: &Path, most: usize) -> io::Result<Option<Digest>> {
    let mut text = Vec::new();
    let mut entries = 0;
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        let mut names = Vec::new();
        for entry in fs::read_dir(&dir)? {
            entries += 1;
            if entries > most {
                return Ok(None);
            }
            names.push(entry?.path());
        }
        names.sort_unstable();
        for path in names {
            let found = fs::symlink_metadata(&path)?;
            describe(&mut text, root, &path, &found)?;
            if found.is_dir() {
                open.push(path);
            }
        }
    }
    Ok(Some(digest_bytes(&text)))
}

fn describe(text: &mut Vec<u8>, root: &Path, path: &Path, found: &fs::Metadata) -> io::Result<()> {
    let relative = path.strip_prefix(root).map_err(io::Error::other)?;
    text.extend_from_slice(relative.as_os_str().as_bytes());
    // A directory's size and times belong to its file system; its entries are described themselves.
    let size = if found.is_dir() { 0 } else { found.len() };
    let (seconds, nanos) =
        if found.is_dir() { (0, 0) } else { (found.mtime(), found.mtime_nsec()) };
    let (mode, uid, gid) = (found.mode(), found.uid(), found.gid());
    let line = format!("\0{mode:o} {uid} {gid} {size} {seconds}.{nanos} ");
    text.extend_from_slice(line.as_bytes());
    if found.is_symlink() {
        text.extend_from_slice(fs::read_link(path)?.as_os_str().as_bytes());
    }
    text.push(b'\n');
    Ok(())
}
