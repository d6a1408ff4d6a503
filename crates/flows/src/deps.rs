//! The cached dependencies of one task: found, or built and kept.

use std::ops::Deref;

use cofferdam_ambient::clock;
use cofferdam_contracts::cache::{CacheOutcome, CacheReport};
use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_ledger::cache::{CacheLocation, NewCacheEntry};
use cofferdam_ledger::listen::Wake;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{BaseRequest, CacheBase, Flight, Input, Promotion, Sandbox};
use tokio::sync::broadcast::Receiver;

use crate::cache::{on_disk, words};
use crate::decide::is_own_cache;
use crate::executor::Executor;
use crate::flight::{self, Ready};
use crate::host_plan::HostPlan;
use crate::patience::patiently;

const FOREIGN: &str = "spec.cache.org: names another organisation than the run's own tenant";

/// What a task wants of the cache.
#[derive(Debug)]
pub(crate) struct Deps {
    wanted: BaseRequest,
    /// Held while this task builds what others of this host wait for.
    flight: Option<Flight>,
    /// How long it took to look for them, and to wait for another's build.
    pub found_ms: u64,
    pub report: CacheReport,
}

/// Why a task has neither dependencies nor a way to build them.
pub(crate) enum DepsError {
    /// A field that this host cannot enforce.
    Refused(String),
    /// It is not wanted any more.
    Canceled,
}

/// What the task asks for and the base that it gets, both `None` where it asks for nothing. Waits while
/// another task of this host builds the same base; `inputs` are let go before that.
pub(crate) async fn prepare(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
    on: &HostPlan<'_>,
    inputs: impl Deref<Target = [Input]>,
    wakes: &mut Receiver<Wake>,
) -> Result<(Option<Deps>, Option<CacheBase>), DepsError> {
    let Some(asked) = request.spec.as_ref().and_then(|spec| spec.cache.as_ref()) else {
        return Ok((None, None));
    };
    if !is_own_cache(asked.org.as_deref(), &task.tenant) {
        return Err(DepsError::Refused(FOREIGN.to_owned()));
    }
    let looking = clock::Stopwatch::start();
    let wanted = on.host.base_request(&on.plan, &inputs, &task.tenant).await;
    // Another's build may take an hour: what the files hold of the worker's memory is not waited with.
    drop(inputs);
    let wanted = wanted.map_err(|error| DepsError::Refused(error.to_string()))?;
    let Some(wanted) = wanted else { return Ok((None, None)) };
    let (base, flight) = match flight::base_or_lead(executor, task, &wanted, wakes).await {
        Ok(Ready::Found(base)) => (Some(*base), None),
        Ok(Ready::Led(flight)) => (None, flight),
        Ok(Ready::Canceled) => return Err(DepsError::Canceled),
        Err(why) => {
            tracing::warn!(task = %task.key, why, "the dependency cache could not be asked");
            (None, None)
        }
    };
    let mut deps = Deps {
        report: CacheReport {
            outcome: CacheOutcome::Dropped,
            org: wanted.org.clone(),
            repo: wanted.repo.clone(),
            lock_hash: wanted.lock_hash.clone(),
            key: wanted.key.clone(),
            digest: None,
            bytes: 0,
            files: 0,
            why: Some("the build did not end well".to_owned()),
        },
        wanted,
        flight,
        found_ms: looking.elapsed_ms(),
    };
    if let Some(base) = &base {
        deps.settle(CacheOutcome::Hit, base);
    }
    Ok((Some(deps), base))
}

impl Deps {
    /// Whether the build phase has nothing to do.
    pub(crate) fn is_hit(&self) -> bool {
        self.report.outcome == CacheOutcome::Hit
    }

    fn settle(&mut self, outcome: CacheOutcome, base: &CacheBase) {
        self.report.outcome = outcome;
        self.report.digest = Some(base.digest().clone());
        self.report.bytes = base.bytes();
        self.report.files = base.entries();
        self.report.why = None;
    }

    /// After a build that ended well and before the task's own command: what it left is the base from
    /// now on. That it cannot be kept is said, and fails nothing: the task has what it needs.
    pub(crate) async fn keep(
        &mut self,
        executor: &Executor,
        task: &TaskContext,
        sandbox: &Sandbox,
    ) {
        match self.kept(executor, task, sandbox).await {
            Ok(()) => {}
            Err(why) => {
                tracing::info!(task = %task.key, why, "what a build left is not kept");
                self.report.why = Some(why);
            }
        }
    }

    /// Nobody waits for this task's build any more: it is over, whatever came of it.
    pub(crate) fn land(&mut self) {
        self.flight = None;
    }

    async fn kept(
        &mut self,
        executor: &Executor,
        task: &TaskContext,
        sandbox: &Sandbox,
    ) -> Result<(), String> {
        let state_dir = executor.state_dir();
        let caches = on_disk(executor, |caches| Ok(caches.clone())).await?;
        let promoted = sandbox.promote(&caches, &self.wanted).await;
        // Held until its row is written: a base without a row is nobody's.
        let base = match promoted.map_err(words)? {
            Promotion::Kept(base) => base,
            Promotion::Late => {
                return Err("another task's build of the same key was kept first".to_owned());
            }
        };
        let place = CacheLocation { host_id: &executor.host_id, state_dir: &state_dir };
        let new = NewCacheEntry {
            org: &self.wanted.org,
            repo: &self.wanted.repo,
            lock_hash: &self.wanted.lock_hash,
            key: base.key(),
            digest: base.digest(),
            bytes: base.bytes(),
            files: base.entries(),
            created_by: &task.key,
        };
        let row = patiently(|| executor.flows.ledger.cache().insert(&place, &new)).await;
        row.map_err(words)?;
        self.settle(CacheOutcome::Kept, &base);
        executor.promoted.notify_one();
        Ok(())
    }
}
