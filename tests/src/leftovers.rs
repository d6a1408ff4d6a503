//! What a host holds of ours: processes, mounts, network namespaces, cgroups, links, loop devices
//! and files.
//!
//! ```text
//! look -> a set of traces -> minus those that were there before -> what the suite left behind
//! ```
//! A trace is ours by its name or by where it runs, so what others do on this host meanwhile is never
//! taken for it; links and pinned namespaces, which have no name of ours, count when they are new and
//! no engine's. What cannot be read (a process that is just ending) is not there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

/// Our directories begin so, whoever makes them: live directories (`cofferdam.`), the homes of tests
/// (`cofferdam-test-`).
const PREFIXES: [&str; 2] = ["cofferdam.", "cofferdam-"];
/// The runtime's own temporary files, which stay when it is killed half-way.
const RUNTIME_PREFIXES: [&str; 2] = ["crun.", "runc-process"];
/// The group above all of ours; it belongs to every state directory of the host and may stay.
const CGROUP_PARENT: &str = "cofferdam";
/// `cofferdam_sandbox::leave_service`.
const OUTLIVING: &str = "outliving";
/// What the first worker found of the host's processor; it holds until the next boot, and is meant to stay.
const PROCESSOR: &str = "cofferdam-kvm";
/// Where files of ours may lie.
const PLACES: [&str; 4] = ["/dev/shm", "/run", "/tmp", "/var/tmp"];
/// How long what is on its way out may take: a private database that shuts down.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// One thing that is there: its kind and what names it, which is never used again for another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trace {
    /// `process`, `mount`, `netns`, `cgroup`, `link`, `loop` or `file`.
    pub kind: String,
    /// In words of the kernel's.
    pub name: String,
}

impl Trace {
    fn new(kind: &str, name: impl Into<String>) -> Self {
        // One line each, whatever a command line holds.
        let name = name.into().replace(['\n', '\t'], " ");
        Self { kind: kind.to_owned(), name }
    }
}

/// Everything of ours that is there now.
#[must_use]
pub fn look() -> BTreeSet<Trace> {
    let mut found = BTreeSet::new();
    processes(&mut found);
    cgroups(&mut found);
    links(&mut found);
    loops(&mut found);
    files(&mut found);
    found
}

/// What was not there before and stays, though it was given time to go; `about` narrows it to traces
/// with this text.
#[must_use]
pub fn left_since(before: &BTreeSet<Trace>, about: &str, patience: Duration) -> Vec<Trace> {
    let deadline = Instant::now() + patience;
    loop {
        let left = new_since(before, look(), about);
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        std::thread::sleep(PAUSE);
    }
}

fn new_since(before: &BTreeSet<Trace>, now: BTreeSet<Trace>, about: &str) -> Vec<Trace> {
    now.into_iter().filter(|trace| !before.contains(trace) && trace.name.contains(about)).collect()
}

/// A line each.
#[must_use]
pub fn write(traces: &BTreeSet<Trace>) -> String {
    traces.iter().map(|trace| format!("{}\t{}\n", trace.kind, trace.name)).collect()
}

/// What `write` wrote.
#[must_use]
pub fn read(text: &str) -> BTreeSet<Trace> {
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    lines.map(|(kind, name)| Trace::new(kind, name)).collect()
}

/// Whether a path leads through a directory of ours.
fn is_ours(path: &Path) -> bool {
    path.components().any(|part| {
        let name = part.as_os_str().to_string_lossy();
        PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    })
}

/// Processes, and through them every mount namespace and network namespace that lives.
fn processes(found: &mut BTreeSet<Trace>) {
    let spared = ancestors();
    let built = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let mut seen = BTreeSet::new();
    let host = namespace("self", "net");
    for pid in numbered("/proc") {
        let namespaces = (namespace(&pid, "mnt"), namespace(&pid, "net"));
        if let Some(mounted) = namespaces.0.filter(|name| seen.insert(name.clone())) {
            mounts(&pid, &mounted, found);
        }
        if spared.contains(&pid) || !is_our_process(&pid, built.as_deref()) {
            continue;
        }
        found.insert(Trace::new("process", format!("{} {}", identity(&pid), said(&pid))));
        if let Some(netns) = namespaces.1.filter(|name| Some(name) != host.as_ref()) {
            found.insert(Trace::new("netns", netns));
        }
    }
}

fn is_our_process(pid: &str, built: Option<&Path>) -> bool {
    let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    // Linked twice by cargo: beside itself and in `deps`.
    let is_built = built.is_some_and(|dir| exe.starts_with(dir));
    let is_agent = exe.starts_with("/.cofferdam");
    let listed = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let is_member = listed
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .any(|path| path.split('/').any(|part| part == CGROUP_PARENT));
    let argv = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let names_us = argv.split(|byte| *byte == 0).any(|word| {
        let word = word.rsplit(|byte| *byte == b'=').next().unwrap_or_default();
        word.starts_with(b"/") && is_ours(Path::new(std::ffi::OsStr::from_bytes(word)))
    });
    is_built || is_agent || is_member || names_us
}

/// This process and everybody above it: they started the look, and are not looked for.
fn ancestors() -> BTreeSet<String> {
    let mut at = std::process::id().to_string();
    let mut all = BTreeSet::new();
    while at != "0" && all.insert(at.clone()) {
        at = field(&at, 1).unwrap_or_default();
    }
    all
}

/// A pid and the start of its process: the pid alone may be another's tomorrow.
fn identity(pid: &str) -> String {
    format!("pid {pid} started {}", field(pid, 19).unwrap_or_default())
}

fn said(pid: &str) -> String {
    let argv = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&argv).replace('\0', " ").chars().take(160).collect()
}

/// A field of a process's `stat`, counted behind its name, which may hold anything.
fn field(pid: &str, index: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, tail) = stat.rsplit_once(')')?;
    tail.split_whitespace().nth(index).map(str::to_owned)
}

fn namespace(pid: &str, kind: &str) -> Option<String> {
    let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
    Some(link.to_string_lossy().into_owned())
}

fn numbered(dir: &str) -> Vec<String> {
    names(Path::new(dir)).into_iter().filter(|name| name.parse::<u32>().is_ok()).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Mounts of ours in the namespace of a process, and namespaces that a mount keeps.
fn mounts(pid: &str, namespace: &str, found: &mut BTreeSet<Trace>) {
    let text = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    for line in text.lines() {
        let Some((point, kind)) = mounted(line) else { continue };
        if kind == "nsfs" && !is_an_engines(point) {
            found.insert(Trace::new("netns", format!("kept at {point}")));
        } else if is_ours(Path::new(point)) {
            found.insert(Trace::new("mount", format!("{point} ({kind}) in {namespace}")));
        }
    }
}

/// Where something is mounted, and what kind of file system it is.
fn mounted(line: &str) -> Option<(&str, &str)> {
    let (place, kind) = line.split_once(" - ")?;
    Some((place.split(' ').nth(4)?, kind.split(' ').next()?))
}

fn is_an_engines(point: &str) -> bool {
    ["docker", "containerd", "podman", "snapd"].iter().any(|name| point.contains(name))
}

/// Groups below ours, in every tree.
fn cgroups(found: &mut BTreeSet<Trace>) {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let trees = text.lines().filter_map(mounted).filter(|(_, kind)| kind.starts_with("cgroup"));
    for (tree, _) in trees {
        let parent = Path::new(tree).join(CGROUP_PARENT);
        let below = names(&parent).into_iter().map(|name| parent.join(name));
        let below = below.filter(|path| path.is_dir() && !is_standing(path));
        found.extend(below.map(|path| Trace::new("cgroup", path.display().to_string())));
        found.extend(beneath(&parent).into_iter().map(|name| {
            Trace::new("file", format!("{} beneath the mount", parent.join(name).display()))
        }));
    }
}

/// Whether it is the group of what outlives its worker, and nobody is in it. Like the one above it, it stays.
fn is_standing(group: &Path) -> bool {
    let members = fs::read_to_string(group.join("cgroup.procs"));
    group.ends_with(OUTLIVING) && members.is_ok_and(|members| members.is_empty())
}

/// What lies where a tree is mounted: a runtime that does not see the mount writes there.
fn beneath(parent: &Path) -> Vec<String> {
    beneath_mount(parent).map(|(_held, dir)| names(&dir)).unwrap_or_default()
}

/// The directory of ours that would be there were its tree not mounted, and what holds the way to it.
#[must_use]
pub fn beneath_mount(parent: &Path) -> Option<(OwnedFd, PathBuf)> {
    let above = parent.parent()?.parent()?;
    // That directory's own file system, without what is mounted on it.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let alone = open_tree(CWD, above, flags).ok()?;
    let way = Path::new("/proc/self/fd").join(alone.as_raw_fd().to_string());
    let dir = way.join(parent.strip_prefix(above).ok()?);
    Some((alone, dir))
}

/// Network devices of the host but those of an engine: a veth has no name of ours.
fn links(found: &mut BTreeSet<Trace>) {
    let all = Path::new("/sys/class/net");
    for name in names(all) {
        let engines = ["lo", "docker", "br-", "virbr", "cni"];
        let is_foreign = engines.iter().any(|prefix| name.starts_with(prefix))
            || all.join(&name).join("master").exists();
        if !is_foreign {
            found.insert(Trace::new("link", name));
        }
    }
}

fn loops(found: &mut BTreeSet<Trace>) {
    for name in names(Path::new("/sys/block")) {
        let file = format!("/sys/block/{name}/loop/backing_file");
        let Ok(backing) = fs::read_to_string(file) else { continue };
        let backing = backing.trim();
        if is_ours(Path::new(backing)) || backing.ends_with("(deleted)") {
            found.insert(Trace::new("loop", format!("{name} on {backing}")));
        }
    }
}

/// Live directories, the homes of tests, and what a killed runtime leaves.
fn files(found: &mut BTreeSet<Trace>) {
    let places = PLACES.iter().map(PathBuf::from).chain([std::env::temp_dir()]);
    // A place and a link to it hold the same.
    let places: BTreeMap<PathBuf, ()> =
        places.filter_map(|place| Some((fs::canonicalize(place).ok()?, ()))).collect();
    for place in places.keys() {
        for name in names(place) {
            let path = place.join(&name);
            if name == PROCESSOR {
                continue;
            }
            let prefixes = PREFIXES.iter().chain(&RUNTIME_PREFIXES);
            if prefixes.into_iter().any(|prefix| name.starts_with(prefix)) || is_state(&path) {
                found.insert(Trace::new("file", path.display().to_string()));
            }
        }
    }
}

/// Whether it is a state directory under another name, such as a library's temporary one.
fn is_state(path: &Path) -> bool {
    let has = |name: &str| path.join(name).symlink_metadata().is_ok();
    has("base") && has("guest")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_left() {
        let old = BTreeSet::from([Trace::new("file", "/tmp/cofferdam-a")]);
        let now = BTreeSet::from([
            Trace::new("file", "/tmp/cofferdam-a"),
            Trace::new("file", "/tmp/cofferdam-b"),
            Trace::new("mount", "/tmp/cofferdam-b"),
        ]);
        let left = new_since(&old, now.clone(), "");
        assert_eq!(left.len(), 2);
        assert!(left.iter().all(|trace| trace.name == "/tmp/cofferdam-b"));
        assert_eq!(new_since(&old, now.clone(), "elsewhere"), []);
        assert_eq!(new_since(&BTreeSet::new(), now, "").len(), 3);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let all = BTreeSet::from([
            Trace::new("process", "pid 1 started 2 a\tb\nc"),
            Trace::new("netns", "net:[4026531840]"),
        ]);
        assert_eq!(read(&write(&all)), all);
    }

    #[test]
    fn a_path_is_ours_by_the_name_of_one_of_its_directories() {
        for ours in ["/dev/shm/cofferdam.12/sandboxes/sb1", "/tmp/cofferdam-test-x/run"] {
            assert!(is_ours(Path::new(ours)), "{ours}");
        }
        for foreign in ["/usr/bin/crun", "/home/a/cofferdam/src", "/tmp/x.cofferdam.y"] {
            assert!(!is_ours(Path::new(foreign)), "{foreign}");
        }
    }

    #[test]
    fn a_line_of_mountinfo_is_a_place_and_a_kind() {
        let line = "36 35 98:0 / /run/netns/a rw shared:2 - nsfs nsfs rw";
        assert_eq!(mounted(line), Some(("/run/netns/a", "nsfs")));
        assert_eq!(mounted("nonsense"), None);
    }
}
