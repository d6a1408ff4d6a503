//! The agent, as it is put into a sandbox.

/// The agent, built by `build.rs`.
pub(crate) const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-guest"));
/// The same for gVisor, which waits in another way: `build.rs` says why.
pub(crate) const POLLING_AGENT: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-guest-poll"));
/// Where the sandbox sees it.
pub(crate) const AGENT_PATH: &str = "/.cofferdam/agent";
/// An empty directory beside it, which a task may replace: this host never looks there.
pub(crate) const NOTHING: &str = ".cofferdam/none";

/// The agent is one process more than the task asked for.
pub(crate) const AGENT_PIDS: u64 = 1;
