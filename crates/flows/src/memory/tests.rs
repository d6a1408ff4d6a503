//! Whose turn it is, and what a share of the memory leaves to others.

use std::pin::pin;
use std::task::{Context, Waker};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use super::*;

fn of(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

/// Each of them asks after the one before it; who gets its part says so, and keeps it until it is told.
async fn ask(
    budget: &Arc<MemoryBudget>,
    all: &[(&'static str, &str, u32)],
) -> (UnboundedReceiver<&'static str>, Vec<JoinHandle<MemoryShare>>) {
    let (said, heard) = unbounded_channel();
    let mut waiting = Vec::new();
    for (name, tenant, mb) in all {
        let (budget, said, tenant) = (Arc::clone(budget), said.clone(), of(tenant));
        let (name, mb) = (*name, *mb);
        waiting.push(tokio::spawn(async move {
            let share = budget.take(&tenant, mb, MemoryUse::Task).await;
            said.send(name).unwrap();
            share
        }));
        // On one thread: each is in the queue before the next one is begun.
        tokio::task::yield_now().await;
    }
    (heard, waiting)
}

#[test]
fn a_host_keeps_a_tenth_for_itself_unless_the_operator_says_otherwise() {
    assert_eq!(MemoryBudget::new(10_000, None).total_mb, 9_000);
    assert_eq!(MemoryBudget::new(10_000, Some(512)).total_mb, 512);
}

#[test]
fn what_never_fits_is_refused_by_field_and_remedy() {
    let refused = MemoryBudget::new(10_000, Some(512)).admit(513).unwrap_err().to_string();
    assert!(refused.starts_with("limits.memMB: the sandbox needs 513 MiB"), "{refused}");
    assert!(refused.contains("--memory-mb"), "{refused}");
    assert_eq!(MemoryBudget::new(10_000, Some(512)).admit(512), Ok(512));
    assert!(MemoryBudget::new(10_000, None).admit(u64::MAX).is_err());
}

#[test]
fn what_nobody_needs_takes_a_part_alone_and_hears_of_whoever_waits() {
    let budget = MemoryBudget::new(4_000, Some(400));
    let (first, short) = budget.reserve_idle(&of("a"), 60, 2).unwrap();
    assert!(budget.reserve_idle(&of("b"), 41, 2).is_none(), "a quarter for all");
    let _second = budget.reserve_idle(&of("b"), 40, 2).unwrap();
    assert!(budget.reserve_idle(&of("b"), 0, 2).is_none(), "as many as there may be");
    drop(budget.take_now(&of("a"), 300).unwrap());
    assert!(!short.has_changed().unwrap(), "nobody waited");
    let (name, mut cx) = (of("c"), Context::from_waker(Waker::noop()));
    let mut waiting = pin!(budget.take(&name, 340, MemoryUse::Task));
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    assert!(short.has_changed().unwrap());
    assert!(budget.reserve_idle(&of("b"), 0, 3).is_none(), "one waits");
    drop(first);
    assert!(waiting.as_mut().poll(&mut cx).is_ready());
    // Not more than the host has, whatever was named.
    assert!(MemoryBudget::new(100, Some(1_000)).reserve_idle(&of("a"), 23, 1).is_none());
}

#[tokio::test]
async fn a_small_one_that_came_later_does_not_overtake_a_large_one() {
    let budget = Arc::new(MemoryBudget::new(0, Some(100)));
    let first = budget.take(&of("a"), 60, MemoryUse::Task).await;
    for tenants in [["a", "a"], ["b", "b"], ["b", "c"]] {
        let all = [("large", tenants[0], 80), ("small", tenants[1], 10)];
        let (mut heard, waiting) = ask(&budget, &all).await;
        assert!(heard.try_recv().is_err(), "neither fits behind 60 of 100 in order");
        // The last first: nobody's end lets another have a turn.
        for task in waiting.into_iter().rev() {
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
        }
    }
    let (mut heard, waiting) = ask(&budget, &[("large", "a", 80), ("small", "a", 10)]).await;
    drop(first);
    assert_eq!(heard.recv().await, Some("large"));
    assert_eq!(heard.recv().await, Some("small"));
    for task in waiting {
        drop(task.await.unwrap());
    }
    assert_eq!(lock(&budget.queue).free_mb, 100, "all is given back");
}

#[tokio::test]
async fn who_waits_knows_how_many_asked_before() {
    let budget = MemoryBudget::new(0, Some(100));
    let mut first = budget.ask(&of("a"), 100, MemoryUse::Task);
    first.had().await;
    let [second, third] = ["b", "a"].map(|name| budget.ask(&of(name), 60, MemoryUse::Task));
    assert_eq!((second.before(), third.before()), (0, 1));
    drop(second);
    assert_eq!(third.before(), 0);
}

#[tokio::test]
async fn what_is_taken_at_once_overtakes_nobody() {
    let budget = Arc::new(MemoryBudget::new(0, Some(100)));
    assert!(budget.take_now(&of("a"), 101).is_none());
    let first = budget.take_now(&of("a"), 60).unwrap();
    assert!(budget.take_now(&of("b"), 41).is_none());
    drop(budget.take_now(&of("b"), 40).unwrap());
    let (mut heard, waiting) = ask(&budget, &[("large", "a", 80)]).await;
    assert!(budget.take_now(&of("b"), 10).is_none(), "one waits");
    drop(first);
    assert_eq!(heard.recv().await, Some("large"));
    for task in waiting {
        drop(task.await.unwrap());
    }
    assert_eq!(lock(&budget.queue).free_mb, 100, "all is given back");
}

#[tokio::test]
async fn s23_a_tenant_waits_for_what_another_runs_and_not_for_what_it_queues() {
    let budget = Arc::new(MemoryBudget::new(0, Some(100)));
    let first = budget.take(&of("flood"), 100, MemoryUse::Task).await;
    let all = [
        ("f1", "flood", 100),
        ("f2", "flood", 100),
        ("f3", "flood", 100),
        ("b1", "bravo", 100),
        ("b2", "bravo", 100),
        ("c1", "charlie", 100),
    ];
    let (mut heard, waiting) = ask(&budget, &all).await;
    drop(first);
    let mut waiting: BTreeMap<_, _> = all.iter().map(|(name, ..)| *name).zip(waiting).collect();
    let mut order = Vec::new();
    while let Some(name) = heard.recv().await {
        order.push(name);
        drop(waiting.remove(name).unwrap().await.unwrap());
    }
    assert_eq!(order, ["b1", "c1", "f1", "b2", "f2", "f3"]);
    assert_eq!(lock(&budget.queue).free_mb, 100, "all is given back");
}

#[test]
fn a3f11_one_tenants_long_lived_sandboxes_leave_room_for_anothers() {
    let budget = MemoryBudget::new(0, Some(100));
    let mut cx = Context::from_waker(Waker::noop());
    let (flood, bravo, charlie) = (of("flood"), of("bravo"), of("charlie"));
    let delta = of("delta");
    let held: Vec<_> = (0..7).map(|_| budget.take_now(&flood, 10).unwrap()).collect();
    assert!(budget.take_now(&flood, 10).is_none(), "three quarters of what nobody else holds");
    let mut eighth = pin!(budget.take(&flood, 10, MemoryUse::Life));
    let mut ninth = pin!(budget.take(&flood, 1, MemoryUse::Life));
    assert!(eighth.as_mut().poll(&mut cx).is_pending());
    assert!(ninth.as_mut().poll(&mut cx).is_pending(), "a small one does not overtake a large one");
    let why = budget.waits_for(&flood).unwrap();
    assert_eq!(why, MemoryShortage::Own { needed: 10, held: 70, share: 75 });
    assert!(why.to_string().contains("70 MiB of the 75 MiB"), "{why}");
    assert_eq!(budget.waits_for(&bravo), None);
    // They wait for their own, and nobody waits behind them: another's life, and the tenant's own task.
    let second = budget.take_now(&bravo, 10).unwrap();
    let mut task = pin!(budget.take(&flood, 5, MemoryUse::Task));
    assert!(task.as_mut().poll(&mut cx).is_ready());
    // The first one of a tenant may be larger than its share.
    let third = budget.take_now(&charlie, 15).unwrap();
    let mut fourth = pin!(budget.take(&delta, 10, MemoryUse::Life));
    assert!(fourth.as_mut().poll(&mut cx).is_pending());
    let why = budget.waits_for(&delta).unwrap();
    assert_eq!(why, MemoryShortage::Room { needed: 10, free: 5, own: 0, tasks: 0, others: 95 });
    assert!(budget.is_held_by_lives(&delta) && budget.is_held_by_lives(&flood));
    assert!(!budget.is_held_by_lives(&charlie), "none of theirs waits");
    assert!(!why.to_string().contains("flood"), "{why}");
    drop((second, third));
    assert!(fourth.as_mut().poll(&mut cx).is_ready());
    drop(held);
    assert!(eighth.as_mut().poll(&mut cx).is_ready());
    assert!(ninth.as_mut().poll(&mut cx).is_ready());
}
