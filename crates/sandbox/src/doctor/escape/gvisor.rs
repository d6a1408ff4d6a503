//! What the probes see in the class `gvisor`, where it holds and shows it otherwise.

use super::Otherwise;

/// Probes that another kernel answers in other words, with every answer that holds there. Why it
/// holds: what is reached is gVisor's own and ends with the sandbox; what is absent cannot be reached.
/// runsc before 2023 has one errno, EPERM, for every refused system call.
pub(super) const OTHERWISE: [Otherwise; 45] = [
    // Its own devices, which lead to no driver of the host's.
    ("device.fuse", &["done", "EPERM", "ENOENT", "EACCES"]),
    ("device.tun", &["done", "EPERM", "ENOENT", "EACCES"]),
    ("device.others", &["fuse net", "nothing"]),
    // Settings that it does not have, and one of its own network stack, which only has a loopback.
    ("proc.core-pattern", &["ENOENT", "EROFS", "EACCES"]),
    ("proc.caches", &["ENOENT", "EROFS", "EACCES"]),
    ("proc.forwarding", &["done", "EROFS", "EACCES"]),
    // A process that is not dumpable is seen by its user all the same. The agent's environment is
    // empty, and its memory and root stay closed.
    ("proc.agent-environ", &["done", "EACCES"]),
    ("proc.agent-files", &["done", "EACCES"]),
    ("ns.mnt", &["ENOENT", "own"]),
    ("ns.ipc", &["ENOENT", "own"]),
    ("ns.uts", &["ENOENT", "own"]),
    ("ns.join", &["ENOENT", "EPERM"]),
    // Fields that its status files lack; without the second one set, it starts no task either.
    ("cap.ambient", &["absent", "0000000000000000"]),
    ("cap.no-new-privileges", &["absent", "1"]),
    // Among the processes of the sandbox; the host's scheduler and OOM killer are not told.
    ("cap.priority", &["done", "EPERM", "EACCES"]),
    ("cap.oom-score", &["done", "EPERM", "EACCES"]),
    // Calls between processes came to it later than its filter.
    ("ptrace.read-memory", &["ENOSYS", "EPERM"]),
    ("ptrace.take-file", &["ENOSYS", "EPERM"]),
    ("net.metadata", &["EHOSTUNREACH", "ENETUNREACH"]),
    ("net.internet", &["EHOSTUNREACH", "ENETUNREACH"]),
    ("net.private", &["EHOSTUNREACH", "ENETUNREACH"]),
    ("net.ipv6", &["EHOSTUNREACH", "ENETUNREACH"]),
    ("net.packet", &["EPERM", "EAFNOSUPPORT"]),
    ("net.vsock", &["EPERM", "EAFNOSUPPORT"]),
    ("net.alg", &["EPERM", "EAFNOSUPPORT"]),
    // Its agent is seen by its user, as above; files that it does not have.
    ("open:/proc/1/auxv", &["done", "EACCES"]),
    ("open:/proc/1/maps", &["done", "EACCES"]),
    ("open:/proc/1/smaps", &["done", "EACCES"]),
    // A link to a namespace of its own kernel, from runsc of 2024 on.
    ("open:/proc/1/ns/mnt", &["done", "ENOENT", "EACCES"]),
    ("open:/proc/1/pagemap", &["ENOENT", "EACCES"]),
    ("read:/proc/1/io", &["bytes", "EACCES"]),
    ("read:/proc/1/stack", &["ENOENT", "EACCES"]),
    ("read:/proc/1/syscall", &["ENOENT", "EACCES"]),
    // Opens from runsc of 2024 on, and answers every write with EIO: the host's key is not pressed.
    ("proc.sysrq", &["done", "ENOENT", "EROFS", "EACCES"]),
    // Settings of its own kernel.
    ("write:/proc/sys/fs/nr_open", OWN_SETTING),
    ("write:/proc/sys/kernel/hostname", OWN_SETTING),
    ("write:/proc/sys/kernel/msgmax", OWN_SETTING),
    ("write:/proc/sys/kernel/shmmax", OWN_SETTING),
    ("write:/proc/sys/kernel/yama/ptrace_scope", OWN_SETTING),
    ("write:/proc/sys/net/core/somaxconn", OWN_SETTING),
    ("write:/proc/sys/vm/mmap_min_addr", OWN_SETTING),
    ("write:/proc/sys/vm/overcommit_memory", OWN_SETTING),
    // Its scheduler knows no priorities, and its devices are its own.
    ("call:setpriority.agent", &["done", "EPERM", "EACCES"]),
    // Its sockets are memory of its own process, which its cgroup counts.
    ("socket:receive-buffer", &["held", "raised"]),
    ("socket:netlink-uevent", &["done", "EPERM", "EPROTONOSUPPORT"]),
];

const OWN_SETTING: &[&str] = &["done", "EROFS", "EACCES", "ENOENT"];

/// Areas, and answers that hold there beside those of the list. Its table of calls refuses by its own words, and what it
/// has of them (asynchronous IO) is memory of its own kernel, which ends with the sandbox.
pub(super) const OF_AREAS: [Otherwise; 3] = [
    ("calls", &["EINVAL", "EFAULT"]),
    ("leases", &["EINVAL"]),
    ("sockets", &["EPERM", "EPROTONOSUPPORT"]),
];
