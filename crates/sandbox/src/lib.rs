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
//! <state>/images        images, see [`image`]
//! <state>/cache         what build phases left, see `cache`
//! <state>/remote        which provider holds which sandbox, see `remote`
//! <state>/layers        encrypted images of layers too large for memory, see `crypt`
//! <live> is <state> or, by the link <state>/live, a directory in the host's memory
//! ```
//! An attached OCI runtime (`crun run`, runc or runsc), or QEMU, holds the sandbox; the agent inside is its pid 1
//! and speaks HTTP/2 over one socket pair. **Closing our end ends the sandbox**, so a worker that is
//! killed leaves nothing running. **No process of the task outlives its command**, and **no sandbox
//! is reported as gone unless everything that it was made of was looked for and not found.**
//!
//! What a pool manager needs of every class is five functions, and plain ones, since there is one
//! implementation for all classes (`backend` holds the differences): [`provision`], the heartbeat
//! [`KillHandle::is_alive`], [`Sandbox::wipe`] to terminate and verify, [`verify_absent`] and
//! [`verify_again`] to verify without the sandbox's owner; and [`Host::attest`] says what it was.

mod agent;
mod attest;
mod backend;
mod base;
mod boot;
mod cache;
mod ceiling;
mod cgroup;
mod changes;
mod class;
mod crypt;
mod docker;
mod dynmods;
mod egress;
mod ended;
mod ending;
mod escape;
mod excess;
mod exec;
mod gvisor;
mod held;
mod holders;
mod host;
mod hostpath;
mod hybrid;
mod idrange;
pub mod image;
mod input;
mod inside;
mod known;
mod layer;
mod life;
mod limit;
mod live;
mod microvm;
mod mounts;
mod nofile;
#[cfg(test)]
#[path = "../../../tests/src/not_run.rs"]
mod not_run;
mod oci;
mod plan;
mod process;
mod reached;
mod recheck;
mod reconcile;
mod refuse;
mod remote;
mod root;
mod runtime;
mod sandbox;
mod service;
mod setid;
mod sockets;
mod survey;
mod traces;
mod warm;
mod wipe;

pub use agent::{Agent, AgentError, Collected, Manner, Remote, Running, Stream, Watching};
pub use base::Base;
pub use boot::{ProvisionError, provision, provision_on};
pub use cache::{
    Boarding, CacheBase, CacheBounds, CacheError, CacheWanted, Caches, Flight, Found, Promotion,
    Removal,
};
pub use ceiling::{Ceilings, Tcp};
pub use cgroup::{CgroupMode, Cgroups, Hierarchy};
pub use changes::{Changes, ChangesError};
pub use class::{Class, ClassFact, Offer};
pub use cofferdam_guest::jail::{Jail, Refused, RefusedKind, Seen};
pub use cofferdam_guest::wire::User;
pub use crypt::LargeLayers;
pub use egress::Asked;
pub use ending::CommandEnd;
pub use escape::{
    Probed, SelfTest, SelfTestError, self_test, self_test_in, self_test_of, self_test_plan,
};
pub use excess::Excess;
pub use exec::{Command, Dropped, ExecOutcome};
pub use host::{Host, HostConfig, HostError, HostFacts};
pub use hostpath::{Allowed, HostPath, Links, ListError, OpenError, Opened, mark};
pub use idrange::{IdRanges, Region};
pub use input::Input;
pub use microvm::{Accel, Machine};
pub use mounts::enter_private_mounts;
pub use plan::{Plan, PlannedMount, plan};
pub use recheck::verify_again;
pub use reconcile::{reconcile, verify_absent};
pub use refuse::PlanError;
pub use remote::{Key, Provider, RemoteConfig};
pub use runtime::{Runtime, Sealed};
pub use sandbox::{KillHandle, Sandbox, SandboxError};
pub use service::{PlannedService, Program, Programs, ServiceEnd};
pub use survey::{Finding, Grade, monitors, survey};
pub use traces::{Traces, locate};
