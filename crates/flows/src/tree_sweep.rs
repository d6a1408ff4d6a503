//! Copies of directories, and sent files, that no run needs any more.
//!
//! The process that executes looks through its state directory, and one that only serves through its own: what clients send lies there,
//! with the copies that runs were bound to.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::id::Digest;
use cofferdam_ledger::listen::{Wake, Wakes, notified};
use cofferdam_sandbox::{StoredTree, TreeStore};

use crate::host::host_id;
use crate::tree_uploads::Uploads;

/// A copy that no run needs is kept for a day: the next run of its directory copies only what changed.
const MAX_IDLE: Duration = Duration::from_secs(24 * 3_600);
/// What was bound a moment ago is on record a moment later.
pub(crate) const MIN_IDLE: Duration = Duration::from_secs(600);
/// Copies that are kept although no run needs them.
const MAX_KEPT: usize = 32;
/// Unneeded copies are looked for this often without being asked.
const EVERY: Duration = Duration::from_secs(600);

impl Uploads {
    /// Removes what no run needs from the state directory, for as long as the process lives. A worker does it itself.
    pub async fn maintain(self, wakes: Wakes) {
        let (mut wakes, own) = (wakes.subscribe(), host_id());
        loop {
            if let Err(why) = self.clean().await {
                tracing::warn!(why, "the copies of directories could not be looked through");
            }
            tokio::select! {
                () = notified(&mut wakes, |wake| matches!(wake, Wake::Cache(host) if *host == own)) => {}
                () = clock::sleep(EVERY) => {}
            }
        }
    }

    async fn clean(&self) -> Result<(), String> {
        let Some(dir) = self.state_dir() else { return Ok(()) };
        self.clean_copies(dir).await?;
        // Files that only a copy had go with it.
        self.sweep_all().await.map_err(|e| e.to_string())
    }

    async fn clean_copies(&self, dir: &Path) -> Result<(), String> {
        // The disk first: what is bound after this is younger than what goes.
        let store = TreeStore::of(dir);
        let listed = store.clone();
        let stored = on_disk(move || listed.list()).await?;
        if stored.is_empty() {
            return Ok(());
        }
        let idle = stored.iter().filter(|tree| tree.idle >= MIN_IDLE);
        let idle: BTreeSet<Digest> = idle.map(|tree| tree.copy.clone()).collect();
        let needed = self.ledger().trees().needed(&idle).await;
        let needed = needed.map_err(|e| error_chain(&e))?;
        let gone = unneeded(stored.clone(), &needed);
        let mut kept: BTreeSet<Digest> = stored.into_iter().map(|tree| tree.copy).collect();
        on_disk(move || {
            for tree in gone {
                // What a run took meanwhile was used, so it stays.
                if store.remove(&tree)? {
                    tracing::info!(copy = %tree.copy, "a copy that no run needs is gone");
                    kept.remove(&tree.copy);
                }
            }
            store.remove_marks()?;
            store.remove_indexes(&kept, MIN_IDLE)
        })
        .await
    }
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

/// Work on the disk, which leaves the runtime's own threads alone.
pub(crate) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|e| e.to_string())?;
    done.map_err(|e| e.to_string())
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
