//! Which sandboxes this process was asked for, makes and holds: one map, under one lock.
//!
//! ```text
//! expect: Requested --its task takes it--> Preparing --shown--> Running --hidden--> gone
//!             \-- nobody waits for it any more --> gone
//! ```
//! The states are those of [`cofferdam_contracts::life`], and no step is taken that its table does not have. What a running one is
//! ordered to is in its handle.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{ExecutorId, LiveId, SandboxId, TaskKey, TenantId};
use cofferdam_contracts::life::{Life, LifeState, may_follow};
use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_flows::{MemoryBudget, OwnTasks, Result, TaskReservation};
use cofferdam_ledger::live_start::{LifeRecord, NOT_PAUSED};
use cofferdam_ledger::{OpError, OpResult};
use cofferdam_sandbox::Host;
use tokio::sync::{Notify, watch};

use crate::early::{Provisioner, StartFiles};
use crate::handle::LiveHandle;
use crate::pending_launch::PendingLaunch;
use crate::refusal::{conflict, refuse, stops};

/// Creations of one tenant that wait at once. Each may hold a mebibyte of variables.
const MAX_ASKED: usize = 128;

/// What a resume for requests came to, once it is over.
pub(crate) type ResumeReceiver = watch::Receiver<Option<Result<Arc<LiveHandle>, Refusal>>>;

/// Sandboxes of this process.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    lives: Mutex<Lives>,
    rung: Notify,
    /// What makes them; set once its worker has looked at its host.
    maker: OnceLock<Provisioner>,
    /// What their tasks are of this process's worker.
    own: OnceLock<OwnTasks>,
}

#[derive(Debug, Default)]
struct Lives {
    all: HashMap<LiveId, Entry>,
    /// Tasks that have not taken the name of their sandbox, which is made early.
    by_task: HashMap<TaskKey, LiveId>,
    /// Keys that were revoked while this process ran: tokens made for them open nothing.
    revoked: BTreeSet<String>,
}

/// What this process knows of one sandbox.
#[derive(Debug, Default)]
struct Entry {
    /// Its life here; `None`: it has none, or another process's.
    life: Option<Current>,
    /// The resume that requests wait for.
    woken: Option<ResumeReceiver>,
    /// The name under which it was made early, for a while after its task has taken it.
    ahead: Option<SandboxId>,
}

/// A life, by the task that is to hold it.
#[derive(Debug)]
struct Current {
    task: TaskKey,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Requested(Box<PendingLaunch>),
    Preparing,
    Running(Arc<LiveHandle>),
}

impl Stage {
    const fn state(&self) -> LifeState {
        match self {
            Self::Requested(_) => LifeState::Requested,
            Self::Preparing => LifeState::Preparing,
            Self::Running(_) => LifeState::Running,
        }
    }
}

impl Entry {
    fn held(&self) -> Option<&Arc<LiveHandle>> {
        match &self.life {
            Some(Current { stage: Stage::Running(held), .. }) => Some(held),
            _ => None,
        }
    }

    /// The task of a life that is requested and not taken.
    fn requested(&self) -> Option<&TaskKey> {
        match &self.life {
            Some(Current { task, stage: Stage::Requested(_) }) => Some(task),
            _ => None,
        }
    }

    fn is_empty(&self) -> bool {
        self.life.is_none() && self.woken.is_none() && self.ahead.is_none()
    }
}

impl Lives {
    /// The life of this task takes its next step; what it was before. `None`: it has no such life, or no such step.
    fn step(&mut self, id: &LiveId, task: &TaskKey, next: Stage) -> Option<Stage> {
        let life = self.all.get_mut(id)?.life.as_mut().filter(|life| life.task == *task)?;
        // Whichever life it is: they differ in ends alone.
        may_follow(life.stage.state(), next.state(), Life::First)
            .then(|| std::mem::replace(&mut life.stage, next))
    }

    /// The life of this task is over here.
    fn end(&mut self, id: &LiveId, task: &TaskKey) -> Option<Stage> {
        let entry = self.all.get_mut(id)?;
        let life = entry.life.take_if(|life| life.task == *task)?;
        self.by_task.remove(task);
        self.forget_empty(id);
        Some(life.stage)
    }

    /// Takes a life that its task has not taken.
    fn withdraw(&mut self, id: &LiveId) -> Option<Stage> {
        let task = self.all.get(id)?.requested()?.clone();
        self.end(id, &task)
    }

    fn forget_empty(&mut self, id: &LiveId) {
        if self.all.get(id).is_some_and(Entry::is_empty) {
            self.all.remove(id);
        }
    }

    /// Forgets the names of those that are their task's, or wiped.
    fn forget_made(&mut self, on: &Host) {
        let names = on.names();
        self.all.retain(|_, entry| {
            entry.ahead.take_if(|name| !names.is_early(name) && !names.has_failed_early(name));
            !entry.is_empty()
        });
    }

    fn held(&self) -> impl Iterator<Item = &Arc<LiveHandle>> {
        self.all.values().filter_map(Entry::held)
    }
}

impl Registry {
    /// Its sandboxes are made on this host.
    pub(crate) fn made_on(&self, host: &Host, memory: &MemoryBudget) {
        // A second worker of one process is on the same host.
        let _ = self.maker.set(Provisioner::new(host, memory));
    }

    /// What makes them; `None`: no worker of this process makes any.
    pub(crate) fn maker(&self) -> Option<&Provisioner> {
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
    pub(crate) fn own_tasks(&self) -> Option<&OwnTasks> {
        self.own.get()
    }

    /// A reservation for a task that is about to be queued; `None`: it waits in its queue.
    pub(crate) fn place(&self, task: &TaskKey) -> Option<TaskReservation> {
        self.own.get()?.place(task)
    }

    /// Where they are made.
    pub(crate) fn host(&self) -> Option<&Host> {
        self.maker().map(|maker| &maker.host)
    }

    /// The worker of this process, under which a life that it is asked for is queued.
    ///
    /// # Errors
    /// There is none, or it stops: this process can hold no sandbox.
    pub(crate) fn executor(&self) -> Result<ExecutorId> {
        let Some(own) = self.own_tasks() else {
            return Err(Refusal::new(
                ErrorCode::WrongServer,
                "this server holds no sandboxes, for no worker runs in it: ask one that was started with `cofferdam up`",
            )
            .into());
        };
        own.executor().cloned().ok_or_else(stops)
    }

    /// Begins to make what is admitted, where that can be done before it is on record.
    pub(crate) fn make_early(
        &self,
        tenant: &TenantId,
        sandbox: &SandboxRequest,
        files: StartFiles,
    ) -> StartFiles {
        match self.maker() {
            Some(maker) => maker.begin(tenant, sandbox, files),
            None => files,
        }
    }

    /// What came of the record of what was begun: its task is started, where it is this worker's already.
    pub(crate) fn recorded(
        &self,
        tenant: &TenantId,
        place: Option<TaskReservation>,
        recorded: OpResult<LifeRecord>,
    ) -> Result<()> {
        match (recorded, place) {
            (Ok(recorded), Some(place)) if recorded.is_taken => place.start(),
            (Ok(_), Some(place)) => place.unused(),
            (Ok(_), None) => {}
            (Err(error), place) => {
                if let (Some(place), OpError::Refused(_)) = (place, &error) {
                    place.unused();
                }
                if let Some(maker) = self.maker() {
                    maker.refused(tenant);
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// A life is about to be recorded, and this process is to hold it: until it does, or what is given is dropped.
    ///
    /// # Errors
    /// It has a life here already, or too many of the tenant's wait.
    pub(crate) fn expect(
        self: &Arc<Self>,
        id: &LiveId,
        task: &TaskKey,
        one: PendingLaunch,
    ) -> Result<LaunchGuard> {
        let mut lives = self.lock();
        if let Some(host) = self.host() {
            lives.forget_made(host);
        }
        let asked = lives.all.values().filter_map(|entry| match &entry.life.as_ref()?.stage {
            Stage::Requested(other) => Some(&other.tenant),
            _ => None,
        });
        let waiting = asked.filter(|tenant| **tenant == one.tenant).count();
        let is_asked = match lives.all.get(id).and_then(|entry| entry.life.as_ref()) {
            None => false,
            Some(Current { stage: Stage::Requested(_), .. }) => true,
            Some(_) => return Err(conflict(NOT_PAUSED)),
        };
        if waiting >= MAX_ASKED || is_asked {
            return Err(refuse(
                ErrorCode::Unavailable,
                "the sandbox is being made already, or too many of this tenant wait for room; try again",
            ));
        }
        let entry = lives.all.entry(id.clone()).or_default();
        let ahead = one.files.ahead.as_ref().map(|ahead| ahead.plan().traces.id.clone());
        let is_ahead = ahead.is_some();
        entry.ahead = ahead.or(entry.ahead.take());
        entry.life = Some(Current { task: task.clone(), stage: Stage::Requested(Box::new(one)) });
        if is_ahead {
            lives.by_task.insert(task.clone(), id.clone());
        }
        Ok(LaunchGuard { of: Arc::clone(self), id: id.clone(), task: task.clone() })
    }

    /// Nobody waits for what was asked for any more.
    pub(crate) fn withdraw_all(&self) {
        let mut lives = self.lock();
        let all: Vec<LiveId> = lives.all.keys().cloned().collect();
        let withdrawn: Vec<Stage> = all.iter().filter_map(|id| lives.withdraw(id)).collect();
        drop(lives);
        drop(withdrawn);
    }

    /// Nobody waits for this one any more, if its task has not taken it.
    pub(crate) fn withdraw(&self, id: &LiveId) {
        let withdrawn = self.lock().withdraw(id);
        drop(withdrawn);
    }

    /// A task takes what was asked for: once. It has its life here until what is given is dropped.
    pub(crate) fn take(self: &Arc<Self>, id: &LiveId, task: &TaskKey) -> Option<TaskClaim> {
        match self.lock().step(id, task, Stage::Preparing)? {
            Stage::Requested(expected) => {
                let life = OwnLife { of: Arc::clone(self), id: id.clone(), task: task.clone() };
                Some(TaskClaim { expected: *expected, life })
            }
            _ => None,
        }
    }

    /// The name under which the sandbox of a task is made already: once, so that no second execution has it.
    pub(crate) fn take_name(&self, task: &TaskKey) -> Option<SandboxId> {
        let mut lives = self.lock();
        let id = lives.by_task.remove(task)?;
        lives.all.get(&id)?.ahead.clone()
    }

    /// The name under which a sandbox of this id was made early, for a while.
    pub(crate) fn early_name(&self, id: &LiveId) -> Option<SandboxId> {
        self.lock().all.get(id)?.ahead.clone()
    }

    /// Tokens of these keys open nothing from now on.
    pub(crate) fn revoke(&self, keys: impl IntoIterator<Item = String>) {
        let mut lives = self.lock();
        lives.revoked.extend(keys);
        for held in lives.held().filter(|held| lives.revoked.contains(&held.tokens_of)) {
            held.revoke();
        }
    }

    /// The keys whose tokens open something here.
    pub(crate) fn keys(&self) -> BTreeSet<String> {
        let lives = self.lock();
        let open = lives.held().filter(|held| !held.is_revoked());
        open.map(|held| held.tokens_of.clone()).collect()
    }

    pub(crate) fn find(&self, id: &LiveId) -> Option<Arc<LiveHandle>> {
        self.lock().all.get(id)?.held().cloned()
    }

    /// The resume of a sandbox that is under way for requests; with a sender, where the caller is the one to do it.
    pub(crate) fn waking(self: &Arc<Self>, id: &LiveId) -> (ResumeReceiver, Option<ResumeGuard>) {
        let mut lives = self.lock();
        let woken = &mut lives.all.entry(id.clone()).or_default().woken;
        if let Some(woken) = woken {
            return (woken.clone(), None);
        }
        let (told, receiver) = watch::channel(None);
        *woken = Some(receiver.clone());
        (receiver, Some(ResumeGuard { of: Arc::clone(self), id: id.clone(), told }))
    }

    /// Whether a resume for requests is under way.
    pub(crate) fn is_waking(&self, id: &LiveId) -> bool {
        self.lock().all.get(id).is_some_and(|entry| entry.woken.is_some())
    }

    pub(crate) fn all(&self) -> Vec<Arc<LiveHandle>> {
        self.lock().held().cloned().collect()
    }

    /// Resolves at the next one that is shown after this call.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> {
        // Enabled by its creation: `notify_waiters` wakes futures that exist, polled or not.
        self.rung.notified()
    }

    fn lock(&self) -> MutexGuard<'_, Lives> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sandbox is expected while this lives, unless its task has taken it by then.
#[derive(Debug)]
pub(crate) struct LaunchGuard {
    of: Arc<Registry>,
    id: LiveId,
    task: TaskKey,
}

impl Drop for LaunchGuard {
    fn drop(&mut self) {
        let mut lives = self.of.lock();
        let requested = lives.all.get(&self.id).and_then(Entry::requested);
        let is_own = requested == Some(&self.task);
        let one = if is_own { lives.withdraw(&self.id) } else { None };
        drop(lives);
        drop(one);
    }
}

/// What a task takes.
pub(crate) struct TaskClaim {
    /// What was asked for.
    pub expected: PendingLaunch,
    /// Its life here.
    pub life: OwnLife,
}

/// A life of this process, from its taking to its end.
pub(crate) struct OwnLife {
    of: Arc<Registry>,
    id: LiveId,
    task: TaskKey,
}

impl OwnLife {
    /// It is up: it is found from now on.
    pub(crate) fn show(&self, held: Arc<LiveHandle>) {
        let mut lives = self.of.lock();
        // In one turn with the look at revoked keys: one that is revoked right now finds it here or there.
        if lives.revoked.contains(&held.tokens_of) {
            held.revoke();
        }
        lives.step(&self.id, &self.task, Stage::Running(held));
        drop(lives);
        self.of.rung.notify_waiters();
    }
}

impl Drop for OwnLife {
    fn drop(&mut self) {
        let over = self.of.lock().end(&self.id, &self.task);
        drop(over);
    }
}

/// Requests wait for this resume while it lives.
#[derive(Debug)]
pub(crate) struct ResumeGuard {
    of: Arc<Registry>,
    id: LiveId,
    told: watch::Sender<Option<Result<Arc<LiveHandle>, Refusal>>>,
}

impl ResumeGuard {
    /// Tells all that wait.
    pub(crate) fn tell(self, outcome: Result<Arc<LiveHandle>, Refusal>) {
        self.told.send_replace(Some(outcome));
    }
}

impl Drop for ResumeGuard {
    fn drop(&mut self) {
        let mut lives = self.of.lock();
        if let Some(entry) = lives.all.get_mut(&self.id) {
            entry.woken = None;
        }
        lives.forget_empty(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cofferdam_contracts::id::TemplateName;
    use cofferdam_contracts::live::{BASE_TEMPLATE, LiveRequest};

    use super::*;
    use crate::template::resolved_template::ResolvedTemplate;

    fn id(n: usize) -> LiveId {
        LiveId::parse(&format!("{n:020}")).unwrap()
    }

    #[test]
    fn what_was_asked_for_is_forgotten_with_its_asker_and_bounded_for_each_tenant() {
        let registry = Arc::new(Registry::default());
        let (ann, bob) = (TenantId::parse("ann").unwrap(), TenantId::parse("bob").unwrap());
        let name = TemplateName::parse(BASE_TEMPLATE).unwrap();
        let task = TaskKey::parse(&"0".repeat(64)).unwrap();
        let expect = |n, tenant: &TenantId| {
            let one = PendingLaunch {
                tenant: tenant.clone(),
                key_id: "k".to_owned(),
                request: LiveRequest::of(BASE_TEMPLATE),
                template: ResolvedTemplate::of_host(&name, None),
                inherited: BTreeMap::new(),
                files: StartFiles::of(None, None),
                tokens: None,
            };
            registry.expect(&id(n), &task, one)
        };
        let asked: Vec<LaunchGuard> = (0..MAX_ASKED).map(|n| expect(n, &ann).unwrap()).collect();
        assert!(expect(MAX_ASKED, &ann).is_err());
        assert!(expect(MAX_ASKED, &bob).is_ok());
        let taken = registry.take(&id(0), &task).unwrap();
        assert!(registry.take(&id(0), &task).is_none() && expect(0, &ann).is_err());
        // Its asker is gone, and its task is not.
        drop(asked);
        assert_eq!(registry.lock().all.len(), 1);
        drop(taken);
        assert!(registry.lock().all.is_empty());
    }
}
