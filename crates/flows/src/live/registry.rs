//! What this process holds, and what it asked for and does not hold yet.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::id::{LiveId, RunId, TenantId};
use cofferdam_contracts::live::LiveRequest;
use cofferdam_contracts::sandbox::{Egress, Limits};
use cofferdam_sandbox::Agent;
use cofferdam_sandbox::templates::Template;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

/// Streams of one agent that last: commands, inputs, watches, transfers, connections to ports. It serves 64; the others
/// are for calls that are answered at once, and for what its worker asks.
pub const STREAMS: u32 = 52;
/// Of these, connections to ports: whoever may reach a port keeps its owner from nothing.
pub const VISITORS: usize = 24;
/// Creations of one tenant that wait at once. Each may hold a mebibyte of variables.
const MAX_ASKED: usize = 128;

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
    /// The whole request. Its environment may hold secrets, so no table has it.
    pub request: LiveRequest,
    /// What it begins with; `None`: the host's programs, and nothing runs.
    pub template: Option<Template>,
}

/// When a sandbox is to end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    /// So long after this moment.
    At(Stopwatch, Duration),
    /// Now: its tenant kills it.
    Kill,
    /// Now: its worker stops.
    Stop,
    /// It is over, however that came.
    Over,
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
    /// What its tenant asked for.
    pub(crate) asked: LiveRequest,
    /// Names that it may reach.
    pub(crate) egress: Egress,
    /// One change of its end after the other, so that memory and record agree.
    pub(crate) turn: tokio::sync::Mutex<()>,
    order: watch::Sender<Order>,
    streams: Arc<Semaphore>,
    visitors: Arc<Semaphore>,
}

/// What a sandbox that is up is made of.
#[derive(Debug)]
pub(crate) struct Made {
    pub agent: Agent,
    /// The network's variables.
    pub env: BTreeMap<String, String>,
    pub token: String,
    pub traffic: Option<String>,
    pub limits: Limits,
    pub egress: Egress,
}

impl Held {
    pub(crate) fn new(
        (id, run): (&LiveId, &RunId),
        Expected { tenant, request, .. }: Expected,
        Made { agent, mut env, token, traffic, limits, egress }: Made,
        left_ms: i64,
    ) -> (Arc<Self>, watch::Receiver<Order>) {
        let (order, orders) = watch::channel(at(left_ms));
        env.extend(request.env.clone());
        let held = Self {
            id: id.clone(),
            tenant,
            run: run.clone(),
            agent,
            env,
            token,
            traffic,
            limits,
            since: Stopwatch::start(),
            asked: request,
            egress,
            turn: tokio::sync::Mutex::default(),
            order,
            streams: Arc::new(Semaphore::new(usize::try_from(STREAMS).unwrap_or(usize::MAX))),
            visitors: Arc::new(Semaphore::new(VISITORS)),
        };
        (Arc::new(held), orders)
    }

    /// Template that it was made of.
    #[must_use]
    pub fn template(&self) -> &str {
        &self.asked.template
    }

    /// Orders its end. It is not taken back, and no other order follows.
    pub(crate) fn end(&self, how: Order) {
        self.replace(how);
    }

    /// Ends it if its time is over.
    pub(crate) fn end_if_due(&self) {
        self.order.send_if_modified(|order| {
            let is_due = matches!(order, Order::At(since, after) if since.elapsed() >= *after);
            if is_due {
                *order = Order::Over;
            }
            is_due
        });
    }

    /// Whether it is to live on.
    pub(crate) fn goes_on(&self) -> bool {
        matches!(*self.order.borrow(), Order::At(..))
    }

    /// `false`: it is ending already.
    pub(crate) fn ends_in(&self, ms: i64) -> bool {
        self.replace(at(ms))
    }

    /// Gives it another order, unless one of its end stands.
    fn replace(&self, next: Order) -> bool {
        self.order.send_if_modified(|order| {
            let goes_on = matches!(order, Order::At(..));
            if goes_on {
                *order = next;
            }
            goes_on
        })
    }

    /// So many of its agent's streams, for as long as what is given lives; waits for them no longer than this.
    pub async fn streams(&self, count: u32, patience: Duration) -> Option<OwnedSemaphorePermit> {
        taken(&self.streams, count, patience).await
    }

    /// A stream to one of its ports.
    pub async fn visit(
        &self,
        patience: Duration,
    ) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        let visitor = taken(&self.visitors, 1, patience).await?;
        Some((visitor, taken(&self.streams, 1, patience).await?))
    }
}

async fn taken(
    of: &Arc<Semaphore>,
    count: u32,
    patience: Duration,
) -> Option<OwnedSemaphorePermit> {
    let taken = Arc::clone(of).acquire_many_owned(count);
    tokio::time::timeout(patience, taken).await.ok()?.ok()
}

fn at(ms: i64) -> Order {
    Order::At(Stopwatch::start(), Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
}

impl Registry {
    /// A sandbox is about to be recorded, and this process is to hold it: until it does, or what is given is dropped.
    /// `None`: too many of the tenant's wait.
    pub(crate) fn expect(
        self: &Arc<Self>,
        id: &LiveId,
        tenant: &TenantId,
        (request, template): (&LiveRequest, Option<Template>),
    ) -> Option<Expecting> {
        let mut expected = lock(&self.expected);
        if expected.values().filter(|one| one.tenant == *tenant).count() >= MAX_ASKED {
            return None;
        }
        let one = Expected { tenant: tenant.clone(), request: request.clone(), template };
        expected.insert(id.clone(), one);
        Some(Expecting { registry: Arc::clone(self), id: id.clone() })
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

/// A sandbox is expected while this lives, unless it is held by then.
#[derive(Debug)]
pub(crate) struct Expecting {
    registry: Arc<Registry>,
    id: LiveId,
}

impl Drop for Expecting {
    fn drop(&mut self) {
        lock(&self.registry.expected).remove(&self.id);
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

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::live::BASE_TEMPLATE;

    fn id(n: usize) -> LiveId {
        LiveId::parse(&format!("{n:020}")).unwrap()
    }

    #[test]
    fn what_was_asked_for_is_forgotten_with_its_asker_and_bounded_for_each_tenant() {
        let registry = Arc::new(Registry::default());
        let (ann, bob) = (TenantId::parse("ann").unwrap(), TenantId::parse("bob").unwrap());
        let request = LiveRequest::of(BASE_TEMPLATE);
        let asked: Vec<Expecting> = (0..MAX_ASKED)
            .map(|n| registry.expect(&id(n), &ann, (&request, None)).unwrap())
            .collect();
        assert!(registry.expect(&id(MAX_ASKED), &ann, (&request, None)).is_none());
        assert!(registry.expect(&id(MAX_ASKED), &bob, (&request, None)).is_some());
        assert!(registry.take(&id(0)).is_some() && registry.take(&id(0)).is_none());
        drop(asked);
        assert!(lock(&registry.expected).is_empty());
    }
}
