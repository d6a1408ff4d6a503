//! The isolation classes, a folder each, and what differs between them; everything else of a sandbox's life is the
//! same for all.
//!
//! | | container | gvisor | microvm | docker |
//! |---|---|---|---|---|
//! | cgroups | made by the runtime | made by us: its counters must outlive a lost sandbox | made by us, for the emulator; the machine's kernel has its own for the task | made by us, beside those of the engine, whose place is its own matter |
//! | processes | the cgroup's limit | the kernel's own count for each user, the cgroup as a ceiling | the machine's own cgroup | the cgroup's limit |
//! | root | overlay on the host | overlay on the host | overlay in the machine, of a disk that the worker serves | overlay on the host, carried into the container |
//! | egress proxy | met in its network namespace | met at its agent, whose loopback is not the host's | as in gvisor | as in container |
//! | host directory or cached base, copy-on-write | mounted on the host, then bound | as in container | overlay in the machine, whose upper layer its agent tells | mounted on the host, then bound |
//! | stands for the sandbox | pid 1 of its namespace, the agent | the process of its kernel | pid 1 of its namespace, the emulator | as in container |
//! | attempts without a route | counted by its network namespace | told by its kernel, each connect | counted by its kernel, told by its agent | as in container |
//! | the host's `/usr` | overlay in its root | bound, behind its own kernel | as in gvisor | overlay |
//! | users | of its own, where the kernel can | its own kernel's, as the host's nobody | as in gvisor | the engine's |
//! | end | the runtime cleans up, we wait | the runtime is killed, the wipe cleans up | as in gvisor | the wipe has the engine remove it |
//!
//! In the class `remote` nothing of all this is on the host but the agent's stream: see `remote`.
//!
//! **The floors above ask an operation of a part of [`Isolation`], and never which class it is.** A class more is a folder
//! with a type that has all parts, its line in `spec::class`, and its `mod` here.

pub(crate) mod container;
mod detect;
pub(crate) mod docker;
pub(crate) mod gvisor;
pub(crate) mod input_mounts;
mod isolation;
pub(crate) mod memory_support;
pub(crate) mod microvm;
pub(crate) mod program;
mod registry;
pub(crate) mod remote;
#[cfg(test)]
mod sixth;
pub(crate) mod tail;
pub(crate) mod weak;

pub(crate) use detect::{HostRuntimes, class_of};
pub(crate) use isolation::{
    Attempts, ClassProfile, InputMounts, Isolation, LaunchInput, LaunchResult, ReadyStart,
    RemoteLine, RemoteRemoval, RuntimeHandle, ShowsHost, Snapshots, StartError,
};
pub(crate) use registry::{all, detect, of};
