//! The process that answers, and the one that waits, are killed between their statements, at every
//! place in turn: one prompt, one decision, one effect. The shim and the worker are processes of their
//! own, so a reply meets a worker that is gone, and a wait a shim that is.

use crate::support;

use std::time::Duration;

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;
use support::gates::{
    APPROVALS, DECISIONS, EXECUTIONS, INTERACTIONS, PROMPTS, VOTES, number, proven, say,
};
use support::{lose_lead, until};

const SHIM: &[&str] = &["shim", "--listen", "127.0.0.1:0"];
const WORKER: &[&str] = &["worker"];
const GATED: &str =
    "id: gated\nv: '1'\nplan:\n  gate: approve-plan\n  tasks: [{name: t, value: kept}]\n";

/// Between the statements of a reply; what is before `committed` has not happened.
const OF_A_REPLY: [&str; 5] =
    ["reply.locked", "reply.read", "reply.recorded", "reply.edited", "reply.committed"];
/// Between the steps of a wait, up to the answer and after it.
const BEFORE_THE_ANSWER: [&str; 2] = ["wait.opened", "wait.prompted"];
const AFTER_THE_ANSWER: [&str; 4] = ["wait.heard", "wait.result", "wait.decided", "wait.resolved"];

/// Waits until a process has killed itself.
async fn gone(server: &mut Server) {
    let pid = server.pid();
    until("the failpoint was reached", Duration::from_secs(30), async || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    })
    .await;
    server.kill();
}

/// As if the seconds had passed after which a silent worker is dead, and leads no more.
async fn bury(sql: &PgPool) {
    lose_lead(sql).await;
    sqlx::query("UPDATE app.executors SET heartbeat_at = heartbeat_at - interval '1 minute' WHERE state = 'live'")
        .execute(sql)
        .await
        .unwrap();
}

async fn submit(shim: &Server, place: &str) -> Value {
    shim.run_recipe(GATED, json!({}), json!({"runKey": place})).await
}

/// One prompt, one decision, one consent, one effect.
async fn once(shim: &Server, sql: &PgPool, run: &Value, place: &str) {
    let end = shim.wait_terminal(&text(run, "runId")).await;
    assert_eq!(end["status"], "succeeded", "{place}: {end}");
    for (what, query) in [
        ("prompts", PROMPTS),
        ("decisions", DECISIONS),
        ("answers", INTERACTIONS),
        ("votes", VOTES),
        ("consents", APPROVALS),
        ("effects", EXECUTIONS),
    ] {
        assert_eq!(number(sql, query, run).await, 1, "{what} after a kill at {place}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_is_killed_anywhere_is_mended_by_saying_it_again() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let _worker = Server::start(&home, WORKER, &[]);
    let sql = shim.sql().await;
    for place in OF_A_REPLY {
        let run = submit(&shim, place).await;
        support::gates::prompt(&shim, &run, "approve-plan").await;
        let mut doomed = Server::start(&home, SHIM, &[("COFFERDAM_FAILPOINT", place)]);
        let url =
            format!("{}/api/runs/{}/gates/approve-plan/reply", doomed.url, text(&run, "runId"));
        let body = json!({"payload": {"choice": "yes"}, "dedupeKey": "k"}).to_string();
        let sent = reqwest::Client::builder()
            .no_proxy()
            .build()
            .unwrap()
            .post(url)
            .header("authorization", format!("Bearer {}", shim.key))
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await;
        assert!(sent.is_err(), "{place}: the process answered: {sent:?}");
        gone(&mut doomed).await;
        let (status, answer) = say(&shim, &shim.key, &run, "k", "yes").await;
        let want = json!({"ok": true, "isReplay": place == "reply.committed"});
        assert_eq!((status, answer), (200, want), "{place}");
        once(&shim, &sql, &run, place).await;
    }
    proven(&shim).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_killed_anywhere_goes_on_where_it_was() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let sql = shim.sql().await;
    for place in BEFORE_THE_ANSWER.into_iter().chain(AFTER_THE_ANSWER) {
        let mut doomed = Server::start(&home, WORKER, &[("COFFERDAM_FAILPOINT", place)]);
        let run = submit(&shim, place).await;
        if AFTER_THE_ANSWER.contains(&place) {
            support::gates::prompt(&shim, &run, "approve-plan").await;
            assert_eq!(say(&shim, &shim.key, &run, "k", "yes").await.0, 200, "{place}");
        }
        gone(&mut doomed).await;
        bury(&sql).await;
        if !AFTER_THE_ANSWER.contains(&place) {
            // Nobody is there to hear it: it is not lost.
            until("the gate is open", Duration::from_secs(10), async || {
                number(&sql, "SELECT count(*) FROM app.human_gates WHERE run_id = $1", &run).await
                    == 1
            })
            .await;
            assert_eq!(say(&shim, &shim.key, &run, "k", "yes").await.0, 200, "{place}");
        }
        let _worker = Server::start(&home, WORKER, &[]);
        once(&shim, &sql, &run, place).await;
    }
    proven(&shim).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_is_killed_escalates_once() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let sql = shim.sql().await;
    let mut doomed = Server::start(&home, WORKER, &[("COFFERDAM_FAILPOINT", "wait.timeout")]);
    let run = shim.run_recipe(GATED, json!({}), json!({"planApprovalTimeoutS": 1})).await;
    gone(&mut doomed).await;
    bury(&sql).await;
    let _worker = Server::start(&home, WORKER, &[]);
    let end = shim.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(end["status"], "failed", "{end}");
    assert_eq!(number(&sql, DECISIONS, &run).await, 1);
    until("the escalation has ended", Duration::from_secs(20), async || {
        support::count(&sql, "SELECT count(*) FROM dbos.workflow_status WHERE workflow_uuid LIKE 'esc:%' AND status = 'SUCCESS'").await == 1
    })
    .await;
    proven(&shim).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_that_meet_no_worker_are_all_heard_by_the_next() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let mut worker = Server::start(&home, WORKER, &[]);
    let sql = shim.sql().await;
    let mut runs = Vec::new();
    for n in 0..12 {
        runs.push(submit(&shim, &n.to_string()).await);
    }
    for run in &runs {
        support::gates::prompt(&shim, run, "approve-plan").await;
    }
    worker.kill();
    for (n, run) in runs.iter().enumerate() {
        let choice = if n % 3 == 0 { "no" } else { "yes" };
        assert_eq!(say(&shim, &shim.key, run, "k", choice).await.0, 200);
        assert_eq!(say(&shim, &shim.key, run, "k", choice).await.1["isReplay"], true);
    }
    bury(&sql).await;
    let _worker = Server::start(&home, WORKER, &[]);
    for (n, run) in runs.iter().enumerate() {
        let want = if n % 3 == 0 { "failed" } else { "succeeded" };
        assert_eq!(shim.wait_terminal(&text(run, "runId")).await["status"], want);
        assert_eq!(number(&sql, DECISIONS, run).await, 1);
        assert_eq!(number(&sql, PROMPTS, run).await, 1);
        assert_eq!(number(&sql, EXECUTIONS, run).await, i64::from(want == "succeeded"));
    }
    proven(&shim).await;
}

/// The engine gives up a workflow after 100 recoveries; a person may take longer than that.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_at_its_gate_survives_150_workers_and_a_restart_of_the_database() {
    let home = Home::new();
    let mut shim = Server::start(&home, SHIM, &[]);
    let mut sql = shim.sql().await;
    let mut worker = Server::start(&home, WORKER, &[]);
    let run = submit(&shim, "a").await;
    support::gates::prompt(&shim, &run, "approve-plan").await;
    for restart in 1..=150 {
        worker.kill();
        bury(&sql).await;
        if restart == 75 {
            // The last of its users takes the database with it.
            sql.close().await;
            shim.stop();
            shim = Server::start(&home, SHIM, &[]);
            sql = shim.sql().await;
        }
        worker = Server::start(&home, WORKER, &[]);
        // This very worker, not the dead one that still has it.
        until("the new worker has the run", Duration::from_secs(30), async || {
            sqlx::query_scalar::<_, bool>(
                "SELECT EXISTS (SELECT 1 FROM dbos.workflow_status w JOIN app.executors e ON e.id = w.executor_id
                   JOIN app.runs r ON r.workflow_id = w.workflow_uuid
                  WHERE r.id = $1 AND w.status = 'PENDING' AND e.state = 'live' AND e.pid = $2)",
            )
            .bind(text(&run, "runId"))
            .bind(worker.pid())
            .fetch_one(&sql)
            .await
            .unwrap()
        })
        .await;
    }
    assert_eq!(say(&shim, &shim.key, &run, "k", "yes").await.0, 200);
    once(&shim, &sql, &run, "150 restarts").await;
    let dead =
        support::count(&sql, "SELECT count(*) FROM app.executors WHERE state = 'dead'").await;
    assert!(dead >= 150, "only {dead} workers were noticed to be dead");
    proven(&shim).await;
}
