//! From a request and the facts of a host to a plan that leaves nothing to choose. Pure.
//!
//! ```text
//! check (each field) -> choose (class) -> limits -> root -> users -> services -> commands -> configuration -> effective
//! ```
//! A step may refuse its field; the next one takes what it decided.

mod check;
mod choose;
mod commands;
mod effective;
pub(crate) mod limits;
mod root;

use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{AccessMode, DEFAULT_DISK_MB, MAX_STREAM_BYTES, SandboxRequest};

use crate::class;
use crate::egress;
use crate::host::traces::Traces;
use crate::images::{ImageRoot, ServiceRoots};
use crate::oci::calls::Needs;
use crate::oci::{self, OciInput};
use crate::spec::cache;
use crate::spec::facts::HostFacts;
use crate::spec::plan::{Plan, PlannedMount};
use crate::spec::refuse::PlanError;
use crate::spec::service::{self, ServiceContext};
use crate::spec::users::{Accounts, PlanUsers};

impl Plan {
    /// The same of a container under another name.
    pub(crate) fn under(self, id: &SandboxId, facts: &HostFacts) -> Self {
        let traces = Traces::of(&facts.state_dir, &facts.live_dir, id);
        let mut config = self.config;
        oci::place(&mut config, &traces.root, &traces.cgroup);
        Self { traces, config, ..self }
    }

    /// MiB of this host's memory that the sandbox may take, what its class adds for itself included;
    /// nothing where a provider elsewhere holds it.
    pub fn host_mem_mb(&self) -> u64 {
        self.isolation().profile.host_mem_mb(self.effective.limits)
    }
}

/// Plans a sandbox for a request on a host with these facts, or names the field that this host
/// cannot enforce. Nothing is looked at and nothing is changed; an image and a user therefore need
/// [`crate::Host::plan`], which looks them up first.
pub fn plan(
    request: &SandboxRequest,
    id: &SandboxId,
    facts: &HostFacts,
) -> Result<Plan, PlanError> {
    plan_on(request, id, facts, None, &Accounts::new(), &ServiceRoots::new())
}

/// The same on an image and for users that were looked up already.
pub(crate) fn plan_on(
    request: &SandboxRequest,
    id: &SandboxId,
    facts: &HostFacts,
    image: Option<&ImageRoot>,
    accounts: &Accounts,
    roots: &ServiceRoots,
) -> Result<Plan, PlanError> {
    check::request(request, facts)?;
    let (class, runtime) = choose::class(request, facts)?;
    let isolation = class::of(class);
    let profile = isolation.profile;
    let limits::PlannedLimits { limits, nofile, is_large } = limits::of(request, facts, isolation)?;
    let root = root::of(request, facts, image, isolation)?;
    let users = PlanUsers { accounts, reads_root: profile.reads_root() };
    let of_commands = users.of_commands(request, image)?;
    let around = ServiceContext { users: &users, image, roots, rootless: profile.rootless(facts) };
    let spec = request.spec.as_ref();
    let services = service::planned(spec, &request.env_ref, root.programs, &around)?;
    let commands = commands::of(request, image, &root.workdir, of_commands);
    let traces = Traces::of(&facts.state_dir, &facts.live_dir, id);
    let config = isolation.launch.config(&OciInput {
        root: &traces.root,
        beside: &traces.beside(),
        cgroup: &traces.cgroup,
        shown: root.shown,
        limits,
        cpus: facts.cpus,
        ceilings: facts.ceilings,
        nofile,
        takes_program: runtime.takes_program(),
        needs: Needs {
            no_set_id: request.files_in.iter().any(|file| file.access == AccessMode::Full),
            own_ids: profile.has_own_ids(facts),
            roots: services.iter().any(|service| service.root().is_some()),
        },
    });
    let effective = effective::of(request, facts, image, class, runtime, limits, &commands.task);
    let builder = commands.build.as_ref().and_then(|build| build.user);
    let mounts = spec.and_then(|spec| spec.mounts.as_deref()).unwrap_or_default();
    Ok(Plan {
        cache: cache::planned(request, &root.workdir, builder),
        egress: egress::lists_of(request),
        task: commands.task,
        build: commands.build,
        services,
        class,
        host_usr: root.host_usr,
        is_image: image.is_some(),
        nofile,
        runtime: runtime.clone(),
        config,
        guest: isolation.launch.guest(facts).clone(),
        base: root.base,
        mounts: mounts.iter().map(PlannedMount::of).collect(),
        disk_mb: limits.disk_mb.unwrap_or(DEFAULT_DISK_MB),
        large: is_large,
        stream_limit_bytes: limits.output_bytes.unwrap_or(MAX_STREAM_BYTES),
        artifacts: request.artifacts.clone(),
        reports: request.reports.clone(),
        effective,
        traces,
    })
}
