//! What is done for a sandbox of a class while it lives, and where it is observed.

use std::io;
use std::path::PathBuf;

use crate::agent::Agent;
use crate::egress::ProxyLocation;
use crate::host::process::Netns;
use crate::host::runtime::Runtime;
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

/// Where attempts without a route are seen, once the services run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempts {
    /// The host's kernel counts them in the sandbox's network namespace.
    Namespace,
    /// A machine's kernel counts them, and its agent tells.
    Agent,
    /// The sandbox's kernel has told each since the start (`hear`).
    Each,
}

/// How a sandbox that lives is looked after. What only its own kernel sees is said by each class.
pub(crate) trait Supervision: Sync {
    /// The process that stands for a sandbox among the members of its cgroup, where that is not the first of a pid
    /// namespace.
    fn init(&self, _members: &[u32]) -> Option<u32> {
        None
    }

    /// Whether the runtime is waited for when its sandbox has ended.
    fn awaits_runtime(&self) -> bool {
        false
    }

    /// Whether a sandbox whose agent answers needs its runtime no more: it would only wait, and clean up what a wipe takes away too.
    fn outlives(&self, _runtime: &Runtime) -> bool {
        false
    }

    /// Whether a sandbox whose agent answers has mounts of its own, so that those that it was made from are of no more use.
    fn has_own_mounts(&self) -> bool {
        false
    }

    /// What is left to be limited once the agent answers. The path is that of what could not be.
    fn settle(&self, _plan: &Plan, _facts: &HostFacts) -> Result<(), (PathBuf, io::Error)> {
        Ok(())
    }

    /// Where its processes meet the egress proxy: at its agent where the network stack is not the host's.
    fn way(&self, _netns: Option<Netns>, agent: &Agent) -> Option<ProxyLocation> {
        Some(ProxyLocation::Agent(agent.clone()))
    }

    /// Where attempts without a route are seen.
    fn attempts(&self) -> Attempts;

    /// Whether its kernel keeps pipes and sockets that the host does not see, so that its agent is asked for them.
    fn hides_files(&self) -> bool;
}
