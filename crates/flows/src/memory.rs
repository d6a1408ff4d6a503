//! Memory admission: the limits of the sandboxes that run at once fit this host.
//!
//! Each sandbox is held to its own limit by its cgroup, but limits that add up to more than the host
//! has would let tenants end each other, or the host's own programs, by the kernel's choice of a
//! victim. So a task takes its limit out of the worker's budget before anything of it is made, and
//! gives it back once its wipe has ended.
//!
//! ```text
//! next: of the tenants that wait, the one that holds least; among equals, the one whose last turn is
//!       longest ago
//!       of this tenant, the task that came first; while it does not fit, nobody is served
//! ```
//! A long-lived sandbox ends when somebody wants it to, so waiting for it may take for ever. A tenant's long-lived sandboxes hold
//! [`LIVES`] of what those of the others leave, at most; its first one may be larger. What is above that waits for the tenant's own,
//! and nobody waits behind it but later ones of that tenant.
//! **One tenant's tasks delay its own: another one waits for what runs, and not for what queues. A large
//! task is not overtaken for ever by small ones.**
//!
//! One file: one queue and its order, which no part can change alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_contracts::id::TenantId;
use tokio::sync::{oneshot, watch};

/// The share of a host's memory that sandboxes get where no `--memory-mb` says otherwise: the rest
/// is the database's, the worker's and the kernel's.
const SHARE: (u64, u64) = (9, 10);
/// The part of a budget that what nobody needs takes at most: the rest stays the host's own for its files.
const RESTS: u32 = 4;
/// The part of what other tenants' long-lived sandboxes leave that those of one tenant hold at most: there is room for another.
const LIVES: (u64, u64) = (3, 4);
/// Tenants whose last turn is known: more than a worker serves within a minute.
const MAX_TURNS: usize = 1_024;

/// What a worker's sandboxes may take together, in MiB.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    total_mb: u32,
    /// Of that, what nobody needs may take at most.
    rests_mb: u32,
    desk: Arc<Mutex<Desk>>,
}

/// What memory is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    /// A task, which ends by itself.
    Task,
    /// A long-lived sandbox.
    Life,
    /// What nobody needs.
    Rest,
}

/// What a tenant's long-lived sandbox waits for, in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// Its own tenant's long-lived sandboxes hold their share.
    Own {
        /// What the sandbox takes.
        needed: u64,
        /// What the tenant's hold.
        held: u64,
        /// What they may hold.
        share: u64,
    },
    /// The memory is taken.
    Room {
        /// What the sandbox takes.
        needed: u64,
        /// What nobody holds.
        free: u64,
        /// What the tenant's long-lived sandboxes hold.
        own: u64,
        /// What tasks hold.
        tasks: u64,
        /// What long-lived sandboxes of others hold.
        others: u64,
    },
}

impl std::fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Own { needed, held, share } => write!(
                f,
                "the sandbox needs {needed} MiB of the host's memory; your long-lived sandboxes hold {held} MiB of the \
                 {share} MiB that one tenant's may take together: kill or pause some"
            ),
            Self::Room { needed, free, own, tasks, others } => write!(
                f,
                "the sandbox needs {needed} MiB of the host's memory and {free} MiB are free; your long-lived sandboxes \
                 hold {own} MiB, tasks {tasks} MiB, long-lived sandboxes of other tenants {others} MiB: try again, or kill \
                 some of your own"
            ),
        }
    }
}

/// Who holds what, and who waits for what.
#[derive(Debug)]
struct Desk {
    total_mb: u32,
    free_mb: u32,
    /// Told whenever somebody has to wait for room.
    short: watch::Sender<()>,
    /// By the order in which they came. As many as a worker has places.
    all: BTreeMap<u64, Ticket>,
    next: u64,
    /// When a tenant had its last turn, as the number of turns before it.
    turns: BTreeMap<TenantId, u64>,
    turn: u64,
}

#[derive(Debug)]
struct Ticket {
    tenant: TenantId,
    needed_mb: u32,
    what: For,
    /// Whom to tell; `None`: it has its part.
    waits: Option<oneshot::Sender<()>>,
}

/// A part of the budget, given back when it is dropped; a place among those that wait for one before that.
#[derive(Debug)]
pub struct MemoryShare {
    number: u64,
    desk: Arc<Mutex<Desk>>,
}

/// A sandbox that could never start here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "limits.memMB: the sandbox needs {needed_mb} MiB of this host, and its sandboxes may take \
     {total_mb} MiB together; lower the limit, or start the worker with a larger --memory-mb"
)]
pub struct TooLarge {
    needed_mb: u64,
    total_mb: u32,
}

fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryBudget {
    /// Of a host with this much memory, unless the operator named a budget. In MiB.
    pub(crate) fn new(host_mb: u64, named_mb: Option<u64>) -> Self {
        let (part, whole) = SHARE;
        let of_host = host_mb / whole * part;
        let mib = |mb: u64| u32::try_from(mb).unwrap_or(u32::MAX);
        let total_mb = mib(named_mb.unwrap_or(of_host).max(1));
        // An operator may name more than there is, since few sandboxes take what they may.
        let rests_mb = total_mb.min(mib(of_host)) / RESTS;
        let desk = Desk {
            total_mb,
            free_mb: total_mb,
            short: watch::Sender::new(()),
            all: BTreeMap::new(),
            next: 0,
            turns: BTreeMap::new(),
            turn: 0,
        };
        Self { total_mb, rests_mb, desk: Arc::new(Mutex::new(desk)) }
    }

    /// How much a sandbox of `needed_mb` takes.
    ///
    /// # Errors
    /// [`TooLarge`] where even an idle worker has not that much.
    pub fn admit(&self, needed_mb: u64) -> Result<u32, TooLarge> {
        u32::try_from(needed_mb)
            .ok()
            .filter(|needed| *needed <= self.total_mb)
            .ok_or(TooLarge { needed_mb, total_mb: self.total_mb })
    }

    /// So much at once for a long-lived sandbox, where it is free, within its tenant's share and nobody waits for any.
    #[must_use]
    pub fn take_now(&self, tenant: &TenantId, needed_mb: u32) -> Option<MemoryShare> {
        self.take_free(tenant, needed_mb, For::Life, None)
    }

    /// What the first of a tenant's long-lived sandboxes that wait here waits for.
    #[must_use]
    pub fn waits_for(&self, tenant: &TenantId) -> Option<WaitsFor> {
        lock(&self.desk).waits_for(tenant)
    }

    /// Whether the first of a tenant's long-lived sandboxes that wait here is served by the end of long-lived ones alone.
    #[must_use]
    pub fn is_held_by_lives(&self, tenant: &TenantId) -> bool {
        lock(&self.desk).is_held_by_lives(tenant)
    }

    /// So much for what nobody needs, where it is free and fewer than `most` have some, with what tells when somebody waits for it.
    #[must_use]
    pub fn rest(
        &self,
        tenant: &TenantId,
        needed_mb: u32,
        most: usize,
    ) -> Option<(MemoryShare, watch::Receiver<()>)> {
        // Before it is taken, so that whoever waits from then on is heard.
        let short = lock(&self.desk).short.subscribe();
        Some((self.take_free(tenant, needed_mb, For::Rest, Some(most))?, short))
    }

    fn take_free(
        &self,
        tenant: &TenantId,
        needed_mb: u32,
        what: For,
        most: Option<usize>,
    ) -> Option<MemoryShare> {
        let mut desk = lock(&self.desk);
        if desk.next_turn().is_some() || desk.free_mb < needed_mb {
            return None;
        }
        if what == For::Life && !desk.may_hold(tenant, needed_mb) {
            return None;
        }
        if let Some(most) = most {
            let resting = desk.all.values().filter(|ticket| ticket.what == For::Rest);
            let (count, mb) = resting
                .fold((0, 0_u32), |(count, mb), one| (count + 1, mb.saturating_add(one.needed_mb)));
            if count >= most || mb.saturating_add(needed_mb) > self.rests_mb {
                return None;
            }
        }
        let number = desk.next;
        desk.next += 1;
        // Nobody listens: it is served before this returns.
        let waits = Some(oneshot::channel().0);
        desk.all.insert(number, Ticket { tenant: tenant.clone(), needed_mb, what, waits });
        desk.serve();
        Some(MemoryShare { number, desk: Arc::clone(&self.desk) })
    }

    /// Waits for the tenant's turn and until so much is free. Dropping the future gives the place up.
    #[cfg(test)]
    pub(crate) async fn take(&self, tenant: &TenantId, needed_mb: u32, what: For) -> MemoryShare {
        let mut asked = self.ask(tenant, needed_mb, what);
        asked.had().await;
        asked.share
    }

    /// A place among those that wait for so much, which may be had at once. Dropping it gives the place up.
    pub(crate) fn ask(&self, tenant: &TenantId, needed_mb: u32, what: For) -> AskedMemory {
        let (tell, told) = oneshot::channel();
        let mut desk = lock(&self.desk);
        let number = desk.next;
        desk.next += 1;
        let (tenant, waits) = (tenant.clone(), Some(tell));
        desk.all.insert(number, Ticket { tenant, needed_mb, what, waits });
        desk.serve();
        AskedMemory { share: MemoryShare { number, desk: Arc::clone(&self.desk) }, told }
    }
}

/// Memory that was asked for.
#[derive(Debug)]
pub(crate) struct AskedMemory {
    /// The part of the budget, once it is had.
    pub share: MemoryShare,
    told: oneshot::Receiver<()>,
}

impl AskedMemory {
    /// Until it is had. Dropping the future loses nothing.
    pub(crate) async fn had(&mut self) {
        // The sender is kept until it has told.
        let _ = (&mut self.told).await;
    }

    /// How many that wait asked before this one: those of other tenants may be served later all the same.
    pub(crate) fn before(&self) -> usize {
        let desk = lock(&self.share.desk);
        desk.all.range(..self.share.number).filter(|(_, ticket)| ticket.waits.is_some()).count()
    }
}

impl Desk {
    /// Gives out what is free, in turn.
    fn serve(&mut self) {
        while let Some(number) = self.next_turn() {
            let Some(ticket) = self.all.get_mut(&number) else { return };
            let Some(left) = self.free_mb.checked_sub(ticket.needed_mb) else {
                self.short.send_replace(());
                return;
            };
            self.free_mb = left;
            if let Some(waits) = ticket.waits.take() {
                // Who went away meanwhile gives it back.
                let _ = waits.send(());
            }
            if ticket.what == For::Rest {
                continue;
            }
            self.turn += 1;
            self.turns.insert(ticket.tenant.clone(), self.turn);
            if self.turns.len() > MAX_TURNS {
                let oldest = self.turns.iter().min_by_key(|(_, turn)| **turn);
                let oldest = oldest.map(|(tenant, _)| tenant.clone());
                if let Some(tenant) = oldest {
                    self.turns.remove(&tenant);
                }
            }
        }
    }

    /// Whose turn it is.
    fn next_turn(&self) -> Option<u64> {
        let mut held: BTreeMap<&TenantId, u64> = BTreeMap::new();
        for ticket in self.all.values().filter(|one| one.waits.is_none() && one.what != For::Rest) {
            let sum = held.entry(&ticket.tenant).or_default();
            *sum = sum.saturating_add(u64::from(ticket.needed_mb));
        }
        let over = self.over_share();
        let waits = |number: &u64, one: &Ticket| {
            let is_behind =
                one.what == For::Life && over.get(&one.tenant).is_some_and(|first| first <= number);
            one.waits.is_some() && !is_behind
        };
        let waiting = self.all.iter().filter(|(number, ticket)| waits(number, ticket));
        let turn = waiting.min_by_key(|(number, ticket)| {
            let last = self.turns.get(&ticket.tenant).copied().unwrap_or(0);
            (held.get(&ticket.tenant).copied().unwrap_or(0), last, **number)
        });
        turn.map(|(number, _)| *number)
    }

    /// Of each tenant that waits for its own long-lived sandboxes, the first that does.
    fn over_share(&self) -> BTreeMap<TenantId, u64> {
        let mut first: BTreeMap<TenantId, Option<u64>> = BTreeMap::new();
        for (number, ticket) in &self.all {
            if ticket.waits.is_some()
                && ticket.what == For::Life
                && !first.contains_key(&ticket.tenant)
            {
                // While that one may be served, those behind it are looked at in their turn.
                let may = self.may_hold(&ticket.tenant, ticket.needed_mb);
                first.insert(ticket.tenant.clone(), (!may).then_some(*number));
            }
        }
        first.into_iter().filter_map(|(tenant, number)| Some((tenant, number?))).collect()
    }

    /// What this takes of the memory now.
    fn held(&self, is_counted: impl Fn(&Ticket) -> bool) -> u64 {
        let held = self.all.values().filter(|one| one.waits.is_none() && is_counted(one));
        held.map(|one| u64::from(one.needed_mb)).sum()
    }

    /// What the long-lived sandboxes of this tenant hold, and may hold at most.
    fn lives(&self, tenant: &TenantId) -> (u64, u64) {
        let own = self.held(|one| one.what == For::Life && one.tenant == *tenant);
        let others = self.held(|one| one.what == For::Life && one.tenant != *tenant);
        let (part, whole) = LIVES;
        (own, u64::from(self.total_mb).saturating_sub(others) * part / whole)
    }

    /// Whether the tenant may hold so much more for a long-lived sandbox.
    fn may_hold(&self, tenant: &TenantId, needed_mb: u32) -> bool {
        let (held, share) = self.lives(tenant);
        held == 0 || held.saturating_add(u64::from(needed_mb)) <= share
    }

    /// The first of a tenant's long-lived sandboxes that wait.
    fn waiting_life(&self, tenant: &TenantId) -> Option<&Ticket> {
        let is_theirs = |one: &&Ticket| one.what == For::Life && one.tenant == *tenant;
        self.all.values().filter(|one| one.waits.is_some()).find(is_theirs)
    }

    /// Tasks end by themselves, and what rests is given up.
    fn is_held_by_lives(&self, tenant: &TenantId) -> bool {
        let Some(ticket) = self.waiting_life(tenant) else { return false };
        let comes = self.held(|one| one.what != For::Life).saturating_add(u64::from(self.free_mb));
        !self.may_hold(tenant, ticket.needed_mb) || u64::from(ticket.needed_mb) > comes
    }

    fn waits_for(&self, tenant: &TenantId) -> Option<WaitsFor> {
        let ticket = self.waiting_life(tenant)?;
        let needed = u64::from(ticket.needed_mb);
        let (own, share) = self.lives(tenant);
        if !self.may_hold(tenant, ticket.needed_mb) {
            return Some(WaitsFor::Own { needed, held: own, share });
        }
        Some(WaitsFor::Room {
            needed,
            free: u64::from(self.free_mb),
            own,
            tasks: self.held(|one| one.what == For::Task),
            others: self.held(|one| one.what == For::Life && one.tenant != *tenant),
        })
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        let mut desk = lock(&self.desk);
        if let Some(ticket) = desk.all.remove(&self.number)
            && ticket.waits.is_none()
        {
            desk.free_mb = desk.free_mb.saturating_add(ticket.needed_mb);
        }
        desk.serve();
    }
}

#[cfg(test)]
mod tests {
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
                let share = budget.take(&tenant, mb, For::Task).await;
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
        let (first, short) = budget.rest(&of("a"), 60, 2).unwrap();
        assert!(budget.rest(&of("b"), 41, 2).is_none(), "a quarter for all");
        let _second = budget.rest(&of("b"), 40, 2).unwrap();
        assert!(budget.rest(&of("b"), 0, 2).is_none(), "as many as there may be");
        drop(budget.take_now(&of("a"), 300).unwrap());
        assert!(!short.has_changed().unwrap(), "nobody waited");
        let (name, mut cx) = (of("c"), Context::from_waker(Waker::noop()));
        let mut waiting = pin!(budget.take(&name, 340, For::Task));
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        assert!(short.has_changed().unwrap());
        assert!(budget.rest(&of("b"), 0, 3).is_none(), "one waits");
        drop(first);
        assert!(waiting.as_mut().poll(&mut cx).is_ready());
        // Not more than the host has, whatever was named.
        assert!(MemoryBudget::new(100, Some(1_000)).rest(&of("a"), 23, 1).is_none());
    }

    #[tokio::test]
    async fn a_small_one_that_came_later_does_not_overtake_a_large_one() {
        let budget = Arc::new(MemoryBudget::new(0, Some(100)));
        let first = budget.take(&of("a"), 60, For::Task).await;
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
        assert_eq!(lock(&budget.desk).free_mb, 100, "all is given back");
    }

    #[tokio::test]
    async fn who_waits_knows_how_many_asked_before() {
        let budget = MemoryBudget::new(0, Some(100));
        let mut first = budget.ask(&of("a"), 100, For::Task);
        first.had().await;
        let [second, third] = ["b", "a"].map(|name| budget.ask(&of(name), 60, For::Task));
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
        assert_eq!(lock(&budget.desk).free_mb, 100, "all is given back");
    }

    #[tokio::test]
    async fn s23_a_tenant_waits_for_what_another_runs_and_not_for_what_it_queues() {
        let budget = Arc::new(MemoryBudget::new(0, Some(100)));
        let first = budget.take(&of("flood"), 100, For::Task).await;
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
        assert_eq!(lock(&budget.desk).free_mb, 100, "all is given back");
    }

    #[test]
    fn a3f11_one_tenants_long_lived_sandboxes_leave_room_for_anothers() {
        let budget = MemoryBudget::new(0, Some(100));
        let mut cx = Context::from_waker(Waker::noop());
        let (flood, bravo, charlie) = (of("flood"), of("bravo"), of("charlie"));
        let delta = of("delta");
        let held: Vec<_> = (0..7).map(|_| budget.take_now(&flood, 10).unwrap()).collect();
        assert!(budget.take_now(&flood, 10).is_none(), "three quarters of what nobody else holds");
        let mut eighth = pin!(budget.take(&flood, 10, For::Life));
        let mut ninth = pin!(budget.take(&flood, 1, For::Life));
        assert!(eighth.as_mut().poll(&mut cx).is_pending());
        assert!(
            ninth.as_mut().poll(&mut cx).is_pending(),
            "a small one does not overtake a large one"
        );
        let why = budget.waits_for(&flood).unwrap();
        assert_eq!(why, WaitsFor::Own { needed: 10, held: 70, share: 75 });
        assert!(why.to_string().contains("70 MiB of the 75 MiB"), "{why}");
        assert_eq!(budget.waits_for(&bravo), None);
        // They wait for their own, and nobody waits behind them: another's life, and the tenant's own task.
        let second = budget.take_now(&bravo, 10).unwrap();
        let mut task = pin!(budget.take(&flood, 5, For::Task));
        assert!(task.as_mut().poll(&mut cx).is_ready());
        // The first one of a tenant may be larger than its share.
        let third = budget.take_now(&charlie, 15).unwrap();
        let mut fourth = pin!(budget.take(&delta, 10, For::Life));
        assert!(fourth.as_mut().poll(&mut cx).is_pending());
        let why = budget.waits_for(&delta).unwrap();
        assert_eq!(why, WaitsFor::Room { needed: 10, free: 5, own: 0, tasks: 0, others: 95 });
        assert!(budget.is_held_by_lives(&delta) && budget.is_held_by_lives(&flood));
        assert!(!budget.is_held_by_lives(&charlie), "none of theirs waits");
        assert!(!why.to_string().contains("flood"), "{why}");
        drop((second, third));
        assert!(fourth.as_mut().poll(&mut cx).is_ready());
        drop(held);
        assert!(eighth.as_mut().poll(&mut cx).is_ready());
        assert!(ninth.as_mut().poll(&mut cx).is_ready());
    }
}
