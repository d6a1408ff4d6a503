//! Shares of tenants: what fits, what makes room, and what stays.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use cofferdam_ambient::clock;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::{Digest, TenantId};
use tempfile::TempDir;

use super::bounds::TreeBounds;
use super::error::TreeError;
use super::share::{OwnTree, TreeRelease, TreeShare};
use super::store::{BoundTree, TreeStore};
use crate::host::hostpath::{HostHandle, HostPath};

/// One copy fits, with one that has most files from it, and no second one.
const QUOTA: u64 = 150_000;
const FILES: u8 = 8;

struct World {
    dir: TempDir,
    store: TreeStore,
}

impl World {
    /// A directory of files of two blocks.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("src")).unwrap();
        let store = TreeStore::of(&dir.path().join("state"));
        let world = Self { dir, store };
        world.rewrite(0..FILES, 1);
        world
    }

    fn rewrite(&self, files: std::ops::Range<u8>, content: u8) {
        for file in files {
            let path = self.dir.path().join("src").join(file.to_string());
            fs::write(path, vec![content; 8_192]).unwrap();
        }
    }

    fn share(&self, tenant: &str, quota: u64) -> TreeShare {
        TreeShare::of(&self.store, &TenantId::parse(tenant).unwrap(), quota)
    }

    fn bind(&self, share: &TreeShare) -> Result<BoundTree, TreeError> {
        let path = self.dir.path().join("src");
        let opened = HostHandle::ours(&path, HostPath::said("src")).unwrap();
        self.store.bind(&opened, TreeBounds::default(), share)
    }

    fn has(&self, copy: &Digest) -> bool {
        self.store.dir.join(copy.as_str()).exists()
    }

    fn mark(&self, tenant: &str, copy: &Digest) -> PathBuf {
        let shares = self.store.dir.join("shares");
        shares.join(digest_bytes(tenant.as_bytes()).as_str()).join(copy.as_str())
    }
}

fn one(share: &TreeShare, copy: &Digest, is_own: bool) -> [TreeRelease; 1] {
    let found = share.list().unwrap().into_iter().find(|tree| tree.stored.copy == *copy);
    [TreeRelease { tree: found.unwrap(), is_own }]
}

fn copies(share: &TreeShare) -> usize {
    share.list().unwrap().len()
}

#[test]
fn a_copy_beyond_the_share_is_refused_and_files_in_common_count_once() {
    let world = World::new();
    let share = world.share("acme", QUOTA);
    let first = world.bind(&share).unwrap();
    world.rewrite(0..1, 2);
    let second = world.bind(&share).unwrap();
    assert_ne!(first.copy, second.copy, "both fit, as they have seven files in common");
    world.rewrite(0..FILES, 3);
    let full = world.bind(&share).unwrap_err();
    let TreeError::Share { new, held, quota: QUOTA } = &full else { panic!("{full}") };
    assert!(*new < QUOTA && *held < QUOTA && new + held > QUOTA, "{new} {held}");
    assert!(!full.is_permanent());
    let said = full.to_string();
    assert!(said.contains("quota.trees_mb"), "{said}");
    assert_eq!((copies(&share), world.store.list().unwrap().len()), (2, 2));
    let other = world.share("bravo", QUOTA);
    let bravos = world.bind(&other).unwrap();
    assert_eq!(copies(&other), 1, "each tenant has its own share");
    assert_eq!(world.bind(&world.share("bravo", 1)).unwrap(), bravos, "it is bravo's already");
    // A copy that is there for another tenant counts for each.
    assert!(matches!(world.bind(&world.share("small", 1)), Err(TreeError::Share { .. })));
    assert_eq!(world.bind(&world.share("large", QUOTA)).unwrap(), bravos);
}

#[test]
fn what_is_given_up_makes_room_for_the_next_copy() {
    let world = World::new();
    let share = world.share("acme", QUOTA);
    let first = world.bind(&share).unwrap();
    world.rewrite(0..FILES, 2);
    let Err(TreeError::Share { new, held, quota }) = world.bind(&share) else { panic!() };
    let wanted = new + held - quota;
    let order = one(&share, &first.copy, true);
    assert!(!share.release(&order, 10 * QUOTA).unwrap(), "nothing goes in vain");
    assert!(world.has(&first.copy));
    assert!(share.release(&order, wanted).unwrap());
    assert!(!world.has(&first.copy) && copies(&share) == 0);
    assert!(world.bind(&share).is_ok());
    assert!(!share.release(&order, 1).unwrap(), "it is gone already");
}

#[test]
fn what_was_used_since_and_what_another_tenant_needs_stays() {
    let world = World::new();
    let (acme, bravo) = (world.share("acme", QUOTA), world.share("bravo", QUOTA));
    let bound = world.bind(&acme).unwrap();
    let now = Duration::from_millis(u64::try_from(clock::host_ms()).unwrap());
    let day_ago = UNIX_EPOCH + now - Duration::from_secs(24 * 3_600);
    File::options()
        .write(true)
        .open(world.mark("acme", &bound.copy))
        .unwrap()
        .set_modified(day_ago)
        .unwrap();
    let order = one(&acme, &bound.copy, true);
    let OwnTree { idle, .. } = &order[0].tree;
    assert!(*idle >= Duration::from_secs(23 * 3_600));
    world.bind(&acme).unwrap();
    assert!(!acme.release(&order, 1).unwrap(), "bound since it was looked at");
    // A run of one that has no mark needs it.
    assert!(!acme.release(&one(&acme, &bound.copy, false), 1).unwrap());
    assert_eq!((copies(&acme), world.has(&bound.copy)), (1, true));
    world.bind(&bravo).unwrap();
    assert!(acme.release(&one(&acme, &bound.copy, true), 1).unwrap(), "it is bravo's alone now");
    assert_eq!((copies(&acme), copies(&bravo), world.has(&bound.copy)), (0, 1, true));
    assert!(bravo.release(&one(&bravo, &bound.copy, true), 1).unwrap());
    assert!(!world.has(&bound.copy));
}

#[test]
fn a_mark_without_its_copy_counts_nothing_and_goes() {
    let world = World::new();
    let share = world.share("acme", QUOTA);
    let bound = world.bind(&share).unwrap();
    assert!(world.store.remove(&world.store.list().unwrap()[0]).unwrap());
    assert_eq!(copies(&share), 0);
    let mark = world.mark("acme", &bound.copy);
    assert!(mark.exists());
    world.store.remove_marks().unwrap();
    assert!(!mark.exists());
    let kept = world.bind(&share).unwrap();
    world.store.remove_marks().unwrap();
    assert!(world.mark("acme", &kept.copy).exists());
    // A mark that was cut: its copy is looked at.
    fs::write(world.mark("acme", &kept.copy), "").unwrap();
    world.rewrite(0..1, 2);
    assert!(world.bind(&share).is_ok());
}
