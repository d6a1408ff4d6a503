//! What the probes see in the class `gvisor`, where it holds and shows it otherwise.

/// Probes that another kernel answers in other words, with every answer that holds there. Why it
/// holds: what is reached is gVisor's own and ends with the sandbox; what is absent cannot be reached.
/// runsc before 2023 has one errno, EPERM, for every refused system call.
pub(super) const OTHERWISE: [(&str, &[&str]); 24] = [
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
    ("ptrace.take-file", &["ENOSYS", "EPERM"]),
    ("net.metadata", &["EHOSTUNREACH", "ENETUNREACH"]),
    ("net.internet", &["EHOSTUNREACH", "ENETUNREACH"]),
    ("net.private", &["EHOSTUNREACH", "ENETUNREACH"]),
    ("net.ipv6", &["EHOSTUNREACH", "ENETUNREACH"]),
    ("net.packet", &["EPERM", "EAFNOSUPPORT"]),
    ("net.vsock", &["EPERM", "EAFNOSUPPORT"]),
    ("net.alg", &["EPERM", "EAFNOSUPPORT"]),
];
