//! Containers in numbers: a command in a warm one, a hundred at once, and what an idle one holds.

use std::sync::Arc;
use std::time::Instant;

use cofferdam_sandbox::provision;
use serde_json::json;
use tokio::task::JoinSet;

use super::figures::{emit, median, percentile, rounded};
use super::life::{BenchHost, exec, life, ms, planned, request, wipe};

/// Commands in one warm sandbox.
const EXECS: usize = 100;
/// Lives one after another, and at once.
const SINGLE: usize = 30;
const AT_ONCE: usize = 100;
/// Idle sandboxes that are weighed.
const IDLE: usize = 20;

pub async fn run() {
    let place = BenchHost::new(None, [].into());
    let runtime = place.host.facts().runtime.name.clone();
    warm(&place, &runtime).await;
    crowd(&place, &runtime).await;
    weigh(&place, &runtime).await;
}

async fn warm(place: &BenchHost, runtime: &str) {
    let plan = planned(&place.host, &request("container"));
    let sandbox = provision(&place.host, &plan, &[]).await.unwrap();
    let mut times = Vec::new();
    for _ in 0..EXECS {
        times.push(exec(&sandbox, &plan).await);
    }
    wipe(sandbox).await;
    // The same without a sandbox: what no agent can save.
    let mut bare = Vec::new();
    for _ in 0..EXECS {
        let clock = Instant::now();
        let status = std::process::Command::new("/usr/bin/true").status().unwrap();
        assert!(status.success());
        bare.push(ms(clock));
    }
    let more = json!({"runtime": runtime, "p90": rounded(percentile(times.clone(), 90)), "n": EXECS,
                      "fork_and_exec_on_the_host": rounded(median(bare))});
    emit("warm_exec", median(times), "ms", 0.6, more);
}

/// The clock of each runs from the moment when all were asked for.
async fn crowd(place: &BenchHost, runtime: &str) {
    let mut single = Vec::new();
    for _ in 0..SINGLE {
        single.push(life(&place.host, "container").await.all());
    }
    let mut lives = JoinSet::new();
    let asked = Instant::now();
    for _ in 0..AT_ONCE {
        let host = Arc::clone(&place.host);
        lives.spawn(async move {
            life(&host, "container").await;
            ms(asked)
        });
    }
    let times = lives.join_all().await;
    let single = median(single);
    let p99 = percentile(times.clone(), 99);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let more = json!({"runtime": runtime, "single_ms": rounded(single), "p99_ms": rounded(p99),
                      "p50_ms": rounded(median(times)), "n": AT_ONCE, "cores": cores});
    emit("hundred_at_once", p99 / single, "x single median", 8.0, more);
}

/// Proportional memory of everything that an idle sandbox adds: the agent, the runtime that waits
/// beside it, and what this process holds for it.
async fn weigh(place: &BenchHost, runtime: &str) {
    // The first makes what all share.
    life(&place.host, "container").await;
    let before = pss_mb(std::process::id());
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        let plan = planned(&place.host, &request("container"));
        idle.push(provision(&place.host, &plan, &[]).await.unwrap());
    }
    let each = |total: f64| total / IDLE as f64;
    let ours = each(pss_mb(std::process::id()) - before);
    let agents = each(idle.iter().map(|sandbox| pss_mb(sandbox.init_pid())).sum());
    let parents = idle.iter().map(|sandbox| parent(sandbox.init_pid()));
    let beside = each(parents.filter(|pid| *pid != std::process::id()).map(pss_mb).sum());
    for sandbox in idle {
        wipe(sandbox).await;
    }
    let more = json!({"agent": rounded(agents), "runtime": rounded(beside), "worker": rounded(ours),
                      "runtime_name": runtime, "n": IDLE});
    // 3 MB.
    emit("idle_sandbox_mb", ours + agents + beside, "MiB (PSS)", 2.86, more);
}

fn pss_mb(pid: u32) -> f64 {
    super::runs::proc_kb(&format!("/proc/{pid}/smaps_rollup"), "Pss:") / 1024.0
}

fn parent(pid: u32) -> u32 {
    super::runs::proc_kb(&format!("/proc/{pid}/status"), "PPid:") as u32
}
