//! The class `remote` against our own server: one Cofferdam holds the sandboxes of another, by E2B's wire alone.
//!
//! ```text
//! worker: up --runtime remote --remote-url PROVIDER --remote-template base   provider: up, and a key of E2B's form
//! what tests/remote.rs asks of a stand-in, and at the end what the provider has on record of every sandbox
//! ```

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_tests::port_reservation::PortReservation;
use cofferdam_tests::{Home, Server, assert_nothing_left, repository};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::remote::{
    COUNTS, OPEN, SLOW, SOON, assert_begun_anew, assert_counted_once, assert_met_again, has_said,
    kept, left_by_its_client, start,
};
use crate::support::proxy::{Proxy, Wire};
use crate::support::{assert_proven, assert_wiped, count, ended, said, texts, until};

const TASKS: &str = "id: ends\nv: \"1\"\nplan:\n  tasks:\n    - name: good\n      files: [{text: \"given\", to: /work/in.txt}]\n      build: {run: \"echo built > built.txt\", timeout: 60s}\n      exec: {run: \"cat /work/in.txt built.txt; echo oops >&2; echo out > out.txt; mkdir d; echo deep > d/e.txt\", timeout: 60s}\n      artifacts: [\"*.txt\", \"d/*\"]\n    - name: bad\n      exec: {run: \"echo last words >&2; exit 3\", timeout: 60s}\n    - name: late\n      exec: {run: \"trap '' TERM; sleep 100\", timeout: 700ms}\n";
const HELD: &str = "SELECT count(*) FROM app.live_sandboxes WHERE ended_at IS NULL";
const MADE: &str = "SELECT count(*) FROM app.live_sandboxes";

/// The server that holds the sandboxes, at an address that it keeps.
struct Holder {
    home: Home,
    port: PortReservation,
    server: Server,
    key: String,
    sql: PgPool,
}

impl Holder {
    async fn new() -> Self {
        let home = Home::new();
        let port = PortReservation::new();
        let server = Server::start(&home, &["up", "--listen", &port.address().to_string()], &[]);
        let made =
            ["key", "create", "--tenant", "lodger", "--role", "submitter", "--format", "e2b"];
        let made = home.run(&made);
        let key = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        assert!(key.starts_with("e2b_"), "{}", String::from_utf8_lossy(&made.stderr));
        let sql = server.sql().await;
        Self { home, port, server, key, sql }
    }

    /// A worker whose sandboxes it holds, at its own address or at that of something between.
    fn worker_by(&self, home: &Home, url: &str) -> Server {
        let file = home.path().join("holder.key");
        std::fs::write(&file, format!("{}\n", self.key)).unwrap();
        let file = file.to_str().unwrap();
        let own = ["--runtime", "remote", "--remote-template", "base", "--remote-key-file", file];
        home.up_with(&[&own[..], &["--remote-url", url]].concat(), &[])
    }

    fn worker(&self, home: &Home) -> Server {
        self.worker_by(home, &self.server.url)
    }

    async fn held(&self) -> i64 {
        count(&self.sql, HELD).await
    }

    /// What the worker's own client would ask for.
    async fn asked(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let body = body.map(|body| body.to_string().into_bytes());
        self.server.request(method, path, Some(&self.key), body).await
    }

    /// Both sides tell the same story of the same sandboxes, and it has ended everywhere.
    async fn ended(self, home: &Home, worker: &PgPool) {
        until("its end at the holder", SOON, async || self.held().await == 0).await;
        let unwiped = "SELECT s.sandbox_id FROM app.remote_execution_sessions s LEFT JOIN app.secure_wipe_evidence w
                          ON w.sandbox_id = s.sandbox_id AND w.look = s.wipe_looks AND w.wipe_status = 'verified'
                        WHERE s.ended_at IS NULL OR w.sandbox_id IS NULL";
        assert_eq!(texts(worker, unwiped).await, [""; 0]);
        assert_proven(home);
        let theirs = "SELECT metadata->>'cofferdam-sandbox' FROM app.live_sandboxes ORDER BY 1";
        let ours = "SELECT sandbox_id FROM app.remote_execution_sessions ORDER BY 1";
        let (theirs, ours) = (texts(&self.sql, theirs).await, texts(worker, ours).await);
        assert!(!theirs.is_empty() && theirs == ours, "{theirs:?} {ours:?}");
        let evidence = "SELECT DISTINCT evidence->>'method' FROM app.secure_wipe_evidence WHERE wipe_status = 'verified'";
        assert_eq!(texts(worker, evidence).await, ["remote-absence"]);
        // A sandbox that ended by its provider's word alone would have no session there.
        let unheld = "SELECT count(*) FROM app.live_sandboxes l LEFT JOIN app.remote_execution_sessions s USING (run_id)
                       WHERE s.sandbox_id IS NULL OR s.state NOT IN ('COMPLETED', 'CANCELED', 'ORPHANED', 'FAILED')";
        assert_eq!(count(&self.sql, unheld).await, 0);
        self.wiped().await;
    }

    /// It has wiped every sandbox, with evidence, and leaves nothing.
    async fn wiped(mut self) {
        until("the end of all", SOON, async || self.held().await == 0).await;
        assert_wiped(&self.home, &self.sql).await;
        assert_proven(&self.home);
        self.sql.close().await;
        self.server.stop();
        assert_nothing_left(self.home.path());
    }
}

#[tokio::test]
async fn a_cofferdam_holds_the_sandboxes_of_another() {
    let holder = Holder::new().await;
    let home = Home::new();
    let up = holder.worker(&home);
    let sql = up.sql().await;
    let (run, _) = start(&up, TASKS, "ends").await;
    assert_eq!(up.wait_terminal(&run).await["status"], "failed", "two of its tasks fail");
    let ends = texts(
        &sql,
        "SELECT concat_ws('|', err_code, response->>'exit', response->>'stdout', response->>'stderr')
           FROM app.sbx_runs ORDER BY err_code",
    );
    let ends = ends.await;
    assert_eq!(ends[0], "CMD_NONZERO|3||last words\n");
    assert_eq!(ends[1], "NONE|0|givenbuilt\n|oops\n");
    assert!(ends[2].starts_with("TIMEOUT|"), "{ends:?}");
    for (name, text) in [
        ("files/built.txt", "built\n"),
        ("files/in.txt", "given"),
        ("files/out.txt", "out\n"),
        ("files/d/e.txt", "deep\n"),
    ] {
        assert_eq!(kept(&sql, &run, name).await, text, "{name}");
    }
    assert_eq!(texts(&sql, "SELECT execution_mode FROM app.runs").await, ["REMOTE_SANDBOX"]);
    let facts =
        "SELECT DISTINCT concat_ws(' ', class, runtime_version) FROM app.remote_execution_sessions";
    let said = format!("remote E2B API at {}, template base", holder.server.url);
    assert_eq!(texts(&sql, facts).await, [said]);
    // Canceled in the middle.
    let (run, workflow) = start(&up, SLOW, "slow").await;
    let begun = format!(
        "SELECT count(*) FROM app.remote_execution_sessions WHERE run_id = '{run}' AND state = 'EXECUTING'"
    );
    until("a command elsewhere", SOON, async || count(&sql, &begun).await == 1).await;
    assert_eq!(holder.held().await, 1);
    let wish = json!({"actor": "a", "reason": "r"});
    let (status, body) = up.post(&format!("/api/ops/wf/{workflow}/cancel"), &wish).await;
    assert_eq!(status, 202, "{body}");
    assert_eq!(up.wait_terminal(&run).await["status"], "canceled");
    until("its end elsewhere", SOON, async || count(&sql, OPEN).await == 0).await;
    assert_eq!(count(&holder.sql, MADE).await, 4);
    // Both know no secret of the other: the key is in the worker's file, the agent's token in the provider's memory.
    for rows in ["remote_execution_sessions", "secure_wipe_evidence", "sbx_runs"] {
        let rows = texts(&sql, &format!("SELECT s::text FROM app.{rows} s")).await;
        assert!(!rows.is_empty() && rows.iter().all(|row| !row.contains(&holder.key)));
    }
    holder.ended(&home, &sql).await;
}

/// The newest binary of the sandbox's own tests, which lies beside this one.
fn sandbox_tests() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let beside = std::fs::read_dir(own.parent().unwrap()).unwrap().flatten();
    let found = beside.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("sandbox-") && path.extension().is_none()
    });
    let newest = found.max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.expect("the sandbox's tests are built: `cargo test --workspace` does")
}

#[tokio::test]
async fn a_cofferdam_behaves_as_listed_as_a_provider() {
    let holder = Holder::new().await;
    let mut list = Command::new(sandbox_tests());
    list.args(["--ignored", "--exact", "conformance::the_class_remote_behaves_as_listed"])
        .arg("--nocapture")
        .current_dir(repository().join("crates/sandbox"))
        .env("COFFERDAM_TEST_PROVIDER", &holder.server.url)
        .env("E2B_API_KEY", &holder.key)
        .env_remove("E2B_SANDBOX_URL")
        .stdin(Stdio::null());
    let output = ended(list, Duration::from_secs(300));
    let text = said(&output);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    let held = text.lines().filter(|line| line.starts_with("remote ") && line.contains(": ok"));
    assert!(held.count() >= 20, "{text}");
    holder.wiped().await;
}

#[tokio::test]
async fn a_worker_that_is_killed_is_met_again_at_a_cofferdam_by_the_next_one() {
    let holder = Holder::new().await;
    let home = Home::new();
    let mut first = holder.worker(&home);
    let sql = first.sql().await;
    let (run, _) = start(&first, COUNTS, "goes-on").await;
    has_said(&sql, &run, 60).await;
    first.kill();
    assert_eq!(holder.held().await, 1, "nobody told the holder");
    let next = holder.worker(&home);
    let sql = next.sql().await;
    assert_eq!(next.wait_terminal(&run).await["status"], "succeeded");
    assert_counted_once(&sql, &run).await;
    assert_met_again(&sql).await;
    assert_eq!(count(&holder.sql, MADE).await, 1);
    holder.ended(&home, &sql).await;
}

#[tokio::test]
async fn what_a_cofferdam_ended_with_the_worker_begins_anew() {
    let holder = Holder::new().await;
    let home = Home::new();
    let mut first = holder.worker(&home);
    let sql = first.sql().await;
    let (run, _) = start(&first, COUNTS, "anew").await;
    has_said(&sql, &run, 60).await;
    first.kill();
    // As if the term had passed in which nobody prolonged it.
    let id = texts(&holder.sql, "SELECT id FROM app.live_sandboxes").await.concat();
    let path = format!("/sandboxes/{id}/timeout");
    assert_eq!(holder.asked("POST", &path, Some(json!({"timeout": 1}))).await.0, 204);
    until("its term is over", SOON, async || holder.held().await == 0).await;
    let next = holder.worker(&home);
    let sql = next.sql().await;
    assert_eq!(next.wait_terminal(&run).await["status"], "succeeded");
    assert_begun_anew(&sql, &run).await;
    holder.ended(&home, &sql).await;
}

// The line between is this process's, which blocks while a server starts.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_and_a_line_that_is_cut_change_nothing_of_a_run_at_a_cofferdam() {
    let holder = Holder::new().await;
    let line = Proxy::to_http(&holder.server.url).await;
    let home = Home::new();
    let mut first = holder.worker_by(&home, line.url());
    let sql = first.sql().await;
    let run = left_by_its_client(&home, &sql).await;
    line.present(Wire::Cut);
    has_said(&sql, &run, 200).await;
    first.stop();
    assert_eq!(holder.held().await, 1, "it is somebody's still");
    let next = holder.worker_by(&home, line.url());
    let sql = next.sql().await;
    assert_eq!(next.wait_terminal(&run).await["status"], "succeeded");
    assert_counted_once(&sql, &run).await;
    assert_eq!(count(&holder.sql, MADE).await, 1);
    holder.ended(&home, &sql).await;
}

#[tokio::test]
async fn a_cofferdam_that_is_lost_in_the_middle_holds_the_run_of_the_other_until_it_is_back() {
    let mut holder = Holder::new().await;
    let home = Home::new();
    let up = holder.worker(&home);
    let sql = up.sql().await;
    let (run, _) = start(&up, SLOW, "lost").await;
    let begun = "SELECT count(*) FROM app.remote_execution_sessions WHERE state = 'EXECUTING'";
    until("a command elsewhere", SOON, async || count(&sql, begun).await == 1).await;
    holder.server.kill();
    let held = "SELECT count(*) FROM app.remote_execution_sessions WHERE state = 'REMOTE_WIPE_VERIFYING' AND wipe_looks > 0";
    until("a held session", SOON, async || count(&sql, held).await == 1).await;
    let (_, header) = up.get(&format!("/api/runs/{run}")).await;
    assert_eq!(header["status"], "running", "{header}");
    let (_, sessions) = up.get("/api/sessions?state=REMOTE_WIPE_VERIFYING").await;
    let finding = sessions[0]["findings"][0].as_str().unwrap();
    assert!(finding.contains("does not answer"), "{finding}");
    holder.server =
        Server::start(&holder.home, &["up", "--listen", &holder.port.address().to_string()], &[]);
    holder.sql = holder.server.sql().await;
    assert_eq!(up.wait_terminal(&run).await["status"], "failed");
    let last =
        "SELECT w.wipe_status FROM app.remote_execution_sessions s JOIN app.secure_wipe_evidence w
                   ON w.sandbox_id = s.sandbox_id AND w.look = s.wipe_looks";
    assert_eq!(texts(&sql, last).await, ["verified"]);
    holder.ended(&home, &sql).await;
}
