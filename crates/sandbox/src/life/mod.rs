//! The life of a sandbox: made, driven, wiped, and looked for when its owner is gone.
//!
//! ```text
//! Host (detected once) --provision--> Sandbox --exec, collect, changes--> outcome, files
//!                             |          |
//!                             +--error---+--wipe--> evidence <--reconcile, recheck (without its owner)
//! ```

mod attest;
mod bare_sandbox;
mod boot;
mod bundle;
mod cache_mounts;
mod command_names;
mod container_pool;
mod discard;
mod early;
mod egress;
mod error;
mod exec;
mod files;
mod furnish;
mod handle;
mod host;
mod input;
mod inside;
mod inside_layer;
mod intake;
mod limit_watch;
mod machine_memory;
mod machines;
mod memory;
mod meter;
mod names;
mod network;
mod provision;
mod recheck;
mod reconcile;
mod resume;
mod root;
mod runtime_start;
mod sandbox;
mod service;
mod service_root;
mod snapshot;
mod start;
mod warm;
mod weight;
mod wipe;
mod write;

pub use container_pool::Name;
pub(crate) use container_pool::is_on;
pub use discard::DiscardGuard;
pub use early::EarlySandbox;
pub use egress::Traffic;
pub use error::{ProvisionError, SandboxError};
pub use exec::{DropCounts, ExecOutcome};
pub use files::{CollectBounds, SandboxCollection, SandboxFiles};
pub use host::{Host, HostConfig, has_swap, plan_with};
pub use names::{NameReservation, SandboxNames};
pub use network::{Network, NetworkError};
pub use provision::{provision, provision_filled, provision_on};
pub use recheck::verify_again;
pub use reconcile::{abandoned, destroy_orphans, reconcile, remains, verify_absent};
pub use resume::{ResumeError, resume};
pub use sandbox::{BootRecord, CommandTalk, KillHandle, Sandbox};
pub use service::ServiceEnd;
pub use snapshot::{
    FrozenSandbox, InitialFiles, LayerSnapshotError, LayerSnapshotter, NoSnapshotReason,
    SleepError, SleepHandle,
};
