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
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! entry
//! agent
//! agent::serve
//! agent::jobs agent::run
//! agent::exec
//! agent::layer_stream agent::metrics
//! machine machine::enter machine::warmup
//! machine::file_server
//! agent::pack agent::unpack agent::watch archive job machine::restore machine::fill machine::limit process
//!    setup tree
//! agent::collect agent::dial agent::doors agent::file agent::jail agent::persistent_stream agent::outlet agent::port
//!    agent::tree machine::clock machine::disk machine::trace machine::vsock wire
//! agent::answer agent::clock agent::identity agent::subreaper agent::agent_sleep agent::poll_fd agent::reaper
//!    agent::freeze agent::terminal bpf devices door escape frame glob user_namespace jail layer_stream machine::fault machine::network
//!    machine::random machine::stream name pieces removal sleep snmp upper users
//! ```

pub mod archive;
pub mod bpf;
pub mod devices;
pub mod door;
pub mod escape;
pub mod frame;
pub mod glob;
pub mod jail;
pub mod job;
pub mod layer_stream;
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
