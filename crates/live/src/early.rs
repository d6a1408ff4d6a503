//! Sandboxes that are made while their life is being put on record: the commit, the queue, the claim and the task's beginning
//! take as long as the sandbox does.
//!
//! ```text
//! admitted --room at once, few at a time--> made under a name of its own --------\
//!    \--> life committed -> queued -> claimed -> task begun under that name ------> taken
//!           \-- not recorded, another worker's, not wanted, another plan now -----> wiped; a layer is its pause's again
//! ```
//! **Nothing of a tenant runs before the record**: such a sandbox has its files, its agent and no network. One whose processes
//! would go on with their memory is made when its task begins, as ever.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::id::{SandboxId, TenantId};
use cofferdam_contracts::sandbox::{ErrCode, SandboxRequest};
use cofferdam_flows::{Attempt, End, MemoryBudget, MemoryShare, ReadySandbox};
use cofferdam_sandbox::{EarlySandbox, Host, IdRanges, InitialFiles, has_swap};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::layer::loan::Loan;

/// After a record that was refused, none is made early for its tenant: each would be made and wiped for nothing.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// How long it is waited for the wipe of one that nobody took, with a look so often: the bound of a wipe.
const WIPED_WITHIN: Duration = Duration::from_secs(15);
const WIPE_LOOK: Duration = Duration::from_millis(5);

/// Layers that are retained at once: each keeps user ids of its host and descriptors of its worker.
const MOST_RESTS: usize = 256;
/// And not more than this part of the host's ranges of ids.
const RANGES: u32 = 16;

/// A sandbox that is made, and is not on record.
pub(crate) type EarlyLiveSandbox = EarlySandbox<EarlyResources>;

/// What an early sandbox holds until it is taken.
#[derive(Debug)]
pub(crate) struct EarlyResources {
    /// Its part of the worker's memory.
    pub memory: MemoryShare,
    /// The loan of its pause's layer, until it begins.
    pub loan: Option<Loan>,
    _turn: OwnedSemaphorePermit,
}

/// The files that a sandbox begins with, or the sandbox itself.
#[derive(Debug)]
pub(crate) struct StartFiles {
    pub filling: Option<InitialFiles>,
    /// The loan of the layer among them, until the sandbox begins.
    pub loan: Option<Loan>,
    /// Early sandbox, which took the files and the loan; `None`: it is made later.
    pub ahead: Option<EarlyLiveSandbox>,
}

impl StartFiles {
    pub(crate) const fn of(filling: Option<InitialFiles>, loan: Option<Loan>) -> Self {
        Self { filling, loan, ahead: None }
    }
}

/// What makes the sandboxes of this process.
#[derive(Debug)]
pub(crate) struct Provisioner {
    pub host: Host,
    memory: MemoryBudget,
    /// More at once would have to share the processors.
    turns: Arc<Semaphore>,
    places: u32,
    /// Tenants whose last record was refused, and when.
    refused: Mutex<HashMap<TenantId, Stopwatch>>,
}

impl Provisioner {
    /// Memory for a layer that is retained, where there is enough; `None` also where the host could write it to a disk.
    pub(crate) fn rest(
        &self,
        tenant: &TenantId,
        bytes: u64,
    ) -> Option<(MemoryShare, watch::Receiver<()>)> {
        let needed_mb = u32::try_from(bytes.div_ceil(1024 * 1024)).ok()?;
        if has_swap() {
            return None;
        }
        let ranges = self.host.facts().ids.as_ref().map_or(u32::MAX, IdRanges::count);
        let most = usize::try_from(ranges / RANGES).unwrap_or(MOST_RESTS).min(MOST_RESTS);
        self.memory.reserve_idle(tenant, needed_mb, most)
    }

    /// What a tenant's sandbox waits for here.
    pub(crate) fn waits_for(&self, tenant: &TenantId) -> Option<String> {
        self.memory.waits_for(tenant).map(|why| why.to_string())
    }

    /// Whether a tenant's sandbox waits here for what only the end of long-lived sandboxes gives.
    pub(crate) fn is_held_by_lives(&self, tenant: &TenantId) -> bool {
        self.memory.is_held_by_lives(tenant)
    }

    pub(crate) fn new(host: &Host, memory: &MemoryBudget) -> Self {
        let places = std::thread::available_parallelism().map_or(1, NonZero::get);
        let turns = Arc::new(Semaphore::new(places));
        let places = u32::try_from(places).unwrap_or(1);
        Self {
            host: host.clone(),
            memory: memory.clone(),
            turns,
            places,
            refused: Mutex::default(),
        }
    }

    /// Begins to make one, where there is room at once and nothing of it would run; the files are as they were otherwise.
    pub(crate) fn begin(
        &self,
        tenant: &TenantId,
        request: &SandboxRequest,
        mut files: StartFiles,
    ) -> StartFiles {
        let wakes = files.filling.as_ref().is_some_and(InitialFiles::wakes);
        // A container that waits is faster still, and has no files.
        let waits = files.filling.is_none() && self.host.names().has_one_ready();
        if wakes || waits || self.is_refused(tenant) {
            return files;
        }
        let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() else { return files };
        let Ok(name) = self.host.names().reserve() else { return files };
        let Ok(plan) = self.host.plan(request, name.id()) else { return files };
        let needed_mb = self.memory.admit(plan.host_mem_mb()).ok();
        let Some(memory) = needed_mb.and_then(|mb| self.memory.take_now(tenant, mb)) else {
            return files;
        };
        let beside = EarlyResources { memory, loan: files.loan.take(), _turn: turn };
        files.ahead = Some(name.make(&self.host, plan, files.filling.take(), beside));
        files
    }

    /// The record of a sandbox of this tenant was refused.
    pub(crate) fn refused(&self, tenant: &TenantId) {
        let mut all = self.all_refused();
        all.retain(|_, since| since.elapsed() < REFUSED_FOR);
        all.insert(tenant.clone(), Stopwatch::start());
    }

    fn is_refused(&self, tenant: &TenantId) -> bool {
        self.all_refused().get(tenant).is_some_and(|since| since.elapsed() < REFUSED_FOR)
    }

    fn all_refused(&self) -> MutexGuard<'_, HashMap<TenantId, Stopwatch>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes no more, and waits until those that nobody took are wiped, no longer than this.
    pub(crate) async fn close(&self, patience: Duration) {
        let all = tokio::time::timeout(patience, self.turns.acquire_many(self.places)).await;
        self.turns.close();
        if all.is_err() {
            // A machine that boots: it ends with this process, and what lies on the host is looked for before that.
            self.host.names().abandon_early();
        }
    }
}

/// Waits for the wipe of one that was made early under this name and that nobody took. `false`: it is not wiped in time.
pub(crate) async fn unused_wiped(host: &Host, name: &SandboxId) -> bool {
    let since = Stopwatch::start();
    while host.names().is_early(name) && since.elapsed() < WIPED_WITHIN {
        clock::sleep(WIPE_LOOK).await;
    }
    !host.names().is_early(name)
}

/// Takes the sandbox of a task that was made early, and its pause's layer where it has that; or says how the task ends without
/// it.
pub(crate) async fn taken(
    attempt: &Attempt<'_>,
    request: &SandboxRequest,
    ahead: EarlyLiveSandbox,
) -> Result<(ReadySandbox, Option<Loan>), Box<End>> {
    let refused = match &attempt.task.over_quota {
        Some(why) => Some(why.clone()),
        None if ahead.plan().traces.id != *attempt.id => {
            Some("it was made under another name".to_owned())
        }
        None => None,
    };
    if let Some(why) = refused {
        ahead.end().await;
        let end = attempt.unmade(ErrCode::CmdNonzero, why).await;
        return Err(Box::new(end));
    }
    let on = match attempt.planned(request) {
        Ok(on) if on.plan == *ahead.plan() => on,
        other => {
            // Before anything says that nothing of it is there.
            ahead.end().await;
            let why = "what this host makes of it changed while it was made; try again".to_owned();
            return Err(match other {
                Ok(_) => Box::new(attempt.unmade(ErrCode::BootFail, why).await),
                Err(why) => attempt.unplanned(why).await,
            });
        }
    };
    let Some((made, beside)) = ahead.take().await else {
        let why = "what made it was lost".to_owned();
        return Err(Box::new(attempt.unmade(ErrCode::BootFail, why).await));
    };
    let up = attempt.begun(on, made, beside.memory)?;
    Ok((up, beside.loan))
}
