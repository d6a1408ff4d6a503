//! Gates: what a reply costs, and what it costs to wait for one.

use std::time::{Duration, Instant};

use cofferdam_tests::{Home, Server};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::figures::{emit, median, percentile};
use crate::runs::{cpu_ticks, family, import, proc_kb, submit};

const GATED: &str =
    "id: gated\nv: \"1\"\nplan:\n  gate: approve-plan\n  tasks: [{name: keep, value: kept}]\n";
/// Replies whose latency is taken.
const REPLIES: usize = 520;
/// Gates of the burst, and replies to each of them: the issue's own numbers.
const BURST_GATES: usize = 200;
const BURST_REPLIES: usize = 5;

pub async fn gates() {
    replies().await;
    burst().await;
}

/// Until so many gates have asked.
async fn asked(sql: &PgPool, gates: usize) {
    let deadline = Instant::now() + Duration::from_secs(600);
    loop {
        let open: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM dbos.workflow_events WHERE key = 'ui:approve-plan'",
        )
        .fetch_one(sql)
        .await
        .expect("a count");
        if usize::try_from(open).expect("not negative") >= gates {
            return;
        }
        assert!(Instant::now() < deadline, "{open} of {gates} gates have asked");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn open(server: &Server, sql: &PgPool, gates: usize) -> Vec<String> {
    let recipe = import(server, GATED).await;
    let mut runs = Vec::with_capacity(gates);
    for wave in 0..gates.div_ceil(50) {
        let one = |n: usize| {
            let recipe = recipe.clone();
            async move { submit(server, &recipe, &format!("g{n}")).await }
        };
        let of_wave = (wave * 50..((wave + 1) * 50).min(gates)).map(one);
        runs.extend(futures_util::future::join_all(of_wave).await);
    }
    asked(sql, gates).await;
    runs
}

async fn reply(server: &Server, run: &str, dedupe: &str, choice: &str) -> (u16, Value) {
    let body = json!({"payload": {"choice": choice}, "dedupeKey": dedupe});
    server.post(&format!("/api/runs/{run}/gates/approve-plan/reply"), &body).await
}

async fn settled(sql: &PgPool) {
    crate::runs::settled(sql).await;
}

/// One at a time, warm: acknowledged, resumed, terminal.
async fn replies() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let runs = open(&server, &sql, REPLIES).await;
    // The floor: one row, committed by whoever asks, in turns with the replies. What a disk does to
    // this it does to a reply.
    let bare = "CREATE TABLE public.floor (body text); CREATE FUNCTION public.floor() RETURNS void
                LANGUAGE sql AS $$ INSERT INTO public.floor VALUES (repeat('x', 1000)) $$";
    sqlx::raw_sql(bare).execute(&sql).await.expect("a table");
    let (mut acknowledged, mut floor) = (Vec::new(), Vec::new());
    for run in &runs {
        let begun = Instant::now();
        sqlx::query("SELECT public.floor()").execute(&sql).await.expect("a row");
        floor.push(begun.elapsed().as_secs_f64() * 1000.0);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let begun = Instant::now();
        // A no leaves no task, so the run's end is the reply's own.
        let (status, body) = reply(&server, run, "k", "no").await;
        acknowledged.push(begun.elapsed().as_secs_f64() * 1000.0);
        assert_eq!(status, 200, "{body}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    settled(&sql).await;
    let (warm, floor) = (acknowledged.split_off(20), floor.split_off(20));
    emit(
        "gate_reply_ack",
        median(warm.clone()),
        "ms",
        5.0,
        json!({"p99": percentile(warm.clone(), 99), "p99_target": 40, "n": warm.len(),
               "commit": median(floor.clone()), "commit_p99": percentile(floor, 99)}),
    );
    let since = |column: &'static str| {
        format!(
            "SELECT ({column} - extract(epoch FROM i.created_at) * 1000)::float8
               FROM app.human_interactions i JOIN app.runs r ON r.id = i.run_id
               JOIN dbos.operation_outputs o ON o.workflow_uuid = r.workflow_id AND o.function_name LIKE '%recv%'
                    AND o.function_name NOT LIKE '%sleep%'
              WHERE i.outcome = 'accepted' ORDER BY i.id OFFSET 20"
        )
    };
    for (name, column, target) in [
        ("reply_to_resumed", "o.completed_at_epoch_ms", 15.0),
        ("reply_to_terminal", "extract(epoch FROM r.finished_at) * 1000", 100.0),
    ] {
        let times: Vec<f64> = sqlx::query_scalar(sqlx::AssertSqlSafe(since(column)))
            .fetch_all(&sql)
            .await
            .expect("times");
        let more = json!({"p99": percentile(times.clone(), 99), "n": times.len()});
        emit(name, median(times), "ms", target, more);
    }
    sql.close().await;
}

/// Duplicates and conflicts in any order; what is decided is counted afterwards.
async fn burst() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let runs = open(&server, &sql, BURST_GATES).await;
    let begun = Instant::now();
    let mut wrong = 0;
    for wave in runs.chunks(20) {
        let all = wave.iter().flat_map(|run| {
            // Two that are one, one that contradicts it, and two rivals.
            [("a", "yes"), ("a", "yes"), ("a", "no"), ("b", "no"), ("c", "yes")]
                .map(|(dedupe, choice)| reply(&server, run, dedupe, choice))
        });
        let answers = futures_util::future::join_all(all).await;
        wrong += answers.iter().filter(|(status, _)| *status != 200 && *status != 409).count();
    }
    let seconds = begun.elapsed().as_secs_f64();
    settled(&sql).await;
    let inexact: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM app.human_gates g WHERE
           (SELECT count(*) FROM app.human_interactions i WHERE i.run_id = g.run_id AND i.outcome = 'accepted') <> 1
           OR (SELECT count(*) FROM app.gate_votes v WHERE v.run_id = g.run_id) <> 1
           OR (SELECT count(*) FROM app.human_interactions i WHERE i.run_id = g.run_id) <> 3
           OR (SELECT count(*) FROM dbos.workflow_events_history h WHERE h.workflow_uuid = g.workflow_id AND h.key LIKE 'decision:%') <> 1",
    )
    .fetch_one(&sql)
    .await
    .expect("a count");
    assert_eq!(
        (inexact, wrong),
        (0, 0),
        "gates without exactly one decision, answers other than 200 and 409"
    );
    emit(
        "reply_burst",
        seconds,
        "s",
        10.0,
        json!({"replies": BURST_GATES * BURST_REPLIES, "gates": BURST_GATES, "inexact": inexact, "other_statuses": wrong}),
    );
    sql.close().await;
}

/// What a run that waits for a person costs: memory of server and database, and processor time.
pub async fn parked() {
    let gates: usize = if std::env::var_os("BENCH_QUICK").is_some() { 200 } else { 1_000 };
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let memory = || -> f64 {
        let family = family(&server, &home);
        family.iter().map(|pid| proc_kb(&format!("/proc/{pid}/smaps_rollup"), "Pss:")).sum()
    };
    // Warm, and at rest: idle connections are closed by then.
    let recipe = import(&server, GATED).await;
    submit(&server, &recipe, "warm").await;
    asked(&sql, 1).await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    let before = memory();
    let runs = open(&server, &sql, gates).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let kb = (memory() - before) / gates as f64;
    let pids = family(&server, &home);
    let ticks = || pids.iter().map(|pid| cpu_ticks(*pid)).sum::<f64>();
    let (from, begun) = (ticks(), Instant::now());
    tokio::time::sleep(Duration::from_secs(90)).await;
    let cores = (ticks() - from) / 100.0 / begun.elapsed().as_secs_f64();
    emit("parked_gates_core", cores, "cores", 0.05, json!({"gates": gates, "seconds": 90}));
    emit("parked_gates_kb", kb, "kB each", 100.0, json!({"gates": gates}));
    // They hold nothing that others need.
    let begun = Instant::now();
    let (status, body) = reply(&server, &runs[gates / 2], "k", "no").await;
    assert_eq!(status, 200, "{body}");
    crate::runs::ended(&sql, &runs[gates / 2]).await;
    assert_parked(&sql, gates - 1).await;
    let ms = begun.elapsed().as_secs_f64() * 1000.0;
    emit("parked_gates_reply_to_terminal", ms, "ms", 100.0, json!({"gates": gates}));
    sql.close().await;
}

/// What was measured is what was meant: so many gates still wait, each asked once, and nothing else runs or has failed.
async fn assert_parked(sql: &PgPool, gates: usize) {
    // The one that was open first, to warm, waits with them.
    let expected = i64::try_from(gates + 1).expect("a count");
    for (what, query) in [
        ("runs that wait", "SELECT count(*) FROM app.runs WHERE status = 'waiting_input'"),
        ("gates that wait", "SELECT count(*) FROM app.human_gates WHERE state = 'open'"),
        (
            "workflows that wait",
            "SELECT count(*) FROM dbos.workflow_status WHERE name = 'run' AND status = 'PENDING'",
        ),
    ] {
        let seen: i64 = sqlx::query_scalar(query).fetch_one(sql).await.expect(query);
        assert_eq!(seen, expected, "{what}");
    }
    let prompts = "SELECT count(*) FROM (SELECT workflow_uuid FROM dbos.workflow_events_history
                    WHERE key = 'ui:approve-plan' GROUP BY 1 HAVING count(*) <> 1) twice";
    let twice: i64 = sqlx::query_scalar(prompts).fetch_one(sql).await.expect(prompts);
    assert_eq!(twice, 0, "gates that asked twice while they waited");
}
