//! Making a sandbox.
//!
//! ```text
//! resolve inputs -> mount layer, plant sentinel, mount root, write bundle   (blocking pool)
//!                -> runtime, attached, one end of a socket pair as its stdin
//!                -> agent answers -> observe its process -> upload files
//!                -> services, one after another -> Sandbox
//! ```
//! A start that fails at any point is wiped like any other sandbox, and evidenced.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_ambient::clock::{Stopwatch, now_ms};
use cofferdam_ambient::random;
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::sandbox::{ErrCode, WipeEvidence};

use crate::agent::{Agent, AgentError};
use crate::backend::ShowsHost;
use crate::base;
use crate::cache::CacheBase;
use crate::ceiling::Tcp;
use crate::crypt::{MakeError, Volume};
use crate::docker;
use crate::egress::{self, EgressError, Prepared, Unrouted};
use crate::gvisor;
use crate::host::{Host, HostFacts};
use crate::hostpath::{HostPath, OpenError, Place};
use crate::idrange::Taken;
use crate::image;
use crate::input::{self, Input, InputError, Resolved};
use crate::life::{self, Ground};
use crate::limit;
use crate::live;
use crate::microvm::{Disk, Images, Parts};
use crate::mounts;
use crate::plan::Plan;
use crate::process::Netns;
use crate::remote::RemoteError;
use crate::root::Root;
use crate::sandbox::{KillHandle, Sandbox};
use crate::service::{self, ServiceError, Services};
use crate::setid::Through;
use crate::traces::{self, Traces};
use crate::wipe::{self, Below, Subject};

/// One file: 64 MiB through a sandbox with a hundredth of a CPU.
const UPLOAD_MS: u64 = 60_000;
/// A short answer, from a machine whose processor is emulated on a busy host.
const METRICS_MS: u64 = 5_000;
/// Workers that stop in the very moment of a start.
const PARENT_TRIES: usize = 3;

/// A sandbox that could not be made. Nothing of the task ran, and what was begun is wiped.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", .code.as_str())]
pub struct ProvisionError {
    /// `BOOT_FAIL`, `UPLOAD_FAIL` or `NET_FAIL`.
    pub code: ErrCode,
    /// Why, in words.
    pub message: String,
    /// Whether another attempt on this host would end the same.
    pub permanent: bool,
    /// The wipe of what had been made.
    pub evidence: Box<WipeEvidence>,
}

/// A step of the start that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootError {
    #[error("{what} {path:?}")]
    Prepare { what: &'static str, path: PathBuf, source: io::Error },
    #[error("the runtime {path:?} could not be started")]
    Spawn { path: PathBuf, source: io::Error },
    #[error("the sandbox did not start: {log}")]
    Ended { log: String },
    #[error("the agent did not answer in time: {log}")]
    Silent { log: String },
    #[error("the machine could not be made a sandbox: {fault}")]
    Machine { fault: String },
    #[error("{program} did not make the machine: {fault}; at last it said: {log}")]
    Monitor { program: &'static str, fault: String, log: String },
    #[error("the agent's process was not found")]
    Unobserved,
    #[error("the root file system cannot be used")]
    Base(#[from] OpenError),
    #[error(
        "{of:?} cannot be given: an overlay over its file system failed; give a copy of it that lies on \
         another one"
    )]
    Over { of: String, source: io::Error },
    #[error("{said:?} could not be mounted for the sandbox")]
    Share { said: HostPath, source: io::Error },
    #[error("an input cannot be given")]
    Input(#[from] InputError),
    #[error("{path:?} could not be given to the sandbox")]
    Upload { path: String, source: AgentError },
    #[error("{path:?} could not be read on this host")]
    Read { path: String, source: io::Error },
    #[error("{path:?} was not taken within {UPLOAD_MS} ms")]
    Slow { path: String },
    #[error("the network of its phases cannot be set up")]
    Net(#[from] EgressError),
    #[error(transparent)]
    Engine(#[from] docker::EngineError),
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error(transparent)]
    Encrypted(#[from] MakeError),
    #[error(transparent)]
    Service(#[from] ServiceError),
}

impl BootError {
    fn code(&self) -> ErrCode {
        match self {
            Self::Input(_) | Self::Upload { .. } | Self::Read { .. } | Self::Slow { .. } => {
                ErrCode::UploadFail
            }
            Self::Net(_) => ErrCode::NetFail,
            _ => ErrCode::BootFail,
        }
    }

    /// Whether what was asked for is refused, rather than that something failed.
    fn is_permanent(&self) -> bool {
        match self {
            Self::Input(error) => error.is_permanent(),
            // A root that is kept from this run is not given a moment later.
            Self::Base(error) => error.is_permanent(),
            // The agent cannot write there: no file can have the path, or the fresh layer is too small for it.
            Self::Upload { source: AgentError::Refused { .. }, .. } => true,
            _ => false,
        }
    }
}

/// Makes the sandbox of a plan on the host that it was planned for, and gives it its inputs.
///
/// The future must be run to its end: one that is dropped half-way leaves a dead sandbox for
/// [`crate::reconcile`].
pub async fn provision(
    host: &Host,
    plan: &Plan,
    inputs: &[Input],
) -> Result<Sandbox, ProvisionError> {
    provision_on(host, plan, inputs, None).await
}

/// The same on a base of the dependency cache: then the plan's build phase has nothing to do.
pub async fn provision_on(
    host: &Host,
    plan: &Plan,
    inputs: &[Input],
    cache: Option<CacheBase>,
) -> Result<Sandbox, ProvisionError> {
    let clock = Stopwatch::start();
    let facts = host.shared();
    let mut subject = Subject::found(plan.traces.clone());
    // Nothing was started yet, so there is no runtime to look for.
    subject.runtime_reaped = true;
    let error = match start(host, &facts, plan, inputs, cache, &mut subject, clock).await {
        Ok(sandbox) => return Ok(sandbox),
        Err(error) => error,
    };
    let (code, permanent) = (error.code(), error.is_permanent());
    let message = in_words(&error);
    let evidence = blocking(move || wipe::destroy(&facts, &subject, "boot-fail")).await;
    Err(ProvisionError { code, message, permanent, evidence: Box::new(evidence) })
}

async fn start(
    host: &Host,
    facts: &Arc<HostFacts>,
    plan: &Plan,
    inputs: &[Input],
    cache: Option<CacheBase>,
    subject: &mut Subject,
    clock: Stopwatch,
) -> Result<Sandbox, BootError> {
    let base = plan.base.open(facts)?;
    let mut resolved = input::resolve(plan, inputs, cache.as_ref(), facts)?;
    subject.cache = cache.as_ref().map(CacheBase::tree);
    let prepared = host.egress().prepare(&plan.egress).await?;
    if let Some(ca) = prepared.as_ref().and_then(Prepared::ca) {
        match plan.backend.is_elsewhere() {
            true => resolved.copied(ca, egress::CA_PATH),
            false => resolved.shown(plan, Place::Ours(ca.to_owned()), egress::CA_PATH),
        }
    }
    let known = facts.base_digest.clone().filter(|_| plan.base.is(&facts.base));
    let shares = resolved.shares.iter().filter(|share| !share.readonly);
    let opened = shares.map(|share| share.opened.clone()).collect();
    let through = Through { opened, since_s: now_ms() / 1_000 };
    let bundle = Bundle::of(plan, &base, &resolved, known, facts);
    let parts = bundle.parts.clone();
    let (held, images) = (Arc::clone(facts), host.images());
    let Made { hold, digest, groups, disk, ids } =
        blocking(move || bundle.make(&held, &images)).await?;
    subject.base = Some(Below { name: base.name(), at: Ok(base), digest });
    subject.runtime_reaped = false;
    subject.ids = ids;
    subject.through = through;
    let heard = match plan.backend.tells_connects() {
        true => Some(gvisor::hear(&plan.traces).map_err(fault("listening in", &plan.traces.dir))?),
        false => None,
    };
    let (unrouted, hearing) = heard.unzip();
    let ground = Ground { groups: &groups, disk, parts, mounts: &resolved.mounts };
    let (life, agent) = life::begin(host, facts, plan, &ground).await?;
    let mut effective = plan.effective.clone();
    let (observed, kill) = match life.line() {
        Some(line) => {
            effective.limits = line.size.limits(effective.limits);
            (None, KillHandle::of_line(line))
        }
        None => {
            let seen = wipe::observe(facts, &plan.traces).ok_or(BootError::Unobserved)?;
            if !plan.backend.makes_cgroups() && facts.ceilings.tcp == Tcp::Limited {
                let mem_mb = plan.effective.limits.mem_mb.unwrap_or(0);
                let limited = facts.cgroups.limit_tcp(&plan.traces, mem_mb);
                limited.map_err(|(path, error)| fault("limiting", &path)(error))?;
            }
            (Some(seen.0), KillHandle::new(seen.1))
        }
    };
    let boot_ms = clock.elapsed_ms();
    let netns = observed.as_ref().and_then(|observed| observed.netns.clone());
    let mut sandbox = Sandbox {
        facts: Arc::clone(facts),
        init_pid: observed.as_ref().map_or(0, |observed| observed.process.pid),
        subject: Subject { observed, ..subject.clone() },
        agent,
        life,
        kill,
        boot_ms,
        peak_mem_mb: AtomicU64::new(0),
        effective,
        egress: None,
        unrouted,
        _hearing: hearing,
        stream_limit_bytes: plan.stream_limit_bytes,
        services: Services::default(),
        trees: resolved.trees.clone(),
        fresh: resolved.fresh.clone(),
        _hold: hold,
        cached: cache,
    };
    match furnish(&mut sandbox, &resolved, plan, prepared, netns).await {
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
    netns: Option<Netns>,
) -> Result<(), BootError> {
    upload(&sandbox.agent, resolved).await?;
    if let Some(prepared) = prepared {
        let text = Prepared::resolv_conf().into();
        put(&sandbox.agent, egress::RESOLV_CONF, 0o644, text).await?;
        sandbox.egress = Some(prepared.open(plan.backend.way(netns, &sandbox.agent))?);
    }
    sandbox.services = service::start(&sandbox.agent, &plan.services).await?;
    // Last, so that what a service tried while it started is not laid at a command's door.
    if plan.class.is_on_host_kernel() {
        sandbox.unrouted = Some(Arc::new(Unrouted::in_namespace(sandbox.init_pid)));
    } else if plan.backend.is_machine() {
        let before = if plan.services.is_empty() { 0 } else { no_routes(&sandbox.agent).await };
        sandbox.unrouted = Some(Arc::new(Unrouted::in_machine(before)));
    }
    Ok(())
}

/// What a machine's services tried so far. An agent that does not say it has them laid at a command's door,
/// which is no reason to start no sandbox.
async fn no_routes(agent: &Agent) -> u64 {
    let limit = Duration::from_millis(METRICS_MS);
    match tokio::time::timeout(limit, agent.metrics()).await {
        Ok(Ok(usage)) => usage.no_routes,
        _ => 0,
    }
}

async fn upload(agent: &Agent, resolved: &Resolved<'_>) -> Result<(), BootError> {
    for file in &resolved.uploads {
        let path = || file.path.to_owned();
        let bytes =
            file.bytes().await.map_err(|source| BootError::Read { path: path(), source })?;
        put(agent, file.path, file.mode, bytes).await?;
    }
    Ok(())
}

async fn put(agent: &Agent, path: &str, mode: u32, bytes: Bytes) -> Result<(), BootError> {
    let limit = Duration::from_millis(UPLOAD_MS);
    let name = || path.to_owned();
    tokio::time::timeout(limit, agent.put(path, mode, bytes))
        .await
        .map_err(|_| BootError::Slow { path: name() })?
        .map_err(|source| BootError::Upload { path: name(), source })
}

/// What came of making a bundle.
struct Made {
    /// Keeps the image that it lies on.
    hold: Option<image::Hold>,
    /// The base as it was before.
    digest: Option<Digest>,
    /// The cgroups that were made.
    groups: Vec<PathBuf>,
    /// Of a machine.
    disk: Option<Arc<Disk>>,
    /// Its ids, where it has some of its own.
    ids: Option<Taken>,
}

/// What lies on the host before the runtime starts.
struct Bundle {
    traces: Traces,
    base: Place,
    layer_mb: u64,
    /// Whether the layer lies encrypted on disk.
    large: bool,
    /// Whether nothing of it lies on this host.
    is_elsewhere: bool,
    /// What a machine is made of; it mounts its root itself.
    parts: Option<Parts>,
    /// The base's digest, where the host knows it.
    known: Option<Digest>,
    /// Whether it has users of its own.
    has_users: bool,
    root: Root,
    /// The cgroups to make, where the runtime makes none.
    groups: Option<limit::Groups>,
}

impl Bundle {
    fn of(
        plan: &Plan,
        base: &Place,
        resolved: &Resolved<'_>,
        known: Option<Digest>,
        facts: &HostFacts,
    ) -> Self {
        let apart = plan.host_usr && plan.backend.shows_host() == ShowsHost::InRoot;
        let root = Root {
            traces: plan.traces.clone(),
            guest: plan.guest.clone(),
            base: base.clone(),
            shares: resolved.shares.clone(),
            apart: if apart { facts.binds.clone() } else { Vec::new() },
            dirs: resolved.dirs.clone(),
            overlays: resolved.overlays.clone(),
            mounts: resolved.mounts.clone(),
            config: plan.config.clone(),
            runtime: plan.runtime.clone(),
        };
        Self {
            traces: plan.traces.clone(),
            base: base.clone(),
            layer_mb: plan.backend.layer_mb(plan.disk_mb),
            large: plan.large,
            is_elsewhere: plan.backend.is_elsewhere(),
            parts: plan.backend.is_machine().then(|| Parts::of(plan, base, resolved, facts)),
            known,
            has_users: plan.backend.has_users(),
            root,
            groups: plan.backend.makes_cgroups().then(|| {
                let limits = plan.backend.host_limits(plan.effective.limits);
                limit::groups(&facts.cgroups, &plan.traces, limits, facts.cpus)
            }),
        }
    }

    /// Makes its directory, and what is above it: a worker that stops takes the empty parents away
    /// while another may be about to use them.
    fn make_dir(&self) -> Result<(), BootError> {
        let Traces { live, runtime_root, dir, .. } = &self.traces;
        let make = || -> io::Result<()> {
            live::make(live)?;
            live::passage(&traces::sandboxes(live))?;
            live::private_dir(runtime_root)?;
            DirBuilder::new().mode(0o700).create(dir)
        };
        let mut made = make();
        for _ in 0..PARENT_TRIES {
            match &made {
                Err(error) if error.kind() == io::ErrorKind::NotFound => made = make(),
                _ => break,
            }
        }
        made.map_err(fault("making", dir))
    }

    /// Makes it, once the image that it lies on is held.
    fn make(&self, facts: &HostFacts, images: &Images) -> Result<Made, BootError> {
        let name = PathBuf::from(self.base.name());
        let hold = image::hold(facts, &self.base);
        let hold = hold.map_err(fault("using the image's root", &name))?;
        let Traces { layer, root, .. } = &self.traces;
        self.make_dir()?;
        if self.is_elsewhere {
            return Ok(Made { hold, digest: None, groups: Vec::new(), disk: None, ids: None });
        }
        let ids = match (self.has_users, &facts.ids) {
            (true, Ok(ranges)) => {
                let dir = &self.traces.dir;
                Some(ranges.take(dir).map_err(fault("taking ids of its own for", dir))?)
            }
            _ => None,
        };
        for path in [layer, root] {
            make_dir(path, 0o700)?;
        }
        let digest = match &self.known {
            Some(known) => Some(known.clone()),
            None => base::tree_digest(&self.base.path()).map_err(fault("describing", &name))?,
        };
        if self.large {
            Volume::of(&self.traces).make(&facts.large, self.layer_mb)?;
        } else {
            mounts::mount_tmpfs(layer, self.layer_mb)
                .map_err(|error| fault("mounting a tmpfs at", layer)(error.into()))?;
        }
        let sentinel = self.traces.sentinel();
        fs::write(&sentinel, random::secret_hex(32)).map_err(fault("writing", &sentinel))?;
        let groups = self.groups.as_ref().map_or(Ok(Vec::new()), limit::Groups::make);
        let groups = groups.map_err(|(path, error)| fault("limiting", &path)(error))?;
        let disk = self.parts.as_ref().map(|parts| parts.disk(images)).transpose();
        let disk = disk.map_err(fault("describing what is shown on", &name))?;
        if disk.is_none() {
            self.root.mount(facts.ids.as_ref().ok().zip(ids.as_ref()))?;
        }
        Ok(Made { hold, digest, groups, disk, ids })
    }
}

pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<(), BootError> {
    DirBuilder::new().mode(mode).create(path).map_err(fault("making", path))
}

pub(crate) fn fault(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BootError {
    let path = path.to_owned();
    move |source| BootError::Prepare { what, path, source }
}

/// An error and what it came from.
pub(crate) fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        words = format!("{words}: {inner}");
        source = inner.source();
    }
    words
}

/// Runs blocking work beside the runtime's threads.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Cancelled with the runtime, which ends us at this very await.
            Err(_) => std::future::pending().await,
        },
    }
}
