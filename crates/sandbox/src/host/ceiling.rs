//! What the kernel has once for the whole host or for each user, and what one sandbox may have of it.

use std::fs;

use rustix::process::{Resource, getrlimit};

use crate::host::cgroup::Cgroups;
use crate::host::guest::AGENT_PIDS;

/// Signals that wait, and POSIX timers, which take one each. The kernel counts them for each user and gives a login
/// some 30,000 for each GiB of memory: a service that uses timers has a dozen.
const SIGNALS: u64 = 4_096;
/// Bytes of POSIX message queues, half of what a login has: four queues of the default size.
const QUEUE_BYTES: u64 = 409_600;

/// The kernel's default of what a socket queues, 208 KiB, with what it takes beside.
const SOCKET_BYTES: u64 = 256 * 1024;
/// From here on even a few sockets hold more than a small sandbox's memory.
const LARGE_SOCKET_BYTES: u64 = 1024 * 1024;

/// Fewer open files than this are no limit but a fault, whatever the host has.
const LEAST_FILES: u64 = 64;

/// Whether TCP's buffers count towards a sandbox's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tcp {
    /// As any other memory (version 2).
    Counted,
    /// By a limit of their own (version 1), of the same size.
    Limited,
    /// Not at all: version 1 without `memory.kmem.tcp.limit_in_bytes`.
    Uncounted,
}

/// What was found on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ceilings {
    /// Pending signals of a task, at most this process's own hard limit.
    pub signals: u64,
    /// Bytes of message queues of a task, likewise.
    pub queue_bytes: u64,
    /// Files that the host's kernel opens (`fs.file-max`).
    pub files: u64,
    /// Whether and how cgroups limit the buffers of TCP.
    pub tcp: Tcp,
    /// Bytes that a socket queues unread, of which no cgroup counts any (`net.core.rmem_default`).
    pub socket_bytes: u64,
}

impl Ceilings {
    pub(crate) fn detect(cgroups: &Cgroups) -> Self {
        let most = |resource, wanted: u64| {
            getrlimit(resource).maximum.map_or(wanted, |hard| wanted.min(hard))
        };
        let number = |path: &str| -> u64 {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.trim().parse().unwrap_or(u64::MAX)
        };
        Self {
            signals: most(Resource::Sigpending, SIGNALS),
            queue_bytes: most(Resource::Msgqueue, QUEUE_BYTES),
            files: number("/proc/sys/fs/file-max"),
            tcp: cgroups.tcp(),
            socket_bytes: number("/proc/sys/net/core/rmem_default").max(SOCKET_BYTES),
        }
    }

    /// Whether few sockets hold much kernel memory: the host's default is far above the kernel's own.
    #[must_use]
    pub fn has_large_sockets(&self) -> bool {
        self.socket_bytes > LARGE_SOCKET_BYTES
    }

    /// Open files of each of so many processes, that all of them together have at most half of the host's.
    #[must_use]
    pub fn nofile(&self, pids: u64) -> u64 {
        (self.files / 2 / pids.saturating_add(AGENT_PIDS)).max(LEAST_FILES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_processes_together_leave_half_of_the_hosts_files() {
        let ceilings = |files| Ceilings {
            signals: 1,
            queue_bytes: 1,
            files,
            tcp: Tcp::Counted,
            socket_bytes: SOCKET_BYTES,
        };
        assert_eq!(ceilings(2_466_183).nofile(256), 4_798);
        assert!(ceilings(2_466_183).nofile(256) * 257 <= 2_466_183 / 2);
        assert_eq!(ceilings(1_000).nofile(u64::MAX), LEAST_FILES);
    }
}
