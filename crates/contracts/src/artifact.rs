//! Artifacts: what a task left, addressed by content.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{Digest, RunId, StepId, TaskKey};

/// What an artifact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the contract's own")]
pub enum ArtifactKind {
    ArtifactIndex,
    File,
    Timings,
    Raw,
    Stdout,
    Stderr,
    PlanCard,
    Patch,
    JsonDiagnostic,
}

impl ArtifactKind {
    /// The kind as it stands in SQL.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ArtifactIndex => "artifact_index",
            Self::File => "file",
            Self::Timings => "timings",
            Self::Raw => "raw",
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::PlanCard => "plan_card",
            Self::Patch => "patch",
            Self::JsonDiagnostic => "json_diagnostic",
        }
    }
}

/// `idx = 0` of every task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArtifactIndex {
    /// Whose artifacts.
    pub task_key: TaskKey,
    /// Who made them: `container`, `engine`.
    pub provider: String,
    /// The artifacts, in the order of `idx` from 1.
    pub items: Vec<ArtifactItem>,
    /// The raw result.
    pub raw_ref: String,
    /// ms since the epoch.
    pub created_at: i64,
}

/// One artifact of an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactItem {
    /// What it is.
    pub kind: ArtifactKind,
    /// Where it is.
    pub uri: String,
    /// Digest of its bytes.
    pub sha256: Digest,
}

/// `artifact://run/<runId>/step/<stepId>/task/<task_key>/<name>`
#[must_use]
pub fn uri(run: &RunId, step: &StepId, task: &TaskKey, name: &str) -> String {
    format!("artifact://run/{run}/step/{step}/task/{task}/{name}")
}
