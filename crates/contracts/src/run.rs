//! Intents and runs as they cross the wire.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::enum_names::named;
use crate::id::{Digest, IntentId, RecipeId, RunId, TaskKey, TenantId, WorkflowId};
use crate::recipe::{Lane, Recipe, RecipeRef};
use crate::terms::{RunTerms, with_terms};

/// Body of `POST /api/intents`: a goal, with its inputs and constraints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IntentRequest {
    /// What is wanted, in words.
    #[schemars(length(min = 1, max = 10_000))]
    pub goal: String,
    /// Inputs: the form of the recipe that the run names.
    #[serde(default)]
    pub inputs: serde_json::Map<String, Value>,
    /// Constraints on the run.
    #[serde(default)]
    pub constraints: Constraints,
    /// Connectors, by reference; never secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub connectors: Option<Vec<String>>,
}

/// Constraints of an intent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Constraints {
    /// How long the plan gate waits, in seconds. Default 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub plan_approval_timeout_s: Option<u32>,
}

/// Answer of `POST /api/intents`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IntentResponse {
    /// The new intent.
    pub intent_id: IntentId,
}

/// What a caller expects a run to need; checked against caps and budget at ingress.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workload {
    /// Tasks at the same time.
    #[schemars(range(min = 1, max = 100_000))]
    pub concurrency: Option<u32>,
    /// Tasks in all.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub steps: Option<u32>,
    /// Sandbox minutes in all.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub sandbox_minutes: Option<u32>,
}

/// What a run may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Tasks in all.
    #[serde(default, rename = "maxFanout", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_fanout: Option<u32>,
    /// Sandbox minutes of all tasks together, rounded up; at most the recipe's cap.
    #[serde(default, rename = "maxSBXMinutes", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_sbx_minutes: Option<u32>,
    /// Artifact bytes in MiB.
    #[serde(default, rename = "maxArtifactsMB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_artifacts_mb: Option<u32>,
    /// Attempts of a task beyond the first.
    #[serde(default, rename = "maxRetriesPerStep", skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 10))]
    pub max_retries_per_step: Option<u32>,
    /// Wall time of the run in milliseconds, gates included.
    #[serde(default, rename = "maxWallClockMS", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_592_000_000_u64))]
    pub max_wall_clock_ms: Option<u64>,
}

with_terms! {
    /// Body of `POST /api/runs`: the intent to run, its recipe, and how it queues.
    #[serde_with::skip_serializing_none]
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    pub struct RunRequest {
        /// The intent to run.
        pub intent_id: IntentId,
        /// Always `intentQ` for a parent; anything else is a policy violation.
        pub queue_name: Option<String>,
        /// The recipe; default `shell`, whose form is `{cmd}`.
        pub recipe_name: Option<RecipeId>,
        /// Its version; default the newest.
        #[schemars(length(min = 1, max = 32))]
        pub recipe_version: Option<String>,
        /// A second live run with this id on the queue is refused.
        #[serde(rename = "deduplicationID")]
        #[schemars(length(min = 1, max = 256))]
        pub deduplication_id: Option<String>,
        /// Must be the key's own tenant.
        pub tenant_id: Option<TenantId>,
        /// Reserved for callers that name a task's key; must be absent for a parent.
        pub task_key: Option<TaskKey>,
    }
}

/// `POST /api/run`: intent and run of a recipe in one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecipeRunRequest {
    /// Id and version of the recipe to run.
    pub recipe_ref: RecipeRef,
    /// The text that is meant, as an import answered: another one of the same id and version is not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe_hash: Option<Digest>,
    /// Its form, filled in.
    #[serde(default)]
    pub form_data: serde_json::Map<String, Value>,
    /// How to run it.
    #[serde(default)]
    pub opts: RunOpts,
}

with_terms! {
    /// Options of a recipe run.
    #[serde_with::skip_serializing_none]
    #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    pub struct RunOpts {
        /// Distinguishes runs that are otherwise equal: equal starts with equal keys are one run.
        #[schemars(length(min = 1, max = 128))]
        pub run_key: Option<String>,
        /// How long the plan gate waits, in seconds.
        #[schemars(range(min = 1, max = 86_400))]
        pub plan_approval_timeout_s: Option<u32>,
    }
}

named! {
    /// Life of a run.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[allow(missing_docs, reason = "the names are the contract's own")]
    pub enum RunStatus {
        Queued = "queued",
        Running = "running",
        WaitingInput = "waiting_input",
        Succeeded = "succeeded",
        Failed = "failed",
        Canceled = "canceled",
        RetriesExceeded = "retries_exceeded",
        Repairing = "repairing",
    }
}

named! {
    /// Where a run's sandboxes are: as its request says, or known with the first of them and `LOCAL_NATIVE`
    /// until then.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[allow(missing_docs, reason = "the names are the contract's own")]
    pub enum ExecutionMode {
        LocalDocker = "LOCAL_DOCKER",
        LocalNative = "LOCAL_NATIVE",
        RemoteSandbox = "REMOTE_SANDBOX",
    }
}

impl ExecutionMode {
    /// Of sandboxes that this runtime holds: a Docker engine, a provider elsewhere, or a program of the host.
    #[must_use]
    pub fn of_runtime(name: &str) -> Self {
        match name {
            "docker" => Self::LocalDocker,
            "remote" => Self::RemoteSandbox,
            _ => Self::LocalNative,
        }
    }
}

impl RunStatus {
    /// Whether nothing follows.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Canceled | Self::RetriesExceeded)
    }

    /// Whether `/retry` may follow.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Failed | Self::RetriesExceeded)
    }
}

/// What a person may do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "the names are the contract's own")]
pub enum NextAction {
    ApprovePlan,
    Repair,
    None,
}

impl NextAction {
    /// What follows from the status.
    #[must_use]
    pub const fn of(status: RunStatus) -> Self {
        match status {
            RunStatus::WaitingInput => Self::ApprovePlan,
            RunStatus::Failed | RunStatus::RetriesExceeded => Self::Repair,
            _ => Self::None,
        }
    }
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// A run's header.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunHeader {
    /// The engine's id.
    #[serde(rename = "workflowID")]
    pub workflow_id: WorkflowId,
    /// Id of the run: `rn_` and 32 hex digits.
    pub run_id: RunId,
    /// Intent that the run executes.
    pub intent_id: IntentId,
    /// Where it is. `queued` until the first of its tasks is more than queued.
    pub status: RunStatus,
    /// The engine's name of the parent workflow.
    pub workflow_name: String,
    /// ms since the epoch.
    pub created_at: i64,
    /// ms since the epoch.
    pub updated_at: i64,
    /// Id and version of the recipe that the run was started with.
    pub recipe_ref: Option<RecipeRef>,
    /// Digest of that recipe's canonical form.
    pub recipe_hash: Option<Digest>,
    /// The intent's hash.
    pub intent_hash: Option<Digest>,
    /// The caller's trace id.
    pub trace_id: Option<String>,
    /// What a person may do.
    pub next_action: NextAction,
    /// The last step that wrote a row.
    pub last_step: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// The version of the code that runs it.
    pub app_version: String,
    /// The engine's own status.
    pub durable_status: Option<String>,
    /// Where its sandboxes are.
    pub execution_mode: ExecutionMode,
    /// How often the run was retried.
    pub retry_count: i32,
    /// Its sandboxes whose wipe could not be verified: it does not end before they are wiped or settled.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub held_sessions: i64,
    /// What it waits for while nothing of it runs, in words, such as `a place: 3 before you` or `memory: 3 before you`;
    /// absent where it does not wait.
    pub waits_for: Option<String>,
    /// On an answer to a start: whether the run existed.
    pub is_replay: Option<bool>,
    /// The tenant that owns it, in a list of the runs of all tenants.
    pub tenant_id: Option<TenantId>,
}

/// `202` of `POST /api/runs/:id/retry`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetryResponse {
    /// Always true; a refused retry answers with an error instead.
    pub accepted: bool,
    /// The run that goes on: the retried run itself.
    pub new_run_id: RunId,
    /// The engine's workflow of the run, which the retry keeps.
    #[serde(rename = "workflowID")]
    pub workflow_id: WorkflowId,
    /// Its first step without success, which executes again.
    pub from_step: String,
}

/// What it takes to run a run again elsewhere, with the same seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Repro {
    /// Version of this shape: 1.
    pub schema_version: u32,
    /// Run whose inputs and versions these are.
    pub run_id: RunId,
    /// The hash of what was asked for.
    pub intent_hash: Option<Digest>,
    /// The recipe as it was; `null` where its content is not stored any more.
    pub recipe: Option<Recipe>,
    /// Digest of the recipe's canonical form, there even where `recipe` is `null`.
    pub recipe_hash: Digest,
    /// The inputs, as the recipe's form has them.
    pub form_data: Value,
    /// What the caller constrained.
    pub constraints: Constraints,
    /// The bounds of the run.
    pub budget: Budget,
    /// The digest of the plan; `null` before it was compiled.
    pub plan_digest: Option<Digest>,
    /// The version of the code that ran it.
    pub app_version: String,
}
