//! Taking over a sandbox elsewhere whose worker is gone: it has its files, and what it was told to run runs
//! or has run.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::error::error_chain;

use crate::agent::Agent;
use crate::class::remote::{self, RemoteError};
use crate::class::tail::LOG_BYTES;
use crate::life::command_names::CommandNames;
use crate::life::error::BootError;
use crate::life::handle::{BootFault, RuntimeStart, SandboxHandle};
use crate::life::host::Host;
use crate::life::network::Network;
use crate::life::sandbox::{KillHandle, Sandbox};
use crate::life::service::Services;
use crate::life::wipe::WipeTarget;
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;
use crate::spec::provider::RemoteLocation;

/// Why a sandbox elsewhere was not taken over.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// Its provider has it no more, or this worker has another provider: it will not be met.
    #[error("{0}")]
    Gone(String),
    /// It may be there, and may be met a moment later.
    #[error("{0}")]
    Silent(String),
}

impl Host {
    /// Whom this worker asks for sandboxes, and for how long one outlives whoever prolongs it.
    #[must_use]
    pub fn elsewhere(&self) -> Option<(String, Duration)> {
        let provider = self.facts().provider.as_ref()?;
        Some((provider.place(), provider.term()))
    }
}

/// Meets the agent of a sandbox that another worker made of the same plan. Its commands are asked for in
/// the same order again: what ran is not run twice, what runs is followed.
pub async fn resume(
    host: &Host,
    plan: &Plan,
    place: &RemoteLocation,
) -> Result<Sandbox, ResumeError> {
    let (clock, facts) = (Stopwatch::start(), host.shared());
    let own = facts.provider.as_ref().map(|provider| provider.place());
    if own.as_ref() != Some(&place.provider) {
        return Err(ResumeError::Gone(format!("this worker does not ask {}", place.provider)));
    }
    let (life, agent) = met(plan, &facts, &place.id).await?;
    let gone = || ResumeError::Gone("the sandbox is not elsewhere".to_owned());
    let line = life.line().ok_or_else(gone)?;
    let mut effective = plan.effective.clone();
    effective.limits = line.limits(effective.limits);
    let mut subject = WipeTarget::found(plan.traces.clone());
    subject.class = Some(plan.class);
    let network = Network::new(host.egress(), plan.class, None, agent.clone());
    Ok(Sandbox {
        facts: Arc::clone(&facts),
        subject,
        agent,
        life,
        went_on: false,
        storable: None,
        kill: KillHandle::of_line(line),
        init_pid: 0,
        boot_ms: clock.elapsed_ms(),
        peak_mem_mb: AtomicU64::new(0),
        effective,
        stream_limit_bytes: plan.stream_limit_bytes,
        network,
        unrouted: None,
        _hearing: None,
        services: Services::default(),
        trees: Vec::new(),
        fresh: Vec::new(),
        is_bare: false,
        _hold: None,
        weight: None,
        cached: None,
        commands: CommandNames::default(),
    })
}

/// Meets the agent of a sandbox elsewhere that another worker began.
async fn met(
    plan: &Plan,
    facts: &HostFacts,
    id: &str,
) -> Result<(SandboxHandle, Agent), ResumeError> {
    let started = remote::attach(plan, facts.provider.as_ref(), id, LOG_BYTES).await;
    let started = started.map_err(|error| {
        let words = error_chain(&error);
        match error {
            RemoteError::Gone => ResumeError::Gone(words),
            _ => ResumeError::Silent(words),
        }
    })?;
    let RuntimeStart { mut life, stream } = SandboxHandle::of(started, plan);
    let missed = match life.meet(stream, None).await {
        Ok(agent) => return Ok((life, agent)),
        Err(missed) => missed,
    };
    let log = life.last_words().await;
    let error = match missed {
        BootFault::Late => BootError::Silent { log },
        BootFault::Ended | BootFault::Said(_) | BootFault::Files(_) => BootError::Ended { log },
    };
    Err(ResumeError::Silent(error.to_string()))
}
