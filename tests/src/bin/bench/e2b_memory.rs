//! Pauses that keep memory: a sandbox of the class gVisor with one Python process, by E2B's API over loopback, in turns with a
//! bare `runsc run` of `/usr/bin/true`, the least that any start of gVisor takes.
//!
//! | Figure | The clock starts | It stops |
//! |---|---|---|
//! | `e2b_gvisor_pause` | before the request | with its answer: memory and files are sealed, and the wipe is verified |
//! | `e2b_gvisor_resume` | before the request | with its answer: the processes go on, and the agent has answered |

use std::time::Instant;

use cofferdam_tests::Home;
use cofferdam_tests::e2b::Caller;
use serde_json::json;

use super::bare::Bare;
use super::figures::{emit, median, percentile, rounded};
use super::life::ms;

/// Turns; the first warms the caches.
const TURNS: usize = 20;
const BARE: &str = "runsc run";
/// Kept whatever the version of runsc.
const MEMORY: (&str, &str) = ("COFFERDAM_GVISOR_MEMORY", "1");
const PROCESS: &str =
    "nohup python3 -c 'import time\nwhile True: time.sleep(0.01)' > /dev/null 2>&1 &";

pub async fn run() {
    let scratch = tempfile::Builder::new().prefix("cofferdam-bench-").tempdir().unwrap();
    let Some(bare) = Bare::named(scratch.path(), BARE, "e2b_gvisor_pause") else { return };
    let home = Home::new();
    let mut server = home.up_with(&[], &[MEMORY]);
    let client = Caller::of(&server, "bench").await.in_class("gvisor");
    let (id, token) = client.create(json!({"templateID": "base", "timeout": 600})).await;
    client.started((&id, &token), "sh", &["-c", PROCESS]).await;
    let (mut pauses, mut resumes, mut bares) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..=TURNS {
        let clock = Instant::now();
        let (status, answer) = client.api("POST", &format!("/sandboxes/{id}/pause"), None).await;
        let pause = ms(clock);
        assert_eq!(status, 204, "{answer}");
        let clock = Instant::now();
        let connect = format!("/v2/sandboxes/{id}/connect");
        let (status, answer) = client.api("POST", &connect, Some(json!({"timeout": 600}))).await;
        let resume = ms(clock);
        assert_eq!(status, 201, "{answer}");
        let one = bare.run();
        if turn > 0 {
            pauses.push(pause);
            resumes.push(resume);
            bares.push(one);
        }
    }
    client.kill(&id).await;
    let sql = server.sql().await;
    let kept = "SELECT count(*) FROM app.snapshots WHERE NOT memory";
    let files_alone = sqlx::query_scalar::<_, i64>(kept).fetch_one(&sql).await.unwrap();
    assert_eq!(files_alone, 0, "a pause kept files alone");
    sql.close().await;
    let bare_ms = rounded(median(bares));
    for (name, times, bound) in
        [("e2b_gvisor_pause", pauses, 250.0), ("e2b_gvisor_resume", resumes, 200.0)]
    {
        let p90 = rounded(percentile(times.clone(), 90));
        let more = json!({"n": TURNS, "p90": p90, "bare_ms": bare_ms});
        emit(name, median(times), "ms", bound, more);
    }
    server.stop();
}
