//! Sandboxes of the classes `container`, `gvisor`, `microvm`, `docker` and `remote`: planned, made, driven, and provably taken away.
//!
//! ```text
//! SandboxRequest --plan (pure)--> Plan --provision--> Sandbox --exec, collect--> outcome, files
//!                  |                |                    |
//!              PlanError     ProvisionError           wipe -> WipeEvidence
//!           (names the field)  (wiped, with evidence)
//!
//! <state>/base/host-*   lower layer: skeleton      <live>/sandboxes/<id>/layer   tmpfs: all writes
//! <state>/guest/<sha>   lower layer: the agent     <live>/sandboxes/<id>/root    overlay of them
//! <live>/sandboxes/<id>/given  host paths that the request names, see `hostpath`
//! <live>/run/<id>       the runtime's own state    <cgroup>/cofferdam/<tag>.<id> limits, counters
//! <state>/images        images, see [`image`], and templates, see [`templates`]
//! <state>/pulled        images that services of tenants run from
//! <state>/cache         what build phases left, see `cache`
//! <state>/trees         host directories as they were bound, and files that clients sent, see `trees`
//! <state>/remote        which provider holds which sandbox, see `remote`
//! <state>/layers        encrypted images of layers too large for memory, see `crypt`
//! <live> is <state> or, by the link <state>/live, a directory in the host's memory
//! ```
//! An attached OCI runtime (`crun run`, runc or runsc), or QEMU, holds the sandbox; the agent inside is its
//! pid 1 and speaks HTTP/2 over one socket pair. **Closing our end ends the sandbox**, so a worker that is
//! killed leaves nothing running on its host; a sandbox elsewhere goes on, and [`resume`] takes it over. **No
//! process of the task outlives its command**, and **no sandbox is reported as gone unless everything that it
//! was made of was looked for and not found.**
//!
//! What a pool manager needs of every class is five functions, and plain ones, since there is one
//! life for all classes (`class` holds the differences): [`provision`], the heartbeat
//! [`KillHandle::is_alive`], [`Sandbox::wipe`] to terminate and verify, [`verify_absent`] and
//! [`verify_again`] to verify without the sandbox's owner; and [`Host::attest`] says what it was.
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! doctor
//! template
//! build
//! life
//! plan
//! class
//! machine
//! cache
//! spec
//! images
//! egress
//! oci
//! agent
//! trees
//! host
//! ```

mod agent;
mod build;
mod cache;
mod class;
mod doctor;
mod egress;
mod host;
mod images;
mod life;
mod machine;
#[cfg(test)]
#[path = "../../../tests/src/not_run.rs"]
mod not_run;
mod oci;
mod plan;
mod spec;
mod template;
mod trees;

/// Images: pulled, imported, built and kept.
pub mod image {
    pub use crate::build::{BuildNote, ImageFile, Step, build};
    pub use crate::host::account::Account;
    pub use crate::images::{
        ImageError, ImageName, ImageRecord, ImageRoot, Images, ServiceRoot, ServiceRoots,
        StoreBounds, TenantImages, pin,
    };
}

/// Templates of long-lived sandboxes.
pub mod templates {
    pub use crate::template::{
        BUILDS, Template, TemplateNote, TemplateProgram, build_template, template, templates,
    };
}

/// What is said to the agent inside a sandbox, and what it answers.
pub mod inside {
    pub use cofferdam_guest::archive::Unpack;
    pub use cofferdam_guest::process::{Size, Usage};
    pub use cofferdam_guest::sleep::{Command, MAX_NOTE};
    pub use cofferdam_guest::tree::{Change, ChangeKind, Entry, NodeKind};
    pub use cofferdam_guest::wire::{CommandExit, ExecEnd, ExecRequest, User};
}

pub use agent::changes::{Changes, ChangesError};
pub use agent::excess::Excess;
pub use agent::stop::CommandStopper;
pub use agent::{
    Agent, AgentError, AgentFiles, CollectedFile, CollectedHead, Collection, CollectionEnd,
    CollectionItem, CommandControl, CommandEvent, CommandHandle, CommandInput, ExecOptions,
    FileReader, IgnoreRules, OutputSink, SnapshotError, Stream, WatchStream,
};
pub use cache::{
    BaseLookup, BaseMark, BaseRequest, CacheBase, CacheBounds, CacheError, Caches, Flight,
    FlightOutcome, Promotion, Removal,
};
pub use class::memory_support::MemorySupport;
pub use cofferdam_guest::glob::{Glob, GlobError, names as glob_names};
pub use cofferdam_guest::jail::{Jail, JailRefusal, JailRefusalKind, JailReport};
pub use cofferdam_guest::name::{decode as decode_name, encode as encode_name, is_encoded};
pub use cofferdam_guest::wire::User;
pub use doctor::{
    Finding, Grade, ProbeResult, SelfTest, SelfTestError, monitors, self_test_in, self_test_of,
    self_test_plan, survey,
};
pub use egress::{
    ActiveNetwork, ModelCall, ModelCut, ModelGateway, ModelReply, NameRequest, OutsideError,
    OutsideNames, SecretFuture, SecretSource, SecretVersionCount, model_base_url,
};
pub use host::agents::{
    AgentProgram, AgentProgramError, InstalledAgent, agent_installed, agent_place, agent_program,
    agent_record, agents_dir, beginning, codex_native, is_executable,
};
pub use host::base::Base;
pub use host::ceiling::{Ceilings, Tcp};
pub use host::cgroup::{CgroupMode, Cgroups, Hierarchy};
pub use host::crypt::LargeLayers;
pub use host::detached_layer::{DetachedLayer, measure_files, stream_sizes, write_files};
pub use host::error::HostError;
pub use host::git_dir::{GitDirError, git_refs};
pub use host::hostpath::{AllowedPaths, HostHandle, HostPath, Links, ListError, OpenError, mark};
pub use host::idrange::{IdRanges, Region};
pub use host::mounts::{enter_private_mounts, outside_mounts};
pub use host::runtime::{Runtime, SealedProgram};
pub use host::service::{leave_service, outlive_hangup};
pub use host::toolchains::{ToolchainAbsence, find as find_toolchain, has_toolchain};
pub use host::traces::{Traces, locate};
pub use host::weight::go_first;
pub use life::{
    BootRecord, CollectBounds, CommandTalk, DiscardGuard, DropCounts, EarlySandbox, ExecOutcome,
    FrozenSandbox, Host, HostConfig, InitialFiles, KillHandle, LayerSnapshotError,
    LayerSnapshotter, Name, NameReservation, Network, NetworkError, NoSnapshotReason,
    ProvisionError, ResumeError, Sandbox, SandboxCollection, SandboxError, SandboxFiles,
    SandboxNames, ServiceEnd, SleepError, SleepHandle, Traffic, abandoned, destroy_orphans,
    has_swap, plan_with, provision, provision_filled, provision_on, reconcile, remains, resume,
    verify_absent, verify_again,
};
pub use plan::plan;
pub use spec::class::{Class, ClassFact, Offer};
pub use spec::command::Command;
pub use spec::environment::USUAL_PATH;
pub use spec::facts::HostFacts;
pub use spec::input::{Input, InputPiece, InputPieces};
pub use spec::machine::{Accel, Machine};
pub use spec::plan::{Plan, PlannedMount};
pub use spec::provider::{Key, Provider, RemoteConfig, RemoteLocation};
pub use spec::refuse::PlanError;
pub use spec::service::{PlannedService, Program, Programs, ServiceProgram};
pub use trees::{
    BoundTree, ManifestPiece, OwnTree, StoredTree, TreeBounds, TreeError, TreeRelease, TreeShare,
    TreeStore, TreeUploads, UploadBounds, UploadError,
};
