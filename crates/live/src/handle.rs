//! The handle of a sandbox that runs and is held by this process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::id::{LiveId, RunId};
use cofferdam_contracts::life::{Life, LifeState, may_follow};
use cofferdam_contracts::live::LiveRequest;
use cofferdam_contracts::sandbox::{Egress, Limits};
use cofferdam_contracts::template_build::TemplateUser;
use cofferdam_sandbox::{Agent, DetachedLayer, LayerSnapshotter, Network, NoSnapshotReason};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::guest::facts::Facts;
use crate::layer::layer_memory::LayerMemory;
use crate::pending_launch::PendingLaunch;
use crate::snapshot::resume_spec::ResumeSpec;
use crate::template::resolved_template::ResolvedTemplate;
use crate::tokens::Tokens;

/// Streams of one agent that last: commands, inputs, watches, transfers, connections to ports. It serves 64; the others
/// are for calls that are answered at once, and for what its worker asks.
pub const STREAMS: u32 = 52;
/// Of these, connections to ports: whoever may reach a port keeps its owner from nothing.
pub const VISITORS: usize = 24;

/// When a sandbox is to end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EndOrder {
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

impl EndOrder {
    /// The state that it leads to.
    const fn state(self) -> LifeState {
        match self {
            Self::At(..) => LifeState::Running,
            Self::Pause => LifeState::Pausing,
            Self::Kill | Self::Unkept | Self::Stop | Self::Over => LifeState::Ending,
        }
    }

    /// Whether it may stand in the place of one that was given before: an end is not taken back, and no other one follows it. Pure.
    fn follows(self, before: Self) -> bool {
        match (before.state(), self.state()) {
            (LifeState::Running, LifeState::Running) => true,
            // Whichever life it is: they differ in ends of what never ran.
            (LifeState::Running, next) => may_follow(LifeState::Running, next, Life::First),
            _ => false,
        }
    }
}

/// A sandbox that runs and is held by this process.
#[derive(Debug)]
pub struct LiveHandle {
    /// What is known of it, and does not change.
    pub facts: Arc<Facts>,
    /// The agent inside.
    pub agent: Agent,
    /// The key that its tokens were made for.
    pub(crate) tokens_of: String,
    revocation: watch::Sender<bool>,
    /// Since its start.
    pub since: Stopwatch,
    /// What keeps its files, or why its class cannot.
    pub(crate) snapshotter: Result<LayerSnapshotter, NoSnapshotReason>,
    /// What its pause leaves of it.
    pub(crate) left: Mutex<Option<PauseLayer>>,
    /// Held while its files are read: it is not wiped meanwhile.
    pub(crate) keeping: tokio::sync::Mutex<()>,
    /// Its processes end for a pause, before the record says so.
    asleep: AtomicBool,
    /// The key that asked for it.
    pub(crate) key_id: String,
    /// Variables of the sandbox whose files it began with.
    inherited: BTreeMap<String, String>,
    /// What it was made of.
    template: ResolvedTemplate,
    /// What its tenant asked for.
    pub(crate) asked: LiveRequest,
    /// What it reaches, and how its commands find it.
    reach: Mutex<EffectiveNetwork>,
    /// What changes that.
    pub(crate) network: Network,
    /// One change of its end after the other, so that memory and record agree.
    pub(crate) turn: tokio::sync::Mutex<()>,
    order: watch::Sender<EndOrder>,
    streams: Arc<Semaphore>,
    visitors: Arc<Semaphore>,
}

/// A layer that stays when its sandbox is wiped.
#[derive(Debug, Clone)]
pub(crate) struct PauseLayer {
    pub layer: Arc<DetachedLayer>,
    /// Its memory, which is taken as long as the layer is.
    pub memory: Arc<LayerMemory>,
}

/// The network of a sandbox as it is in force.
#[derive(Debug, Clone)]
pub(crate) struct EffectiveNetwork {
    /// Names that it may reach.
    pub egress: Egress,
    /// Variables by which programs find them.
    pub env: BTreeMap<String, String>,
}

/// What a sandbox that is up is made of.
#[derive(Debug)]
pub(crate) struct SandboxParts {
    pub agent: Agent,
    pub reach: EffectiveNetwork,
    pub network: Network,
    pub tokens: Tokens,
    pub limits: Limits,
    pub snapshotter: Result<LayerSnapshotter, NoSnapshotReason>,
    pub went_on: bool,
}

impl LiveHandle {
    pub(crate) fn new(
        id: &LiveId,
        run: &RunId,
        PendingLaunch { tenant, key_id, request, template, inherited, files: _, tokens: _ }: PendingLaunch,
        SandboxParts { agent, reach, network, tokens, limits, snapshotter, went_on }: SandboxParts,
        left_ms: i64,
    ) -> (Arc<Self>, watch::Receiver<EndOrder>) {
        let (order, orders) = watch::channel(at(left_ms));
        let state = template.built.as_ref().map(|built| &built.state);
        let facts = Facts {
            id: id.clone(),
            tenant,
            run: run.clone(),
            token: tokens.envd,
            traffic: tokens.traffic,
            template: template.name.clone(),
            alias: template.built.as_ref().map_or(&template.name, |built| &built.name).clone(),
            limits,
            user: state.map_or(TemplateUser::User, |state| state.user),
            workdir: state.and_then(|state| state.workdir.clone()),
            went_on,
        };
        let held = Self {
            facts: Arc::new(facts),
            agent,
            tokens_of: tokens.key_id,
            revocation: watch::Sender::new(false),
            since: Stopwatch::start(),
            snapshotter,
            left: Mutex::default(),
            keeping: tokio::sync::Mutex::default(),
            asleep: AtomicBool::new(false),
            key_id,
            inherited,
            template,
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

    /// Names that it may reach.
    #[must_use]
    pub fn egress(&self) -> Egress {
        lock(&self.reach).egress.clone()
    }

    /// This is in force, and on record.
    pub(crate) fn reaches(&self, reach: EffectiveNetwork) {
        *lock(&self.reach) = reach;
    }

    /// What is to be asked for in its next life, and with its files.
    pub(crate) fn resume_spec(&self) -> ResumeSpec {
        let mut request = self.asked.clone();
        request.egress = self.egress();
        self.template.name.as_str().clone_into(&mut request.template);
        for (name, value) in &self.inherited {
            request.env.entry(name.clone()).or_insert_with(|| value.clone());
        }
        let (image, built) = (self.template.image.clone(), self.template.built.clone());
        ResumeSpec { request, image, tokens: None, memory: false, memory_last: false, built }
    }

    /// The same, with its tokens: for its own next life alone.
    pub(crate) fn itself(&self) -> ResumeSpec {
        let (traffic, key_id) = (self.facts.traffic.clone(), self.tokens_of.clone());
        let tokens = Tokens { envd: self.facts.token.clone(), traffic, key_id };
        ResumeSpec { tokens: Some(tokens), ..self.resume_spec() }
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

    /// What it was made of.
    pub(crate) fn resolved_template(&self) -> &ResolvedTemplate {
        &self.template
    }

    /// Whether the key that its tokens were made for is revoked: they open nothing any more.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        *self.revocation.borrow()
    }

    /// The key that its tokens were made for is revoked.
    pub(crate) fn revoke(&self) {
        self.revocation.send_replace(true);
    }

    /// Whether it is, from now on.
    pub(crate) fn revocation(&self) -> watch::Receiver<bool> {
        self.revocation.subscribe()
    }

    /// Orders its end. It is not taken back, and no other order follows.
    pub(crate) fn end(&self, how: EndOrder) {
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
            let is_due = matches!(order, EndOrder::At(since, after) if since.elapsed() >= *after);
            if is_due {
                *order = EndOrder::Over;
            }
            is_due
        });
    }

    /// What its pause leaves.
    pub(crate) fn leaves(&self) -> Option<PauseLayer> {
        lock(&self.left).clone()
    }

    /// A pause leaves this of it.
    pub(crate) fn leave(&self, left: PauseLayer) {
        *lock(&self.left) = Some(left);
    }

    /// Whether it is to live on.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        matches!(*self.order.borrow(), EndOrder::At(..))
    }

    /// `false`: it is ending already.
    pub(crate) fn ends_in(&self, ms: i64) -> bool {
        self.replace(at(ms))
    }

    /// Gives it another order, unless one of its end stands.
    fn replace(&self, next: EndOrder) -> bool {
        self.order.send_if_modified(|order| {
            let follows = next.follows(*order);
            if follows {
                *order = next;
            }
            follows
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

fn at(ms: i64) -> EndOrder {
    EndOrder::At(Stopwatch::start(), Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock only means that somebody panicked beside it; the map is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_follows_the_table_of_states_and_an_end_is_not_taken_back() {
        let goes_on = || at(1_000);
        let ends =
            [EndOrder::Pause, EndOrder::Kill, EndOrder::Unkept, EndOrder::Stop, EndOrder::Over];
        assert!(goes_on().follows(goes_on()));
        for end in ends {
            assert!(end.follows(goes_on()), "{end:?}");
            assert!(may_follow(LifeState::Running, end.state(), Life::Later), "{end:?}");
            for next in ends.into_iter().chain([goes_on()]) {
                assert!(!next.follows(end), "{next:?} after {end:?}");
            }
        }
    }
}
