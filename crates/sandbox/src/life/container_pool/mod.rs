//! A container that waits for its sandbox: made before it is asked for, under the name that the next sandbox gets.
//!
//! ```text
//! two sandboxes of one shape in a row --expect--> quiet for 0.3 s -> made, its agent answers -> waits
//!   name --> its name is the next sandbox's --> take: the same shape, nothing of the host's is mounted --> its sandbox
//!       |                                  \--> anything else: it is wiped, and the sandbox is made as ever
//!       |  \--> no sandbox is made under the name: it waits again
//!       \--> nobody comes, or another is asked for five minutes: it is wiped
//! ```
//! **It is a sandbox from its first moment**: its directory, groups, ids, limits and runtime have the name that the
//! ledger will know, so a wipe, a reconciler or a look from outside finds it as any other. Of a request it holds the
//! shape alone, and **it is taken once**: no container had two tenants.

mod claim;
mod container;
mod fill;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ambient::{env, random};
use cofferdam_contracts::id::{IdError, SandboxId};
use tokio::sync::Notify;

use crate::class::input_mounts::ResolvedInputs;
use crate::host::traces::Traces;
use crate::life::bare_sandbox::BareSandbox;
use crate::life::intake::Intake;
use crate::life::wipe;
use crate::life::wipe::WipeTarget;
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

pub(crate) use claim::{Claim, EarlyMarks, abandoned, forget, is_held, sweep};
pub(crate) use container::tell;
use container::{ContainerShape, WaitingContainer};

/// One that nobody took for so long is wiped.
const IDLE_MS: u64 = 300_000;
/// Nothing is made while sandboxes begin: it would take their processors.
const QUIET_MS: u64 = 300;
/// After one that could not be made, none is made for so long.
const FAILED_MS: u64 = 600_000;
/// An operator's word that no container is to wait.
const OFF: &str = "COFFERDAM_NO_WAITING_CONTAINER";
/// Of the evidence of one that nobody took.
const REASON: &str = "never-taken";

/// Whether this worker has one wait.
pub(crate) fn is_on() -> bool {
    env::var(OFF).is_none_or(|said| said != "1")
}

/// Where a worker's waiting container stands: one at most.
#[derive(Debug)]
pub(crate) struct ContainerPool {
    state: Mutex<ContainerPoolState>,
    idle_ms: u64,
    /// A promise was kept or broken.
    settled: Notify,
    /// Of what is being made.
    intake: Intake,
}

#[derive(Debug, Default)]
struct ContainerPoolState {
    place: ContainerSlot,
    /// Of the last sandbox that was begun; `None` where none would fit.
    last: Option<ContainerShape>,
    /// Since a sandbox began.
    busy: Option<Stopwatch>,
    closed: bool,
}

#[derive(Debug, Default)]
enum ContainerSlot {
    #[default]
    Empty,
    Promised,
    Making(SandboxId),
    Waits(Box<WaitingContainer>),
    /// Its name is somebody's, who has not come yet.
    Named(Box<WaitingContainer>),
    /// It is on its way out of here.
    Leaving(SandboxId),
    Failed(Stopwatch),
}

/// Whose a container is that leaves its slot.
#[derive(Clone, Copy, PartialEq)]
enum ContainerOwner {
    Nobody,
    NameHolder,
    Either,
}

/// The name of a sandbox that is about to be made. Where a container waits under it that was not taken, it is
/// wiped with this value: no other sandbox is to have the name.
#[derive(Debug)]
pub struct Name {
    id: SandboxId,
    waits: Weak<ContainerPool>,
}

impl Name {
    /// The name that the next sandbox of this kind will have.
    #[must_use]
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Gives it back where nothing was recorded or made under it: the container waits for the next sandbox.
    pub fn give_back(mut self) {
        if let Some(waits) = std::mem::take(&mut self.waits).upgrade() {
            waits.lock().wait_again(&self.id);
        }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let Some(waits) = self.waits.upgrade() else { return };
        let Some(standing) = waits.lock().leave(&self.id, ContainerOwner::NameHolder) else {
            return;
        };
        let id = self.id.clone();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(async move { waits.end(standing, &id).await });
            }
            // It wipes what it holds when it is dropped.
            Err(_) => drop(standing),
        }
    }
}

impl Default for ContainerPool {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            idle_ms: IDLE_MS,
            settled: Notify::new(),
            intake: Intake::default(),
        }
    }
}

impl ContainerPool {
    /// The name of the next sandbox: that of the container that waits, if one does.
    pub fn name(this: &Arc<Self>) -> Result<Name, IdError> {
        if let Some(id) = this.lock().promise_name() {
            return Ok(Name { id, waits: Arc::downgrade(this) });
        }
        let id = SandboxId::parse(&format!("sb{}", random::secret_hex(10)))?;
        Ok(Name { id, waits: Weak::new() })
    }

    /// The container under this plan's name, where it fits what is asked for and lives; one that does not is wiped
    /// before this returns, so that the sandbox can be made under its name.
    pub async fn take(
        &self,
        plan: &Plan,
        resolved: &ResolvedInputs<'_>,
    ) -> Option<(BareSandbox, WipeTarget)> {
        let id = &plan.traces.id;
        let standing = self.lock().leave(id, ContainerOwner::NameHolder)?;
        let fits =
            resolved.is_bare() && ContainerShape::of(plan).as_ref() == Some(standing.shape());
        if fits && standing.answers().await {
            self.lock().left(id);
            return standing.give();
        }
        tracing::debug!(sandbox = %id, fits, "the container that waited is not what is asked for");
        self.end(standing, id).await;
        None
    }

    /// Whether one waits for the next sandbox.
    pub fn is_one_ready(&self) -> bool {
        matches!(self.lock().place, ContainerSlot::Waits(_))
    }

    /// Whether this is the name of one that waits, and no orphan.
    pub fn has(&self, id: &SandboxId) -> bool {
        self.lock().place.name() == Some(id)
    }

    /// Wipes the one with this name: nothing of it may be there.
    pub async fn dismiss(&self, id: &SandboxId) {
        self.dismiss_of(id, ContainerOwner::Either).await;
    }

    async fn dismiss_of(&self, id: &SandboxId, of: ContainerOwner) {
        let standing = self.lock().leave(id, of);
        if let Some(standing) = standing {
            self.end(standing, id).await;
        }
    }

    /// Wipes it for good, one in the making too. Blocking, for milliseconds.
    pub fn close(&self, facts: &HostFacts) {
        let place = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.place)
        };
        self.settled.notify_waiters();
        // What is being made is so by a task that may not be run again, and by a thread that goes on without it.
        self.intake.close();
        if let ContainerSlot::Making(id) | ContainerSlot::Leaving(id) = &place {
            let traces = Traces::of(&facts.state_dir, &facts.live_dir, id);
            container::tell(&wipe::destroy(facts, &WipeTarget::found(traces), REASON));
        }
        drop(place);
    }

    async fn end(&self, standing: Box<WaitingContainer>, id: &SandboxId) {
        standing.end().await;
        self.lock().left(id);
    }

    fn lock(&self) -> MutexGuard<'_, ContainerPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl ContainerPool {
    /// One that gives up sooner.
    pub fn with_idle(idle_ms: u64) -> Self {
        Self { idle_ms, ..Self::default() }
    }

    /// The name of the one that waits, is made or is named.
    pub fn standing(&self) -> Option<SandboxId> {
        self.lock().place.name().cloned()
    }

    /// As if the worker had ended: the kernel drops its locks.
    pub fn unlock_claim(&self) {
        if let ContainerSlot::Waits(standing) = &self.lock().place {
            standing._claim.unlock();
        }
    }
}

impl ContainerSlot {
    fn name(&self) -> Option<&SandboxId> {
        match self {
            Self::Making(id) | Self::Leaving(id) => Some(id),
            Self::Waits(standing) | Self::Named(standing) => Some(standing.id()),
            Self::Empty | Self::Promised | Self::Failed(_) => None,
        }
    }
}

impl ContainerPoolState {
    /// Whether the caller is to make one.
    fn promise(&mut self) -> bool {
        let is_open = match &self.place {
            ContainerSlot::Empty | ContainerSlot::Leaving(_) => true,
            ContainerSlot::Failed(since) => since.elapsed_ms() >= FAILED_MS,
            _ => false,
        };
        let is_promised = is_open && !self.closed && is_on();
        if is_promised {
            self.place = ContainerSlot::Promised;
        }
        is_promised
    }

    /// Gives the name of the one that waits to somebody.
    fn promise_name(&mut self) -> Option<SandboxId> {
        match std::mem::take(&mut self.place) {
            ContainerSlot::Waits(standing) => {
                let id = standing.id().clone();
                self.place = ContainerSlot::Named(standing);
                Some(id)
            }
            other => {
                self.place = other;
                None
            }
        }
    }

    /// Takes out the one with this name, where it is theirs.
    fn leave(&mut self, id: &SandboxId, of: ContainerOwner) -> Option<Box<WaitingContainer>> {
        match std::mem::take(&mut self.place) {
            ContainerSlot::Named(standing)
                if standing.id() == id && of != ContainerOwner::Nobody =>
            {
                self.place = ContainerSlot::Leaving(id.clone());
                Some(standing)
            }
            ContainerSlot::Waits(standing)
                if standing.id() == id && of != ContainerOwner::NameHolder =>
            {
                self.place = ContainerSlot::Leaving(id.clone());
                Some(standing)
            }
            other => {
                self.place = other;
                None
            }
        }
    }

    /// The one with this name waits again.
    fn wait_again(&mut self, id: &SandboxId) {
        self.place = match std::mem::take(&mut self.place) {
            ContainerSlot::Named(standing) if standing.id() == id => ContainerSlot::Waits(standing),
            other => other,
        };
    }

    fn left(&mut self, id: &SandboxId) {
        if matches!(&self.place, ContainerSlot::Leaving(found) if found == id) {
            self.place = ContainerSlot::Empty;
        }
    }

    /// How long nothing is made yet.
    fn restless(&self) -> Option<Duration> {
        let since = self.busy.as_ref().map_or(QUIET_MS, Stopwatch::elapsed_ms);
        let left = QUIET_MS.saturating_sub(since);
        (left > 0).then(|| Duration::from_millis(left))
    }
}
