//! How long after a task wrote something who follows its run has it: over loopback, on the real binary.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cofferdam_tests::{Home, Server};
use serde_json::{Value, json};

use crate::figures::{emit, median, percentile};
use crate::runs::{import, submit};

/// Runs of which each writes its first line, and a second one a moment later. The clock in the sandbox is the host's.
const TALKS: &str = "id: talks\nv: \"1\"\nplan: {tasks: [{name: talks, exec: {run: 'date +%s%N; sleep 0.2; date +%s%N; sleep 0.2', timeout: 30s}}]}\n";
const RUNS: usize = 50;
/// After so long a line that did not come is the bench's end.
const LIMIT: Duration = Duration::from_secs(30);

/// p95 of the first lines; beside it, of the second ones.
pub async fn run() {
    let home = Home::new();
    let server = home.up();
    let recipe = import(&server, TALKS).await;
    let (mut first, mut later) = (Vec::new(), Vec::new());
    // The first run fills caches.
    for n in 0..=RUNS {
        let run = submit(&server, &recipe, &format!("o{n}")).await;
        let delays = heard(&server, &run).await;
        if n > 0 {
            first.push(delays[0]);
            later.push(delays[1]);
        }
    }
    emit(
        "first_output",
        percentile(first.clone(), 95),
        "ms",
        100.0,
        json!({"p50": median(first), "later_p95": percentile(later, 95), "n": RUNS}),
    );
}

/// How long after it was written each of two lines was read, in ms.
async fn heard(server: &Server, run: &str) -> Vec<f64> {
    let url = format!("{}/api/runs/{run}/stream/all?follow=true", server.url);
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let mut answer = http.get(url).bearer_auth(&server.key).send().await.expect("an answer");
    let (mut pending, mut delays) = (Vec::new(), Vec::new());
    while delays.len() < 2 {
        let chunk = tokio::time::timeout(LIMIT, answer.chunk()).await.expect("a line in time");
        let Some(bytes) = chunk.expect("a chunk") else { break };
        let read = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs_f64();
        pending.extend_from_slice(&bytes);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let value: Value = serde_json::from_slice(&line).expect("a line of JSON");
            let stamps = value["chunk"].as_str().expect("a chunk").lines();
            delays.extend(stamps.map(|stamp| {
                let written: f64 = stamp.parse().expect("nanoseconds");
                (read - written / 1e9) * 1000.0
            }));
        }
    }
    assert_eq!(delays.len(), 2, "{run} wrote two lines");
    delays
}
