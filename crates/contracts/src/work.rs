//! What a task of a plan does.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agent_plan::AgentPlan;
use crate::dispatch::AgentWork;
use crate::id::{GroupName, ModelName};
use crate::late::LateField;
use crate::live::LiveWork;
use crate::sandbox::{AccessMode, SandboxRequest};

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
    Patched(Box<PatchTestWork>),
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

/// One task of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanTask {
    /// Its name, unique in the plan.
    pub name: String,
    /// What it is.
    pub work: Work,
    /// Its group in a plan with a graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// Texts of its work that wait for outputs of other tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<LateField>,
    /// Files of other tasks that it finds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<TaskFiles>,
}

impl PlanTask {
    /// A task that waits for no other.
    #[must_use]
    pub const fn of(name: String, work: Work) -> Self {
        Self { name, work, group: None, late: Vec::new(), files: Vec::new() }
    }
}

/// Artifacts of an earlier task as input files: `task://TASK/GLOB`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskFiles {
    /// The task group that has them.
    pub task: GroupName,
    /// Glob over the names of its artifacts.
    pub glob: String,
    /// Absolute directory inside, under which each file has its artifact's name.
    pub to: String,
    /// What the task may do with them.
    #[serde(default)]
    pub access: AccessMode,
}

/// Work of OpenCode in a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpencodeWork {
    /// Its sandbox; the command is the daemon.
    pub request: SandboxRequest,
    /// What is to be achieved.
    pub goal: String,
    /// Model that plans or builds, from the recipe.
    pub model: ModelName,
    /// How long a turn may be silent, ms.
    pub patience_ms: u64,
    /// Planning or building.
    pub role: AgentRole,
}

/// What OpenCode does in a sandbox. The worker chooses the daemon's agent by it, never a caller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum AgentRole {
    /// Gives a plan.
    Plan {
        /// The tests that it may name.
        tests: Vec<PlanTask>,
    },
    /// Carries an approved plan out.
    Build {
        /// Plan that a person approved at the gate.
        plan: Box<AgentPlan>,
        /// The conversation that the plan came from.
        session: String,
        /// The tests that the plan could name, as its prompts said.
        tests: Vec<String>,
    },
}

/// A test of a patched project, in a sandbox without the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchTestWork {
    /// Its sandbox, which sees the project as it was.
    pub request: SandboxRequest,
    /// The patch that is applied before the command: an artifact. Absent in a plan: there is none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
}
