//! The store of bases on its own: promotion, damage, locks, and a worker that is killed half-way.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cofferdam_contracts::cache::key;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::TenantId;
use cofferdam_sandbox::{BaseLookup, BaseRequest, CacheBase, Caches, Promotion, Removal};
use tempfile::TempDir;

use crate::support::{removed, test_process};

const STATE: &str = "CACHE_STORE_TEST_STATE";

fn wanted(name: &str) -> BaseRequest {
    let (org, lock_hash) = (TenantId::parse("acme").unwrap(), digest_bytes(name.as_bytes()));
    BaseRequest {
        key: key(&org, "r", &lock_hash),
        org,
        repo: "r".into(),
        lock_hash,
        dirs: vec!["/deps".into()],
    }
}

/// A tree of so many files.
fn tree(at: &Path, files: usize) -> Vec<PathBuf> {
    fs::create_dir_all(at.join("sub")).unwrap();
    for n in 0..files {
        fs::write(at.join("sub").join(format!("f{n}")), format!("{n}").repeat(50)).unwrap();
    }
    vec![at.to_owned()]
}

struct Store {
    state: TempDir,
    caches: Caches,
    from: Vec<PathBuf>,
}

impl Store {
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let caches = Caches::open(state.path()).unwrap();
        let from = tree(&state.path().join("built"), 20);
        Self { state, caches, from }
    }

    fn kept(&self, name: &str) -> Box<CacheBase> {
        match self.caches.promote(&wanted(name), &self.from).unwrap() {
            Promotion::Kept(base) => base,
            Promotion::Late => panic!("nobody else promotes"),
        }
    }

    fn place(&self, base: &CacheBase) -> PathBuf {
        self.state.path().join("cache/bases").join(base.key().as_str())
    }

    fn drafts(&self) -> usize {
        fs::read_dir(self.state.path().join("cache/drafts")).unwrap().count()
    }

    fn damage(&self, base: &CacheBase) -> String {
        match self.caches.find(base.key(), base.digest()).unwrap() {
            BaseLookup::Damaged(why) => why,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn of_many_promotions_of_one_key_one_wins_and_the_base_is_whole() {
    let store = Store::new();
    let outcomes: Vec<Promotion> = std::thread::scope(|scope| {
        let promote = || store.caches.promote(&wanted("a"), &store.from).unwrap();
        let all: Vec<_> = (0..6).map(|_| scope.spawn(promote)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let kept: Vec<&CacheBase> = outcomes
        .iter()
        .filter_map(|outcome| match outcome {
            Promotion::Kept(base) => Some(base.as_ref()),
            Promotion::Late => None,
        })
        .collect();
    assert_eq!(kept.len(), 1);
    let found = store.caches.find(kept[0].key(), kept[0].digest()).unwrap();
    assert!(matches!(found, BaseLookup::Base(_)), "{found:?}");
    assert_eq!(store.drafts(), 0, "the others left nothing");
}

#[test]
fn a_damaged_base_is_no_base() {
    let store = Store::new();
    let base = store.kept("gone");
    fs::remove_file(store.place(&base).join("layer/0/sub/f1")).unwrap();
    assert!(store.damage(&base).contains("files"));
    let base = store.kept("longer");
    fs::write(store.place(&base).join("layer/0/sub/f1"), "another length").unwrap();
    assert!(store.damage(&base).contains("files"));
    let base = store.kept("more");
    fs::write(store.place(&base).join("layer/0/new"), "").unwrap();
    assert!(store.damage(&base).contains("files"));
    let base = store.kept("manifest");
    let manifest = store.place(&base).join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap().replace("\"r\"", "\"s\"");
    fs::write(&manifest, text).unwrap();
    assert!(store.damage(&base).contains("not the one on record"));
    fs::remove_file(&manifest).unwrap();
    assert!(store.damage(&base).contains("missing"));
    let base = store.kept("huge manifest");
    fs::File::create(store.place(&base).join("manifest.json")).unwrap().set_len(1 << 40).unwrap();
    assert!(store.damage(&base).contains("no manifest"));
}

#[test]
fn bytes_that_changed_in_secret_are_found_by_the_full_check_alone() {
    let store = Store::new();
    let base = store.kept("secret");
    assert!(matches!(store.caches.verify(base.key()).unwrap(), BaseLookup::Base(_)));
    let file = store.place(&base).join("layer/0/sub/f1");
    let before = fs::metadata(&file).unwrap();
    let bytes = vec![b'x'; usize::try_from(before.len()).unwrap()];
    fs::write(&file, bytes).unwrap();
    fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_modified(before.modified().unwrap())
        .unwrap();
    assert!(matches!(store.caches.find(base.key(), base.digest()).unwrap(), BaseLookup::Base(_)));
    let BaseLookup::Damaged(why) = store.caches.verify(base.key()).unwrap() else {
        panic!("found")
    };
    assert!(why.contains("bytes"), "{why}");
}

#[test]
fn a_base_keeps_the_times_of_its_files_and_goes_only_when_nobody_has_it() {
    let store = Store::new();
    let base = store.kept("held");
    let times = |path: PathBuf| {
        let found = fs::metadata(path).unwrap();
        (found.mtime(), found.mtime_nsec())
    };
    assert_eq!(
        times(store.place(&base).join("layer/0/sub/f3")),
        times(store.from[0].join("sub/f3")),
        "compiled Python would otherwise be compiled again"
    );
    let key = base.key().clone();
    let BaseLookup::Base(other) = store.caches.find(&key, base.digest()).unwrap() else { panic!() };
    assert_eq!(store.caches.remove(&key).unwrap(), Removal::InUse);
    drop(base);
    assert_eq!(store.caches.remove(&key).unwrap(), Removal::InUse);
    drop(other);
    assert_eq!(removed(&store.caches, &key), Removal::Removed);
    assert_eq!(store.caches.remove(&key).unwrap(), Removal::Absent);
    assert!(store.caches.keys().unwrap().is_empty());
    assert!(matches!(store.kept("held").as_ref(), base if *base.key() == key), "and comes again");
    let seen = store.caches.marks().unwrap()[key.as_str()];
    assert_eq!(removed(&store.caches, &key), Removal::Removed);
    drop(store.kept("held"));
    let stale = store.caches.remove_seen(&key, seen).unwrap();
    assert_eq!(stale, Removal::Absent, "what was made after it was seen is another");
    let seen = store.caches.marks().unwrap()[key.as_str()];
    assert_eq!(store.caches.remove_seen(&key, seen).unwrap(), Removal::Removed);
}

#[test]
fn devices_and_links_for_directories_are_not_followed() {
    let store = Store::new();
    let device = store.from[0].join("null");
    let made = Command::new("mknod").arg(&device).args(["c", "1", "3"]).status().unwrap();
    assert!(made.success(), "these tests need root");
    let error = store.caches.promote(&wanted("device"), &store.from).unwrap_err();
    assert!(error.to_string().contains("a device"), "{error}");
    let link = store.state.path().join("link");
    std::os::unix::fs::symlink("/etc", &link).unwrap();
    assert!(store.caches.promote(&wanted("link"), &[link]).is_err());
    assert!(store.caches.keys().unwrap().is_empty());
    assert_eq!(store.drafts(), 0);
}

#[test]
fn what_a_killed_worker_left_half_way_is_never_a_base_and_is_swept_away() {
    let store = Store::new();
    tree(&store.from[0], 4_000);
    let mut child = test_process("cache_store::promotes_until_it_is_killed")
        .env(STATE, store.state.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.drafts() == 0 {
        assert!(Instant::now() < deadline, "it never began");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Somebody who writes a draft keeps it, whoever sweeps.
    store.caches.sweep().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    for key in store.caches.keys().unwrap() {
        // It may have been faster than the signal, once: then all of it is there.
        assert!(matches!(store.caches.verify(&key).unwrap(), BaseLookup::Base(_)));
        store.caches.remove(&key).unwrap();
    }
    store.caches.sweep().unwrap();
    assert_eq!(store.drafts(), 0);
    let base = store.kept("killed");
    assert!(matches!(store.caches.verify(base.key()).unwrap(), BaseLookup::Base(_)));
}

/// Not a test: the worker of the test above.
#[test]
#[ignore = "it is killed by what_a_killed_worker_left_half_way_is_never_a_base_and_is_swept_away"]
fn promotes_until_it_is_killed() {
    let Some(state) = std::env::var_os(STATE) else { return };
    let caches = Caches::open(Path::new(&state)).unwrap();
    let _ = caches.promote(&wanted("killed"), &[Path::new(&state).join("built")]);
    std::thread::sleep(Duration::from_secs(60));
}
