//! A soak: the same load for a long time, by which nothing may grow. `make soak` runs it for an hour; a short one runs always.

use std::fs;
use std::time::{Duration, Instant};

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};

use crate::support::{assert_proven, assert_wiped};

/// Runs of one round: sandboxed, a text alone, and one behind a gate.
const ROUND: [&str; 3] = [
    "id: soak\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      exec: {run: \"echo soak | tee out.txt\", timeout: 60s}\n      artifacts: [out.txt]\n",
    "id: soak-value\nv: \"1\"\nplan:\n  tasks:\n    - {name: t, value: kept}\n",
    "id: soak-gated\nv: \"1\"\nplan:\n  gate: approve-plan\n  tasks:\n    - name: t\n      exec: {run: \"true\", timeout: 60s}\n",
];
/// What the server may have grown by between the second third and the last: memory, in parts of a hundred, and open files.
const GROWTH_PERCENT: u64 = 10;
const MORE_FILES: usize = 16;
/// Rounds before which caches and pools still fill.
const WARM: usize = 100;

/// The server as the host sees it.
#[derive(Debug, Clone, Copy)]
struct Sample {
    resident_kb: u64,
    files: usize,
}

fn sample(pid: i32) -> Sample {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let resident_kb = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    Sample { resident_kb, files: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() }
}

/// One round from submission to the end of each run.
async fn round(up: &Server, n: u64) {
    let mut runs: Vec<Value> = Vec::new();
    for yaml in ROUND {
        let opts = json!({"runKey": format!("soak-{n}")});
        runs.push(up.run_recipe(yaml, json!({}), opts).await);
    }
    let gated = text(&runs[2], "runId");
    up.wait_for(&gated, "waiting", |header| header["status"] == "waiting_input").await;
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": format!("soak-{n}")});
    let path = format!("/api/runs/{gated}/gates/approve-plan/reply");
    let (status, answer) = up.post(&path, &reply).await;
    assert_eq!(status, 200, "{answer}");
    for run in &runs {
        let header = up.wait_terminal(&text(run, "runId")).await;
        assert_eq!(header["status"], "succeeded", "{header}");
    }
}

fn most(samples: &[Sample]) -> Sample {
    Sample {
        resident_kb: samples.iter().map(|one| one.resident_kb).max().unwrap(),
        files: samples.iter().map(|one| one.files).max().unwrap(),
    }
}

async fn soak(length: Duration, rounds: u64) {
    let home = Home::new();
    let up = home.up();
    let (began, mut samples, mut n) = (Instant::now(), Vec::new(), 0);
    while n < rounds || began.elapsed() < length {
        round(&up, n).await;
        samples.push(sample(up.pid()));
        n += 1;
        if n % 200 == 0 {
            assert_proven(&home);
            println!(
                "{}",
                json!({"soak_s": began.elapsed().as_secs(), "rounds": n, "resident_kb": samples.last().unwrap().resident_kb})
            );
        }
    }
    let third = samples.len() / 3;
    let (early, late) = (most(&samples[third..third * 2]), most(&samples[third * 2..]));
    println!(
        "{}",
        json!({"rounds": n, "early_kb": early.resident_kb, "late_kb": late.resident_kb,
        "early_files": early.files, "late_files": late.files})
    );
    assert!(
        third < WARM || late.resident_kb <= early.resident_kb * (100 + GROWTH_PERCENT) / 100,
        "memory grew: {early:?} {late:?}"
    );
    assert!(late.files <= early.files + MORE_FILES, "open files grew: {early:?} {late:?}");
    assert_proven(&home);
    assert_wiped(&home, &up.sql().await).await;
}

/// Too short for memory, which the first hundred rounds fill.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_soak_loses_nothing_and_leaves_no_file_open() {
    soak(Duration::ZERO, 12).await;
}

/// `make soak SOAK_SECONDS=3600`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "an hour: `make soak` runs it"]
async fn a_forced_soak_loses_nothing_and_grows_by_nothing() {
    let seconds = std::env::var("COFFERDAM_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    soak(Duration::from_secs(seconds.unwrap_or(3_600)), 300).await;
}
