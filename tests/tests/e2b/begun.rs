//! The life of a sandbox is on record with its plan and its task, by one statement, and its run's own workflow follows.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use cofferdam_tests::e2b::answered;
use cofferdam_tests::{Home, live_dir, text};
use serde_json::json;

use super::kept_plain::fatal;
use super::{Caller, gone};
use crate::support::has_class;
use crate::support::{count, texts, until};

const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_life_begins_with_its_task_and_its_run_ends_soon_after_it() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let ann = Caller::of(&server, "ann").await;
    let (id, _) = ann.create(json!({"templateID": "base", "timeout": 600})).await;
    // As a compilation and a first round would have left it.
    for (what, rows) in [
        ("its plan", "app.run_steps WHERE step_id = 'CompileST' AND status = 'ok' AND attempt = 1"),
        (
            "the plan's card",
            "app.artifacts a JOIN app.runs r ON r.id = a.run_id AND r.plan_digest = a.sha256
              WHERE a.kind = 'plan_card' AND a.inline IS NOT NULL",
        ),
        (
            "its task",
            "app.sbx_runs s JOIN app.sbx_executions x USING (task_key) WHERE x.execution_no = 1",
        ),
        (
            "its task's workflow, claimed by the statement that queued it",
            "dbos.workflow_status w JOIN app.executors e ON e.id = w.executor_id
              WHERE w.name = 'task' AND w.status = 'PENDING' AND w.queue_name = 'liveQ' AND w.recovery_attempts = 1
                AND w.started_at_epoch_ms = w.created_at",
        ),
        (
            "its run's workflow, beside the queues' limits",
            "dbos.workflow_status WHERE name = 'run' AND queue_name = 'liveQ'",
        ),
    ] {
        let query = format!("SELECT count(*) FROM {rows}");
        assert_eq!(count(&sql, &query).await, 1, "{what}");
    }
    let policies = "SELECT source || policy::text FROM app.egress_policy_snapshots";
    assert_eq!(texts(&sql, policies).await, ["recipe[\"none\"]", "recipe[\"none\"]"]);
    assert_eq!(texts(&sql, "SELECT status FROM app.runs").await, ["running"]);
    // Before its workflow was claimed, perhaps.
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    let done = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'";
    until("both workflows succeed", SOON, async || count(&sql, done).await == 2).await;
    assert_eq!(texts(&sql, "SELECT status FROM app.runs").await, ["succeeded"]);
    let steps = "SELECT step_id || ' ' || status FROM app.run_steps ORDER BY 1";
    assert_eq!(texts(&sql, steps).await, ["CompileST ok", "ExecuteST ok"]);
    assert_eq!(count(&sql, "SELECT count(*) FROM app.sbx_executions").await, 1);
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn a_life_that_was_claimed_by_a_server_that_died_is_ended_by_the_next_one() {
    let home = Home::new();
    let mut doomed = home.up_with(&[], &[("COFFERDAM_FAILPOINT", "live.recorded")]);
    let ann = Caller::of(&doomed, "ann").await;
    let body = json!({"templateID": "base", "timeout": 600});
    fatal(&mut doomed, &ann, ("/v2/sandboxes", body)).await;
    let server = home.up();
    let sql = server.sql().await;
    let ended = "SELECT end_reason FROM app.live_sandboxes WHERE ended_at IS NOT NULL";
    until("it is over", SOON, async || !texts(&sql, ended).await.is_empty()).await;
    let why = texts(&sql, ended).await;
    assert!(why[0].starts_with("the process that was asked for it restarted"), "{why:?}");
    until("its run has failed", SOON, async || {
        texts(&sql, "SELECT status FROM app.runs").await == ["failed"]
    })
    .await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.sbx_executions").await, 1);
    sql.close().await;
    gone(home, server).await;
}

/// Sandboxes that are on the host of this state directory, whether on record or not.
fn sandboxes_of(state: &Path) -> Vec<OsString> {
    let all = std::fs::read_dir(live_dir(state).join("sandboxes"));
    all.map_or_else(|_| Vec::new(), |all| all.map(|one| one.unwrap().file_name()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_while_it_is_queued_has_left_nothing_when_that_is_answered() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let ann = Caller::of(&server, "ann").await;
    // Claims are made one after the other; while this one lasts, what is queued stays so.
    let mut claim = sql.begin().await.unwrap();
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('cofferdam.claim.sbxQ', 0))";
    sqlx::query(lock).execute(&mut *claim).await.unwrap();
    for turn in 0..5 {
        let request = ann.http.post(format!("{}/v2/sandboxes", ann.url));
        let body = json!({"templateID": "base", "timeout": 600});
        let created = tokio::spawn(answered(request.header("x-api-key", &ann.key).json(&body)));
        let queued = "SELECT id FROM app.live_sandboxes WHERE ended_at IS NULL";
        until("it is queued, and made already", SOON, async || {
            texts(&sql, queued).await.len() == 1 && !sandboxes_of(home.path()).is_empty()
        })
        .await;
        let id = texts(&sql, queued).await.remove(0);
        assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
        assert_eq!(sandboxes_of(home.path()), Vec::<OsString>::new(), "{turn}");
        let (status, answer) = created.await.unwrap();
        assert_eq!(status, 400, "{answer}");
    }
    claim.rollback().await.unwrap();
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn no_root_of_a_sandbox_that_is_up_is_mounted_beside_the_next_one() {
    for class in ["container", "gvisor"] {
        if has_class(class) {
            no_root_is_mounted_beside_one_of(class).await;
        }
    }
}

async fn no_root_is_mounted_beside_one_of(class: &'static str) {
    let home = Home::new();
    // One that waits for the next sandbox has its root.
    let server = home.up_with(&[], &[("COFFERDAM_NO_WAITING_CONTAINER", "1")]);
    let ann = Caller::of(&server, "ann").await.in_class(class);
    let new = || json!({"templateID": "base", "timeout": 600});
    let (first, token) = ann.create(new()).await;
    let (second, _) = ann.create(new()).await;
    let table = format!("/proc/{}/mountinfo", server.pid());
    let place = live_dir(home.path()).to_string_lossy().into_owned();
    let mounted = async || {
        let table = std::fs::read_to_string(&table).unwrap();
        table.lines().any(|line| line.contains(&place) && line.contains("/root "))
    };
    until("no root is mounted", SOON, async || !mounted().await).await;
    // Its files are there, and those of its next life.
    let written = answered(ann.upload((&first, &token), "/home/user/kept").body("kept")).await;
    assert_eq!(written.0, 200, "{written:?}");
    ann.pause(&first).await;
    let connect = format!("/v2/sandboxes/{first}/connect");
    let (status, again) = ann.api("POST", &connect, Some(json!({"timeout": 600}))).await;
    assert_eq!(status, 201, "{again}");
    until("no root is mounted", SOON, async || !mounted().await).await;
    let snapshot = format!("/sandboxes/{first}/snapshots");
    let (status, snapshot) = ann.api("POST", &snapshot, Some(json!({}))).await;
    assert_eq!(status, 201, "{snapshot}");
    let body = json!({"templateID": text(&snapshot, "snapshotID"), "timeout": 600});
    let (third, token) = ann.create(body).await;
    let said = ann.started((&third, &token), "/bin/cat", &["/home/user/kept"]).await;
    // `kept`, as bytes are written.
    assert!(said.contains("a2VwdA=="), "{said}");
    for id in [first, second, third] {
        assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    }
    gone(home, server).await;
}
