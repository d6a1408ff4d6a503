//! Cgroups of both versions: what a sandbox used, what happened to it, and its removal.
//!
//! The runtime makes the groups and writes the limits; this module only reads, kills and removes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_ambient::clock;

use crate::host::ceiling::Tcp;
use crate::host::freeze;
use crate::host::mounts::MountInfo;
use crate::host::process;
use crate::host::traces::{CGROUP_PARENT, Traces};

/// A group with dying processes is busy; they are gone within milliseconds unless the host is
/// overloaded. One second, a millisecond apart.
const REMOVE_TRIES: usize = 1_000;

/// Bytes of TCP's buffers, of version 1 alone: there the memory limit does not count them.
pub(crate) const TCP_LIMIT: &str = "memory.kmem.tcp.limit_in_bytes";
const TCP_REFUSED: &str = "memory.kmem.tcp.failcnt";

/// Which cgroup versions this process sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupMode {
    /// Version 1 alone.
    V1,
    /// Version 1 controllers beside a version 2 tree.
    Hybrid,
    /// Version 2 alone.
    V2,
}

/// One mounted tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Mount point of the hierarchy.
    pub mount: PathBuf,
    /// `memory`, `pids` and so on.
    pub controllers: Vec<String>,
    /// Whether it is a version 2 tree.
    pub unified: bool,
}

/// Everything that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups {
    /// Cgroup version of the host.
    pub mode: CgroupMode,
    /// Cgroup hierarchies in use.
    pub hierarchies: Vec<Hierarchy>,
}

/// What runtimes of languages look for of version 1; a JVM wants all of the first four or believes none.
const SHOWN: [&str; 5] = ["memory", "cpu", "cpuacct", "cpuset", "pids"];

/// One group of a sandbox, as its own programs are shown it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnGroup {
    /// Its place below the directory of all groups; `None`: it is that directory.
    pub name: Option<&'static str>,
    /// Where it is on this host, once its runtime has made it.
    pub dir: PathBuf,
}

/// Counters of a sandbox's group; all zero where it cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Events {
    pub oom_kills: u64,
    pub pids_refused: u64,
    /// Times that TCP's buffers met their limit (version 1).
    pub tcp_refused: u64,
}

impl Cgroups {
    pub(crate) fn find(mounts: &[MountInfo]) -> Option<Self> {
        let hierarchies: Vec<Hierarchy> = mounts.iter().filter_map(hierarchy).collect();
        let unified = hierarchies.iter().any(|h| h.unified);
        let legacy = hierarchies.iter().any(|h| !h.unified);
        let mode = match (legacy, unified) {
            (true, true) => CgroupMode::Hybrid,
            (true, false) => CgroupMode::V1,
            (false, true) => CgroupMode::V2,
            (false, false) => return None,
        };
        Some(Self { mode, hierarchies })
    }

    /// Whether a controller can be used.
    #[must_use]
    pub fn has(&self, controller: &str) -> bool {
        self.with(controller).is_some()
    }

    /// Whether TCP's buffers count towards memory.
    pub(crate) fn tcp(&self) -> Tcp {
        match self.with("memory") {
            Some(tree) if tree.unified => Tcp::Counted,
            Some(tree) if tree.mount.join(TCP_LIMIT).exists() => Tcp::Limited,
            _ => Tcp::Uncounted,
        }
    }

    /// Bounds TCP's buffers of a group that a runtime made (version 1): runc does not, whatever it is told. Sockets that are made
    /// from now on count.
    pub(crate) fn limit_tcp(
        &self,
        traces: &Traces,
        mem_mb: u64,
    ) -> Result<(), (PathBuf, io::Error)> {
        let Some(memory) = self.with("memory") else { return Ok(()) };
        let path = memory.mount.join(&traces.cgroup).join(TCP_LIMIT);
        let bytes = mem_mb.saturating_mul(1024 * 1024).to_string();
        let file = fs::OpenOptions::new().write(true).open(&path);
        let written = file.and_then(|mut file| io::Write::write_all(&mut file, bytes.as_bytes()));
        written.map_err(|error| (path, error))
    }

    pub(crate) fn with(&self, controller: &str) -> Option<&Hierarchy> {
        self.hierarchies.iter().find(|h| h.controllers.iter().any(|c| c == controller))
    }

    /// The sandbox's directory in every tree.
    pub(crate) fn dirs(&self, traces: &Traces) -> Vec<PathBuf> {
        self.hierarchies.iter().map(|h| h.mount.join(&traces.cgroup)).collect()
    }

    /// What a sandbox's programs are shown of its own groups: their limits, and what they use.
    pub(crate) fn shown(&self, traces: &Traces) -> Vec<OwnGroup> {
        let of = |tree: &Hierarchy, name| OwnGroup { name, dir: tree.mount.join(&traces.cgroup) };
        if self.mode == CgroupMode::V2 {
            return self.hierarchies.first().map(|tree| of(tree, None)).into_iter().collect();
        }
        // A controller is in one tree: where that is of version 2, its files have other names.
        let legacy = |name: &str| self.with(name).filter(|tree| !tree.unified);
        SHOWN.into_iter().filter_map(|name| Some(of(legacy(name)?, Some(name)))).collect()
    }

    /// Pids of the sandbox's processes.
    pub(crate) fn members(&self, traces: &Traces) -> Vec<u32> {
        let tree = self.with("pids").or(self.hierarchies.first());
        let group = tree.map(|tree| tree.mount.join(&traces.cgroup));
        group.and_then(|group| listed(&group).ok()).unwrap_or_default()
    }

    /// Names of all groups of all sandboxes, whatever their state directory.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .hierarchies
            .iter()
            .filter_map(|h| fs::read_dir(h.mount.join(CGROUP_PARENT)).ok())
            .flat_map(|entries| entries.flatten())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Peak memory in MiB, rounded up.
    pub(crate) fn peak_mem_mb(&self, traces: &Traces) -> Option<u64> {
        let memory = self.with("memory")?;
        let dir = memory.mount.join(&traces.cgroup);
        let file = if memory.unified { "memory.peak" } else { "memory.max_usage_in_bytes" };
        let bytes: u64 = fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok()?;
        Some(bytes.div_ceil(1024 * 1024))
    }

    /// Bytes of memory that are counted for the group itself.
    pub(crate) fn used_bytes(&self, traces: &Traces) -> Option<u64> {
        let memory = self.with("memory")?;
        let file = if memory.unified { "memory.current" } else { "memory.usage_in_bytes" };
        let path = memory.mount.join(&traces.cgroup).join(file);
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// What happened so far.
    pub(crate) fn events(&self, traces: &Traces) -> Events {
        let read = |controller: &str, v1: &str, v2: &str, key: &str| {
            let tree = self.with(controller)?;
            let file = if tree.unified { v2 } else { v1 };
            keyed(&tree.mount.join(&traces.cgroup).join(file), key)
        };
        let tcp = self.with("memory").map(|tree| tree.mount.join(&traces.cgroup).join(TCP_REFUSED));
        let tcp = tcp.and_then(|file| fs::read_to_string(file).ok());
        Events {
            tcp_refused: tcp.and_then(|text| text.trim().parse().ok()).unwrap_or(0),
            oom_kills: read("memory", "memory.oom_control", "memory.events", "oom_kill")
                .unwrap_or(0),
            pids_refused: read("pids", "pids.events", "pids.events", "max").unwrap_or(0),
        }
    }

    /// Kills the processes of a sandbox that were left standing still. Of version 1 they do not die of a signal, so a
    /// runtime or an engine that is to end them would wait in vain.
    pub(crate) fn end_frozen(&self, traces: &Traces) {
        if let Some(group) = self.left_frozen(traces) {
            kill_all(&group, traces);
        }
    }

    /// Kills every process of the sandbox's group and removes it from every tree. What is left is
    /// for the caller to look at.
    pub(crate) fn destroy(&self, traces: &Traces) {
        let mut left = self.dirs(traces);
        for _ in 0..REMOVE_TRIES {
            left.retain(|dir| remove(dir).is_err());
            if left.is_empty() {
                return;
            }
            left.iter().for_each(|dir| kill_all(dir, traces));
            clock::sleep_blocking(Duration::from_millis(1));
        }
    }
}

fn hierarchy(mounted: &MountInfo) -> Option<Hierarchy> {
    let mount = mounted.point.clone();
    match mounted.fs.as_str() {
        "cgroup" => {
            let controllers = mounted.options.split(',').filter(|o| !matches!(*o, "rw" | "ro"));
            let controllers = controllers.map(str::to_owned).collect();
            Some(Hierarchy { mount, controllers, unified: false })
        }
        "cgroup2" => {
            let listed = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
            let controllers = listed.split_whitespace().map(str::to_owned).collect();
            Some(Hierarchy { mount, controllers, unified: true })
        }
        _ => None,
    }
}

/// Where a process enters a group by writing 0 to it, and with it what it becomes.
///
/// A whole process that is moved may be forking, so the kernel first waits until every processor
/// has taken note: 8 to 20 ms, unless somebody else just did that. A thread that moves itself does
/// nothing else meanwhile and waits for nobody; only version 1 has a file for it, and whoever
/// enters by it must have one thread.
pub(crate) fn entrance(group: &Path) -> PathBuf {
    let own_thread = group.join("tasks");
    if own_thread.exists() { own_thread } else { group.join("cgroup.procs") }
}

fn keyed(file: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

/// Removes a group and those that the task's runtime may have made below it.
fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(()) => return Ok(()),
        Err(_) => {}
    }
    for entry in fs::read_dir(dir)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            fs::remove_dir(entry.path())?;
        }
    }
    fs::remove_dir(dir)
}

/// The processes of a group.
pub(crate) fn listed(group: &Path) -> io::Result<Vec<u32>> {
    let listed = fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(listed.lines().filter_map(|line| line.parse().ok()).collect())
}

fn kill_all(dir: &Path, traces: &Traces) {
    // Version 2 kills a whole group in one step; a version 1 group has no such file.
    if fs::write(dir.join("cgroup.kill"), "1").is_err() {
        for pid in listed(dir).unwrap_or_default() {
            process::kill_member(pid, &traces.cgroup);
        }
    }
    // Of version 1 a process that stands still dies when it goes on, before it runs any of its program.
    freeze::thaw(dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_shown_each_of_its_own_groups_once() {
        let tree = |mount: &str, controllers: &str, unified| Hierarchy {
            mount: mount.into(),
            controllers: controllers.split(',').map(str::to_owned).collect(),
            unified,
        };
        let dir = tempfile::tempdir().unwrap();
        let id = cofferdam_contracts::id::SandboxId::parse("sb00000000000000000001").unwrap();
        let traces = Traces::of(dir.path(), dir.path(), &id);
        let shown = |mode, hierarchies| {
            let all = Cgroups { mode, hierarchies }.shown(&traces);
            let text = |group: &OwnGroup| {
                let (all, end) = (group.dir.to_str().unwrap(), traces.cgroup.to_str().unwrap());
                let at = all.strip_suffix(end).unwrap().trim_end_matches('/');
                format!("{}={at}", group.name.unwrap_or_default())
            };
            all.iter().map(text).collect::<Vec<_>>().join(" ")
        };
        let of_one = vec![tree("/c/memory", "memory", false), tree("/c/cpu", "cpu,cpuacct", false)];
        let both = [of_one.clone(), vec![tree("/c/unified", "", true)]].concat();
        let wanted = "memory=/c/memory cpu=/c/cpu cpuacct=/c/cpu";
        assert_eq!(shown(CgroupMode::V1, of_one), wanted);
        assert_eq!(shown(CgroupMode::Hybrid, both), wanted);
        let two = vec![tree("/c", "cpu,memory,pids", true)];
        assert_eq!(shown(CgroupMode::V2, two), "=/c");
    }
}
