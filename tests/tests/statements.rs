//! How many statements a run costs the database: a promise that one more read in a hot path would break.

use std::time::{Duration, Instant};

use cofferdam_tests::Home;
use cofferdam_tests::postgres::Postgres;
use serde_json::json;

use crate::support::{assert_proven, count, until};

const VALUE: &str = "id: value\nv: '1'\nplan: {tasks: [{name: keep, value: kept}]}\n";
const SANDBOX: &str =
    "id: hello\nv: '1'\nplan: {tasks: [{name: t, exec: {run: [/bin/true], timeout: 30s}}]}\n";

/// Statements that the server was sent so far.
fn logged(postgres: &Postgres) -> f64 {
    let is_sent =
        |line: &&str| line.contains("LOG:  statement: ") || line.contains("LOG:  execute ");
    f64::from(u32::try_from(postgres.log().lines().filter(is_sent).count()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_costs_few_statements() {
    const RUNS: u32 = 30;
    let postgres = Postgres::start().await;
    let sql = postgres.sql().await;
    for change in ["ALTER SYSTEM SET log_statement = 'all'", "SELECT pg_reload_conf()"] {
        sqlx::query(change).execute(&sql).await.unwrap();
    }
    let home = Home::on(&postgres.url());
    let up = home.up();
    let settled =
        "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED','PENDING')";
    for (recipe, most) in [(VALUE, 19.5), (SANDBOX, 32.0)] {
        let (_, imported) = up.post("/api/recipes/import", &json!({"yaml": recipe})).await;
        let start = async |key: u32| {
            let opts =
                json!({"recipeRef": imported["recipeRef"], "opts": {"runKey": key.to_string()}});
            assert_eq!(up.post("/api/run", &opts).await.0, 201);
        };
        start(0).await;
        until("the first run is over", Duration::from_secs(60), async || {
            count(&sql, settled).await == 0
        })
        .await;
        // What a worker says by itself, each second.
        let (before, begun) = (logged(&postgres), Instant::now());
        tokio::time::sleep(Duration::from_secs(6)).await;
        let idle = (logged(&postgres) - before) / begun.elapsed().as_secs_f64();
        let (before, begun) = (logged(&postgres), Instant::now());
        for key in 1..=RUNS {
            start(key).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let mut looks = 0.0;
        until("the runs are over", Duration::from_secs(60), async || {
            looks += 1.0;
            count(&sql, settled).await == 0
        })
        .await;
        let sent = logged(&postgres) - before - idle * begun.elapsed().as_secs_f64() - looks;
        let each = sent / f64::from(RUNS);
        eprintln!("{each:.1} statements a run, {idle:.1} a second without one");
        assert!(each <= most, "{each} statements a run of {recipe}");
    }
    drop(up);
    assert_proven(&home);
}
