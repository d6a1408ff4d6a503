//! Room for copies of host directories: the share of a tenant, and which of its copies go where it is full.
//!
//! ```text
//! bind --does not fit--> marks of the tenant --ledger: who needs them--> order --TreeShare::release--> bind again --> refused
//! ```
//! Those that no run needs go first, then those that are kept for retries of failed runs: such a retry is given the directory if it still
//! has the same content. **What a run needs that goes on stays, and so does what another tenant needs.**

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

use cofferdam_contracts::error::{ErrorCode, Refusal, error_chain};
use cofferdam_contracts::id::{Digest, TenantId};
use cofferdam_ledger::trees::{IntentTree, TreeNeed};
use cofferdam_sandbox::{
    HostHandle, HostPath, OwnTree, TreeError, TreeRelease, TreeShare, TreeStore,
};

use crate::disk_reads;
use crate::error::Result;
use crate::patience::patiently;
use crate::tree_sweep::{MIN_IDLE, on_disk};
use crate::trees::{PATIENCE, RunTrees, TENANTS, TreeHost, lost_thread, refusal};

impl RunTrees {
    /// What the tenant's copies may take of the host's disk.
    pub(crate) async fn share(&self, host: &TreeHost, tenant: &TenantId) -> Result<TreeShare> {
        let bounds = patiently(|| self.sent.bounds(tenant)).await?;
        Ok(TreeShare::of(&host.store, tenant, bounds.quota))
    }

    /// The copy of a bound path on this host, see [`TreeHost::held`]: one that has to be made is made within the tenant's share.
    pub(crate) async fn held(
        &self,
        host: &TreeHost,
        tree: &IntentTree,
        tenant: &TenantId,
        is_admin: bool,
    ) -> Result<Digest, TreeError> {
        match host.found(tree).await {
            Err(TreeError::Gone(_) | TreeError::Damaged(_)) => {}
            found => return found,
        }
        let share = self.share(host, tenant).await.map_err(|error| {
            tracing::warn!(error = error_chain(&error), "a tenant's quota could not be read");
            TreeError::of_thread("the quota of its tenant could not be read")
        })?;
        let held = || host.held(tree, tenant, is_admin, &share);
        self.within_share(&share, tenant, held).await
    }

    /// Work that may make a copy; once more where copies of the tenant went, since it did not fit.
    pub(crate) async fn within_share<T, Fut>(
        &self,
        share: &TreeShare,
        tenant: &TenantId,
        work: impl Fn() -> Fut,
    ) -> Result<T, TreeError>
    where
        Fut: Future<Output = Result<T, TreeError>>,
    {
        match work().await {
            Err(error) if self.has_made_room(share, tenant, &error).await => work().await,
            done => done,
        }
    }

    /// Opens that copy.
    pub(crate) async fn open(
        &self,
        host: &TreeHost,
        tree: &IntentTree,
        tenant: &TenantId,
        is_admin: bool,
    ) -> Result<HostHandle, TreeError> {
        let copy = self.held(host, tree, tenant, is_admin).await?;
        host.open(&copy, &tree.source).await
    }

    /// Marks copies as used: the first one of many may have been bound long before the last, and the run that needs them is on record a
    /// moment after this.
    pub(crate) async fn use_again(trees: &[IntentTree]) -> Result<(), Refusal> {
        let trees = trees.to_vec();
        let used = tokio::task::spawn_blocking(move || {
            trees.into_iter().try_for_each(|IntentTree { source, copy, state_dir, .. }| {
                let store = TreeStore::of(Path::new(&state_dir));
                let used = store.open(&copy, &HostPath::said(&source));
                used.map(drop).map_err(|error| refusal(&source, &error))
            })
        });
        used.await.unwrap_or_else(|lost| Err(Refusal::new(ErrorCode::Internal, lost.to_string())))
    }

    /// Whether copies of the tenant went for one that did not fit into its share.
    async fn has_made_room(&self, share: &TreeShare, tenant: &TenantId, error: &TreeError) -> bool {
        let TreeError::Share { new, held, quota } = error else { return false };
        if new > quota {
            return false;
        }
        let wanted = new.saturating_add(*held).saturating_sub(*quota);
        self.make_room(share, tenant, wanted).await.unwrap_or_else(|why| {
            tracing::warn!(%tenant, why, "no room could be made for a copy");
            false
        })
    }

    async fn make_room(
        &self,
        share: &TreeShare,
        tenant: &TenantId,
        wanted: u64,
    ) -> Result<bool, String> {
        let Some(own) = TENANTS.take(tenant, PATIENCE).await else { return Ok(false) };
        let listed = share.clone();
        // The disk first: what is bound after this is younger than what goes.
        let trees = disk_reads::read(on_disk(move || listed.list())).await?;
        let copies: Vec<&Digest> = trees.iter().map(|tree| &tree.stored.copy).collect();
        let needs = patiently(|| self.sent.ledger().trees().needs(tenant, &copies)).await;
        let order = releases(&trees, &needs.map_err(|error| error_chain(&error))?);
        let share = share.clone();
        let released = tokio::task::spawn_blocking(move || {
            let _own = own;
            share.release(&order, wanted)
        });
        let released =
            disk_reads::read(released).await.unwrap_or_else(|lost| Err(lost_thread(&lost)));
        released.map_err(|error| error.to_string())
    }
}

/// What a tenant gives up, in this order. Pure.
fn releases(trees: &[OwnTree], needs: &BTreeMap<Digest, TreeNeed>) -> Vec<TreeRelease> {
    let mut order: Vec<(bool, &OwnTree, bool)> = trees
        .iter()
        .filter(|tree| tree.idle >= MIN_IDLE)
        .filter_map(|tree| {
            let need = needs.get(&tree.stored.copy).copied().unwrap_or_default();
            // Another one may have bound it a moment ago.
            let is_own = !need.is_of_others && tree.stored.idle >= MIN_IDLE;
            (!need.is_of_now).then_some((need.is_of_retry, tree, is_own))
        })
        .collect();
    order.sort_by_key(|(is_of_retry, tree, _)| (*is_of_retry, Reverse(tree.idle)));
    order.into_iter().map(|(_, tree, is_own)| TreeRelease { tree: tree.clone(), is_own }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use cofferdam_ambient::clock;
    use cofferdam_contracts::canonical::digest_bytes;
    use cofferdam_sandbox::{AllowedPaths, Links, TreeBounds};

    use super::*;

    /// Copies of one file each, unused for so many hours.
    fn copies(dir: &Path, idle_hours: &[u64]) -> Vec<OwnTree> {
        let tenant = TenantId::parse("acme").unwrap();
        let store = TreeStore::of(dir);
        std::fs::create_dir_all(dir.join("trees")).unwrap();
        let share = TreeShare::of(&store, &tenant, u64::MAX);
        let allowed = AllowedPaths::resolved(&["/".into()], Vec::new());
        let shares = dir.join("trees/shares").join(digest_bytes(b"acme").as_str());
        let mut names = Vec::new();
        for hours in idle_hours {
            let file = dir.join("file");
            std::fs::write(&file, hours.to_string()).unwrap();
            let opened = allowed.open(&HostPath::said(file.to_str().unwrap()), Links::Beneath);
            let bound = store.bind(&opened.unwrap(), TreeBounds::default(), &share).unwrap();
            names.push(bound.copy);
        }
        // A binding uses the copy before it, too.
        let now = Duration::from_millis(u64::try_from(clock::host_ms()).unwrap());
        for (hours, copy) in idle_hours.iter().zip(&names) {
            let ago = UNIX_EPOCH + now - Duration::from_secs(hours * 3_600);
            for path in [shares.join(copy.as_str()), dir.join("trees").join(copy.as_str())] {
                std::fs::File::open(path).unwrap().set_modified(ago).unwrap();
            }
        }
        let mut trees = share.list().unwrap();
        trees.sort_by_key(|tree| names.iter().position(|name| *name == tree.stored.copy));
        trees
    }

    #[test]
    fn the_longest_unused_goes_first_then_what_is_kept_for_retries() {
        let dir = tempfile::tempdir().unwrap();
        let trees = copies(dir.path(), &[5, 9, 7, 8, 6, 0]);
        let need = |place: usize, need: TreeNeed| (trees[place].stored.copy.clone(), need);
        let needs = BTreeMap::from([
            need(0, TreeNeed { is_of_others: true, ..TreeNeed::default() }),
            need(1, TreeNeed { is_of_now: true, is_of_retry: true, is_of_others: false }),
            need(2, TreeNeed { is_of_retry: true, ..TreeNeed::default() }),
            need(3, TreeNeed { is_of_retry: true, ..TreeNeed::default() }),
        ]);
        let order = releases(&trees, &needs);
        let hours = order.iter().map(|release| release.tree.idle.as_secs() / 3_600);
        assert_eq!(hours.collect::<Vec<_>>(), [6, 5, 8, 7], "what was used just now stays");
        let own: Vec<bool> = order.iter().map(|release| release.is_own).collect();
        assert_eq!(own, [true, false, true, true], "what another tenant needs stays on the disk");
    }

    #[test]
    fn a_full_share_is_refused_with_the_limit_and_what_was_observed() {
        let full = TreeError::Share { new: 1024 * 1024, held: 5, quota: 1024 * 1024 };
        let refused = refusal("/src", &full);
        assert_eq!(refused.code, ErrorCode::QueuePolicyViolation);
        let details = refused.details.unwrap();
        assert_eq!(details, serde_json::json!({"metric": "trees_mb", "limit": 1, "observed": 2}));
        assert!(refused.message.contains("quota.trees_mb"), "{}", refused.message);
    }
}
