//! How many statements a run costs the database, counted in the log of a server that this process may ask to keep one.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::PgPool;

use crate::Server;
use crate::postgres::Postgres;

/// How long an idle worker is listened to.
const IDLE: Duration = Duration::from_secs(6);
/// Between two starts, so that runs do not wait for each other.
const PAUSE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(60);

/// What one recipe's runs cost.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Statements of one run.
    pub each: f64,
    /// Statements a second of the worker without a run, which are left out of `each`.
    pub idle: f64,
}

/// Has the server log every statement that it is sent.
pub async fn log_all(sql: &PgPool) {
    for change in ["ALTER SYSTEM SET log_statement = 'all'", "SELECT pg_reload_conf()"] {
        sqlx::query(change).execute(sql).await.expect("a superuser");
    }
}

/// Statements that the server was sent so far.
fn logged(postgres: &Postgres) -> f64 {
    let is_sent =
        |line: &&str| line.contains("LOG:  statement: ") || line.contains("LOG:  execute ");
    f64::from(u32::try_from(postgres.log().lines().filter(is_sent).count()).expect("a count"))
}

/// The cost of a run: `runs` of them, after one that fills the caches.
pub async fn cost(postgres: &Postgres, up: &Server, recipe: &str, runs: u32) -> Cost {
    let sql = postgres.sql().await;
    let (_, imported) = up.post("/api/recipes/import", &json!({"yaml": recipe})).await;
    let start = async |key: u32| {
        let opts = json!({"recipeRef": imported["recipeRef"], "opts": {"runKey": key.to_string()}});
        assert_eq!(up.post("/api/run", &opts).await.0, 201);
    };
    start(0).await;
    looks_until_over(&sql).await;
    // What a worker says by itself, each second.
    let (before, begun) = (logged(postgres), Instant::now());
    tokio::time::sleep(IDLE).await;
    let idle = (logged(postgres) - before) / begun.elapsed().as_secs_f64();
    let (before, begun) = (logged(postgres), Instant::now());
    for key in 1..=runs {
        start(key).await;
        tokio::time::sleep(PAUSE).await;
    }
    let looks = looks_until_over(&sql).await;
    let sent = logged(postgres) - before - idle * begun.elapsed().as_secs_f64() - looks;
    sql.close().await;
    Cost { each: sent / f64::from(runs), idle }
}

/// Waits until no run is left, and gives the statements that this took.
async fn looks_until_over(sql: &PgPool) -> f64 {
    let open = "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED','PENDING')";
    let deadline = Instant::now() + PATIENCE;
    for looks in 1u32.. {
        if sqlx::query_scalar::<_, i64>(open).fetch_one(sql).await.expect("a count") == 0 {
            return f64::from(looks);
        }
        assert!(Instant::now() < deadline, "the runs are not over after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    unreachable!("it returns or panics")
}
