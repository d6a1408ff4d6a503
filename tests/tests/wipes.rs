//! A wipe that cannot be verified holds its run until it can be, or until an operator decides.

use crate::support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use cofferdam_tests::{Home, Server, live_dir, tamper, text};
use serde_json::{Value, json};
use sqlx::PgPool;
use support::{assert_proven, assert_wiped, count, said, texts, until};

const SOON: Duration = Duration::from_secs(60);

/// It runs for long enough to be found running.
const WAITS: &str = "id: waits\nv: \"1\"\nplan:\n  tasks:\n    - name: waits\n      exec: {run: \"sleep 1; echo done\", timeout: 60s}\n";

/// A file in a sandbox's directory that nobody can remove, until this is dropped.
struct Stuck {
    file: PathBuf,
}

impl Stuck {
    fn plant(home: &Home, sandbox: &str) -> Self {
        let file = live_dir(home.path()).join("sandboxes").join(sandbox).join("stuck");
        fs::write(&file, "stuck").unwrap();
        let stuck = Self { file };
        stuck.set("+i");
        stuck
    }

    fn set(&self, flag: &str) {
        let done = Command::new("chattr").arg(flag).arg(&self.file).status().unwrap();
        assert!(done.success(), "chattr {flag}");
    }

    /// The obstacle goes away, as an operator would mend it.
    fn mend(self) {
        drop(self);
    }

    /// What an accepted leftover becomes once it may be removed.
    fn mend_and_remove(self) {
        let dir = self.file.parent().unwrap().to_path_buf();
        drop(self);
        fs::remove_dir_all(dir).unwrap();
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let _ = Command::new("chattr").arg("-i").arg(&self.file).status();
    }
}

async fn sandbox_of(sql: &PgPool, run: &str) -> String {
    let query = format!(
        "SELECT sandbox_id FROM app.remote_execution_sessions WHERE run_id = '{run}' AND state = 'EXECUTING'"
    );
    until("its sandbox executes", SOON, async || !texts(sql, &query).await.is_empty()).await;
    texts(sql, &query).await.remove(0)
}

/// A run whose sandbox leaves something behind that cannot be removed.
async fn held(home: &Home, up: &Server, key: &str) -> (String, String, Stuck) {
    let sql = up.sql().await;
    let header = up.run_recipe(WAITS, json!({}), json!({"runKey": key})).await;
    let run = text(&header, "runId");
    let sandbox = sandbox_of(&sql, &run).await;
    let stuck = Stuck::plant(home, &sandbox);
    up.wait_for(&run, "held", |h| h["heldSessions"] == 1).await;
    (run, sandbox, stuck)
}

async fn key(up: &Server, tenant: &str, role: &str) -> String {
    up.new_key(&json!({"tenant": tenant, "roles": [role]})).await.1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_wipe_holds_its_run_and_says_so_everywhere() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let (run, sandbox, stuck) = held(&home, &up, "says").await;
    let (_, header) = up.get(&format!("/api/runs/{run}")).await;
    assert_eq!(
        (&header["status"], &header["durableStatus"]),
        (&json!("running"), &json!("PENDING"))
    );
    // Its task has answered, so that nothing but the wipe is missing.
    let answered =
        format!("SELECT count(*) FROM app.sbx_runs WHERE run_id = '{run}' AND err_code = 'NONE'");
    assert_eq!(count(&sql, &answered).await, 1);
    let (status, health) = up.get("/healthz").await;
    assert_eq!((status, &health["ok"], &health["heldSessions"]), (200, &json!(true), &json!(1)));
    let (status, sessions) = up.get("/api/sessions?state=REMOTE_WIPE_VERIFYING").await;
    assert_eq!(
        (status, &sessions[0]["sandboxId"], &sessions[0]["held"]),
        (200, &json!(sandbox), &json!(true))
    );
    let finding = sessions[0]["findings"][0].as_str().unwrap();
    assert!(finding.starts_with("directory ") && finding.contains(&sandbox), "{finding}");
    let audit =
        format!("SELECT reason FROM app.audit WHERE op = 'wipe.held' AND target = '{sandbox}'");
    assert!(texts(&sql, &audit).await[0].contains("directory "));
    let ps = String::from_utf8(home.run(&["ps"]).stdout).unwrap();
    assert!(ps.contains("running (held)") && ps.contains("session ls --held"), "{ps}");
    let show = String::from_utf8(home.run(&["show", &run]).stdout).unwrap();
    assert!(
        show.contains("held: the wipe of 1 sandboxes is not verified")
            && show.contains(&format!("not verified: {sandbox} (held)")),
        "{show}"
    );
    let ls = home.run(&["session", "ls", "--held"]);
    assert!(said(&ls).contains(&sandbox) && said(&ls).contains("(held)"), "{}", said(&ls));
    let doctor = home.run(&["doctor", "--json"]);
    let doctor: Value =
        serde_json::from_slice(&doctor.stdout).unwrap_or_else(|_| panic!("{}", said(&doctor)));
    assert_eq!(doctor["heldSessions"], 1);
    // It is looked at again by itself, each look later than the one before.
    until("a third look", SOON, async || {
        count(&sql, &format!("SELECT wipe_looks::bigint FROM app.remote_execution_sessions WHERE sandbox_id = '{sandbox}'")).await >= 3
    })
    .await;
    let pauses = format!(
        "SELECT (app.ms(created_at) - lag(app.ms(created_at)) OVER (ORDER BY look))::text FROM app.secure_wipe_evidence
          WHERE sandbox_id = '{sandbox}' ORDER BY look OFFSET 1 LIMIT 2"
    );
    let pauses: Vec<i64> =
        texts(&sql, &pauses).await.iter().map(|ms| ms.parse().unwrap()).collect();
    assert!(pauses[0] >= 1_000 && pauses[1] >= 2_000, "{pauses:?}");
    let (status, body) = up
        .post(
            &format!("/api/ops/wf/{}/cancel", header["workflowID"].as_str().unwrap()),
            &json!({"actor": "a", "reason": "r"}),
        )
        .await;
    assert_eq!(
        (status, &body["code"], &body["details"]["heldSessions"][0]),
        (409, &json!("state_conflict"), &json!(sandbox))
    );
    // Nothing but the wipe was missing.
    stuck.mend();
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let ends = format!(
        "SELECT s.state || ' ' || w.wipe_status FROM app.remote_execution_sessions s JOIN app.secure_wipe_evidence w
          ON w.sandbox_id = s.sandbox_id AND w.look = s.wipe_looks WHERE s.sandbox_id = '{sandbox}'"
    );
    assert_eq!(texts(&sql, &ends).await, ["COMPLETED verified"]);
    let healed = format!("SELECT op FROM app.audit WHERE target = '{sandbox}' ORDER BY id");
    assert_eq!(texts(&sql, &healed).await, ["wipe.held", "wipe.verified"]);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_operators_recorded_decision_settles_a_held_session_and_only_once() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let (run, sandbox, stuck) = held(&home, &up, "settled").await;
    let path = format!("/api/sessions/{sandbox}/settle");
    let body = json!({"actor": "ada", "reason": "the host is scrapped today"});
    let ask = async |key: &str, body: &Value| up.post_as(key, &path, body).await;
    for role in ["submitter", "approver", "auditor"] {
        let (status, refused) = ask(&key(&up, "default", role).await, &body).await;
        assert_eq!((status, &refused["code"]), (403, &json!("forbidden")), "{role}");
    }
    let (status, _) = ask(&key(&up, "acme", "operator").await, &body).await;
    assert_eq!(status, 404, "another tenant's session");
    let operator = key(&up, "default", "operator").await;
    for bad in [
        json!({}),
        json!({"actor": "", "reason": "r"}),
        json!({"actor": "a", "reason": "r", "state": "COMPLETED"}),
    ] {
        let (status, refused) = ask(&operator, &bad).await;
        assert_eq!((status, &refused["code"]), (400, &json!("schema_violation")), "{bad}");
    }
    let (status, refused) = up.post("/api/sessions/sb0/settle", &body).await;
    assert_eq!((status, &refused["code"]), (400, &json!("invalid_id")));
    assert_eq!(count(&sql, "SELECT count(*) FROM app.wipe_settlements").await, 0);
    assert_eq!(home.run(&["session", "settle", &sandbox, "--reason", "r"]).status.code(), Some(3));

    let (status, settled) = ask(&operator, &body).await;
    assert_eq!(status, 200, "{settled}");
    assert_eq!(
        (&settled["terminalState"], &settled["actor"]),
        (&json!("COMPLETED"), &json!("ada"))
    );
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let digest = format!(
        "SELECT encode(sha256(convert_to(evidence::text, 'UTF8')), 'hex') FROM app.secure_wipe_evidence
          WHERE sandbox_id = '{sandbox}' AND look = {} AND wipe_status = 'failed'",
        settled["evidenceLook"]
    );
    assert_eq!(texts(&sql, &digest).await, [settled["evidenceDigest"].as_str().unwrap()]);
    let (status, again) = ask(&operator, &body).await;
    assert_eq!((status, &again["code"]), (409, &json!("state_conflict")), "{again}");
    let shown = home.run(&["session", "show", &sandbox]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("COMPLETED (settled)") && shown.contains("the host is scrapped today"),
        "{shown}"
    );
    let show = String::from_utf8(home.run(&["show", &run]).stdout).unwrap();
    assert!(show.contains("settled"), "{show}");
    assert_proven(&home);

    // A session that ended in good order is nobody's to settle.
    let fine = up.run_recipe(WAITS, json!({}), json!({"runKey": "fine"})).await;
    let fine = fine["runId"].as_str().unwrap();
    assert_eq!(up.wait_terminal(fine).await["status"], "succeeded");
    let ended = texts(
        &sql,
        &format!("SELECT sandbox_id FROM app.remote_execution_sessions WHERE run_id = '{fine}'"),
    )
    .await;
    let output = home.run(&["session", "settle", &ended[0], "--accept", "--reason", "r"]);
    assert!(!output.status.success() && said(&output).contains("COMPLETED"), "{}", said(&output));
    stuck.mend_and_remove();
}

/// Whoever has the database in hand is bound too: the law stands in triggers.
#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_in_sql_needs_the_failed_evidence_that_it_names() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let (run, sandbox, stuck) = held(&home, &up, "law").await;
    let insert = |look: i32, digest: &str| {
        format!(
            "INSERT INTO app.wipe_settlements (sandbox_id, run_id, tenant_id, terminal_state, evidence_look,
               evidence_digest, actor, key_id, reason, origin)
             SELECT sandbox_id, run_id, tenant_id, 'COMPLETED', {look}, {digest}, 'a', 'k', 'r', 'manual'
               FROM app.remote_execution_sessions WHERE sandbox_id = '{sandbox}'"
        )
    };
    let end = format!(
        "UPDATE app.remote_execution_sessions SET state = 'COMPLETED', ended_at = now() WHERE sandbox_id = '{sandbox}'"
    );
    for (what, statement) in [
        ("without evidence or decision", end),
        ("a digest of nothing", insert(1, "repeat('0', 64)")),
        ("a look that never was", insert(99, "repeat('0', 64)")),
    ] {
        let error =
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&sql).await.expect_err(what);
        let code =
            error.as_database_error().and_then(|e| e.code()).unwrap_or_default().into_owned();
        assert!(code.starts_with("23"), "{what}: {error}");
    }
    stuck.mend();
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    assert_wiped_at_last(&sql).await;
}

async fn assert_wiped_at_last(sql: &PgPool) {
    let open = "SELECT count(*) FROM app.remote_execution_sessions s WHERE s.ended_at IS NULL OR NOT EXISTS (
      SELECT 1 FROM app.secure_wipe_evidence w WHERE w.sandbox_id = s.sandbox_id AND w.wipe_status = 'verified')";
    assert_eq!(count(sql, open).await, 0);
}

/// A host that is gone for good: nobody can look, which is not the same as gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_never_comes_back_holds_the_run_until_it_does_or_somebody_settles() {
    let home = Home::new();
    let shim = Server::start(&home, &["shim", "--listen", "127.0.0.1:0"], &[]);
    let sql = shim.sql().await;
    let mut worker = Server::start(&home, &["worker"], &[]);
    let slow = WAITS.replace("sleep 1", "sleep 5");
    let header = shim.run_recipe(&slow, json!({}), json!({"runKey": "lost"})).await;
    let run = text(&header, "runId");
    let sandbox = sandbox_of(&sql, &run).await;
    worker.kill();
    // The record of another machine, and of a minute that passed.
    for statement in [
        format!("UPDATE app.remote_execution_sessions SET host_id = 'another' WHERE sandbox_id = '{sandbox}'"),
        "UPDATE app.executors SET state = 'dead', ended_at = clock_timestamp() - interval '2 minutes', host_id = 'another'
          WHERE state = 'live'".to_owned(),
        "UPDATE dbos.workflow_status SET status = 'ENQUEUED', started_at_epoch_ms = NULL, owner_xid = NULL
          WHERE status = 'PENDING' AND queue_name IS NOT NULL".to_owned(),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&sql).await.unwrap();
    }
    let worker = Server::start(&home, &["worker"], &[]);
    let ended =
        format!("SELECT count(*) FROM app.sbx_runs WHERE run_id = '{run}' AND err_code = 'NONE'");
    until("another worker did its task", SOON, async || count(&sql, &ended).await == 1).await;
    let header = shim.wait_for(&run, "held", |h| h["heldSessions"] == 1).await;
    assert_eq!(header["status"], "running");
    let (_, session) = shim.get(&format!("/api/sessions/{sandbox}")).await;
    assert_eq!(session["looks"][0]["evidence"]["method"], "none", "{session}");
    assert!(session["findings"][0].as_str().unwrap().contains("no worker of this host is alive"));
    // The host comes back: its session is this worker's again, and a look is due.
    let back = format!(
        "UPDATE app.remote_execution_sessions SET wipe_next_at = clock_timestamp(), host_id = (
           SELECT host_id FROM app.executors WHERE state = 'live' LIMIT 1) WHERE sandbox_id = '{sandbox}'"
    );
    sqlx::query(sqlx::AssertSqlSafe(back)).execute(&sql).await.unwrap();
    assert_eq!(shim.wait_terminal(&run).await["status"], "succeeded");
    let state =
        format!("SELECT state FROM app.remote_execution_sessions WHERE sandbox_id = '{sandbox}'");
    assert_eq!(texts(&sql, &state).await, ["ORPHANED"]);
    drop(worker);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_in_good_order_is_held_by_nothing() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let header = up.run_recipe(WAITS, json!({}), json!({"runKey": "good"})).await;
    let run = header["runId"].as_str().unwrap();
    let header = up.wait_terminal(run).await;
    assert_eq!(header["heldSessions"], Value::Null);
    let (_, sessions) = up.get("/api/sessions?state=COMPLETED&limit=1").await;
    assert_eq!((&sessions[0]["held"], &sessions[0]["wipeLooks"]), (&json!(false), &json!(1)));
    for bad in ["state=GONE", "limit=0", "tenant=x"] {
        assert_eq!(up.get(&format!("/api/sessions?{bad}")).await.0, 400, "{bad}");
    }
    assert_eq!(up.get("/api/sessions/sb00000000000000000000").await.0, 404);
    assert_wiped(&home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_says_what_its_sandbox_really_is_and_that_it_lives() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let slow = WAITS.replace("sleep 1", "sleep 6");
    let header = up.run_recipe(&slow, json!({}), json!({"runKey": "lives"})).await;
    let run = header["runId"].as_str().unwrap();
    let sandbox = sandbox_of(&sql, run).await;
    let path = format!("/api/sessions/{sandbox}");
    let beat = async || up.get(&path).await.1["lastHeartbeatAt"].as_i64().unwrap_or(0);
    until("it was seen alive", SOON, async || beat().await > 0).await;
    let first = beat().await;
    until("it was seen again", SOON, async || beat().await > first).await;
    let (_, session) = up.get(&path).await;
    let facts = &session["attestation"];
    assert_eq!((&session["class"], &facts["class"]), (&json!("container"), &json!("container")));
    assert_eq!(facts["runtimeDigest"].as_str().unwrap().len(), 64, "{facts}");
    assert!(
        facts["runtimeVersion"].as_str().unwrap().starts_with(facts["runtime"].as_str().unwrap())
    );
    assert!(["v1", "hybrid", "v2"].contains(&facts["cgroups"].as_str().unwrap()), "{facts}");
    assert_eq!(session["stale"], false);
    assert_eq!(up.wait_terminal(run).await["status"], "succeeded");
    // What its living worker no longer sees is said, not guessed.
    let stale = format!(
        "UPDATE app.remote_execution_sessions SET state = 'EXECUTING', ended_at = NULL, wipe_looks = 0,
                last_heartbeat_at = clock_timestamp() - interval '1 minute' WHERE sandbox_id = '{sandbox}'"
    );
    tamper(&sql, &stale).await;
    assert_eq!(up.get(&path).await.1["stale"], true);
    let ls = home.run(&["session", "ls"]);
    assert!(said(&ls).contains("EXECUTING (stale)"), "{}", said(&ls));
}
