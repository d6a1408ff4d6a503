//! What this process holds, and what it asked for and does not hold yet.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::id::{LiveId, RunId, TenantId};
use cofferdam_contracts::live::LiveRequest;
use cofferdam_contracts::sandbox::Limits;
use cofferdam_sandbox::Agent;
use tokio::sync::{Notify, watch};

/// Sandboxes of this process.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    held: Mutex<HashMap<LiveId, Arc<Held>>>,
    expected: Mutex<HashMap<LiveId, Expected>>,
    rung: Notify,
}

/// One that was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    pub tenant: TenantId,
    /// Environment of every command: it may hold secrets, so no table has it.
    pub env: BTreeMap<String, String>,
    /// Whether its ports ask for a token.
    pub private: bool,
}

/// When a sandbox is to end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    /// So long after this moment.
    At(Stopwatch, Duration),
    /// Now: its tenant kills it.
    Kill,
}

/// A sandbox that runs and is held by this process.
#[derive(Debug)]
pub struct Held {
    /// Its name.
    pub id: LiveId,
    /// Its owner.
    pub tenant: TenantId,
    /// The run that holds it.
    pub run: RunId,
    /// The agent inside.
    pub agent: Agent,
    /// Environment of every command: the network's variables, then the caller's.
    pub env: BTreeMap<String, String>,
    /// What opens the agent from outside. Compare it in constant time.
    pub token: String,
    /// What opens its ports, where they ask for it.
    pub traffic: Option<String>,
    /// Limits as enforced.
    pub limits: Limits,
    /// Since its start.
    pub since: Stopwatch,
    order: watch::Sender<Order>,
}

impl Held {
    pub(crate) fn new(
        (id, tenant, run): (&LiveId, &TenantId, &RunId),
        (agent, env): (Agent, BTreeMap<String, String>),
        (token, traffic, limits): (String, Option<String>, Limits),
        left_ms: i64,
    ) -> (Arc<Self>, watch::Receiver<Order>) {
        let (order, orders) = watch::channel(at(left_ms));
        let held = Self {
            id: id.clone(),
            tenant: tenant.clone(),
            run: run.clone(),
            agent,
            env,
            token,
            traffic,
            limits,
            since: Stopwatch::start(),
            order,
        };
        (Arc::new(held), orders)
    }

    /// Orders its end. A kill is not taken back.
    pub(crate) fn kill(&self) {
        self.order.send_replace(Order::Kill);
    }

    pub(crate) fn ends_in(&self, ms: i64) {
        self.order.send_if_modified(|order| {
            let goes_on = matches!(order, Order::At(..));
            if goes_on {
                *order = at(ms);
            }
            goes_on
        });
    }
}

fn at(ms: i64) -> Order {
    Order::At(Stopwatch::start(), Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
}

impl Registry {
    /// A sandbox is about to be recorded, and this process is to hold it.
    pub(crate) fn expect(&self, id: &LiveId, tenant: &TenantId, request: &LiveRequest) {
        let (env, private) = (request.env.clone(), request.private);
        let expected = Expected { tenant: tenant.clone(), env, private };
        lock(&self.expected).insert(id.clone(), expected);
    }

    /// It was not recorded, or is over.
    pub(crate) fn forget(&self, id: &LiveId) {
        lock(&self.expected).remove(id);
    }

    /// Takes what is known of one that was asked for: once.
    pub(crate) fn take(&self, id: &LiveId) -> Option<Expected> {
        lock(&self.expected).remove(id)
    }

    /// Shows one that is up, until the guard is dropped.
    pub(crate) fn show(self: &Arc<Self>, held: Arc<Held>) -> Shown {
        let id = held.id.clone();
        lock(&self.held).insert(id.clone(), held);
        self.rung.notify_waiters();
        Shown { registry: Arc::clone(self), id }
    }

    pub(crate) fn find(&self, id: &LiveId) -> Option<Arc<Held>> {
        lock(&self.held).get(id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Held>> {
        lock(&self.held).values().cloned().collect()
    }

    /// Resolves at the next one that is shown after this call.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> {
        // Enabled by its creation: `notify_waiters` wakes futures that exist, polled or not.
        self.rung.notified()
    }
}

/// A sandbox is found while this lives.
pub(crate) struct Shown {
    registry: Arc<Registry>,
    id: LiveId,
}

impl Drop for Shown {
    fn drop(&mut self) {
        lock(&self.registry.held).remove(&self.id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock only means that somebody panicked beside it; the map is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
