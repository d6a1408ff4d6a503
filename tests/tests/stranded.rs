//! Attempts whose workflow ended without a result: they are found and closed with their reason, whatever they did.

use crate::support;

use std::time::{Duration, Instant};

use cofferdam_tests::{Home, Server, superuser, text};
use serde_json::{Value, json};
use sqlx::PgPool;
use support::{assert_proven, assert_wiped, count, executing, texts, until};

const SOON: Duration = Duration::from_secs(60);
/// A look each 3 s after a grace of 5, twice on a machine that is busy.
const PERIOD: Duration = Duration::from_secs(20);
const SLOW: &str = "id: slow\nv: \"1\"\nplan:\n  tasks:\n    - name: slow\n      exec: {run: \"sleep 100\", timeout: 120s}\n";

/// The workflow of the task that runs ends in an error, as where a step's statement was refused.
async fn strand(sql: &PgPool) -> Instant {
    let stranded = sqlx::query(
        "UPDATE dbos.workflow_status SET status = 'ERROR', error = '{}', updated_at = app.ms(clock_timestamp())
          WHERE status = 'PENDING' AND workflow_uuid IN (SELECT task_key FROM app.sbx_runs WHERE response IS NULL)",
    );
    assert_eq!(stranded.execute(sql).await.unwrap().rows_affected(), 1);
    Instant::now()
}

async fn closed(sql: &PgPool, since: Instant) {
    until("the attempt and its session are closed", SOON, async || {
        let open = "SELECT count(*) FROM app.sbx_runs s LEFT JOIN app.remote_execution_sessions x USING (task_key)
                     WHERE s.response IS NULL OR x.ended_at IS NULL";
        count(sql, open).await == 0
    })
    .await;
    assert!(since.elapsed() < PERIOD, "only after {:?}", since.elapsed());
    let why = texts(sql, "SELECT response->>'cause' FROM app.sbx_runs").await;
    assert_eq!(why, ["its workflow ended as ERROR without a result"]);
}

async fn started(up: &Server, key: &str) -> String {
    text(&up.run_recipe(SLOW, json!({}), json!({"runKey": key})).await, "runId")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_task_lost_its_workflow_is_closed_with_the_reason() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let run = started(&up, "stranded").await;
    executing(&sql, SOON).await;
    let since = strand(&sql).await;
    closed(&sql, since).await;
    let header: Value = up.wait_terminal(&run).await;
    assert_eq!(header["status"], "failed", "{header}");
    assert!(text(&header, "error").contains("ended as ERROR without a result"), "{header}");
    assert_wiped(&home, &sql).await;
    sql.close().await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_canceled_over_a_stranded_task_is_whole_again() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let run = started(&up, "canceled").await;
    executing(&sql, SOON).await;
    let since = strand(&sql).await;
    assert!(home.run(&["cancel", &run]).status.success());
    closed(&sql, since).await;
    assert_eq!(up.wait_terminal(&run).await["status"], "canceled");
    assert_wiped(&home, &sql).await;
    sql.close().await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_sandbox_that_lost_its_workflow_is_ended() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let (status, live) = up.post("/api/sandboxes", &json!({"template": "base"})).await;
    assert_eq!(status, 201, "{live}");
    until("it is up", SOON, async || {
        count(&sql, "SELECT count(*) FROM app.live_sandboxes WHERE started_at IS NOT NULL").await
            == 1
    })
    .await;
    let since = strand(&sql).await;
    closed(&sql, since).await;
    let ended = "SELECT end_reason FROM app.live_sandboxes WHERE ended_at IS NOT NULL";
    assert_eq!(texts(&sql, ended).await, ["its workflow ended as ERROR without a result"]);
    until("its run has ended", SOON, async || {
        count(&sql, "SELECT count(*) FROM app.runs WHERE NOT app.is_over(status)").await == 0
    })
    .await;
    assert_wiped(&home, &sql).await;
    sql.close().await;
    assert_proven(&home);
}

const MATCH: &str = include_str!("../../crates/ledger/proofs/runs_match_engine.sql");

/// A worker that stops between a run's end on the ledger and in the engine gives the workflow back: it waits for the next worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_leaves_no_run_that_disagrees_with_its_workflow() {
    let home = Home::new();
    let shim = Server::start(&home, &["shim", "--listen", "127.0.0.1:0"], &[]);
    let mut worker = Server::start(&home, &["worker"], &[]);
    let sql = shim.sql().await;
    let value = "id: v\nv: \"1\"\nplan: {tasks: [{name: keep, value: kept}]}\n";
    let run = text(&shim.run_recipe(value, json!({}), json!({"runKey": "stop"})).await, "runId");
    shim.wait_terminal(&run).await;
    assert!(worker.stop().success());
    let mut conn = superuser(&sql).await;
    let mut say = async |statement: &'static str| {
        sqlx::raw_sql(statement).execute(&mut conn).await.unwrap();
    };
    let disagree = async || {
        let query = MATCH.trim_end().trim_end_matches(';');
        count(&sql, &format!("SELECT count(*) FROM ({query}) q")).await
    };
    say("SET session_replication_role = replica").await;
    say("UPDATE app.runs SET finished_at = finished_at - interval '2 minutes'").await;
    say("UPDATE dbos.workflow_status SET status = 'ENQUEUED' WHERE name = 'run'").await;
    assert_eq!(disagree().await, 0, "it is queued, and no worker is there");
    say("UPDATE dbos.workflow_status SET status = 'PENDING' WHERE name = 'run'").await;
    assert_eq!(disagree().await, 1, "in the hands of a worker that left");
    say("UPDATE dbos.workflow_status SET status = 'ENQUEUED' WHERE name = 'run'").await;
    say("UPDATE app.executors SET state = 'live', started_at = started_at - interval '2 minutes'")
        .await;
    assert_eq!(disagree().await, 1, "a worker is there and leaves it lying");
}
