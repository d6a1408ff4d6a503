//! Times whole lives of sandboxes: provision, exec `true`, wipe.
//!
//! `cargo run --release --example lifecycle -p cofferdam-sandbox -- 50 [crun|runc]`

#![expect(clippy::print_stdout, reason = "the figures are this program's output")]

use std::error::Error;
use std::sync::Arc;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ambient::random;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{SandboxRequest, WipeStatus};
use cofferdam_sandbox::{Host, HostConfig, enter_private_mounts, plan, provision};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Sandboxes at once in the second half.
const CONCURRENCY: usize = 4;

fn main() -> Fallible<()> {
    let mut args = std::env::args().skip(1);
    let count = args.next().map_or(Ok(50), |text| text.parse())?;
    enter_private_mounts()?;
    let state = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let host = Host::detect(HostConfig {
        state_dir: state.path().to_owned(),
        allowed_roots: Vec::new(),
        runtime: args.next(),
        ..HostConfig::default()
    })?;
    println!("{} on {}", host.facts().runtime.version, host.facts().kernel);
    runtime.block_on(run(Arc::new(host), count))
}

async fn run(host: Arc<Host>, count: usize) -> Fallible<()> {
    let mut lives = Vec::new();
    for _ in 0..count {
        lives.push(life(&host).await?);
    }
    for (name, index) in [("boot", 0), ("exec", 1), ("wipe", 2), ("total", 3)] {
        let mut times: Vec<f64> =
            lives.iter().filter_map(|life| life.get(index).copied()).collect();
        times.sort_by(f64::total_cmp);
        let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(0.0);
        println!("{name:5} p50 {:6.2} ms   p90 {:6.2} ms", at(50), at(90));
    }
    let clock = Stopwatch::start();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONCURRENCY {
        let host = Arc::clone(&host);
        tasks.spawn(async move {
            for _ in 0..count {
                life(&host).await?;
            }
            Fallible::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let lives = u32::try_from(count * CONCURRENCY)?;
    let rate = f64::from(lives) / clock.elapsed().as_secs_f64();
    println!("{rate:.0} lives/s, {CONCURRENCY} at once");
    Ok(())
}

/// Milliseconds of boot, exec, wipe and all.
async fn life(host: &Host) -> Fallible<[f64; 4]> {
    let request: SandboxRequest = serde_json::from_value(serde_json::json!({
        "envRef": "host", "cmd": ["true"], "timeoutMs": 10_000, "limits": {"memMB": 256},
    }))?;
    let id = SandboxId::parse(&format!("sb{}", random::secret_hex(10)))?;
    let ms = |clock: &Stopwatch| clock.elapsed().as_secs_f64() * 1e3;
    let all = Stopwatch::start();
    let planned = plan(&request, &id, host.facts())?;
    let sandbox = provision(host, &planned, &[]).await?;
    let boot = ms(&all);
    let clock = Stopwatch::start();
    let outcome = sandbox.exec(&planned.task, |_, _| {}).await?;
    let exec = ms(&clock);
    if outcome.exit != 0 {
        return Err(format!("{outcome:?}").into());
    }
    let clock = Stopwatch::start();
    let evidence = sandbox.wipe("task-end").await;
    if evidence.status != WipeStatus::Verified {
        return Err(format!("{evidence:#?}").into());
    }
    Ok([boot, exec, ms(&clock), ms(&all)])
}
