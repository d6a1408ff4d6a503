//! The cgroups of a sandbox whose runtime makes none: what is written where, and the writing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cofferdam_contracts::sandbox::Limits;

use crate::host::cgroup::{Cgroups, TCP_LIMIT};
use crate::host::traces::{CGROUP_PARENT, Traces};

/// Looks at the members of a group until none is left in it. What is moved starts nothing.
const MOVES: usize = 8;

/// The scheduler's default period: long enough that a small quota is not all overhead.
pub(crate) const CPU_PERIOD_US: u32 = 100_000;

/// The groups of one sandbox, decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Groups {
    groups: Vec<Group>,
}

/// The group of one sandbox in one cgroup tree.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    mount: PathBuf,
    dir: PathBuf,
    unified: bool,
    values: Vec<GroupValue>,
}

/// One file of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GroupValue {
    file: &'static str,
    text: String,
    /// A kernel without swap accounting has no such file, and then no swap that it would bound.
    optional: bool,
}

/// What a tree limits, in the words of its version.
fn values(unified: bool, controller: &str, limits: Limits, cpus: u32) -> Vec<GroupValue> {
    let value = |file, text: String| GroupValue { file, text, optional: false };
    let bytes = limits.mem_mb.unwrap_or(0).saturating_mul(1024 * 1024).to_string();
    let pids = limits.pids.unwrap_or(0).to_string();
    let cpu = limits.cpu.unwrap_or(0.0);
    let quota = quota_us(cpu);
    match (controller, unified) {
        ("memory", false) => vec![
            value("memory.limit_in_bytes", bytes.clone()),
            GroupValue { optional: true, ..value("memory.memsw.limit_in_bytes", bytes.clone()) },
            GroupValue { optional: true, ..value(TCP_LIMIT, bytes) },
        ],
        ("memory", true) => vec![
            value("memory.max", bytes),
            GroupValue { optional: true, ..value("memory.swap.max", "0".to_owned()) },
        ],
        ("pids", _) => vec![value("pids.max", pids)],
        // All CPUs of the host are no limit.
        ("cpu", _) if cpu >= f64::from(cpus) => Vec::new(),
        ("cpu", false) => vec![
            value("cpu.cfs_period_us", CPU_PERIOD_US.to_string()),
            value("cpu.cfs_quota_us", quota.to_string()),
        ],
        ("cpu", true) => vec![value("cpu.max", format!("{quota} {CPU_PERIOD_US}"))],
        _ => Vec::new(),
    }
}

/// The groups in those trees that limit or count something, with the host's limits of a sandbox.
/// Pure.
pub(crate) fn groups(cgroups: &Cgroups, traces: &Traces, limits: Limits, cpus: u32) -> Groups {
    let mut groups = Vec::new();
    for tree in &cgroups.hierarchies {
        // The freezer of version 1 limits nothing: by it the processes are stopped while their files are kept.
        let ours = ["memory", "pids", "cpu", "freezer"]
            .into_iter()
            .filter(|name| tree.controllers.iter().any(|controller| controller == name));
        let mut found = false;
        let mut all = Vec::new();
        for controller in ours {
            found = true;
            all.extend(values(tree.unified, controller, limits, cpus));
        }
        if found {
            groups.push(Group {
                mount: tree.mount.clone(),
                dir: tree.mount.join(&traces.cgroup),
                unified: tree.unified,
                values: all,
            });
        }
    }
    Groups { groups }
}

impl Groups {
    /// Makes them and gives their directories; or the file that could not be written, and why.
    pub(crate) fn make(&self) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
        for group in &self.groups {
            group.make()?;
        }
        Ok(self.groups.iter().map(|group| group.dir.clone()).collect())
    }
}

impl Group {
    fn make(&self) -> Result<(), (PathBuf, io::Error)> {
        let parent = self.mount.join(CGROUP_PARENT);
        make_dir(&parent)?;
        if self.unified {
            for above in [&self.mount, &parent] {
                write(&above.join("cgroup.subtree_control"), "+memory +pids +cpu")?;
            }
        }
        make_dir(&self.dir)?;
        for GroupValue { file, text, optional } in &self.values {
            let path = self.dir.join(file);
            match write(&path, text) {
                Err((_, error)) if *optional && error.kind() == io::ErrorKind::NotFound => {}
                written => written?,
            }
        }
        Ok(())
    }
}

/// Confines a sandbox to these processors by a group, where `at` has groups for that; of version 1 the group is made here.
pub(crate) fn confine(at: &Path, traces: &Traces, cpus: &str) -> Result<(), (PathBuf, io::Error)> {
    let of = |tree: &Path, file: &str| write(&tree.join(&traces.cgroup).join(file), cpus);
    if at.join("cgroup.controllers").exists() {
        for above in [at.to_owned(), at.join(CGROUP_PARENT)] {
            write(&above.join("cgroup.subtree_control"), "+cpuset")?;
        }
        return of(at, "cpuset.cpus");
    }
    let tree = at.join("cpuset");
    for (above, dir) in [
        (tree.clone(), tree.join(CGROUP_PARENT)),
        (tree.join(CGROUP_PARENT), tree.join(&traces.cgroup)),
    ] {
        make_dir(&dir)?;
        // A new group has neither, and takes no process then.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            inherit(&above.join(file), &dir.join(file))?;
        }
    }
    of(&tree, "cpuset.cpus")
}

/// Gives a file that says nothing what the one above it says.
fn inherit(above: &Path, file: &Path) -> Result<(), (PathBuf, io::Error)> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| (path.to_owned(), error));
    match read(file)?.trim().is_empty() {
        true => write(file, read(above)?.trim()),
        false => Ok(()),
    }
}

/// Moves every process of one group to another of the same tree.
pub(crate) fn move_all(from: &Path, to: &Path) -> Result<(), (PathBuf, io::Error)> {
    let (procs, to) = (from.join("cgroup.procs"), to.join("cgroup.procs"));
    for _ in 0..MOVES {
        let listed = fs::read_to_string(&procs).map_err(|error| (procs.clone(), error))?;
        if listed.is_empty() {
            return Ok(());
        }
        for pid in listed.lines() {
            match write(&to, pid) {
                // It has ended, and is nowhere then.
                Err((_, error)) if error.raw_os_error() == Some(libc::ESRCH) => {}
                written => written?,
            }
        }
    }
    Err((procs, io::Error::other("it is never empty")))
}

/// Lowers the limits of memory that these groups have by so many bytes.
pub(crate) fn lower_memory(groups: &[PathBuf], bytes: u64) -> Result<(), (PathBuf, io::Error)> {
    for dir in groups {
        // In this order: version 1 bounds memory and swap together from above.
        for file in ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max"] {
            let path = dir.join(file);
            let found = match fs::read_to_string(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found.map_err(|error| (path.clone(), error))?,
            };
            let now: u64 =
                found.trim().parse().map_err(|error| (path.clone(), io::Error::other(error)))?;
            write(&path, &now.saturating_sub(bytes).to_string())?;
        }
    }
    Ok(())
}

pub(crate) fn make_dir(path: &Path) -> Result<(), (PathBuf, io::Error)> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err((path.to_owned(), error)),
        _ => Ok(()),
    }
}

/// Never makes the file: one that is not there is a limit that nobody would hold.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), (PathBuf, io::Error)> {
    let opened = fs::OpenOptions::new().write(true).truncate(true).open(path);
    let written = opened.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
    written.map_err(|error| (path.to_owned(), error))
}

/// Microseconds of CPU time in a period: whole ones, so that the configuration is exact.
pub(crate) fn quota_us(cpu: f64) -> u64 {
    // The plan allows 0.01 to the host's CPUs, so the quota has at most nine digits.
    format!("{:.0}", cpu * f64::from(CPU_PERIOD_US)).parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_told_the_same() {
        let limits =
            Limits { cpu: Some(0.5), mem_mb: Some(100), pids: Some(590), ..Limits::default() };
        let said = |unified| {
            let all = ["memory", "pids", "cpu"];
            let all = all.into_iter().flat_map(|name| values(unified, name, limits, 2));
            all.map(|value| format!("{} {}", value.file, value.text)).collect::<Vec<_>>()
        };
        assert_eq!(
            said(false),
            [
                "memory.limit_in_bytes 104857600",
                "memory.memsw.limit_in_bytes 104857600",
                "memory.kmem.tcp.limit_in_bytes 104857600",
                "pids.max 590",
                "cpu.cfs_period_us 100000",
                "cpu.cfs_quota_us 50000",
            ]
        );
        assert_eq!(
            said(true),
            ["memory.max 104857600", "memory.swap.max 0", "pids.max 590", "cpu.max 50000 100000"]
        );
    }

    #[test]
    fn a_limit_without_its_file_is_an_error_and_makes_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pids.max");
        assert_eq!(write(&file, "1").unwrap_err().0, file);
        assert!(!file.exists());
    }

    #[test]
    fn a_fraction_of_a_cpu_is_a_whole_number_of_microseconds() {
        assert_eq!(quota_us(0.01), 1_000);
        assert_eq!(quota_us(1.5), 150_000);
    }
}
