//! Bindings of real directories: what a change, a set-back time, a race and a hostile tree come to.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::TenantId;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, mknodat, utimensat};
use tempfile::TempDir;

use super::allowance::DiskAllowance;
use super::entry::{FileKey, Time};
use super::fill::{SETTLE_MS, TreeDraft, TreeReader};
use super::index::{FileRecord, TreeIndex};
use super::store::MAX_READ_FIRST;
use super::walk::{MAX_NAME_BYTES, look, walk, walk_within};
use super::*;
use crate::host::hostpath::{AllowedPaths, HostHandle, HostPath, Links};

struct World {
    dir: TempDir,
    store: TreeStore,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("src/a/b")).unwrap();
        let store = TreeStore::of(&dir.path().join("state"));
        let world = Self { dir, store };
        world.write("one", "1");
        world.write("a/two", "22");
        world.write("a/b/three", "333");
        fs::set_permissions(world.at("one"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("../one", world.at("a/link")).unwrap();
        symlink("/etc", world.at("out")).unwrap();
        world
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join("src").join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).unwrap();
    }

    fn open(&self, path: &Path) -> HostHandle {
        let allowed = AllowedPaths::resolved(&[Path::new("/").to_owned()], Vec::new());
        allowed.open(&HostPath::said(path.to_str().unwrap()), Links::Beneath).unwrap()
    }

    fn share(&self) -> TreeShare {
        TreeShare::of(&self.store, &TenantId::parse("acme").unwrap(), u64::MAX)
    }

    fn bind(&self) -> BoundTree {
        self.store.bind(&self.open(&self.at("")), TreeBounds::default(), &self.share()).unwrap()
    }

    fn copy(&self, bound: &BoundTree, path: &str) -> PathBuf {
        let root = self.store.dir.join(bound.copy.as_str()).join("root");
        if path.is_empty() { root } else { root.join(path) }
    }

    /// The only copy, as a sweep finds it.
    fn stored(&self) -> StoredTree {
        let [stored]: [StoredTree; 1] = self.store.list().unwrap().try_into().unwrap();
        stored
    }

    /// What the index says of a file.
    fn known(&self, path: &str) -> FileRecord {
        let index = TreeIndex::read(&self.index());
        index.find(&look(&File::open(self.at(path)).unwrap()).unwrap().0).unwrap().clone()
    }

    fn index(&self) -> PathBuf {
        index::place(&self.store.dir.join("index"), &self.open(&self.at(""))).unwrap()
    }
}

#[test]
fn a_copy_shows_what_was_there_whatever_changes_since() {
    let world = World::new();
    let bound = world.bind();
    assert_eq!((bound.entries, bound.bytes), (8, 6));
    assert_eq!(world.bind(), bound, "the same again");
    let text = |bound: &BoundTree, path: &str| fs::read_to_string(world.copy(bound, path)).unwrap();
    assert_eq!(text(&bound, "a/b/three"), "333");
    let (copy, source) =
        (world.copy(&bound, "one").metadata().unwrap(), world.at("one").metadata().unwrap());
    assert_eq!((copy.mode(), copy.mtime_nsec()), (source.mode(), source.mtime_nsec()));
    assert_eq!(
        fs::read_link(world.copy(&bound, "out")).unwrap(),
        Path::new("/etc"),
        "never followed"
    );
    world.write("a/two", "xx");
    fs::remove_file(world.at("a/b/three")).unwrap();
    let next = world.bind();
    assert_ne!((&next.digest, &next.copy), (&bound.digest, &bound.copy));
    assert_eq!((text(&bound, "a/two"), text(&next, "a/two")), ("22".into(), "xx".into()));
    assert!(world.copy(&bound, "a/b/three").exists() && !world.copy(&next, "a/b/three").exists());
    let inode = |bound| world.copy(bound, "one").metadata().unwrap().ino();
    assert_eq!(inode(&bound), inode(&next), "what did not change is one file");
}

#[test]
fn times_move_the_copy_and_not_the_content() {
    let world = World::new();
    let bound = world.bind();
    set_modified(&world.at("one"), 1_000_000_000);
    let next = world.bind();
    assert_eq!(next.digest, bound.digest);
    assert_ne!(next.copy, bound.copy, "build tools decide by times");
    assert_eq!(world.copy(&next, "one").metadata().unwrap().mtime(), 1_000_000_000);
    fs::set_permissions(world.at("one"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_ne!(world.bind().digest, bound.digest, "permissions are content");
}

#[test]
fn a_time_that_is_set_back_hides_no_change() {
    let world = World::new();
    set_modified(&world.at("one"), 1_000_000_000);
    let bound = world.bind();
    // As if it had been read a minute later.
    let known = FileRecord { is_settled: true, ..world.known("one") };
    index::write(&world.index(), &bound.copy, [&known].into_iter()).unwrap();
    assert_eq!(world.bind(), bound);
    world.write("one", "2");
    set_modified(&world.at("one"), 1_000_000_000);
    let found = world.at("one").metadata().unwrap();
    assert_eq!((found.len(), found.mtime(), found.mtime_nsec()), (1, 1_000_000_000, 0));
    assert_ne!(world.bind().digest, bound.digest);
}

#[test]
fn a_change_in_the_same_tick_is_read() {
    let world = World::new();
    // With the same size, as fast as this process can: some share a tick of the file system's clock.
    for round in 0..200 {
        let text = format!("{round:03}");
        world.write("one", &text);
        let bound = world.bind();
        assert_eq!(fs::read_to_string(world.copy(&bound, "one")).unwrap(), text);
    }
}

#[test]
fn what_did_not_change_is_not_read_again() {
    let world = World::new();
    let bound = world.bind();
    let (at, file) = (world.index(), File::open(world.at("a/two")).unwrap());
    let mut known = FileRecord { is_settled: true, ..world.known("a/two") };
    known.sha256 = [7; 32];
    index::write(&at, &bound.copy, [&known].into_iter()).unwrap();
    assert_ne!(world.bind().digest, bound.digest, "what the index says is taken");
    index::write(&at, &bound.copy, [&known].into_iter()).unwrap();
    let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let accessed = Timespec { tv_sec: 5, tv_nsec: 0 };
    let times = Timestamps { last_access: accessed, last_modification: omit };
    rustix::fs::futimens(&file, &times).unwrap();
    assert_eq!(world.bind(), bound, "its ctime moved, so it is read");
    known = FileRecord { is_settled: false, sha256: [7; 32], ..world.known("a/two") };
    index::write(&at, &bound.copy, [&known].into_iter()).unwrap();
    assert_eq!(world.bind(), bound, "what was read soon after its change is read again");
    known.is_settled = true;
    index::write(&at, &bound.copy, [&known].into_iter()).unwrap();
    let mut bytes = fs::read(&at).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&at, bytes).unwrap();
    assert_eq!(world.bind(), bound, "a damaged index is none");
}

/// Maps the file that it is given and writes each byte that it reads into its first one.
const MAPPED: &str = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\n\
                      while (b:=sys.stdin.buffer.read(1)):\n m[0:1]=b\n print(flush=True)";

#[test]
fn what_a_program_writes_into_mapped_memory_is_read() {
    let world = World::new();
    let mut program = Command::new("python3")
        .args(["-c", MAPPED, world.at("one").to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut write = |byte: &[u8]| {
        program.stdin.as_ref().unwrap().write_all(byte).unwrap();
        said.next().unwrap().unwrap();
        // More than a tick of every clock.
        clock::sleep_blocking(Duration::from_millis(120));
        world.bind()
    };
    // The kernel moves the times for the first one alone, as long as it did not write the page back.
    let (first, second, third) = (write(b"a"), write(b"b"), write(b"c"));
    assert!(first.digest != second.digest && second.digest != third.digest);
    assert_eq!(fs::read(world.copy(&third, "one")).unwrap(), b"c");
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

#[test]
fn a_file_is_known_a_minute_after_its_change() {
    let world = World::new();
    let opened = world.open(&world.at(""));
    let reader = |is_local| TreeReader { source: &opened, is_local, left: AtomicU64::new(9) };
    let now = clock::host_ms();
    let key = |modified_ms: i64, changed_ms: i64| {
        let time = |ms: i64| Time { seconds: ms / 1_000, nanos: 0 };
        FileKey { modified: time(modified_ms), changed: time(changed_ms), ..FileKey::default() }
    };
    let (old, young) = (now - SETTLE_MS - 1_000, now - SETTLE_MS + 2_000);
    assert!(reader(true).is_past(&key(0, old), now));
    // Its mtime is set by programs.
    assert!(!reader(true).is_past(&key(0, young), now));
    assert!(!reader(true).is_past(&key(now + 1_000_000, old), now));
    assert!(!reader(false).is_past(&key(0, old), now));
}

#[test]
fn a_file_that_changes_between_the_listing_and_the_reading_is_what_was_read() {
    let world = World::new();
    let opened = world.open(&world.at(""));
    let entries = walk(&opened, TreeBounds::default()).unwrap();
    let listed = entries.iter().find(|entry| entry.path == b"one").unwrap();
    world.write("one", "later");
    fs::set_permissions(world.at("one"), fs::Permissions::from_mode(0o400)).unwrap();
    std::os::unix::fs::chown(world.at("one"), Some(7), Some(8)).unwrap();
    let root = world.dir.path().join("draft");
    let draft = TreeDraft::new(&root, true, DiskAllowance::below(world.dir.path(), 0)).unwrap();
    let reader = TreeReader { source: &opened, is_local: true, left: AtomicU64::new(9) };
    let read = reader.read(listed, Some(&draft), &mut [0; 16]).unwrap().unwrap();
    let file = File::open(world.at("one")).unwrap();
    assert_eq!((read.key, read.owner), look(&file).unwrap());
    let copy = root.join("one").metadata().unwrap();
    assert_eq!((copy.mode() & 0o777, copy.uid(), copy.gid()), (0o400, 7, 8));
    assert_eq!(fs::read_to_string(root.join("one")).unwrap(), "later");
}

#[test]
fn a_copy_ends_when_others_have_taken_the_room() {
    let world = World::new();
    let opened = world.open(&world.at(""));
    let entries = walk(&opened, TreeBounds::default()).unwrap();
    let listed = entries.iter().find(|entry| entry.path == b"one").unwrap();
    let full = DiskAllowance::below(world.dir.path(), u64::MAX);
    let draft = TreeDraft::new(&world.dir.path().join("draft"), true, full).unwrap();
    let reader = TreeReader { source: &opened, is_local: true, left: AtomicU64::new(9) };
    let read = reader.read(listed, Some(&draft), &mut [0; 16]);
    assert!(matches!(&read, Err(TreeError::Room { .. })), "{read:?}");
    assert!(!read.unwrap_err().is_permanent(), "there may be room a moment later");
}

#[test]
fn a_young_tree_is_read_and_not_copied_again() {
    let world = World::new();
    // More than is read at once of a tree of which nothing is known.
    File::create(world.at("large")).unwrap().set_len(MAX_READ_FIRST + 1).unwrap();
    let bound = world.bind();
    assert!(!world.known("large").is_settled);
    let changed = || {
        let found = world.store.dir.metadata().unwrap();
        (found.ctime(), found.ctime_nsec())
    };
    let before = changed();
    assert_eq!(world.bind(), bound);
    assert_eq!(changed(), before, "no draft was made");
}

#[test]
fn names_that_no_text_holds_are_bound_and_devices_are_left_out() {
    let world = World::new();
    let odd = OsStr::from_bytes(b"a\n\xff b");
    fs::write(world.at("").join(odd), "odd").unwrap();
    mknodat(CWD, world.at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    mknodat(
        CWD,
        world.at("null"),
        FileType::CharacterDevice,
        Mode::RWXU,
        rustix::fs::makedev(1, 3),
    )
    .unwrap();
    let bound = world.bind();
    assert_eq!(bound.entries, 9);
    let copy = world.copy(&bound, "");
    assert_eq!(fs::read(copy.join(odd)).unwrap(), b"odd");
    assert!(!copy.join("pipe").exists() && !copy.join("null").exists());
}

#[test]
fn a_tree_beyond_its_bounds_leaves_nothing() {
    let world = World::new();
    let opened = world.open(&world.at(""));
    let bind =
        |entries, bytes| world.store.bind(&opened, TreeBounds { entries, bytes }, &world.share());
    assert!(matches!(bind(7, 6), Err(TreeError::Entries(7))));
    assert!(matches!(bind(8, 5), Err(TreeError::Bytes(5))));
    assert!(world.store.list().unwrap().is_empty());
    // Paths: 3 + 1 + 5 + 6 + 3 + 9 + 3. Targets: 6 + 4.
    let names = |most| walk_within(&opened, TreeBounds::default(), most);
    assert!(matches!(names(39), Err(TreeError::Names(MAX_NAME_BYTES))));
    assert!(names(40).is_ok());
    assert!(bind(8, 6).is_ok());
    assert_eq!(world.store.list().unwrap().len(), 1);
}

#[test]
fn a_file_alone_and_a_deep_tree_are_bound() {
    let world = World::new();
    let file = world.open(&world.at("a/two"));
    let bound = world.store.bind(&file, TreeBounds::default(), &world.share()).unwrap();
    let copy = world.store.open(&bound.copy, &HostPath::said("/x")).unwrap();
    assert!(copy.is_file() && bound.entries == 1);
    assert_eq!(fs::read_to_string(world.copy(&bound, "")).unwrap(), "22");
    let mut deep = world.at("");
    for _ in 0..700 {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    assert_eq!(world.bind().entries, 708);
}

#[test]
fn after_another_boot_every_byte_of_a_copy_is_compared() {
    let world = World::new();
    let bound = world.bind();
    let said = HostPath::said("/x");
    let boot = world.store.dir.join(bound.copy.as_str()).join("boot");
    fs::write(&boot, "another").unwrap();
    assert!(world.store.open(&bound.copy, &said).is_ok());
    assert_ne!(fs::read_to_string(&boot).unwrap(), "another");
    fs::write(&boot, "another").unwrap();
    let copy = world.copy(&bound, "one");
    let before = copy.metadata().unwrap();
    fs::write(&copy, "0").unwrap();
    set_modified_ns(&copy, before.mtime(), before.mtime_nsec());
    let damaged = world.store.open(&bound.copy, &said);
    assert!(matches!(damaged, Err(TreeError::Damaged(_))), "{damaged:?}");
    assert_eq!(world.bind(), bound, "it is made again");
    assert_eq!(fs::read_to_string(&copy).unwrap(), "1");
}

#[test]
fn a_copy_that_is_removed_is_gone_and_is_made_again() {
    let world = World::new();
    let bound = world.bind();
    assert!(world.store.remove(&world.stored()).unwrap());
    let gone = world.store.open(&bound.copy, &HostPath::said("/x"));
    assert!(matches!(gone, Err(TreeError::Gone(_))));
    assert_eq!(world.bind(), bound);
    assert!(world.copy(&bound, "a/two").exists());
}

#[test]
fn a_copy_that_was_used_since_it_was_looked_at_stays() {
    let world = World::new();
    let bound = world.bind();
    let dir = world.store.dir.join(bound.copy.as_str());
    let (opened, bound_again) = (
        || drop(world.store.open(&bound.copy, &HostPath::said("/x")).unwrap()),
        || assert_eq!(world.bind(), bound),
    );
    // Another one makes the same copy, and is second.
    let made_again = || {
        fs::create_dir(world.store.dir.join(".draft")).unwrap();
        world.store.put(&world.store.dir.join(".draft"), &bound.copy).unwrap();
    };
    let uses: [&dyn Fn(); 3] = [&opened, &bound_again, &made_again];
    for used in uses {
        set_modified(&dir, 1_000_000_000);
        let looked_at = world.stored();
        used();
        assert!(!world.store.remove(&looked_at).unwrap());
        assert!(world.copy(&bound, "one").exists());
    }
    assert!(world.store.remove(&world.stored()).unwrap() && !dir.exists());
}

#[test]
fn a_draft_stays_while_it_is_filled_however_long_that_takes() {
    let world = World::new();
    world.bind();
    let draft = world.store.dir.join(".draft-1");
    fs::create_dir(&draft).unwrap();
    let filling = lock::of_draft(&draft).unwrap();
    set_modified(&draft, 1_000_000_000);
    world.store.list().unwrap();
    assert!(draft.exists());
    drop(filling);
    world.store.list().unwrap();
    assert!(!draft.exists(), "its process is gone");
}

fn set_modified(path: &Path, seconds: i64) {
    set_modified_ns(path, seconds, 0);
}

fn set_modified_ns(path: &Path, tv_sec: i64, tv_nsec: i64) {
    let time = Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}
