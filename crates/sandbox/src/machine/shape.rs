//! How large a machine is, and what its emulator may take of the host. Pure.

use cofferdam_contracts::sandbox::Limits;

use crate::spec::machine::{Accel, Machine};
use crate::spec::plan::Plan;

/// What the machine's kernel takes before there is a task: 35 MiB of itself, the initial files, and
/// room to work.
const KERNEL_MB: u64 = 64;
/// What the emulator takes besides the machine's memory: its programs, 64 MiB of translated code,
/// and the tables for it.
const EMULATOR_MB: u64 = 256;
/// Threads of the emulator: one for each processor, and a few for its devices.
const EMULATOR_PIDS: u64 = 64;

/// What of a machine is fixed before its sandbox is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub mem_mb: u64,
    pub cpus: u32,
}

impl Shape {
    /// The shape of a plan's machine.
    pub(super) fn of(plan: &Plan, machine: &Machine) -> Self {
        let limits = plan.effective.limits;
        // A fraction of a processor is one processor, and the host's quota for the fraction.
        // Emulated ones wait for each other at boot, on a busy host for longer than a boot may take.
        let most = match machine.accel {
            Accel::Kvm => limits.cpu.unwrap_or(1.0).ceil(),
            Accel::Software { .. } => 1.0,
        };
        Self {
            mem_mb: limits.mem_mb.unwrap_or(0).saturating_add(KERNEL_MB),
            cpus: format!("{most:.0}").parse().unwrap_or(1),
        }
    }
}

/// The host's limits on the emulator of a sandbox with these limits.
pub(crate) fn host_limits(limits: Limits) -> Limits {
    let mem_mb = limits.mem_mb.unwrap_or(0).saturating_add(KERNEL_MB + EMULATOR_MB);
    Limits { mem_mb: Some(mem_mb), pids: Some(EMULATOR_PIDS), ..limits }
}
