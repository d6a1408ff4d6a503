//! What a task of a plan does.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agent_plan::{OpencodeWork, PatchedWork};
use crate::dispatch::AgentWork;
use crate::live::LiveWork;
use crate::sandbox::SandboxRequest;

/// What a task does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// A command in a sandbox.
    Sandbox(Box<SandboxRequest>),
    /// An agent in a sandbox: the work of a dispatch.
    Agent(Box<AgentWork>),
    /// A sandbox that is held for its tenant.
    Live(Box<LiveWork>),
    /// OpenCode in a sandbox: it plans, or builds what was planned.
    Opencode(Box<OpencodeWork>),
    /// A command in a sandbox whose project is patched before.
    Patched(Box<PatchedWork>),
    /// A text that the engine stores.
    Value(String),
}

impl Work {
    /// What is asked of its sandbox, where it has one.
    #[must_use]
    pub fn request(&self) -> Option<&SandboxRequest> {
        match self {
            Self::Sandbox(request) => Some(request),
            Self::Agent(agent) => Some(&agent.request),
            Self::Live(live) => Some(&live.request),
            Self::Opencode(work) => Some(&work.request),
            Self::Patched(work) => Some(&work.request),
            Self::Value(_) => None,
        }
    }

    /// The same, to be changed.
    #[must_use]
    pub fn request_mut(&mut self) -> Option<&mut SandboxRequest> {
        match self {
            Self::Sandbox(request) => Some(request),
            Self::Agent(agent) => Some(&mut agent.request),
            Self::Live(live) => Some(&mut live.request),
            Self::Opencode(work) => Some(&mut work.request),
            Self::Patched(work) => Some(&mut work.request),
            Self::Value(_) => None,
        }
    }
}
