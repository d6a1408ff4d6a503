//! What a sandbox gets of a host on which everything works: beside another tenant's sandboxes, and beside the host's own programs.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_contracts::id::TenantId;
use cofferdam_sandbox::{Plan, Sandbox, provision};
use serde_json::json;
use tokio::task::JoinSet;

use super::figures::{emit, median, rounded};
use super::life::{BenchHost, exec, ms, planned, request, wipe};

/// Sandboxes of the tenant that uses all that it gets.
const OTHERS: usize = 16;
/// Fifty milliseconds of a processor, or so.
const WORK: &str = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";
const ENDLESS: &str = "while :; do :; done";
/// How long the others work, and for how long of that is measured.
const BUSY: Duration = Duration::from_secs(30);
const MEASURED: Duration = Duration::from_secs(25);
const ROUNDS: usize = 25;

pub async fn run() {
    let place = BenchHost::new(None, [].into());
    let [many, one] = ["many", "one"].map(|name| TenantId::parse(name).unwrap());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (measured, its) = begin(&place, WORK, Duration::from_mins(1), &one).await;

    let mut others = JoinSet::new();
    for _ in 0..OTHERS {
        let (sandbox, its) = begin(&place, ENDLESS, BUSY, &many).await;
        others.spawn(async move {
            // Its time is over: that is how it ends.
            let _ = sandbox.exec(&its.task, |_, _| {}).await;
            wipe(sandbox).await;
        });
    }
    let outside: Vec<Outside> = (0..cores).map(|_| Outside::begin(ENDLESS)).collect();

    let begun = Instant::now();
    let (mut inside_ms, mut outside_ms) = (Vec::new(), Vec::new());
    while begun.elapsed() < MEASURED && inside_ms.len() < ROUNDS {
        inside_ms.push(exec(&measured, &its).await);
        let clock = Instant::now();
        let done = tokio::task::spawn_blocking(|| Outside::begin(WORK).0.wait().unwrap().success());
        assert!(done.await.unwrap());
        outside_ms.push(ms(clock));
    }
    drop(outside);
    others.join_all().await;
    wipe(measured).await;

    let (rounds, inside, outside) = (inside_ms.len(), median(inside_ms), median(outside_ms));
    let more = json!({"inside_ms": rounded(inside), "outside_ms": rounded(outside), "n": rounds,
                      "sandboxes_of_another_tenant": OTHERS, "busy_programs": cores});
    emit("busy_host", inside / outside, "x the same work outside", 3.0, more);
}

/// A sandbox of a tenant, with one processor and a command.
async fn begin(
    place: &BenchHost,
    script: &str,
    most: Duration,
    tenant: &TenantId,
) -> (Sandbox, Plan) {
    let mut asked = request("container");
    asked.cmd = ["/bin/sh", "-c", script].map(str::to_owned).into();
    asked.timeout_ms = u64::try_from(most.as_millis()).unwrap();
    asked.limits.cpu = Some(1.0);
    let its = planned(&place.host, &asked);
    let mut sandbox = provision(&place.host, &its, &[]).await.unwrap();
    place.host.weigh(&mut sandbox, tenant);
    (sandbox, its)
}

/// A program of the host, ended with this value.
struct Outside(Child);

impl Outside {
    fn begin(script: &str) -> Self {
        let mut shell = Command::new("/bin/sh");
        Self(shell.args(["-c", script]).stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
