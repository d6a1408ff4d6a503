//! What the tests that kill and count have in common.

pub mod agents;
pub mod dispatches;
pub mod fake_model;
pub mod gates;
pub mod git;
pub mod index;
pub mod install;
pub mod proxy;
pub mod pty;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant, SystemTime};

use cofferdam_tests::not_run::{left_out, not_run};
use cofferdam_tests::{Home, Server, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};

/// Whether suites that CI runs in part run whole, as `make clients` and `make chaos` have it.
pub fn is_long() -> bool {
    std::env::var_os("COFFERDAM_TEST_LONG").is_some()
}

/// Whether this host has a class; where it has not, that is reported.
pub fn has_class(class: &str) -> bool {
    if left_out(class) {
        return false;
    }
    let doctor = Home::new().run_json(&["doctor", "--json"]);
    let found = doctor["classes"][class] == true;
    if !found {
        not_run(&format!("the class {class}"), &doctor["classNotes"][class].to_string());
    }
    found
}

/// Every so many of these in CI, the first and the last always; all of them in a long run.
pub fn part<T: Copy>(all: &[T], every: usize) -> Vec<T> {
    let last = all.len().saturating_sub(1);
    let is_in = |n: usize| is_long() || n == last || n.is_multiple_of(every);
    all.iter().copied().enumerate().filter(|(n, _)| is_in(*n)).map(|(_, one)| one).collect()
}

/// Random choices that a printed seed replays (`COFFERDAM_TEST_SEED`). SplitMix64.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// Seeded by the environment, else by the clock; says with what.
    pub fn new(test: &str) -> Self {
        let given = std::env::var("COFFERDAM_TEST_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            u64::from(since.subsec_nanos()) ^ since.as_secs()
        });
        eprintln!("{test}: replay with COFFERDAM_TEST_SEED={seed}");
        Self(seed)
    }

    /// Seeded by the caller.
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// What [`Dice::of`] would go on from.
    pub fn seed(&self) -> u64 {
        self.0
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    /// A time between two, to let the system get anywhere.
    pub async fn moment(&mut self, from_ms: u64, to_ms: u64) {
        let ms = from_ms + self.below(to_ms - from_ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

/// Polls until `ready`, or fails after `limit`.
pub async fn until(what: &str, limit: Duration, mut ready: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !ready().await {
        assert!(Instant::now() < deadline, "not after {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What `ask` finds, asked again until it finds something, or fails after a minute: a busy machine takes long.
pub async fn found<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not after a minute: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether this machine has npm; where not, the test that asks is reported as not run, with what it is for.
pub fn has_npm(what: &str) -> bool {
    let has = Command::new("npm").arg("--version").output().is_ok_and(|said| said.status.success());
    if !has {
        not_run("npm", &format!("{what}: apt-get install npm"));
    }
    has
}

/// A number out of SQL.
pub async fn count(sql: &PgPool, query: &str) -> i64 {
    sqlx::query_scalar(sqlx::AssertSqlSafe(query.to_owned())).fetch_one(sql).await.expect(query)
}

/// Waits until a sandbox executes.
pub async fn executing(sql: &PgPool, limit: Duration) {
    until("a sandbox executes", limit, async || {
        count(sql, "SELECT count(*) FROM app.remote_execution_sessions WHERE state = 'EXECUTING'")
            .await
            > 0
    })
    .await;
}

/// Texts out of SQL.
pub async fn texts(sql: &PgPool, query: &str) -> Vec<String> {
    sqlx::query_scalar(sqlx::AssertSqlSafe(query.to_owned())).fetch_all(sql).await.expect(query)
}

/// As if the seconds had passed for which a leader that is silent goes on leading.
pub async fn lose_lead(sql: &PgPool) {
    sqlx::query("UPDATE app.leader SET until = clock_timestamp() - interval '1 minute'")
        .execute(sql)
        .await
        .unwrap();
}

/// Whoever holds this lock claims from the queue; workers wait until the connection is closed.
pub async fn hold_claims(sql: &PgPool, queue: &str) -> PoolConnection<Postgres> {
    let mut held = sql.acquire().await.unwrap();
    sqlx::query("SELECT pg_advisory_lock(hashtextextended('cofferdam.claim.' || $1, 0))")
        .bind(queue)
        .execute(&mut *held)
        .await
        .unwrap();
    held
}

/// `cofferdam prove` says GO, exits 0 and has no row for any claim.
pub fn assert_proven(home: &Home) {
    let output = home.run(&["prove", "--json"]);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&output)));
    let broken: Vec<&Value> = report["proofs"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|proof| proof["rows"].as_array().is_none_or(|rows| !rows.is_empty()))
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
    assert_eq!(report["verdict"], "GO");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

/// Every sandbox ever started has ended with verified evidence, and is nowhere on this host. A canceled run is over at once, and
/// its sandboxes follow: they are waited for.
pub async fn assert_wiped(home: &Home, sql: &PgPool) {
    until("sandboxes of canceled runs have followed", Duration::from_secs(20), async || {
        let following = "SELECT s.sandbox_id FROM app.remote_execution_sessions s JOIN app.runs r ON r.id = s.run_id
                          WHERE r.status = 'canceled' AND s.ended_at IS NULL AND NOT EXISTS (
                                SELECT 1 FROM app.secure_wipe_evidence w
                                 WHERE w.sandbox_id = s.sandbox_id AND w.wipe_status <> 'verified')";
        texts(sql, following).await.is_empty()
    })
    .await;
    let open = texts(
        sql,
        "SELECT s.sandbox_id || ' ' || s.state || ' ' || coalesce(w.wipe_status, 'no evidence')
                || ' ' || coalesce(w.evidence::text, '')
           FROM app.remote_execution_sessions s LEFT JOIN app.secure_wipe_evidence w USING (sandbox_id)
          WHERE s.ended_at IS NULL OR w.wipe_status IS DISTINCT FROM 'verified'",
    )
    .await;
    assert!(open.is_empty(), "sessions without a verified end: {open:#?}");
    assert_no_sandbox(
        home.path(),
        &texts(sql, "SELECT sandbox_id FROM app.remote_execution_sessions").await,
    );
}

/// The container that waits with a living worker, as the host shows it: its mark is locked.
pub fn waiting(state: &Path) -> Vec<String> {
    let marks = cofferdam_tests::live_dir(state).join("waits");
    let is_held = |name: &String| {
        let mark = std::fs::File::open(marks.join(name));
        mark.is_ok_and(|mark| mark.try_lock().is_err())
    };
    names(&marks).into_iter().filter(is_held).collect()
}

/// No directory, runtime state, mount in anybody's namespace, or cgroup of these sandboxes, and of others only what
/// waits with a living worker.
pub fn assert_no_sandbox(state: &Path, ids: &[String]) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let left = sandboxes_left(state, ids);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left on the host: {left:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn sandboxes_left(state: &Path, ids: &[String]) -> Vec<String> {
    let ids: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    let mut left = Vec::new();
    let live = cofferdam_tests::live_dir(state);
    let mut found = Vec::new();
    for dir in ["sandboxes", "run", "waits"] {
        found.extend(names(&live.join(dir)).into_iter().map(|name| (dir, name)));
    }
    // After the look: what waited when it was found may be a sandbox by now, and the next look finds that one.
    let waits: Vec<String> =
        waiting(state).into_iter().filter(|id| !ids.contains(id.as_str())).collect();
    found.retain(|(_, name)| !waits.contains(name));
    left.extend(found.into_iter().map(|(dir, name)| format!("{dir}/{name}")));
    // A cgroup of ours is named `<12 hex of the state directory>.<sandbox id>` in every hierarchy.
    for tree in names(Path::new("/sys/fs/cgroup")).into_iter().chain([String::new()]) {
        let groups = names(&Path::new("/sys/fs/cgroup").join(&tree).join("cofferdam"));
        let ours = groups
            .into_iter()
            .filter(|g| g.split_once('.').is_some_and(|(_, id)| ids.contains(id)));
        left.extend(ours.map(|group| format!("cgroup {tree}/{group}")));
    }
    let below = format!("{}/sandboxes/", live.display());
    for pid in
        names(Path::new("/proc")).into_iter().filter(|n| n.bytes().all(|b| b.is_ascii_digit()))
    {
        let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        left.extend(
            mounts
                .lines()
                .filter(|l| l.contains(&below) && !waits.iter().any(|id| l.contains(id)))
                .map(|l| format!("mount seen by {pid}: {l}")),
        );
    }
    left
}

/// The names in a directory; none where it is missing.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Tasks of a run, each as `name attempt status`.
pub async fn steps(up: &Server, run: &Value) -> Vec<String> {
    let (_, steps) = up.get(&format!("/api/runs/{}/steps", text(run, "runId"))).await;
    let tasks = steps.as_array().unwrap().iter();
    let mut rows: Vec<String> = tasks
        .filter_map(|step| {
            let name = step["stepId"].as_str()?.strip_prefix("ExecuteST:")?;
            Some(format!("{name} {} {}", step["attempt"], step["status"].as_str()?))
        })
        .collect();
    rows.sort();
    rows
}

/// The main process of this home's private database.
pub fn postmaster(home: &Home) -> Option<i32> {
    let text = std::fs::read_to_string(home.path().join("database/data/postmaster.pid")).ok()?;
    text.lines().next()?.trim().parse().ok()
}

/// Signals a process that the caller started.
pub fn signal(pid: i32, what: Signal) {
    let _ = kill(Pid::from_raw(pid), what);
}

/// Runs a command to its end; where it hangs, it is killed and the test fails.
pub fn ended(mut command: Command, limit: Duration) -> Output {
    let child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let pid = i32::try_from(child.id()).unwrap();
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    match wait.recv_timeout(limit) {
        Ok(output) => output.expect("its output"),
        Err(_) => {
            signal(pid, Signal::SIGKILL);
            panic!("{command:?} did not end within {limit:?}");
        }
    }
}

/// The exit code of a child, whose streams are the test's; where it hangs, it is killed and the test fails.
pub fn exit_code(child: &mut Child, limit: Duration) -> Option<i32> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > deadline {
            signal(i32::try_from(child.id()).unwrap(), Signal::SIGKILL);
            panic!("it did not end within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Everything that a command said, for a failure's message.
pub fn said(output: &Output) -> String {
    format!(
        "{}\nstdout: {}\nstderr: {}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// What a command wrote for whoever reads it on.
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Exit code, or the whole story.
pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{}", said(output)))
}

/// A recipe of tasks by name, each with its script.
pub fn tasks(id: &str, tasks: &[(&str, &str)]) -> String {
    let tasks: Vec<Value> = tasks
        .iter()
        .map(|(name, run)| json!({"name": name, "exec": {"run": run, "timeout": "15m"}}))
        .collect();
    json!({"id": id, "v": "1", "plan": {"tasks": tasks}}).to_string()
}

/// A recipe file of this text below a directory.
pub fn recipe(dir: &Path, name: &str, yaml: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, yaml).unwrap();
    path.to_string_lossy().into_owned()
}

/// A receiver of webhooks on loopback: it says 204 to everything, for as long as this process lives.
pub fn receiver() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = [0; 16_384];
            let mut read = 0;
            // Bodies are one JSON object, and nothing else ends with its last brace. A task asks without.
            while !bytes[..read].ends_with(b"}") && !bytes[..read].starts_with(b"GET") {
                match stream.read(&mut bytes[read..]) {
                    Ok(n) if n > 0 => read += n,
                    _ => break,
                }
            }
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
        }
    });
    url
}
