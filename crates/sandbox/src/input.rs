//! What a sandbox is given: bytes that are written into it, and paths of the host that it sees.
//!
//! | input | how it gets in |
//! |---|---|
//! | bytes; host file, workspace-write | written by the agent, from inside, into the layer |
//! | host file, read-only | bound read-only |
//! | host directory, read-only | only layer of an overlay, then bound: a socket in there is another one and has no listener |
//! | host directory, workspace-write | lower layer of an overlay whose upper lies in our tmpfs |
//!
//! A host path is opened once, when the sandbox is made. What a runtime is told to bind is a place of ours
//! below the sandbox's directory, where the opened file or directory is mounted.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use cofferdam_contracts::sandbox::AccessMode;
use serde_json::Value;

use crate::boot::blocking;
use crate::cache::{self, CacheBase};
use crate::changes::Changed;
use crate::host::HostFacts;
use crate::hostpath::{HostPath, Links, OpenError, Opened, Place};
use crate::microvm::{self, Given};
use crate::mounts::overlay_options;
use crate::oci;
use crate::plan::Plan;
use crate::refuse;

/// A host file that is copied is held in memory once on its way in; a larger one belongs into a
/// directory, which is not copied at all.
const MAX_COPY_BYTES: u64 = 64 * 1024 * 1024;
/// Mode bits that a copied file keeps.
const MODE_BITS: u32 = 0o777;

/// Something that the task finds in its sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A file.
    Bytes {
        /// Absolute, inside.
        path: String,
        /// Its content.
        bytes: Vec<u8>,
        /// Its permissions, at most 0777.
        mode: u32,
    },
    /// A file or directory of the host, inside an allowed root.
    Host {
        /// Absolute, inside.
        path: String,
        /// Absolute, on the host.
        source: HostPath,
        /// Read-only or copy-on-write.
        access: AccessMode,
    },
}

/// Why an input cannot be given.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("{0}")]
    Path(#[from] refuse::PlanError),
    #[error(transparent)]
    Open(#[from] OpenError),
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
            _ => true,
        }
    }
}

/// A file that the agent is to write.
pub(crate) struct Upload<'a> {
    pub path: &'a str,
    pub content: Content<'a>,
    pub mode: u32,
}

/// Where its bytes are.
pub(crate) enum Content<'a> {
    Bytes(&'a [u8]),
    Ours(PathBuf),
    Given(Opened),
}

/// What is mounted at a place of ours before the runtime starts.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub opened: Opened,
    pub at: PathBuf,
    pub readonly: bool,
}

/// A host directory that is shown through an overlay.
#[derive(Debug, Clone)]
pub(crate) struct Overlay {
    pub at: PathBuf,
    pub lower: PathBuf,
    /// Upper and working directory; `None`: nothing can be changed.
    pub changes: Option<(PathBuf, PathBuf)>,
    /// What was named, for messages.
    pub of: String,
}

/// Inputs, resolved against this host.
#[derive(Default)]
pub(crate) struct Resolved<'a> {
    /// OCI mounts, in order.
    pub mounts: Vec<Value>,
    /// The same for a machine, which mounts for itself.
    pub given: Vec<Given>,
    /// What is mounted at places of ours, for those mounts to bind.
    pub shares: Vec<Share>,
    /// Directories to make in the layer before those mounts.
    pub dirs: Vec<PathBuf>,
    /// Overlays to mount in those directories, where the runtime cannot.
    pub overlays: Vec<Overlay>,
    /// Directories that are seen copy-on-write: where, and the place of their changes.
    pub trees: Vec<(String, Changed)>,
    /// Where a machine shows what its build leaves in the cached directories, in their order; empty
    /// where that lies on the host.
    pub fresh: Vec<String>,
    /// Files to write once the agent answers.
    pub uploads: Vec<Upload<'a>>,
}

impl<'a> Resolved<'a> {
    /// Shows a path of the host read-only.
    pub(crate) fn shown(&mut self, plan: &Plan, source: Place, target: &str) {
        if plan.backend.is_machine() {
            self.given.push(microvm::given(source, target, None));
            return;
        }
        let (of, is_dir) =
            (source.name(), matches!(&source, Place::Given(given) if given.is_dir()));
        let mut at = self.placed(plan, source, true);
        if is_dir && plan.backend.connects_to_sockets() {
            let lower = std::mem::replace(&mut at, plan.traces.seen(self.overlays.len()));
            self.overlays.push(Overlay { at: at.clone(), lower, changes: None, of });
        }
        self.mounts.push(oci::bind(&at, target));
    }

    /// Has a file of ours written into the sandbox.
    pub(crate) fn copied(&mut self, source: &Path, target: &'a str) {
        let content = Content::Ours(source.to_owned());
        self.uploads.push(Upload { path: target, content, mode: 0o444 });
    }

    /// Shows a directory of the host copy-on-write, with its changes in `place`.
    pub(crate) fn copied_on_write(
        &mut self,
        plan: &Plan,
        target: &str,
        lower: Place,
        place: &Path,
    ) {
        let (upper, work) = (place.join("upper"), place.join("work"));
        if plan.backend.is_machine() {
            let shown = microvm::changes_at(self.given.len());
            self.given.push(microvm::given(lower, target, Some(shown)));
            return;
        }
        let of = lower.name();
        let lower = self.placed(plan, lower, true);
        if plan.backend.mounts_overlays() {
            let at = place.join("merged");
            self.mounts.push(oci::bind_writable(&at, target));
            self.dirs.push(at.clone());
            let changes = Some((upper.clone(), work.clone()));
            self.overlays.push(Overlay { at, lower, changes, of });
        } else {
            let options = overlay_options(&[lower], &upper, &work);
            self.mounts.push(oci::overlay(target, &options));
        }
        self.dirs.extend([upper, work]);
    }

    /// A path that a runtime may be told: what a tenant named gets a place of ours first.
    fn placed(&mut self, plan: &Plan, source: Place, readonly: bool) -> PathBuf {
        match source {
            Place::Ours(path) => path,
            Place::Given(opened) => {
                let at = plan.traces.given(self.shares.len());
                self.shares.push(Share { opened, at: at.clone(), readonly });
                at
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
) -> Result<Resolved<'a>, InputError> {
    let mut resolved = Resolved::default();
    for mount in &plan.mounts {
        host(&mut resolved, plan, &mount.target, &mount.source, mount.access, facts)?;
    }
    for input in inputs {
        match input {
            Input::Bytes { path, bytes, mode } => {
                refuse::absolute("path", path)?;
                let content = Content::Bytes(bytes);
                resolved.uploads.push(Upload { path, content, mode: mode & MODE_BITS });
            }
            Input::Host { path, source, access } => {
                refuse::absolute("path", path)?;
                host(&mut resolved, plan, path, source, *access, facts)?;
            }
        }
    }
    cache::mount(&mut resolved, plan, base);
    Ok(resolved)
}

fn host<'a>(
    resolved: &mut Resolved<'a>,
    plan: &Plan,
    target: &'a str,
    source: &HostPath,
    access: AccessMode,
    facts: &HostFacts,
) -> Result<(), InputError> {
    if plan.backend.is_elsewhere() {
        return Err(InputError::Elsewhere(source.clone()));
    }
    let opened = facts.allowed.open(source, Links::Beneath)?;
    match access {
        // Only where the whole host is open to whoever asks, which is the host's own admin.
        AccessMode::Full if !facts.is_open() || plan.backend.is_machine() => {
            return Err(InputError::Full(source.clone()));
        }
        _ if !opened.is_dir() && !opened.is_file() => {
            return Err(InputError::Kind(source.clone()));
        }
        AccessMode::WorkspaceWrite if plan.backend.is_machine() && opened.is_dir() => {
            let shown = microvm::changes_at(resolved.given.len());
            let given = microvm::given(Place::Given(opened), target, Some(shown.clone()));
            resolved.given.push(given);
            resolved.trees.push((target.to_owned(), Changed::Inside(shown)));
        }
        AccessMode::ReadOnly => resolved.shown(plan, Place::Given(opened), target),
        AccessMode::Full => {
            let at = resolved.placed(plan, Place::Given(opened), false);
            resolved.mounts.push(oci::bind_writable(&at, target));
        }
        AccessMode::WorkspaceWrite if opened.is_dir() => {
            let place = plan.traces.layer.join(format!("tree-{}", resolved.dirs.len()));
            resolved.trees.push((target.to_owned(), Changed::Host(place.join("upper"))));
            resolved.copied_on_write(plan, target, Place::Given(opened), &place);
        }
        AccessMode::WorkspaceWrite if opened.len() > MAX_COPY_BYTES => {
            return Err(InputError::Size { path: source.clone(), bytes: opened.len() });
        }
        AccessMode::WorkspaceWrite => {
            let mode = opened.mode();
            resolved.uploads.push(Upload { path: target, content: Content::Given(opened), mode });
        }
    }
    Ok(())
}

impl Upload<'_> {
    /// The bytes, read now if they are a host file's.
    pub(crate) async fn bytes(&self) -> io::Result<bytes::Bytes> {
        match &self.content {
            Content::Bytes(bytes) => Ok(bytes::Bytes::copy_from_slice(bytes)),
            Content::Ours(path) => Ok(tokio::fs::read(path).await?.into()),
            Content::Given(opened) => {
                let opened = opened.clone();
                blocking(move || whole(&opened)).await
            }
        }
    }
}

/// A file as it is now, which may be more than it was when it was opened.
fn whole(opened: &Opened) -> io::Result<bytes::Bytes> {
    let mut bytes = Vec::new();
    opened.file(Path::new(""))?.take(MAX_COPY_BYTES + 1).read_to_end(&mut bytes)?;
    match u64::try_from(bytes.len()).is_ok_and(|count| count <= MAX_COPY_BYTES) {
        true => Ok(bytes.into()),
        false => Err(io::Error::other(format!("it grew beyond {MAX_COPY_BYTES} bytes"))),
    }
}
