//! A sandbox's whole life on the sandbox crate: planned, made, used once, wiped, verified.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use cofferdam_ambient::random;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{SandboxRequest, WipeStatus};
use cofferdam_sandbox::{Host, HostConfig, Plan, Sandbox, plan, provision};
use serde_json::json;
use tempfile::TempDir;

/// A host with a state directory of its own; leaves nothing when it is dropped.
pub struct BenchHost {
    pub host: Arc<Host>,
    /// Removed last.
    _state: TempDir,
}

impl BenchHost {
    pub fn new(runtime: Option<&str>, hosts: BTreeMap<String, SocketAddr>) -> Self {
        let state = tempfile::Builder::new().prefix("cofferdam-bench-").tempdir().unwrap();
        let host = Host::detect(HostConfig {
            state_dir: state.path().to_owned(),
            runtime: runtime.map(str::to_owned),
            hosts,
            ..HostConfig::default()
        });
        Self { host: Arc::new(host.expect("a host that holds sandboxes")), _state: state }
    }
}

impl Drop for BenchHost {
    fn drop(&mut self) {
        self.host.leave();
    }
}

/// Milliseconds of the parts of one life.
pub struct Times {
    pub boot: f64,
    pub exec: f64,
    pub wipe: f64,
}

impl Times {
    pub fn all(&self) -> f64 {
        self.boot + self.exec + self.wipe
    }
}

/// `true` by its path, as the bare runtimes run it.
pub fn request(class: &str) -> SandboxRequest {
    serde_json::from_value(json!({
        "envRef": "host", "cmd": ["/usr/bin/true"], "timeoutMs": 60_000, "limits": {"memMB": 256},
        "spec": {"isolation": {"class_min": class}},
    }))
    .unwrap()
}

pub fn planned(host: &Host, request: &SandboxRequest) -> Plan {
    let id = SandboxId::parse(&format!("sb{}", random::secret_hex(10))).unwrap();
    planned_as(host, request, &id)
}

/// The same under a name.
pub fn planned_as(host: &Host, request: &SandboxRequest, id: &SandboxId) -> Plan {
    plan(request, id, host.facts()).unwrap()
}

/// Runs the plan's command.
pub async fn exec(sandbox: &Sandbox, plan: &Plan) -> f64 {
    let clock = Instant::now();
    let outcome = sandbox.exec(&plan.task, |_, _| {}).await.unwrap();
    assert_eq!(outcome.exit, 0, "{outcome:?}");
    ms(clock)
}

pub async fn wipe(sandbox: Sandbox) -> f64 {
    let clock = Instant::now();
    let evidence = sandbox.wipe("task-end").await;
    assert_eq!(evidence.status, WipeStatus::Verified, "{evidence:#?}");
    ms(clock)
}

/// One life in the weakest class that is at least `class`.
pub async fn life(host: &Host, class: &str) -> Times {
    let clock = Instant::now();
    let plan = planned(host, &request(class));
    let sandbox = provision(host, &plan, &[]).await.unwrap();
    let boot = ms(clock);
    let exec = exec(&sandbox, &plan).await;
    Times { boot, exec, wipe: wipe(sandbox).await }
}

pub fn ms(clock: Instant) -> f64 {
    clock.elapsed().as_secs_f64() * 1e3
}
