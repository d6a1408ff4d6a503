//! From a request and the facts of a host to a plan that leaves nothing to choose. Pure.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{
    AccessMode, DEFAULT_DISK_MB, DEFAULT_MEM_MB, DEFAULT_PIDS, DEFAULT_TIMEOUT_MS, EffectivePolicy,
    Egress, Limits, MAX_STREAM_BYTES, Phase, SandboxRequest,
};
use serde_json::Value;

use crate::backend::{Backend, ShowsHost};
use crate::base::Base;
use crate::cache;
use crate::class::{self, Class};
use crate::crypt;
use crate::egress;
use crate::exec::Command;
use crate::host::HostFacts;
use crate::hostpath::HostPath;
use crate::image::ImageRoot;
use crate::oci::calls::Needs;
use crate::oci::{self, Nofile, Shown};
use crate::refuse::{self, PlanError};
use crate::remote;
use crate::runtime::Runtime;
use crate::service::{self, PlannedService, Programs};
use crate::traces::Traces;

/// Where a task runs when it does not say.
const DEFAULT_WORKDIR: &str = "/work";

/// A class is only reported as present where this build holds sandboxes of it.
const UNHELD: &str = "this build holds no sandboxes of that class";

/// A host path inside the sandbox. The source is resolved, and held against the allowed roots, when
/// the sandbox is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedMount {
    /// On the host.
    pub source: HostPath,
    /// Absolute, inside.
    pub target: String,
    /// Read-only or copy-on-write.
    pub access: AccessMode,
}

/// Everything that [`crate::provision`] does, decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Where everything lies.
    pub traces: Traces,
    /// How strongly it is isolated.
    pub class: Class,
    /// What runs it.
    pub runtime: Runtime,
    /// How its class is held on this host.
    pub(crate) backend: Backend,
    /// Whether the host's `/usr` is shown on the base, and whether the base is an image's.
    pub(crate) host_usr: bool,
    pub(crate) is_image: bool,
    /// Open files of each process, where no configuration says it.
    pub(crate) nofile: Nofile,
    /// The OCI configuration but for the host paths of inputs and mounts.
    pub config: Value,
    /// The layer of the agent, on the base.
    pub guest: PathBuf,
    /// The lowest layer, whose digest must not change.
    pub base: Base,
    /// Mounts of the spec.
    pub mounts: Vec<PlannedMount>,
    /// Size of the writable layer in MiB.
    pub disk_mb: u64,
    /// Whether it is too large for memory, and lies encrypted on disk.
    pub(crate) large: bool,
    /// Bytes of each output stream that are kept.
    pub stream_limit_bytes: u64,
    /// What runs beside the commands.
    pub services: Vec<PlannedService>,
    /// The command that runs first.
    pub build: Option<Command>,
    /// The task.
    pub task: Command,
    /// Globs of files to keep, relative to the task's working directory.
    pub artifacts: Vec<String>,
    /// The dependencies that the build phase leaves for other tasks.
    pub(crate) cache: Option<cache::Planned>,
    /// The names of each phase.
    pub(crate) egress: egress::Planned,
    /// What will be enforced.
    pub effective: EffectivePolicy,
}

impl Plan {
    /// MiB of this host's memory that the sandbox may take, what its class adds for itself included;
    /// nothing where a provider elsewhere holds it.
    pub fn host_mem_mb(&self) -> u64 {
        if self.backend.is_elsewhere() {
            return 0;
        }
        self.backend.host_limits(self.effective.limits).mem_mb.unwrap_or(DEFAULT_MEM_MB)
    }
}

/// Plans a sandbox for a request on a host with these facts, or names the field that this host
/// cannot enforce. Nothing is looked at and nothing is changed; an image therefore needs
/// [`crate::Host::plan`], which looks it up first.
pub fn plan(
    request: &SandboxRequest,
    id: &SandboxId,
    facts: &HostFacts,
) -> Result<Plan, PlanError> {
    plan_on(request, id, facts, None)
}

/// The same on an image that was looked up already.
pub(crate) fn plan_on(
    request: &SandboxRequest,
    id: &SandboxId,
    facts: &HostFacts,
    image: Option<&ImageRoot>,
) -> Result<Plan, PlanError> {
    refuse::check(request)?;
    refuse::written_through(request, facts)?;
    let (class, runtime) = class::choose(request, facts)?;
    refuse::machine_written_through(request, class)?;
    refuse::written_as_root(request, class, facts)?;
    let backend =
        Backend::of(class, runtime).ok_or_else(|| PlanError::new(class::FIELD, UNHELD))?;
    let egress = egress::plan(request);
    let asked = refuse::limits(request, facts, class)?;
    if backend.is_elsewhere() {
        remote::refuse(request, asked)?;
    }
    let limits = match backend.is_elsewhere() {
        true => {
            Limits { output_bytes: Some(asked.output_bytes.unwrap_or(MAX_STREAM_BYTES)), ..asked }
        }
        false => with_defaults(asked, facts, class),
    };
    let (base, host_usr) = match image {
        Some(image) => (Base::Ours(image.root.clone()), false),
        None if backend.is_elsewhere() => (Base::Ours(facts.base.clone()), false),
        None => root(&request.env_ref, facts)?,
    };
    let spec = request.spec.as_ref();
    let workdir = request
        .workdir
        .clone()
        .or_else(|| spec?.working_dir.clone())
        .or_else(|| image?.workdir.clone())
        .unwrap_or_else(|| DEFAULT_WORKDIR.to_owned());
    let none = Programs::default();
    let programs = if host_usr { &facts.services } else { &none };
    let services = service::plan(spec, &request.env_ref, programs, |env| environment(env, image))?;
    let mounts = spec.and_then(|spec| spec.mounts.as_deref()).unwrap_or_default();
    let command = |argv: &[String], env, timeout_ms, phase| Command {
        argv: argv.to_vec(),
        env: environment(env, image),
        cwd: workdir.clone(),
        timeout_ms,
        phase,
        user: image.and_then(|image| image.user),
        stdin_file: None,
        jail: None,
    };
    let build = request.build.as_ref().map(|build| {
        let timeout_ms = build.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS);
        command(&build.cmd, &build.env, timeout_ms, Phase::Build)
    });
    let traces = Traces::of(&facts.state_dir, &facts.live_dir, id);
    let roomy = || Nofile::roomy(limits.nofile.unwrap_or(facts.nofile));
    let nofile = asked.nofile.map_or_else(roomy, Nofile::exact);
    let config = backend.config(&oci::Wanted {
        root: &traces.root,
        cgroup: &traces.cgroup,
        shown: match backend.shows_host() {
            ShowsHost::Binds if host_usr => Shown::Binds(&facts.binds),
            ShowsHost::Overlays if host_usr => {
                Shown::Apart { paths: &facts.binds, empty: &facts.empty }
            }
            _ => Shown::Not,
        },
        limits,
        cpus: facts.cpus,
        ceilings: facts.ceilings,
        nofile,
        takes_program: runtime.takes_program(),
        needs: Needs {
            no_set_id: request.files_in.iter().any(|file| file.access == AccessMode::Full),
        },
    });
    Ok(Plan {
        task: Command {
            stdin_file: request.stdin.clone(),
            ..command(&request.cmd, &request.env, request.timeout_ms, Phase::Exec)
        },
        cache: cache::plan(request, &workdir, image.and_then(|image| image.user)),
        egress,
        build,
        services,
        class,
        backend,
        host_usr,
        is_image: image.is_some(),
        nofile,
        runtime: runtime.clone(),
        config,
        guest: facts.guest.clone(),
        base,
        mounts: mounts
            .iter()
            .map(|mount| PlannedMount {
                source: HostPath::said(&mount.source),
                target: mount.target.clone(),
                access: mount.access,
            })
            .collect(),
        disk_mb: limits.disk_mb.unwrap_or(DEFAULT_DISK_MB),
        large: crypt::is_large(class, asked, facts),
        stream_limit_bytes: limits.output_bytes.unwrap_or(MAX_STREAM_BYTES),
        artifacts: request.artifacts.clone(),
        effective: effective(request, facts, class, runtime, limits, image),
        traces,
    })
}

fn with_defaults(limits: Limits, facts: &HostFacts, class: Class) -> Limits {
    let pids = limits.pids.unwrap_or(DEFAULT_PIDS);
    let nofile = match class.is_on_host_kernel() {
        true => facts.nofile.min(facts.ceilings.nofile(pids)),
        false => facts.nofile,
    };
    Limits {
        cpu: Some(limits.cpu.unwrap_or(f64::from(facts.cpus))),
        mem_mb: Some(limits.mem_mb.unwrap_or(DEFAULT_MEM_MB)),
        pids: Some(pids),
        disk_mb: Some(limits.disk_mb.unwrap_or(DEFAULT_DISK_MB)),
        output_bytes: Some(limits.output_bytes.unwrap_or(MAX_STREAM_BYTES)),
        nofile: Some(limits.nofile.unwrap_or(nofile)),
    }
}

/// The base layer, and whether the host's `/usr` is shown on it.
fn root(env_ref: &str, facts: &HostFacts) -> Result<(Base, bool), PlanError> {
    if env_ref == "host" {
        return Ok((Base::Ours(facts.base.clone()), true));
    }
    let Some(dir) = env_ref.strip_prefix("dir:") else {
        return Err(PlanError::new(
            "envRef",
            "must be `host`, `dir:/absolute/path` or `image:NAME`",
        ));
    };
    refuse::absolute("envRef", dir)?;
    let dir = HostPath::said(dir);
    // By its text alone, which is all that is known before it is opened.
    if !facts.allowed.names(&dir) {
        return Err(PlanError::new("envRef", "the directory is outside this host's allowed roots"));
    }
    Ok((Base::Given(dir), false))
}

fn environment(
    asked: &BTreeMap<String, String>,
    image: Option<&ImageRoot>,
) -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> = [
        ("HOME", "/root"),
        ("LANG", "C.UTF-8"),
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("TERM", "dumb"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    env.extend(image.map(|image| image.env.clone()).unwrap_or_default());
    env.extend(asked.iter().map(|(name, value)| (name.clone(), value.clone())));
    env
}

fn effective(
    request: &SandboxRequest,
    facts: &HostFacts,
    class: Class,
    runtime: &Runtime,
    limits: Limits,
    image: Option<&ImageRoot>,
) -> EffectivePolicy {
    EffectivePolicy {
        isolation_class: class.strength(),
        runtime: runtime.name.clone(),
        runtime_version: runtime.version.clone(),
        kernel: match (class, &facts.machine) {
            (Class::Microvm, Some(machine)) => machine.release.clone(),
            (Class::Remote, _) => remote::ELSEWHERE.to_owned(),
            _ => facts.kernel.clone(),
        },
        image: match (&facts.provider, image) {
            (Some(provider), _) => format!("template:{}", provider.template),
            (None, Some(image)) => image.pinned.clone(),
            (None, None) => request.env_ref.clone(),
        },
        limits,
        timeout_ms: request.timeout_ms,
        egress: request.egress.clone(),
        granted: Vec::new(),
        build_egress: request.build.as_ref().map_or(Egress::None, |build| build.egress.clone()),
        cache: None,
        weak: facts.weak_in(class),
    }
}
