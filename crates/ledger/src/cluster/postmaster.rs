//! The server's main process: found by its pid file, started, watched, stopped.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

use super::account::Account;
use super::error::{ClusterError, tail};
use super::probe::{self, Answer};
use super::server::Server;
use super::{lock, log};

/// Recovery after a crash replays at most 512 MB of log: seconds, or a minute on a slow disk.
const START_PATIENCE: Duration = Duration::from_secs(120);
/// A fast shutdown writes at most 16 MB of buffers; after that the server is stopped as by a
/// crash, which the next start recovers from.
const STOP_PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(3);
/// A pid that no process can have (Linux ends at 2^22): it makes a pid file stale.
const NO_PID: &str = "2147483647";

/// The state of a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Postmaster {
    /// No server on it.
    Absent,
    /// A server that takes connections, or is about to, or just stopped to.
    Live { pid: i32, ready: bool, socket_dir: PathBuf },
    /// There is a pid file, and the process is not a server on this directory: left by a crash or
    /// a reboot, or written by a server that we cannot see (another container's).
    Stale { pid: i32, socket_dir: PathBuf },
}

impl Postmaster {
    /// Reads `data/postmaster.pid` and looks the process up.
    pub(super) fn of(data: &Path) -> Self {
        let text = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
        let mut lines = text.lines();
        let Some(pid) = lines.next().and_then(|line| line.trim().parse().ok()) else {
            return Self::Absent;
        };
        // data directory, start time, port, then the socket's directory
        let socket_dir = lines.nth(3).map(PathBuf::from).unwrap_or_default();
        // address, shared memory, then the status, which comes last while the server starts
        let ready = lines.nth(2).is_some_and(|status| status.trim() == "ready");
        match serves(pid, data) {
            true => Self::Live { pid, ready, socket_dir },
            false => Self::Stale { pid, socket_dir },
        }
    }

    /// Whether it takes connections now. A stale pid file is asked too: its server may be one that
    /// we cannot see.
    async fn ready(self, data: &Path) -> Result<Option<Ready>, ClusterError> {
        let (Self::Live { pid, ready: true, socket_dir } | Self::Stale { pid, socket_dir }) = self
        else {
            return Ok(None);
        };
        match probe::ask(&socket_dir).await {
            Answer::Yes => Ok(Some(Ready { pid, socket_dir })),
            Answer::NotNow => Ok(None),
            Answer::No { code, detail } => {
                Err(ClusterError::Refused { data: data.to_owned(), code, detail })
            }
        }
    }
}

/// A server that takes connections.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) pid: i32,
    pub(super) socket_dir: PathBuf,
}

/// What [`find`] found.
#[derive(Debug)]
pub(super) enum ServerLookup {
    Ready(Ready),
    /// No server, and the lock on `server.lock` that the next one gets.
    Nobody(File),
}

/// Looks for the server on `data`; one that is about to start or to stop is waited for.
///
/// Every process of a server holds `server.lock`, its standard input: so a server that has not
/// written its pid file yet, and the last children of one that crashed, are waited for too.
pub(super) async fn find(home: &Path, data: &Path) -> Result<ServerLookup, ClusterError> {
    let waiting = Stopwatch::start();
    while waiting.elapsed() < START_PATIENCE {
        let server = Postmaster::of(data);
        if !matches!(server, Postmaster::Live { .. })
            && let Some(free) = lock::now(&home.join("server.lock"))
        {
            return Ok(ServerLookup::Nobody(free));
        }
        if let Some(ready) = server.ready(data).await? {
            return Ok(ServerLookup::Ready(ready));
        }
        clock::sleep(PAUSE).await;
    }
    Err(never_ready(home))
}

/// Waits for the server that we have just started.
pub(super) async fn started(
    home: &Path,
    data: &Path,
    child: &mut Child,
) -> Result<Ready, ClusterError> {
    let waiting = Stopwatch::start();
    while waiting.elapsed() < START_PATIENCE {
        if let Ok(Some(status)) = child.try_wait() {
            let log = fs::read(home.join("log")).unwrap_or_default();
            return Err(ClusterError::program("postgres", home, status, &log));
        }
        if let Some(ready) = Postmaster::of(data).ready(data).await? {
            return Ok(ready);
        }
        clock::sleep(PAUSE).await;
    }
    Err(never_ready(home))
}

fn never_ready(home: &Path) -> ClusterError {
    ClusterError::Program {
        program: "postgres",
        status: format!("not ready after {}s", START_PATIENCE.as_secs()),
        detail: tail(&fs::read(home.join("log")).unwrap_or_default()),
    }
}

/// What a start needs.
pub(super) struct Launch<'a> {
    pub(super) home: &'a Path,
    pub(super) data: &'a Path,
    pub(super) socket_dir: &'a Path,
    pub(super) config: &'a Path,
    pub(super) account: &'a Account,
    pub(super) server: &'a Server,
    /// The lock on `server.lock`.
    pub(super) hold: File,
}

/// Starts the server in a session of its own, so that neither a terminal nor our death ends it.
pub(super) fn launch(start: Launch<'_>) -> Result<Child, ClusterError> {
    disown_pid_file(start.data)?;
    for leftover in [".s.PGSQL.5432", ".s.PGSQL.5432.lock"] {
        let path = start.socket_dir.join(leftover);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(ClusterError::io("remove", &path)(error));
            }
            _ => {}
        }
    }
    let postgres = start.server.bin.join("postgres");
    // setsid(1) makes the session and becomes the server: std has no safe way to call setsid(2).
    let setsid = Path::new("/usr/bin/setsid");
    let mut command = match setsid.exists() {
        true => {
            let mut command = start.account.command(setsid, start.home);
            command.arg(&postgres);
            command
        }
        false => {
            let mut command = start.account.command(&postgres, start.home);
            command.process_group(0);
            command
        }
    };
    command.arg("-D").arg(start.data);
    let (law, map) = (start.home.join("hba.conf"), start.home.join("ident.conf"));
    for (name, file) in [("config_file=", start.config), ("hba_file=", &law), ("ident_file=", &map)]
    {
        let mut setting = OsString::from(name);
        setting.push(file);
        command.arg("-c").arg(setting);
    }
    command.stdin(start.hold).stderr(log::open(start.home)?);
    command.spawn().map_err(ClusterError::io("run", &postgres))
}

/// Ends the server and waits until it is gone.
pub(super) async fn stop(data: &Path, child: Option<&mut Child>) -> Result<(), ClusterError> {
    let Postmaster::Live { pid, .. } = Postmaster::of(data) else { return Ok(()) };
    signal(data, Signal::SIGINT);
    if !gone(pid, data, STOP_PATIENCE).await {
        signal(data, Signal::SIGQUIT);
        if !gone(pid, data, STOP_PATIENCE).await {
            let what = "the database to stop";
            let (path, waited) = (data.to_owned(), STOP_PATIENCE * 2);
            return Err(ClusterError::Timeout { what, path, waited });
        }
    }
    if let Some(child) = child {
        let waited = child.wait().await;
        waited.map_err(ClusterError::io("wait for the server of", data))?;
    }
    Ok(())
}

/// Signals the server on `data`, if there is one: `SIGINT` is a fast shutdown, `SIGQUIT` an
/// immediate one.
pub(super) fn signal(data: &Path, signal: Signal) {
    if let Postmaster::Live { pid, .. } = Postmaster::of(data) {
        // the process may end between the look and the signal: then there is nothing to do
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

async fn gone(pid: i32, data: &Path, patience: Duration) -> bool {
    let waiting = Stopwatch::start();
    while waiting.elapsed() < patience {
        // its arguments are empty from its exit on, even where nobody has reaped it yet
        if !serves(pid, data) {
            return true;
        }
        clock::sleep(PAUSE).await;
    }
    false
}

/// Whether the process is a server on this data directory. Its command line tells, which every
/// user may read (`/proc/<pid>/exe` and `cwd` want a capability that containers lack).
fn serves(pid: i32, data: &Path) -> bool {
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let mut args = line.split(|byte| *byte == 0).map(|arg| Path::new(OsStr::from_bytes(arg)));
    let program = args.next().and_then(Path::file_name);
    program.is_some_and(|name| name == "postgres") && args.any(|arg| same(arg, data))
}

/// The same path, or the same directory by another path.
fn same(arg: &Path, data: &Path) -> bool {
    let identity = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    arg == data || (arg.is_absolute() && identity(arg).is_some_and(|id| identity(data) == Some(id)))
}

/// A stale pid file whose pid lives on as another process of the same user makes the server refuse
/// to start, and an empty one (power loss) does so for ever. The pid is replaced and not the file
/// removed: by its shared memory key the new server finds and removes what a crash left in memory.
pub(super) fn disown_pid_file(data: &Path) -> Result<(), ClusterError> {
    let path = data.join("postmaster.pid");
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        read => read.map_err(ClusterError::io("read", &path))?,
    };
    let edited = match text.split_once('\n') {
        Some((_, rest)) => overwrite(&path, &format!("{NO_PID}\n{rest}")),
        None => fs::remove_file(&path),
    };
    edited.map_err(ClusterError::io("clear", &path))
}

/// Root writes into the database user's directory here, so it follows no link.
fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    let nofollow = OFlag::O_NOFOLLOW.bits();
    let mut file = OpenOptions::new().write(true).custom_flags(nofollow).open(path)?;
    file.write_all(text.as_bytes())?;
    file.set_len(u64::try_from(text.len()).unwrap_or(0))
}
