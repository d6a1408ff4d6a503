//! What the probes see in the class `gvisor`, where it holds and shows it otherwise.

use super::expectation::{Expectation, expectation};

/// Probes that another kernel answers in other words, with every answer that holds there. Why it
/// holds: what is reached is gVisor's own and ends with the sandbox; what is absent cannot be reached.
/// runsc before 2023 has one errno, EPERM, for every refused system call.
pub(super) const OTHERWISE: [Expectation; 45] = [
    // Its own devices, which lead to no driver of the host's.
    expectation("device.fuse", &["done", "EPERM", "ENOENT", "EACCES"]),
    expectation("device.tun", &["done", "EPERM", "ENOENT", "EACCES"]),
    expectation("device.others", &["fuse net", "nothing"]),
    // Settings that it does not have, and one of its own network stack, which only has a loopback.
    expectation("proc.core-pattern", &["ENOENT", "EROFS", "EACCES"]),
    expectation("proc.caches", &["ENOENT", "EROFS", "EACCES"]),
    expectation("proc.forwarding", &["done", "EROFS", "EACCES"]),
    // A process that is not dumpable is seen by its user all the same. The agent's environment is
    // empty, and its memory and root stay closed.
    expectation("proc.agent-environ", &["done", "EACCES"]),
    expectation("proc.agent-files", &["done", "EACCES"]),
    expectation("ns.mnt", &["ENOENT", "own"]),
    expectation("ns.ipc", &["ENOENT", "own"]),
    expectation("ns.uts", &["ENOENT", "own"]),
    expectation("ns.join", &["ENOENT", "EPERM"]),
    // Fields that its status files lack; without the second one set, it starts no task either.
    expectation("cap.ambient", &["absent", "0000000000000000"]),
    expectation("cap.no-new-privileges", &["absent", "1"]),
    // Among the processes of the sandbox; the host's scheduler and OOM killer are not told.
    expectation("cap.priority", &["done", "EPERM", "EACCES"]),
    expectation("cap.oom-score", &["done", "EPERM", "EACCES"]),
    // Calls between processes came to it later than its filter.
    expectation("ptrace.read-memory", &["ENOSYS", "EPERM"]),
    expectation("ptrace.take-file", &["ENOSYS", "EPERM"]),
    expectation("net.metadata", &["EHOSTUNREACH", "ENETUNREACH"]),
    expectation("net.internet", &["EHOSTUNREACH", "ENETUNREACH"]),
    expectation("net.private", &["EHOSTUNREACH", "ENETUNREACH"]),
    expectation("net.ipv6", &["EHOSTUNREACH", "ENETUNREACH"]),
    expectation("net.packet", &["EPERM", "EAFNOSUPPORT"]),
    expectation("net.vsock", &["EPERM", "EAFNOSUPPORT"]),
    expectation("net.alg", &["EPERM", "EAFNOSUPPORT"]),
    // Its agent is seen by its user, as above; files that it does not have.
    expectation("open:/proc/1/auxv", &["done", "EACCES"]),
    expectation("open:/proc/1/maps", &["done", "EACCES"]),
    expectation("open:/proc/1/smaps", &["done", "EACCES"]),
    // A link to a namespace of its own kernel, from runsc of 2024 on.
    expectation("open:/proc/1/ns/mnt", &["done", "ENOENT", "EACCES"]),
    expectation("open:/proc/1/pagemap", &["ENOENT", "EACCES"]),
    expectation("read:/proc/1/io", &["bytes", "EACCES"]),
    expectation("read:/proc/1/stack", &["ENOENT", "EACCES"]),
    expectation("read:/proc/1/syscall", &["ENOENT", "EACCES"]),
    // Opens from runsc of 2024 on, and answers every write with EIO: the host's key is not pressed.
    expectation("proc.sysrq", &["done", "ENOENT", "EROFS", "EACCES"]),
    // Settings of its own kernel.
    expectation("write:/proc/sys/fs/nr_open", OWN_SETTING),
    expectation("write:/proc/sys/kernel/hostname", OWN_SETTING),
    expectation("write:/proc/sys/kernel/msgmax", OWN_SETTING),
    expectation("write:/proc/sys/kernel/shmmax", OWN_SETTING),
    expectation("write:/proc/sys/kernel/yama/ptrace_scope", OWN_SETTING),
    expectation("write:/proc/sys/net/core/somaxconn", OWN_SETTING),
    expectation("write:/proc/sys/vm/mmap_min_addr", OWN_SETTING),
    expectation("write:/proc/sys/vm/overcommit_memory", OWN_SETTING),
    // Its scheduler knows no priorities, and its devices are its own.
    expectation("call:setpriority.agent", &["done", "EPERM", "EACCES"]),
    // Its sockets are memory of its own process, which its cgroup counts.
    expectation("socket:receive-buffer", &["held", "raised"]),
    expectation("socket:netlink-uevent", &["done", "EPERM", "EPROTONOSUPPORT"]),
];

const OWN_SETTING: &[&str] = &["done", "EROFS", "EACCES", "ENOENT"];

/// Areas, and answers that hold there beside those of the list. Its table of calls refuses by its own words, and what it
/// has of them (asynchronous IO) is memory of its own kernel, which ends with the sandbox.
pub(super) const OF_AREAS: [Expectation; 3] = [
    expectation("calls", &["EINVAL", "EFAULT"]),
    expectation("leases", &["EINVAL"]),
    expectation("sockets", &["EPERM", "EPROTONOSUPPORT"]),
];
