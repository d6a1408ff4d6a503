//! Processes of the host, named so that a reused pid is never taken for another.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use cofferdam_contracts::sandbox::ProcessIdentity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process: its pid alone says nothing once it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub pid: u32,
    /// Clock ticks after boot.
    pub started: u64,
}

impl From<Process> for ProcessIdentity {
    fn from(Process { pid, started }: Process) -> Self {
        Self { pid, started }
    }
}

impl From<ProcessIdentity> for Process {
    fn from(ProcessIdentity { pid, started }: ProcessIdentity) -> Self {
        Self { pid, started }
    }
}

impl Process {
    /// The process that has this pid now.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the command in brackets and may hold anything; the 22nd is the start.
        let (_, tail) = stat.rsplit_once(')')?;
        let mut fields = tail.split_whitespace();
        if fields.next()? == "Z" {
            // A zombie runs nothing and holds nothing; its parent is about to reap it.
            return None;
        }
        Some(Self { pid, started: fields.nth(18)?.parse().ok()? })
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// A handle that stays with the process that has this pid now.
pub(crate) fn handle(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Kills it. A process that has ended is no error: that is what was wanted.
pub(crate) fn kill(handle: &OwnedFd) {
    let _ = pidfd_send_signal(handle, Signal::KILL);
}

/// Whether it has not ended yet: the handle of a process that has is readable.
pub(crate) fn is_running(handle: &OwnedFd) -> bool {
    !has_ended_within(handle, 0)
}

/// The same after a wait.
pub(crate) fn has_ended_within(handle: &OwnedFd, limit_ms: u32) -> bool {
    let mut asked = [PollFd::new(handle, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: i64::from(limit_ms / 1_000),
        tv_nsec: i64::from(limit_ms % 1_000) * 1_000_000,
    };
    loop {
        match poll(&mut asked, Some(&limit)) {
            Ok(0) => return false,
            // The time begins anew, which only a stream of signals could draw out.
            Err(Errno::INTR) => {}
            _ => return true,
        }
    }
}

/// Kills a pid if it is a member of this cgroup.
pub(crate) fn kill_member(pid: u32, cgroup: &Path) {
    let Some(handle) = handle(pid) else { return };
    if is_member(pid, cgroup) {
        kill(&handle);
    }
}

/// Whether a pid is in this cgroup, in any tree.
pub(crate) fn is_member(pid: u32, cgroup: &Path) -> bool {
    let listed = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    listed
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .any(|path| Path::new(path.trim_start_matches('/')).starts_with(cgroup))
}

/// Whether it is the first process of a pid namespace below ours.
pub(crate) fn is_init(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let mut pids = pids.unwrap_or_default().split_whitespace();
    pids.next().is_some() && pids.next_back() == Some("1")
}

/// Every pid of the host that this process can see.
pub(crate) fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// A network namespace that is held open. The kernel hands the number of a namespace out again as
/// soon as it is gone, to the next sandbox perhaps; while it is held, its number names it alone.
#[derive(Debug, Clone)]
pub(crate) struct Netns {
    /// Text such as `net:[4026532001]`.
    pub name: String,
    held: Arc<File>,
}

impl Netns {
    /// The one that this pid is in now.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let held = File::open(format!("/proc/{pid}/ns/net")).ok()?;
        let link = fs::read_link(format!("/proc/self/fd/{}", held.as_raw_fd())).ok()?;
        Some(Self { name: link.to_string_lossy().into_owned(), held: Arc::new(held) })
    }

    /// What holds it, to be entered by.
    pub(crate) fn held(&self) -> &File {
        &self.held
    }

    /// Pids of every process in it.
    pub(crate) fn members(&self) -> Vec<u32> {
        members_of(&self.name)
    }
}

/// Pids of every process in the network namespace of this name.
pub(crate) fn members_of(netns: &str) -> Vec<u32> {
    let is_in = |pid: &u32| {
        let link = fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default();
        link.as_os_str() == netns
    };
    all().into_iter().filter(is_in).collect()
}

/// Pids of runtimes that were started for this sandbox: its id and bundle stand in their argv.
pub(crate) fn runtimes_of(id: &str, bundle: &Path) -> Vec<u32> {
    let bundle = bundle.as_os_str().as_encoded_bytes();
    let is_ours = |pid: &u32| {
        let argv = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut args = argv.split(|byte| *byte == 0);
        // runsc's own children are told `--bundle=...` in one word.
        let names_bundle = |arg: &[u8]| arg.rsplit(|byte| *byte == b'=').next() == Some(bundle);
        args.clone().any(names_bundle) && args.any(|arg| arg == id.as_bytes())
    };
    all().into_iter().filter(is_ours).collect()
}
