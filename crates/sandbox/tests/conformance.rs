//! One list of behaviours, held against every isolation class that this host has.
//!
//! ```text
//! (behaviour x class) -> ok | absent (why)      printed, and tests/conformance/seen.json
//! one class alone: cargo test --workspace --test sandbox the_class_microvm
//! UPDATE_GOLDENS=1 cargo test --workspace --test sandbox conformance   writes it
//! ```
//! docs/reference/conformance.md is made from it. The table names what every present class must do. Whether a class is present is a host's own
//! matter and is printed, never written: an absent class is reported, not skipped in silence.
//!
//! One file: a class is what passes this list, and the list is read at once.

mod exhaustion;
mod hostile;
mod inside;
mod kept;
mod part;
mod second_life;
use crate::support;
mod table;
mod talk;

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_ambient::env;
use cofferdam_contracts::sandbox::{AccessMode, ErrCode, WipeEvidence, WipeStatus};
use cofferdam_sandbox::{
    Changes, Class, Command, Input, Key, Plan, RemoteConfig, Sandbox, SandboxError,
    enter_private_mounts, provision, reconcile,
};
use serde_json::{Value, json};
use support::not_run::{self, is_in_part, not_run};
use support::{
    Bench, SLEEPERS, assert_given, given, host, is_elsewhere, is_running, least, run, sh, verified,
    write,
};

/// A bench, and the class that is held against the list.
struct Ground {
    bench: Arc<Bench>,
    class: Class,
}

type Check = fn(Arc<Ground>) -> Pin<Box<dyn Future<Output = ()>>>;

/// The list: a name for the table, and what is held.
const BEHAVIOURS: [(&str, Check); 40] = [
    ("a command's exit status, signal and failure to start", |g| Box::pin(exits(g))),
    ("both output streams, as they come", |g| Box::pin(streams(g))),
    ("environment and working directory, and nothing of the host's", |g| Box::pin(surroundings(g))),
    ("files in: bytes, host file, host directory read-only or copy-on-write", |g| {
        Box::pin(files_in(g))
    }),
    ("changes in a copy-on-write directory are reported", |g| Box::pin(changes(g))),
    ("files out: in order, links not followed", |g| Box::pin(files_out(g))),
    ("files out: paths that leave their root are refused", |g| Box::pin(hostile_paths(g))),
    ("the host's files are read-only or absent", |g| Box::pin(host_files(g))),
    ("no network but loopback", |g| Box::pin(no_network(g))),
    ("memory beyond the limit is an OOM", |g| Box::pin(memory(g))),
    ("a fork bomb stays within its processes and harms no other sandbox", |g| {
        Box::pin(fork_bomb(g))
    }),
    ("a writable layer that is full is ENOSPC and leaves the sandbox usable", |g| {
        Box::pin(full_layer(g))
    }),
    ("a quarter of a CPU is a quarter", |g| Box::pin(quarter_of_a_cpu(g))),
    ("the wall time ends processes that ignore TERM or hide", |g| Box::pin(wall_time(g))),
    ("a daemon does not outlive its command", |g| Box::pin(daemon(g))),
    ("a flood of output is bounded and counted", |g| Box::pin(flood(g))),
    ("a task cannot kill, stop or read its agent", |g| Box::pin(agent_survives(g))),
    ("an agent that is killed ends its command", |g| Box::pin(agent_killed(g))),
    ("a kill from outside ends everything at once", |g| Box::pin(killed(g))),
    ("a start that fails is wiped, with evidence", |g| Box::pin(failed_start(g))),
    ("an orphan is found, destroyed and evidenced", |g| Box::pin(orphan(g))),
    ("exhausted memory is named in the result", |g| Box::pin(exhaustion::memory(g))),
    ("exhausted processes are named in the result", |g| Box::pin(exhaustion::pids(g))),
    ("an exhausted layer is named in the result", |g| Box::pin(exhaustion::disk(g))),
    ("open files end at their limit, which is named", |g| Box::pin(exhaustion::nofile(g))),
    ("output ends at its limit, which is named", |g| Box::pin(exhaustion::output(g))),
    ("an expired wall time is named, and no other limit", |g| Box::pin(exhaustion::wall(g))),
    ("a zip bomb or a sparse file in files out costs what it stores", |g| {
        Box::pin(hostile::zip_bomb(g))
    }),
    ("100,000 files are refused as artifacts and wiped", |g| {
        Box::pin(hostile::hundred_thousand_files(g))
    }),
    ("a link that is swapped while files are read leads nowhere", |g| {
        Box::pin(hostile::swapped_link(g))
    }),
    ("input is read to its end, and a terminal has a size", |g| Box::pin(talk::input(g))),
    ("concurrent commands and files each get their own answer", |g| Box::pin(talk::crowd(g))),
    ("a port of its loopback is dialled both ways", |g| Box::pin(talk::port(g))),
    ("a program of many modules and small files completes repeatedly", |g| {
        Box::pin(talk::modules(g))
    }),
    ("a phase reaches its listed names; any other is a violation", |g| Box::pin(inside::names(g))),
    ("an attempt without a route is counted in its phase", |g| {
        Box::pin(inside::without_a_route(g))
    }),
    ("the next phase ends every earlier connection", |g| Box::pin(inside::switch(g))),
    ("a service answers every command and ends with the sandbox", |g| Box::pin(inside::service(g))),
    ("a build's output is another task's base, copy-on-write", |g| Box::pin(inside::cache(g))),
    ("a service that fakes its health, or that the class lacks, fails the start", |g| {
        Box::pin(hostile::fake_health(g))
    }),
];

/// Behaviours that the class `remote` does not have: limits and files of this host, an agent that is the first process,
/// and a count of what a sandbox tries past its proxy.
const HERE: [&str; 15] = [
    "changes in a copy-on-write directory are reported",
    "a task cannot kill, stop or read its agent",
    "an attempt without a route is counted in its phase",
    "files in: bytes, host file, host directory read-only or copy-on-write",
    "memory beyond the limit is an OOM",
    "a fork bomb stays within its processes and harms no other sandbox",
    "a writable layer that is full is ENOSPC and leaves the sandbox usable",
    "a quarter of a CPU is a quarter",
    "an agent that is killed ends its command",
    "a start that fails is wiped, with evidence",
    "exhausted memory is named in the result",
    "exhausted processes are named in the result",
    "an exhausted layer is named in the result",
    "open files end at their limit, which is named",
    "a build's output is another task's base, copy-on-write",
];

/// Narrows the list to the behaviours whose name has this part, for whoever works on one.
const ONLY: &str = "COFFERDAM_TEST_BEHAVIOUR";
/// What is said of a class that holds every behaviour, and of one that the host does not have.
const OK: &str = "ok";

#[test]
fn the_class_container_behaves_as_listed() {
    behaves_as_listed(Class::Container);
}

#[test]
fn the_class_gvisor_behaves_as_listed() {
    behaves_as_listed(Class::Gvisor);
}

#[test]
fn the_class_microvm_behaves_as_listed() {
    behaves_as_listed(Class::Microvm);
}

#[test]
fn the_class_docker_behaves_as_listed() {
    behaves_as_listed(Class::Docker);
}

/// A provider to hold the class `remote` against: its URL. The key is in `E2B_API_KEY`, the template is `base`.
const PROVIDER: &str = "COFFERDAM_TEST_PROVIDER";

#[test]
#[ignore = "a provider must be named; tests/tests/e2b/provider.rs names a server of its own"]
fn the_class_remote_behaves_as_listed() {
    enter_private_mounts().expect("these tests need root: run them as root");
    let url = env::var(PROVIDER).expect("COFFERDAM_TEST_PROVIDER names a provider");
    let remote = RemoteConfig {
        url,
        sandbox_url: env::var("E2B_SANDBOX_URL"),
        template: "base".to_owned(),
        key: Key::new(&env::var("E2B_API_KEY").unwrap_or_default()),
        term_s: RemoteConfig::TERM_S,
    };
    let bench = Arc::new(Bench::elsewhere(remote, BTreeMap::new()));
    let only = env::var(ONLY);
    let wanted = |name: &str| {
        only.as_deref().is_none_or(|part| name.contains(part)) && !HERE.contains(&name)
    };
    held_against(&bench, Class::Remote, wanted);
    bench.assert_clean();
}

/// A worker has `docker` in place of `container`, if its operator wants that.
fn runtime_of(class: Class) -> Option<&'static str> {
    (class == Class::Docker).then_some("docker")
}

fn behaves_as_listed(class: Class) {
    enter_private_mounts().expect("these tests need root: run them as root");
    let only = env::var(ONLY);
    if !Bench::new(None).has_class(class) {
        return;
    }
    let bench = Arc::new(Bench::new(runtime_of(class)));
    let in_part = class == Class::Microvm && is_in_part();
    let wanted = |name: &str| match &only {
        Some(part) => name.contains(part.as_str()),
        None => !in_part || part::BEHAVIOURS.contains(&name),
    };
    let seen = held_against(&bench, class, wanted);
    bench.assert_clean();
    if in_part {
        assert_eq!(seen.len(), part::BEHAVIOURS.len(), "each is on the list");
        not_run("the class microvm, wholly", not_run::PART);
    } else if only.is_none() {
        table::compare(class, &seen);
    }
}

/// The wanted behaviours of the list, one after the other.
fn held_against(
    bench: &Arc<Bench>,
    class: Class,
    wanted: impl Fn(&str) -> bool,
) -> Vec<(&'static str, &'static str)> {
    let (mut failed, mut seen) = (Vec::new(), Vec::new());
    for (name, check) in BEHAVIOURS.iter().filter(|(name, _)| wanted(name)) {
        let ground = Arc::new(Ground { bench: Arc::clone(bench), class });
        let clock = Stopwatch::start();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let held = catch_unwind(AssertUnwindSafe(|| runtime.block_on(check(ground))));
        // A behaviour that failed leaves its sandbox behind; the next should not find it.
        let left = runtime.block_on(reconcile(&bench.host, |_| false));
        let cell = if held.is_ok() && left.is_empty() { OK } else { "FAILED" };
        println!("{} {name}: {cell} ({} ms)", class.as_str(), clock.elapsed_ms());
        seen.push((*name, cell));
        if cell != OK {
            failed.push(format!("{}: {name}; {} left", class.as_str(), left.len()));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    seen
}

impl Ground {
    fn fields(&self, fields: Value) -> Value {
        let mut whole = json!({"spec": {"isolation": {"class_min": least(self.class)}}});
        for (name, value) in fields.as_object().unwrap() {
            whole[name] = value.clone();
        }
        self.limited(whole)
    }

    /// Elsewhere all limits but that of output are the template's, and asking for them is refused.
    fn limited(&self, mut fields: Value) -> Value {
        if self.class == Class::Remote {
            let output = fields["limits"]["outputBytes"].take();
            fields["limits"] = json!({"outputBytes": output});
        }
        fields
    }

    async fn start(&self, fields: Value) -> (Sandbox, Plan) {
        self.start_with(fields, &[]).await
    }

    async fn start_with(&self, fields: Value, inputs: &[Input]) -> (Sandbox, Plan) {
        let (sandbox, plan) = self.bench.start_with(self.fields(fields), inputs).await;
        assert_eq!(plan.class, self.class, "the class that was asked for is the one that runs");
        assert_eq!(sandbox.effective().isolation_class, self.class.strength());
        (sandbox, plan)
    }

    async fn sh(&self, script: &str, fields: Value) -> support::Said {
        let (sandbox, plan) = self.start(fields).await;
        let said = sh(&sandbox, &plan, script).await;
        wiped(&sandbox.wipe("task-end").await);
        said
    }
}

/// Verified, with everything that a sandbox is made of looked for.
fn wiped(evidence: &WipeEvidence) {
    verified(evidence);
    if is_elsewhere(evidence) {
        return;
    }
    assert_eq!(evidence.method, "tmpfs-unmount");
    assert!(evidence.base_before.is_some() && evidence.base_before == evidence.base_after);
    assert!(evidence.checks.iter().any(|check| check.kind() == "netns"), "{evidence:#?}");
}

async fn exits(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({})).await;
    for (script, exit, code) in [
        ("exit 0", 0, ErrCode::None),
        ("exit 3", 3, ErrCode::CmdNonzero),
        ("kill -SEGV $$", 139, ErrCode::CmdNonzero),
        ("kill -KILL $$", 137, ErrCode::CmdNonzero),
    ] {
        let outcome = sh(&sandbox, &plan, script).await.outcome;
        assert_eq!((outcome.exit, outcome.err_code), (exit, code), "{script}");
    }
    let command = Command { argv: vec!["no-such-program".into()], ..plan.task.clone() };
    let outcome = run(&sandbox, &command).await.outcome;
    assert_eq!(outcome.exit, 127);
    assert!(outcome.cause.unwrap().contains("\"no-such-program\" was not found"));
    wiped(&sandbox.wipe("task-end").await);
}

async fn streams(ground: Arc<Ground>) {
    let said = ground.sh("echo hello; echo oops >&2; echo again", json!({})).await;
    assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("hello\nagain\n", "oops\n"));
}

async fn surroundings(ground: Arc<Ground>) {
    let fields = json!({"env": {"WHO": "world"}, "workdir": "/tmp"});
    let said = ground.sh("echo $WHO; pwd; env | cut -d= -f1 | sort | tr '\\n' ' '", fields).await;
    assert_eq!(said.stdout, "world\n/tmp\nGIT_CONFIG_SYSTEM HOME LANG PATH PWD TERM WHO ");
}

async fn files_in(ground: Arc<Ground>) {
    let inputs = given(&ground.bench);
    let (sandbox, plan) = ground.start_with(json!({}), &inputs).await;
    assert_given(&ground.bench, sandbox, &plan, wiped).await;
}

async fn changes(ground: Arc<Ground>) {
    let repo = ground.bench.shared("changed");
    for name in ["kept", "other", "gone", "dir/gone", "dir/kept"] {
        write(&repo.join(name), "before");
    }
    let input = host("/work", repo.clone(), AccessMode::WorkspaceWrite);
    let (sandbox, plan) = ground.start_with(json!({}), &[input]).await;
    assert_eq!(sandbox.files().changes("/work").await.unwrap(), Changes::default());
    let script = "echo after > other; echo new > dir/new; rm gone dir/gone; ln -s /etc/passwd link; \
                  mkdir empty; cat kept dir/kept > /dev/null";
    assert_eq!(sh(&sandbox, &plan, script).await.outcome.exit, 0);
    let told = sandbox.files().changes("/work").await.unwrap();
    let written: Vec<(&str, &[u8])> =
        told.written.iter().map(|file| (file.path.as_str(), file.bytes.as_slice())).collect();
    assert_eq!(written, [("dir/new", b"new\n".as_slice()), ("other", b"after\n")]);
    let mut removed = told.removed.clone();
    removed.sort_unstable();
    assert_eq!(removed, ["dir/gone", "gone"]);
    assert_eq!(told.special, ["link"]);
    // A task cannot make changes up.
    let forge = "touch /.cofferdam/changes/0/forged";
    assert_ne!(sh(&sandbox, &plan, forge).await.outcome.exit, 0);
    wiped(&sandbox.wipe("task-end").await);
}

async fn files_out(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({})).await;
    let script = "mkdir -p logs/deep; echo 2 > logs/b.txt; echo 1 > logs/a.txt; \
                  echo 3 > logs/deep/c.txt; ln -s /etc/passwd logs/p.txt; ln -s /etc logs/etc; \
                  mkfifo logs/f.txt; head -c 200000 /dev/zero > logs/z.txt";
    assert_eq!(sh(&sandbox, &plan, script).await.outcome.exit, 0);
    let files = sandbox.files().collect("/work", &["logs/**".to_owned()]).await.unwrap();
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["logs/a.txt", "logs/b.txt", "logs/deep/c.txt", "logs/z.txt"]);
    assert_eq!((files[0].bytes.as_slice(), files[3].bytes.len()), (b"1\n".as_slice(), 200_000));
    wiped(&sandbox.wipe("task-end").await);
}

async fn hostile_paths(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({})).await;
    assert_eq!(sh(&sandbox, &plan, "ln -s /etc /tmp/root").await.outcome.exit, 0);
    for bad in ["../etc/passwd", "/etc/passwd", "logs/../../etc/passwd"] {
        assert!(sandbox.files().collect("/work", &[bad.to_owned()]).await.is_err(), "{bad}");
    }
    assert!(sandbox.files().collect("/tmp/root", &["passwd".to_owned()]).await.is_err());
    wiped(&sandbox.wipe("task-end").await);
}

async fn host_files(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({})).await;
    for script in
        ["touch /usr/x", "rm /usr/bin/true", "mount -t tmpfs none /mnt", "unshare -U true"]
    {
        assert_ne!(sh(&sandbox, &plan, script).await.outcome.exit, 0, "{script}");
    }
    let state = ground.bench.host.facts().live_dir.display();
    let said = sh(&sandbox, &plan, &format!("ls {state}; ls -A /root /srv")).await;
    assert!(!said.stdout.contains("sandboxes"), "{}", said.stdout);
    assert_eq!(sh(&sandbox, &plan, "ls /proc | grep -c '^[0-9]'").await.stdout.trim().len(), 1);
    wiped(&sandbox.wipe("task-end").await);
}

async fn no_network(ground: Arc<Ground>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = |host: &str, port: u16| {
        format!(
            "perl -MIO::Socket::INET -e 'exit(IO::Socket::INET->new(PeerAddr => \"{host}\", \
             PeerPort => {port}, Timeout => 2) ? 0 : 7)'"
        )
    };
    let (sandbox, plan) = ground.start(json!({})).await;
    for (host, port) in [("127.0.0.1", port), ("1.1.1.1", 443), ("169.254.169.254", 80)] {
        assert_eq!(sh(&sandbox, &plan, &connect(host, port)).await.outcome.exit, 7, "{host}");
    }
    // Sockets that no network namespace holds: vsock reaches the hypervisor, 38 is AF_ALG.
    for family in [40, 38] {
        let open = format!("perl -e 'socket(my $s, {family}, 1, 0) and exit 1; exit 9'");
        assert_eq!(sh(&sandbox, &plan, &open).await.outcome.exit, 9, "{family}");
    }
    // Its own loopback works: tests start servers.
    let own = "perl -MIO::Socket::INET -e '$l = IO::Socket::INET->new(Listen => 1, LocalAddr => \
               \"127.0.0.1\") or exit 1; exit(IO::Socket::INET->new(PeerAddr => \"127.0.0.1\", \
               PeerPort => $l->sockport) ? 0 : 2)'";
    assert_eq!(sh(&sandbox, &plan, own).await.outcome.exit, 0);
    wiped(&sandbox.wipe("task-end").await);
}

async fn memory(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({})).await;
    let said = sh(&sandbox, &plan, "perl -e 'my $x = \"a\" x 500_000_000; sleep 5'").await;
    assert_eq!(said.outcome.err_code, ErrCode::Oom, "{:?} {}", said.outcome, said.stderr);
    assert!(said.outcome.oom);
    assert!(said.outcome.cause.unwrap().contains("memory limit"));
    // A machine's peak is that of its emulator, which has memory of its own. Beyond a limit the kernel still charges what a process
    // that it kills needs to end: a few pages, and so the next whole megabyte.
    let most = if ground.class == Class::Microvm { 448 } else { 129 };
    assert!(sandbox.peak_mem_mb() <= most, "{}", sandbox.peak_mem_mb());
    wiped(&sandbox.wipe("task-end").await);
}

async fn fork_bomb(ground: Arc<Ground>) {
    let fields = json!({"limits": {"memMB": 512, "diskMB": 64, "pids": 32}});
    let (beside, its_plan) = ground.start(json!({})).await;
    let (sandbox, plan) = ground.start(fields).await;
    // As many as the limit, the agent not counted; the shell of the script is one of them.
    let count = "perl -e '$n = 1; while (1) { my $p = fork; last unless defined $p; \
                 if (!$p) { sleep 100; exit } $n++ } print $n'";
    assert_eq!(sh(&sandbox, &plan, count).await.stdout, "31");
    let bomb = Command { timeout_ms: 1_000, ..plan.task.clone() };
    let bomb =
        Command { argv: ["perl", "-e", "while (1) { fork }"].map(str::to_owned).to_vec(), ..bomb };
    let outcome = run(&sandbox, &bomb).await.outcome;
    if ground.class != Class::Gvisor {
        assert_eq!(outcome.err_code, ErrCode::Timeout, "{outcome:?}");
        assert_eq!(sh(&sandbox, &plan, "echo alive").await.stdout, "alive\n");
    } else {
        // A kernel in user space may end with its bomb. That is a failure, and never a success.
        assert_ne!(outcome.err_code, ErrCode::None, "{outcome:?}");
    }
    assert_eq!(sh(&beside, &its_plan, "echo beside").await.stdout, "beside\n");
    wiped(&beside.wipe("task-end").await);
    wiped(&sandbox.wipe("task-end").await);
}

async fn full_layer(ground: Arc<Ground>) {
    let fields = json!({"limits": {"memMB": 256, "diskMB": 16, "pids": 64}});
    let (sandbox, plan) = ground.start(fields).await;
    for place in ["/work", "/tmp", "/var/tmp"] {
        let said = sh(&sandbox, &plan, &format!("head -c 50000000 /dev/zero > {place}/big")).await;
        assert_ne!(said.outcome.exit, 0, "{place}");
        assert!(said.stderr.contains("No space left"), "{place}: {}", said.stderr);
        let freed = sh(&sandbox, &plan, &format!("rm {place}/big; echo ok")).await;
        assert_eq!(freed.stdout, "ok\n");
    }
    wiped(&sandbox.wipe("task-end").await);
}

async fn quarter_of_a_cpu(ground: Arc<Ground>) {
    let limits = json!({"limits": {"memMB": 128, "diskMB": 16, "pids": 64, "cpu": 0.25}});
    let (sandbox, plan) = ground.start(limits).await;
    let trees = &ground.bench.host.facts().cgroups.hierarchies;
    let tree = trees.iter().find(|tree| tree.controllers.iter().any(|name| name == "cpu")).unwrap();
    // Clocks inside are the sandbox's own words; the host's counter is what holds it.
    let throttled = || -> u64 {
        let stat = tree.mount.join(&plan.traces.cgroup).join("cpu.stat");
        let stat = fs::read_to_string(stat).unwrap();
        let line = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        line.unwrap().parse().unwrap()
    };
    let before = throttled();
    // Two seconds are twenty periods, and a busy loop is stopped in each of them. Where the host has no quarter to
    // give it takes longer; without the limit it is never stopped.
    for _ in 0..6 {
        sh(&sandbox, &plan, "perl -e '$e = time + 3; 1 while time < $e'").await;
        if throttled() - before >= 10 {
            break;
        }
    }
    assert!(throttled() - before >= 10, "{} periods", throttled() - before);
    wiped(&sandbox.wipe("task-end").await);
}

async fn wall_time(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({"timeoutMs": 500})).await;
    for script in [
        "trap '' TERM INT HUP; while :; do sleep 1; done",
        "setsid sh -c 'trap \"\" TERM; sleep 1000' & setsid sleep 1000 & sleep 1000",
    ] {
        let clock = Stopwatch::start();
        let outcome = sh(&sandbox, &plan, script).await.outcome;
        assert_eq!((outcome.err_code, outcome.timed_out), (ErrCode::Timeout, true));
        assert!(clock.elapsed_ms() < 8_000, "{outcome:?}");
    }
    wiped(&sandbox.wipe("task-end").await);
}

async fn daemon(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({})).await;
    let clock = Stopwatch::start();
    let said = sh(&sandbox, &plan, "(setsid sleep 1000 &) ; echo done").await;
    assert_eq!((said.stdout.as_str(), said.outcome.exit), ("done\n", 0));
    assert!(clock.elapsed_ms() < 8_000);
    let left = sh(&sandbox, &plan, SLEEPERS).await;
    assert_eq!(left.stdout, "0\n");
    wiped(&sandbox.wipe("task-end").await);
}

async fn flood(ground: Arc<Ground>) {
    let said = ground.sh("head -c 20000000 /dev/zero; head -c 9000000 /dev/zero >&2", json!({}));
    let said = said.await;
    let limit = 8 * 1024 * 1024;
    assert_eq!((said.stdout.len(), said.stderr.len()), (limit, limit));
    assert_eq!(said.outcome.dropped.stdout, 20_000_000 - 8 * 1024 * 1024);
    assert_eq!(said.outcome.dropped.stderr, 9_000_000 - 8 * 1024 * 1024);
}

async fn agent_survives(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({})).await;
    for signal in ["KILL", "STOP", "TERM", "SEGV"] {
        let script = format!("kill -{signal} 1; sleep 0.1; echo still here");
        assert_eq!(sh(&sandbox, &plan, &script).await.stdout, "still here\n", "{signal}");
    }
    let said = sh(&sandbox, &plan, "kill -9 -1; sleep 0.1; echo still here").await;
    assert!(said.stdout.contains("still here") || said.outcome.exit == 137);
    for path in ["/proc/1/mem", "/proc/1/fd/0"] {
        let said = sh(&sandbox, &plan, &format!("head -c 1 {path}")).await;
        assert!(said.stdout.is_empty() && said.outcome.exit != 0, "{path}");
    }
    // gVisor opens it, and all that it holds is what runsc puts into every environment.
    let environ = sh(&sandbox, &plan, "cat /proc/1/environ | tr '\\0' ';'").await.stdout;
    assert!(["", "HOME=/root;"].contains(&environ.as_str()), "{environ}");
    assert_eq!(sh(&sandbox, &plan, "echo alive").await.stdout, "alive\n");
    wiped(&sandbox.wipe("task-end").await);
}

async fn agent_killed(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({})).await;
    let pid = nix::unistd::Pid::from_raw(sandbox.init_pid().try_into().unwrap());
    let killer = tokio::spawn(async move {
        clock::sleep(Duration::from_millis(200)).await;
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    });
    let outcome = sh(&sandbox, &plan, "sleep 1000").await.outcome;
    killer.await.unwrap();
    assert_eq!((outcome.exit, outcome.err_code), (137, ErrCode::CmdNonzero), "{outcome:?}");
    assert!(outcome.cause.unwrap().contains("agent ended"));
    wiped(&sandbox.wipe("task-end").await);
}

async fn killed(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({})).await;
    let kill = sandbox.kill_handle();
    let killer = tokio::spawn(async move {
        clock::sleep(Duration::from_millis(200)).await;
        kill.kill();
    });
    let clock = Stopwatch::start();
    let command = Command { argv: vec!["sleep".into(), "1000".into()], ..plan.task };
    assert!(matches!(sandbox.exec(&command, |_, _| {}).await, Err(SandboxError::Killed)));
    assert!(clock.elapsed_ms() < 3_000);
    killer.await.unwrap();
    wiped(&sandbox.wipe("canceled").await);
}

async fn failed_start(ground: Arc<Ground>) {
    let root = ground.bench.shared("root");
    fs::create_dir_all(&root).unwrap();
    let fields = ground.fields(json!({"envRef": format!("dir:{}", root.display())}));
    let plan = ground.bench.plan(fields);
    fs::remove_dir(&root).unwrap();
    let error = provision(&ground.bench.host, &plan, &[]).await.unwrap_err();
    assert_eq!((error.code, error.evidence.status), (ErrCode::BootFail, WipeStatus::Verified));

    let plan = ground.bench.plan(ground.fields(json!({
        "limits": {"memMB": 128, "diskMB": 1, "pids": 8}
    })));
    let big = Input::Bytes { path: "/work/big".into(), bytes: vec![7; 3_000_000], mode: 0o644 };
    let error = provision(&ground.bench.host, &plan, &[big]).await.unwrap_err();
    assert_eq!(error.code, ErrCode::UploadFail, "{error}");
    assert!(error.message.contains("No space left"), "{error}");
    verified(&error.evidence);
}

async fn orphan(ground: Arc<Ground>) {
    let (sandbox, _) = ground.start(json!({})).await;
    let (id, pid) = (sandbox.id().clone(), sandbox.init_pid());
    drop(sandbox);
    let evidence = reconcile(&ground.bench.host, |_| false).await;
    assert_eq!(evidence.len(), 1);
    assert_eq!((&evidence[0].sandbox_id, evidence[0].status), (&id, WipeStatus::Verified));
    assert!(!is_running(pid));
    assert!(reconcile(&ground.bench.host, |_| false).await.is_empty());
}
