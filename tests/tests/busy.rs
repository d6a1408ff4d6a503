//! A process whose runtime is busy with one thing lives, says so, and ends when it is told to.

use std::time::{Duration, Instant};

use cofferdam_tests::Home;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::until;

/// More than the runtime has threads.
const REQUESTS: usize = 6;
/// Longer than a worker may be silent, and less than the busy threads take.
const LOOKS: Duration = Duration::from_secs(8);
const PROBE: Duration = Duration::from_secs(2);
const STOP: Duration = Duration::from_secs(18);

#[tokio::test(flavor = "multi_thread")]
async fn a3f3_a_busy_runtime_keeps_neither_heartbeat_nor_health_nor_stop() {
    let home = Home::new();
    let mut up = home.up_with(&[], &[("COFFERDAM_BUSY", "recipes.list")]);
    let sql = up.sql().await;
    let http = reqwest::Client::builder().timeout(PROBE).build().unwrap();
    let ask = |path: &str| http.get(format!("{}{path}", up.url)).bearer_auth(&up.key).send();
    assert_eq!(ask("/api/me").await.unwrap().status().as_u16(), 404, "the runtime answers");
    let busy = futures_util::future::join_all((0..REQUESTS).map(|_| ask("/api/recipes")));
    assert!(busy.await.iter().all(Result::is_err), "they keep their threads");
    assert!(ask("/api/me").await.is_err(), "and nothing else has one");
    let begun = Instant::now();
    while begun.elapsed() < LOOKS {
        let late: i64 = sqlx::query_scalar(
            "SELECT app.ms(clock_timestamp()) - app.ms(heartbeat_at) FROM app.executors WHERE state = 'live'",
        )
        .fetch_one(&sql)
        .await
        .unwrap();
        assert!(late < 4_000, "no beat for {late} ms");
        let health = ask("/healthz").await.expect("health is told");
        assert_eq!(health.status().as_u16(), 200);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    sql.close().await;
    kill(Pid::from_raw(up.pid()), Signal::SIGTERM).unwrap();
    until("the process ends", STOP, async || up.has_ended()).await;
    // What it could not put in order, the next start does.
    let mut next = home.up();
    assert_eq!(next.get("/healthz").await.0, 200);
    assert!(next.stop().success());
}
