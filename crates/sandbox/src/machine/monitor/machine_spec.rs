//! What a monitor is told: its machine, and where everything of it is.

use serde_json::Value;

use super::call::MonitorCall;
use crate::machine::shape::Shape;

/// In its working directory: where it listens, where the disk is, and how the names of streams begin.
pub(super) const SOCKET: &str = "api";
pub(super) const DISK: &str = "disk";
pub(super) const STREAM: &str = "stream";
/// The kernel and the initial files, which its user may not look up.
pub(super) const KERNEL: &str = "/proc/self/fd/3";
pub(super) const INITRD: &str = "/proc/self/fd/4";
/// The first number of a machine in its own monitor.
pub(super) const CID: u32 = 3;

/// What a machine is, besides what every one is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MachineSpec {
    pub shape: Shape,
    /// A file that may be its memory.
    pub memory: String,
}

/// A program that is told what its machine is.
pub(crate) trait Monitor: std::fmt::Debug + Sync {
    /// What it is started with.
    fn args(&self) -> [&'static str; 2];
    /// Asks what it is.
    fn greeting(&self) -> MonitorCall;
    /// Its version in the answer.
    fn version<'a>(&self, answer: &'a Value) -> Option<&'a str>;
    /// Describes a machine and starts it, to be said in this order.
    fn start(&self, told: &MachineSpec) -> Vec<MonitorCall>;
}
