//! What a sandbox is given: bytes that are written into it, and paths of the host that it sees.
//!
//! | input | how it gets in |
//! |---|---|
//! | bytes; host file, workspace-write | written by the agent, from inside, into the layer |
//! | host file or directory, read-only | bound read-only |
//! | host directory, workspace-write | lower layer of an overlay whose upper lies in our tmpfs |

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cofferdam_contracts::sandbox::AccessMode;
use serde_json::Value;

use crate::backend::Backend;
use crate::cache::{self, CacheBase};
use crate::changes::Changed;
use crate::host::HostFacts;
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
        source: PathBuf,
        /// Read-only or copy-on-write.
        access: AccessMode,
    },
}

/// Why an input cannot be given.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("{0}")]
    Path(#[from] refuse::PlanError),
    #[error("{source_path:?} cannot be read on this host")]
    Read { source_path: PathBuf, source: io::Error },
    #[error("{0:?} is, or leads, outside the host's allowed roots")]
    Outside(PathBuf),
    #[error("{0:?} is on this host, and the class `remote` is given bytes alone")]
    Elsewhere(PathBuf),
    #[error("{0:?} cannot be given with full access")]
    Full(PathBuf),
    #[error("{0:?} is neither a file nor a directory")]
    Kind(PathBuf),
    #[error(
        "{path:?} has {bytes} bytes; a copied file has at most {MAX_COPY_BYTES}: give its directory"
    )]
    Size { path: PathBuf, bytes: u64 },
}

impl InputError {
    /// Whether the input is refused for what it is; what cannot be read now may be there a moment later.
    pub(crate) const fn is_permanent(&self) -> bool {
        !matches!(self, Self::Read { .. })
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
    File(PathBuf),
}

/// A host directory and the place of its changes.
#[derive(Debug, Clone)]
pub(crate) struct Overlay {
    pub at: PathBuf,
    pub lower: PathBuf,
    pub upper: PathBuf,
    pub work: PathBuf,
}

/// Inputs, resolved against this host.
#[derive(Default)]
pub(crate) struct Resolved<'a> {
    /// OCI mounts, in order.
    pub mounts: Vec<Value>,
    /// The same for a machine, which mounts for itself.
    pub given: Vec<Given>,
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
    pub(crate) fn shown(&mut self, backend: Backend, source: &Path, target: &str) {
        if backend.is_machine() {
            self.given.push(microvm::given(source, target, None));
        } else {
            self.mounts.push(oci::bind(source, target));
        }
    }

    /// Has a file of the host written into the sandbox.
    pub(crate) fn copied(&mut self, source: &Path, target: &'a str) {
        let content = Content::File(source.to_owned());
        self.uploads.push(Upload { path: target, content, mode: 0o444 });
    }

    /// Shows a directory of the host copy-on-write, with its changes in `place`.
    pub(crate) fn copied_on_write(
        &mut self,
        backend: Backend,
        target: &str,
        lower: PathBuf,
        place: &Path,
    ) {
        let (upper, work) = (place.join("upper"), place.join("work"));
        if backend.is_machine() {
            let shown = microvm::changes_at(self.given.len());
            self.given.push(microvm::given(&lower, target, Some(shown)));
            return;
        }
        if backend.mounts_overlays() {
            let at = place.join("merged");
            self.mounts.push(oci::bind_writable(&at, target));
            self.dirs.push(at.clone());
            let (upper, work) = (upper.clone(), work.clone());
            self.overlays.push(Overlay { at, lower, upper, work });
        } else {
            let options = overlay_options(&[lower], &upper, &work);
            self.mounts.push(oci::overlay(target, &options));
        }
        self.dirs.extend([upper, work]);
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
    source: &Path,
    access: AccessMode,
    facts: &HostFacts,
) -> Result<(), InputError> {
    use std::os::unix::fs::PermissionsExt as _;
    let unread =
        |source_error| InputError::Read { source_path: source.to_owned(), source: source_error };
    if plan.backend.is_elsewhere() {
        return Err(InputError::Elsewhere(source.to_owned()));
    }
    let real = fs::canonicalize(source).map_err(unread)?;
    if !facts.allowed_roots.iter().any(|root| real.starts_with(root)) {
        return Err(InputError::Outside(source.to_owned()));
    }
    let found = fs::metadata(&real).map_err(unread)?;
    match access {
        // Only where the whole host is open to whoever asks, which is the host's own admin.
        AccessMode::Full if !facts.is_open() || plan.backend.is_machine() => {
            return Err(InputError::Full(source.to_owned()));
        }
        _ if !found.is_dir() && !found.is_file() => {
            return Err(InputError::Kind(source.to_owned()));
        }
        AccessMode::WorkspaceWrite if plan.backend.is_machine() && found.is_dir() => {
            let shown = microvm::changes_at(resolved.given.len());
            resolved.given.push(microvm::given(&real, target, Some(shown.clone())));
            resolved.trees.push((target.to_owned(), Changed::Inside(shown)));
        }
        AccessMode::ReadOnly => resolved.shown(plan.backend, &real, target),
        AccessMode::Full => resolved.mounts.push(oci::bind_writable(&real, target)),
        AccessMode::WorkspaceWrite if found.is_dir() => {
            let place = plan.traces.layer.join(format!("tree-{}", resolved.dirs.len()));
            resolved.trees.push((target.to_owned(), Changed::Host(place.join("upper"))));
            resolved.copied_on_write(plan.backend, target, real, &place);
        }
        AccessMode::WorkspaceWrite if found.len() > MAX_COPY_BYTES => {
            return Err(InputError::Size { path: source.to_owned(), bytes: found.len() });
        }
        AccessMode::WorkspaceWrite => {
            let mode = found.permissions().mode() & MODE_BITS;
            let content = Content::File(real);
            resolved.uploads.push(Upload { path: target, content, mode });
        }
    }
    Ok(())
}

impl Upload<'_> {
    /// The bytes, read now if they are a host file's.
    pub(crate) async fn bytes(&self) -> io::Result<bytes::Bytes> {
        match &self.content {
            Content::Bytes(bytes) => Ok(bytes::Bytes::copy_from_slice(bytes)),
            Content::File(path) => Ok(tokio::fs::read(path).await?.into()),
        }
    }
}
