//! The ways in which a sandbox's holder begins: one that waits, a stored one, a new one.
//!
//! ```text
//! the memory that it was paused with --missed--> why
//! a machine that waits --missed--> a stored one --missed--> the same, booted --missed--> why
//!        |                              |                       |
//!        +------------------------------+---------------------- the agent's first answer
//! ```

use std::sync::Arc;

use crate::agent::Agent;
use crate::class::Holder;
use crate::life::error::BootError;
use crate::life::hold::{
    Ground, Life, Missed, StartedRuntime, Unmet, ready, start_container, start_monitor,
    start_remote,
};
use crate::life::host::Host;
use crate::life::warm::WarmPool;
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

/// Starts what holds the sandbox of a plan, if that was not started ahead, and meets its agent. A machine that waits or is stored and does
/// not come to life is a reason to take the next way, and none to fail.
pub(crate) async fn begin(
    host: &Host,
    facts: &Arc<HostFacts>,
    plan: &Plan,
    ground: &Ground<'_>,
    ahead: Option<StartedRuntime>,
) -> Result<(Life, Agent), BootError> {
    let begun = async {
        match take_waiting(host, facts, plan, ground).await? {
            Some(begun) => Ok(begun),
            None => start(host, facts, plan, ground, ahead).await,
        }
    };
    // A machine takes as long as its files want. What was started of it is its cgroup's, and ends with that.
    let begun = match plan.isolation().snapshots.has_layer_inside() {
        false => begun.await,
        true => tokio::select! {
            begun = begun => begun,
            () = host.unwanted().told(&plan.traces.id) => Err(BootError::Unwanted),
        },
    };
    // Not before: what it makes would have to share the processors.
    WarmPool::want(&host.machines().warm(), host.machines().pool(), plan, Arc::clone(facts));
    begun
}

/// Takes a machine that waits, if one does.
async fn take_waiting(
    host: &Host,
    facts: &HostFacts,
    plan: &Plan,
    ground: &Ground<'_>,
) -> Result<Option<(Life, Agent)>, BootError> {
    let Some(disk) = ground.disk.as_ref().filter(|_| ground.stored.is_none()) else {
        return Ok(None);
    };
    let Some(machine) = host.machines().warm().take(plan, facts) else { return Ok(None) };
    match machine.meet(ground, disk).await {
        Ok(begun) => Ok(Some(begun)),
        Err(Unmet::Said(fault)) => Err(BootError::Machine { fault }),
        Err(Unmet::Files(source)) => Err(BootError::Fill { source }),
        Err(Unmet::Lost(why)) => {
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
    ground: &Ground<'_>,
    ahead: Option<StartedRuntime>,
) -> Result<(Life, Agent), BootError> {
    let pool = host.machines().pool();
    let restoring = pool.take(plan, facts).filter(|_| ground.stored.is_none());
    if let Some(mut restoring) = restoring {
        let shown = ground.shown();
        let lent = restoring.lent.take();
        let StartedRuntime { life, stream } =
            ready(plan, ground.groups, shown.as_ref(), facts, lent, None)?.start()?;
        match life.meet_or_end(stream, ground.parts.clone()).await {
            Ok(begun) => return Ok(begun),
            // The sandbox's own, which a boot would not change.
            Err(Unmet::Said(fault)) => return Err(BootError::Machine { fault }),
            Err(Unmet::Files(source)) => return Err(BootError::Fill { source }),
            Err(Unmet::Lost(why)) => {
                tracing::warn!(sandbox = %plan.traces.id, why, "a stored machine did not come to life");
                pool.failed(&restoring.stored);
            }
        }
    }
    let holder = plan.isolation().custody.holder(plan);
    let StartedRuntime { mut life, mut stream } = match (ahead, holder) {
        (Some(started), _) => started,
        (None, Holder::Monitor(kind)) => start_monitor(plan, ground, facts, kind).await?,
        (None, Holder::Engine) => start_container(plan, ground.mounts, ground.groups).await?,
        (None, Holder::Provider) => start_remote(plan, facts).await?,
        (None, Holder::Program) => {
            let shown = ground.shown();
            let (lent, memory) = (ground.lent()?, ground.memory);
            ready(plan, ground.groups, shown.as_ref(), facts, lent, memory)?.start()?
        }
    };
    if ground.memory.is_some()
        && let Err(error) = Agent::wake(&mut stream).await
    {
        tracing::warn!(sandbox = %plan.traces.id, %error, "a stored agent could not be woken");
    }
    match life.meet(stream, ground.parts.clone()).await {
        Ok(agent) => {
            // Not before: its boot would have to share the processors.
            pool.want(plan, facts);
            Ok((life, agent))
        }
        Err(missed) => {
            // A monitor does not end with its machine's stream.
            let log = match holder {
                Holder::Monitor(_) => life.killed().await,
                _ => life.last_words().await,
            };
            Err(match missed {
                Missed::Late => BootError::Silent { log },
                Missed::Ended => BootError::Ended { log },
                Missed::Said(fault) => BootError::Machine { fault },
                Missed::Files(source) => BootError::Fill { source },
            })
        }
    }
}
