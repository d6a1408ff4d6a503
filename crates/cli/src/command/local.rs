//! The socket of a state directory: local callers reach the server by it, and prove that it is that server before
//! they send a key.
//!
//! ```text
//! up, api:   bind a draft, 0600 from its first moment -> the address is had -> rename -> endpoint.json
//! callers:   hold the socket's inode -> its owner -> connect -> the listener's user -> every request to that inode
//! ```
//! Any local user can take the TCP port that the file of a dead server still names. A socket file can be made only by a
//! user who may write in the directory, and refuses connections once its server is dead. Paths go by descriptor, since
//! the address of a socket has room for 107 bytes.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use cofferdam_http::Local;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fchmod, fstat, open, renameat, unlinkat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use tokio::net::UnixStream;

use super::exit::Misuse;

/// Its name in the state directory.
pub(crate) const NAME: &str = "api.sock";
/// Callers that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Connecting to a socket of this host is at once, or there is a queue that nobody serves.
const PATIENCE: Duration = Duration::from_secs(2);

/// A server's socket whose listener is root or the owner of the state directory.
#[derive(Debug, Clone)]
pub(crate) struct Socket(Arc<OwnedFd>);

impl Socket {
    /// A path to this very socket, for as long as it is held.
    pub(crate) fn path(&self) -> PathBuf {
        by_descriptor(&*self.0)
    }
}

/// A socket that listens and that nobody knows yet; dropped, its file goes.
#[derive(Debug)]
pub(crate) struct Draft {
    place: OwnedFd,
    name: String,
}

impl Draft {
    /// Listens beside the state directory's socket, which another server may still have.
    ///
    /// # Errors
    /// A directory that takes no socket.
    pub(crate) fn listen(dir: &Path) -> anyhow::Result<(Self, Local)> {
        let what = || format!("cannot listen on a socket in {}", dir.display());
        bound(dir).with_context(what)
    }

    /// Puts it in the place of the state directory's socket: the server that began last is met there. That of a server that still
    /// answers is put aside, and is back in its place once this one stops.
    ///
    /// # Errors
    /// A directory that lost the draft.
    pub(crate) fn publish(self, dir: &Path, before: Option<u32>) -> anyhow::Result<()> {
        if let Some(pid) = before.filter(|_| is_answered(&dir.join(NAME))) {
            let _ = fs::rename(dir.join(NAME), dir.join(aside(pid)));
        }
        renameat(&self.place, self.name.as_str(), &self.place, NAME)
            .with_context(|| format!("cannot rename {} to {NAME}", self.name))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = unlinkat(&self.place, self.name.as_str(), AtFlags::empty());
    }
}

fn bound(dir: &Path) -> anyhow::Result<(Draft, Local)> {
    let place = directory(dir)?;
    let owner = fstat(&place)?.st_uid;
    let name = format!("{NAME}.{}", std::process::id());
    let draft = Draft { place, name };
    // One that a process of our number left behind.
    let _ = unlinkat(&draft.place, draft.name.as_str(), AtFlags::empty());
    let held = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The file takes its mode from the socket: nobody else can connect, not even for a moment.
    fchmod(&held, Mode::RUSR | Mode::WUSR)?;
    let path = by_descriptor(&draft.place).join(&draft.name);
    bind(&held, &SocketAddrUnix::new(&path)?)?;
    listen(&held, BACKLOG)?;
    Ok((draft, Local { listener: UnixListener::from(held), owner }))
}

/// Takes the socket away.
pub(crate) fn remove(dir: &Path) {
    let _ = fs::remove_file(dir.join(NAME));
}

/// Takes away the socket of a server that was put aside.
pub(crate) fn remove_aside(dir: &Path, pid: u32) {
    let _ = fs::remove_file(dir.join(aside(pid)));
}

/// Puts the socket of a server that was put aside into its place again, where it still answers; whether it does.
pub(crate) fn put_back(dir: &Path, pid: u32) -> bool {
    let path = dir.join(aside(pid));
    is_answered(&path) && fs::rename(&path, dir.join(NAME)).is_ok()
}

fn aside(pid: u32) -> String {
    format!("{NAME}.{pid}.aside")
}

/// Whether a server listens there.
fn is_answered(path: &Path) -> bool {
    let held = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    held.is_ok_and(|held| std::os::unix::net::UnixStream::connect(by_descriptor(&held)).is_ok())
}

/// The socket of the server that runs on this state directory; `None` where none runs.
///
/// # Errors
/// A socket that is not the directory's owner's, or whose listener is somebody else: nothing was sent.
pub(crate) async fn find(dir: &Path) -> anyhow::Result<Option<Socket>> {
    let path = dir.join(NAME);
    let held = match open(&path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(held) => held,
        Err(Errno::NOENT | Errno::ACCESS) => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot look at {}", path.display()));
        }
    };
    let owner = fs::metadata(dir)?.uid();
    let looked = fstat(&held)?;
    let is_socket = FileType::from_raw_mode(looked.st_mode) == FileType::Socket;
    if !is_socket || !is_trusted(looked.st_uid, owner) {
        anyhow::bail!("{}", suspect(&path, looked.st_uid));
    }
    let connected = tokio::time::timeout(PATIENCE, UnixStream::connect(by_descriptor(&held))).await;
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => match error.kind() {
            // Its server is dead: the next one takes its place.
            std::io::ErrorKind::ConnectionRefused => return Ok(None),
            std::io::ErrorKind::PermissionDenied => return Err(denied(&path).into()),
            _ => {
                return Err(error).with_context(|| format!("cannot connect to {}", path.display()));
            }
        },
        Err(_) => {
            anyhow::bail!("the server at {} accepts no connections; it may be dead", path.display())
        }
    };
    let peer = stream.peer_cred()?.uid();
    if !is_trusted(peer, owner) {
        anyhow::bail!("{}", suspect(&path, peer));
    }
    Ok(Some(Socket(Arc::new(held))))
}

/// Who may stand behind the socket of a directory of this owner's.
fn is_trusted(uid: u32, owner: u32) -> bool {
    uid == 0 || uid == owner
}

fn suspect(path: &Path, uid: u32) -> String {
    format!(
        "{} belongs to user id {uid}, which is neither root nor the directory's owner: no key was sent; remove the file, \
         and start the server again",
        path.display()
    )
}

fn denied(path: &Path) -> Misuse {
    Misuse(format!(
        "only its owner may use {}; pass --server URL, and your key in COFFERDAM_KEY or --key-file",
        path.display()
    ))
}

fn directory(dir: &Path) -> rustix::io::Result<OwnedFd> {
    open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn by_descriptor(held: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", held.as_fd().as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn serve(dir: &Path) -> Local {
        let (draft, local) = Draft::listen(dir).unwrap();
        draft.publish(dir, None).unwrap();
        local
    }

    #[tokio::test]
    async fn h5_a_socket_is_its_owners_from_the_first_moment_at_any_length_of_path() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("long".repeat(40)).join("d".repeat(200));
        fs::create_dir_all(&dir).unwrap();
        assert!(find(&dir).await.unwrap().is_none(), "there is none");
        let local = serve(&dir);
        let meta = fs::symlink_metadata(dir.join(NAME)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        let found = find(&dir).await.unwrap().expect("it listens");
        assert!(found.path().as_os_str().len() < 40);
        drop(local);
        assert!(find(&dir).await.unwrap().is_none(), "what is left of it refuses");
        // The next one takes its place; the one before is not met by who holds the old socket.
        let _local = serve(&dir);
        assert!(find(&dir).await.unwrap().is_some());
        assert!(UnixStream::connect(found.path()).await.is_err());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "no draft is left");
    }

    #[tokio::test]
    async fn h5_what_is_no_socket_or_anothers_is_refused() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(NAME), "").unwrap();
        assert!(find(home.path()).await.is_err(), "a file");
        fs::remove_file(home.path().join(NAME)).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let _local = serve(elsewhere.path());
        std::os::unix::fs::symlink(elsewhere.path().join(NAME), home.path().join(NAME)).unwrap();
        assert!(find(home.path()).await.is_err(), "a link");
        assert!(is_trusted(0, 7) && is_trusted(7, 7) && !is_trusted(7, 0) && !is_trusted(8, 7));
    }
}
