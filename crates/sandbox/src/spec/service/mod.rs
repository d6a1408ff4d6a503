//! Services inside a sandbox's boundary: `spec.services` becomes a list of what is started, or names the field
//! that cannot be. Pure.

mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use cofferdam_contracts::sandbox::SandboxSpec;
use cofferdam_contracts::service::{
    DEFAULT_READY_MS, MAX_READY_MS, MAX_SERVICES, Probe, Service, ServiceDetail, ServiceImage,
};

use crate::host::account::Account;
use crate::images::{ImageRoot, ServiceRoot, ServiceRoots};
use crate::spec::environment::environment;
use crate::spec::refuse::{self, PlanError};
use crate::spec::users::{PlanUsers, fits};

pub use programs::Programs;

const POSTGRES_PORT: u16 = 5_432;
const REDIS_PORT: u16 = 6_379;
const GIT_CONFIG: &str = "GIT_CONFIG_SYSTEM";
/// Longest name: it becomes part of variables and of an artifact's name.
const MAX_NAME: usize = 32;

/// What a service runs: a server that this host configures, or a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// PostgreSQL, with `initdb` and `postgres` in this directory.
    Postgres(PathBuf),
    /// Redis, by the `redis-server` at this path.
    Redis(PathBuf),
    /// A command of the spec.
    Command {
        /// Program and arguments.
        argv: Vec<String>,
        /// The whole environment.
        env: BTreeMap<String, String>,
        /// Whom it runs as; `None`: root.
        user: Option<Account>,
    },
    /// An image of a registry, with a root of its own.
    Image(Box<ServiceProgram>),
}

/// What runs from an image of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceProgram {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// Whom it runs as, by the image's own database; `None`: root.
    pub user: Option<Account>,
    /// Where it starts, in its root.
    pub cwd: String,
    /// Directory of the unpacked image on this host.
    pub root: PathBuf,
    /// For the record.
    pub image: ServiceImage,
}

/// Directories of a sandbox's root that its kernel fills, and that the root of a service has as well.
pub(crate) const KERNELS: [&str; 3] = ["dev", "proc", "sys"];

/// Where the root of a service is seen in its sandbox.
pub(crate) fn root_of(name: &str) -> String {
    format!("/.cofferdam/services/{name}")
}

/// One service, decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedService {
    /// Unique in its sandbox.
    pub name: String,
    /// Server or command that the service runs.
    pub program: Program,
    /// Port on 127.0.0.1 at which the service must answer, unique in its sandbox.
    pub port: u16,
    /// What must answer.
    pub probe: Probe,
    /// How long that may take, its preparation included.
    pub ready_ms: u64,
}

/// What a command of a service finds.
pub(crate) struct ServiceContext<'a> {
    /// The accounts of its sandbox.
    pub users: &'a PlanUsers<'a>,
    /// The image of its root, where that is one.
    pub image: Option<&'a ImageRoot>,
    /// Images of registries that were pulled for it, by the names of their services, with the users that these run as.
    pub roots: &'a ServiceRoots,
    /// Why this host and class run no services from images, if so.
    pub rootless: Option<String>,
}

/// Plans the services of a spec, in their order. `programs` is what the root file system is known to
/// have, absent for one that is not the host's.
pub(crate) fn planned(
    spec: Option<&SandboxSpec>,
    env_ref: &str,
    programs: Option<&Programs>,
    around: &ServiceContext<'_>,
) -> Result<Vec<PlannedService>, PlanError> {
    let asked = spec.and_then(|spec| spec.services.as_deref()).unwrap_or_default();
    if asked.len() > MAX_SERVICES {
        return Err(PlanError::new("spec.services", "at most 8 services"));
    }
    let (mut names, mut ports) = (BTreeSet::new(), BTreeSet::new());
    let mut planned = Vec::with_capacity(asked.len());
    for (index, service) in asked.iter().enumerate() {
        let field = Field(index);
        let one = one(service, &field, env_ref, programs, around)?;
        if !names.insert(one.name.clone()) {
            return Err(field.refuse(".name", "two services have this name"));
        }
        if !ports.insert(one.port) {
            return Err(field.refuse(".port", "two services have this port"));
        }
        planned.push(one);
    }
    Ok(planned)
}

impl PlannedService {
    /// The image that it runs from, where it has a root of its own.
    pub(crate) fn root(&self) -> Option<&ServiceProgram> {
        match &self.program {
            Program::Image(program) => Some(program),
            Program::Postgres(_) | Program::Redis(_) | Program::Command { .. } => None,
        }
    }
}

struct Field(usize);

impl Field {
    fn name(&self, part: &str) -> String {
        format!("spec.services[{}]{part}", self.0)
    }

    fn refuse(&self, part: &str, message: &str) -> PlanError {
        PlanError::new(self.name(part), message)
    }
}

fn one(
    service: &Service,
    field: &Field,
    env_ref: &str,
    programs: Option<&Programs>,
    around: &ServiceContext<'_>,
) -> Result<PlannedService, PlanError> {
    let name = &service.name;
    if !is_name(name) {
        let message = "1 to 32 lower-case letters, digits and `-`, a letter first";
        return Err(field.refuse(".name", message));
    }
    let detail = service.detail.clone().unwrap_or_default();
    if detail.port == Some(0) {
        return Err(field.refuse(".port", "must be 1 to 65,535"));
    }
    let health = detail.health.unwrap_or_default();
    let ready_ms = health.timeout_ms.unwrap_or(DEFAULT_READY_MS);
    if !(1..=MAX_READY_MS).contains(&ready_ms) {
        let message = "must be 1 to 300,000 milliseconds";
        return Err(field.refuse(".health.timeout_ms", message));
    }
    let own = detail.image.as_ref().filter(|image| *image != env_ref);
    let (program, port, probe) = match (own, &detail.cmd) {
        (Some(image), _) => from_image(name, image, &detail, field, around)?,
        (None, Some(argv)) => command(argv, &detail, field, around)?,
        (None, None) => known(name, &detail, field, programs)?,
    };
    let probe = health.probe.unwrap_or(probe);
    Ok(PlannedService { name: name.clone(), program, port, probe, ready_ms })
}

fn command(
    argv: &[String],
    detail: &ServiceDetail,
    field: &Field,
    around: &ServiceContext<'_>,
) -> Result<(Program, u16, Probe), PlanError> {
    refuse::argv(&field.name(".cmd"), argv)?;
    refuse::variables(&field.name(".env"), &detail.env)?;
    let port = detail.port.ok_or_else(|| {
        field.refuse(".port", "a command's port must be given: it is how its health is asked")
    })?;
    let user = detail.user.as_ref().map(|name| around.users.of(&field.name(".user"), name));
    let user = user.transpose()?;
    let env = environment(&detail.env, around.image, user.map(|user| user.home.as_str()));
    let program = Program::Command { argv: argv.to_vec(), env, user: user.cloned() };
    Ok((program, port, Probe::Tcp))
}

/// A service that was pulled.
fn from_image(
    name: &str,
    image: &str,
    detail: &ServiceDetail,
    field: &Field,
    around: &ServiceContext<'_>,
) -> Result<(Program, u16, Probe), PlanError> {
    if let Some(why) = &around.rootless {
        return Err(field.refuse(".image", why));
    }
    let pulled = around.roots.get(name).filter(|pulled| pulled.image.reference == image);
    let pulled = pulled.ok_or_else(|| field.refuse(".image", "was not pulled for this sandbox"))?;
    refuse::variables(&field.name(".env"), &detail.env)?;
    let ServiceRoot { image, root, entrypoint, cmd } = pulled;
    let argv: Vec<String> =
        entrypoint.iter().chain(detail.cmd.as_ref().unwrap_or(cmd)).cloned().collect();
    if argv.is_empty() {
        let message = "is needed: the image has neither an entry point nor a command";
        return Err(field.refuse(".cmd", message));
    }
    refuse::argv(&field.name(".cmd"), &argv)?;
    let port = detail.port.ok_or_else(|| {
        field.refuse(".port", "must be given for an image: it is how its health is asked")
    })?;
    let user = root.user.as_ref();
    user.map_or(Ok(()), |user| fits(&field.name(".user"), user))?;
    let mut env = environment(&detail.env, Some(root), user.map(|user| user.home.as_str()));
    // A file of the sandbox's root, which this one does not have.
    if !detail.env.contains_key(GIT_CONFIG) {
        env.remove(GIT_CONFIG);
    }
    let program = ServiceProgram {
        argv,
        env,
        user: user.cloned(),
        cwd: root.workdir.clone().unwrap_or_else(|| "/".to_owned()),
        root: root.root.clone(),
        image: image.clone(),
    };
    Ok((Program::Image(Box::new(program)), port, Probe::Tcp))
}

fn known(
    name: &str,
    detail: &ServiceDetail,
    field: &Field,
    programs: Option<&Programs>,
) -> Result<(Program, u16, Probe), PlanError> {
    if !detail.env.is_empty() {
        let message =
            "this host configures the services that it knows; give a cmd to do it yourself";
        return Err(field.refuse(".env", message));
    }
    if detail.user.is_some() {
        let message = "this host runs the services that it knows as a user of their own; give a cmd to choose";
        return Err(field.refuse(".user", message));
    }
    let (program, port, probe, package) = match name {
        "postgres" => {
            let program = programs.and_then(|has| has.postgres.clone()).map(Program::Postgres);
            (program, POSTGRES_PORT, Probe::Postgres, "postgresql")
        }
        "redis" => {
            let program = programs.and_then(|has| has.redis.clone()).map(Program::Redis);
            (program, REDIS_PORT, Probe::Redis, "redis-server")
        }
        _ => {
            let message = "known are `postgres` and `redis`; for another service give cmd and port";
            return Err(field.refuse(".cmd", message));
        }
    };
    let program = program.ok_or_else(|| {
        let message = format!(
            "the root file system is not known to have its server: with envRef `host` install it \
             (apt-get install {package}), otherwise give cmd and port"
        );
        PlanError::new(field.name(""), message)
    })?;
    Ok((program, detail.port.unwrap_or(port), probe))
}

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= MAX_NAME
        && name.bytes().next().is_some_and(|first| first.is_ascii_lowercase())
        && name.bytes().all(fits)
}
