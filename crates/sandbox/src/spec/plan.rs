//! A plan: everything about a sandbox, decided.

use std::path::PathBuf;

use cofferdam_contracts::artifact_spec::ArtifactSpec;
use cofferdam_contracts::sandbox::{AccessMode, EffectivePolicy, Mount};
use cofferdam_contracts::test_report::ReportSpec;
use cofferdam_guest::wire::User;
use serde_json::Value;

use super::cache;
use super::class::Class;
use super::command::Command;
use super::service::PlannedService;
use crate::egress;
use crate::host::base::Base;
use crate::host::hostpath::{HostPath, HostSource};
use crate::host::runtime::Runtime;
use crate::host::traces::Traces;
use crate::oci::Nofile;

/// Where a task runs when it does not say.
pub(crate) const DEFAULT_WORKDIR: &str = "/work";

/// A host path inside the sandbox. The source is resolved, and held against the allowed roots, when
/// the sandbox is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedMount {
    /// On the host.
    pub source: HostPath,
    /// Absolute path inside the sandbox.
    pub target: String,
    /// Read-only or copy-on-write.
    pub access: AccessMode,
}

impl PlannedMount {
    /// As a spec names it.
    pub(crate) fn of(mount: &Mount) -> Self {
        let Mount { source, target, access } = mount;
        Self { source: HostPath::said(source), target: target.clone(), access: *access }
    }
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
    /// Command of the task, which runs after `build`.
    pub task: Command,
    /// Globs of files to keep, relative to the task's working directory.
    pub artifacts: Vec<ArtifactSpec>,
    /// Test reports to read and keep, relative to the task's working directory.
    pub reports: Vec<ReportSpec>,
    /// The dependencies that the build phase leaves for other tasks.
    pub(crate) cache: Option<cache::CachePlan>,
    /// The names of each phase.
    pub(crate) egress: egress::PlannedLists,
    /// What will be enforced.
    pub effective: EffectivePolicy,
}

impl Plan {
    /// Whom files that a tenant named belong to inside: what is ours has the ids that it should have. Root needs none of them.
    pub(crate) fn user_of(&self, source: &HostSource) -> Option<User> {
        let is_given = matches!(source, HostSource::Given(_));
        self.task.user.filter(|user| is_given && user.uid != 0)
    }
}
