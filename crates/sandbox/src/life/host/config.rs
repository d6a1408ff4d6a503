//! What the operator decides about a host.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::spec::provider::RemoteConfig;

/// What the operator decides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostConfig {
    /// Where sandboxes, bases and the agent lie. One directory per worker deployment.
    pub state_dir: PathBuf,
    /// Host directories that tasks may be given parts of. Empty: none.
    pub allowed_roots: Vec<PathBuf>,
    /// `crun`, `runc` or an absolute path, or `docker` or `remote`; `firecracker` or `cloud-hypervisor` make
    /// the machines in QEMU's place. `None`: the best that is installed.
    pub runtime: Option<String>,
    /// Where listed names really are, like a hosts file with ports: connections to such a name go
    /// there whatever port they ask for. It opens nothing: the name must be on a phase's list.
    pub hosts: BTreeMap<String, SocketAddr>,
    /// Who holds the sandboxes, where the runtime is `remote`.
    pub remote: Option<RemoteConfig>,
}
