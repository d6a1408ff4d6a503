//! Sockets whose queues no cgroup counts, bounded by their number.
//!
//! ```text
//! what is queued                                   counted by      bounded by
//! TCP and UDP data, once a program has the socket  the cgroup      its limit
//! UNIX data                                        the cgroup      its limit
//! netlink's messages, any socket's error queue     nobody          SO_RCVBUF x sockets   <- here
//! TCP data on connections that nobody accepted     nobody          tcp_mem of the host   <- here
//! ```
//! The filter of system calls keeps `SO_RCVBUF` at the host's default (decision 0055), so a number of sockets is a number of
//! bytes. The kernel has no limit for that number: the worker looks at it while a command runs, and ends the command.

use std::fs;
use std::path::PathBuf;

use crate::host::cgroup::Cgroups;
use crate::host::process;
use crate::host::traces::Traces;

/// Looks between two at the connections that wait for `accept`: the kernel walks every connection of the host for it.
const WAITING_EVERY: u32 = 8;
/// A program may have as many, however small its memory is.
const LEAST: u64 = 64;
/// What a connection takes beside its data.
const EACH: u64 = 4_096;
/// `TCP_ESTABLISHED` and `TCP_CLOSE_WAIT`: data may wait there for an `accept`.
const WITH_DATA: [&str; 2] = ["01", "08"];

/// What is allowed, and where to look.
#[derive(Debug, Clone)]
pub(crate) struct SocketLimits {
    /// `/proc/<pid>/net` of the sandbox's first process.
    net: PathBuf,
    init: u32,
    /// Sockets that are neither TCP's nor UNIX's.
    most: u64,
    /// Bytes that wait for an `accept`.
    most_waiting: u64,
    looks: u32,
}

/// What was too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketExcess {
    /// So many sockets, of which so many are allowed.
    SocketLimits(u64, u64),
    /// So many bytes on connections that nobody accepted.
    Waiting(u64, u64),
}

impl SocketExcess {
    /// In words for the cause of a command's end.
    pub(crate) fn words(self) -> String {
        match self {
            Self::SocketLimits(found, most) => format!(
                "it had {found} sockets whose queues are kernel memory outside the memory limit; {most} are allowed"
            ),
            Self::Waiting(found, most) => format!(
                "{found} bytes waited on TCP connections that it did not accept; {most} are allowed"
            ),
        }
    }
}

impl SocketLimits {
    /// For a sandbox on the host's network stack. All queues together hold at most as much again as its memory.
    pub(crate) fn of(init: u32, mem_mb: u64, socket_bytes: u64) -> Self {
        let bytes = mem_mb.saturating_mul(1024 * 1024);
        Self {
            net: PathBuf::from(format!("/proc/{init}/net")),
            init,
            most: most(bytes, socket_bytes),
            most_waiting: bytes,
            looks: 0,
        }
    }

    /// Looks once, and ends every process of the sandbox but its agent where there is too much.
    pub(crate) fn look(&mut self, cgroups: &Cgroups, traces: &Traces) -> Option<SocketExcess> {
        let excess = self.excess()?;
        for pid in cgroups.members(traces).into_iter().filter(|pid| *pid != self.init) {
            process::kill_member(pid, &traces.cgroup);
        }
        Some(excess)
    }

    fn excess(&mut self) -> Option<SocketExcess> {
        self.looks = self.looks.wrapping_add(1);
        let used = used(&self.read("sockstat"))?;
        if used <= self.most {
            return None;
        }
        let (tcp, unix) = held(&self.read("protocols"));
        let found = used.saturating_sub(tcp.saturating_add(unix));
        if found > self.most {
            return Some(SocketExcess::SocketLimits(found, self.most));
        }
        if tcp <= self.most || !self.looks.is_multiple_of(WAITING_EVERY) {
            return None;
        }
        let found = waiting(&self.read("tcp")).saturating_add(waiting(&self.read("tcp6")));
        (found > self.most_waiting).then_some(SocketExcess::Waiting(found, self.most_waiting))
    }

    /// Empty where the sandbox has ended.
    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.net.join(name)).unwrap_or_default()
    }
}

fn most(bytes: u64, socket_bytes: u64) -> u64 {
    (bytes / socket_bytes.max(1)).max(LEAST)
}

/// Every socket of the namespace, by `sockstat`.
fn used(sockstat: &str) -> Option<u64> {
    sockstat.lines().find_map(|line| line.strip_prefix("sockets: used ")?.trim().parse().ok())
}

/// TCP's and UNIX's sockets of the namespace, by `protocols`: name, size, sockets.
fn held(protocols: &str) -> (u64, u64) {
    let (mut tcp, mut unix) = (0_u64, 0_u64);
    for line in protocols.lines() {
        let mut words = line.split_whitespace();
        let name = words.next();
        let count: Option<u64> = words.nth(1).and_then(|count| count.parse().ok());
        match (name, count) {
            (Some("TCP" | "TCPv6" | "MPTCP" | "MPTCPv6"), Some(count)) => tcp += count,
            (Some("UNIX" | "UNIX-STREAM"), Some(count)) => unix += count,
            _ => {}
        }
    }
    (tcp, unix)
}

/// Bytes of connections without an inode, which nobody accepted, and of what they received, by `tcp` or `tcp6`.
fn waiting(table: &str) -> u64 {
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (state, queues, inode) = (words.get(3)?, words.get(4)?, words.get(9)?);
        if *inode != "0" || !WITH_DATA.contains(state) {
            return None;
        }
        let received = u64::from_str_radix(queues.split_once(':')?.1, 16).ok()?;
        Some(received.saturating_add(EACH))
    };
    table.lines().skip(1).filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTOCOLS: &str = "\
protocol  size sockets  memory press maxhdr  slab module     cl co di ac io in de sh ss gs se re bi br ha uh gp em
PINGv6    1344      0      -1   NI       0   yes  kernel      y  y  y  n  n  y  n  n  y  y  y  y  y  y  n  y  y  n
TCPv6     2432      3     247   no     192   yes  kernel      y  y  y  y  y  y  y  y  y  y  y  y  n  y  y  y  y  y
UNIX-STREAM 1152     20      -1   NI       0   yes  kernel      y  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n
UNIX      1152      4      -1   NI       0   yes  kernel      y  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n
UDP       1344      9     201   NI       0   yes  kernel      y  y  y  n  y  y  y  n  y  y  y  y  n  n  y  y  y  n
TCP       2304     15     247   no     192   yes  kernel      y  y  y  y  y  y  y  y  y  y  y  y  n  y  y  y  y  y
";
    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:B1A7 00000000:0000 0A 00000000:00000007 00:00000000 00000000     0        0 81234 1 0 100 0 0 10 0
   1: 0100007F:B1A7 0100007F:9C4E 01 00000000:00010000 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1
   2: 0100007F:B1A7 0100007F:9C50 08 00000000:00000001 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1
   3: 0100007F:B1A7 0100007F:9C52 01 00000000:00100000 00:00000000 00000000     0        0 81236 1 0 20 4 30 10 -1
   4: 0100007F:B1A7 0100007F:9C54 06 00000000:00100000 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1
";

    #[test]
    fn s6_the_kernels_tables_tell_which_sockets_hold_memory_that_nobody_counts() {
        assert_eq!(used("sockets: used 105\nTCP: inuse 15 orphan 0\n"), Some(105));
        assert_eq!(used(""), None);
        assert_eq!(held(PROTOCOLS), (18, 24));
        assert_eq!(waiting(TABLE), 0x1_0001 + 2 * EACH);
        assert_eq!((held(""), waiting("")), ((0, 0), 0));
    }

    #[test]
    fn s6_queues_together_hold_no_more_than_the_memory_limit_again() {
        let (limit, each) = (128 << 20, 256 << 10);
        assert_eq!(most(limit, each), 512);
        assert!(most(limit, each) * each <= limit);
        assert_eq!(most(1 << 20, each), LEAST);
        assert_eq!(most(limit, 0), limit);
    }
}
