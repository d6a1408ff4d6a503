//! What the probes see in the class `microvm`, where it holds and shows it otherwise.

use super::expectation::{Expectation, expectation};

/// Probes that the machine's own kernel answers otherwise, with every answer that holds there. No filter
/// stands before that kernel: what a call reaches is the machine's and ends with it.
pub(super) const OTHERWISE: [Expectation; 10] = [
    // The tables of the virtual hardware.
    expectation("sys.firmware", &["acpi memmap", "memmap", "acpi", "nothing"]),
    // The usual limit of a login: the queues are memory of the machine's own kernel.
    expectation("limit.queues", &["held", "819200"]),
    // Their number is limited to none.
    expectation("ns.new-user", &["ENOSPC"]),
    // None, or the one that keeps a task from the monitor of a machine without a port.
    expectation("seccomp.mode", &["0", "2"]),
    expectation("seccomp.io-uring", &["done", "EPERM", "ENOSYS"]),
    // Asks for quotas; the machine's disk is read-only and its layer is memory.
    expectation("seccomp.quotactl", &["done", "EPERM", "ENOSYS"]),
    // Keys of a kernel in which nobody else is.
    expectation("keyring.session", &["done", "EPERM"]),
    expectation("keyring.user", &["done", "EPERM"]),
    expectation("keyring.persistent", &["done", "EPERM"]),
    expectation("net.packet", &["EPERM", "EAFNOSUPPORT"]),
];
