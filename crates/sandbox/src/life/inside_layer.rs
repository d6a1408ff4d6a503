//! Files whose layer lies in a machine: its agent hands them out, and nothing that it says is believed.

use std::io::{self, Write};

use crate::agent::layer_stream::FrozenTask;
use crate::agent::{Agent, AgentError};
use crate::host::upper;
use crate::life::snapshot::LayerSnapshotError;

/// What a stream says beside the bytes of files: names, owners, times. A file has a KiB of a machine's memory, and a path has
/// at most four.
const AROUND: u64 = 4;

/// What a machine has of its host.
#[derive(Clone, Copy)]
pub(crate) struct MachineSize {
    pub mem_bytes: u64,
    /// Of its layer.
    pub disk_bytes: u64,
}

/// Bytes that the stream of a machine of this size may have. Pure.
fn most(size: MachineSize) -> u64 {
    size.disk_bytes.saturating_add(size.mem_bytes.saturating_mul(AROUND))
}

/// Stops the task of a machine and writes its files. Blocking; once `goes_on` says no, it is an error.
pub(crate) fn snapshot(
    agent: &Agent,
    size: MachineSize,
    out: &mut dyn Write,
    goes_on: &dyn Fn() -> bool,
) -> Result<FrozenTask, LayerSnapshotError> {
    let mut files = agent.open_layer_stream(goes_on).map_err(|error| match error {
        AgentError::Refused { error, .. } => LayerSnapshotError::Freeze(io::Error::other(error)),
        error => LayerSnapshotError::Freeze(io::Error::other(error)),
    })?;
    let passed = upper::pass(&mut files, out, most(size));
    passed.and_then(|()| files.end()).map_err(LayerSnapshotError::Files)
}
