//! What the probes see in the class `microvm`, where it holds and shows it otherwise.

/// Probes that the machine's own kernel answers otherwise, with every answer that holds there. No filter
/// stands before that kernel: what a call reaches is the machine's and ends with it.
pub(super) const OTHERWISE: [(&str, &[&str]); 10] = [
    // The tables of the virtual hardware.
    ("sys.firmware", &["acpi memmap", "memmap", "acpi", "nothing"]),
    // The usual limit of a login: the queues are memory of the machine's own kernel.
    ("limit.queues", &["held", "819200"]),
    // Their number is limited to none.
    ("ns.new-user", &["ENOSPC"]),
    // None, or the one that keeps a task from the monitor of a machine without a port.
    ("seccomp.mode", &["0", "2"]),
    ("seccomp.io-uring", &["done", "EPERM", "ENOSYS"]),
    // Asks for quotas; the machine's disk is read-only and its layer is memory.
    ("seccomp.quotactl", &["done", "EPERM", "ENOSYS"]),
    // Keys of a kernel in which nobody else is.
    ("keyring.session", &["done", "EPERM"]),
    ("keyring.user", &["done", "EPERM"]),
    ("keyring.persistent", &["done", "EPERM"]),
    ("net.packet", &["EPERM", "EAFNOSUPPORT"]),
];
