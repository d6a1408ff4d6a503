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
    queue: Arc<Mutex<MemoryQueue>>,
}

/// What memory is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryUse {
    /// A task, which ends by itself.
    Task,
    /// A long-lived sandbox.
    Life,
    /// What nobody needs.
    Rest,
}

/// What a tenant's long-lived sandbox waits for, in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryShortage {
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

impl std::fmt::Display for MemoryShortage {
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
struct MemoryQueue {
    total_mb: u32,
    free_mb: u32,
    /// Told whenever somebody has to wait for room.
    short: watch::Sender<()>,
    /// By the order in which they came. As many as a worker has slots.
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
    what: MemoryUse,
    /// Whom to tell; `None`: it has its part.
    waits: Option<oneshot::Sender<()>>,
}

impl Ticket {
    fn is_life(&self) -> bool {
        self.what == MemoryUse::Life
    }

    fn is_rest(&self) -> bool {
        self.what == MemoryUse::Rest
    }
}

/// A part of the budget, given back when it is dropped; a place among those that wait for one before that.
#[derive(Debug)]
pub struct MemoryShare {
    number: u64,
    queue: Arc<Mutex<MemoryQueue>>,
}

/// A sandbox that could never start here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "limits.memMB: the sandbox needs {needed_mb} MiB of this host, and its sandboxes may take \
     {total_mb} MiB together; lower the limit, or start the worker with a larger --memory-mb"
)]
pub struct MemoryExcess {
    needed_mb: u64,
    total_mb: u32,
}

fn lock(queue: &Mutex<MemoryQueue>) -> MutexGuard<'_, MemoryQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
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
        let queue = MemoryQueue {
            total_mb,
            free_mb: total_mb,
            short: watch::Sender::new(()),
            all: BTreeMap::new(),
            next: 0,
            turns: BTreeMap::new(),
            turn: 0,
        };
        Self { total_mb, rests_mb, queue: Arc::new(Mutex::new(queue)) }
    }

    /// How much a sandbox of `needed_mb` takes.
    ///
    /// # Errors
    /// [`MemoryExcess`] where even an idle worker has not that much.
    pub fn admit(&self, needed_mb: u64) -> Result<u32, MemoryExcess> {
        u32::try_from(needed_mb)
            .ok()
            .filter(|needed| *needed <= self.total_mb)
            .ok_or(MemoryExcess { needed_mb, total_mb: self.total_mb })
    }

    /// So much at once for a long-lived sandbox, where it is free, within its tenant's share and nobody waits for any.
    #[must_use]
    pub fn take_now(&self, tenant: &TenantId, needed_mb: u32) -> Option<MemoryShare> {
        self.take_free(tenant, needed_mb, MemoryUse::Life, None)
    }

    /// What the first of a tenant's long-lived sandboxes that wait here waits for.
    #[must_use]
    pub fn waits_for(&self, tenant: &TenantId) -> Option<MemoryShortage> {
        lock(&self.queue).waits_for(tenant)
    }

    /// Whether the first of a tenant's long-lived sandboxes that wait here is served by the end of long-lived ones alone.
    #[must_use]
    pub fn is_held_by_lives(&self, tenant: &TenantId) -> bool {
        lock(&self.queue).is_held_by_lives(tenant)
    }

    /// So much for what nobody needs, where it is free and fewer than `most` have some, with what tells when somebody waits for it.
    #[must_use]
    pub fn reserve_idle(
        &self,
        tenant: &TenantId,
        needed_mb: u32,
        most: usize,
    ) -> Option<(MemoryShare, watch::Receiver<()>)> {
        // Before it is taken, so that whoever waits from then on is heard.
        let short = lock(&self.queue).short.subscribe();
        Some((self.take_free(tenant, needed_mb, MemoryUse::Rest, Some(most))?, short))
    }

    fn take_free(
        &self,
        tenant: &TenantId,
        needed_mb: u32,
        what: MemoryUse,
        most: Option<usize>,
    ) -> Option<MemoryShare> {
        let mut queue = lock(&self.queue);
        if queue.next_turn().is_some() || queue.free_mb < needed_mb {
            return None;
        }
        if what == MemoryUse::Life && !queue.may_hold(tenant, needed_mb) {
            return None;
        }
        if let Some(most) = most {
            let resting = queue.all.values().filter(|ticket| ticket.is_rest());
            let (count, mb) = resting
                .fold((0, 0_u32), |(count, mb), one| (count + 1, mb.saturating_add(one.needed_mb)));
            if count >= most || mb.saturating_add(needed_mb) > self.rests_mb {
                return None;
            }
        }
        // Nobody listens: it is served before this returns.
        let waits = Some(oneshot::channel().0);
        let number = queue.join(Ticket { tenant: tenant.clone(), needed_mb, what, waits });
        Some(MemoryShare { number, queue: Arc::clone(&self.queue) })
    }

    /// Waits for the tenant's turn and until so much is free. Dropping the future gives the place up.
    #[cfg(test)]
    pub(crate) async fn take(&self, tenant: &TenantId, mb: u32, what: MemoryUse) -> MemoryShare {
        let mut asked = self.ask(tenant, mb, what);
        asked.had().await;
        asked.share
    }

    /// A place among those that wait for so much, which may be had at once. Dropping it gives the place up.
    pub(crate) fn ask(&self, tenant: &TenantId, needed_mb: u32, what: MemoryUse) -> MemoryRequest {
        let (tell, told) = oneshot::channel();
        let (tenant, waits) = (tenant.clone(), Some(tell));
        let number = lock(&self.queue).join(Ticket { tenant, needed_mb, what, waits });
        MemoryRequest { share: MemoryShare { number, queue: Arc::clone(&self.queue) }, told }
    }
}

/// Memory that was asked for.
#[derive(Debug)]
pub(crate) struct MemoryRequest {
    /// The part of the budget, once it is had.
    pub share: MemoryShare,
    told: oneshot::Receiver<()>,
}

impl MemoryRequest {
    /// Until it is had. Dropping the future loses nothing.
    pub(crate) async fn had(&mut self) {
        // The sender is kept until it has told.
        let _ = (&mut self.told).await;
    }

    /// How many that wait asked before this one: those of other tenants may be served later all the same.
    pub(crate) fn before(&self) -> usize {
        let queue = lock(&self.share.queue);
        queue.all.range(..self.share.number).filter(|(_, ticket)| ticket.waits.is_some()).count()
    }
}

impl MemoryQueue {
    /// The number of a ticket that came last, and is served at once where its turn has come.
    fn join(&mut self, ticket: Ticket) -> u64 {
        let number = self.next;
        self.next += 1;
        self.all.insert(number, ticket);
        self.serve();
        number
    }

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
            if ticket.is_rest() {
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
        for ticket in self.all.values().filter(|one| one.waits.is_none() && !one.is_rest()) {
            let sum = held.entry(&ticket.tenant).or_default();
            *sum = sum.saturating_add(u64::from(ticket.needed_mb));
        }
        let over = self.over_share();
        let waits = |number: &u64, one: &Ticket| {
            let is_behind =
                one.is_life() && over.get(&one.tenant).is_some_and(|first| first <= number);
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
            if ticket.waits.is_some() && ticket.is_life() && !first.contains_key(&ticket.tenant) {
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
        let own = self.held(|one| one.is_life() && one.tenant == *tenant);
        let others = self.held(|one| one.is_life() && one.tenant != *tenant);
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
        let is_theirs = |one: &&Ticket| one.is_life() && one.tenant == *tenant;
        self.all.values().filter(|one| one.waits.is_some()).find(is_theirs)
    }

    /// Tasks end by themselves, and what is retained is given up.
    fn is_held_by_lives(&self, tenant: &TenantId) -> bool {
        let Some(ticket) = self.waiting_life(tenant) else { return false };
        let comes = self.held(|one| !one.is_life()).saturating_add(u64::from(self.free_mb));
        !self.may_hold(tenant, ticket.needed_mb) || u64::from(ticket.needed_mb) > comes
    }

    fn waits_for(&self, tenant: &TenantId) -> Option<MemoryShortage> {
        let ticket = self.waiting_life(tenant)?;
        let needed = u64::from(ticket.needed_mb);
        let (own, share) = self.lives(tenant);
        if !self.may_hold(tenant, ticket.needed_mb) {
            return Some(MemoryShortage::Own { needed, held: own, share });
        }
        Some(MemoryShortage::Room {
            needed,
            free: u64::from(self.free_mb),
            own,
            tasks: self.held(|one| one.what == MemoryUse::Task),
            others: self.held(|one| one.is_life() && one.tenant != *tenant),
        })
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue);
        if let Some(ticket) = queue.all.remove(&self.number)
            && ticket.waits.is_none()
        {
            queue.free_mb = queue.free_mb.saturating_add(ticket.needed_mb);
        }
        queue.serve();
    }
}

#[cfg(test)]
mod tests;
