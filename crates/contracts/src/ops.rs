//! Workflow operations: the engine's workflows, read and steered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{RunId, WorkflowId};
use crate::instant::Instant;

/// Body of cancel, resume and fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OpsRequest {
    /// Who, for the record; the authority is the key's.
    #[schemars(length(min = 1, max = 256))]
    pub actor: String,
    /// Reason, for the record.
    #[schemars(length(min = 1, max = 4_000))]
    pub reason: String,
    /// Fork only: the first step that executes again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub step_n: Option<i32>,
}

/// Answer of an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OpsResponse {
    /// Always true; a refused action answers with an error instead.
    pub accepted: bool,
    /// Workflow that the action was applied to; for a fork, the original.
    #[serde(rename = "workflowID")]
    pub workflow_id: WorkflowId,
    /// Fork only: the new workflow.
    #[serde(default, rename = "forkedWorkflowID", skip_serializing_if = "Option::is_none")]
    pub forked_workflow_id: Option<WorkflowId>,
    /// Fork only: its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_run_id: Option<RunId>,
}

/// One workflow of the engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OpsWorkflow {
    /// The engine's id of the workflow, as `/api/ops/wf/{wid}` takes it.
    #[serde(rename = "workflowID")]
    pub workflow_id: WorkflowId,
    /// Function that the workflow runs: `run`, `task` or `escalation`.
    pub name: String,
    /// The engine's status.
    pub status: String,
    /// Queue that the workflow was put on; absent where it was put on none.
    pub queue_name: Option<String>,
    /// Partition within the queue: the tenant, or `tenant/label`; absent where there is none.
    pub queue_partition_key: Option<String>,
    /// Who runs or ran it.
    pub executor_id: Option<String>,
    /// Starts so far.
    pub recovery_attempts: i64,
    /// ms since the epoch.
    pub created_at: i64,
    /// ms since the epoch.
    pub updated_at: i64,
    /// What was done to it by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Vec<OpsAudit>>,
}

/// One action on a workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OpsAudit {
    /// `cancel`, `resume`, `fork`, `retry`.
    pub op: String,
    /// Actor as named by the caller, for the record.
    pub actor: String,
    /// Reason, for the record.
    pub reason: String,
    /// ISO 8601, in UTC.
    pub at: Instant,
    /// ms since the epoch.
    pub at_ms: i64,
    /// Workflow that the action was applied to; for a fork, the original.
    #[serde(rename = "targetWorkflowID")]
    pub target_workflow_id: String,
    /// New workflow that a fork made; absent for other actions.
    #[serde(default, rename = "forkedWorkflowID", skip_serializing_if = "Option::is_none")]
    pub forked_workflow_id: Option<String>,
}

/// What waits and runs in one queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueDepth {
    /// `intentQ`, `sbxQ` or `controlQ`.
    pub queue_name: String,
    /// Workflows that wait for a worker, delayed ones included.
    pub enqueued: i64,
    /// In a worker's hands.
    pub pending: i64,
    /// How long the oldest that has not begun has waited; absent where none waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_age_ms: Option<i64>,
}

/// What began and ended in a window of time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Throughput {
    /// Seconds until now.
    #[serde(rename = "windowS")]
    pub window_s: i64,
    /// Runs that were started.
    pub runs_started: i64,
    /// Runs that ended, whatever the outcome.
    pub runs_finished: i64,
    /// Those of them that succeeded.
    pub runs_succeeded: i64,
    /// Task attempts that ended.
    pub tasks_finished: i64,
}

/// One recorded step of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OpsStep {
    /// Its position, from 0.
    pub step_n: i32,
    /// Name of the step's function, as the engine recorded it.
    pub name: String,
    /// What it returned.
    pub output: Option<Value>,
    /// What it failed with.
    pub error: Option<Value>,
    /// The child that it started.
    pub child_workflow_id: Option<String>,
}
