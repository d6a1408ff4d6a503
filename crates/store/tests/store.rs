//! Objects in and out of a real directory, and what becomes of them there.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on should say so and stop"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::object::ObjectFault;
use cofferdam_store::{
    ObjectDraft, ObjectHead, ObjectKey, ObjectReader, ObjectWriter, Store, StoreError,
};

const PIECE: usize = 256 * 1024;

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|n| u8::try_from((n * 7 + n / 251) % 256).unwrap()).collect()
}

async fn written(store: &Store, bytes: &[u8]) -> ObjectDraft {
    let mut writer = ObjectWriter::begin(store, &tenant("acme")).await.unwrap();
    for piece in bytes.chunks(100_000) {
        writer.write(piece).await.unwrap();
    }
    writer.finish().await.unwrap()
}

/// An object on record: its head and its key.
async fn kept(store: &Store, bytes: &[u8]) -> (ObjectHead, ObjectKey) {
    let staged = written(store, bytes).await;
    let head = ObjectHead {
        id: staged.id().clone(),
        tenant: staged.tenant().clone(),
        sha256: staged.sha256().unwrap().clone(),
        size: staged.size(),
    };
    let key = staged.key().clone();
    staged.record().await;
    (head, key)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

fn below(dir: &Path, part: &str) -> Vec<PathBuf> {
    files(&dir.join(part))
}

async fn read(store: &Store, head: &ObjectHead, key: &ObjectKey) -> Result<Vec<u8>, StoreError> {
    let mut stream = ObjectReader::open(store, head.clone(), key).await?.stream(0..head.size);
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await? {
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

#[tokio::test]
async fn an_object_comes_back_whole_and_by_any_range() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for size in [0, 1, PIECE - 1, PIECE, PIECE + 1, 4 * PIECE, 9 * PIECE + 77] {
        let content = bytes(size);
        let (head, key) = kept(&store, &content).await;
        assert_eq!(head.sha256, digest_bytes(&content), "{size}");
        assert_eq!(read(&store, &head, &key).await.unwrap(), content, "{size}");
        let reader = ObjectReader::open(&store, head.clone(), &key).await.unwrap();
        let far = u64::try_from(size).unwrap();
        for (from, to) in [(0, 1), (far / 2, far), (far.saturating_sub(1), far + 5), (far, far)] {
            let cut = |n: u64| usize::try_from(n.min(far)).unwrap();
            let part = reader.part(from..to).await.unwrap();
            assert_eq!(part, content[cut(from)..cut(to)], "{size}: {from}..{to}");
        }
        assert_eq!(reader.check().await.unwrap(), far);
    }
    let name = below(dir.path(), "kept").pop().unwrap();
    let name = name.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!((name.len(), name.as_bytes()[64]), (64 + 1 + 32, b'.'), "digest and id");
    assert!(below(dir.path(), "parts").is_empty());
}

#[tokio::test]
async fn plain_bytes_are_in_no_file_and_another_key_tenant_or_object_opens_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let (head, key) = kept(&store, &b"a secret word ".repeat(9_000)).await;
    for file in files(dir.path()) {
        let sealed = fs::read(&file).unwrap();
        assert!(!sealed.windows(8).any(|part| part == b"a secret"), "{file:?}");
    }
    let fault = |result: Result<Vec<u8>, StoreError>| result.unwrap_err().fault();
    let other = ObjectKey::new([1; 32]);
    assert_eq!(fault(read(&store, &head, &other).await), ObjectFault::Changed);
    let bravo = ObjectHead { tenant: tenant("bravo"), ..head.clone() };
    assert_eq!(fault(read(&store, &bravo, &key).await), ObjectFault::Changed);
    let (second, _) = kept(&store, &bytes(126_000)).await;
    let moved = ObjectHead { size: head.size, ..second };
    assert_eq!(fault(read(&store, &moved, &key).await), ObjectFault::Changed);
}

#[tokio::test]
async fn a_file_that_is_missing_cut_or_changed_is_named_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let content = bytes(3 * PIECE);
    let (head, key) = kept(&store, &content).await;
    let file = below(dir.path(), "kept").pop().unwrap();
    let whole = fs::read(&file).unwrap();
    let check = async || match ObjectReader::open(&store, head.clone(), &key).await {
        Ok(reader) => reader.check().await.map_err(|error| error.fault()),
        Err(error) => Err(error.fault()),
    };
    assert_eq!(check().await, Ok(head.size));
    for cut in [0, 8, whole.len() / 2, whole.len() - 1] {
        fs::write(&file, &whole[..cut]).unwrap();
        assert_eq!(check().await, Err(ObjectFault::Cut), "{cut}");
    }
    fs::write(&file, [whole.as_slice(), b"x"].concat()).unwrap();
    assert_eq!(check().await, Err(ObjectFault::Cut), "longer");
    for at in [8, PIECE, PIECE + 30, whole.len() / 2, whole.len() - 1] {
        let mut altered = whole.clone();
        altered[at] ^= 1;
        fs::write(&file, altered).unwrap();
        assert_eq!(check().await, Err(ObjectFault::Changed), "{at}");
    }
    // Two pieces change places.
    let framed = PIECE + 16;
    let moved = [
        &whole[..8],
        &whole[8 + framed..8 + 2 * framed],
        &whole[8..8 + framed],
        &whole[8 + 2 * framed..],
    ];
    fs::write(&file, moved.concat()).unwrap();
    assert_eq!(check().await, Err(ObjectFault::Changed));
    // It goes while it is read.
    fs::write(&file, &whole).unwrap();
    let reader = ObjectReader::open(&store, head.clone(), &key).await.unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(reader.part(0..1).await.unwrap_err().fault(), ObjectFault::Missing);
    assert_eq!(check().await, Err(ObjectFault::Missing));
}

#[tokio::test]
async fn a_reader_of_a_part_goes_on_once_that_has_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let content = bytes(9 * PIECE);
    let staged = written(&store, &content).await;
    let head = ObjectHead {
        id: staged.id().clone(),
        tenant: staged.tenant().clone(),
        sha256: staged.sha256().unwrap().clone(),
        size: staged.size(),
    };
    let reader = ObjectReader::open(&store, head, &staged.key().clone()).await.unwrap();
    assert_eq!(reader.part(0..5).await.unwrap(), content[..5]);
    staged.record().await;
    assert_eq!(below(dir.path(), "kept").len(), 1);
    assert_eq!(reader.part(0..5).await.unwrap(), content[..5]);
    assert_eq!(reader.clone().check().await.unwrap(), reader.head().size);
    fs::remove_file(below(dir.path(), "kept").pop().unwrap()).unwrap();
    assert_eq!(reader.part(0..5).await.unwrap_err().fault(), ObjectFault::Missing);
}

#[tokio::test]
async fn what_is_not_recorded_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut writer = ObjectWriter::begin(&store, &tenant("acme")).await.unwrap();
    writer.write(&bytes(5 * PIECE)).await.unwrap();
    assert_eq!(below(dir.path(), "parts").len(), 1);
    drop(writer);
    for _ in 0..200 {
        if below(dir.path(), "parts").is_empty() {
            break;
        }
        cofferdam_ambient::clock::sleep(Duration::from_millis(10)).await;
    }
    assert!(below(dir.path(), "parts").is_empty(), "dropped in the middle");
    let staged = written(&store, &bytes(PIECE)).await;
    assert_eq!(below(dir.path(), "parts").len(), 1);
    drop(staged);
    assert!(below(dir.path(), "parts").is_empty() && below(dir.path(), "kept").is_empty());
}

#[tokio::test]
async fn leftovers_of_a_dead_process_are_found_and_those_of_a_living_one_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let first = Store::open(dir.path()).unwrap();
    let (recorded, lost) = (written(&first, &bytes(10)).await, written(&first, &bytes(20)).await);
    let (kept_id, lost_id) = (recorded.id().clone(), lost.id().clone());
    let kept_digest = recorded.sha256().unwrap().clone();
    let key = recorded.key().clone();
    // What a killed process was writing.
    let part = dir.path().join("parts").join(format!("{kept_id}#1"));
    fs::write(&part, b"half").unwrap();
    let second = Store::open(dir.path()).unwrap();
    assert_eq!(first.name(), second.name());
    assert!(second.leftovers().unwrap().objects().is_empty(), "its process lives");
    recorded.leave();
    lost.leave();
    drop(first);
    let left = second.leftovers().unwrap();
    assert!(!part.exists(), "nobody goes on with it");
    assert_eq!(left.objects().len(), 2);
    assert!(Store::open(dir.path()).unwrap().leftovers().unwrap().objects().is_empty());
    second.keep(&kept_digest, &kept_id).await.unwrap();
    assert_eq!(left.remove_but(std::slice::from_ref(&kept_id)).unwrap(), 1);
    assert!(below(dir.path(), "parts").is_empty(), "{lost_id}");
    let head = ObjectHead { id: kept_id, tenant: tenant("acme"), sha256: kept_digest, size: 10 };
    assert_eq!(read(&second, &head, &key).await.unwrap(), bytes(10));
    assert!(second.leftovers().unwrap().objects().is_empty());
}

/// A file system of its own, unmounted with this.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn of(options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let args = ["-t", "tmpfs", "-o", options, "tmpfs"];
        assert!(Command::new("mount").args(args).arg(dir.path()).status().unwrap().success());
        Self(dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: the store may be open.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_reserve_of_bytes_and_of_entries_is_left_to_others() {
    let write = async |store: &Store, size: usize| {
        let mut writer = ObjectWriter::begin(store, &tenant("acme")).await?;
        writer.write(&bytes(size)).await?;
        writer.finish().await
    };
    let disk = Mounted::of("size=40m,mode=0700");
    let store = Store::open(&disk.0.path().join("objects")).unwrap();
    let (head, key) = kept(&store, &bytes(PIECE)).await;
    // 6 MiB are free, of which 4 are the reserve.
    fs::write(disk.0.path().join("database"), vec![0; (40 << 20) - (6 << 20) - PIECE]).unwrap();
    let refused = write(&store, 5 << 20).await.unwrap_err();
    assert_eq!(refused.fault(), ObjectFault::Full);
    // What was refused leaves its bytes once its file is closed, by a thread of its own.
    let mut written = write(&store, PIECE).await;
    for _ in 0..200 {
        if written.is_ok() {
            break;
        }
        cofferdam_ambient::clock::sleep(Duration::from_millis(10)).await;
        written = write(&store, PIECE).await;
    }
    drop(written.unwrap());
    assert_eq!(read(&store, &head, &key).await.unwrap(), bytes(PIECE), "reads go on");
    let disk = Mounted::of("size=40m,nr_inodes=100,mode=0700");
    let store = Store::open(&disk.0.path().join("objects")).unwrap();
    drop(write(&store, 9).await.unwrap());
    for n in 0..85 {
        fs::write(disk.0.path().join(n.to_string()), b"").unwrap();
    }
    assert_eq!(write(&store, 9).await.unwrap_err().fault(), ObjectFault::Full, "entries");
}

#[tokio::test]
async fn a_store_that_does_not_answer_in_time_is_slow() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::with_patience(dir.path(), Duration::from_secs(3)).unwrap();
    let (head, key) = kept(&store, &bytes(PIECE)).await;
    let reader = ObjectReader::open(&store, head, &key).await.unwrap();
    // Who opens a pipe waits until it has a writer.
    let file = below(dir.path(), "kept").pop().unwrap();
    fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    let slow = reader.part(0..1).await.err();
    // The thread that waits ends with the test.
    drop(fs::OpenOptions::new().write(true).open(&file).unwrap());
    let slow = slow.unwrap();
    assert_eq!(slow.fault(), ObjectFault::Slow);
    assert!(slow.fault().is_passing());
}
