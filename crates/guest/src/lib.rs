//! What the host and the agent inside a sandbox say to each other.
//!
//! ```text
//!  host (crates/sandbox)                         sandbox: pid 1 = cofferdam-guest
//!  HTTP/2 client  ---- one unix socket pair ---->  HTTP/2 server on its stdin
//!                 <---- frames of exec, collect --
//! ```
//! The stream is the agent's life line: when the host's end closes, for whatever reason, the agent
//! exits, and with pid 1 the kernel ends every process of the sandbox. Routes carry their version;
//! a new need gets a new route, so an old agent never meets a message it half understands.

pub mod archive;
pub mod door;
pub mod escape;
pub mod frame;
pub mod glob;
pub mod jail;
pub mod job;
pub mod keep;
pub mod name;
pub mod pieces;
pub mod process;
pub mod removal;
pub mod setup;
pub mod sleep;
pub mod snmp;
pub mod tree;
pub mod upper;
pub mod users;
pub mod wire;
