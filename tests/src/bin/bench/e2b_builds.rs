//! A small template of E2B's API, built: a base, two commands and one file, from its request to `ready`. In turns with the same
//! commands and the same file by hand, in a sandbox that runs already, and a snapshot of it; and with the same build again,
//! of which no step runs.
//!
//! | Figure | The clock starts | It stops |
//! |---|---|---|
//! | `e2b_build` | before `POST /v3/templates` | when the status is `ready`; `force`, so that every step runs |
//! | `e2b_build_cached` | the same | the same; without `force` |
//! | by hand | before the first command | with the answer of `POST /sandboxes/{id}/snapshots` |
//!
//! A build makes its sandbox, which by hand is there. The archive was sent before, as clients send it once.

use std::time::{Duration, Instant};

use cofferdam_tests::e2b::{Caller, answered};
use cofferdam_tests::{Home, text};
use serde_json::{Value, json};

use super::figures::{emit, median, percentile, rounded};
use super::life::ms;

const TURNS: usize = 30;
const COLD: usize = 3;
/// Of the file that is copied.
const FILE: usize = 64 << 10;
const HASH: &str = "abababababababababababababababababababababababababababababababab";
const FIRST: &str = "ls /usr/bin > ~/list";
const SECOND: &str = "sha256sum ~/list ~/app/file > ~/sums";
/// Between two looks at a status: a small part of what is measured.
const LOOK: Duration = Duration::from_millis(2);

pub async fn run() {
    let home = Home::new();
    let mut server = home.up();
    let client = Caller::of(&server, "bench").await;
    sent(&client).await;
    let (mut hands, mut builds, mut cached) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS + COLD {
        let all = (by_hand(&client).await, built(&client, true).await, built(&client, false).await);
        if turn >= COLD {
            hands.push(all.0);
            builds.push(all.1);
            cached.push(all.2);
        }
    }
    let hand = median(hands);
    for (name, times, bound) in [("e2b_build", builds, 4.0), ("e2b_build_cached", cached, 3.0)] {
        let half = median(times.clone());
        let more = json!({
            "n": TURNS, "ms": rounded(half), "p90": rounded(percentile(times, 90)), "by_hand_ms": rounded(hand),
        });
        emit(name, half / hand, "x by hand", bound, more);
    }
    server.stop();
}

/// The archive of the COPY step, for the template.
async fn sent(client: &Caller) {
    let (template, _) = client.open_build("web").await;
    let mut all = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(FILE as u64);
    header.set_mode(0o644);
    header.set_cksum();
    all.append_data(&mut header, "file", &*vec![7; FILE]).unwrap();
    assert_eq!(client.send_files(&template, HASH, all.into_inner().unwrap()).await.0, 200);
}

async fn built(client: &Caller, force: bool) -> f64 {
    let run = |command: &str| json!({"type": "RUN", "args": [command]});
    let copy = json!({"type": "COPY", "args": ["file", "app/", "", ""], "filesHash": HASH});
    let steps = json!([run(FIRST), copy, run(SECOND)]);
    let clock = Instant::now();
    let (template, build) = client.open_build("web").await;
    let path = format!("/v2/templates/{template}/builds/{build}");
    let body = json!({"fromTemplate": "base", "steps": steps, "force": force});
    let (status, said) = client.api("POST", &path, Some(body)).await;
    assert_eq!(status, 202, "{said}");
    let path = format!("/templates/{template}/builds/{build}/status");
    let end = loop {
        let (_, said) = client.api("GET", &path, None).await;
        match said["status"].as_str() {
            Some("building" | "waiting") => tokio::time::sleep(LOOK).await,
            _ => break said,
        }
    };
    let took = ms(clock);
    assert_eq!(end["status"], "ready", "{end}");
    assert_eq!(skipped(&end), if force { 0 } else { 3 }, "{end}");
    took
}

/// Steps that did not run.
fn skipped(end: &Value) -> usize {
    let said = end["logEntries"].as_array().map(Vec::as_slice).unwrap_or_default().iter();
    said.filter(|entry| text(entry, "message").starts_with("CACHED ")).count()
}

async fn by_hand(client: &Caller) -> f64 {
    let made = client.create(json!({"templateID": "base", "timeout": 60})).await;
    let at = (made.0.as_str(), made.1.as_str());
    let clock = Instant::now();
    command(client, at, FIRST).await;
    let (status, said) =
        answered(client.upload(at, "/home/user/app/file").body(vec![7; FILE])).await;
    assert_eq!(status, 200, "{said}");
    command(client, at, SECOND).await;
    let path = format!("/sandboxes/{}/snapshots", made.0);
    let (status, snapshot) = client.api("POST", &path, Some(json!({}))).await;
    let took = ms(clock);
    assert_eq!(status, 201, "{snapshot}");
    let path = format!("/templates/{}", text(&snapshot, "snapshotID"));
    let (status, said) = client.api("DELETE", &path, None).await;
    assert_eq!(status, 204, "{said}");
    client.kill(&made.0).await;
    took
}

async fn command(client: &Caller, at: (&str, &str), command: &str) {
    let answer = client.started(at, "/bin/bash", &["-l", "-c", command]).await;
    assert!(answer.contains("\"exitCode\":0"), "{answer}");
}
