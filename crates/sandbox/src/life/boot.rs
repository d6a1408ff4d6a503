//! Making a sandbox up to its agent's first answer.

use std::sync::Arc;

use super::error::{BootError, fault};
use crate::class::input_mounts::ResolvedInputs;
use crate::class::{LaunchInput, StartError};
use crate::host::hostpath::HostSource;
use crate::host::mounts;
use crate::host::setid::SetidScan;
use crate::host::task::blocking;
use crate::life::bare_sandbox::BareSandbox;
use crate::life::bundle::{Bundle, BundleOutcome};
use crate::life::handle::{SandboxHandle, StartInput};
use crate::life::host::Host;
use crate::life::intake::Intake;
use crate::life::runtime_start::start_runtime;
use crate::life::sandbox::KillHandle;
use crate::life::snapshot::InitialFiles;
use crate::life::wipe::{self, BaseRecord, WipeTarget};
use crate::machine::Storable;
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

/// What a sandbox is made of beside its plan.
pub(crate) struct BootParts<'a> {
    /// Inputs of the task, resolved against this host.
    pub resolved: &'a ResolvedInputs<'a>,
    pub base: HostSource,
    /// What it writes through to.
    pub through: SetidScan,
    pub filling: Option<InitialFiles>,
}

/// Makes what the plan says of these parts, up to its agent's first answer. What there is to wipe
/// stands in the subject, whatever the end.
pub(crate) async fn bring_up(
    host: &Host,
    facts: &Arc<HostFacts>,
    plan: &Plan,
    parts: BootParts<'_>,
    subject: &mut WipeTarget,
    intake: &Intake,
) -> Result<BareSandbox, BootError> {
    let BootParts { resolved, base, through, filling } = parts;
    let known = facts.base_digest.clone().filter(|_| plan.base.is(&facts.base));
    let bundle = Bundle::of(plan, &base, resolved, known, facts);
    let mark = bundle.mark.clone();
    let (held, images, intake) = (Arc::clone(facts), host.machines().images(), intake.clone());
    if filling.as_ref().is_some_and(InitialFiles::is_layer) && bundle.parts.is_some() {
        return Err(StartError::Unfillable(plan.class.as_str()).into());
    }
    // Files to fill in take longer than a runtime may be kept waiting.
    let is_read = matches!(&filling, Some(InitialFiles::Stream(_)));
    let early = match is_read {
        true => None,
        false => plan.isolation().launch.start_ahead(LaunchInput::bare(plan, facts)),
    };
    let early = early.transpose()?;
    let (made, ahead) = blocking(move || {
        let mut ahead = None;
        (intake.within(|| bundle.make(&held, &images, filling, early, &mut ahead)), ahead)
    })
    .await;
    let BundleOutcome { hold, digest, groups, disk, ids, memory, stored, parts } =
        match made.ok_or(BootError::Closed).flatten() {
            Ok(made) => made,
            Err(error) => {
                if let Some(started) = ahead {
                    SandboxHandle::of(started, plan).life.killed().await;
                }
                return Err(error);
            }
        };
    subject.base = Some(BaseRecord { name: base.name(), at: Ok(base), digest });
    subject.runtime_reaped = false;
    subject.ids = ids;
    subject.through = through;
    let heard = plan.isolation().launch.hear(&plan.traces);
    let heard = heard.map_err(fault("listening in", &plan.traces.dir))?;
    let memory_dir = memory.as_ref().map(|memory| memory.dir.as_path());
    let input = StartInput {
        groups: &groups,
        disk,
        parts,
        mounts: &resolved.mounts,
        memory: memory_dir,
        stored: stored.as_ref(),
    };
    let (life, agent) = start_runtime(host, facts, plan, &input, ahead).await?;
    let went_on = memory.is_some() || stored.is_some();
    if went_on {
        // New commands get other names than those that go on.
        agent.commands().await.map_err(|source| BootError::Woken { source })?;
    }
    let kill = match life.line() {
        Some(line) => KillHandle::of_line(line),
        None => {
            let (observed, init) = wipe::observe(facts, &plan.traces, Some(plan.class))
                .ok_or(BootError::Unobserved)?;
            let settled = plan.isolation().supervision.settle(plan, facts);
            settled.map_err(|(path, error)| fault("limiting", &path)(error))?;
            subject.observed = Some(observed);
            if plan.isolation().supervision.has_own_mounts() {
                // The kernel waits for every processor, and nobody else has to.
                let beside = plan.traces.beside();
                drop(tokio::spawn(blocking(move || mounts::detach(&beside))));
            }
            KillHandle::new(init)
        }
    };
    let storable = match (life.orders(), mark, input.disk) {
        (Some(orders), Some(mark), Some(disk)) => Some(Storable { orders, mark, disk }),
        _ => None,
    };
    Ok(BareSandbox { hold, life, agent, kill, heard, went_on, storable })
}
