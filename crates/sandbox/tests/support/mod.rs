//! A host for one test, sandboxes on it, and the assertion that nothing of them is left.

pub mod plain;

#[path = "../../../../tests/src/not_run.rs"]
pub mod not_run;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_ambient::{clock, env, random};
use cofferdam_contracts::id::{Digest, SandboxId};
use cofferdam_contracts::sandbox::{AccessMode, SandboxRequest, WipeEvidence, WipeStatus};
use cofferdam_sandbox::{
    Caches, Class, Command, ExecOutcome, Host, HostConfig, HostPath, Input, Offer, Plan,
    RemoteConfig, Removal, Sandbox, Stream, enter_private_mounts, plan, provision,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tracing::Level;

use not_run::{left_out, not_run};

/// A state directory and a host on it.
pub struct Bench {
    pub host: Host,
    pub state: TempDir,
    /// An allowed root.
    pub shared: TempDir,
    /// What its plans ask for at least.
    pub class: Class,
    /// Who holds its sandboxes, if that is not this host.
    pub remote: Option<RemoteConfig>,
}

/// Classes whose files are kept.
pub const KEEPING: [Class; 4] = [Class::Container, Class::Gvisor, Class::Microvm, Class::Docker];
/// Those of them whose layer is the worker's, whoever holds the processes.
pub const STANDING: [Class; 3] = [Class::Container, Class::Gvisor, Class::Docker];

/// A process of this binary that runs one ignored test alone: a worker to be killed, or with an environment or a memory
/// of its own.
pub fn test_process(test: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test, "--nocapture"]);
    command
}

/// Runs a test with mounts of its own, then looks for leftovers.
pub fn with_bench<F: Future<Output = ()>>(test: impl FnOnce(std::sync::Arc<Bench>) -> F) {
    with_runtime(None, test);
}

pub fn with_runtime<F: Future<Output = ()>>(
    runtime: Option<&str>,
    test: impl FnOnce(std::sync::Arc<Bench>) -> F,
) {
    enter_private_mounts().expect("these tests need root: run them as root");
    here(runtime, test);
}

/// The same in the mount namespace that the thread has.
pub fn here<F: Future<Output = ()>>(
    runtime: Option<&str>,
    test: impl FnOnce(std::sync::Arc<Bench>) -> F,
) {
    on(Bench::new(runtime), test);
}

/// With mounts of its own, in each class that holds names, services and caches, one after the other.
pub fn in_classes<F: Future<Output = ()>>(
    hosts: &[(&str, SocketAddr)],
    test: impl Fn(std::sync::Arc<Bench>) -> F,
) {
    enter_private_mounts().expect("these tests need root: run them as root");
    let hosts: BTreeMap<_, _> =
        hosts.iter().map(|(name, address)| ((*name).to_owned(), *address)).collect();
    for class in [Class::Container, Class::Gvisor, Class::Microvm] {
        if left_out(class.as_str()) {
            continue;
        }
        let mut bench = Bench::with_hosts(None, hosts.clone());
        bench.class = class;
        if bench.has_class(class) {
            on(bench, &test);
        }
    }
}

pub fn on<F: Future<Output = ()>>(bench: Bench, test: impl FnOnce(std::sync::Arc<Bench>) -> F) {
    let bench = std::sync::Arc::new(bench);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let test = test(std::sync::Arc::clone(&bench));
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(test)));
    if let Err(panic) = ended {
        // A failed test leaves its sandbox behind; the next one should not find it.
        runtime.block_on(cofferdam_sandbox::reconcile(&bench.host, |_| false));
        resume_unwind(panic);
    }
    drop(runtime);
    bench.assert_clean();
}

/// Holds tests that leave the choice to the host against another runtime, such as `docker`.
const RUNTIME: &str = "COFFERDAM_TEST_RUNTIME";

/// The least strength that gets this class from a host that has it.
pub fn least(class: Class) -> Value {
    serde_json::to_value(class.strength()).unwrap()
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.host.leave();
    }
}

impl Bench {
    pub fn new(runtime: Option<&str>) -> Self {
        Self::with_hosts(runtime, BTreeMap::new())
    }

    pub fn with_hosts(runtime: Option<&str>, hosts: BTreeMap<String, SocketAddr>) -> Self {
        let runtime = runtime.map(str::to_owned).or_else(|| env::var(RUNTIME));
        Self::of(runtime, None, hosts)
    }

    /// One whose sandboxes a provider holds.
    pub fn elsewhere(remote: RemoteConfig, hosts: BTreeMap<String, SocketAddr>) -> Self {
        let mut bench = Self::of(Some("remote".to_owned()), Some(remote), hosts);
        bench.class = Class::Remote;
        bench
    }

    fn of(
        runtime: Option<String>,
        remote: Option<RemoteConfig>,
        hosts: BTreeMap<String, SocketAddr>,
    ) -> Self {
        // What the host warns of, such as a machine that waited and was lost, explains a test that fails.
        let _ = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(Level::WARN)
            .with_test_writer()
            .try_init();
        let (state, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let host = Host::detect(HostConfig {
            state_dir: state.path().to_owned(),
            allowed_roots: vec![shared.path().to_owned()],
            runtime,
            hosts,
            remote: remote.clone(),
        })
        .expect("these tests need root and an OCI runtime: apt-get install crun");
        Self { host, state, shared, class: Class::Container, remote }
    }

    /// Whether this host has a class, an engine that a worker could ask among them; why not is reported.
    pub fn has_class(&self, class: Class) -> bool {
        let host = self.host.with_engine();
        let fact = host.facts().classes.iter().find(|fact| fact.class == class).unwrap();
        match &fact.offer {
            Offer::Present(_) => true,
            Offer::Absent { why, remedy } => {
                not_run(&format!("the class {}", class.as_str()), &format!("{why} ({remedy})"));
                false
            }
        }
    }

    pub fn plan(&self, fields: Value) -> Plan {
        let plan = plan(&request(self.classed(fields)), &fresh_id(), self.host.facts()).unwrap();
        assert!(self.class == Class::Container || plan.class == self.class, "{:?}", plan.class);
        plan
    }

    /// The fields of a request for this bench's class.
    pub fn classed(&self, mut fields: Value) -> Value {
        if self.class != Class::Container {
            fields["spec"]["isolation"] = json!({"class_min": self.class.as_str()});
        }
        fields
    }

    pub async fn start(&self, fields: Value) -> (Sandbox, Plan) {
        self.start_with(fields, &[]).await
    }

    pub async fn start_with(&self, fields: Value, inputs: &[Input]) -> (Sandbox, Plan) {
        let plan = self.plan(fields);
        let sandbox = provision(&self.host, &plan, inputs).await.unwrap();
        (sandbox, plan)
    }

    /// One script in a sandbox of its own, wiped and checked.
    pub async fn sh(&self, script: &str, fields: Value) -> Said {
        let (sandbox, plan) = self.start(fields).await;
        let said = sh(&sandbox, &plan, script).await;
        verified(&sandbox.wipe("task-end").await);
        said
    }

    /// Nothing of this bench's sandboxes may be anywhere.
    pub fn assert_clean(&self) {
        // Machines that wait for the next sandbox end with their host.
        self.host.leave();
        let live = &self.host.facts().live_dir;
        let text = live.to_str().unwrap();
        for file in ["/proc/self/mountinfo", "/proc/thread-self/mountinfo"] {
            let mounts = fs::read_to_string(file).unwrap();
            assert!(!mounts.contains(text), "mounts are left:\n{mounts}");
        }
        for name in ["sandboxes", "run"] {
            let left: Vec<_> =
                fs::read_dir(live.join(name)).into_iter().flatten().flatten().collect();
            assert!(left.is_empty(), "{left:?}");
        }
        let prefix = self.cgroup_prefix();
        for hierarchy in &self.host.facts().cgroups.hierarchies {
            let groups = fs::read_dir(hierarchy.mount.join("cofferdam"));
            for group in groups.into_iter().flatten().flatten() {
                let name = group.file_name().into_string().unwrap();
                assert!(!name.starts_with(&prefix), "{:?}", group.path());
            }
        }
        let running = named(&format!("{text}/run\0"));
        assert!(running.is_empty(), "{running:?}");
        assert!(!live.exists() || live.starts_with(self.state.path()), "{live:?} is left");
    }

    fn cgroup_prefix(&self) -> String {
        let id = fresh_id();
        let traces = cofferdam_sandbox::locate(self.state.path(), &id);
        let name = traces.cgroup.file_name().unwrap().to_str().unwrap().to_owned();
        name.strip_suffix(id.as_str()).unwrap().to_owned()
    }

    /// A file or directory in the allowed root.
    pub fn shared(&self, name: &str) -> PathBuf {
        self.shared.path().join(name)
    }
}

pub struct Said {
    pub outcome: ExecOutcome,
    pub stdout: String,
    pub stderr: String,
}

pub async fn sh(sandbox: &Sandbox, plan: &Plan, script: &str) -> Said {
    let command = Command {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        ..plan.task.clone()
    };
    run(sandbox, &command).await
}

pub async fn run(sandbox: &Sandbox, command: &Command) -> Said {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let outcome = sandbox
        .exec(command, |stream, bytes| match stream {
            Stream::Stdout => stdout.extend_from_slice(bytes),
            Stream::Stderr => stderr.extend_from_slice(bytes),
        })
        .await
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Said { outcome, stdout: text(stdout), stderr: text(stderr) }
}

/// A script that counts the processes named `sleep`. One that was killed is on its way out for a moment, on a busy host
/// for longer: it has five seconds. Within one command, since the end of another would kill what the first one spared.
pub const SLEEPERS: &str = "i=0; while n=$(cat /proc/[0-9]*/comm | grep -c sleep); [ $n -gt 0 ] && [ $i -lt 100 ]; do \
                            i=$((i+1)); perl -e 'select undef, undef, undef, 0.05'; done; echo $n";

pub fn request(fields: Value) -> SandboxRequest {
    let mut whole = json!({
        "envRef": "host", "cmd": ["true"], "timeoutMs": 20_000,
        "limits": {"memMB": 128, "diskMB": 64, "pids": 64},
    });
    for (name, value) in fields.as_object().unwrap() {
        whole[name] = value.clone();
    }
    serde_json::from_value(whole).unwrap()
}

pub fn fresh_id() -> SandboxId {
    SandboxId::parse(&format!("sb{}", random::secret_hex(10))).unwrap()
}

pub fn verified(evidence: &WipeEvidence) {
    assert_eq!(evidence.status, WipeStatus::Verified, "{evidence:#?}");
    let kinds: &[&str] = match is_elsewhere(evidence) {
        true => &["remote-sandbox", "remote-listing", "remote-marker", "directory"],
        false => &["mount", "cgroup", "directory", "runtime-state", "sentinel", "process"],
    };
    for kind in kinds {
        assert!(evidence.checks.iter().any(|check| check.kind() == *kind), "{kind}: {evidence:#?}");
    }
}

/// Of a sandbox that a provider held.
pub fn is_elsewhere(evidence: &WipeEvidence) -> bool {
    evidence.method == "remote-absence"
}

pub fn host(path: &str, source: PathBuf, access: AccessMode) -> Input {
    let source = HostPath::said(source.to_str().unwrap());
    Input::Host { path: path.into(), source, access, tree: None }
}

/// Files and directories of the host, in every way in which a task may be given them.
pub fn given(bench: &Bench) -> [Input; 5] {
    write(&bench.shared("repo/a.txt"), "before");
    write(&bench.shared("ro/b.txt"), "before");
    write(&bench.shared("one.txt"), "one");
    [
        host("/work", bench.shared("repo"), AccessMode::WorkspaceWrite),
        host("/data", bench.shared("ro"), AccessMode::ReadOnly),
        host("/etc/one", bench.shared("one.txt"), AccessMode::WorkspaceWrite),
        host("/opt/two", bench.shared("one.txt"), AccessMode::ReadOnly),
        Input::Bytes { path: "/work/new/in.sh".into(), bytes: b"echo in".into(), mode: 0o755 },
    ]
}

/// They are copied on write or read-only, and the host's own stay as they were.
pub async fn assert_given(
    bench: &Bench,
    sandbox: Sandbox,
    plan: &Plan,
    wiped: impl Fn(&WipeEvidence),
) {
    let script = "cat a.txt; echo after > a.txt; cat a.txt; new/in.sh; touch /data/x || echo no; \
                  cat /data/b.txt /opt/two; echo 1 >> /etc/one && cat /etc/one; echo 2 > /opt/two";
    let said = sh(&sandbox, plan, script).await;
    assert_eq!(said.stdout, "beforeafter\nin\nno\nbeforeoneone1\n", "{}", said.stderr);
    wiped(&sandbox.wipe("task-end").await);
    assert_eq!(fs::read_to_string(bench.shared("repo/a.txt")).unwrap(), "before");
    assert_eq!(fs::read_to_string(bench.shared("one.txt")).unwrap(), "one");
    assert!(!bench.shared("repo/new").exists());
}

pub fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// An error and what it came from.
pub fn in_words(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", in_words(source)),
        None => error.to_string(),
    }
}

/// Processes whose arguments, each ended by a zero byte, have this text in them: number and arguments.
pub fn named(text: &str) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let all = entries.filter_map(|path| {
        let argv = fs::read(path.join("cmdline")).ok()?;
        Some((path, String::from_utf8_lossy(&argv).into_owned()))
    });
    all.filter(|(_, argv)| argv.contains(text)).collect()
}

/// A zombie does not run: it waits for whoever adopted it.
pub fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, tail)| !tail.trim_start().starts_with('Z'))
}

/// Removes a base that this test does not use any more. A child that another test forks in this moment has our handle of it
/// until its program begins.
pub fn removed(caches: &Caches, key: &Digest) -> Removal {
    for _ in 0..500 {
        match caches.remove(key).unwrap() {
            Removal::InUse => clock::sleep_blocking(Duration::from_millis(10)),
            other => return other,
        }
    }
    Removal::InUse
}
