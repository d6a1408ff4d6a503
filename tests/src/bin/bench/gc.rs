//! How long a collection of many old runs takes beside running work, what it costs that work, and what a run leaves in the database.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cofferdam_tests::{Home, old_runs, text};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::figures::{emit, median};

const VALUE: &str = "id: beside\nv: '1'\nplan: {tasks: [{name: keep, value: kept}]}\n";
const TENANT: &str = "acme";

/// Bytes of the tables that a run's rows are in, as they are used: free room within them is not counted as a run's.
const USED: &str = "SELECT sum(pg_table_size(c.oid))::bigint FROM pg_class c
  WHERE c.relkind = 'r' AND c.relnamespace IN ('app'::regnamespace, 'dbos'::regnamespace)";

async fn bytes(sql: &PgPool) -> f64 {
    let used: i64 = sqlx::query_scalar(USED).fetch_one(sql).await.expect("a sum");
    used as f64
}

/// `gc`: seconds for 100,000 runs of one sandboxed task each, while runs of another recipe start one after the other.
pub async fn run() {
    let runs: u32 = if std::env::var_os("BENCH_QUICK").is_some() { 5_000 } else { 100_000 };
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let empty = bytes(&sql).await;
    old_runs::write(&sql, TENANT, runs).await;
    let full = bytes(&sql).await;
    let put = json!({"value": {"runs": 0}, "expectedVersion": 0, "scope": "global"});
    let (status, body) = up
        .request("PUT", "/api/config/retention", Some(&up.key), Some(put.to_string().into_bytes()))
        .await;
    assert_eq!(status, 200, "{body}");
    let (is_over, begun) = (AtomicBool::new(false), Instant::now());
    let collect = async {
        let (mut from, mut erased) = (Value::Null, 0_u64);
        loop {
            let (status, step) = up.post("/api/gc", &json!({"from": from})).await;
            assert_eq!(status, 200, "{step}");
            erased += step["erased"]["runs"].as_u64().expect("a count");
            if step.get("next").is_none_or(Value::is_null) {
                break;
            }
            from = step["next"].clone();
        }
        is_over.store(true, Ordering::Relaxed);
        (begun.elapsed().as_secs_f64(), erased)
    };
    let beside = async {
        let mut times = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let key = times.len().to_string();
            let header = up.run_recipe(VALUE, json!({}), json!({"runKey": key})).await;
            let end = up.wait_terminal(&text(&header, "runId")).await;
            assert_eq!(end["status"], "succeeded", "{end}");
            times.push(begun.elapsed().as_secs_f64() * 1_000.0);
        }
        times
    };
    let ((took, erased), times) = tokio::join!(collect, beside);
    assert!(erased >= u64::from(runs), "{erased}");
    // As long as vacuum has not given room back, erased rows are there twice.
    let mut superuser = cofferdam_tests::superuser(&sql).await;
    sqlx::query("VACUUM FULL").execute(&mut superuser).await.expect("a vacuum");
    let left = bytes(&sql).await;
    let each = |bytes: f64| (bytes - empty) / f64::from(runs) / 1_000.0;
    emit(
        "gc",
        took,
        "s",
        60.0,
        json!({
            "runs": runs, "kb_per_run": each(full), "kb_per_erased_run": each(left), "runs_beside": times.len(),
            "ms_beside": median(times),
        }),
    );
}
