use std::fs;
use std::io::Read as _;
use std::ops::ControlFlow;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::TempDir;

use super::*;

/// An allowed root with a file and a directory in it, a secret beside it, and a state directory.
struct World {
    root: TempDir,
    outside: TempDir,
    state: TempDir,
}

impl World {
    fn new() -> Self {
        let new = || tempfile::tempdir().unwrap();
        let world = Self { root: new(), outside: new(), state: new() };
        fs::create_dir(world.root.path().join("d")).unwrap();
        fs::write(world.root.path().join("d/name"), "inside").unwrap();
        fs::write(world.outside.path().join("name"), "outside").unwrap();
        fs::create_dir_all(world.state.path().join("database/data")).unwrap();
        fs::write(world.state.path().join("admin.key"), "key").unwrap();
        world
    }

    fn allowed(&self) -> AllowedPaths {
        let never = vec![self.state.path().to_owned()];
        AllowedPaths::new(&[self.root.path().to_owned()], never).unwrap()
    }

    fn inside(&self, name: &str) -> HostPath {
        said(&self.root.path().join(name))
    }

    fn link(&self, name: &str, target: impl AsRef<Path>) {
        symlink(target, self.root.path().join(name)).unwrap();
    }
}

/// Ends the exchange of names also where the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn said(path: &Path) -> HostPath {
    HostPath::said(path.to_str().unwrap())
}

fn text(opened: &HostHandle) -> String {
    let mut text = String::new();
    opened.file(Path::new("")).unwrap().read_to_string(&mut text).unwrap();
    text
}

fn names(opened: &HostHandle) -> Vec<String> {
    let mut found = Vec::new();
    let listed = opened.entries(100, &mut |path, _| {
        found.push(path.to_str().unwrap().to_owned());
        ControlFlow::Continue(())
    });
    listed.unwrap();
    found
}

#[test]
fn what_lies_in_an_allowed_directory_is_opened_and_read() {
    let world = World::new();
    let allowed = world.allowed();
    let open = |name: &str| allowed.open(&world.inside(name), Links::Beneath).unwrap();
    assert!(open("").is_dir() && open("d").is_dir() && open("d/../d/.").is_dir());
    let file = open("d/name");
    assert_eq!((file.is_file(), file.len(), text(&file)), (true, 6, "inside".into()));
    assert_eq!(names(&open("")), ["d/name"]);
    let dir = open("d");
    assert!(dir.file(Path::new("name")).is_ok() && dir.file(Path::new("../d/name")).is_err());
    assert!(dir.file(Path::new("")).is_err());
}

#[test]
fn a_link_that_stays_beneath_is_followed_only_where_links_are() {
    let world = World::new();
    world.link("near", "d");
    world.link("far", "near/name");
    fs::create_dir(world.root.path().join("e")).unwrap();
    world.link("e/up", "../d/name");
    let allowed = world.allowed();
    for name in ["near/name", "far", "e/up"] {
        let opened = allowed.open(&world.inside(name), Links::Beneath).unwrap();
        assert_eq!(text(&opened), "inside", "{name}");
        assert!(allowed.open(&world.inside(name), Links::Refused).is_err(), "{name}");
    }
    assert!(allowed.open(&world.inside("near"), Links::Beneath).unwrap().is_dir());
    assert!(allowed.open(&world.inside("near"), Links::Refused).is_err());
    world.link("loop", "loop");
    assert!(allowed.open(&world.inside("loop"), Links::Beneath).is_err());
}

#[test]
fn c1_a_link_out_of_the_allowed_directory_opens_nothing() {
    let world = World::new();
    world.link("etc", "/etc");
    world.link("shadow", "/etc/shadow");
    world.link("beside", world.outside.path());
    world.link("state", world.state.path());
    world.link("up", "../..");
    let root = world.root.path().file_name().unwrap().to_str().unwrap();
    world.link("again", format!("../{root}/d"));
    world.link("fd", "/proc/self/cwd");
    let allowed = world.allowed();
    for name in [
        "etc",
        "etc/shadow",
        "shadow",
        "beside",
        "beside/name",
        "state",
        "state/admin.key",
        "up",
        "up/etc",
        "again",
        "again/name",
        "fd",
        "../../etc",
        "d/../../../etc/passwd",
    ] {
        for links in [Links::Beneath, Links::Refused] {
            let refused = allowed.open(&world.inside(name), links).unwrap_err();
            assert!(matches!(refused, OpenError::Refused(_)), "{name}: {refused:?}");
        }
    }
}

#[test]
fn c1_a_state_directory_is_opened_by_nobody_under_no_name() {
    let world = World::new();
    let everything = world.allowed().everything();
    for path in [
        world.state.path().to_owned(),
        world.state.path().join("admin.key"),
        world.state.path().join("database/data"),
        world.state.path().parent().unwrap().to_owned(),
        "/".into(),
    ] {
        let refused = everything.open(&said(&path), Links::Beneath).unwrap_err();
        assert!(matches!(refused, OpenError::State(_)), "{path:?}: {refused:?}");
        assert!(refused.to_string().contains("name a directory beside it"));
    }
    // A state directory that this worker does not know, told by its mark.
    let other = world.root.path().join("other");
    fs::create_dir_all(other.join("database")).unwrap();
    mark(&other).unwrap();
    mark(&other).unwrap();
    for allowed in [world.allowed(), everything.clone()] {
        for name in ["other", "other/database"] {
            assert!(allowed.open(&world.inside(name), Links::Beneath).is_err(), "{name}");
        }
    }
    // The host's own admin follows links, and is told why.
    world.link("to-state", world.state.path().join("database"));
    let refused = everything.open(&world.inside("to-state"), Links::Refused).unwrap_err();
    assert!(matches!(refused, OpenError::State(_)), "{refused:?}");
    world.link("beside", world.outside.path());
    let opened = everything.open(&world.inside("beside/name"), Links::Refused).unwrap();
    assert_eq!(text(&opened), "outside");
}

#[test]
fn c1_the_kernels_file_systems_are_opened_by_nobody() {
    let everything = World::new().allowed().everything();
    for path in
        ["/proc", "/proc/self", "/proc/1/environ", "/sys", "/sys/kernel", "/dev", "/dev/null"]
    {
        assert!(everything.open(&HostPath::said(path), Links::Beneath).is_err(), "{path}");
    }
    assert!(everything.open(&HostPath::said("/usr/bin"), Links::Beneath).unwrap().is_dir());
}

#[test]
fn l2_what_is_outside_is_the_same_answer_whether_it_is_there_or_not() {
    let world = World::new();
    world.link("there", "/etc/passwd");
    world.link("missing", "/etc/no-such-file");
    world.link("up", "../../etc/passwd");
    world.link("up-missing", "../../etc/no-such-file");
    let inner = world.root.path().join("state");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("admin.key"), "key").unwrap();
    let allowed = AllowedPaths::new(&[world.root.path().to_owned()], vec![inner]).unwrap();
    let paths = [
        HostPath::said("/etc/passwd"),
        HostPath::said("/etc/no-such-file"),
        HostPath::said("/no-such-directory/x"),
        HostPath::said("relative"),
        HostPath::said(""),
        HostPath::said("/etc\0/passwd"),
        world.inside("no-such-file"),
        world.inside("there"),
        world.inside("missing"),
        world.inside("up"),
        world.inside("up-missing"),
        world.inside("state/admin.key"),
        world.inside("state/no-such-file"),
        said(world.root.path()),
    ];
    for path in paths {
        let refused = allowed.open(&path, Links::Beneath).unwrap_err().to_string();
        let words = refused.replacen(&format!("{path:?}"), "X", 1);
        let one = "X is not there, or not within a directory that this run may be given";
        assert_eq!(words, one, "{path:?}");
    }
    // By the text alone nothing outside is even looked at.
    assert!(!allowed.names(&HostPath::said("/etc/passwd")));
    assert!(allowed.names(&world.inside("there")));
}

/// Renames while a name is opened again and again: what is opened is always what was allowed.
#[test]
fn h1_an_exchange_of_names_never_opens_what_is_outside() {
    const OPENS: usize = 20_000;
    let world = World::new();
    world.link("l", world.outside.path());
    let (d, l) = (world.root.path().join("d"), world.root.path().join("l"));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                renameat_with(CWD, &d, CWD, &l, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let _over = Over(&is_over);
        let allowed = world.allowed();
        let (mut opened, mut refused) = (0, 0);
        for count in 0..OPENS {
            let (name, is_dir) =
                if count.is_multiple_of(2) { ("d", true) } else { ("d/name", false) };
            let links = if count % 4 < 2 { Links::Beneath } else { Links::Refused };
            match allowed.open(&world.inside(name), links) {
                Ok(one) if is_dir => {
                    opened += 1;
                    let mut text = String::new();
                    one.file(Path::new("name")).unwrap().read_to_string(&mut text).unwrap();
                    assert_eq!((text.as_str(), names(&one)), ("inside", vec!["name".into()]));
                }
                Ok(one) => {
                    opened += 1;
                    assert_eq!(text(&one), "inside");
                }
                Err(_) => refused += 1,
            }
        }
        assert_eq!(opened + refused, OPENS);
    });
}

#[test]
fn h1_a_listing_stays_in_the_directory_that_was_opened() {
    const LISTS: usize = 500;
    let world = World::new();
    fs::create_dir(world.root.path().join("d/sub")).unwrap();
    fs::write(world.root.path().join("d/sub/name"), "inside").unwrap();
    fs::write(world.outside.path().join("secret"), "outside").unwrap();
    world.link("l", world.outside.path());
    let (sub, l) = (world.root.path().join("d/sub"), world.root.path().join("l"));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                renameat_with(CWD, &sub, CWD, &l, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let _over = Over(&is_over);
        let opened = world.allowed().open(&world.inside("d"), Links::Beneath).unwrap();
        for _ in 0..LISTS {
            let mut found = Vec::new();
            // A directory that became a link meanwhile is an error, and its names are nobody's.
            let _ = opened.entries(100, &mut |path, _| {
                found.push(path.to_owned());
                ControlFlow::Continue(())
            });
            assert!(!found.iter().any(|path| path.ends_with("secret")), "{found:?}");
        }
    });
}

/// A mount of this test's own, which ends with it.
struct Bound(std::path::PathBuf);

impl Bound {
    fn new(from: &Path, at: &Path, kind: Option<&str>) -> Self {
        use rustix::mount::{MountFlags, mount, mount_bind};
        match from.is_dir() || kind.is_some() {
            true => fs::create_dir(at).unwrap(),
            false => fs::write(at, "").unwrap(),
        }
        match kind {
            Some(kind) => mount(from, at, kind, MountFlags::empty(), None).unwrap(),
            None => mount_bind(from, at).unwrap(),
        }
        Self(at.to_owned())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn s15_a_directory_that_holds_anothers_state_directory_is_given_to_nobody() {
    let world = World::new();
    let root = world.root.path();
    // Deeper than what is looked at by itself: the host's register knows it.
    let deep = root.join("d/a/b/c/state");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("admin.key"), "key").unwrap();
    let (near, far) = (root.join("near"), root.join("far"));
    fs::create_dir_all(near.join("x/state")).unwrap();
    fs::create_dir_all(far.join("x")).unwrap();
    // As another user's installation marks it, who writes nothing into root's register.
    let marked = near.join("x/state/.cofferdam-state");
    fs::write(&marked, "").unwrap();
    fs::set_permissions(&marked, PermissionsExt::from_mode(0o2444)).unwrap();
    mark(&deep).unwrap();
    for allowed in [world.allowed(), world.allowed().everything()] {
        let open = |name: &str| allowed.open(&world.inside(name), Links::Beneath);
        for name in ["", "d", "d/a", "d/a/b/c", "d/a/b/c/state", "near", "near/x", "near/x/state"] {
            assert!(open(name).is_err(), "{name}");
        }
        assert!(open("d/a/b/c/state/admin.key").is_err());
        assert!(open("far").is_ok() && open("d/name").is_ok(), "beside it");
    }
    // A state directory that is gone, or is one no more, keeps nothing back.
    fs::remove_file(deep.join(".cofferdam-state")).unwrap();
    assert!(world.allowed().open(&world.inside("d"), Links::Beneath).is_ok());
}

#[test]
fn s72_a_file_or_a_directory_of_the_marks_name_keeps_nothing_back() {
    let world = World::new();
    let root = world.root.path();
    fs::write(root.join("d/.cofferdam-state"), "").unwrap();
    fs::create_dir_all(root.join("e/.cofferdam-state")).unwrap();
    // As a directory inherits the bit.
    fs::set_permissions(root.join("e/.cofferdam-state"), PermissionsExt::from_mode(0o2755))
        .unwrap();
    let allowed = world.allowed();
    for name in ["", "d", "d/name", "e"] {
        assert!(allowed.open(&world.inside(name), Links::Beneath).is_ok(), "{name}");
    }
    mark(&root.join("d")).unwrap();
    for name in ["", "d", "d/name"] {
        assert!(allowed.open(&world.inside(name), Links::Beneath).is_err(), "{name}");
    }
    assert!(allowed.open(&world.inside("e"), Links::Beneath).is_ok());
}

#[test]
fn s15_a_listing_leaves_state_directories_out() {
    let world = World::new();
    let opened = world.allowed().open(&world.inside("d"), Links::Beneath).unwrap();
    let state = world.root.path().join("d/a/b/state");
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("admin.key"), "key").unwrap();
    // Made after the directory was opened.
    mark(&state).unwrap();
    assert_eq!(names(&opened), ["name"]);
}

#[test]
fn s16_a_mount_of_a_part_of_a_state_directory_is_opened_by_nobody() {
    let world = World::new();
    let root = world.root.path();
    let other = tempfile::tempdir().unwrap();
    fs::create_dir_all(other.path().join("database/data")).unwrap();
    fs::write(other.path().join("database/data/secret"), "secret").unwrap();
    mark(other.path()).unwrap();
    let _bound = [
        Bound::new(&world.state.path().join("database"), &root.join("own"), None),
        Bound::new(&other.path().join("database/data"), &root.join("others"), None),
        Bound::new(&world.state.path().join("admin.key"), &root.join("key"), None),
        Bound::new(&root.join("others"), &root.join("again"), None),
        Bound::new(world.outside.path(), &root.join("fine"), None),
    ];
    for allowed in [world.allowed(), world.allowed().everything()] {
        let open = |name: &str| allowed.open(&world.inside(name), Links::Beneath);
        for name in ["own", "own/data", "others", "others/secret", "key", "again", "again/secret"] {
            assert!(open(name).is_err(), "{name}");
        }
        assert_eq!(text(&open("fine/name").unwrap()), "outside");
    }
}

#[test]
fn s17_a_listing_crosses_into_no_other_mount() {
    let world = World::new();
    let root = world.root.path();
    let _bound = [
        Bound::new(Path::new("proc"), &root.join("kernel"), Some("proc")),
        Bound::new(world.outside.path(), &root.join("mounted"), None),
        Bound::new(&world.outside.path().join("name"), &root.join("d/file"), None),
    ];
    let opened = world.allowed().open(&said(root), Links::Beneath).unwrap();
    assert_eq!(names(&opened), ["d/name"]);
    for below in ["mounted/name", "kernel/version", "d/file"] {
        assert!(opened.file(Path::new(below)).is_err(), "{below}");
    }
    assert!(opened.file(Path::new("d/name")).is_ok());
}

#[test]
fn agents_b1_of_a_state_directory_only_the_files_of_installed_programs_are_given() {
    let world = World::new();
    let state = world.state.path().canonicalize().unwrap();
    let agents = state.join("agents");
    fs::create_dir_all(agents.join("codex/1")).unwrap();
    fs::write(agents.join("codex/1/codex"), "program").unwrap();
    symlink(state.join("admin.key"), agents.join("key")).unwrap();
    symlink(&state, agents.join("up")).unwrap();
    for allowed in [world.allowed(), world.allowed().everything()] {
        let open = |allowed: &AllowedPaths, path: &str| {
            allowed.open(&said(&agents.join(path)), Links::Beneath)
        };
        assert!(open(&allowed, "codex/1/codex").is_err(), "nothing is installed for everybody");
        let allowed = allowed.with_programs(agents.clone());
        assert_eq!(text(&open(&allowed, "codex/1/codex").unwrap()), "program");
        for wrong in
            ["", "codex", "codex/1", "key", "up/admin.key", "../admin.key", "codex/../../admin.key"]
        {
            assert!(open(&allowed, wrong).is_err(), "{wrong}");
        }
        assert!(allowed.open(&said(&state.join("admin.key")), Links::Beneath).is_err());
        let open_host = allowed.everything();
        assert_eq!(text(&open(&open_host, "codex/1/codex").unwrap()), "program");
    }
}
