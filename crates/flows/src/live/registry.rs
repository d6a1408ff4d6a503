//! What this process holds.
//!
//! One file: what is held has one lock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::{LiveId, RunId, TaskKey, TemplateName, TenantId};
use cofferdam_contracts::live::LiveRequest;
use cofferdam_contracts::sandbox::{Egress, Limits};
use cofferdam_contracts::template_build::TemplateUser;
use cofferdam_sandbox::{Agent, Host, LayerKeeper, Network, PlainLayer, Unkept};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::ahead::Maker;
use super::basis::{Basis, Built};
use super::expected::{Expectations, Expected};
use super::rest::LeftMemory;
use crate::memory::MemoryBudget;
use crate::own_tasks::{OwnTasks, Place};

/// Streams of one agent that last: commands, inputs, watches, transfers, connections to ports. It serves 64; the others
/// are for calls that are answered at once, and for what its worker asks.
pub const STREAMS: u32 = 52;
/// Of these, connections to ports: whoever may reach a port keeps its owner from nothing.
pub const VISITORS: usize = 24;

/// Sandboxes of this process.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    held: Mutex<HashMap<LiveId, Arc<Held>>>,
    /// What it asked for and does not hold yet.
    pub expected: Arc<Expectations>,
    rung: Notify,
    waking: Mutex<HashMap<LiveId, Woken>>,
    /// What makes them; set once its worker has looked at its host.
    maker: OnceLock<Maker>,
    /// What their tasks are of this process's worker.
    own: OnceLock<OwnTasks>,
    /// Keys that were revoked while this process ran: tokens made for them open nothing.
    revoked: Mutex<BTreeSet<String>>,
}

/// What a resume for requests came to, once it is over.
pub(crate) type Woken = watch::Receiver<Option<Result<Arc<Held>, Refusal>>>;

/// Bytes of each token.
const TOKEN_BYTES: usize = 20;

/// What opens a sandbox from outside.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tokens {
    /// Its agent.
    pub envd: String,
    /// Its ports, where they ask for it.
    pub traffic: Option<String>,
    /// The key that they were made for, and end with; empty in what was kept before this was known.
    #[serde(default)]
    pub key_id: String,
}

impl Tokens {
    pub(crate) fn fresh(private: bool, key_id: &str) -> Self {
        let traffic = private.then(|| secret_hex(TOKEN_BYTES));
        Self { envd: secret_hex(TOKEN_BYTES), traffic, key_id: key_id.to_owned() }
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

/// When a sandbox is to end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    /// So long after this moment.
    At(Stopwatch, Duration),
    /// Now: its tenant kills it.
    Kill,
    /// Now: its files are kept, on record, and its processes are dead.
    Pause,
    /// Now: its processes ended for a pause that failed after that.
    Unkept,
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
    /// What opens the agent from outside. Compare it in constant time.
    pub token: String,
    /// What opens its ports, where they ask for it.
    pub traffic: Option<String>,
    /// The key that both were made for.
    pub(crate) tokens_of: String,
    revocation: watch::Sender<bool>,
    /// Limits as enforced.
    pub limits: Limits,
    /// Since its start.
    pub since: Stopwatch,
    /// What keeps its files, or why its class cannot.
    pub(crate) keeper: Result<LayerKeeper, Unkept>,
    /// What its pause leaves of it.
    pub(crate) left: Mutex<Option<Left>>,
    /// Held while its files are read: it is not wiped meanwhile.
    pub(crate) keeping: tokio::sync::Mutex<()>,
    /// Whether it went on where a pause had stopped it, with its processes.
    pub went_on: bool,
    /// Its processes end for a pause, before the record says so.
    asleep: AtomicBool,
    /// The key that asked for it.
    pub(crate) key_id: String,
    /// Variables of the sandbox whose files it began with.
    inherited: BTreeMap<String, String>,
    /// What it was made of.
    basis: Basis,
    /// What its tenant asked for.
    pub(crate) asked: LiveRequest,
    /// What it reaches, and how its commands find it.
    reach: Mutex<ReachedNetwork>,
    /// What changes that.
    pub(crate) network: Network,
    /// One change of its end after the other, so that memory and record agree.
    pub(crate) turn: tokio::sync::Mutex<()>,
    order: watch::Sender<Order>,
    streams: Arc<Semaphore>,
    visitors: Arc<Semaphore>,
}

/// A layer that stays when its sandbox is wiped.
#[derive(Debug, Clone)]
pub(crate) struct Left {
    pub layer: Arc<PlainLayer>,
    /// Its memory, which is taken as long as the layer is.
    pub memory: Arc<LeftMemory>,
}

/// What is asked for once more, with the files of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Again {
    pub request: LiveRequest,
    /// The image below its files; `None`: the host's programs.
    pub image: Option<String>,
    /// Its tokens, where its next life has the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// Whether its memory is before its files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Whether that is behind its files instead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_last: bool,
    /// Of a built template, or of a sandbox that was made from one: what the build left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built: Option<Built>,
}

/// The network of a sandbox as it is in force.
#[derive(Debug, Clone)]
pub(crate) struct ReachedNetwork {
    /// Names that it may reach.
    pub egress: Egress,
    /// Variables by which programs find them.
    pub env: BTreeMap<String, String>,
}

/// What a sandbox that is up is made of.
#[derive(Debug)]
pub(crate) struct Made {
    pub agent: Agent,
    pub reach: ReachedNetwork,
    pub network: Network,
    pub tokens: Tokens,
    pub limits: Limits,
    pub keeper: Result<LayerKeeper, Unkept>,
    pub went_on: bool,
}

impl Held {
    pub(crate) fn new(
        id: &LiveId,
        run: &RunId,
        Expected { tenant, key_id, request, basis, inherited, files: _, tokens: _ }: Expected,
        Made { agent, reach, network, tokens, limits, keeper, went_on }: Made,
        left_ms: i64,
    ) -> (Arc<Self>, watch::Receiver<Order>) {
        let (order, orders) = watch::channel(at(left_ms));
        let held = Self {
            id: id.clone(),
            tenant,
            run: run.clone(),
            agent,
            token: tokens.envd,
            traffic: tokens.traffic,
            tokens_of: tokens.key_id,
            revocation: watch::Sender::new(false),
            limits,
            since: Stopwatch::start(),
            keeper,
            left: Mutex::default(),
            keeping: tokio::sync::Mutex::default(),
            went_on,
            asleep: AtomicBool::new(false),
            key_id,
            inherited,
            basis,
            asked: request,
            reach: Mutex::new(reach),
            network,
            turn: tokio::sync::Mutex::default(),
            order,
            streams: Arc::new(Semaphore::new(usize::try_from(STREAMS).unwrap_or(usize::MAX))),
            visitors: Arc::new(Semaphore::new(VISITORS)),
        };
        (Arc::new(held), orders)
    }

    /// Environment of every command: the network's variables, then the caller's.
    #[must_use]
    pub fn env(&self) -> BTreeMap<String, String> {
        let mut env = lock(&self.reach).env.clone();
        env.extend(self.inherited.clone());
        env.extend(self.asked.env.clone());
        env
    }

    /// Whether it reaches nothing but itself.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        lock(&self.reach).egress.is_none()
    }

    /// Names that it may reach.
    pub(crate) fn egress(&self) -> Egress {
        lock(&self.reach).egress.clone()
    }

    /// This is in force, and on record.
    pub(crate) fn reaches(&self, reach: ReachedNetwork) {
        *lock(&self.reach) = reach;
    }

    /// What is to be asked for in its next life, and with its files.
    pub(crate) fn again(&self) -> Again {
        let mut request = self.asked.clone();
        request.egress = self.egress();
        self.basis.name.as_str().clone_into(&mut request.template);
        for (name, value) in &self.inherited {
            request.env.entry(name.clone()).or_insert_with(|| value.clone());
        }
        let (image, built) = (self.basis.image.clone(), self.basis.built.clone());
        Again { request, image, tokens: None, memory: false, memory_last: false, built }
    }

    /// The same, with its tokens: for its own next life alone.
    pub(crate) fn itself(&self) -> Again {
        let (traffic, key_id) = (self.traffic.clone(), self.tokens_of.clone());
        let tokens = Tokens { envd: self.token.clone(), traffic, key_id };
        Again { tokens: Some(tokens), ..self.again() }
    }

    /// Whether it lives on, for a request that might resume it: waits while its files are read, for no longer than this.
    pub async fn stays(&self, patience: Duration) -> bool {
        if !self.asked.resume_on_traffic {
            return true;
        }
        // Where it takes longer, the request meets what there is.
        drop(tokio::time::timeout(patience, self.keeping.lock()).await);
        self.goes_on()
    }

    /// Template that it was made of.
    #[must_use]
    pub fn template(&self) -> &TemplateName {
        &self.basis.name
    }

    /// The name of its template: of a built one, the name that its tenant gave.
    #[must_use]
    pub fn template_alias(&self) -> &TemplateName {
        self.basis.built.as_ref().map_or(&self.basis.name, |built| &built.name)
    }

    /// As whom its commands run where nobody says so, and where; `None`: in that user's home.
    #[must_use]
    pub fn defaults(&self) -> (TemplateUser, Option<&str>) {
        let state = self.basis.built.as_ref().map(|built| &built.state);
        state.map_or((TemplateUser::User, None), |state| (state.user, state.workdir.as_deref()))
    }

    /// What it was made of.
    pub(crate) fn basis(&self) -> &Basis {
        &self.basis
    }

    /// Whether the key that its tokens were made for is revoked: they open nothing any more.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        *self.revocation.borrow()
    }

    /// Until that key is revoked: what its tokens opened ends then.
    pub async fn revoked(&self) {
        // Its sender is this sandbox's own, so it is not dropped before.
        let _ = self.revocation.subscribe().wait_for(|is_revoked| *is_revoked).await;
    }

    /// Orders its end. It is not taken back, and no other order follows.
    pub(crate) fn end(&self, how: Order) {
        self.replace(how);
    }

    /// From now on the end of its processes is a pause's.
    pub(crate) fn fell_asleep(&self) {
        self.asleep.store(true, Ordering::Release);
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Acquire)
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

    /// What its pause leaves.
    pub(crate) fn leaves(&self) -> Option<Left> {
        lock(&self.left).clone()
    }

    /// A pause leaves this of it.
    pub(crate) fn leave(&self, left: Left) {
        *lock(&self.left) = Some(left);
    }

    /// Whether it is to live on.
    #[must_use]
    pub fn goes_on(&self) -> bool {
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
    /// Its sandboxes are made on this host.
    pub(crate) fn made_on(&self, host: &Host, memory: &MemoryBudget) {
        // A second worker of one process is on the same host.
        let _ = self.maker.set(Maker::new(host, memory));
    }

    /// What makes them; `None`: no worker of this process makes any.
    pub(super) fn maker(&self) -> Option<&Maker> {
        self.maker.get()
    }

    /// Their tasks are this worker's own.
    pub(crate) fn tasks_of(&self, own: OwnTasks) {
        let _ = self.own.set(own);
    }

    /// The worker stops, and takes none any more.
    pub(crate) fn no_tasks(&self) {
        if let Some(own) = self.own.get() {
            own.close();
        }
    }

    /// The tasks of this process's worker; `None`: it has none.
    pub(super) fn own_tasks(&self) -> Option<&OwnTasks> {
        self.own.get()
    }

    /// A place for a task that is about to be queued; `None`: it waits in its queue.
    pub(super) fn place(&self, task: &TaskKey) -> Option<Place> {
        self.own.get()?.place(task)
    }

    /// Where they are made.
    pub(crate) fn host(&self) -> Option<&Host> {
        self.maker().map(|maker| &maker.host)
    }

    /// Tokens of these keys open nothing from now on.
    pub(crate) fn revoke(&self, keys: impl IntoIterator<Item = String>) {
        let mut revoked = lock(&self.revoked);
        revoked.extend(keys);
        for held in lock(&self.held).values().filter(|held| revoked.contains(&held.tokens_of)) {
            held.revocation.send_replace(true);
        }
    }

    /// The keys whose tokens open something here.
    pub(crate) fn keys(&self) -> BTreeSet<String> {
        let held = lock(&self.held);
        let open = held.values().filter(|held| !held.is_revoked());
        open.map(|held| held.tokens_of.clone()).collect()
    }

    /// Shows one that is up, until the guard is dropped.
    pub(crate) fn show(self: &Arc<Self>, held: Arc<Held>) -> Shown {
        let id = held.id.clone();
        lock(&self.held).insert(id.clone(), Arc::clone(&held));
        // After it can be found: a key that is revoked right now finds it here or there.
        if lock(&self.revoked).contains(&held.tokens_of) {
            held.revocation.send_replace(true);
        }
        self.rung.notify_waiters();
        Shown { registry: Arc::clone(self), id }
    }

    pub(crate) fn find(&self, id: &LiveId) -> Option<Arc<Held>> {
        lock(&self.held).get(id).cloned()
    }

    /// The resume of a sandbox that is under way for requests; with a sender, where the caller is the one to do it.
    pub(crate) fn waking(self: &Arc<Self>, id: &LiveId) -> (Woken, Option<Waking>) {
        let mut waking = lock(&self.waking);
        if let Some(woken) = waking.get(id) {
            return (woken.clone(), None);
        }
        let (told, woken) = watch::channel(None);
        waking.insert(id.clone(), woken.clone());
        (woken, Some(Waking { registry: Arc::clone(self), id: id.clone(), told }))
    }

    /// Whether a resume for requests is under way.
    pub(crate) fn is_waking(&self, id: &LiveId) -> bool {
        lock(&self.waking).contains_key(id)
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

/// Requests wait for this resume while it lives.
#[derive(Debug)]
pub(crate) struct Waking {
    registry: Arc<Registry>,
    id: LiveId,
    told: watch::Sender<Option<Result<Arc<Held>, Refusal>>>,
}

impl Waking {
    /// Tells all that wait.
    pub(crate) fn tell(self, outcome: Result<Arc<Held>, Refusal>) {
        self.told.send_replace(Some(outcome));
    }
}

impl Drop for Waking {
    fn drop(&mut self) {
        lock(&self.registry.waking).remove(&self.id);
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
