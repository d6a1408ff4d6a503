//! Who keeps a file system or a network namespace: mounts in every namespace, and open files.
//!
//! A mount namespace is read once, whoever is in it. What this process may not look at, and what is not in
//! `/proc` at all (a descriptor on its way through a socket), is not found: the list is for a person who is to
//! end it, and never the proof that there is nobody.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::host::file_system_end::{self, FileSystem, Witness};
use crate::host::{mounts, process};

/// Processes that are looked at: as many as a host numbers by default.
const MAX_PROCESSES: usize = 32_768;
/// Open files that are looked at in all.
const MAX_FILES: usize = 500_000;
/// What is named of those that were found; the rest is counted.
const MAX_NAMED: usize = 8;

/// Everybody who was found, in words.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    named: Vec<String>,
    more: usize,
    /// Processes whose mounts or files could not be read.
    unread: usize,
}

impl Holders {
    fn push(&mut self, who: String) {
        match self.named.len() < MAX_NAMED {
            true => self.named.push(who),
            false => self.more += 1,
        }
    }

    /// Whether nobody was seen.
    pub(crate) fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// Who, or that nobody was seen.
    pub(crate) fn in_words(&self) -> String {
        let mut words = match self.named.is_empty() {
            true => "nobody that can be seen".to_owned(),
            false => self.named.join(", "),
        };
        if self.more > 0 {
            words.push_str(&format!(" and {} more", self.more));
        }
        if self.unread > 0 {
            words.push_str(&format!("; processes that could not be looked at: {}", self.unread));
        }
        words
    }
}

/// Who keeps a file system that was given up, or one of those that lie over it; `None`: it has ended. Without its watch, and with nobody
/// seen, that is not known.
pub(crate) fn left(
    own: FileSystem,
    over: &[FileSystem],
    witness: Option<&Witness>,
) -> Option<Holders> {
    let has_ended = match witness {
        Some(witness) => witness.has_ended(),
        None => file_system_end::is_free(own) || Tables::read().shows_another(own),
    };
    if has_ended {
        return None;
    }
    let holders = of(&[&[own], over].concat());
    // Whoever had it may have ended during the look.
    let has_ended = holders.is_empty() && witness.is_some_and(Witness::has_ended_unseen);
    (!has_ended).then_some(holders)
}

/// The mounts of one namespace.
struct Table {
    /// One that is in it.
    pid: u32,
    /// Where its files are found.
    root: PathBuf,
    /// Content of the process's or thread's `mountinfo`, never empty.
    text: Vec<u8>,
}

impl Table {
    /// Of a process or of a thread.
    fn read(proc: &Path, pid: u32) -> Option<Self> {
        let text = fs::read(proc.join("mountinfo")).ok().filter(|text| !text.is_empty())?;
        Some(Self { pid, root: proc.join("root"), text })
    }
}

/// The mounts of namespaces, once each.
pub(crate) struct Tables {
    all: Vec<Table>,
    unread: usize,
}

/// This thread, whose mounts may be other than its process's.
const SELF: &str = "/proc/thread-self";

impl Tables {
    /// Of every process that can be seen.
    pub(crate) fn read() -> Self {
        let mut seen: BTreeSet<PathBuf> = BTreeSet::new();
        let (mut all, mut unread) = (Vec::new(), 0);
        let others = process::all().into_iter().take(MAX_PROCESSES);
        let others = others.map(|pid| (Path::new("/proc").join(pid.to_string()), pid));
        for (proc, pid) in [(PathBuf::from(SELF), std::process::id())].into_iter().chain(others) {
            let Ok(namespace) = fs::read_link(proc.join("ns/mnt")) else {
                // One that ended meanwhile holds nothing.
                unread += usize::from(process::Process::of(pid).is_some());
                continue;
            };
            // One that ends while it is read leaves its namespace to be read at another.
            if !seen.contains(&namespace)
                && let Some(table) = Table::read(&proc, pid)
            {
                seen.insert(namespace);
                all.push(table);
            }
        }
        Self { all, unread }
    }

    /// Of this thread and of the host's first process alone: what a wipe can afford where nothing is amiss, since
    /// all tables of a host with 180 processes take it a millisecond.
    pub(crate) fn nearest() -> Self {
        let two = [(SELF, std::process::id()), ("/proc/1", 1)];
        let all = two.into_iter().filter_map(|(proc, pid)| Table::read(Path::new(proc), pid));
        Self { all: all.collect(), unread: 0 }
    }

    /// Who has a mount of a file system with this number.
    fn mounts_of(&self, file_system: FileSystem, found: &mut Holders) {
        let number = file_system.number();
        for (table, line) in self.lines() {
            let mut fields = line.split(|byte| *byte == b' ').skip(2);
            if fields.next() != Some(number.as_bytes()) {
                continue;
            }
            let point = fields.nth(1).unwrap_or_default();
            let point = mounts::point(point);
            if is_same(&table.root, &point, file_system) {
                found.push(format!("a mount at {point:?} as {} sees it", named(table.pid)));
            }
        }
    }

    /// Who has a network namespace of this name mounted.
    pub(crate) fn of_netns(&self, name: &str) -> Vec<String> {
        let is_it = |line: &[u8]| line.split(|byte| *byte == b' ').nth(3) == Some(name.as_bytes());
        let found = self.lines().filter(|(_, line)| is_it(line));
        found
            .map(|(table, line)| {
                let point = line.split(|byte| *byte == b' ').nth(4).unwrap_or_default();
                let point = mounts::point(point);
                format!("a mount at {point:?} as {} sees it", named(table.pid))
            })
            .take(MAX_NAMED)
            .collect()
    }

    /// The numbers of mounts that are of none of these file systems.
    fn elsewhere(&self, wanted: &[FileSystem]) -> BTreeSet<Vec<u8>> {
        let numbers: Vec<String> = wanted.iter().map(|one| one.number()).collect();
        let other = |line: &[u8]| {
            let mut fields = line.split(|byte| *byte == b' ');
            let (id, number) = (fields.next()?, fields.nth(1)?);
            let is_one = numbers.iter().any(|one| one.as_bytes() == number);
            (!is_one).then(|| id.to_vec())
        };
        self.lines().filter_map(|(_, line)| other(line)).collect()
    }

    /// Whether a later file system has the number of this one, which has then ended.
    pub(crate) fn shows_another(&self, file_system: FileSystem) -> bool {
        let number = file_system.number();
        self.lines().any(|(table, line)| {
            let mut fields = line.split(|byte| *byte == b' ').skip(2);
            let is_number = fields.next() == Some(number.as_bytes());
            let point = fields.nth(1).unwrap_or_default();
            is_number && !is_same(&table.root, &mounts::point(point), file_system)
        })
    }

    fn lines(&self) -> impl Iterator<Item = (&Table, &[u8])> {
        self.all.iter().flat_map(|table| {
            table.text.split(|byte| *byte == b'\n').map(move |line| (table, line))
        })
    }
}

/// Whether what is mounted there is the file system, or a later one with its number.
fn is_same(root: &Path, point: &Path, wanted: FileSystem) -> bool {
    let at = root.join(point.strip_prefix("/").unwrap_or(point));
    // A point that cannot be reached may be it.
    FileSystem::of(&at).map_or(true, |found| found.device != wanted.device || found.is(wanted))
}

/// Everybody who keeps one of these file systems: the layer, and what is mounted over it.
pub(crate) fn of(file_systems: &[FileSystem]) -> Holders {
    let tables = Tables::read();
    let mut found = Holders { unread: tables.unread, ..Holders::default() };
    for one in file_systems {
        tables.mounts_of(*one, &mut found);
    }
    let mut look =
        Look { wanted: file_systems, elsewhere: tables.elsewhere(file_systems), left: MAX_FILES };
    for pid in process::all().into_iter().take(MAX_PROCESSES) {
        look.files_of(pid, &mut found);
    }
    found
}

/// A look at open files.
struct Look<'a> {
    wanted: &'a [FileSystem],
    /// Mounts by their numbers, which the whole host has in common, that are of no such file system.
    elsewhere: BTreeSet<Vec<u8>>,
    left: usize,
}

impl Look<'_> {
    fn is_one(&self, path: &Path) -> bool {
        FileSystem::of(path).is_ok_and(|found| self.wanted.iter().any(|one| found.is(*one)))
    }

    fn files_of(&mut self, pid: u32, found: &mut Holders) {
        let proc = Path::new("/proc").join(pid.to_string());
        for name in ["cwd", "root"] {
            if self.is_one(&proc.join(name)) {
                found.push(format!("{} by its {name}", named(pid)));
            }
        }
        let Ok(files) = fs::read_dir(proc.join("fd")) else {
            found.unread += usize::from(process::Process::of(pid).is_some());
            return;
        };
        for file in files.flatten() {
            let Some(left) = self.left.checked_sub(1) else { return };
            self.left = left;
            let number = file.file_name();
            let info = fs::read(proc.join("fdinfo").join(&number)).unwrap_or_default();
            // What lies on a mount of something else is not asked: a server that does not answer would
            // never tell.
            if !mount_of(&info).is_some_and(|id| self.elsewhere.contains(id))
                && self.is_one(&file.path())
            {
                found.push(format!("{} by descriptor {}", named(pid), number.display()));
            }
        }
        let maps = fs::read_to_string(proc.join("maps")).unwrap_or_default();
        let devices: Vec<String> = self.wanted.iter().map(|one| in_maps(one.device)).collect();
        let mut mapped = maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(3));
        if mapped.any(|device| devices.iter().any(|one| one == device)) {
            found.push(format!("{} by a mapping", named(pid)));
        }
    }
}

/// The number of a file's mount, of `/proc/<pid>/fdinfo`.
fn mount_of(info: &[u8]) -> Option<&[u8]> {
    let line = info.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"mnt_id:"))?;
    Some(line.trim_ascii())
}

/// A device as `/proc/<pid>/maps` writes it.
fn in_maps(device: u64) -> String {
    format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// A process for a person.
fn named(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({:?})", name.trim())
}
