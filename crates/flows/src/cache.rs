//! The dependency cache of a worker's host, between disk and ledger.
//!
//! ```text
//! a task   own tenant? -> key -> row of that tenant? -> base on disk as on record? -> use on record -> hit
//!                      \             \______no______________/ -> alone? -> build -> promote (disk) -> row
//!                       \<---- when the one who builds has ended ----/no
//! a keeper, at start, after a promotion, when asked and now and then: rows and disk -> evictions
//! ```
//! The disk is truth for what is there, the table for who may have it: a base without a row is nobody's
//! and is taken away, a row without its base is a miss. The disk goes first on the way in, and first on
//! the way out, so that a row never promises what was not seen. **The tenant is the run's own, always**:
//! a request that names another is refused by the field, and the key begins with it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::cache::{CacheDoomed, CacheOutcome, CacheReport};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, TenantId};
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_ledger::LedgerError;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::cache::{CachePlace, Evicted, NewCacheEntry};
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::listen::{Wake, woken};
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{
    CacheBase, CacheError, CacheWanted, Caches, Flight, Found, Host, Input, Plan, Promotion,
    Removal, Sandbox,
};
use serde_json::json;
use tokio::sync::broadcast::Receiver;

use crate::Flows;
use crate::evict::{EvictBounds, evictions};
use crate::flight::{self, Ready};
use crate::patience::patiently;
use crate::task::Executor;

/// The keeper looks this often without being asked: bases age by days.
const EVERY: Duration = Duration::from_secs(600);

const FOREIGN: &str = "spec.cache.org: names another organisation than the run's own tenant";

/// What a task wants of the cache.
pub(crate) struct Deps {
    wanted: CacheWanted,
    /// Held while this task builds what others of this host wait for.
    flight: Option<Flight>,
    /// How long it took to look for them, and to wait for another's build.
    pub found_ms: u64,
    pub report: CacheReport,
}

/// Why a task has neither dependencies nor a way to build them.
pub(crate) enum Unprepared {
    /// A field that this host cannot enforce.
    Refused(String),
    /// It is not wanted any more.
    Canceled,
}

/// Runs disk work beside the runtime's threads. A panic there is a fault like any other of the disk.
pub(crate) async fn on_disk<T: Send + 'static>(
    executor: &Executor,
    work: impl FnOnce(&Caches) -> Result<T, CacheError> + Send + 'static,
) -> Result<T, String> {
    let state_dir = executor.host.facts().state_dir.clone();
    let done = tokio::task::spawn_blocking(move || work(&Caches::open(&state_dir)?)).await;
    match done {
        Ok(done) => done.map_err(|error| in_words(&error)),
        Err(error) => Err(error.to_string()),
    }
}

fn in_words(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

impl Executor {
    fn state_dir(&self) -> String {
        self.host.facts().state_dir.to_string_lossy().into_owned()
    }
}

/// What the task asks for and the base that it gets, both `None` where it asks for nothing. Waits while
/// another task of this host builds the same base.
pub(crate) async fn prepare(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
    (host, plan, inputs): (&Host, &Plan, &[Input]),
    wakes: &mut Receiver<Wake>,
) -> Result<(Option<Deps>, Option<CacheBase>), Unprepared> {
    let Some(asked) = request.spec.as_ref().and_then(|spec| spec.cache.as_ref()) else {
        return Ok((None, None));
    };
    if !is_own(asked.org.as_deref(), &task.tenant) {
        return Err(Unprepared::Refused(FOREIGN.to_owned()));
    }
    let looking = clock::Stopwatch::start();
    let wanted = host.cache_wanted(plan, inputs, &task.tenant).await;
    let wanted = wanted.map_err(|error| Unprepared::Refused(error.to_string()))?;
    let Some(wanted) = wanted else { return Ok((None, None)) };
    let (base, flight) = match flight::found_or_led(executor, task, &wanted, wakes).await {
        Ok(Ready::Found(base)) => (Some(*base), None),
        Ok(Ready::Led(flight)) => (None, flight),
        Ok(Ready::Canceled) => return Err(Unprepared::Canceled),
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

/// The base of a key, held, if this tenant has one on record and the disk has it as it is on record.
pub(crate) async fn lookup(
    executor: &Executor,
    task: &TaskContext,
    wanted: &CacheWanted,
) -> Result<Option<CacheBase>, String> {
    let ledger = &executor.flows.ledger;
    let state_dir = executor.state_dir();
    let place = CachePlace { host_id: &executor.host_id, state_dir: &state_dir };
    let words = |error: LedgerError| error.to_string();
    let row = patiently(|| ledger.cache_find(&place, &task.tenant, &wanted.key)).await;
    let key = wanted.key.clone();
    let Some(row) = row.map_err(words)? else {
        // Nobody's, and in the way of what this task's build leaves.
        let removed = on_disk(executor, move |caches| caches.remove(&key)).await?;
        if removed == Removal::Removed {
            tracing::warn!(key = %wanted.key, "a base that no row vouches for was taken away");
        }
        return Ok(None);
    };
    let digest = row.digest.clone();
    let found = on_disk(executor, move |caches| match caches.find(&key, &digest)? {
        Found::Damaged(why) => Ok(Err((why, caches.remove(&key)?))),
        found => Ok(Ok(found)),
    });
    match found.await? {
        Ok(Found::Base(base)) => {
            let used = patiently(|| ledger.cache_use(row.entry_id, &task.key, task.execution_no));
            Ok(used.await.map_err(words)?.then_some(*base))
        }
        Ok(_) => {
            let gone = patiently(|| ledger.cache_evicted(row.entry_id, Evicted::Missing)).await;
            gone.map_err(words).map(|()| None)
        }
        Err((why, removal)) => {
            tracing::warn!(key = %wanted.key, why, "a damaged base of the dependency cache is not used");
            if removal != Removal::InUse {
                let gone = patiently(|| ledger.cache_evicted(row.entry_id, Evicted::Damaged));
                gone.await.map_err(words)?;
            }
            Ok(None)
        }
    }
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
        let base = match promoted.map_err(|error| in_words(&error))? {
            Promotion::Kept(base) => base,
            Promotion::Late => {
                return Err("another task's build of the same key was kept first".to_owned());
            }
        };
        let place = CachePlace { host_id: &executor.host_id, state_dir: &state_dir };
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
        let row = patiently(|| executor.flows.ledger.cache_insert(&place, &new)).await;
        row.map_err(|error| error.to_string())?;
        self.settle(CacheOutcome::Kept, &base);
        executor.promoted.notify_one();
        Ok(())
    }
}

fn is_own(org: Option<&str>, tenant: &TenantId) -> bool {
    org.is_none_or(|org| org == tenant.as_str())
}

/// Refuses a recipe that names another tenant's cache: before anything is written.
pub(crate) fn own_caches(recipe: &Recipe, tenant: &TenantId) -> Result<(), Refusal> {
    for (index, task) in recipe.plan.tasks.iter().enumerate() {
        let Some((said, cache)) = task.said_cache() else { continue };
        let org = cache.org.as_deref();
        if !is_own(org, tenant) {
            let field = format!("plan.tasks[{index}].{said}.org");
            let why = format!("{field}: {org:?} is not the key's tenant");
            return Err(Refusal::new(ErrorCode::PolicyViolation, why).with(json!({"field": field})));
        }
    }
    Ok(())
}

/// Takes away, on this host, what the rows and the bounds say.
async fn sweep(executor: &Executor) -> Result<(), String> {
    let ledger = &executor.flows.ledger;
    let state_dir = executor.state_dir();
    let place = CachePlace { host_id: &executor.host_id, state_dir: &state_dir };
    let words = |error: LedgerError| error.to_string();
    // Before the disk: a base that has its row by now had its place before.
    let rows = ledger.cache_held(&place).await.map_err(words)?;
    if rows.is_empty() && !executor.host.facts().state_dir.join("cache").is_dir() {
        return Ok(());
    }
    let keys = on_disk(executor, |caches| {
        caches.sweep()?;
        caches.keys()
    });
    let keys: BTreeSet<String> = keys.await?.iter().map(ToString::to_string).collect();
    for gone in evictions(&rows, &keys, EvictBounds::default()) {
        let key = gone.key.clone();
        if on_disk(executor, move |caches| caches.remove(&key)).await? == Removal::InUse {
            continue;
        }
        if let Some(entry) = gone.entry {
            ledger.cache_evicted(entry, gone.why).await.map_err(words)?;
        }
        tracing::info!(key = %gone.key, why = gone.why.as_str(), "a base of the dependency cache is gone");
    }
    Ok(())
}

/// Keeps the cache of this worker's state directory within its bounds, for as long as it lives.
pub(crate) async fn keep_house(executor: Arc<Executor>) {
    let mut wakes = executor.flows.wakes.subscribe();
    loop {
        if let Err(why) = sweep(&executor).await {
            tracing::warn!(why, "the dependency cache could not be looked through");
        }
        tokio::select! {
            () = executor.promoted.notified() => {}
            () = woken(&mut wakes, |wake| matches!(wake, Wake::Cache(host) if *host == executor.host_id)) => {}
            () = clock::sleep(EVERY) => {}
        }
    }
}

impl Flows {
    /// Nobody gets this base of the tenant any more, and its hosts take it away.
    pub async fn cache_forget(
        &self,
        who: &Principal,
        key: &Digest,
    ) -> Result<CacheDoomed, LedgerError> {
        let audit = Audit::by(who, "cache.forget", key.as_str());
        let doomed = self.ledger.cache_doom(&who.tenant, Some(key), 0, &audit).await?;
        if doomed == 0 {
            return Err(Refusal::not_found("base of the dependency cache").into());
        }
        Ok(CacheDoomed { doomed })
    }

    /// The same for every base of the tenant that nobody had for so long.
    pub async fn cache_evict(
        &self,
        who: &Principal,
        older_than_s: i64,
    ) -> Result<CacheDoomed, LedgerError> {
        let idle_ms = older_than_s.saturating_mul(1_000);
        let which = format!("older than {older_than_s} s");
        let audit = Audit::by(who, "cache.evict", &which);
        let doomed = self.ledger.cache_doom(&who.tenant, None, idle_ms, &audit).await?;
        Ok(CacheDoomed { doomed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_that_names_another_tenants_cache_is_refused_by_the_field() {
        let yaml = "id: t\nv: \"1\"\nplan:\n  tasks:\n    - name: a\n      cache: {org: acme, repo: r, paths: [l]}\n      build: {run: b}\n      exec: {run: e}\n";
        let recipe = Recipe::from_yaml("t.yaml", yaml).unwrap();
        let tenant = |text| TenantId::parse(text).unwrap();
        assert!(own_caches(&recipe, &tenant("acme")).is_ok());
        let refusal = own_caches(&recipe, &tenant("zenith")).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::PolicyViolation);
        assert!(refusal.message.starts_with("plan.tasks[0].cache.org"), "{}", refusal.message);
        assert!(is_own(None, &tenant("acme")) && !is_own(Some("Acme"), &tenant("acme")));
    }
}
