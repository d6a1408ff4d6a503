//! Machines that wait for their sandbox: restored, and warmed up, before it is asked for.
//!
//! ```text
//! a sandbox begins --want--> quiet for 0.3 s -> stored? -> restored -> warmed up -> waits --take--> the next one
//!                                                                                     |
//!                                                          ended when nobody took it for a while
//! ```
//! One of a shape and two in all: what a person or an agent asks for now and then starts at once, and a
//! crowd is served by what is stored. **It is taken once**: what had a sandbox never comes back.

mod machine;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::id::SandboxId;
use tokio::sync::Notify;

use crate::host::task::blocking;
use crate::host::traces::Traces;
use crate::machine::{MachineKey, Pool};
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

pub(crate) use machine::WarmMachine;

/// Machines that wait at once, each with some 200 MB of its own.
const MAX_WAITING: usize = 2;
/// One that nobody took for so long is ended.
const IDLE_MS: u64 = 300_000;
/// Nothing is made while sandboxes begin: it would take their processors.
const QUIET_MS: u64 = 300;
/// One that could not be made is not tried again for so long.
const FAILED_MS: u64 = 600_000;

/// A worker's waiting machines.
#[derive(Debug)]
pub(crate) struct WarmPool {
    state: Mutex<WarmPoolState>,
    names: Names,
    idle_ms: u64,
    /// A promise was kept or broken.
    settled: Notify,
}

#[derive(Debug, Default)]
struct WarmPoolState {
    places: HashMap<MachineKey, WarmSlot>,
    /// Since a sandbox began.
    busy: Option<Stopwatch>,
    /// So that a slot is given up by the task that filled it alone.
    last: u64,
}

#[derive(Debug)]
enum WarmSlot {
    Promised,
    Waits { machine: Box<WarmMachine>, number: u64 },
    Failed(Stopwatch),
}

/// The names that machines have while they are nobody's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names(Arc<Mutex<NameTable>>);

#[derive(Debug, Default)]
struct NameTable {
    names: BTreeSet<SandboxId>,
    /// No more are given.
    closed: bool,
}

impl Names {
    fn lock(&self) -> MutexGuard<'_, NameTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for WarmPool {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            names: Names::default(),
            idle_ms: IDLE_MS,
            settled: Notify::new(),
        }
    }
}

impl WarmPool {
    /// One for this plan, if one waits. Whoever asks begins a sandbox.
    pub fn take(&self, plan: &Plan, facts: &HostFacts) -> Option<WarmMachine> {
        let key = Pool::key(plan, facts)?;
        let mut state = self.lock();
        state.busy = Some(Stopwatch::start());
        match state.places.remove(&key)? {
            WarmSlot::Waits { machine, .. } => Some(*machine),
            other => {
                state.places.insert(key, other);
                None
            }
        }
    }

    /// Has one made for the next sandbox like this plan's, where one profits from it.
    pub fn want(this: &Arc<Self>, pool: Arc<Pool>, plan: &Plan, facts: Arc<HostFacts>) {
        let Some(key) = Pool::key(plan, &facts) else { return };
        if !this.promise(&key) {
            return;
        }
        let (weak, plan) = (Arc::downgrade(this), plan.clone());
        tokio::spawn(async move {
            while let Some(left) = weak.upgrade().and_then(|this| this.lock().restless()) {
                clock::sleep(left).await;
            }
            let Some(number) = fill(&weak, pool, plan, facts, &key).await else { return };
            let Some(idle) = weak.upgrade().map(|this| this.idle_ms) else { return };
            clock::sleep(Duration::from_millis(idle)).await;
            if let Some(this) = weak.upgrade() {
                let given_up = this.lock().remove(&key, number);
                blocking(move || drop(given_up)).await;
            }
        });
    }

    /// The same, and waits until it was tried. Whether one waits now.
    pub async fn ready(
        this: &Arc<Self>,
        pool: Arc<Pool>,
        plan: &Plan,
        facts: Arc<HostFacts>,
    ) -> bool {
        let Some(key) = Pool::key(plan, &facts) else { return false };
        Self::want(this, pool, plan, facts);
        loop {
            // Before the look, so that nothing is missed between it and the wait.
            let settled = this.settled.notified();
            match this.lock().places.get(&key) {
                Some(WarmSlot::Promised) => {}
                Some(WarmSlot::Waits { .. }) => return true,
                Some(WarmSlot::Failed(_)) | None => return false,
            }
            settled.await;
        }
    }

    /// Whether this is the name of one that waits, and no orphan.
    pub fn has(&self, id: &SandboxId) -> bool {
        self.names.lock().names.contains(id)
    }

    /// Ends all of them for good, those that are being made too. Blocking, for milliseconds.
    pub fn close(&self, facts: &HostFacts) {
        self.names.lock().closed = true;
        let places = std::mem::take(&mut self.lock().places);
        self.settled.notify_waiters();
        drop(places);
        // What is left is being made, by a task that may not be run again.
        for id in &self.names.lock().names {
            facts.cgroups.destroy(&Traces::of(&facts.state_dir, &facts.live_dir, id));
        }
    }

    /// Whether the caller is to fill the slot of this key.
    fn promise(&self, key: &MachineKey) -> bool {
        let mut state = self.lock();
        state.places.retain(|_, place| match place {
            WarmSlot::Failed(since) => since.elapsed_ms() < FAILED_MS,
            _ => true,
        });
        let is_open = |place: &&WarmSlot| !matches!(place, WarmSlot::Failed(_));
        let open = state.places.values().filter(is_open).count();
        let is_free = !state.places.contains_key(key) && open < MAX_WAITING;
        if is_free {
            state.places.insert(key.clone(), WarmSlot::Promised);
        }
        is_free
    }

    fn lock(&self) -> MutexGuard<'_, WarmPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl WarmPool {
    /// One that gives up sooner.
    pub fn with_idle(idle_ms: u64) -> Arc<Self> {
        Arc::new(Self { idle_ms, ..Self::default() })
    }

    /// Names of those that wait or are being made.
    pub fn waiting(&self) -> Vec<SandboxId> {
        self.names.lock().names.iter().cloned().collect()
    }
}

impl WarmPoolState {
    /// How long nothing is made yet.
    fn restless(&self) -> Option<Duration> {
        let since = self.busy.as_ref().map_or(QUIET_MS, Stopwatch::elapsed_ms);
        let left = QUIET_MS.saturating_sub(since);
        (left > 0).then(|| Duration::from_millis(left))
    }

    fn remove(&mut self, key: &MachineKey, number: u64) -> Option<WarmSlot> {
        match self.places.get(key)? {
            WarmSlot::Waits { number: found, .. } if *found == number => self.places.remove(key),
            _ => None,
        }
    }
}

/// Fills a slot that was promised; its number, if there is a machine in it.
async fn fill(
    pool: &Weak<WarmPool>,
    stored: Arc<Pool>,
    plan: Plan,
    facts: Arc<HostFacts>,
    key: &MachineKey,
) -> Option<u64> {
    let names = pool.upgrade()?.names.clone();
    let made = make(names, stored, plan, facts).await;
    let this = pool.upgrade()?;
    let mut state = this.lock();
    let number = match made {
        // Closed meanwhile: the machine ends with this value.
        Ok(_) if !state.places.contains_key(key) => None,
        Ok(machine) => {
            state.last += 1;
            let number = state.last;
            let place = WarmSlot::Waits { machine: Box::new(machine), number };
            state.places.insert(key.clone(), place);
            Some(number)
        }
        Err(why) => {
            tracing::warn!(why, "no machine waits for its sandbox: the next one is restored");
            state.places.insert(key.clone(), WarmSlot::Failed(Stopwatch::start()));
            None
        }
    };
    drop(state);
    this.settled.notify_waiters();
    number
}

async fn make(
    names: Names,
    stored: Arc<Pool>,
    plan: Plan,
    facts: Arc<HostFacts>,
) -> Result<WarmMachine, String> {
    let (asked, at) = ((plan.clone(), Arc::clone(&facts)), Arc::clone(&stored));
    if !blocking(move || at.warm(&asked.0, &asked.1)).await {
        return Err("none is stored".to_owned());
    }
    let restoring = stored.take(&plan, &facts).ok_or("none is stored any more")?;
    WarmMachine::make(names, plan, facts, restoring).await
}
