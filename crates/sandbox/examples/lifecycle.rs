//! Times whole lives of sandboxes: provision, exec `true`, wipe; each beside the bare runtime's own
//! `run` of the same command, in turns.
//!
//! `cargo run --release --example lifecycle -p cofferdam-sandbox -- 50 [crun|runc|gvisor]`

#![expect(clippy::print_stdout, reason = "the figures are this program's output")]

use std::error::Error;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ambient::random;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{SandboxRequest, WipeStatus};
use cofferdam_sandbox::{Host, HostConfig, Offer, Runtime, enter_private_mounts, plan, provision};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Sandboxes at once in the second half.
const CONCURRENCY: usize = 4;

fn main() -> Fallible<()> {
    let mut args = std::env::args().skip(1);
    let count = args.next().map_or(Ok(50), |text| text.parse())?;
    enter_private_mounts()?;
    let state = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let wanted = args.next();
    let class = wanted.as_deref().filter(|name| *name == "gvisor").unwrap_or("container");
    let class = class.to_owned();
    let host = Host::detect(HostConfig {
        state_dir: state.path().to_owned(),
        allowed_roots: Vec::new(),
        runtime: wanted.clone().filter(|name| name != "gvisor"),
        ..HostConfig::default()
    })?;
    let fact = host.facts().classes.iter().find(|fact| fact.class.as_str() == class);
    let bare = match fact.map(|fact| &fact.offer) {
        Some(Offer::Present(runtime)) => Bare::of(runtime, state.path())?,
        _ => return Err(format!("this host has no class {class}").into()),
    };
    println!("{class}: {} on {}", bare.runtime.version, host.facts().kernel);
    runtime.block_on(run(Arc::new(host), count, class, &bare))
}

async fn run(host: Arc<Host>, count: usize, class: String, bare: &Bare) -> Fallible<()> {
    let mut lives = Vec::new();
    for _ in 0..count {
        let [boot, exec, wipe, total] = life(&host, &class).await?;
        lives.push([boot, exec, wipe, total, bare.run()?]);
    }
    for (name, index) in [("boot", 0), ("exec", 1), ("wipe", 2), ("total", 3), ("bare", 4)] {
        let mut times: Vec<f64> =
            lives.iter().filter_map(|life| life.get(index).copied()).collect();
        times.sort_by(f64::total_cmp);
        let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(0.0);
        println!("{name:5} p50 {:6.2} ms   p90 {:6.2} ms", at(50), at(90));
    }
    let clock = Stopwatch::start();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONCURRENCY {
        let (host, class) = (Arc::clone(&host), class.clone());
        tasks.spawn(async move {
            for _ in 0..count {
                life(&host, &class).await?;
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
async fn life(host: &Host, class: &str) -> Fallible<[f64; 4]> {
    let request: SandboxRequest = serde_json::from_value(serde_json::json!({
        "envRef": "host", "cmd": ["true"], "timeoutMs": 10_000, "limits": {"memMB": 256},
        "spec": {"isolation": {"class_min": class}},
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

/// The runtime alone, on a bundle of its own.
struct Bare {
    runtime: Runtime,
    bundle: std::path::PathBuf,
}

impl Bare {
    fn of(runtime: &Runtime, state: &Path) -> Fallible<Self> {
        let bundle = state.join("bare");
        let root = bundle.join("root");
        for name in ["usr", "proc", "dev", "tmp"] {
            fs::create_dir_all(root.join(name))?;
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
                symlink(target, root.join(name))?;
            }
        }
        let namespaces = ["pid", "network", "ipc", "uts", "mount"];
        let namespaces = namespaces.map(|kind| serde_json::json!({"type": kind}));
        let config = serde_json::json!({
            "ociVersion": "1.0.0",
            "process": {"user": {"uid": 0, "gid": 0}, "args": ["/usr/bin/true"], "cwd": "/", "env": []},
            "root": {"path": root},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["bind", "ro"]},
            ],
            "linux": {"namespaces": namespaces},
        });
        fs::write(bundle.join("config.json"), config.to_string())?;
        Ok(Self { runtime: runtime.clone(), bundle })
    }

    /// Milliseconds of one run.
    fn run(&self) -> Fallible<f64> {
        let clock = Stopwatch::start();
        let globals: &[&str] = match self.runtime.name.as_str() {
            "crun" => &["--cgroup-manager=cgroupfs"],
            "runsc" => &["--network=none", "--ignore-cgroups"],
            _ => &[],
        };
        let output = Command::new(&self.runtime.path)
            .args(globals)
            .arg("--root")
            .arg(self.bundle.join("state"))
            .args(["run", "--bundle"])
            .arg(&self.bundle)
            .arg(format!("bare-{}", random::secret_hex(8)))
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            return Err(format!("{output:?}").into());
        }
        Ok(clock.elapsed().as_secs_f64() * 1e3)
    }
}
