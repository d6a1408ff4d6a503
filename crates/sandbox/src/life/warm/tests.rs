//! Machines that wait, where this host makes such; what becomes of them is looked for on the host.

use cofferdam_contracts::sandbox::WipeStatus;

use super::*;
use crate::host::process;
use crate::host::traces::Traces;
use crate::life::reconcile;
use crate::machine::tests::machines;
use crate::provision;

/// Far beyond what a busy machine needs.
const PATIENCE_MS: u64 = 60_000;

fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(test);
}

/// Its processes and the directories of its groups.
fn of(facts: &HostFacts, id: &SandboxId) -> (Vec<u32>, usize) {
    let traces = Traces::of(&facts.state_dir, &facts.live_dir, id);
    let dirs = facts.cgroups.dirs(&traces);
    (facts.cgroups.members(&traces), dirs.iter().filter(|dir| dir.exists()).count())
}

#[test]
fn one_that_nobody_takes_is_ended_and_leaves_nothing() {
    let state = tempfile::tempdir().unwrap();
    let Some((host, plan)) = machines(state.path()) else { return };
    let pool = WarmPool::with_idle(1_500);
    run(async {
        assert!(WarmPool::ready(&pool, host.machines().pool(), &plan, host.shared()).await);
        let waiting = pool.waiting();
        let (members, groups) = of(host.facts(), &waiting[0]);
        assert!(waiting.len() == 1 && members.len() >= 2 && groups > 0, "{members:?} {groups}");
        let clock = Stopwatch::start();
        while !pool.waiting().is_empty() {
            assert!(clock.elapsed_ms() < PATIENCE_MS, "it is kept for ever");
            clock::sleep(Duration::from_millis(20)).await;
        }
        assert!(pool.take(&plan, host.facts()).is_none());
        assert_eq!(of(host.facts(), &waiting[0]), (Vec::new(), 0));
    });
}

#[test]
fn a_pool_that_is_closed_leaves_nothing_and_makes_no_more() {
    let state = tempfile::tempdir().unwrap();
    let Some((host, plan)) = machines(state.path()) else { return };
    run(async {
        assert!(host.warm(&plan).await);
        let waiting = host.machines().warm().waiting();
        host.leave();
        assert!(host.machines().warm().waiting().is_empty());
        assert_eq!(of(host.facts(), &waiting[0]), (Vec::new(), 0));
        assert!(!host.warm(&plan).await);
        assert!(host.machines().warm().waiting().is_empty());
    });
}

#[test]
fn one_in_the_making_ends_with_the_pool_though_nobody_runs_its_task() {
    let state = tempfile::tempdir().unwrap();
    let Some((host, plan)) = machines(state.path()) else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap();
    let name = runtime.block_on(async {
        WarmPool::want(&host.machines().warm(), host.machines().pool(), &plan, host.shared());
        let clock = Stopwatch::start();
        loop {
            assert!(clock.elapsed_ms() < PATIENCE_MS, "none is made");
            let name = host.machines().warm().waiting().pop();
            if let Some(name) = name.filter(|name| !of(host.facts(), name).0.is_empty()) {
                return name;
            }
            clock::sleep(Duration::from_millis(1)).await;
        }
    });
    runtime.shutdown_background();
    host.leave();
    assert_eq!(of(host.facts(), &name), (Vec::new(), 0));
}

#[test]
fn a_sandbox_holds_what_it_takes_by_its_own_limits() {
    let state = tempfile::tempdir().unwrap();
    let Some((host, plan)) = machines(state.path()) else { return };
    run(async {
        assert!(host.warm(&plan).await);
        let name = host.machines().warm().waiting().remove(0);
        let waited = of(host.facts(), &name).0;
        let sandbox = provision(&host, &plan, &[]).await.unwrap();
        assert!(sandbox.boot().has_waited);
        assert_eq!(of(host.facts(), &plan.traces.id).0, waited, "the same processes");
        assert_eq!(of(host.facts(), &name), (Vec::new(), 0), "and nothing where they were");
        let limit = |traces: &Traces| -> Option<u64> {
            let files = ["memory.limit_in_bytes", "memory.max"];
            let dirs = host.facts().cgroups.dirs(traces);
            let paths = dirs.iter().flat_map(|dir| files.map(|file| dir.join(file)));
            let text = paths.into_iter().find_map(|path| std::fs::read_to_string(path).ok())?;
            text.trim().parse().ok()
        };
        let whole = plan.isolation().profile.host_limits(plan.effective.limits).mem_mb.unwrap();
        let left = limit(&plan.traces).unwrap().div_ceil(1024 * 1024);
        // A machine of 192 MiB with its emulator: what it took before it was the sandbox's counts.
        assert!(left < whole - 50, "{left} of {whole}");
        assert!(sandbox.peak_mem_mb() >= whole - left, "{} {left}", sandbox.peak_mem_mb());
        assert_eq!(sandbox.wipe("task-end").await.status, WipeStatus::Verified);
        host.leave();
    });
}

#[test]
fn one_that_died_while_it_waited_is_no_fault_of_the_sandbox() {
    let state = tempfile::tempdir().unwrap();
    let Some((host, plan)) = machines(state.path()) else { return };
    run(async {
        assert!(host.warm(&plan).await);
        let name = host.machines().warm().waiting().remove(0);
        // The end of one may be that of the others.
        for process in of(host.facts(), &name).0.into_iter().filter_map(process::handle) {
            process::kill(&process);
        }
        let sandbox = provision(&host, &plan, &[]).await.unwrap();
        assert!(sandbox.boot().is_restored && !sandbox.boot().has_waited);
        assert_eq!(of(host.facts(), &name), (Vec::new(), 0));
        assert_eq!(sandbox.wipe("task-end").await.status, WipeStatus::Verified);
        host.leave();
    });
}

#[test]
fn one_whose_worker_is_gone_is_an_orphan_and_ones_own_is_not() {
    let state = tempfile::tempdir().unwrap();
    let Some((host, plan)) = machines(state.path()) else { return };
    run(async {
        assert!(host.warm(&plan).await);
        let name = host.machines().warm().waiting().remove(0);
        assert!(reconcile(&host, |_| false).await.is_empty());
        assert!(!of(host.facts(), &name).0.is_empty());
        // A worker that came after a crash: the same state directory, and it knows of none.
        let (next, _) = machines(state.path()).unwrap();
        let evidence = reconcile(&next, |_| false).await;
        assert_eq!(evidence.len(), 1);
        assert_eq!((&evidence[0].sandbox_id, evidence[0].status), (&name, WipeStatus::Verified));
        assert_eq!(of(host.facts(), &name), (Vec::new(), 0));
        host.leave();
    });
}
