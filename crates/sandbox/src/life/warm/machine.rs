//! One machine that waits, and how it becomes a sandbox's.
//!
//! ```text
//! cgroups under a name of its own [ emulator, restored: the warm-up, on an empty disk ]
//! take: the sandbox's disk is shown -> its processes enter the sandbox's cgroups -> the init is told
//! ```
//! **Nothing of a sandbox is in it before the sandbox's limits hold it.** A crash leaves its cgroups, by
//! which it is found like any other orphan. What memory it took while it waited stays counted where
//! it was taken, so the sandbox's own limit is lower by as much.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::random;
use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::Limits;
use tokio::net::UnixStream;

use super::Names;
use crate::agent::Agent;
use crate::class::LaunchInput;
use crate::host::limit;
use crate::host::task::blocking;
use crate::host::traces::Traces;
use crate::life::handle::{ClaimFault, RuntimeStart, SandboxHandle, StartInput};
use crate::machine::{self, CurrentDisk, Disk, MachineRestore, SetupError};
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

/// From the start of its emulator to the end of the warm-up: 0.6 s, longer on a busy host.
const MAKE_MS: u64 = 30_000;

/// It ends with this value unless it was taken; its cgroups do in any case.
#[derive(Debug)]
pub(crate) struct WarmMachine {
    // Dropped in this order: the emulator is killed before its groups are removed.
    life: SandboxHandle,
    stream: UnixStream,
    shown: Arc<CurrentDisk>,
    place: WaitingCgroups,
}

/// The cgroups in which it waits.
#[derive(Debug)]
struct WaitingCgroups {
    facts: Arc<HostFacts>,
    traces: Traces,
    names: Names,
    groups: Vec<PathBuf>,
}

impl WarmMachine {
    /// Restores one and warms it up. What it fails by, in words; nothing is left of it then.
    pub async fn make(
        names: Names,
        plan: Plan,
        facts: Arc<HostFacts>,
        mut restoring: MachineRestore,
    ) -> Result<Self, String> {
        let place = WaitingCgroups::make(names, Arc::clone(&facts), &plan)
            .map_err(|(path, error)| format!("{}: {error}", path.display()))?;
        let plan = Plan { traces: place.traces.clone(), ..plan };
        let shown = machine::empty().map_err(|error| error.to_string())?;
        let lent = restoring.lent.take();
        let disk = Some(Arc::clone(&shown));
        let on =
            LaunchInput { groups: &place.groups, disk, lent, ..LaunchInput::bare(&plan, &facts) };
        let started = plan.isolation().launch.start(on).await;
        let started = started.map_err(|error| error_chain(&error))?;
        let RuntimeStart { life, stream } = SandboxHandle::of(started, &plan);
        let mut machine = Self { life, stream, shown, place };
        let limit = Duration::from_millis(MAKE_MS);
        let rehearsed = tokio::select! {
            biased;
            done = tokio::time::timeout(limit, machine::rehearse(&mut machine.stream)) => match done {
                Ok(Ok(())) => return Ok(machine),
                Ok(Err(SetupError::Said(fault))) => fault,
                Ok(Err(_)) => "its stream ended".to_owned(),
                Err(_) => "its warm-up did not end in time".to_owned(),
            },
            () = machine.life.ended() => "it ended".to_owned(),
        };
        drop(machine.stream);
        Err(format!("{rehearsed}: {}", machine.life.killed().await))
    }

    /// Gives it to a sandbox, whose agent answers then.
    pub async fn meet(
        self,
        input: &StartInput<'_>,
        disk: &Arc<Disk>,
    ) -> Result<(SandboxHandle, Agent), ClaimFault> {
        let Self { mut life, stream, shown, place } = self;
        shown.show(Arc::clone(disk));
        let groups = input.groups.to_vec();
        match blocking(move || place.leave_for(&groups)).await {
            Ok(bytes) => {
                life.inherit(bytes);
                life.meet_or_end(stream, input.parts.clone()).await
            }
            Err((path, error)) => {
                life.killed().await;
                Err(ClaimFault::Lost(format!("{}: {error}", path.display())))
            }
        }
    }
}

impl WaitingCgroups {
    /// Makes the cgroups, as wide as those of the sandbox that it is made for; its processors are all.
    fn make(
        names: Names,
        facts: Arc<HostFacts>,
        plan: &Plan,
    ) -> Result<Self, (PathBuf, io::Error)> {
        let name = format!("sb{}", random::secret_hex(10));
        let id = SandboxId::parse(&name)
            .map_err(|error| (PathBuf::from(&name), io::Error::other(error)))?;
        let traces = Traces::of(&facts.state_dir, &facts.live_dir, &id);
        let limits = plan.isolation().profile.host_limits(plan.effective.limits);
        let limits = Limits { cpu: Some(f64::from(facts.cpus)), ..limits };
        let wanted = limit::groups(&facts.cgroups, &traces, limits, facts.cpus);
        let mut place = Self { facts, traces, names: names.clone(), groups: Vec::new() };
        // Held meanwhile: whoever closes the pool finds the groups of every name, or the name is refused.
        let mut known = names.lock();
        if known.closed {
            return Err((PathBuf::from(name), io::Error::other("the pool is closed")));
        }
        known.names.insert(id);
        let made = wanted.make();
        drop(known);
        place.groups = made?;
        Ok(place)
    }

    /// Moves all that is in its groups to these, whose limit of memory is lower from then on by what
    /// stays counted where it was: that many bytes.
    fn leave_for(self, groups: &[PathBuf]) -> Result<u64, (PathBuf, io::Error)> {
        for (from, to) in self.groups.iter().zip(groups) {
            limit::move_all(from, to)?;
        }
        let bytes = self.facts.cgroups.used_bytes(&self.traces).unwrap_or(0);
        limit::lower_memory(groups, bytes)?;
        Ok(bytes)
    }
}

impl Drop for WaitingCgroups {
    fn drop(&mut self) {
        self.facts.cgroups.destroy(&self.traces);
        self.names.lock().names.remove(&self.traces.id);
    }
}
