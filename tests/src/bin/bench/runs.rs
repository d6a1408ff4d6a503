//! Runs on the real binary, each bench on a database of its own: latency, throughput, statements,
//! cost at rest, start, and cost against history.

use std::process::Command;
use std::time::{Duration, Instant};

use cofferdam_tests::postgres::Postgres;
use cofferdam_tests::statements::{cost, log_all};
use cofferdam_tests::{Home, Server, processes_mentioning};
use serde_json::{Value, json};
use sqlx::{PgPool, Row};

use crate::figures::{emit, median, percentile};
use crate::{backlog, cache, first_output, gates, graphs};

pub(crate) const HELLO: &str =
    "id: hello\nv: \"1\"\nplan: {tasks: [{name: hello, exec: {run: [/bin/true], timeout: 30s}}]}\n";
pub(crate) const VALUE: &str = "id: value\nv: \"1\"\nplan: {tasks: [{name: keep, value: kept}]}\n";
/// Runs of the throughput benches, and how many are open at a time: the issue's own numbers.
pub(crate) const RUNS: usize = 200;
const CONCURRENCY: usize = 20;

/// The benches of this file, by name.
pub async fn run(wanted: impl Fn(&str) -> bool) {
    if wanted("latency") {
        latency().await;
    }
    if wanted("throughput") {
        throughput().await;
    }
    if wanted("statements") {
        statements().await;
    }
    if wanted("cache") {
        cache::second_run().await;
    }
    if wanted("idle") {
        idle();
    }
    if wanted("start") {
        start();
    }
    if wanted("flat") {
        flat().await;
    }
    if wanted("gates") {
        gates::gates().await;
    }
    if wanted("parked") {
        gates::parked().await;
    }
    if wanted("first_output") {
        first_output::run().await;
    }
    if wanted("graphs") {
        graphs::run().await;
    }
    if wanted("gc") {
        crate::gc::run().await;
    }
    if wanted("backlog") {
        backlog::run().await;
    }
}

pub(crate) async fn import(server: &Server, yaml: &str) -> Value {
    let (status, imported) = server.post("/api/recipes/import", &json!({"yaml": yaml})).await;
    assert_eq!(status, 201, "{imported}");
    imported["recipeRef"].clone()
}

pub(crate) async fn submit(server: &Server, recipe: &Value, key: &str) -> String {
    let body = json!({"recipeRef": recipe, "opts": {"runKey": key}});
    let (status, header) = server.post("/api/run", &body).await;
    assert_eq!(status, 201, "{header}");
    header["runId"].as_str().expect("a run id").to_owned()
}

/// Until this run and its workflow have ended: two rows by their keys, whatever else there is.
pub(crate) async fn ended(sql: &PgPool, run: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let done: bool = sqlx::query_scalar(
            "SELECT r.finished_at IS NOT NULL AND w.status NOT IN ('ENQUEUED', 'PENDING')
               FROM app.runs r JOIN dbos.workflow_status w ON w.workflow_uuid = r.workflow_id WHERE r.id = $1",
        )
        .bind(run)
        .fetch_one(sql)
        .await
        .expect("the run");
        if done {
            return;
        }
        assert!(Instant::now() < deadline, "{run} does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Until every run that was submitted is terminal. What is open is counted from a small index:
/// counting what is done would cost the server more with every run, and be measured with it.
pub(crate) async fn settled(sql: &PgPool) {
    let deadline = Instant::now() + Duration::from_secs(600);
    loop {
        let open: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')",
        )
        .fetch_one(sql)
        .await
        .expect("a count");
        if open == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{open} workflows do not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn latencies(sql: &PgPool) -> Vec<f64> {
    sqlx::query_scalar(
        "SELECT (extract(epoch FROM r.finished_at - i.created_at) * 1000)::float8
           FROM app.runs r JOIN app.intents i ON i.id = r.intent_id ORDER BY r.created_at DESC LIMIT 40",
    )
    .fetch_all(sql)
    .await
    .expect("latencies")
}

/// One run at a time, warm: from the intent's row to the run's end.
async fn latency() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let recipe = import(&server, HELLO).await;
    for i in 0..50 {
        let run = submit(&server, &recipe, &format!("l{i}")).await;
        ended(&sql, &run).await;
    }
    let all = latencies(&sql).await;
    emit(
        "run_latency",
        median(all.clone()),
        "ms",
        150.0,
        json!({"p99": percentile(all, 99), "n": 40}),
    );
    let waits: Vec<f64> = sqlx::query_scalar(
        "SELECT (started_at_epoch_ms - created_at)::float8 FROM dbos.workflow_status ORDER BY created_at DESC LIMIT 80",
    )
    .fetch_all(&sql)
    .await
    .expect("waits");
    emit(
        "enqueue_to_start",
        median(waits.clone()),
        "ms",
        15.0,
        json!({"p99": percentile(waits, 99), "n": 80}),
    );
    sql.close().await;
}

/// 200 runs of one task, 20 open at a time.
async fn throughput() {
    for (name, yaml, target) in
        [("runs_per_s_sandbox", HELLO, 90.0), ("runs_per_s_engine", VALUE, 300.0)]
    {
        let home = Home::new();
        let server = home.up();
        let sql = server.sql().await;
        let recipe = import(&server, yaml).await;
        let mut rates = Vec::new();
        for round in 0..5 {
            rates.push(burst(&server, &sql, &recipe, round).await);
        }
        // The first round warms caches and connections.
        emit(
            name,
            median(rates.split_off(1)),
            "runs/s",
            target,
            json!({"runs": RUNS, "concurrency": CONCURRENCY, "rounds": 4}),
        );
        sql.close().await;
    }
}

pub(crate) async fn burst(server: &Server, sql: &PgPool, recipe: &Value, round: usize) -> f64 {
    let started = Instant::now();
    let mut submitted = 0;
    while submitted < RUNS {
        // The open runs are counted in SQL, from a small index, so that waiting costs next to nothing.
        let open: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM dbos.workflow_status
              WHERE queue_name = 'intentQ' AND status IN ('ENQUEUED', 'PENDING')",
        )
        .fetch_one(sql)
        .await
        .expect("a count");
        let open = usize::try_from(open).expect("not negative");
        let free = CONCURRENCY.saturating_sub(open).min(RUNS - submitted);
        if free == 0 {
            tokio::time::sleep(Duration::from_millis(4)).await;
            continue;
        }
        let wave = (submitted..submitted + free).map(|n| async move {
            submit(server, recipe, &format!("b{round}-{n}")).await;
        });
        futures_util::future::join_all(wave).await;
        submitted += free;
    }
    settled(sql).await;
    RUNS as f64 / started.elapsed().as_secs_f64()
}

/// Runs over which statements are counted.
const COUNTED: u32 = 40;

/// Statements that the database is sent, and bytes of rows that stay, for one run of one task.
async fn statements() {
    let postgres = Postgres::start().await;
    let sql = postgres.sql().await;
    log_all(&sql).await;
    let home = Home::on(&postgres.url());
    let server = home.up();
    for (name, text, most) in
        [("sql_statements_per_run", HELLO, 28.0), ("sql_statements_per_value", VALUE, 20.0)]
    {
        let before = row_bytes(&sql).await;
        let cost = cost(&postgres, &server, text, COUNTED).await;
        let about =
            json!({"idle_per_s": cost.idle, "n": COUNTED, "peer": "known implementation: 286"});
        emit(name, cost.each, "statements", most, about);
        if text == HELLO {
            // The run that filled the caches left its rows, too.
            let each = (row_bytes(&sql).await - before) / f64::from(COUNTED + 1);
            emit("row_bytes_per_run", each / 1000.0, "kB", 25.0, json!({"n": COUNTED}));
        }
    }
    sql.close().await;
}

async fn row_bytes(sql: &PgPool) -> f64 {
    let tables = sqlx::query(
        "SELECT schemaname, tablename FROM pg_tables WHERE schemaname IN ('app', 'dbos')",
    )
    .fetch_all(sql)
    .await
    .expect("tables");
    let mut sum = 0.0;
    for table in tables {
        let (schema, name): (String, String) = (table.get(0), table.get(1));
        let query = format!(
            "SELECT coalesce(sum(pg_column_size(t.*)), 0)::float8 FROM \"{schema}\".\"{name}\" t"
        );
        sum += sqlx::query_scalar::<_, f64>(sqlx::AssertSqlSafe(query))
            .fetch_one(sql)
            .await
            .expect("a size");
    }
    sum
}

/// Memory and processor time of an idle `up`, its database included.
fn idle() {
    let home = Home::new();
    let server = home.up();
    // Longer than a pool keeps a connection that nobody uses.
    std::thread::sleep(Duration::from_secs(15));
    let family = family(&server, &home);
    let memory = |field: &str| -> f64 {
        family.iter().map(|pid| proc_kb(&format!("/proc/{pid}/smaps_rollup"), field)).sum::<f64>()
            / 1024.0
    };
    let (pss, rss) = (memory("Pss:"), memory("Rss:"));
    emit(
        "idle_resident_mb",
        pss,
        "MiB (PSS)",
        // 60 MB.
        57.2,
        json!({"rss_sum": rss, "processes": family.len()}),
    );
    let ticks = || family.iter().map(|pid| cpu_ticks(*pid)).sum::<f64>();
    let (before, begun) = (ticks(), Instant::now());
    std::thread::sleep(Duration::from_secs(20));
    let percent = (ticks() - before) / 100.0 / begun.elapsed().as_secs_f64() * 100.0;
    emit("idle_cpu_percent", percent, "% of a core", 2.0, json!({"seconds": 20}));
}

/// The server, the postmaster and the postmaster's children.
pub(crate) fn family(server: &Server, home: &Home) -> Vec<i32> {
    let mut pids = vec![server.pid()];
    let masters: Vec<i32> = processes_mentioning(&home.path().to_string_lossy())
        .into_iter()
        .filter(|(_, cmd)| cmd.contains("postgres"))
        .map(|(pid, _)| pid)
        .collect();
    for master in &masters {
        let children = Command::new("ps")
            .args(["-o", "pid=", "--ppid", &master.to_string()])
            .output()
            .expect("ps");
        pids.extend(
            String::from_utf8_lossy(&children.stdout)
                .split_whitespace()
                .filter_map(|p| p.parse::<i32>().ok()),
        );
    }
    pids.extend(masters);
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// A number behind a name in one of the kernel's files.
pub fn proc_kb(path: &str, field: &str) -> f64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with(field)).unwrap_or("");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0.0)
}

pub(crate) fn cpu_ticks(pid: i32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = text.rsplit(')').next().unwrap_or("");
    let field = |n: usize| {
        rest.split_whitespace().nth(n).and_then(|t| t.parse::<f64>().ok()).unwrap_or(0.0)
    };
    field(11) + field(12)
}

fn start() {
    let timed = |work: &mut dyn FnMut()| {
        let begun = Instant::now();
        work();
        begun.elapsed().as_secs_f64() * 1000.0
    };
    let home = Home::new();
    assert!(home.run(&["run", "examples/hello.yaml"]).status.success());
    let mut ready = Vec::new();
    for _ in 0..10 {
        let mut server = None;
        ready.push(timed(&mut || server = Some(home.up())));
        drop(server);
    }
    emit("start_to_ready", median(ready), "ms", 400.0, json!({"n": 10}));
    let mut existing = Vec::new();
    for _ in 0..10 {
        existing.push(timed(&mut || {
            assert!(home.run(&["run", "examples/hello.yaml"]).status.success())
        }));
    }
    emit("oneshot_existing", median(existing), "ms", 1000.0, json!({"n": 10}));
    let mut nothing = Vec::new();
    for _ in 0..5 {
        let fresh = Home::new();
        nothing.push(timed(&mut || {
            assert!(fresh.run(&["run", "examples/hello.yaml"]).status.success())
        }));
    }
    emit("oneshot_from_nothing", median(nothing), "ms", 3000.0, json!({"n": 5}));
}

/// The same run after 100 and after many finished runs.
async fn flat() {
    let many: i64 = if std::env::var_os("BENCH_QUICK").is_some() { 2_000 } else { 20_000 };
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let recipe = import(&server, VALUE).await;
    let mut done = 0;
    let mut costs = Vec::new();
    for until in [100, many] {
        while done < until {
            let batch = (until - done).min(200);
            let submits = (0..batch).map(|i| {
                submit(&server, &recipe, Box::leak(format!("f{}", done + i).into_boxed_str()))
            });
            futures_util::future::join_all(submits).await;
            done += batch;
            settled(&sql).await;
        }
        let mut times = Vec::new();
        for i in 0..40 {
            let run = submit(&server, &recipe, &format!("f{until}-{i}")).await;
            done += 1;
            ended(&sql, &run).await;
        }
        times.extend(latencies(&sql).await);
        costs.push(median(times));
    }
    emit(
        "cost_flat",
        costs[1] / costs[0],
        "ratio",
        1.2,
        json!({"runs": many, "ms_at_100": costs[0], "ms_at_many": costs[1]}),
    );
    sql.close().await;
}
