//! What a sandbox is given: bytes that are written into it, and paths of the host that it sees.
//!
//! | input | how it gets in |
//! |---|---|
//! | bytes; content in pieces; host file, workspace-write | written by the agent, from inside, into the layer |
//! | host file, read-only | bound read-only |
//! | host directory, read-only | only layer of an overlay, then bound: a socket in there is another one and has no listener |
//! | image of a service | lower layer of an overlay, as the next; held while the sandbox is there |
//! | host directory, workspace-write | lower layer of an overlay whose upper lies in our tmpfs |
//!
//! A path that was bound by its content is given as its copy. Another host path is opened once, when the sandbox is made. What a runtime is told to bind is a place of ours
//! below the sandbox's directory, where the opened file or directory is mounted.

use std::io::{self, Read as _};
use std::path::Path;

use cofferdam_contracts::id::Digest;
use cofferdam_contracts::sandbox::AccessMode;

use super::cache_mounts;
use crate::cache::CacheBase;
use crate::class::InputMounts;
use crate::class::input_mounts::{MountRefusal, ResolvedInputs, Upload, UploadContent};
use crate::host::hostpath::{HostHandle, HostPath, HostSource, Links, OpenError};
use crate::host::task::blocking;
use crate::spec::facts::HostFacts;
use crate::spec::input::Input;
use crate::spec::plan::{Plan, PlannedMount};
use crate::spec::refuse;
use crate::spec::service;
use crate::trees::{TreeError, TreeStore};

/// A host file that is copied is held in memory once on its way in; a larger one belongs into a
/// directory, which is not copied at all.
const MAX_COPY_BYTES: u64 = 64 * 1024 * 1024;
/// Mode bits that a copied file keeps.
const MODE_BITS: u32 = 0o777;

/// Why an input cannot be given.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("{0}")]
    Path(#[from] refuse::PlanError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{0:?}: {1}")]
    Tree(HostPath, #[source] TreeError),
    #[error("{0:?} is on this host, and the class `remote` is given bytes alone")]
    Elsewhere(HostPath),
    #[error("{0:?} cannot be given with full access")]
    Full(HostPath),
    #[error("{0:?} is neither a file nor a directory")]
    Kind(HostPath),
    #[error(
        "{path:?} has {bytes} bytes; a copied file has at most {MAX_COPY_BYTES}: give its directory"
    )]
    Size { path: HostPath, bytes: u64 },
}

impl InputError {
    /// Whether the input is refused for what it is; a host that cannot read it now may a moment later.
    pub(crate) fn is_permanent(&self) -> bool {
        match self {
            Self::Open(error) => error.is_permanent(),
            Self::Tree(_, error) => error.is_permanent(),
            _ => true,
        }
    }
}

/// Something that is asked for, by the plan or beside it.
enum InputRequest<'a> {
    Written { path: &'a str, content: UploadContent<'a>, mode: u32 },
    Host(HostInput<'a>),
}

/// A path of the host that is asked for.
struct HostInput<'a> {
    path: &'a str,
    source: &'a HostPath,
    access: AccessMode,
    /// The copy that stands for it.
    tree: Option<&'a Digest>,
    /// Whether it is given by the operator to every task, wherever it lies.
    is_toolchain: bool,
}

impl<'a> From<&'a PlannedMount> for InputRequest<'a> {
    fn from(PlannedMount { source, target, access }: &'a PlannedMount) -> Self {
        Self::Host(HostInput {
            path: target,
            source,
            access: *access,
            tree: None,
            is_toolchain: false,
        })
    }
}

impl<'a> From<&'a Input> for InputRequest<'a> {
    fn from(input: &'a Input) -> Self {
        match input {
            Input::Bytes { path, bytes, mode } => {
                Self::Written { path, content: UploadContent::Bytes(bytes), mode: *mode }
            }
            Input::Stream { path, pieces, mode, .. } => {
                Self::Written { path, content: UploadContent::Stream(pieces), mode: *mode }
            }
            Input::Host { path, source, access, tree } => {
                let tree = tree.as_ref();
                Self::Host(HostInput { path, source, access: *access, tree, is_toolchain: false })
            }
            Input::Toolchain { path, source } => {
                let access = AccessMode::ReadOnly;
                Self::Host(HostInput { path, source, access, tree: None, is_toolchain: true })
            }
        }
    }
}

/// Resolves the mounts of the plan and then the inputs, in order, and last the cached directories.
pub(crate) fn resolve<'a>(
    plan: &'a Plan,
    inputs: &'a [Input],
    base: Option<&CacheBase>,
    facts: &HostFacts,
) -> Result<ResolvedInputs<'a>, InputError> {
    let class = plan.isolation().inputs;
    let mut resolved = ResolvedInputs::by(class.medium());
    let mounts = plan.mounts.iter().map(InputRequest::from);
    for wanted in mounts.chain(inputs.iter().map(InputRequest::from)) {
        match wanted {
            InputRequest::Written { path, content, mode } => {
                refuse::absolute("path", path)?;
                resolved.uploads.push(Upload { path, content, mode: mode & MODE_BITS });
            }
            InputRequest::Host(asked) => {
                refuse::absolute("path", asked.path)?;
                host(&mut resolved, plan, asked, class, facts)?;
            }
        }
    }
    cache_mounts::mount(&mut resolved, plan, base);
    service_roots(&mut resolved, plan);
    Ok(resolved)
}

/// Shows the images that services run from, each with its changes in the sandbox's layer.
fn service_roots(resolved: &mut ResolvedInputs<'_>, plan: &Plan) {
    let roots = plan.services.iter().filter_map(|service| Some((&service.name, service.root()?)));
    for (index, (name, program)) in roots.enumerate() {
        let place = plan.traces.layer.join(format!("service-{index}"));
        let lower = HostSource::Ours(program.root.clone());
        resolved.show_on_write(plan, lower, &service::root_of(name), &place);
    }
}

/// Opens a path of the host, and shows it if this class gives it.
fn host<'a>(
    resolved: &mut ResolvedInputs<'a>,
    plan: &Plan,
    asked: HostInput<'a>,
    class: &dyn InputMounts,
    facts: &HostFacts,
) -> Result<(), InputError> {
    let HostInput { path, source, access, tree, is_toolchain } = asked;
    let not_given = |why| match why {
        MountRefusal::Elsewhere => InputError::Elsewhere(source.clone()),
        MountRefusal::Full => InputError::Full(source.clone()),
    };
    class.gives(AccessMode::ReadOnly).map_err(not_given)?;
    let opened = match tree {
        Some(copy) => TreeStore::of(&facts.state_dir)
            .open(copy, source)
            .map_err(|error| InputError::Tree(source.clone(), error))?,
        None if is_toolchain => facts.allowed.just(source).open(source, Links::Refused)?,
        None => facts.allowed.open(source, Links::Beneath)?,
    };
    // Only where the whole host is open to whoever asks, which is the host's own admin.
    if access == AccessMode::Full && !facts.is_open() {
        return Err(InputError::Full(source.clone()));
    }
    class.gives(access).map_err(not_given)?;
    if !opened.is_dir() && !opened.is_file() {
        return Err(InputError::Kind(source.clone()));
    }
    match access {
        AccessMode::ReadOnly => resolved.show(plan, HostSource::Given(opened), path),
        AccessMode::Full => resolved.bound_through(plan, HostSource::Given(opened), path),
        AccessMode::WorkspaceWrite if opened.is_dir() => {
            resolved.show_tree(plan, HostSource::Given(opened), path);
        }
        AccessMode::WorkspaceWrite if opened.len() > MAX_COPY_BYTES => {
            return Err(InputError::Size { path: source.clone(), bytes: opened.len() });
        }
        AccessMode::WorkspaceWrite => {
            let mode = opened.mode();
            resolved.uploads.push(Upload { path, content: UploadContent::Given(opened), mode });
        }
    }
    Ok(())
}

impl Upload<'_> {
    /// The bytes, read now if they are a host file's. What comes in pieces is poured instead.
    pub(crate) async fn bytes(&self) -> io::Result<bytes::Bytes> {
        match &self.content {
            UploadContent::Bytes(bytes) => Ok(bytes::Bytes::copy_from_slice(bytes)),
            UploadContent::Stream(_) => Err(io::ErrorKind::Unsupported.into()),
            UploadContent::Ours(path) => Ok(tokio::fs::read(path).await?.into()),
            UploadContent::Given(opened) => {
                let opened = opened.clone();
                blocking(move || whole(&opened)).await
            }
        }
    }
}

/// A file as it is now, which may be more than it was when it was opened.
fn whole(opened: &HostHandle) -> io::Result<bytes::Bytes> {
    let mut bytes = Vec::new();
    opened.file(Path::new(""))?.take(MAX_COPY_BYTES + 1).read_to_end(&mut bytes)?;
    match u64::try_from(bytes.len()).is_ok_and(|count| count <= MAX_COPY_BYTES) {
        true => Ok(bytes.into()),
        false => Err(io::Error::other(format!("it grew beyond {MAX_COPY_BYTES} bytes"))),
    }
}
