//! A PostgreSQL of somebody else's, reached by TCP: the database of a fleet, which no worker starts or stops.
//!
//! Its data lie in a directory of the test, its processes belong to an ordinary user, and it ends with the test.

use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use sqlx::{Connection, PgConnection, PgPool};
use tempfile::TempDir;

use crate::port_reservation::PortReservation;

/// Debian keeps one directory for each major version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Who runs it where root asks: PostgreSQL refuses root.
const ACCOUNTS: [&str; 2] = ["postgres", "nobody"];
const SUPERUSER: &str = "owner";
const NAME: &str = "fleet";
/// A machine that builds beside the tests makes a cluster slowly.
const PATIENCE: Duration = Duration::from_secs(90);

/// A running server.
#[derive(Debug)]
pub struct Postgres {
    dir: TempDir,
    bin: PathBuf,
    account: Option<User>,
    port: PortReservation,
    child: Option<Child>,
}

impl Postgres {
    /// A new cluster with one empty database.
    pub async fn start() -> Self {
        let account = geteuid().is_root().then(|| {
            let mut known = ACCOUNTS.iter().filter_map(|name| User::from_name(name).ok().flatten());
            known.next().expect("a user who is not root")
        });
        let dir = tempfile::Builder::new().prefix("cofferdam-pg-").tempdir().expect("a directory");
        if let Some(user) = &account {
            chown(dir.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw())).expect("chown");
        }
        let port = PortReservation::new();
        let mut this = Self { dir, bin: bin(), account, port, child: None };
        this.init();
        this.resume().await;
        let mut conn = PgConnection::connect(&this.url_of("postgres")).await.expect("it answers");
        let query = format!("CREATE DATABASE {NAME}");
        sqlx::query(sqlx::AssertSqlSafe(query)).execute(&mut conn).await.expect("a database");
        this
    }

    fn init(&self) {
        let mut command = self.command("initdb");
        command.args([
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "-U",
            SUPERUSER,
        ]);
        let output = command.arg("-D").arg(self.data()).output().expect("initdb starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// One of PostgreSQL's programs, as its user.
    fn command(&self, program: &str) -> Command {
        // Should the test be killed, the kernel ends the server.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "QUIT"]);
        if let Some(user) = &self.account {
            command.args(["--reuid", &user.uid.to_string(), "--regid", &user.gid.to_string()]);
            command.arg("--clear-groups");
        }
        command.arg(self.bin.join(program)).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Starts it, and waits until it answers. Does nothing where it runs.
    pub async fn resume(&mut self) {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE, "PostgreSQL does not start: {}", self.log());
            match self.child.as_mut().map(Child::try_wait) {
                None | Some(Ok(Some(_))) => self.child = Some(self.spawn()),
                // Whoever was killed with -9 leaves processes that hold its memory for a moment.
                Some(_) => {}
            }
            if PgConnection::connect(&self.url_of("postgres")).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn spawn(&self) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(self.log_path());
        let log = log.expect("a log");
        let port = format!("port={}", self.port.address().port());
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data());
        for setting in [
            port.as_str(),
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=400",
            "shared_buffers=64MB",
        ] {
            command.args(["-c", setting]);
        }
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        command.spawn().expect("postgres starts")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// What the server wrote.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Ends it without a word: kill -9 of its main process, or an immediate shutdown.
    pub fn end(&mut self, how: Signal) {
        if let Some(mut child) = self.child.take() {
            let pid = i32::try_from(child.id()).expect("a pid");
            let _ = kill(Pid::from_raw(pid), how);
            let _ = child.wait();
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// As `--db` takes it.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(NAME)
    }

    fn url_of(&self, name: &str) -> String {
        format!("postgres://{SUPERUSER}@{}/{name}?sslmode=prefer", self.port.address())
    }

    /// SQL on it, as an auditor would.
    pub async fn sql(&self) -> PgPool {
        PgPool::connect(&self.url()).await.expect("the database answers")
    }

    /// Its main process.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.child.as_ref().and_then(|child| i32::try_from(child.id()).ok())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.end(Signal::SIGQUIT);
        if !std::thread::panicking() {
            crate::assert_no_deadlock(self.log().as_bytes());
        }
    }
}

/// Runs a file as it is, by the real psql; the rows of its query.
#[must_use]
pub fn psql(url: &str, file: &Path) -> Vec<Vec<String>> {
    const FORM: [&str; 11] =
        ["-X", "-q", "-A", "-t", "-F", "\u{1f}", "-R", "\u{1e}", "-v", "ON_ERROR_STOP=1", "-d"];
    let mut command = Command::new(bin().join("psql"));
    let output = command.args(FORM).arg(url).arg("-f").arg(file).output().expect("psql starts");
    let (text, errors) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {errors}", file.display());
    let text = String::from_utf8(text).expect("text");
    let rows = text.trim_end_matches('\n').split('\u{1e}').filter(|row| !row.is_empty());
    rows.map(|row| row.split('\u{1f}').map(str::to_owned).collect()).collect()
}

/// The newest version's programs.
fn bin() -> PathBuf {
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir(VERSIONS)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin")))
        })
        .filter(|(_, dir)| dir.join("initdb").is_file())
        .collect();
    versions.sort_unstable();
    let found = versions.pop().map(|(_, dir)| dir).or_else(|| {
        let usual = Path::new("/usr/bin");
        usual.join("initdb").is_file().then(|| usual.to_path_buf())
    });
    found.expect("PostgreSQL's server programs (make setup)")
}
