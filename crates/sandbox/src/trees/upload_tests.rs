//! Manifests and files as clients send them, whole and hostile.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::{Digest, TenantId};
use cofferdam_contracts::tree_manifest::{self, ManifestEntry, ManifestKind};
use cofferdam_contracts::tree_upload::{FilePiece, UploadState};

use super::allowance::DIR_BYTES;
use super::bounds::TreeBounds;
use super::store::TreeStore;
use super::upload::{ManifestPiece, TreeUploads, UploadBounds, UploadError};
use crate::host::hostpath::HostPath;

const BOUNDS: UploadBounds =
    UploadBounds { tree: TreeBounds { entries: 10, bytes: 1_000 }, quota: 20_000 };

fn uploads(dir: &tempfile::TempDir, tenant: &str) -> TreeUploads {
    TreeUploads::of(dir.path(), &TenantId::parse(tenant).unwrap())
}

/// A file of a manifest.
struct NewFile<'a> {
    path: &'a str,
    mode: u32,
    bytes: &'a [u8],
}

fn file<'a>(path: &'a str, mode: u32, bytes: &'a [u8]) -> NewFile<'a> {
    NewFile { path, mode, bytes }
}

fn manifest(files: &[NewFile<'_>]) -> (Digest, Vec<u8>) {
    let mut text = tree_manifest::begin();
    let top = ManifestEntry { path: b"", mode: 0o755, kind: ManifestKind::Directory };
    tree_manifest::push(&mut text, &top);
    for NewFile { path, mode, bytes } in files {
        let size = u64::try_from(bytes.len()).unwrap();
        let kind = ManifestKind::File { size, sha256: digest_bytes(bytes) };
        let entry = ManifestEntry { path: path.as_bytes(), mode: *mode, kind };
        tree_manifest::push(&mut text, &entry);
    }
    (digest_bytes(&text), text)
}

fn piece(bytes: &[u8]) -> FilePiece<'_> {
    FilePiece { sha256: digest_bytes(bytes), from: 0, bytes }
}

fn send(to: &TreeUploads, tree: &Digest, text: &[u8]) -> Result<(), UploadError> {
    let half = text.len() / 2;
    let first = ManifestPiece { at: 0, bytes: &text[..half], is_last: false };
    to.take_manifest(tree, first, BOUNDS)?;
    let at = u64::try_from(half).unwrap();
    to.take_manifest(tree, ManifestPiece { at, bytes: &text[half..], is_last: true }, BOUNDS)
}

#[test]
fn a_directory_comes_in_pieces_and_is_bound_with_its_own_digest() {
    let dir = tempfile::tempdir().unwrap();
    let to = uploads(&dir, "acme");
    let (tree, text) =
        manifest(&[file("a\nb", 0o644, b"one"), file("run", 0o755, b"two-and-more")]);
    assert!(matches!(to.look(&tree), Err(UploadError::Unknown(_))));
    send(&to, &tree, &text).unwrap();
    let seen = to.look(&tree).unwrap();
    assert_eq!((seen.state, seen.lacking_files, seen.lacking_bytes), (UploadState::Files, 2, 15));
    assert!(matches!(to.bind(&tree, BOUNDS.tree), Err(UploadError::Lacking { files: 2, .. })));
    let long = FilePiece { bytes: b"two-", ..piece(b"two-and-more") };
    assert_eq!(to.take_files(&tree, &[piece(b"one"), long]).unwrap(), 1);
    // Another look, as of a client that was cut off.
    let seen = uploads(&dir, "acme").look(&tree).unwrap();
    assert_eq!((seen.gaps.len(), seen.gaps[0].from, seen.gaps[0].size), (1, 4, 12));
    let rest = FilePiece { sha256: digest_bytes(b"two-and-more"), from: 4, bytes: b"and-more" };
    assert_eq!(to.take_files(&tree, &[rest]).unwrap(), 1);
    assert_eq!(to.look(&tree).unwrap().state, UploadState::Whole);
    let bound = to.bind(&tree, BOUNDS.tree).unwrap();
    assert_eq!((bound.digest, bound.entries, bound.bytes), (tree, 3, 15));
    let at = |name: &str| dir.path().join(format!("trees/{}/root/{name}", bound.copy));
    assert_eq!(fs::read(at("a\nb")).unwrap(), b"one");
    assert_eq!(fs::metadata(at("run")).unwrap().permissions().mode() & 0o777, 0o755);
    let store = TreeStore::of(dir.path());
    assert!(store.open(&bound.copy, &HostPath::said("tree:x")).is_ok());
    assert_eq!(store.list().unwrap().len(), 1, "drafts are gone, and uploads are no copies");
    let used = to.usage().unwrap();
    // `run` has a copy with its mode.
    assert!(used.count == 1 && used.bytes >= 3 + 12 + 12, "{used:?}");
    assert_eq!(uploads(&dir, "other").usage().unwrap().bytes, 0);
    assert!(!uploads(&dir, "other").dir.exists(), "a look makes nothing");
}

#[test]
fn another_tenant_learns_nothing_of_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (uploads(&dir, "one"), uploads(&dir, "other"));
    let (tree, text) = manifest(&[file("a", 0o644, b"secret")]);
    send(&one, &tree, &text).unwrap();
    one.take_files(&tree, &[piece(b"secret")]).unwrap();
    assert!(matches!(other.look(&tree), Err(UploadError::Unknown(_))));
    assert!(matches!(other.bind(&tree, BOUNDS.tree), Err(UploadError::Unknown(_))));
    send(&other, &tree, &text).unwrap();
    assert_eq!(other.look(&tree).unwrap().lacking_files, 1, "it sends its own");
    // The tenant's own is not sent twice.
    let (next, text) = manifest(&[file("b", 0o644, b"secret"), file("c", 0o644, b"new")]);
    send(&one, &next, &text).unwrap();
    assert_eq!(one.look(&next).unwrap().lacking_files, 1);
}

#[test]
fn what_is_not_as_it_was_said_is_refused_and_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let to = uploads(&dir, "acme");
    let (tree, text) = manifest(&[file("a", 0o644, b"one")]);
    let late = ManifestPiece { at: 5, bytes: b"x", is_last: false };
    assert!(matches!(to.take_manifest(&tree, late, BOUNDS), Err(UploadError::Order(_))));
    assert!(matches!(send(&to, &digest_bytes(b"other"), &text), Err(UploadError::Other(_))));
    assert!(matches!(to.look(&digest_bytes(b"other")), Err(UploadError::Unknown(_))));
    send(&to, &tree, &text).unwrap();
    assert!(matches!(to.take_files(&tree, &[piece(b"two")]), Err(UploadError::Unnamed(_))));
    let one = digest_bytes(b"one");
    let wrong = FilePiece { sha256: one.clone(), from: 0, bytes: b"two" };
    assert!(matches!(to.take_files(&tree, &[wrong]), Err(UploadError::Other(_))));
    let long = FilePiece { sha256: one.clone(), from: 0, bytes: b"one-and" };
    assert!(matches!(to.take_files(&tree, &[long]), Err(UploadError::Unnamed(_))));
    let behind = FilePiece { sha256: one, from: 2, bytes: b"e" };
    assert!(matches!(to.take_files(&tree, &[behind]), Err(UploadError::Order(_))));
    assert_eq!(to.look(&tree).unwrap().gaps[0].from, 0, "nothing of it stays");
    let absolute = text.iter().copied().chain(*b"l 777 0 - 1 z 4 /etc\n").collect::<Vec<u8>>();
    let refused = send(&to, &digest_bytes(&absolute), &absolute);
    assert!(matches!(refused, Err(UploadError::Manifest(_))), "{refused:?}");
}

#[test]
fn a_file_that_was_damaged_since_it_came_is_found_and_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let to = uploads(&dir, "acme");
    let (tree, text) = manifest(&[file("a", 0o644, b"one"), file("b", 0o644, b"two")]);
    send(&to, &tree, &text).unwrap();
    to.take_files(&tree, &[piece(b"one"), piece(b"two")]).unwrap();
    fs::write(to.dir.join(digest_bytes(b"one").as_str()), b"ONE").unwrap();
    assert!(matches!(to.bind(&tree, BOUNDS.tree), Err(UploadError::Lacking { files: 1, .. })));
    assert_eq!(to.look(&tree).unwrap().lacking_files, 1);
    to.take_files(&tree, &[piece(b"one")]).unwrap();
    assert_eq!(to.bind(&tree, BOUNDS.tree).unwrap().digest, tree);
}

#[test]
fn bounds_hold_before_a_file_is_sent_and_what_is_idle_goes() {
    let dir = tempfile::tempdir().unwrap();
    let to = uploads(&dir, "acme");
    let many: Vec<String> = (0..10).map(|n| format!("f{n}")).collect();
    let many: Vec<NewFile<'_>> = many.iter().map(|n| file(n, 0o644, b"x")).collect();
    let (tree, text) = manifest(&many);
    let refused = send(&to, &tree, &text).unwrap_err().to_string();
    assert!(refused.contains("more entries"), "{refused}");
    let (first, text) = manifest(&[file("a", 0o644, &[1; 900])]);
    send(&to, &first, &text).unwrap();
    let tight = UploadBounds { quota: 10_000, ..BOUNDS };
    let (second, text) = manifest(&[file("a", 0o644, &[2; 900])]);
    let whole = ManifestPiece { at: 0, bytes: &text, is_last: true };
    let refused = to.take_manifest(&second, whole, tight);
    assert!(matches!(refused, Err(UploadError::Quota { .. })), "{refused:?}");
    to.take_manifest(&second, whole, BOUNDS).unwrap();
    to.take_files(&first, &[piece(&[1; 900])]).unwrap();
    to.sweep(Duration::from_secs(60), 0).unwrap();
    assert_eq!(to.look(&first).unwrap().state, UploadState::Whole, "it was just used");
    to.sweep(Duration::ZERO, 0).unwrap();
    assert!(matches!(to.look(&first), Err(UploadError::Unknown(_))));
    assert_eq!(fs::read_dir(&to.dir).unwrap().count(), 0);
    assert_eq!(TreeUploads::all_of(&TreeStore::of(dir.path())).unwrap().len(), 1);
    for n in 0..64_u32 {
        let bytes = n.to_be_bytes();
        let open = ManifestPiece { at: 0, bytes: b"c", is_last: false };
        to.take_manifest(&digest_bytes(&bytes), open, BOUNDS).unwrap();
    }
    let refused = to.take_manifest(&second, ManifestPiece { is_last: false, ..whole }, BOUNDS);
    assert!(matches!(refused, Err(UploadError::Open)), "{refused:?}");
}

#[test]
fn entries_with_other_permissions_share_a_copy_that_the_quota_counts() {
    let dir = tempfile::tempdir().unwrap();
    let to = uploads(&dir, "acme");
    let (tree, text) = manifest(&[file("a", 0o755, &[1; 300]), file("b", 0o755, &[1; 300])]);
    let whole = ManifestPiece { at: 0, bytes: &text, is_last: true };
    let all = u64::try_from(text.len()).unwrap() + 600 + DIR_BYTES;
    let refused = to.take_manifest(&tree, whole, UploadBounds { quota: all - 1, ..BOUNDS });
    assert!(matches!(refused, Err(UploadError::Quota { wanted, .. }) if wanted == all));
    to.take_manifest(&tree, whole, UploadBounds { quota: all, ..BOUNDS }).unwrap();
    to.take_files(&tree, &[piece(&[1; 300])]).unwrap();
    assert_eq!(to.look(&tree).unwrap().state, UploadState::Whole);
    let bound = to.bind(&tree, BOUNDS.tree).unwrap();
    let at = |name: &str| dir.path().join(format!("trees/{}/root/{name}", bound.copy));
    let [a, b] = ["a", "b"].map(|name| fs::metadata(at(name)).unwrap());
    assert_eq!((a.ino(), a.nlink(), a.permissions().mode() & 0o777), (b.ino(), 3, 0o755));
    to.sweep(Duration::from_secs(60), 32).unwrap();
    let stored = to.dir.join(format!("{}.755", digest_bytes(&[1; 300])));
    assert!(stored.is_file(), "its manifest names it");
    // A damaged copy is made anew of the file that came.
    fs::write(&stored, "damaged").unwrap();
    fs::remove_file(to.dir.join(format!("copy-{tree}"))).unwrap();
    assert!(matches!(to.bind(&tree, BOUNDS.tree), Err(UploadError::Io(_))));
    assert_eq!(to.bind(&tree, BOUNDS.tree).unwrap().digest, tree);
}

#[test]
fn what_a_copy_has_counts_for_the_quota_until_the_copy_goes() {
    let dir = tempfile::tempdir().unwrap();
    let (to, store) = (uploads(&dir, "acme"), TreeStore::of(dir.path()));
    let (tree, text) = manifest(&[file("a", 0o755, &[1; 300]), file("b", 0o644, &[2; 300])]);
    send(&to, &tree, &text).unwrap();
    to.take_files(&tree, &[piece(&[1; 300]), piece(&[2; 300])]).unwrap();
    let bound = to.bind(&tree, BOUNDS.tree).unwrap();
    to.sweep(Duration::ZERO, 0).unwrap();
    assert!(matches!(to.look(&tree), Err(UploadError::Unknown(_))), "its manifest is gone");
    let mut left: Vec<String> = to.names("").unwrap();
    left.sort();
    let [one, two] = [[1; 300], [2; 300]].map(|bytes| digest_bytes(&bytes));
    let mut wanted = vec![format!("copy-{tree}"), format!("{one}.755"), two.to_string()];
    wanted.sort();
    assert_eq!(left, wanted, "a run may still be given the copy");
    // 600 bytes of the copy, its directory, and a directory of what is sent now.
    let held: u64 = 600 + 2 * DIR_BYTES;
    let (next, text) = manifest(&[file("c", 0o644, &[3; 10])]);
    let whole = ManifestPiece { at: 0, bytes: &text, is_last: true };
    let refused = to.take_manifest(&next, whole, UploadBounds { quota: held, ..BOUNDS });
    assert!(matches!(refused, Err(UploadError::Quota { wanted, .. }) if wanted > held));
    // Sent again it lacks only what no copy has, and is the same copy.
    let (again, text) = manifest(&[file("a", 0o755, &[1; 300]), file("b", 0o644, &[2; 300])]);
    send(&to, &again, &text).unwrap();
    assert_eq!(to.look(&again).unwrap().lacking_bytes, 300);
    to.take_files(&again, &[piece(&[1; 300])]).unwrap();
    assert_eq!(to.bind(&again, BOUNDS.tree).unwrap(), bound);
    to.sweep(Duration::ZERO, 0).unwrap();
    let copy = store.list().unwrap().remove(0);
    assert!(store.remove(&copy).unwrap());
    to.sweep(Duration::ZERO, 0).unwrap();
    assert_eq!(to.names("").unwrap(), Vec::<String>::new());
}

#[test]
fn clients_and_sweeps_that_come_at_once_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let to = uploads(&dir, "acme");
    let files: Vec<(String, Vec<u8>)> =
        (0..9_u8).map(|n| (format!("f{n}"), vec![n; 100])).collect();
    let named: Vec<NewFile<'_>> =
        files.iter().map(|(name, bytes)| file(name, 0o600, bytes)).collect();
    let (tree, text) = manifest(&named);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // As other processes have it: a lock in memory would not hold them.
        let sweeper = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                uploads(&dir, "acme").sweep(Duration::from_secs(60), 32).unwrap();
            }
        });
        let clients = [(); 3].map(|()| {
            scope.spawn(|| {
                let to = uploads(&dir, "acme");
                send(&to, &tree, &text).unwrap();
                for (_, bytes) in &files {
                    let half = FilePiece { bytes: &bytes[..50], ..piece(bytes) };
                    to.take_files(&tree, &[half]).unwrap();
                    let rest = FilePiece { from: 50, bytes: &bytes[50..], ..piece(bytes) };
                    to.take_files(&tree, &[rest]).unwrap();
                }
                to.bind(&tree, BOUNDS.tree).unwrap()
            })
        });
        let bound = clients.map(std::thread::ScopedJoinHandle::join);
        is_over.store(true, Ordering::Relaxed);
        sweeper.join().unwrap();
        let bound = bound.map(Result::unwrap);
        assert!(bound.iter().all(|one| *one == bound[0] && one.digest == tree));
    });
    assert_eq!(to.look(&tree).unwrap().state, UploadState::Whole);
}
