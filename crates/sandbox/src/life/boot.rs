//! Making a sandbox.
//!
//! ```text
//! resolve inputs -> mount layer, plant sentinel, mount root, write bundle   (blocking pool)
//!                -> runtime, attached, one end of a socket pair as its stdin
//!                -> agent answers -> observe its process -> upload files
//!                -> services, one after another -> Sandbox
//! ```
//! A start that fails at any point is wiped like any other sandbox, and evidenced.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cofferdam_ambient::clock::{Stopwatch, now_ms};
use cofferdam_ambient::own;
use cofferdam_contracts::error::error_chain;

use super::error::{BootError, ProvisionError};
use crate::agent::Agent;
use crate::cache::CacheBase;
use crate::class::Attempts;
use crate::class::shown::Resolved;
use crate::egress::{self, Prepared, Unrouted};
use crate::host::base::Base;
use crate::host::hostpath::HostPath;
use crate::host::setid::Through;
use crate::host::task::blocking;
use crate::life::host::Host;
use crate::life::input;
use crate::life::intake::Intake;
use crate::life::keep::Filling;
use crate::life::network::{self, Network};
use crate::life::numbered::CommandNames;
use crate::life::put::{put, put_dir};
use crate::life::raise::{BootParts, raise};
use crate::life::raised::Raised;
use crate::life::sandbox::Sandbox;
use crate::life::service::{self, Services};
use crate::life::wipe;
use crate::life::wipe::Subject;
use crate::spec::facts::HostFacts;
use crate::spec::input::Input;
use crate::spec::plan::{DEFAULT_WORKDIR, Plan};

/// The home of the user whom `envRef: host` has beside root.
const SKELETON_HOME: &str = "/home/user";
/// A short answer, from a machine whose processor is emulated on a busy host.
const METRICS_MS: u64 = 5_000;

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
    filling: Filling,
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

/// What a sandbox's layer begins with; empty by default.
#[derive(Default)]
struct LayerContents {
    /// A base of the dependency cache.
    cache: Option<CacheBase>,
    /// Files of a snapshot.
    filling: Option<Filling>,
}

async fn provision_from(
    host: &Host,
    plan: &Plan,
    inputs: &[Input],
    contents: LayerContents,
) -> Result<Sandbox, ProvisionError> {
    let clock = Stopwatch::start();
    let facts = host.shared();
    let mut subject = Subject::found(plan.traces.clone());
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

async fn start(
    host: &Host,
    facts: &Arc<HostFacts>,
    plan: &Plan,
    inputs: &[Input],
    contents: LayerContents,
    subject: &mut Subject,
    clock: Stopwatch,
) -> Result<Sandbox, BootError> {
    let LayerContents { cache, filling } = contents;
    if filling.is_some() && !plan.isolation().snapshots.keeps_files() {
        return Err(BootError::Unfillable(plan.class.as_str()));
    }
    // However this ends, unless it begins: the files are its pause's until then.
    subject.left = filling.as_ref().and_then(Filling::layer).cloned();
    let base = plan.base.open(&facts.allowed)?;
    let mut resolved = input::resolve(plan, inputs, cache.as_ref(), facts)?;
    subject.cache = cache.as_ref().map(CacheBase::tree);
    let prepared = host.egress().prepare(&plan.egress).await?;
    // A machine that goes on later is to find its disk as it was; it is handed them.
    let shows = !plan.isolation().snapshots.has_layer_inside();
    if let Some(ca) = prepared.as_ref().and_then(Prepared::ca).filter(|_| shows) {
        plan.isolation().inputs.show_ours(&mut resolved, plan, ca, egress::CA_PATH);
    }
    let shares = resolved.shares.iter().filter(|share| !share.readonly);
    let opened = shares.map(|share| share.opened.clone()).collect();
    let through = Through { opened, since_s: now_ms() / 1_000 };
    // One that waits has its root mounted already, and nothing is put below a mounted root.
    let waits = host.waits();
    let waiting = match &filling {
        Some(_) => {
            waits.dismiss(&plan.traces.id).await;
            None
        }
        None => waits.take(plan, &resolved).await,
    };
    let raised = match waiting {
        Some((raised, stood)) => {
            *subject = Subject { through, ..stood };
            raised
        }
        None => {
            let parts = BootParts { resolved: &resolved, base, through, filling };
            raise(host, facts, plan, parts, subject, &Intake::default()).await?
        }
    };
    let Raised { hold, life, agent, kill, heard, went_on, storable } = raised;
    let (unrouted, hearing) = heard.unzip();
    let mut effective = plan.effective.clone();
    if let Some(line) = life.line() {
        effective.limits = line.size().limits(effective.limits);
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
        services: Services::default(),
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

/// What the commands find: files, the proxy, then services, which may need both.
async fn furnish(
    sandbox: &mut Sandbox,
    resolved: &Resolved<'_>,
    plan: &Plan,
    prepared: Option<Prepared>,
) -> Result<(), BootError> {
    settle(&sandbox.agent, resolved, plan).await?;
    if let Some(prepared) = prepared {
        let is_shown = !plan.isolation().snapshots.has_layer_inside();
        network::furnish(&sandbox.agent, &prepared, is_shown).await?;
        sandbox.network.open(prepared)?;
    }
    sandbox.services = service::start(&sandbox.agent, &plan.services).await?;
    // Last, so that what a service tried while it started is not laid at a command's door.
    match plan.isolation().supervision.attempts() {
        Attempts::Namespace => {
            sandbox.unrouted = Some(Arc::new(Unrouted::in_namespace(sandbox.init_pid)));
        }
        Attempts::Agent => {
            let is_new = plan.services.is_empty() && !sandbox.went_on;
            let before = if is_new { 0 } else { no_routes(&sandbox.agent).await };
            sandbox.unrouted = Some(Arc::new(Unrouted::in_machine(before)));
        }
        Attempts::Each => {}
    }
    Ok(())
}

/// What a machine's services tried so far, or its earlier lives. An agent that does not say it has them laid at a command's door,
/// which is no reason to start no sandbox.
async fn no_routes(agent: &Agent) -> u64 {
    let limit = Duration::from_millis(METRICS_MS);
    match tokio::time::timeout(limit, agent.metrics()).await {
        Ok(Ok(usage)) => usage.no_routes,
        _ => 0,
    }
}

/// Gives the task its files, which are its user's as its places are.
async fn settle(agent: &Agent, resolved: &Resolved<'_>, plan: &Plan) -> Result<(), BootError> {
    let user = plan.task.user;
    if let Some(user) = user {
        for dir in own_dirs(resolved, plan) {
            put_dir(agent, dir, 0o755, user).await?;
        }
    }
    for file in &resolved.uploads {
        let path = || file.path.to_owned();
        let bytes =
            file.bytes().await.map_err(|source| BootError::Read { path: path(), source })?;
        put(agent, file.path, file.mode, user, bytes).await?;
    }
    Ok(())
}

/// The directories of the sandbox's own that a user has to write in: where it works unless it says otherwise, and a home of the
/// host's skeleton. One that is given keeps what was given.
fn own_dirs<'a>(resolved: &Resolved<'_>, plan: &'a Plan) -> Vec<&'a str> {
    let is_mount = |dir: &str| {
        let runtimes = resolved.mounts.iter().map(|mount| &mount["destination"]);
        let machines = resolved.given.iter().map(|given| given.target.as_str());
        runtimes.into_iter().any(|at| at == dir) || machines.into_iter().any(|at| at == dir)
    };
    let home = plan.task.env.get("HOME").map(String::as_str);
    let home = home.filter(|home| plan.host_usr && *home == SKELETON_HOME);
    // A project at a place of its own is at the usual one as well.
    let work = Some(DEFAULT_WORKDIR).filter(|_| !is_mount(&plan.task.cwd));
    work.into_iter().chain(home).filter(|dir| !is_mount(dir)).collect()
}
