//! What a task is given of paths that its intent bound, and the copies that no run needs any more.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_ledger::listen::{Wake, notified};
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_ledger::trees::{IntentTree, NewTaskTree};
use cofferdam_sandbox::{HostPath, OpenError, StoredTree, TreeError};

use crate::error::Error;
use crate::executor::Executor;
use crate::input_files::NoInput;
use crate::patience::patiently;
use crate::trees::{self, TreeHost};

/// A copy that no run needs is kept for a day: the next run of its directory copies only what changed.
const MAX_IDLE: Duration = Duration::from_secs(24 * 3_600);
/// What was bound a moment ago is on record a moment later.
const MIN_IDLE: Duration = Duration::from_secs(600);
/// Copies that are kept although no run needs them.
const MAX_KEPT: usize = 32;
/// Unneeded copies are looked for this often without being asked.
const EVERY: Duration = Duration::from_secs(600);

/// The copies that a task is given, by the path that its plan names. They are on record before its sandbox is made.
pub(crate) async fn given(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
) -> Result<BTreeMap<String, Digest>, NoInput> {
    let mut copies = BTreeMap::new();
    let wanted: BTreeMap<&str, &Digest> = request
        .files_in
        .iter()
        .filter_map(|file| {
            Some((file.uri.as_deref()?.strip_prefix("host://")?, file.tree.as_ref()?))
        })
        .collect();
    let ledger = &executor.flows.ledger;
    let passing = |e: Error| NoInput::Passing(error_chain(&e));
    // Its plan was compiled by a worker that gives no paths of a host.
    if let (Work::Sandbox(_), Some((_, source)), Some(_)) =
        (&task.work, trees::unbound(request), executor.flows.runs.trees.host())
        && patiently(|| ledger.trees().is_binding(&task.run)).await.map_err(passing)?
    {
        let why = format!("{source}: its content was not bound: start a new run");
        return Err(NoInput::Lasting(why));
    }
    if wanted.is_empty() {
        return Ok(copies);
    }
    let bound = patiently(|| ledger.trees().of_run(&task.run)).await.map_err(passing)?;
    let Some(host) = executor.flows.runs.trees.host() else {
        return Err(NoInput::Lasting("its host directories are on another host".to_owned()));
    };
    for (source, digest) in &wanted {
        let tree = bound.iter().find(|tree| tree.source == **source && tree.sha256 == **digest);
        let Some(tree) = tree else {
            let why = format!("{source}: the plan names a content that its intent did not bind");
            return Err(NoInput::Lasting(why));
        };
        if !tree.is_within(task.by_host_admin) {
            let refused = OpenError::Refused(HostPath::said(*source));
            return Err(NoInput::Lasting(refused.to_string()));
        }
        let copy = copy_of(host, task, tree).await?;
        copies.insert((*source).to_owned(), copy);
    }
    let given: Vec<NewTaskTree<'_>> = wanted
        .iter()
        .filter_map(|(source, sha256)| {
            let copy = copies.get(*source)?;
            Some(NewTaskTree { source, sha256, copy })
        })
        .collect();
    patiently(|| ledger.trees().given(&task.key, task.execution_no, &given))
        .await
        .map_err(passing)?;
    Ok(copies)
}

/// The copy of a bound path on this host, or why there is none.
async fn copy_of(
    host: &TreeHost,
    task: &TaskContext,
    tree: &IntentTree,
) -> Result<Digest, NoInput> {
    let why = match host.held(tree, &task.tenant, task.by_host_admin).await {
        Ok(copy) => return Ok(copy),
        Err(TreeError::Gone(_) | TreeError::Damaged(_)) => format!(
            "{}: the content that the run is bound to ({}) is not on this host, and the path has another one or none: start a new run",
            tree.source, tree.sha256
        ),
        Err(error) => {
            let why = format!("{}: {error}", tree.source);
            let is_lasting = error.is_permanent();
            return Err(if is_lasting { NoInput::Lasting(why) } else { NoInput::Passing(why) });
        }
    };
    // A worker of the host that bound it has it.
    let is_here = tree.host_id == host.host_id;
    Err(if is_here { NoInput::Lasting(why) } else { NoInput::Passing(why) })
}

/// Which copies go: those that no run needs, without a use for a day, or more than are kept. Pure.
fn unneeded(mut stored: Vec<StoredTree>, needed: &BTreeSet<Digest>) -> Vec<StoredTree> {
    stored.retain(|tree| !needed.contains(&tree.copy) && tree.idle >= MIN_IDLE);
    stored.sort_by_key(|tree| tree.idle);
    let gone = stored.into_iter().enumerate();
    gone.filter(|(place, tree)| *place >= MAX_KEPT || tree.idle >= MAX_IDLE)
        .map(|(_, tree)| tree)
        .collect()
}

async fn sweep(executor: &Executor) -> Result<(), String> {
    let Some(host) = executor.flows.runs.trees.host() else { return Ok(()) };
    // The disk first: what is bound after this is younger than what goes.
    let store = host.store.clone();
    let stored = on_disk(move || store.list()).await?;
    if stored.is_empty() {
        return Ok(());
    }
    let idle = stored.iter().filter(|tree| tree.idle >= MIN_IDLE);
    let idle: BTreeSet<Digest> = idle.map(|tree| tree.copy.clone()).collect();
    let needed = executor.flows.ledger.trees().needed(&idle).await;
    let needed = needed.map_err(|e| error_chain(&e))?;
    let gone = unneeded(stored.clone(), &needed);
    let mut kept: BTreeSet<Digest> = stored.into_iter().map(|tree| tree.copy).collect();
    let store = host.store.clone();
    on_disk(move || {
        for tree in gone {
            // What a run took meanwhile was used, so it stays.
            if store.remove(&tree)? {
                tracing::info!(copy = %tree.copy, "a copy that no run needs is gone");
                kept.remove(&tree.copy);
            }
        }
        store.remove_indexes(&kept, MAX_IDLE)
    })
    .await
}

/// Work on the disk, which leaves the runtime's own threads alone.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|e| e.to_string())?;
    done.map_err(|e| e.to_string())
}

/// Removes copies that no run needs, for as long as the worker lives.
pub(crate) async fn maintain(executor: Arc<Executor>) {
    let mut wakes = executor.flows.wakes.subscribe();
    loop {
        if let Err(why) = sweep(&executor).await {
            tracing::warn!(why, "the copies of host directories could not be looked through");
        }
        tokio::select! {
            () = notified(&mut wakes, |wake| matches!(wake, Wake::Cache(host) if *host == executor.host_id)) => {}
            () = clock::sleep(EVERY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::canonical::digest_bytes;

    use super::*;

    fn stored(name: u32, idle_s: u64) -> StoredTree {
        let copy = digest_bytes(&name.to_be_bytes());
        StoredTree { copy, idle: Duration::from_secs(idle_s), used_ns: 0 }
    }

    #[test]
    fn what_a_run_needs_stays_and_the_rest_goes_by_age_and_number() {
        let day = MAX_IDLE.as_secs();
        let (needed, old, fresh, new) =
            (stored(1, 9 * day), stored(2, day), stored(3, day - 1), stored(4, 0));
        let all = vec![needed.clone(), old.clone(), fresh, new];
        assert_eq!(unneeded(all, &BTreeSet::from([needed.copy])), [old]);
        let base = MIN_IDLE.as_secs();
        let many: Vec<StoredTree> = (0..40).map(|n| stored(n, base + u64::from(n))).collect();
        let gone = unneeded(many.clone(), &BTreeSet::new());
        assert_eq!(gone.len(), 8);
        assert!(gone.contains(&many[39]) && !gone.contains(&many[0]));
        let bound: Vec<StoredTree> = (0..40).map(|n| stored(n, 1)).collect();
        assert!(
            unneeded(bound, &BTreeSet::new()).is_empty(),
            "their runs are about to be on record"
        );
    }
}
