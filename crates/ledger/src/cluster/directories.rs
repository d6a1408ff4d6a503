//! Where the cluster's files are.
//!
//! ```text
//! <state>/database/            the *home*, ours, mode 0711
//!     start.lock  users.lock   who may start or stop it; who uses it
//!     server.lock              held by the server's processes
//!     postgres.conf  log       settings; messages, bounded
//!     hba.conf  ident.conf     who may log in
//!     data/                    the database user's, mode 0700
//!     s/                       the socket, the database user's, mode 0700
//! ```
//! A home below a directory that the database's user cannot enter (root's, for example) is put
//! into `/var/lib/cofferdam/clusters/<hash>` instead, and `<state>/database/elsewhere` names it.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use sha2::{Digest, Sha256};

use super::account::Account;
use super::error::ClusterError;
use super::server::Server;

const ELSEWHERE: &str = "/var/lib/cofferdam/clusters";
/// `sockaddr_un` holds 108 bytes, the last one zero.
const SOCKET_PATH_MAX: usize = 107;
const SOCKET_NAME: &str = "/.s.PGSQL.5432";
/// So many state directories at one path were deleted while their clusters stayed: something is
/// wrong that a new directory does not mend.
const SAME_PATH_MAX: u32 = 100;

/// The state directory's own part: always there, whatever the home.
#[derive(Debug, Clone)]
pub(super) struct ClusterDirs {
    state: PathBuf,
    /// The directory `<state>/database`.
    pub(super) base: PathBuf,
}

impl ClusterDirs {
    /// Makes the state directory where it is missing (mode 0700) and finds its real path.
    pub(super) fn open(state_dir: &Path) -> Result<Self, ClusterError> {
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(state_dir);
        made.map_err(ClusterError::io("create the state directory", state_dir))?;
        let state = state_dir.canonicalize().map_err(ClusterError::io("open", state_dir))?;
        let base = state.join("database");
        create_dir(&base, 0o711)?;
        Ok(Self { state, base })
    }

    /// The state directory's real path.
    pub(super) fn state(&self) -> &Path {
        &self.state
    }

    /// The home of a cluster that was placed before.
    pub(super) fn home(&self) -> Result<Option<PathBuf>, ClusterError> {
        let pointer = self.base.join("elsewhere");
        match fs::read_to_string(&pointer) {
            Ok(path) => Ok(Some(PathBuf::from(path.trim_end()))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(self.base.join("data").is_dir().then(|| self.base.clone()))
            }
            Err(error) => Err(ClusterError::io("read", &pointer)(error)),
        }
    }

    /// Chooses the home of a new cluster.
    pub(super) async fn choose(
        &self,
        account: &Account,
        server: &Server,
    ) -> Result<PathBuf, ClusterError> {
        match self.admit(&self.base, account, server).await {
            Ok(()) => Ok(self.base.clone()),
            Err(ClusterError::Unreachable { .. }) if geteuid().is_root() => self.elsewhere(),
            Err(error) => Err(error),
        }
    }

    /// Makes sure that the database's user can enter `home`. The state directory may be opened for
    /// traversal, as it is ours and everything in it has a mode of its own; nothing above it is
    /// touched.
    pub(super) async fn admit(
        &self,
        home: &Path,
        account: &Account,
        server: &Server,
    ) -> Result<(), ClusterError> {
        if account.reaches(server, home).await? {
            return Ok(());
        }
        let unreachable =
            || ClusterError::Unreachable { path: home.to_owned(), user: account.name().to_owned() };
        let meta = self.state.metadata().map_err(ClusterError::io("look at", &self.state))?;
        let mode = meta.mode() & 0o7777;
        if meta.uid() != geteuid().as_raw() || mode & 0o011 == 0o011 {
            return Err(unreachable());
        }
        set_mode(&self.state, mode | 0o011)?;
        if account.reaches(server, home).await? {
            return Ok(());
        }
        set_mode(&self.state, mode)?;
        Err(unreachable())
    }

    /// A fresh directory outside; the pointer is written first, so that a crash leaves nothing
    /// that the state directory does not know. A directory that exists belongs to another state
    /// directory (moved away from this path, or deleted) and is left alone.
    fn elsewhere(&self) -> Result<PathBuf, ClusterError> {
        let clusters = Path::new(ELSEWHERE);
        clusters.parent().map_or(Ok(()), |dir| create_dir(dir, 0o711))?;
        create_dir(clusters, 0o711)?;
        let hash = short_hash(&self.state);
        let mut names = (0..SAME_PATH_MAX).map(|n| match n {
            0 => clusters.join(&hash),
            n => clusters.join(format!("{hash}-{n}")),
        });
        let home = names.find(|home| !home.exists()).ok_or_else(|| ClusterError::Io {
            what: "find a free name in",
            path: clusters.to_owned(),
            source: ErrorKind::AlreadyExists.into(),
        })?;
        let pointer = self.base.join("elsewhere");
        let mut line = home.as_os_str().as_bytes().to_vec();
        line.push(b'\n');
        write_durably(&pointer, &line)?;
        Ok(home)
    }
}

/// Makes the home's own directory and says, where it is not the state directory, whose it is.
pub(super) fn make_home(home: &Path, place: &ClusterDirs) -> Result<(), ClusterError> {
    create_dir(home, 0o711)?;
    if home == place.base {
        return Ok(());
    }
    let note = home.join("state-directory");
    let text = format!("{}\n", place.state.display());
    fs::write(&note, text).map_err(ClusterError::io("write", &note))
}

/// The socket's directory: in the home where the path is short and plain enough for the server's
/// settings and for `sockaddr_un`, else in `/run` (root) or `/tmp`.
pub(super) fn socket_dir(home: &Path) -> PathBuf {
    let inside = home.join("s");
    let bytes = inside.as_os_str().as_bytes();
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/._-+@:~".contains(b);
    if bytes.len() + SOCKET_NAME.len() <= SOCKET_PATH_MAX && bytes.iter().all(plain) {
        return inside;
    }
    let me = geteuid();
    match me.is_root() {
        true => Path::new("/run/cofferdam").join(short_hash(home)),
        false => PathBuf::from(format!("/tmp/cofferdam-{me}-{}", short_hash(home))),
    }
}

/// Makes the socket's directory for the account. One that was there must be nobody else's.
pub(super) fn make_socket_dir(dir: &Path, account: &Account) -> Result<(), ClusterError> {
    if let Some(run) = dir.parent().filter(|run| run.ends_with("run/cofferdam")) {
        create_dir(run, 0o711)?;
        // Whoever of ours made it first may have kept it to root; what lies in it has modes of its own.
        let mode = run.metadata().map_err(ClusterError::io("look at", run))?.mode() & 0o7777;
        if mode & 0o011 != 0o011 {
            set_mode(run, mode | 0o011)?;
        }
    }
    create_dir(dir, 0o700)?;
    let meta = dir.symlink_metadata().map_err(ClusterError::io("look at", dir))?;
    if !meta.is_dir() || (!geteuid().is_root() && meta.uid() != geteuid().as_raw()) {
        return Err(ClusterError::Owner { path: dir.to_owned(), owner: meta.uid() });
    }
    account.own(dir)
}

/// Takes away a socket directory that is not in the home. Quiet: the next start reuses a leftover.
pub(super) fn remove_socket_dir(home: &Path) {
    let dir = socket_dir(home);
    if dir.parent() != Some(home) && fs::remove_dir(&dir).is_ok() {
        let shared = dir.parent().filter(|run| run.ends_with("run/cofferdam"));
        shared.map(fs::remove_dir); // fails while another cluster's socket is in it
    }
}

/// Makes one directory with this mode; one that exists keeps its own.
pub(super) fn create_dir(dir: &Path, mode: u32) -> Result<(), ClusterError> {
    match fs::DirBuilder::new().mode(mode).create(dir) {
        Ok(()) => set_mode(dir, mode), // whatever the process's umask took away
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(ClusterError::io("create", dir)(error)),
    }
}

pub(super) fn set_mode(path: &Path, mode: u32) -> Result<(), ClusterError> {
    let set = fs::set_permissions(path, Permissions::from_mode(mode));
    set.map_err(ClusterError::io("set the mode of", path))
}

fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), ClusterError> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes).map_err(ClusterError::io("write", &fresh))?;
    sync(&fresh)?;
    fs::rename(&fresh, path).map_err(ClusterError::io("rename to", path))?;
    path.parent().map_or(Ok(()), sync)
}

/// Forces a file or a directory's names to disk.
pub(super) fn sync(path: &Path) -> Result<(), ClusterError> {
    let synced = fs::File::open(path).and_then(|file| file.sync_all());
    synced.map_err(ClusterError::io("sync", path))
}

fn short_hash(path: &Path) -> String {
    let digest = Sha256::digest(path.as_os_str().as_bytes());
    hex::encode(digest.get(..8).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_path_is_short_and_plain_wherever_the_home_is() {
        let near = Path::new("/var/lib/cofferdam/database");
        assert_eq!(socket_dir(near), near.join("s"));
        let long = PathBuf::from(format!("/{}", "x".repeat(SOCKET_PATH_MAX)));
        for home in [long.as_path(), Path::new("/a b"), Path::new("/a,b"), Path::new("/ä")] {
            let dir = socket_dir(home);
            assert!(!dir.starts_with(home) && dir.as_os_str().len() < 50, "{}", dir.display());
        }
        let most = SOCKET_PATH_MAX - SOCKET_NAME.len() - "/s".len();
        let fits = PathBuf::from(format!("/{}", "x".repeat(most - 1)));
        assert!(socket_dir(&fits).starts_with(&fits));
    }
}
