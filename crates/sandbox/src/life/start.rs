//! The start of a sandbox, from its inputs to the first command's surroundings.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cofferdam_ambient::clock::{Stopwatch, now_ms};

use super::error::{BootError, fault};
use crate::cache::CacheBase;
use crate::class::StartError;
use crate::class::input_mounts::ResolvedInputs;
use crate::egress::{self, EgressSetup};
use crate::host::hostpath::HostSource;
use crate::host::setid::SetidScan;
use crate::images::{self, RootGuard};
use crate::life::bare_sandbox::BareSandbox;
use crate::life::boot::{BootParts, bring_up};
use crate::life::command_names::CommandNames;
use crate::life::furnish::furnish;
use crate::life::host::Host;
use crate::life::input;
use crate::life::intake::Intake;
use crate::life::network::Network;
use crate::life::sandbox::Sandbox;
use crate::life::service::Services;
use crate::life::snapshot::InitialFiles;
use crate::life::wipe::WipeTarget;
use crate::spec::facts::HostFacts;
use crate::spec::input::Input;
use crate::spec::plan::Plan;
use crate::spec::service::PlannedService;

/// What a sandbox's layer begins with; empty by default.
#[derive(Default)]
pub(super) struct LayerContents {
    /// A base of the dependency cache.
    pub cache: Option<CacheBase>,
    /// Files of a snapshot.
    pub filling: Option<InitialFiles>,
}

/// Makes the sandbox of a plan. What there is to wipe stands in the subject, whatever the end.
pub(super) async fn start(
    host: &Host,
    facts: &Arc<HostFacts>,
    plan: &Plan,
    inputs: &[Input],
    contents: LayerContents,
    subject: &mut WipeTarget,
    clock: Stopwatch,
) -> Result<Sandbox, BootError> {
    let LayerContents { cache, filling } = contents;
    if filling.is_some() && !plan.isolation().snapshots.keeps_files() {
        return Err(StartError::Unfillable(plan.class.as_str()).into());
    }
    // However this ends, unless it begins: the files are its pause's until then.
    subject.left = filling.as_ref().and_then(InitialFiles::layer).cloned();
    subject.cache = cache.as_ref().map(CacheBase::tree);
    let opened = open(host, facts, plan, inputs, cache.as_ref()).await?;
    let BootSources { base, resolved, prepared, through, roots } = opened;
    let parts = BootParts { resolved: &resolved, base, through, filling };
    let bare = bare_sandbox(host, facts, plan, parts, subject).await?;
    let BareSandbox { hold, life, agent, kill, heard, went_on, storable } = bare;
    let (unrouted, hearing) = heard.unzip();
    let mut effective = plan.effective.clone();
    if let Some(line) = life.line() {
        effective.limits = line.limits(effective.limits);
    }
    let boot_ms = clock.elapsed_ms();
    let observed = subject.observed.as_ref();
    let netns = observed.and_then(|observed| observed.netns.clone());
    let network = Network::new(host.egress(), plan.class, netns, agent.clone());
    let mut sandbox = Sandbox {
        facts: Arc::clone(facts),
        init_pid: observed.map_or(0, |observed| observed.process.pid),
        subject: subject.clone(),
        agent,
        life,
        went_on,
        storable,
        kill,
        boot_ms,
        peak_mem_mb: AtomicU64::new(0),
        effective,
        network,
        unrouted,
        _hearing: hearing,
        stream_limit_bytes: plan.stream_limit_bytes,
        services: Services::on(roots),
        trees: resolved.trees.clone(),
        fresh: resolved.fresh.clone(),
        is_bare: resolved.is_bare(),
        _hold: hold,
        weight: None,
        cached: cache,
        commands: CommandNames::default(),
    };
    match furnish(&mut sandbox, &resolved, plan, prepared).await {
        Ok(()) => Ok(sandbox),
        Err(error) => {
            *subject = sandbox.subject.clone();
            sandbox.kill.kill();
            subject.runtime_reaped = sandbox.life.end().await;
            Err(error)
        }
    }
}

/// What a sandbox is made of, of which nothing is started.
struct BootSources<'a> {
    base: HostSource,
    resolved: ResolvedInputs<'a>,
    prepared: Option<EgressSetup>,
    through: SetidScan,
    /// Keep the images of its services.
    roots: Vec<RootGuard>,
}

/// Opens what a plan names on this host.
async fn open<'a>(
    host: &Host,
    facts: &HostFacts,
    plan: &'a Plan,
    inputs: &'a [Input],
    cache: Option<&CacheBase>,
) -> Result<BootSources<'a>, BootError> {
    let base = plan.base.open(&facts.allowed)?;
    let mut resolved = input::resolve(plan, inputs, cache, facts)?;
    let prepared = host.egress().prepare(&plan.egress).await?;
    // A machine that goes on later is to find its disk as it was; it is handed them.
    let shows = !plan.isolation().snapshots.has_layer_inside();
    if let Some(ca) = prepared.as_ref().and_then(EgressSetup::ca).filter(|_| shows) {
        resolved.show_ours(plan, ca, egress::CA_PATH);
    }
    let shares = resolved.shares.iter().filter(|share| !share.readonly);
    let opened = shares.map(|share| share.opened.clone()).collect();
    let through = SetidScan { opened, since_s: now_ms() / 1_000 };
    let roots = held(plan)?;
    Ok(BootSources { base, resolved, prepared, through, roots })
}

/// Holds the images of a plan's services.
fn held(plan: &Plan) -> Result<Vec<RootGuard>, BootError> {
    let roots = plan.services.iter().filter_map(PlannedService::root);
    roots
        .map(|program| {
            let root = &program.root;
            images::hold_root(root).map_err(fault("using the image of a service at", root))
        })
        .collect()
}

/// One that waits, or a new one. One that waits has its root mounted already, and nothing is put below a mounted root.
async fn bare_sandbox(
    host: &Host,
    facts: &Arc<HostFacts>,
    plan: &Plan,
    parts: BootParts<'_>,
    subject: &mut WipeTarget,
) -> Result<BareSandbox, BootError> {
    let waits = host.waits();
    let waiting = match &parts.filling {
        Some(_) => {
            waits.dismiss(&plan.traces.id).await;
            None
        }
        None => waits.take(plan, parts.resolved).await,
    };
    match waiting {
        Some((bare, stood)) => {
            *subject = WipeTarget { through: parts.through, ..stood };
            Ok(bare)
        }
        None => bring_up(host, facts, plan, parts, subject, &Intake::default()).await,
    }
}
