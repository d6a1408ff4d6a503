//! Two builds of the binary, each with a server and a database of its own: bursts of runs in turns, so that the machine's mood is both
//! builds' alike. Rates are those of the whole (database, runtime, kernel); the server's own processor time is what a build changes.

use std::path::{Path, PathBuf};

use std::time::Instant;

use cofferdam_tests::e2b::Caller;
use cofferdam_tests::{Home, Server, binary};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::e2b;
use super::figures::{emit, median, rounded};
use super::life::ms;
use super::runs::{HELLO, RUNS, VALUE, burst, cpu_ticks, import};

/// Turns of each build; the first one warms caches and connections.
const TURNS: usize = 9;
/// Sandboxes of a turn.
const LIVES: usize = 50;
/// Milliseconds of a tick of the processor, as the kernel counts for user space.
const TICK_MS: f64 = 10.0;

/// A build's server, and what it did in its turns.
struct Side {
    server: Server,
    sql: PgPool,
    recipe: Value,
    rates: Vec<f64>,
    cpu_ms: Vec<f64>,
}

impl Side {
    async fn new(home: &Home, yaml: &str) -> Self {
        let server = home.up();
        let (sql, recipe) = (server.sql().await, import(&server, yaml).await);
        Self { server, sql, recipe, rates: Vec::new(), cpu_ms: Vec::new() }
    }

    async fn turn(&mut self, turn: usize) {
        let before = cpu_ticks(self.server.pid());
        let rate = burst(&self.server, &self.sql, &self.recipe, turn).await;
        if turn > 0 {
            self.rates.push(rate);
            self.cpu_ms.push(cpu_ms_since(before, &self.server) / RUNS as f64);
        }
    }

    /// Runs/s, and milliseconds of the server's processor time for one run.
    async fn end(self) -> [f64; 2] {
        self.sql.close().await;
        [median(self.rates), median(self.cpu_ms)]
    }
}

/// Milliseconds of the server's processor time since it had used so many ticks.
fn cpu_ms_since(before: f64, server: &Server) -> f64 {
    (cpu_ticks(server.pid()) - before) * TICK_MS
}

/// This build against `other`.
pub async fn run(other: &Path) {
    let builds = [binary(), other.canonicalize().expect("COFFERDAM_OTHER is a file")];
    let bytes = |file: &PathBuf| std::fs::metadata(file).expect("a binary").len() as f64;
    let mib = builds.each_ref().map(|build| rounded(bytes(build) / 1_048_576.0));
    for (name, yaml) in [("sandbox", HELLO), ("engine", VALUE)] {
        let homes = builds.each_ref().map(|build| Home::of(build));
        let mut sides = [Side::new(&homes[0], yaml).await, Side::new(&homes[1], yaml).await];
        for turn in 0..TURNS {
            for side in &mut sides {
                side.turn(turn).await;
            }
        }
        let [this, that] = sides;
        let ([rate, cpu], [other_rate, other_cpu]) = (this.end().await, that.end().await);
        let about = json!({
            "runs_per_s": [rounded(rate), rounded(other_rate)],
            "server_cpu_ms": [rounded(cpu), rounded(other_cpu)],
            "mib": mib, "other": builds[1], "turns": TURNS - 1,
        });
        emit(&format!("binaries_{name}_cpu"), cpu / other_cpu, "ratio", None, about);
    }
    lives(&builds).await;
}

/// Sandboxes by E2B's API: one is made, runs a command and is killed, in turns of each build.
async fn lives(builds: &[PathBuf; 2]) {
    let homes = builds.each_ref().map(|build| Home::of(build));
    let servers = homes.each_ref().map(Home::up);
    let [this, that] = &servers;
    let callers = [Caller::of(this, "bench").await, Caller::of(that, "bench").await];
    let mut times = [const { Vec::new() }; 2];
    let mut cpu_ms = [const { Vec::new() }; 2];
    for turn in 0..TURNS {
        for (side, caller) in callers.iter().enumerate() {
            let before = cpu_ticks(servers[side].pid());
            for _ in 0..LIVES {
                let clock = Instant::now();
                let made = e2b::create(caller, 60).await;
                e2b::command(caller, &made).await;
                caller.kill(&made.0).await;
                if turn > 0 {
                    times[side].push(ms(clock));
                }
            }
            if turn > 0 {
                cpu_ms[side].push(cpu_ms_since(before, &servers[side]) / LIVES as f64);
            }
        }
    }
    let [[took, other_took], [cpu, other_cpu]] = [times.map(median), cpu_ms.map(median)];
    let about = json!({
        "life_ms": [rounded(took), rounded(other_took)], "server_cpu_ms": [rounded(cpu), rounded(other_cpu)],
        "other": builds[1], "turns": TURNS - 1, "lives": LIVES,
    });
    emit("binaries_life", took / other_took, "ratio", None, about);
}
