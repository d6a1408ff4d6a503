//! The paths of a sandbox, a function of the state directory and its id alone: whoever finds only
//! the id can look for everything that the sandbox was made of.

use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::SandboxId;

use crate::host::live;

/// Where a sandbox is, or was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traces {
    /// Id of the sandbox.
    pub id: SandboxId,
    /// Where all sandboxes of its state directory lie: in memory, where the host allows it.
    pub live: PathBuf,
    /// Its directory, which is also the OCI bundle.
    pub dir: PathBuf,
    /// Mount point of what takes all writes: a tmpfs or, too large for memory, a directory of `disk`.
    pub layer: PathBuf,
    /// Mount point of the file system in `image`.
    pub disk: PathBuf,
    /// What a layer that is too large for memory is encrypted into, on disk.
    pub image: PathBuf,
    /// Mount point of the root file system.
    pub root: PathBuf,
    /// The runtime's root directory, shared by the sandboxes of this state directory.
    pub runtime_root: PathBuf,
    /// The runtime's state of this sandbox.
    pub runtime_state: PathBuf,
    /// What says which provider holds it, on disk; absent unless one does.
    pub marker: PathBuf,
    /// Its cgroup below every hierarchy's mount point.
    pub cgroup: PathBuf,
}

/// Where the sandbox `id` of this state directory is, or was. A relative or linked state directory
/// is resolved first, so that every worker of a host computes the same paths.
#[must_use]
pub fn locate(state_dir: &Path, id: &SandboxId) -> Traces {
    let resolved = fs::canonicalize(state_dir);
    let state = resolved.as_deref().unwrap_or(state_dir);
    Traces::of(state, &live::of(state), id)
}

impl Traces {
    /// The same for a state directory and its live directory, resolved already. Pure.
    pub(crate) fn of(state: &Path, live: &Path, id: &SandboxId) -> Self {
        let dir = sandboxes(live).join(id.as_str());
        let runtime_root = runtime_root(live);
        Self {
            layer: dir.join("layer"),
            disk: dir.join("disk"),
            image: layers(state).join(format!("{id}.img")),
            root: dir.join("root"),
            runtime_state: runtime_root.join(id.as_str()),
            runtime_root,
            marker: markers(state).join(format!("{id}.json")),
            cgroup: Path::new(CGROUP_PARENT).join(format!("{}{id}", cgroup_prefix(state))),
            live: live.to_owned(),
            id: id.clone(),
            dir,
        }
    }

    /// Where the host paths that a request names are mounted.
    pub(crate) fn shares(&self) -> PathBuf {
        self.dir.join("given")
    }

    /// One of them.
    pub(crate) fn given(&self, index: usize) -> PathBuf {
        self.shares().join(index.to_string())
    }

    /// Where one of them is shown through an overlay.
    pub(crate) fn seen(&self, index: usize) -> PathBuf {
        self.shares().join(format!("seen-{index}"))
    }

    /// Where what a runtime binds is mounted, beside the root: a path below that is a tenant's to lead anywhere.
    pub(crate) fn beside(&self) -> PathBuf {
        self.dir.join("beside")
    }

    /// A file in the writable layer that the sandbox cannot see: where it is, the layer is.
    pub(crate) fn sentinel(&self) -> PathBuf {
        self.layer.join("sentinel")
    }
}

/// The cgroup that holds every sandbox of every state directory on this host.
pub(crate) const CGROUP_PARENT: &str = "cofferdam";

/// Directory of all sandboxes in a live directory.
pub(crate) fn sandboxes(live: &Path) -> PathBuf {
    live.join("sandboxes")
}

/// Directory of the runtime's states in a live directory.
pub(crate) fn runtime_root(live: &Path) -> PathBuf {
    live.join("run")
}

/// What the cgroups of one state directory begin with: two workers with different state directories
/// never take each other's sandboxes for orphans.
pub(crate) fn cgroup_prefix(state: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let digest = digest_bytes(state.as_os_str().as_bytes());
    format!("{}.", digest.as_str().get(..12).unwrap_or_default())
}

/// Directory of the encrypted layers in a state directory.
pub(crate) fn layers(state: &Path) -> PathBuf {
    state.join("layers")
}

/// Where the sandboxes that a provider elsewhere holds are marked: on disk, since they outlive a reboot.
pub(crate) fn markers(state: &Path) -> PathBuf {
    state.join("remote")
}
