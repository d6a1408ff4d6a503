//! A container that waits, on the runtime of this host; what becomes of it is looked for from outside.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use cofferdam_ambient::clock;
use cofferdam_contracts::sandbox::WipeStatus;
use serde_json::{Value, json};

use super::fill::expect_like;
use super::*;
use crate::host::process;
use crate::life::sandbox::Sandbox;
use crate::life::{abandoned, reconcile};
use crate::machine::tests::Left;
use crate::{Host, HostConfig, Input, enter_private_mounts, provision, verify_absent};

/// Far beyond what a busy machine needs.
const PATIENCE_MS: u64 = 60_000;

fn host(state: &Path) -> Left {
    enter_private_mounts().unwrap();
    detected(state)
}

/// In the mount namespace that the thread has.
fn detected(state: &Path) -> Left {
    let config = HostConfig { state_dir: state.to_owned(), ..HostConfig::default() };
    Left(Host::detect(config).unwrap())
}

fn planned(host: &Host, id: &SandboxId, mem_mb: u64) -> Plan {
    let request = json!({
        "envRef": "host", "cmd": ["/usr/bin/true"], "timeoutMs": 20_000,
        "limits": {"memMB": mem_mb, "diskMB": 8, "pids": 32},
    });
    crate::plan(&serde_json::from_value(request).unwrap(), id, host.facts()).unwrap()
}

/// A plan under a name that nobody has.
fn plan(host: &Host, mem_mb: u64) -> Plan {
    let id = SandboxId::parse(&format!("sb{}", random::secret_hex(10))).unwrap();
    planned(host, &id, mem_mb)
}

fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(test);
}

/// What there is of it: members, groups, directories.
fn left(host: &Host, id: &SandboxId) -> (Vec<u32>, usize) {
    let facts = host.facts();
    let traces = Traces::of(&facts.state_dir, &facts.live_dir, id);
    let mut places = facts.cgroups.dirs(&traces);
    places.extend([traces.dir.clone(), traces.runtime_state.clone()]);
    (facts.cgroups.members(&traces), places.iter().filter(|place| place.exists()).count())
}

const NOTHING: (Vec<u32>, usize) = (Vec::new(), 0);

async fn gone(host: &Host, id: &SandboxId) {
    let clock = Stopwatch::start();
    while left(host, id) != NOTHING {
        assert!(clock.elapsed_ms() < PATIENCE_MS, "{:?}", left(host, id));
        clock::sleep(Duration::from_millis(20)).await;
    }
}

/// A number in a file of its groups, by the names of both versions.
fn limit(host: &Host, id: &SandboxId, files: [&str; 2]) -> u64 {
    let facts = host.facts();
    let traces = Traces::of(&facts.state_dir, &facts.live_dir, id);
    let dirs = facts.cgroups.dirs(&traces);
    let paths = dirs.iter().flat_map(|dir| files.map(|file| dir.join(file)));
    let text = paths.into_iter().find_map(|path| fs::read_to_string(path).ok()).unwrap();
    text.trim().parse().unwrap()
}

/// Runs its command and wipes it; the kinds of what was looked at.
async fn lived(sandbox: Sandbox, plan: &Plan) -> BTreeSet<String> {
    assert_eq!(sandbox.exec(&plan.task, |_, _| {}).await.unwrap().exit, 0);
    let evidence = sandbox.wipe("task-end").await;
    assert_eq!(evidence.status, WipeStatus::Verified, "{evidence:#?}");
    assert_eq!(
        (&evidence.sandbox_id, evidence.method.as_str()),
        (&plan.traces.id, "tmpfs-unmount")
    );
    evidence.checks.iter().map(|check| check.kind().as_str().to_owned()).collect()
}

#[test]
fn a_container_that_waited_is_the_next_sandbox_with_its_limits_and_its_evidence() {
    let state = tempfile::tempdir().unwrap();
    let host = host(state.path());
    run(async {
        let made = plan(&host, 96);
        let as_ever = lived(provision(&host, &made, &[]).await.unwrap(), &made).await;
        assert!(host.warm(&made).await);
        let id = host.waits().standing().unwrap();
        let (members, _) = left(&host, &id);
        assert_eq!(members.len(), 1, "its agent and nothing else");
        // Before there is a request, and so before the first process of its task.
        let memory = ["memory.limit_in_bytes", "memory.max"];
        assert_eq!(limit(&host, &id, memory), 96 * 1024 * 1024);
        assert_eq!(limit(&host, &id, ["pids.max", "pids.max"]), 33);
        let name = host.names().next().unwrap();
        assert_eq!(name.id(), &id);
        let plan = planned(&host, name.id(), 96);
        let file = Input::Bytes { path: "/work/in".into(), bytes: b"x".to_vec(), mode: 0o644 };
        let sandbox = provision(&host, &plan, &[file]).await.unwrap();
        assert!(sandbox.boot().has_waited && !sandbox.boot().is_restored);
        assert_eq!(vec![sandbox.init_pid()], members, "the same process");
        assert_eq!(limit(&host, &id, memory), 96 * 1024 * 1024);
        // The name is spent.
        assert_ne!(host.names().next().unwrap().id(), &id);
        assert!(host.waits().take(&plan, &ResolvedInputs::default()).await.is_none());
        assert_eq!(lived(sandbox, &plan).await, as_ever);
        drop(name);
        assert_eq!(left(&host, &id), NOTHING);
    });
}

#[test]
fn of_two_at_once_one_has_it_and_they_share_no_id() {
    let state = tempfile::tempdir().unwrap();
    let host = host(state.path());
    run(async {
        assert!(host.warm(&plan(&host, 96)).await);
        let names = [host.names().next().unwrap(), host.names().next().unwrap()];
        let [one, two] = names.each_ref().map(|name| planned(&host, name.id(), 96));
        assert_ne!(one.traces.id, two.traces.id);
        let (first, second) =
            tokio::join!(provision(&host, &one, &[]), provision(&host, &two, &[]));
        let (first, second) = (first.unwrap(), second.unwrap());
        assert!(first.boot().has_waited && !second.boot().has_waited);
        // A third is made while both live: nobody's ids are another's.
        assert!(host.warm(&one).await);
        let name = host.names().next().unwrap();
        let third = provision(&host, &planned(&host, name.id(), 96), &[]).await.unwrap();
        assert!(third.boot().has_waited);
        let owners: BTreeSet<u32> =
            [&first, &second, &third].into_iter().map(Sandbox::first_id).collect();
        let expected = if host.facts().ids.is_ok() { 3 } else { 1 };
        assert_eq!(owners.len(), expected, "{owners:?}");
        lived(first, &one).await;
        lived(second, &two).await;
        assert_eq!(third.wipe("task-end").await.status, WipeStatus::Verified);
    });
}

#[test]
fn what_is_asked_for_otherwise_is_made_as_ever_under_the_same_name() {
    let state = tempfile::tempdir().unwrap();
    let shared = tempfile::tempdir().unwrap();
    let whole = host(state.path());
    let host = whole.with_allowed_roots(&[shared.path().to_owned()]).unwrap();
    run(async {
        for mounted in [false, true] {
            assert!(host.warm(&plan(&host, 96)).await);
            let name = host.names().next().unwrap();
            let pid = left(&host, name.id()).0;
            // Another limit, or a directory of the host.
            let plan = planned(&host, name.id(), if mounted { 96 } else { 97 });
            let given = mounted.then(|| Input::Host {
                path: "/given".into(),
                source: crate::HostPath::said(shared.path().to_str().unwrap()),
                access: cofferdam_contracts::sandbox::AccessMode::ReadOnly,
                tree: None,
            });
            let given: Vec<Input> = given.into_iter().collect();
            let sandbox = provision(&host, &plan, &given).await.unwrap();
            assert!(!sandbox.boot().has_waited);
            assert_ne!(vec![sandbox.init_pid()], pid);
            lived(sandbox, &plan).await;
            drop(name);
            assert_eq!(host.waits().standing(), None);
        }
    });
}

#[test]
fn one_waits_for_the_third_of_a_shape_and_not_for_another() {
    let state = tempfile::tempdir().unwrap();
    let host = host(state.path());
    run(async {
        let (one, other) = (plan(&host, 96), plan(&host, 97));
        // The last has a directory of the host, which one that waits has not.
        for (expected, is_bare) in
            [(&one, true), (&other, true), (&one, true), (&one, false), (&one, true)]
        {
            expect_like(&host, expected, is_bare);
            assert!(matches!(host.waits().lock().place, ContainerSlot::Empty));
        }
        expect_like(&host, &plan(&host, 96), true);
        let clock = Stopwatch::start();
        while !matches!(host.waits().lock().place, ContainerSlot::Waits(_)) {
            assert!(clock.elapsed_ms() < PATIENCE_MS, "none is made");
            clock::sleep(Duration::from_millis(5)).await;
        }
        assert!(clock.elapsed_ms() >= QUIET_MS / 2, "it shared the processors of a beginning");
    });
}

#[test]
fn one_that_nobody_takes_is_wiped_and_so_is_one_whose_name_was_dropped() {
    let state = tempfile::tempdir().unwrap();
    let whole = host(state.path());
    let host = Left(whole.with_waits(ContainerPool::with_idle(1_000)));
    run(async {
        assert!(host.warm(&plan(&host, 96)).await);
        let id = host.waits().standing().unwrap();
        gone(&host, &id).await;
        assert!(host.warm(&plan(&host, 96)).await);
        let name = host.names().next().unwrap();
        let id = name.id().clone();
        // Its taker is waited for, however long that takes.
        clock::sleep(Duration::from_millis(1_500)).await;
        assert_ne!(left(&host, &id), NOTHING);
        drop(name);
        gone(&host, &id).await;
        // And one that is looked for is not there.
        assert!(host.warm(&plan(&host, 96)).await);
        let name = host.names().next().unwrap();
        let evidence = verify_absent(&host, name.id(), state.path(), "boot-fail").await;
        assert_eq!((evidence.status, evidence.method.as_str()), (WipeStatus::Verified, "absence"));
        assert_eq!(left(&host, name.id()), NOTHING);
    });
}

#[test]
fn one_that_is_given_back_waits_for_the_next_and_goes_in_time() {
    let state = tempfile::tempdir().unwrap();
    let whole = host(state.path());
    let host = Left(whole.with_waits(ContainerPool::with_idle(2_000)));
    run(async {
        assert!(host.warm(&plan(&host, 96)).await);
        let name = host.names().next().unwrap();
        let id = name.id().clone();
        name.give_back();
        let again = host.names().next().unwrap();
        assert_eq!(again.id(), &id);
        // Longer than one may wait: its taker is waited for, and it goes later.
        clock::sleep(Duration::from_millis(2_500)).await;
        assert_ne!(left(&host, &id), NOTHING);
        again.give_back();
        gone(&host, &id).await;
        // A name under which nothing waits is given back as well.
        let name = host.names().next().unwrap();
        let id = name.id().clone();
        name.give_back();
        assert_ne!(host.names().next().unwrap().id(), &id);
    });
}

#[test]
fn one_that_died_while_it_waited_is_no_fault_of_the_sandbox() {
    let state = tempfile::tempdir().unwrap();
    let host = host(state.path());
    run(async {
        assert!(host.warm(&plan(&host, 96)).await);
        let name = host.names().next().unwrap();
        // The end of one may be that of the others.
        for process in left(&host, name.id()).0.into_iter().filter_map(process::handle) {
            process::kill(&process);
        }
        let plan = planned(&host, name.id(), 96);
        let sandbox = provision(&host, &plan, &[]).await.unwrap();
        assert!(!sandbox.boot().has_waited);
        lived(sandbox, &plan).await;
    });
}

#[test]
fn a_host_that_is_left_has_none_waiting_and_makes_no_more() {
    let state = tempfile::tempdir().unwrap();
    let host = host(state.path());
    run(async {
        let plan = plan(&host, 96);
        assert!(host.warm(&plan).await);
        let id = host.waits().standing().unwrap();
        host.leave();
        assert_eq!(left(&host, &id), NOTHING);
        assert!(!host.warm(&plan).await && host.waits().standing().is_none());
    });
}

#[test]
fn one_in_the_making_ends_with_the_host_though_nobody_runs_its_task() {
    let state = tempfile::tempdir().unwrap();
    let host = host(state.path());
    let plan = plan(&host, 96);
    // At different points of its making.
    for steps in [0, 3, 9] {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let host = host.with_waits(ContainerPool::default());
        let id = runtime.block_on(async {
            let warming = host.clone();
            let plan = plan.clone();
            tokio::spawn(async move { warming.warm(&plan).await });
            let clock = Stopwatch::start();
            let id = loop {
                assert!(clock.elapsed_ms() < PATIENCE_MS, "none is made");
                match host.waits().standing() {
                    Some(id) => break id,
                    None => tokio::task::yield_now().await,
                }
            };
            clock::sleep(Duration::from_millis(steps)).await;
            id
        });
        runtime.shutdown_background();
        host.leave();
        let clock = Stopwatch::start();
        while left(&host, &id) != NOTHING {
            // What its threads were about to make is looked for once more, as the next worker does.
            let traces = Traces::of(&host.facts().state_dir, &host.facts().live_dir, &id);
            wipe::destroy(host.facts(), &WipeTarget::found(traces), "orphan");
            assert!(clock.elapsed_ms() < PATIENCE_MS, "{:?}", left(&host, &id));
            clock::sleep_blocking(Duration::from_millis(20));
        }
    }
}

#[test]
fn one_whose_worker_is_gone_is_an_orphan_and_ones_own_is_not() {
    let state = tempfile::tempdir().unwrap();
    let own = host(state.path());
    run(async {
        assert!(own.warm(&plan(&own, 96)).await);
        let id = own.waits().standing().unwrap();
        assert!(reconcile(&own, |_| false).await.is_empty());
        assert_ne!(left(&own, &id), NOTHING);
        // Another worker of the same state directory: the one that has it lives.
        let next = detected(state.path());
        assert!(reconcile(&next, |_| false).await.is_empty());
        assert_eq!(left(&own, &id).0.len(), 1);
        // A crash is the end of the worker's locks.
        assert!(abandoned(&own).is_empty());
        own.waits().unlock_claim();
        assert_eq!(abandoned(&own), BTreeSet::from([id.clone()]));
        let evidence = reconcile(&next, |_| false).await;
        assert_eq!(evidence.len(), 1);
        assert_eq!((&evidence[0].sandbox_id, evidence[0].reason.as_str()), (&id, "orphan"));
        assert_eq!(evidence[0].status, WipeStatus::Verified, "{evidence:#?}");
        assert_eq!(left(&own, &id), NOTHING);
        assert!(abandoned(&own).is_empty());
    });
}

#[test]
fn a_shape_is_all_of_a_plan_but_its_name_and_its_command() {
    let state = tempfile::tempdir().unwrap();
    let host = host(state.path());
    let shape = |fields: Value| {
        let mut request = json!({"envRef": "host", "cmd": ["true"], "timeoutMs": 20_000,
                                 "limits": {"memMB": 96}});
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let id = SandboxId::parse(&format!("sb{}", random::secret_hex(10))).unwrap();
        let request = serde_json::from_value(request).unwrap();
        ContainerShape::of(&crate::plan(&request, &id, host.facts()).unwrap())
    };
    let usual = shape(json!({}));
    assert!(usual.is_some());
    assert_eq!(shape(json!({"cmd": ["false"], "timeoutMs": 1_000})), usual);
    for limits in [
        json!({"memMB": 97}),
        json!({"memMB": 96, "pids": 7}),
        json!({"memMB": 96, "diskMB": 9}),
        json!({"memMB": 96, "cpu": 0.5}),
        json!({"memMB": 96, "nofile": 100}),
    ] {
        assert_ne!(shape(json!({"limits": limits})), usual, "{limits}");
    }
}

#[test]
fn what_a_thread_is_making_when_the_host_is_left_is_gone_with_it() {
    for _ in 0..10 {
        let state = tempfile::tempdir().unwrap();
        let host = host(state.path());
        let plan = plan(&host, 64);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let id = runtime.block_on(async {
            let making = tokio::spawn({
                let (host, plan) = (host.clone(), plan.clone());
                async move { host.warm(&plan).await }
            });
            let clock = Stopwatch::start();
            let id = loop {
                if let Some(id) = host.waits().standing() {
                    break id;
                }
                assert!(clock.elapsed_ms() < PATIENCE_MS);
                clock::sleep(Duration::from_millis(1)).await;
            };
            host.leave();
            making.abort();
            id
        });
        // Threads that were begun end before this returns.
        drop(runtime);
        assert_eq!(left(&host, &id), NOTHING);
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(!mounts.contains(id.as_str()), "{mounts}");
    }
}

#[test]
fn an_intake_is_closed_when_what_is_being_made_is_done_and_nothing_is_made_after_it() {
    use std::sync::mpsc::channel;
    let (intake, order) = (Intake::default(), Arc::new(Mutex::new(Vec::new())));
    let ((began, has_begun), (go, may_go)) = (channel(), channel::<()>());
    let (maker, closer) = (intake.clone(), intake.clone());
    let (made, closed) = (Arc::clone(&order), Arc::clone(&order));
    let making = std::thread::spawn(move || {
        maker.within(|| {
            began.send(()).unwrap();
            may_go.recv().unwrap();
            made.lock().unwrap().push("made");
        })
    });
    has_begun.recv().unwrap();
    let closing = std::thread::spawn(move || {
        closer.close();
        closed.lock().unwrap().push("closed");
    });
    let waited = Stopwatch::start();
    while waited.elapsed_ms() < 50 {
        assert!(order.lock().unwrap().is_empty(), "closed while something is being made");
        std::thread::yield_now();
    }
    go.send(()).unwrap();
    assert_eq!(making.join().unwrap(), Some(()));
    closing.join().unwrap();
    assert_eq!(*order.lock().unwrap(), ["made", "closed"]);
    assert_eq!(intake.within(|| "made"), None);
}
