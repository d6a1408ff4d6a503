//! The life of a sandbox: made, driven, wiped, and looked for when its owner is gone.
//!
//! ```text
//! Host (detected once) --provision--> Sandbox --exec, collect, changes--> outcome, files
//!                             |          |
//!                             +--error---+--wipe--> evidence <--reconcile, recheck (without its owner)
//! ```

mod ahead;
mod attest;
mod begin;
mod bundle;
mod cached;
mod egress;
mod error;
mod exec;
mod furnish;
mod hold;
mod host;
mod input;
mod inside;
mod inside_layer;
mod intake;
mod keep;
mod machine_memory;
mod machines;
mod memory;
mod meter;
mod names;
mod network;
mod numbered;
mod provision;
mod put;
mod raise;
mod raised;
mod reached;
mod recheck;
mod reconcile;
mod resume;
mod root;
mod sandbox;
mod service;
mod start;
mod unwanted;
mod waits;
mod warm;
mod weigh;
mod wipe;

pub use ahead::Ahead;
pub use egress::Traffic;
pub use error::ProvisionError;
pub use exec::{Dropped, ExecOutcome};
pub use host::{Host, HostConfig, has_swap};
pub use keep::{Filling, KeepError, LayerKeeper, SleepError, Sleeping, Still, Unkept};
pub use names::{Reserved, SandboxNames};
pub use network::{Network, NetworkError};
pub use provision::{provision, provision_filled, provision_on};
pub use recheck::verify_again;
pub use reconcile::{abandoned, destroy_orphans, reconcile, remains, verify_absent};
pub use resume::{ResumeError, resume};
pub use sandbox::{BootRecord, KillHandle, Sandbox, SandboxError};
pub use service::ServiceEnd;
pub use unwanted::GivenUp;
pub use waits::Name;
pub(crate) use waits::is_on;
