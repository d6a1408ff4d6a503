//! The embedded database: a private PostgreSQL cluster in the state directory.
//!
//! ```text
//! start:  start.lock -> users.lock (shared) -> server.lock free? -- no --> wait for it, use it
//!                                                    yes -> data there? -- no --> initdb
//!                                                    start it with server.lock, wait, use it
//! stop:   start.lock -> give up users.lock -> nobody else? -> shut the server down, wait
//! kill:   the locks fall, the server stays; the next start finds it by its pid file
//! crash:  server.lock falls; whoever uses the cluster starts it again
//! ```
//! **The server listens on one unix socket, in a directory that only its user (and root) can enter,
//! and on no network address.** It runs as an unprivileged user when we are root. It is a process
//! of its own: it outlives a killed parent, and any number of processes may share it. The last one
//! to stop shuts it down.

mod account;
mod directories;
mod error;
mod fetch;
mod init;
mod launch;
mod lock;
mod log;
mod names;
mod postmaster;
mod probe;
mod roles;
mod server;
mod settings;
mod supervisor;

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cofferdam_ambient::clock;
use nix::sys::signal::Signal;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};

use self::account::Account;
use self::directories::ClusterDirs;
pub use self::error::ClusterError;
use self::names::{LEDGER, NAME};
pub use self::server::Search;
use self::supervisor::ServerProcess;

/// How often, and how far apart, `Drop` looks for its turn: a start by another process makes that
/// process a user anyway, and another one's goodbye takes a millisecond.
const DROP_TRIES: u32 = 25;
const DROP_PAUSE: Duration = Duration::from_millis(2);

/// A running cluster that this process uses. End it with [`Cluster::stop`]: dropping only asks the
/// server to end, if nobody else uses it, and does not wait.
#[derive(Debug)]
pub struct Cluster {
    start_lock: PathBuf,
    home: PathBuf,
    data: PathBuf,
    socket_dir: PathBuf,
    running: Arc<ServerProcess>,
    /// The shared hold that counts us as a user; `None` once given up.
    users: Option<File>,
    /// Who starts the server again, and how it is told to end.
    supervisor: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    log_bound: AbortHandle,
}

impl Cluster {
    /// Starts the cluster of this state directory, or joins the one that runs; makes it first where
    /// there is none. Must be called within a tokio runtime with IO and time enabled.
    ///
    /// # Errors
    /// See [`ClusterError`]; every variant's text names its remedy.
    pub async fn start(state_dir: &Path) -> Result<Self, ClusterError> {
        let fetched = fetch::home(state_dir);
        let mut search = Search::machine();
        search.dirs.extend(fetch::bins(&fetched));
        match Self::start_with(state_dir, &search).await {
            Err(ClusterError::NoServer { searched, .. }) => {
                let bin = fetch::server(&fetched)
                    .await
                    .map_err(|why| ClusterError::NoServer { searched, fetch: Some(why) })?;
                search.dirs.push(bin);
                Self::start_with(state_dir, &search).await
            }
            other => other,
        }
    }

    /// [`Cluster::start`] with the server binaries looked for elsewhere.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub async fn start_with(state_dir: &Path, search: &Search) -> Result<Self, ClusterError> {
        let place = ClusterDirs::open(state_dir)?;
        let start_lock = place.base.join("start.lock");
        let _starting = lock::exclusive(&start_lock).await?;
        let home = match place.home()? {
            Some(home) => home,
            None => {
                let data = place.base.join("data");
                let server = search.server(&data).await?;
                place.choose(&Account::of(&data)?, &server).await?
            }
        };
        directories::make_home(&home, &place)?;
        let users = lock::shared(&home.join("users.lock")).await?;
        let running = Arc::new(ServerProcess::default());
        let socket_dir = supervisor::bring_up(&place, &home, search, &running).await?.socket_dir;
        let log_bound = tokio::spawn(log::bound_size(home.clone())).abort_handle();
        let (end, ended) = oneshot::channel();
        let keeping =
            supervisor::supervise(place, home.clone(), search.clone(), Arc::clone(&running), ended);
        let supervisor = Some((end, tokio::spawn(keeping)));
        let data = home.join("data");
        let users = Some(users);
        Ok(Self { start_lock, home, data, socket_dir, running, users, supervisor, log_bound })
    }

    /// The database's URL, through the unix socket.
    #[must_use]
    pub fn url(&self) -> String {
        let host = percent_encoded(self.socket_dir.as_os_str().as_bytes());
        format!("postgres://{LEDGER}@localhost/{NAME}?host={host}&sslmode=disable")
    }

    /// The same as the cluster's superuser: for maintenance by hand, and for nothing that serves.
    #[must_use]
    pub fn superuser_url(&self) -> String {
        self.url().replacen(&format!("//{LEDGER}@"), &format!("//{NAME}@"), 1)
    }

    /// The server's main process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.running.pid.load(Ordering::Acquire)
    }

    /// The directory with the cluster's files, its messages in `log`.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Stops using the cluster; the last user shuts the server down and waits until it is gone.
    ///
    /// # Errors
    /// [`ClusterError::Timeout`] when the server does not end.
    pub async fn stop(mut self) -> Result<(), ClusterError> {
        if let Some((end, keeping)) = self.supervisor.take() {
            drop(end);
            // It ends by itself; one that panicked has ended too.
            let _ = keeping.await;
        }
        // A state directory that was deleted under us has no lock, and no other user either.
        let _starting = match self.start_lock.exists() {
            true => Some(lock::exclusive(&self.start_lock).await?),
            false => None,
        };
        let users = self.users.take();
        if users.as_ref().is_none_or(lock::is_last) {
            postmaster::stop(&self.data, self.running.child.lock().await.as_mut()).await?;
            directories::remove_socket_dir(&self.home);
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.log_bound.abort();
        if let Some((_, keeping)) = &self.supervisor {
            keeping.abort();
        }
        let Some(users) = self.users.take() else { return };
        if users.unlock().is_err() {
            return;
        }
        for _ in 0..DROP_TRIES {
            if let Some(_starting) = lock::now(&self.start_lock) {
                if lock::is_last(&users) {
                    postmaster::signal(&self.data, Signal::SIGINT);
                }
                return;
            }
            clock::sleep_blocking(DROP_PAUSE);
        }
    }
}

/// The user of the host that runs the private database of a state directory, or would: `None` where
/// that is who asks.
#[must_use]
pub fn runs_as(state_dir: &Path) -> Option<String> {
    let data = state_dir.join("database/data");
    let account = Account::of(&data).ok()?;
    account.is_another().then(|| account.name().to_owned())
}

/// Whether this state directory has a private database, running or not.
#[must_use]
pub fn is_made(state_dir: &Path) -> bool {
    let base = state_dir.join("database");
    base.join("elsewhere").exists() || base.join("data").exists()
}

/// The user that is made for it; nothing else runs as this one.
pub const OWN_USER: &str = account::OWN;

pub(crate) fn percent_encoded(bytes: &[u8]) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    let encode = |b: &u8| match plain(*b) {
        true => char::from(*b).to_string(),
        false => format!("%{b:02X}"),
    };
    bytes.iter().map(encode).collect()
}
