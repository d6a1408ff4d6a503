//! Whether QEMU makes machines with the host's processor here: by booting one.

use std::time::Duration;

use super::kvm::shown;
use super::shape::Shape;
use super::spare_machine::SpareMachine;
use crate::host::runtime::Runtime;
use crate::spec::machine::{Accel, Machine};

/// A machine on real hardware is there after 0.3 s.
const PROBE_MS: u64 = 5_000;
const PROBE_MB: u64 = 192;

/// What works here, remembered until the host's next start.
pub(super) fn probe(machine: &Machine, qemu: &Runtime) -> Accel {
    let tried = shown(&format!("{} {}", qemu.version, machine.release), || boot(machine, qemu));
    match tried {
        Ok(()) => Accel::Kvm,
        Err(why) => Accel::Software { why },
    }
}

fn boot(machine: &Machine, qemu: &Runtime) -> Result<(), String> {
    let limit = Duration::from_millis(PROBE_MS);
    let shape = Shape { mem_mb: PROBE_MB, cpus: 1 };
    SpareMachine::start(machine, qemu, shape, None, limit)
        .map_err(|error| error.to_string())?
        .greeting()
}
