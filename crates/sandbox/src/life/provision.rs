//! A sandbox from its plan, or the evidence that nothing is left of it.
//!
//! ```text
//! resolve inputs -> mount layer, plant sentinel, mount root, write bundle   (blocking pool)
//!                -> runtime, attached, one end of a socket pair as its stdin
//!                -> agent answers -> observe its process                      `start`
//!                -> upload files -> services, one after another -> Sandbox    `furnish`
//! ```
//! A start that fails at any point is wiped like any other sandbox, and evidenced.

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ambient::own;
use cofferdam_contracts::error::error_chain;

use super::error::ProvisionError;
use crate::cache::CacheBase;
use crate::host::base::Base;
use crate::host::hostpath::HostPath;
use crate::host::task::blocking;
use crate::life::host::Host;
use crate::life::sandbox::Sandbox;
use crate::life::snapshot::InitialFiles;
use crate::life::start::{LayerContents, start};
use crate::life::wipe::{self, WipeTarget};
use crate::spec::input::Input;
use crate::spec::plan::Plan;

/// Makes the sandbox of a plan on the host that it was planned for, and gives it its inputs.
///
/// The future must be run to its end: one that is dropped half-way leaves a dead sandbox for
/// [`crate::reconcile`].
pub async fn provision(
    host: &Host,
    plan: &Plan,
    inputs: &[Input],
) -> Result<Sandbox, ProvisionError> {
    provision_from(host, plan, inputs, LayerContents::default()).await
}

/// The same with the files of a snapshot in its layer. A class that cannot take them is refused by name.
pub async fn provision_filled(
    host: &Host,
    plan: &Plan,
    inputs: &[Input],
    filling: InitialFiles,
) -> Result<Sandbox, ProvisionError> {
    let contents = LayerContents { filling: Some(filling), cache: None };
    provision_from(host, plan, inputs, contents).await
}

/// The same on a base of the dependency cache: then the plan's build phase has nothing to do.
pub async fn provision_on(
    host: &Host,
    plan: &Plan,
    inputs: &[Input],
    cache: Option<CacheBase>,
) -> Result<Sandbox, ProvisionError> {
    provision_from(host, plan, inputs, LayerContents { cache, filling: None }).await
}

async fn provision_from(
    host: &Host,
    plan: &Plan,
    inputs: &[Input],
    contents: LayerContents,
) -> Result<Sandbox, ProvisionError> {
    let clock = Stopwatch::start();
    let facts = host.shared();
    let mut subject = WipeTarget::found(plan.traces.clone());
    // Nothing was started yet, so there is no runtime to look for.
    subject.runtime_reaped = true;
    subject.class = Some(plan.class);
    let error = match start(host, &facts, plan, inputs, contents, &mut subject, clock).await {
        Ok(sandbox) => return Ok(sandbox),
        Err(error) => error,
    };
    let (code, permanent) = (error.code(), error.is_permanent());
    let said = error_chain(&error);
    let is_named = |path: &str| {
        let is = |source: &HostPath| *source == HostPath::said(path);
        let is_source = |input: &Input| matches!(input, Input::Host { source, .. } if is(source));
        inputs.iter().any(is_source) || matches!(&plan.base, Base::Given(dir) if is(dir))
    };
    let message = own::hidden_but(&said, &is_named).into_owned();
    if message != said {
        tracing::error!(error = said, "a sandbox could not be made");
    }
    let evidence = blocking(move || wipe::destroy(&facts, &subject, "boot-fail")).await;
    Err(ProvisionError { code, message, permanent, evidence: Box::new(evidence) })
}
