//! What the end-to-end tests stand on: a home of their own, the real binary, its API and its SQL.
//!
//! Every [`Home`] has its own state directory and so its own database; nothing is shared between
//! tests, and dropping it ends every process that it started and looks for what must not be left.
//!
//! One file: a home and its program, which every test of the product has.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::as_conversions,
    reason = "a test that cannot go on should say so and stop"
)]

mod cluster;
pub mod declarations;
pub mod e2b;
pub mod leftovers;
pub mod measurement;
pub mod not_run;
pub mod old_runs;
pub mod port_reservation;
pub mod postgres;
pub mod programs;
pub mod statements;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, PgPool};
use tempfile::TempDir;

/// The binary beside the tests' own: `make test` builds it first.
#[must_use]
pub fn binary() -> PathBuf {
    let exe = std::env::current_exe().expect("the test has a path");
    // A test is target/<profile>/deps/<test>, the bench is target/<profile>/bench.
    let found = exe
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("cofferdam"))
        .find(|path| path.is_file());
    found.expect("the binary is missing: run `cargo build --bin cofferdam` (make test does)")
}

/// The repository's root.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the repository")
        .to_path_buf()
}

/// What would have a command talk to another server, database or key than its home's.
const UNSET: [&str; 7] = [
    "DATABASE_URL",
    "COFFERDAM_SERVER",
    "COFFERDAM_KEY",
    "COFFERDAM_KEY_FILE",
    "COFFERDAM_ALLOW_HOST",
    "RANDOM_SEED",
    // What CI sets for the tests; a test of the binary's own strict mode sets it itself.
    "OC_STRICT_MODE",
];

/// Has every server of a test that chooses no runtime use this one, such as `docker`.
const RUNTIME: &str = "COFFERDAM_TEST_RUNTIME";

/// The arguments of a serving command with that runtime, where it has sandboxes and none was chosen. Pure.
fn with_runtime(args: &[&str], runtime: Option<String>) -> Vec<String> {
    let holds = matches!(args.first(), Some(&"up" | &"worker")) && !args.contains(&"--runtime");
    let more = runtime.filter(|_| holds).map(|runtime| ["--runtime".to_owned(), runtime]);
    args.iter().map(|arg| (*arg).to_owned()).chain(more.into_iter().flatten()).collect()
}

/// What the private database of a state directory wrote, as the path below that directory.
const DATABASE_LOG: &str = "database/log";

/// A state directory of one test.
#[derive(Debug)]
pub struct Home {
    dir: TempDir,
    /// A database elsewhere, in place of a private one.
    database: Option<String>,
    /// Its program.
    program: PathBuf,
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

impl Home {
    /// A fresh one, whose database and keys were made before: all of one run are copies of one installation, and another
    /// installation or host is an [`Home::empty`].
    #[must_use]
    pub fn new() -> Self {
        let home = Self::empty();
        cluster::copy_into(home.path());
        home
    }

    /// An empty one: its first command makes the database, with an identity of its own.
    #[must_use]
    pub fn empty() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// An empty one below a directory: on its file system.
    #[must_use]
    pub fn below(dir: &Path) -> Self {
        let mut home = tempfile::Builder::new();
        let home = home.prefix("cofferdam-test-").tempdir_in(dir);
        let dir = home.expect("a temporary directory");
        Self { dir, database: None, program: binary() }
    }

    /// An empty one whose commands use this database, which must outlive it.
    #[must_use]
    pub fn on(url: &str) -> Self {
        let mut home = Self::empty();
        home.database = Some(url.to_owned());
        home
    }

    /// An empty one whose commands are another build of the binary.
    #[must_use]
    pub fn of(program: &Path) -> Self {
        let mut home = Self::empty();
        home.program = program.to_owned();
        home
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The binary on this home, with a clean environment.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env("COFFERDAM_STATE", self.path()).current_dir(repository());
        for name in UNSET {
            command.env_remove(name);
        }
        if let Some(url) = &self.database {
            command.env("DATABASE_URL", url);
        }
        command.stdin(Stdio::null());
        command
    }

    /// The same for a command that serves: should this test be killed, the kernel ends it, which a
    /// killed test's own clean-up cannot.
    fn serving(&self, args: &[&str]) -> Command {
        let plain = self.command(args);
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(plain.get_program()).args(plain.get_args());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.current_dir(repository()).stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    #[must_use]
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary starts")
    }

    /// Runs it to its end and reads the one JSON object that it prints.
    #[must_use]
    pub fn run_json(&self, args: &[&str]) -> Value {
        let output = self.run(args);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
            panic!(
                "{args:?}: {e}: {}\n{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }

    /// Where its database answers, as `cofferdam db` says.
    #[must_use]
    pub fn database_url(&self) -> String {
        self.database.clone().unwrap_or_else(|| database_url(self.path()))
    }

    /// `cofferdam up` on a free port.
    #[must_use]
    pub fn up(&self) -> Server {
        self.up_with(&[], &[])
    }

    /// The same with more arguments and environment.
    #[must_use]
    pub fn up_with(&self, args: &[&str], env: &[(&str, &str)]) -> Server {
        let mut all = vec!["up", "--listen", "127.0.0.1:0"];
        all.extend(args);
        Server::start(self, &all, env)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // A database that a killed server left behind has no owner to stop it: starting and ending
        // any command makes that command its last user.
        let _ = self.command(&["ps"]).output();
        if !std::thread::panicking() {
            assert_nothing_left(self.path());
            let log = std::fs::read(self.path().join(DATABASE_LOG)).unwrap_or_default();
            assert_no_deadlock(&log);
        }
        // A worker that was killed leaves its live directory to the next one, which never comes.
        let live = live_dir(self.path());
        if live != self.path() {
            let _ = std::fs::remove_dir_all(live);
        }
        wires_sweep();
    }
}

/// PostgreSQL ends one of two transactions that wait for each other. What it ended is asked again, so that a test may pass; ours lock
/// in one order, and a person's statement has no second try.
fn assert_no_deadlock(log: &[u8]) {
    let log = String::from_utf8_lossy(log);
    let at = log.lines().position(|line| line.contains("deadlock detected"));
    let Some(at) = at else { return };
    let told: Vec<&str> = log.lines().skip(at.saturating_sub(2)).take(12).collect();
    panic!("the database ended a transaction of ours: {told:#?}");
}

/// Takes away where killed processes met a database on the network: the next process that meets one would, and none may follow.
fn wires_sweep() {
    let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    let is_wire = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("cofferdam-wire-");
    for path in entries.filter(|entry| is_wire(&entry.file_name())).map(|entry| entry.path()) {
        // Who lives holds it.
        if std::fs::File::open(path.join("lock")).is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

fn database_url(state: &Path) -> String {
    let output = Command::new(binary())
        .args(["db"])
        .env("COFFERDAM_STATE", state)
        .env_remove("DATABASE_URL")
        .output()
        .expect("the binary starts");
    let url = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(url.starts_with("postgres"), "{}", String::from_utf8_lossy(&output.stderr));
    url
}

/// Where the sandboxes of a state directory lie.
#[must_use]
pub fn live_dir(state: &Path) -> PathBuf {
    std::fs::read_link(state.join("live")).unwrap_or_else(|_| state.to_path_buf())
}

/// No process, mount or cgroup of this state directory is left on the host.
pub fn assert_nothing_left(state: &Path) {
    let state = state.canonicalize().unwrap_or_else(|_| state.to_path_buf());
    let texts = [&state, &live_dir(&state)].map(|path| path.to_string_lossy().into_owned());
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut left = Vec::new();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for text in &texts {
            left.extend(mounts.lines().filter(|l| l.contains(text)).map(|l| format!("mount {l}")));
            let processes = processes_mentioning(text).into_iter();
            left.extend(processes.map(|(pid, cmd)| format!("process {pid} {cmd}")));
        }
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left on the host: {left:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Processes whose command line names a text, this one excepted.
#[must_use]
pub fn processes_mentioning(text: &str) -> Vec<(i32, String)> {
    let me = std::process::id().to_string();
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|b| b.is_ascii_digit()) && *name != me)
        .filter_map(|pid| {
            let cmd = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let cmd = String::from_utf8_lossy(&cmd).replace('\0', " ");
            cmd.contains(text).then(|| (pid.parse().unwrap_or(0), cmd))
        })
        .collect()
}

/// A running `cofferdam up`, `shim` or `worker`.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Its address, or `worker ready`.
    pub url: String,
    /// The admin key of its state directory.
    pub key: String,
    state: PathBuf,
    database: Option<String>,
    http: reqwest::Client,
}

impl Server {
    /// Starts any serving command and waits for its first line.
    #[must_use]
    pub fn start(home: &Home, args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::logged(home, args, env, Stdio::inherit())
    }

    /// The same with its log elsewhere.
    #[must_use]
    pub fn logged(home: &Home, args: &[&str], env: &[(&str, &str)], log: Stdio) -> Self {
        let listens = matches!(args, ["up" | "api" | "shim", ..]);
        assert!(!listens || args.contains(&"--listen"), "{args:?}: others may have the usual port");
        // Before anything runs that a panic would leave behind. One provider is enough for all.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy();
        // Sooner than the server ends idle connections.
        let http = http.pool_idle_timeout(Duration::from_secs(5)).build().expect("a client");
        let args = with_runtime(args, std::env::var(RUNTIME).ok());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = home.serving(&args);
        command.envs(env.iter().copied()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut url = String::new();
        lines.read_line(&mut url).expect("the first line");
        let url = url.trim().to_owned();
        if url.is_empty() {
            let status = child.wait().expect("it ended");
            panic!("{args:?} did not start: {status}");
        }
        let key = std::fs::read_to_string(home.path().join("admin.key")).expect("an admin key");
        Self {
            child,
            url,
            key: key.trim().to_owned(),
            state: home.path().to_path_buf(),
            database: home.database.clone(),
            http,
        }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    /// Status and JSON of a GET with the admin key.
    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.get_as(&self.key, path).await
    }

    /// The same with another key.
    pub async fn get_as(&self, key: &str, path: &str) -> (u16, Value) {
        self.request("GET", path, Some(key), None).await
    }

    /// Status and JSON of a POST with the admin key.
    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post_as(&self.key, path, body).await
    }

    /// The same with another key.
    pub async fn post_as(&self, key: &str, path: &str, body: &Value) -> (u16, Value) {
        self.request("POST", path, Some(key), Some(body.to_string().into_bytes())).await
    }

    /// Status and JSON of any request; the body as it is.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: Option<Vec<u8>>,
    ) -> (u16, Value) {
        let verb = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        let mut request = self.http.request(verb, format!("{}{path}", self.url));
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        let kind = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        declarations::check(method, path, status, kind.unwrap_or_default());
        let bytes = answer.bytes().await.expect("a body");
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    /// A new key: its id and its secret. The body says whose it is and what it may.
    pub async fn new_key(&self, body: &Value) -> (String, String) {
        let (status, made) = self.post("/api/keys", body).await;
        assert_eq!(status, 201, "{made}");
        (text(&made, "keyId"), text(&made, "key"))
    }

    /// Imports a recipe text and runs it; the run's header.
    pub async fn run_recipe(&self, yaml: &str, form: Value, opts: Value) -> Value {
        let (status, header) = self.start_recipe_as(&self.key, yaml, form, opts).await;
        assert!(status == 201 || status == 200, "{status} {header}");
        header
    }

    /// Imports a recipe text and asks to run it, both with another key: the answer to the start.
    pub async fn start_recipe_as(
        &self,
        key: &str,
        yaml: &str,
        form: Value,
        opts: Value,
    ) -> (u16, Value) {
        let yaml = json!({"yaml": yaml});
        let (status, imported) = self.post_as(key, "/api/recipes/import", &yaml).await;
        assert_eq!(status, 201, "{imported}");
        let body = json!({"recipeRef": imported["recipeRef"], "formData": form, "opts": opts});
        self.post_as(key, "/api/run", &body).await
    }

    /// The run's header once `ready` says so; fails after a minute.
    pub async fn wait_for(&self, run: &str, what: &str, ready: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let (_, header) = self.get(&format!("/api/runs/{run}")).await;
            if ready(&header) {
                return header;
            }
            assert!(Instant::now() < deadline, "run {run} is not {what}: {header}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The header of a run that the ledger and the engine both call over.
    pub async fn wait_terminal(&self, run: &str) -> Value {
        self.wait_for(run, "terminal", |h| {
            let live = matches!(h["durableStatus"].as_str(), Some("PENDING" | "ENQUEUED"));
            ["succeeded", "failed", "canceled", "retries_exceeded"]
                .contains(&h["status"].as_str().unwrap_or(""))
                && !live
        })
        .await
    }

    /// SQL on its database, as an auditor would.
    pub async fn sql(&self) -> PgPool {
        let url = self.database.clone().unwrap_or_else(|| database_url(&self.state));
        PgPool::connect(&url).await.expect("the database answers")
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// SIGKILL: the process gets no chance to clean up.
    pub fn kill(&mut self) {
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGKILL);
        let _ = self.child.wait();
    }

    /// SIGTERM, and its exit status.
    pub fn stop(&mut self) -> std::process::ExitStatus {
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGTERM);
        self.child.wait().expect("it ends")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.stop();
        }
    }
}

/// The text of a field that must be there.
#[must_use]
#[track_caller]
pub fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}")).to_owned()
}

/// The number of rows of every table of both schemas.
///
/// The leader's lease is left out: a worker takes it at a moment of its own, whatever is asked of the API. So are the
/// parts of a tenant's sums: which of them a statement adds to is its connection's; and the chain, which the leader seals later.
pub async fn row_counts(sql: &PgPool) -> Vec<(String, i64)> {
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname IN ('app', 'dbos')
            AND tablename NOT IN ('leader', 'blob_usage_parts', 'usage_parts', 'ledger_chain') ORDER BY 1",
    )
    .fetch_all(sql)
    .await
    .expect("the tables");
    let mut counts = Vec::new();
    for table in tables {
        let query = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        counts.push((table, sqlx::query_scalar(query).fetch_one(sql).await.expect("a count")));
    }
    counts
}

/// The URL of a private database as its cluster's superuser, whom root may be.
#[must_use]
pub fn superuser_url(url: &str) -> String {
    url.replacen("//ledger@", "//cofferdam@", 1)
}

/// A connection of the superuser to the same database.
pub async fn superuser(sql: &PgPool) -> PgConnection {
    let options = sql.connect_options().as_ref().clone().username("cofferdam");
    PgConnection::connect_with(&options).await.expect("root is the superuser of its own database")
}

/// Changes rows past every trigger, as somebody with the database in hand would; at least one.
pub async fn tamper(sql: &PgPool, statement: &str) {
    let mut conn = superuser(sql).await;
    let mut tx = conn.begin().await.expect("a transaction");
    sqlx::query("SET LOCAL session_replication_role = replica")
        .execute(&mut *tx)
        .await
        .expect("a superuser");
    let query = sqlx::query(sqlx::AssertSqlSafe(statement.to_owned()));
    let done = query.execute(&mut *tx).await.expect(statement);
    assert!(done.rows_affected() > 0, "it changed nothing: {statement}");
    tx.commit().await.expect("a commit");
}
