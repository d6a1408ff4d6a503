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

/// What Git reads as its system's configuration, and what that says. A project of the host keeps its owners inside, where the
/// task is root, and Git does not touch a repository of somebody else's; but whose it is decides nothing in a sandbox: what its
/// hooks may do, the task may do. By a file and not by `GIT_CONFIG_COUNT`, which the Git that a clone starts does not inherit.
pub(crate) const GITCONFIG_PATH: &str = "/.cofferdam/gitconfig";
pub(crate) const GITCONFIG: &str = "[safe]\n\tdirectory = *\n[include]\n\tpath = /etc/gitconfig\n";

/// The agent is one process more than the task asked for.
pub(crate) const AGENT_PIDS: u64 = 1;
