//! The ways in which a sandbox's runtime begins: one that waits, a stored one, a new one.
//!
//! ```text
//! the memory that it was paused with --missed--> why
//! a machine that waits --missed--> a stored one --missed--> the same, booted --missed--> why
//!        |                              |                       |
//!        +------------------------------+---------------------- the agent's first answer
//! ```

use std::sync::Arc;

use crate::agent::Agent;
use crate::class::LaunchResult;
use crate::life::error::BootError;
use crate::life::handle::{BootFault, ClaimFault, RuntimeStart, SandboxHandle, StartInput};
use crate::life::host::Host;
use crate::life::warm::WarmPool;
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

/// Starts what holds the sandbox of a plan, if that was not started early, and meets its agent. A machine that waits or is stored and does
/// not come to life is a reason to take the next way, and none to fail.
pub(crate) async fn start_runtime(
    host: &Host,
    facts: &Arc<HostFacts>,
    plan: &Plan,
    input: &StartInput<'_>,
    ahead: Option<LaunchResult>,
) -> Result<(SandboxHandle, Agent), BootError> {
    let begun = async {
        match take_waiting(host, facts, plan, input).await? {
            Some(begun) => Ok(begun),
            None => start(host, facts, plan, input, ahead).await,
        }
    };
    // A machine takes as long as its files want. What was started of it is its cgroup's, and ends with that.
    let begun = match plan.isolation().snapshots.has_layer_inside() {
        false => begun.await,
        true => tokio::select! {
            begun = begun => begun,
            () = host.unwanted().discarded(&plan.traces.id) => Err(BootError::Unwanted),
        },
    };
    // Not before: what it makes would have to share the processors.
    if input.disk.is_some() {
        WarmPool::want(&host.machines().warm(), host.machines().pool(), plan, Arc::clone(facts));
    }
    begun
}

/// Takes a machine that waits, if one does.
async fn take_waiting(
    host: &Host,
    facts: &HostFacts,
    plan: &Plan,
    input: &StartInput<'_>,
) -> Result<Option<(SandboxHandle, Agent)>, BootError> {
    let Some(disk) = input.disk.as_ref().filter(|_| input.stored.is_none()) else {
        return Ok(None);
    };
    let Some(machine) = host.machines().warm().take(plan, facts) else { return Ok(None) };
    match machine.meet(input, disk).await {
        Ok(begun) => Ok(Some(begun)),
        Err(ClaimFault::Said(fault)) => Err(BootError::Machine { fault }),
        Err(ClaimFault::Files(source)) => Err(BootError::Fill { source }),
        Err(ClaimFault::Lost(why)) => {
            tracing::warn!(sandbox = %plan.traces.id, why, "a machine that waited was lost");
            Ok(None)
        }
    }
}

/// Restores a stored machine, or starts whatever the class is.
async fn start(
    host: &Host,
    facts: &HostFacts,
    plan: &Plan,
    input: &StartInput<'_>,
    ahead: Option<LaunchResult>,
) -> Result<(SandboxHandle, Agent), BootError> {
    let launch = plan.isolation().launch;
    let pool = host.machines().pool();
    let restoring = input.disk.as_ref().and_then(|_| pool.take(plan, facts));
    let restoring = restoring.filter(|_| input.stored.is_none());
    if let Some(mut restoring) = restoring {
        let on = input.input(plan, facts, restoring.lent.take());
        let RuntimeStart { life, stream } = SandboxHandle::of(launch.start(on).await?, plan);
        match life.meet_or_end(stream, input.parts.clone()).await {
            Ok(begun) => return Ok(begun),
            // The sandbox's own, which a boot would not change.
            Err(ClaimFault::Said(fault)) => return Err(BootError::Machine { fault }),
            Err(ClaimFault::Files(source)) => return Err(BootError::Fill { source }),
            Err(ClaimFault::Lost(why)) => {
                tracing::warn!(sandbox = %plan.traces.id, why, "a stored machine did not come to life");
                pool.failed(&restoring.stored);
            }
        }
    }
    let started = match ahead {
        Some(started) => started,
        None => launch.start(input.input(plan, facts, input.inherited_fd()?)).await?,
    };
    let RuntimeStart { mut life, mut stream } = SandboxHandle::of(started, plan);
    if input.memory.is_some()
        && let Err(error) = Agent::wake(&mut stream).await
    {
        tracing::warn!(sandbox = %plan.traces.id, %error, "a stored agent could not be woken");
    }
    match life.meet(stream, input.parts.clone()).await {
        Ok(agent) => {
            // Not before: its boot would have to share the processors.
            if input.disk.is_some() {
                pool.want(plan, facts);
            }
            Ok((life, agent))
        }
        Err(missed) => {
            let log = life.last_words().await;
            Err(match missed {
                BootFault::Late => BootError::Silent { log },
                BootFault::Ended => BootError::Ended { log },
                BootFault::Said(fault) => BootError::Machine { fault },
                BootFault::Files(source) => BootError::Fill { source },
            })
        }
    }
}
