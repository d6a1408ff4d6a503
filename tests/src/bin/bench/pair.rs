//! A container beside a `crun run` that makes a user namespace and an idmapped mount of `/usr` too, in turns of their own.
//! The peer has the configuration that crun itself proposes; the floor has none but its namespaces and `/usr`. A container is
//! made in two ways: made when it is asked for, and one that waited, for which each turn waits first. What a request waits for
//! and what the processors do for it are different figures, so both are said: the processor time of one that waited
//! has its making in it.

use std::time::Instant;

use cofferdam_sandbox::provision;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde_json::json;

use super::bare::Bare;
use super::figures::{emit, median, percentile, rounded};
use super::life::{BenchHost, Times, exec, life, ms, planned, planned_as, request, wipe};

/// Turns; the first few warm the caches.
const TURNS: usize = 200;
const COLD: usize = 5;
const RATIO: f64 = 1.25;
/// What it is compared with.
const PEER: &str = "crun run of crun spec with own ids";
/// What no container can be below.
const FLOOR: &str = "crun run with own ids";

/// What the others took in the same turns.
struct Baseline {
    ms: f64,
    p90: f64,
    cpu_ms: f64,
    floor_ms: f64,
}

/// Lives of one kind.
#[derive(Default)]
struct Lives {
    times: Vec<Times>,
    cpu: Vec<f64>,
}

pub async fn run() {
    let place = BenchHost::new(Some("crun"), [].into());
    let scratch = tempfile::Builder::new().prefix("cofferdam-bench-").tempdir().unwrap();
    let all = Bare::all(scratch.path());
    let found = |wanted: &str| match all.iter().find(|(name, _)| *name == wanted) {
        Some((_, Ok(bare))) => Some(bare),
        _ => None,
    };
    let (Some(bare), Some(floor)) = (found(PEER), found(FLOOR)) else {
        return println!("{}", json!({"name": "pair_container_crun_ratio", "absent": PEER}));
    };
    let (mut made, mut waited) = (Lives::default(), Lives::default());
    let (mut theirs, mut their_cpu, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS + COLD {
        let start = cpu_ms();
        let times = life(&place.host, "container").await;
        let one = cpu_ms();
        let after_wait = from_one_that_waits(&place).await;
        let two = cpu_ms();
        let took = bare.run();
        let three = cpu_ms();
        let least = floor.run();
        if turn >= COLD {
            made.push(times, one - start);
            waited.push(after_wait, two - one);
            theirs.push(took);
            their_cpu.push(three - two);
            floors.push(least);
        }
    }
    let bare = Baseline {
        ms: median(theirs.clone()),
        p90: percentile(theirs, 90),
        cpu_ms: median(their_cpu),
        floor_ms: median(floors),
    };
    made.tell("pair_container_crun_ratio", &bare);
    waited.tell("pair_container_crun_ratio_of_one_that_waited", &bare);
}

/// A life under the name of a container that waits; that one is there before the time runs.
async fn from_one_that_waits(place: &BenchHost) -> Times {
    let (host, request) = (&place.host, request("container"));
    assert!(host.warm(&planned(host, &request)).await, "none waits");
    let clock = Instant::now();
    let name = host.names().next().unwrap();
    let plan = planned_as(host, &request, name.id());
    let sandbox = provision(host, &plan, &[]).await.unwrap();
    let boot = ms(clock);
    assert!(sandbox.boot().has_waited);
    let exec = exec(&sandbox, &plan).await;
    Times { boot, exec, wipe: wipe(sandbox).await }
}

impl Lives {
    fn push(&mut self, times: Times, cpu: f64) {
        self.times.push(times);
        self.cpu.push(cpu);
    }

    fn tell(&self, name: &str, bare: &Baseline) {
        let part = |of: fn(&Times) -> f64| self.times.iter().map(of).collect::<Vec<f64>>();
        let all = part(Times::all);
        let half = |of: fn(&Times) -> f64| rounded(median(part(of)));
        let more = json!({
            "n": self.times.len(), "ms": half(Times::all), "p90": rounded(percentile(all.clone(), 90)),
            "boot": half(|t| t.boot), "exec": half(|t| t.exec), "wipe": half(|t| t.wipe),
            "cpu_ms": rounded(median(self.cpu.clone())),
            "bare_ms": rounded(bare.ms), "bare_p90": rounded(bare.p90), "bare_cpu_ms": rounded(bare.cpu_ms),
            "floor_ms": rounded(bare.floor_ms), "x_floor": rounded(median(all.clone()) / bare.floor_ms),
        });
        emit(name, median(all) / bare.ms, "x bare run", RATIO, more);
    }
}

/// Of this process and of all that it waited for.
fn cpu_ms() -> f64 {
    [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN]
        .into_iter()
        .map(|who| getrusage(who).unwrap())
        .map(|used| used.user_time() + used.system_time())
        .map(|time| time.num_microseconds() as f64 / 1e3)
        .sum()
}
