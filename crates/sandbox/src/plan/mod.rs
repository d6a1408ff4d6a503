//! From a request and the facts of a host to a plan that leaves nothing to choose. Pure.

mod check;
mod choose;
pub(crate) mod large;
pub(crate) mod users;

use std::collections::BTreeMap;

use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{
    AccessMode, DEFAULT_DISK_MB, DEFAULT_TIMEOUT_MS, EffectivePolicy, Egress, Limits,
    MAX_STREAM_BYTES, Phase, SandboxRequest,
};
use cofferdam_contracts::user::UserName;

use crate::class::{self, Isolation, ShowsHost};
use crate::egress;
use crate::host::account::Account;
use crate::host::base::Base;
use crate::host::guest::GITCONFIG_PATH;
use crate::host::hostpath::HostPath;
use crate::host::runtime::Runtime;
use crate::host::traces::Traces;
use crate::images::ImageRoot;
use crate::oci::calls::Needs;
use crate::oci::{self, Nofile, OciInput, ShownDirs};
use crate::spec::cached;
use crate::spec::class::Class;
use crate::spec::command::Command;
use crate::spec::facts::HostFacts;
use crate::spec::plan::{DEFAULT_WORKDIR, Plan, PlannedMount};
use crate::spec::refuse::{self, PlanError};
use crate::spec::service::{self, Programs};
use users::{Accounts, PlanUsers};

/// `PATH` of a command where neither its image nor its request says another.
pub const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

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
    plan_on(request, id, facts, None, &Accounts::new())
}

/// The same on an image and for users that were looked up already.
pub(crate) fn plan_on(
    request: &SandboxRequest,
    id: &SandboxId,
    facts: &HostFacts,
    image: Option<&ImageRoot>,
    accounts: &Accounts,
) -> Result<Plan, PlanError> {
    check::check(request, facts)?;
    let (class, runtime) = choose::choose(request, facts)?;
    let Isolation { profile, inputs, launch, snapshots, .. } = class::of(class);
    let egress = egress::plan(request);
    let asked = check::limits(request, facts, profile)?;
    let is_large = large::is_large(profile, asked, facts);
    let limits = large::beside_programs(snapshots, profile.limits(asked, facts), is_large);
    let (base, host_usr) = match (image, profile.root(facts)) {
        (Some(image), _) => (Base::Ours(image.root.clone()), false),
        (None, Some(root)) => (root, false),
        (None, None) => root(&request.env_ref, facts)?,
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
    let users = PlanUsers { accounts, profile };
    let of_image = image.and_then(|image| image.user.as_ref());
    of_image.map_or(Ok(()), |account| users::fits("envRef", account))?;
    let named = |field: &str, name: &UserName| users.of(field, name);
    let task_user = request.user.as_ref().map(|name| named("user", name)).transpose()?.or(of_image);
    let build_user = request.build.as_ref().and_then(|build| build.user.as_ref());
    let build_user = build_user.map(|name| named("build.user", name)).transpose()?.or(task_user);
    let surroundings = service::Surroundings {
        users: &named,
        environment: &|env, user| environment(env, image, user),
    };
    let services = service::plan(spec, &request.env_ref, programs, &surroundings)?;
    let mounts = spec.and_then(|spec| spec.mounts.as_deref()).unwrap_or_default();
    let command = |argv: &[String], env, timeout_ms, phase: Phase, account: Option<&Account>| {
        let (user, groups) = users::told(account);
        Command {
            argv: argv.to_vec(),
            env: environment(env, image, account),
            cwd: workdir.clone(),
            timeout_ms,
            phase,
            user,
            groups,
            stdin_file: None,
            jail: None,
        }
    };
    let build = request.build.as_ref().map(|build| {
        let timeout_ms = build.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS);
        command(&build.cmd, &build.env, timeout_ms, Phase::Build, build_user)
    });
    let traces = Traces::of(&facts.state_dir, &facts.live_dir, id);
    let roomy = || Nofile::roomy(limits.nofile.unwrap_or(facts.nofile));
    let nofile = asked.nofile.map_or_else(roomy, Nofile::exact);
    let config = launch.config(&OciInput {
        root: &traces.root,
        beside: &traces.beside(),
        cgroup: &traces.cgroup,
        shown: match inputs.shows_host() {
            ShowsHost::Binds if host_usr => ShownDirs::Binds(&facts.binds),
            ShowsHost::Overlays if host_usr => {
                ShownDirs::Apart { paths: &facts.binds, empty: &facts.empty }
            }
            _ => ShownDirs::Not,
        },
        limits,
        cpus: facts.cpus,
        ceilings: facts.ceilings,
        nofile,
        takes_program: runtime.takes_program(),
        needs: Needs {
            no_set_id: request.files_in.iter().any(|file| file.access == AccessMode::Full),
            own_ids: profile.has_own_ids(facts),
        },
    });
    Ok(Plan {
        task: Command {
            stdin_file: request.stdin.clone(),
            ..command(&request.cmd, &request.env, request.timeout_ms, Phase::Exec, task_user)
        },
        cache: cached::plan(request, &workdir, users::told(build_user).0),
        egress,
        build,
        services,
        class,
        host_usr,
        is_image: image.is_some(),
        nofile,
        runtime: runtime.clone(),
        config,
        guest: launch.guest(facts).clone(),
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
        large: is_large,
        stream_limit_bytes: limits.output_bytes.unwrap_or(MAX_STREAM_BYTES),
        artifacts: request.artifacts.clone(),
        effective: EffectivePolicy {
            user: users::recorded(task_user),
            ..effective(request, facts, class, runtime, limits, image)
        },
        traces,
    })
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
    user: Option<&Account>,
) -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> = [
        ("HOME", "/root"),
        ("LANG", "C.UTF-8"),
        ("PATH", USUAL_PATH),
        ("TERM", "dumb"),
        ("GIT_CONFIG_SYSTEM", GITCONFIG_PATH),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    if let Some(account) = user {
        env.insert("HOME".to_owned(), account.home.clone());
    }
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
        kernel: class::of(class).profile.kernel(facts),
        image: match (&facts.provider, image) {
            (Some(provider), _) => format!("template:{}", provider.template),
            (None, Some(image)) => image.pinned.clone(),
            (None, None) => request.env_ref.clone(),
        },
        user: None,
        limits,
        timeout_ms: request.timeout_ms,
        egress: request.egress.clone(),
        granted: Vec::new(),
        build_egress: request.build.as_ref().map_or(Egress::None, |build| build.egress.clone()),
        cache: None,
        weak: facts.weak_in(class),
    }
}
