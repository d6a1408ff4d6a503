//! The dependency cache of a worker's host, between disk and ledger.
//!
//! ```text
//! a task   own tenant? -> key -> row of that tenant? -> base on disk as on record? -> use on record -> hit
//!                      \             \______no______________/ -> alone? -> build -> promote (disk) -> row
//!                       \<---- when the one who builds has ended ----/no
//! maintenance, at start, after a promotion, when asked and now and then: rows and disk -> evictions
//! ```
//! The disk is truth for what is there, the table for who may have it: a base without a row is nobody's
//! and is taken away, a row without its base is a miss. The disk goes first on the way in, and first on
//! the way out, so that a row never promises what was not seen. **The tenant is the run's own, always**:
//! a request that names another is refused by the field, and the key begins with it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::error::error_chain;
use cofferdam_ledger::cache::{CacheLocation, EvictionReason};
use cofferdam_ledger::listen::{Wake, notified};
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{BaseLookup, BaseRequest, CacheBase, CacheError, Caches, Removal};

use crate::error::Result;
use crate::evict::{EvictBounds, evictions};
use crate::executor::Executor;
use crate::patience::patiently;

/// Maintenance looks this often without being asked: bases age by days.
const EVERY: Duration = Duration::from_secs(600);

/// Runs disk work beside the runtime's threads. A panic there is a fault like any other of the disk.
pub(crate) async fn on_disk<T: Send + 'static>(
    executor: &Executor,
    work: impl FnOnce(&Caches) -> Result<T, CacheError> + Send + 'static,
) -> Result<T, String> {
    let state_dir = executor.host.facts().state_dir.clone();
    let done = tokio::task::spawn_blocking(move || work(&Caches::open(&state_dir)?)).await;
    match done {
        Ok(done) => done.map_err(words),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) fn words(error: impl std::error::Error) -> String {
    error_chain(&error)
}

impl Executor {
    pub(crate) fn state_dir(&self) -> String {
        self.host.facts().state_dir.to_string_lossy().into_owned()
    }
}

/// What the disk has of a base that is on record.
enum Look {
    There(Box<CacheBase>),
    Missing,
    /// Why, and whether it could be taken away.
    Damaged {
        why: String,
        removal: Removal,
    },
}

/// The base of a key, held, if this tenant has one on record and the disk has it as it is on record.
pub(crate) async fn lookup(
    executor: &Executor,
    task: &TaskContext,
    wanted: &BaseRequest,
) -> Result<Option<CacheBase>, String> {
    let ledger = &executor.flows.ledger;
    let state_dir = executor.state_dir();
    let place = CacheLocation { host_id: &executor.host_id, state_dir: &state_dir };
    let row = patiently(|| ledger.cache().find(&place, &task.tenant, &wanted.key)).await;
    let key = wanted.key.clone();
    let Some(row) = row.map_err(words)? else {
        // Given up, or no row's; either is in the way of what this task's build leaves.
        let removed = on_disk(executor, move |caches| caches.remove(&key)).await?;
        let asked = patiently(|| ledger.cache().doomed_gone(&place, &wanted.key));
        let was_asked = removed != Removal::InUse && asked.await.map_err(words)?;
        if removed == Removal::Removed && !was_asked {
            tracing::warn!(key = %wanted.key, "a base that no row vouches for was taken away");
        }
        return Ok(None);
    };
    let digest = row.digest.clone();
    let looked = on_disk(executor, move |caches| {
        Ok(match caches.find(&key, &digest)? {
            BaseLookup::Base(base) => Look::There(base),
            BaseLookup::Damaged(why) => Look::Damaged { removal: caches.remove(&key)?, why },
            _ => Look::Missing,
        })
    });
    match looked.await? {
        Look::There(base) => {
            let used =
                patiently(|| ledger.cache().record_use(row.entry_id, &task.key, task.execution_no));
            Ok(used.await.map_err(words)?.then_some(*base))
        }
        Look::Missing => {
            let gone =
                patiently(|| ledger.cache().evicted(row.entry_id, EvictionReason::Missing)).await;
            gone.map_err(words).map(|()| None)
        }
        Look::Damaged { why, removal } => {
            tracing::warn!(key = %wanted.key, why, "a damaged base of the dependency cache is not used");
            if removal != Removal::InUse {
                let gone =
                    patiently(|| ledger.cache().evicted(row.entry_id, EvictionReason::Damaged));
                gone.await.map_err(words)?;
            }
            Ok(None)
        }
    }
}

/// Takes away, on this host, what the rows and the bounds say.
async fn sweep(executor: &Executor) -> Result<(), String> {
    let ledger = &executor.flows.ledger;
    let state_dir = executor.state_dir();
    let place = CacheLocation { host_id: &executor.host_id, state_dir: &state_dir };
    if !executor.host.facts().state_dir.join("cache").is_dir()
        && ledger.cache().rows(&place).await.map_err(words)?.is_empty()
    {
        return Ok(());
    }
    // Only what stands here now may go: a base that is made under its key later is another one.
    let before = on_disk(executor, |caches| {
        caches.sweep()?;
        caches.marks()
    });
    let before = before.await?;
    // Before the second look: a base that has its row by now was on the disk before.
    let rows = ledger.cache().rows(&place).await.map_err(words)?;
    let keys: BTreeSet<String> = on_disk(executor, Caches::marks).await?.into_keys().collect();
    for gone in evictions(&rows, &keys, EvictBounds::default()) {
        let key = gone.key.clone();
        if keys.contains(key.as_str()) {
            let Some(seen) = before.get(key.as_str()).copied() else { continue };
            let removed = on_disk(executor, move |caches| caches.remove_seen(&key, seen)).await?;
            if removed == Removal::InUse {
                continue;
            }
        }
        if let Some(entry) = gone.entry {
            ledger.cache().evicted(entry, gone.why).await.map_err(words)?;
        }
        tracing::info!(key = %gone.key, why = gone.why.as_str(), "a base of the dependency cache is gone");
    }
    Ok(())
}

/// Keeps the cache of this worker's state directory within its bounds, for as long as it lives.
pub(crate) async fn maintain(executor: Arc<Executor>) {
    let mut wakes = executor.flows.wakes.subscribe();
    loop {
        if let Err(why) = sweep(&executor).await {
            tracing::warn!(why, "the dependency cache could not be looked through");
        }
        tokio::select! {
            () = executor.promoted.notified() => {}
            () = notified(&mut wakes, |wake| matches!(wake, Wake::Cache(host) if *host == executor.host_id)) => {}
            () = clock::sleep(EVERY) => {}
        }
    }
}
