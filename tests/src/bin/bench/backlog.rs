//! A long queue on a database elsewhere: what it costs one worker, how fast it drains, and what others notice of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cofferdam_tests::postgres::Postgres;
use cofferdam_tests::{Home, Server};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::figures::{emit, median, percentile};
use crate::runs::{VALUE, burst, import, proc_kb, settled};

/// Runs in the queue, the short one first: the issue's own number, and a tenth of it to compare with.
const QUEUES: [usize; 2] = [2_000, 20_000];
const QUICK: [usize; 2] = [300, 3_000];
/// What another tenant asks for while so many of the first one's are queued.
const OTHERS: usize = 10;
const BESIDE: i64 = 5_000;
/// Requests in flight while a queue is filled.
const WAVE: usize = 40;

const QUEUED: &str = "SELECT count(*) FROM dbos.workflow_status WHERE queue_name = 'intentQ' AND status = 'ENQUEUED'";

/// A fleet of one worker that is not there yet.
struct World {
    shim: Server,
    sql: PgPool,
    home: Home,
    _database: Postgres,
}

impl World {
    async fn new() -> Self {
        let database = Postgres::start().await;
        let home = Home::on(&database.url());
        let shim = Server::start(&home, &["shim", "--listen", "127.0.0.1:0"], &[]);
        let sql = database.sql().await;
        Self { shim, sql, home, _database: database }
    }

    fn worker(&self) -> Server {
        Server::start(&self.home, &["worker"], &[])
    }

    async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(&self.sql).await.expect(query)
    }
}

pub async fn run() {
    let rate = throughput().await;
    let lengths = if std::env::var_os("BENCH_QUICK").is_some() { QUICK } else { QUEUES };
    let mut peaks = Vec::new();
    for (length, is_last) in lengths.into_iter().zip([false, true]) {
        peaks.push(drained(length, is_last, rate).await);
    }
    let more = json!({"mb_at": lengths.iter().zip(&peaks).map(|(n, mb)| json!([n, mb])).collect::<Vec<_>>()});
    emit("backlog_memory_flat", peaks[1] / peaks[0], "ratio", 1.25, more);
}

/// What the drain is compared with: the throughput bench, on such a database.
async fn throughput() -> f64 {
    let world = World::new().await;
    let worker = world.worker();
    let recipe = import(&world.shim, VALUE).await;
    let mut rates = Vec::new();
    for round in 0..4 {
        rates.push(burst(&world.shim, &world.sql, &recipe, round).await);
    }
    drop(worker);
    median(rates.split_off(1))
}

/// Fills the queue, starts the worker and watches: the most memory that it had, in MB.
async fn drained(length: usize, is_last: bool, throughput: f64) -> f64 {
    let world = World::new().await;
    let recipe = import(&world.shim, VALUE).await;
    let begun = Instant::now();
    fill(&world, &recipe, length).await;
    let accepted = length as f64 / begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let worker = world.worker();
    let memory = Memory::of(worker.pid());
    first_end(&world, begun, length).await;
    if is_last && world.count(QUEUED).await > BESIDE {
        others(&world, &recipe).await;
    }
    settled_slowly(&world).await;
    let rate = length as f64 / begun.elapsed().as_secs_f64();
    emit(
        "backlog_drain",
        rate / throughput,
        "of the throughput",
        0.8,
        json!({"runs": length, "runs_per_s": rate, "throughput": throughput, "accepted_per_s": accepted}),
    );
    // Longer than pools keep what nobody uses.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let (peak, rest) = memory.end(worker.pid());
    emit("backlog_resident_mb", peak, "MB", None, json!({"runs": length, "at_rest": rest}));
    let begun = Instant::now();
    let output = world.home.run(&["prove", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    emit("prove", begun.elapsed().as_secs_f64(), "s", 10.0, json!({"runs": length}));
    drop(worker);
    peak
}

async fn fill(world: &World, recipe: &Value, length: usize) {
    let next = AtomicU64::new(0);
    let length = u64::try_from(length).expect("a length");
    let clients = (0..WAVE).map(|_| async {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= length {
                return;
            }
            crate::runs::submit(&world.shim, recipe, &n.to_string()).await;
        }
    });
    futures_util::future::join_all(clients).await;
}

async fn first_end(world: &World, begun: Instant, length: usize) {
    let ended =
        "SELECT count(*) FROM (SELECT FROM app.runs WHERE finished_at IS NOT NULL LIMIT 1) one";
    while world.count(ended).await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let seconds = begun.elapsed().as_secs_f64();
    emit("backlog_first_end", seconds, "s from the worker's start", 1.0, json!({"runs": length}));
}

/// Another tenant's runs beside thousands that are queued.
async fn others(world: &World, recipe: &Value) {
    let (_, key) = world.shim.new_key(&json!({"tenant": "other", "roles": ["submitter"]})).await;
    let (status, imported) =
        world.shim.post_as(&key, "/api/recipes/import", &json!({"yaml": VALUE})).await;
    assert_eq!(status, 201, "{imported}");
    let beside = world.count(QUEUED).await;
    for n in 0..OTHERS {
        let body = json!({"recipeRef": recipe, "opts": {"runKey": n.to_string()}});
        let (status, header) = world.shim.post_as(&key, "/api/run", &body).await;
        assert_eq!(status, 201, "{header}");
    }
    let open = "SELECT count(*) FROM app.runs WHERE tenant_id = 'other' AND finished_at IS NULL";
    while world.count(open).await > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let starts = times(world, "(w.started_at_epoch_ms - w.created_at)::float8", "=").await;
    let ends =
        times(world, "(extract(epoch FROM r.finished_at - r.created_at) * 1000)::float8", "=")
            .await;
    let length = "(extract(epoch FROM r.finished_at) * 1000 - w.started_at_epoch_ms)::float8";
    let neighbours = median(times(world, length, "<>").await);
    emit(
        "backlog_other_starts",
        starts.iter().copied().fold(f64::INFINITY, f64::min),
        "ms",
        neighbours,
        json!({"beside": beside, "start_p50": median(starts.clone()), "start_max": percentile(starts, 99),
               "end_p50": median(ends.clone()), "end_max": percentile(ends, 99), "neighbour_run_p50": neighbours}),
    );
}

async fn times(world: &World, expression: &str, is_other: &str) -> Vec<f64> {
    let query = format!(
        "SELECT {expression} FROM app.runs r JOIN dbos.workflow_status w ON w.workflow_uuid = r.workflow_id
          WHERE r.finished_at IS NOT NULL AND r.tenant_id {is_other} 'other'"
    );
    sqlx::query_scalar(sqlx::AssertSqlSafe(query)).fetch_all(&world.sql).await.expect("times")
}

/// As [`settled`], with fewer looks.
async fn settled_slowly(world: &World) {
    while world.count(QUEUED).await > 0 {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    settled(&world.sql).await;
}

/// The most memory that a process had, looked at again and again.
struct Memory {
    peak: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Memory {
    fn of(pid: i32) -> Self {
        let this = Self { peak: Arc::default(), stop: Arc::default() };
        let (peak, stop) = (Arc::clone(&this.peak), Arc::clone(&this.stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                peak.fetch_max(resident(pid) as u64, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        this
    }

    /// Megabytes: the most, and now.
    fn end(self, pid: i32) -> (f64, f64) {
        self.stop.store(true, Ordering::Relaxed);
        (self.peak.load(Ordering::Relaxed) as f64 / 1024.0, resident(pid) / 1024.0)
    }
}

fn resident(pid: i32) -> f64 {
    proc_kb(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}
