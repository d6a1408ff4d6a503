//! A machine whose monitor is told over HTTP what it is.

use std::io;
use std::time::Duration;

use crate::class::isolation::{LaunchInput, LaunchResult, RuntimeHandle as _, StartError};
use crate::class::{program, tail};
use crate::host::starter;
use crate::machine::MACHINE_BOOT_MS;
use crate::machine::monitor::{self, Kind};

/// Starts a monitor, tells it what its machine is and meets the machine's init.
pub(super) async fn start(kind: Kind, on: LaunchInput<'_>) -> Result<LaunchResult, StartError> {
    let LaunchInput { plan, facts, groups, disk, .. } = on;
    let fault = |source| StartError::Spawn { path: plan.runtime.path.clone(), source };
    // Without them the class is absent, and no plan names it.
    let (Some(machine), Some(disk)) = (&facts.machine, disk) else {
        return Err(fault(io::ErrorKind::NotFound.into()));
    };
    let prepared = monitor::prepare(kind, plan, groups, machine, disk);
    let (place, serving, mut command) = prepared.map_err(fault)?;
    let spawned = starter::start(move || command.process_group(0).spawn());
    let child = spawned.map_err(fault)?;
    let (mut holder, log) = program::held(child, Some(serving));
    let limit = Duration::from_millis(MACHINE_BOOT_MS);
    let begun = tokio::select! {
        biased;
        begun = tokio::time::timeout(limit, place.begin(kind.monitor())) => begun.unwrap_or_else(
            |_| Err("its machine did not answer in time".to_owned()),
        ),
        _ = holder.wait() => Err("it ended".to_owned()),
    };
    match begun {
        // It does not end with its machine's stream.
        Ok(stream) => {
            let started = LaunchResult::of(Box::new(holder), log, stream);
            Ok(LaunchResult { ends_with_stream: false, ..started })
        }
        Err(fault) => {
            holder.kill().await;
            let (program, log) = (kind.program(), tail::said(log).await);
            Err(StartError::Monitor { program, fault, log })
        }
    }
}
