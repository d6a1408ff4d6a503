//! A worker that is killed with a sandbox open, and what the next one finds.

use crate::support;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cofferdam_ambient::{clock, env};
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::WipeStatus;
use cofferdam_sandbox::{
    Class, Host, HostConfig, Offer, destroy_orphans, enter_private_mounts, plan, provision,
    reconcile, verify_absent,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::json;
use support::not_run::not_run;
use support::{Bench, STANDING, is_running, least, named, test_process, verified, with_bench};

const STATE: &str = "COFFERDAM_TEST_STATE";
const CLASS: &str = "COFFERDAM_TEST_CLASS";
const PRIVATE: &str = "COFFERDAM_TEST_PRIVATE";
const WAITS: &str = "COFFERDAM_TEST_WAITS";
const STANDS: &str = "COFFERDAM_TEST_STANDS";
const AHEAD: &str = "COFFERDAM_TEST_AHEAD";
const ALONE: &str = "COFFERDAM_TEST_ALONE";

/// The worker: makes a sandbox, says so, and hangs until it is killed.
#[test]
#[ignore = "the other tests of this file start it as a process of its own"]
fn worker() {
    if env::var(PRIVATE).is_some() {
        enter_private_mounts().unwrap();
    }
    let state_dir = PathBuf::from(env::var(STATE).unwrap());
    let class = class(&env::var(CLASS).unwrap());
    let runtime = (class == Class::Docker).then(|| class.as_str().to_owned());
    let host = Host::detect(HostConfig { state_dir, runtime, ..HostConfig::default() }).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let fields = json!({"cmd": ["sleep", "1000"], "timeoutMs": 1_000_000,
                            "spec": {"isolation": {"class_min": least(class)}}});
        let plan = plan(&support::request(fields), &support::fresh_id(), host.facts()).unwrap();
        if env::var(WAITS).is_some() {
            println!("\nwarming");
            std::io::stdout().flush().unwrap();
            assert!(host.warm(&plan).await);
            println!("\nwaits");
            std::io::stdout().flush().unwrap();
            std::future::pending::<()>().await;
        }
        if env::var(AHEAD).is_some() {
            let name = host.names().reserve().unwrap();
            let request = support::request(json!({"cmd": ["true"]}));
            let plan = cofferdam_sandbox::plan(&request, name.id(), host.facts()).unwrap();
            println!("\nbegins");
            std::io::stdout().flush().unwrap();
            let _ahead = name.make(&host, plan, None, ());
            std::future::pending::<()>().await;
        }
        let mut sandbox = provision(&host, &plan, &[]).await.unwrap();
        if env::var(ALONE).is_some() {
            sandbox.let_runtime_go().await;
        }
        let _still = env::var(STANDS).map(|_| {
            let snapshotter = sandbox.snapshotter().unwrap();
            snapshotter.snapshot(&mut std::io::sink(), &|| true).unwrap()
        });
        println!("\nready {} {}", sandbox.id(), sandbox.init_pid());
        std::io::stdout().flush().unwrap();
        sandbox.exec(&plan.task, |_, _| {}).await.unwrap();
    });
}

fn class(name: &str) -> Class {
    Class::ALL.into_iter().find(|class| class.as_str() == name).unwrap()
}

fn spawn_worker(bench: &Bench, class: Class, private: bool) -> Child {
    worker_command(bench, class, private).spawn().unwrap()
}

fn worker_command(bench: &Bench, class: Class, private: bool) -> Command {
    let mut command = test_process("orphans::worker");
    command.env(STATE, bench.state.path()).env(CLASS, class.as_str()).stdout(Stdio::piped());
    if private {
        command.env(PRIVATE, "1");
    }
    command
}

fn start_worker(bench: &Bench, class: Class, private: bool) -> (Child, SandboxId, u32) {
    ready(spawn_worker(bench, class, private))
}

fn ready(mut child: Child) -> (Child, SandboxId, u32) {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.map(Result::unwrap).find_map(|line| {
        let (id, pid) = line.strip_prefix("ready ")?.split_once(' ')?;
        Some((SandboxId::parse(id).unwrap(), pid.parse().unwrap()))
    });
    let (id, pid) = ready.expect("the worker makes a sandbox");
    (child, id, pid)
}

/// Those that this host has; the others are named.
fn present(bench: &Bench) -> Vec<Class> {
    let mut present = Vec::new();
    for fact in &bench.host.with_engine().facts().classes {
        match &fact.offer {
            Offer::Present(_) => present.push(fact.class),
            Offer::Absent { why, .. } => {
                not_run(&format!("the class {}", fact.class.as_str()), why);
            }
        }
    }
    present
}

async fn killed_worker(bench: &Bench, class: Class, private: bool) -> (SandboxId, u32) {
    killed(start_worker(bench, class, private), class).await
}

async fn killed((mut child, id, pid): (Child, SandboxId, u32), class: Class) -> (SandboxId, u32) {
    assert!(is_running(pid));
    child.kill().unwrap();
    child.wait().unwrap();
    // The closed stream alone ends the sandbox, within 15 s: nobody else is there to do it.
    for _ in 0..1_500 {
        if !is_running(pid) {
            break;
        }
        clock::sleep(Duration::from_millis(10)).await;
    }
    assert!(!is_running(pid), "the sandbox outlived its worker: {}", class.as_str());
    (id, pid)
}

#[test]
fn a_killed_worker_leaves_nothing_running_and_its_directory_is_an_orphan() {
    with_bench(|bench| async move {
        for class in present(&bench) {
            let (id, _) = killed_worker(&bench, class, true).await;
            assert!(reconcile(&bench.host, |known| *known == id).await.is_empty());
            let evidence = reconcile(&bench.host, |_| false).await;
            assert_eq!(evidence.len(), 1);
            let evidence = &evidence[0];
            assert_eq!((&evidence.sandbox_id, evidence.reason.as_str()), (&id, "orphan"));
            verified(evidence);
            assert_eq!(evidence.method, "absence", "its mounts went with its namespace");
            assert!(reconcile(&bench.host, |_| false).await.is_empty());
        }
    });
}

/// One that lives long has no runtime that waits for it, and ends as every other one: by its worker, by itself, and without both.
#[test]
fn a_sandbox_whose_runtime_was_let_go_ends_as_every_other_one() {
    with_bench(|bench| async move {
        for class in present(&bench).into_iter().filter(|class| STANDING.contains(class)) {
            let one = json!({"spec": {"isolation": {"class_min": least(class)}}});
            for ends_itself in [false, true] {
                let (mut sandbox, plan) = bench.start(one.clone()).await;
                let dir = bench.host.facts().live_dir.join("sandboxes").join(sandbox.id().as_str());
                let runtimes = || {
                    let all = named(&format!("run\0--bundle\0{}", dir.display()));
                    all.into_iter().filter(|(_, argv)| argv.starts_with("/")).count()
                };
                let before = runtimes();
                sandbox.let_runtime_go().await;
                if plan.runtime.name == "crun" && class == Class::Container {
                    assert_eq!((before, runtimes()), (1, 0));
                }
                assert_eq!(support::sh(&sandbox, &plan, "echo hi; exit 3").await.outcome.exit, 3);
                if ends_itself {
                    kill(Pid::from_raw(sandbox.init_pid().try_into().unwrap()), Signal::SIGKILL)
                        .unwrap();
                }
                verified(&sandbox.wipe("task-end").await);
            }
            let mut worker = worker_command(&bench, class, true);
            killed(ready(worker.env(ALONE, "1").spawn().unwrap()), class).await;
            let evidence = reconcile(&bench.host, |_| false).await;
            assert_eq!(evidence.len(), 1);
            verified(&evidence[0]);
        }
    });
}

/// A worker that is killed while it keeps files leaves processes that stand still, which do not even die of a signal.
#[test]
fn a_sandbox_that_stands_still_when_its_worker_is_killed_is_wiped() {
    with_bench(|bench| async move {
        for class in present(&bench).into_iter().filter(|class| STANDING.contains(class)) {
            let mut worker = worker_command(&bench, class, true);
            let (mut child, id, pid) = ready(worker.env(STANDS, "1").spawn().unwrap());
            child.kill().unwrap();
            child.wait().unwrap();
            clock::sleep(Duration::from_millis(200)).await;
            assert!(is_running(pid), "it goes on or ended by itself: {}", class.as_str());
            let evidence = reconcile(&bench.host, |_| false).await;
            assert_eq!(evidence.len(), 1, "{evidence:#?}");
            assert_eq!(evidence[0].sandbox_id, id);
            verified(&evidence[0]);
            assert!(!is_running(pid));
        }
    });
}

/// What still names the directory after a minute. Nothing does when three looks in a row find nothing: a program that
/// the worker had just begun to start carries the worker's name until it runs, and is found by its own a moment later.
async fn left_of(live: &str) -> Vec<(PathBuf, String)> {
    let mut empty = 0;
    for _ in 0..600 {
        empty = if named(live).is_empty() { empty + 1 } else { 0 };
        if empty == 3 {
            return Vec::new();
        }
        clock::sleep(Duration::from_millis(100)).await;
    }
    named(live)
}

/// A machine that comes to life, is stored or warms up has nobody to talk to then, and must find that out.
#[test]
fn whatever_a_worker_is_about_when_it_is_killed_nothing_of_it_goes_on() {
    with_bench(|bench| async move {
        let live = bench.host.facts().live_dir.to_str().unwrap().to_owned();
        // An engine's processes do not name the sandbox.
        for class in present(&bench).into_iter().filter(|class| *class != Class::Docker) {
            let moments: &[u64] = match class {
                // Its kernel's first steps, its init's, its first command, and what is made for the next one.
                Class::Microvm => &[0, 900, 1_800, 3_500, 7_000],
                _ => &[0, 5, 100],
            };
            for after_ms in moments.iter().copied() {
                let mut worker = spawn_worker(&bench, class, true);
                while named(&live).is_empty() {
                    assert!(worker.try_wait().unwrap().is_none(), "the worker ended by itself");
                    clock::sleep(Duration::from_millis(1)).await;
                }
                clock::sleep(Duration::from_millis(after_ms)).await;
                worker.kill().unwrap();
                worker.wait().unwrap();
                let left = left_of(&live).await;
                assert!(left.is_empty(), "{} after {after_ms} ms: {left:#?}", class.as_str());
                for evidence in reconcile(&bench.host, |_| false).await {
                    verified(&evidence);
                }
            }
        }
    });
}

/// The host's kernel ends one that has a kernel of its own, which may be too busy to find out. This one cannot, since the other
/// ends of its connections stay open here.
#[test]
fn a_kernel_that_does_not_notice_ends_with_its_worker() {
    with_bench(|bench| async move {
        let has_kernel = |class: &Class| [Class::Gvisor, Class::Microvm].contains(class);
        for class in present(&bench).into_iter().filter(has_kernel) {
            let (mut worker, ..) = start_worker(&bench, class, true);
            let live = bench.host.facts().live_dir.to_str().unwrap().to_owned();
            let ends = connections(worker.id());
            assert!(!ends.is_empty() && !named(&live).is_empty());
            worker.kill().unwrap();
            worker.wait().unwrap();
            let left = left_of(&live).await;
            assert!(left.is_empty(), "{}: {left:#?}", class.as_str());
            reconcile(&bench.host, |_| false).await.iter().for_each(verified);
            drop(ends);
        }
    });
}

/// Copies of every socket that a process has.
fn connections(process: u32) -> Vec<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(process.try_into().unwrap()).unwrap();
    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let entries = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap().flatten();
    let is_socket = |path: &Path| {
        fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    let sockets = entries.filter(|entry| is_socket(&entry.path()));
    let numbers = sockets.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap());
    numbers.map(|fd| pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).unwrap()).collect()
}

/// At each point of its making, and when it waits.
#[test]
fn a_container_that_waits_is_an_orphan_when_its_worker_is_killed() {
    with_bench(|bench| async move {
        let live = bench.host.facts().live_dir.to_str().unwrap().to_owned();
        for after_ms in [Some(0), Some(2), Some(5), Some(9), None] {
            let mut command = worker_command(&bench, Class::Container, true);
            let mut worker = command.env(WAITS, "1").spawn().unwrap();
            let lines = BufReader::new(worker.stdout.take().unwrap()).lines();
            let wanted = if after_ms.is_some() { "warming" } else { "waits" };
            let seen = lines.map(Result::unwrap).any(|line| line == wanted);
            assert!(seen, "the worker ended by itself");
            clock::sleep(Duration::from_millis(after_ms.unwrap_or(0))).await;
            worker.kill().unwrap();
            worker.wait().unwrap();
            let left = left_of(&live).await;
            assert!(left.is_empty(), "after {after_ms:?} ms: {left:#?}");
            let evidence = reconcile(&bench.host, |_| false).await;
            assert!(evidence.len() == 1 || after_ms.is_some(), "{evidence:#?}");
            evidence.iter().for_each(verified);
            assert!(reconcile(&bench.host, |_| false).await.is_empty());
        }
    });
}

/// At each point of its making, and when it is made: whatever its mark says, the next worker finds it.
#[test]
fn a_sandbox_that_is_not_on_record_yet_is_an_orphan_when_its_worker_is_killed() {
    with_bench(|bench| async move {
        let live = bench.host.facts().live_dir.to_str().unwrap().to_owned();
        for after_ms in [0, 2, 5, 9, 300] {
            let mut command = worker_command(&bench, Class::Container, true);
            let mut worker = command.env(AHEAD, "1").spawn().unwrap();
            let lines = BufReader::new(worker.stdout.take().unwrap()).lines();
            let seen = lines.map(Result::unwrap).any(|line| line == "begins");
            assert!(seen, "the worker ended by itself");
            clock::sleep(Duration::from_millis(after_ms)).await;
            worker.kill().unwrap();
            worker.wait().unwrap();
            let left = left_of(&live).await;
            assert!(left.is_empty(), "after {after_ms} ms: {left:#?}");
            let marked = cofferdam_sandbox::abandoned(&bench.host);
            assert!(marked.len() == 1 || after_ms < 300, "{marked:?}");
            let evidence = destroy_orphans(&bench.host, &marked, |_| false).await;
            evidence.iter().for_each(verified);
            assert!(reconcile(&bench.host, |_| false).await.is_empty());
            assert!(cofferdam_sandbox::abandoned(&bench.host).is_empty());
        }
    });
}

#[test]
fn mounts_of_a_killed_worker_without_its_own_namespace_are_taken_away() {
    with_bench(|bench| async move {
        for class in present(&bench) {
            let (id, _) = killed_worker(&bench, class, false).await;
            let evidence = verify_absent(&bench.host, &id, bench.state.path(), "orphan").await;
            verified(&evidence);
            assert_eq!(evidence.method, "tmpfs-unmount");
            assert!(evidence.upper_inodes > 0);
        }
    });
}

#[test]
fn a_sandbox_that_is_gone_is_verified_absent_again() {
    with_bench(|bench| async move {
        let (sandbox, _) = bench.start(json!({})).await;
        let id = sandbox.id().clone();
        verified(&sandbox.wipe("task-end").await);
        let evidence = verify_absent(&bench.host, &id, bench.state.path(), "orphan").await;
        assert_eq!(evidence.status, WipeStatus::Verified);
        assert_eq!((evidence.method.as_str(), evidence.upper_bytes), ("absence", 0));
    });
}

#[test]
fn a_live_sandbox_of_a_lost_worker_is_destroyed_with_all_its_processes() {
    with_bench(|bench| async move {
        for class in present(&bench) {
            let (mut child, id, pid) = start_worker(&bench, class, true);
            // Stopped, the worker holds the stream open: only the takeover can end its sandbox. Its
            // mounts are out of reach in its namespace and vanish with it.
            let worker = Pid::from_raw(child.id().try_into().unwrap());
            kill(worker, Signal::SIGSTOP).unwrap();
            let evidence = verify_absent(&bench.host, &id, bench.state.path(), "orphan").await;
            assert!(!is_running(pid));
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(evidence.checks.iter().any(|check| check.kind() == "netns"), "{evidence:#?}");
            // Whoever held the sandbox from outside is gone too, not only the sandbox.
            for process in evidence.checks.iter().filter(|check| check.kind() == "process") {
                assert!(process.ok, "{evidence:#?}");
            }
            let again = verify_absent(&bench.host, &id, bench.state.path(), "orphan").await;
            verified(&again);
        }
    });
}
