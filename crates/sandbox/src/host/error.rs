//! Why a host cannot hold sandboxes. Every text says what to do about it.

use std::io;
use std::path::PathBuf;

use cofferdam_contracts::canonical::CanonicalError;

/// Why this host cannot hold sandboxes. Every text says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Mounts and namespaces need root.
    #[error("sandboxes of the container class need root: run cofferdam as root (sudo)")]
    NotRoot,
    /// None found, or not the one that was asked for.
    #[error(
        "no OCI runtime was found{}: install one (apt-get install crun, or runc)",
        .wanted.as_ref().map(|name| format!(" under the name {name:?}")).unwrap_or_default()
    )]
    NoRuntime {
        /// What the configuration names.
        wanted: Option<String>,
    },
    /// An engine was asked for, and none answers.
    #[error("no Docker engine was found: {why} ({remedy})")]
    NoEngine {
        /// Reason, for the operator.
        why: String,
        /// What would change that.
        remedy: String,
    },
    /// crun does not start beside a version 2 tree that holds a controller.
    #[error(
        "crun cannot run while /sys/fs/cgroup/unified is mounted beside version 1 controllers: call \
         enter_private_mounts before the first thread starts, or install runc (apt-get install runc)"
    )]
    Hybrid,
    /// No cgroup tree at all.
    #[error("no cgroup tree is mounted: mount one (mount -t cgroup2 none /sys/fs/cgroup)")]
    NoCgroups,
    /// The namespace could not be made.
    #[error("a private mount namespace could not be made: run as root with CAP_SYS_ADMIN")]
    PrivateMounts {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The version 2 tree of a host with both could not be hidden.
    #[error(
        "the cgroup2 tree beside version 1 could not be hidden from this process: run as root with \
         CAP_SYS_ADMIN, or unmount /sys/fs/cgroup/unified"
    )]
    Hide {
        /// The kernel's answer.
        source: io::Error,
    },
    /// A provider was asked for, and none can be used.
    #[error("the provider of remote sandboxes cannot be used: {why} ({remedy})")]
    NoProvider {
        /// Reason, for the operator.
        why: String,
        /// What would change that.
        remedy: String,
    },
    /// A directory of the state could not be made or used.
    #[error(
        "the state directory needs {path:?}: make it writable for root, on a file system with room"
    )]
    State {
        /// Path of the file concerned.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
    /// An allowed root is missing.
    #[error(
        "the allowed root {path:?} cannot be resolved: make the directory or drop it from the configuration"
    )]
    AllowedRoot {
        /// Path of the file concerned.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
    /// The kernel's own files cannot be read.
    #[error("{path:?} cannot be read: mount /proc")]
    Read {
        /// Path of the file concerned.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
    /// A digest of our own files could not be made.
    #[error("the base could not be described")]
    Describe(#[from] CanonicalError),
}
