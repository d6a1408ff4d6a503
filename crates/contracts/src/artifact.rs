//! Artifacts: what a task left, addressed by content.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;
use crate::id::{Digest, RunId, StepId, TaskKey};

named! {
    /// What an artifact is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[allow(missing_docs, reason = "the names are the contract's own")]
    pub enum ArtifactKind {
        ArtifactIndex = "artifact_index",
        File = "file",
        Timings = "timings",
        Raw = "raw",
        Stdout = "stdout",
        Stderr = "stderr",
        PlanCard = "plan_card",
        Patch = "patch",
        JsonDiagnostic = "json_diagnostic",
    }
}

/// A file that the task left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputFile {
    /// Path relative to the working directory. Bytes that are not UTF-8 are written as `%80` to `%FF`, and a
    /// `%` that would be read as one of these as `%25`.
    pub path: String,
    /// Whether the path is written so, and is not the file's own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encoded: bool,
    /// Digest of the real bytes.
    pub sha256: Digest,
    /// Size in bytes.
    pub size: u64,
}

/// `idx = 0` of every task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArtifactIndex {
    /// Key of the task attempt whose artifacts are listed.
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

/// An artifact of a run, in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArtifactRow {
    /// The step that left it.
    pub step_id: StepId,
    /// The attempt that left it.
    pub task_key: TaskKey,
    /// Which attempt, from 1.
    #[schemars(range(min = 1))]
    pub attempt: i32,
    /// Its place among the attempt's, from 0.
    #[schemars(range(min = 0))]
    pub idx: i32,
    /// What it is.
    pub kind: ArtifactKind,
    /// Its name, such as `files/out.txt`.
    pub name: String,
    /// Where it is.
    pub uri: String,
    /// Digest of its bytes.
    pub sha256: Digest,
    /// Size in bytes.
    #[schemars(range(min = 0))]
    pub size: i64,
    /// ms since the epoch.
    pub created_at: i64,
}

/// URI of an artifact: `artifact://run/<runId>/step/<stepId>/task/<task_key>/<name>`.
#[must_use]
pub fn uri(run: &RunId, step: &StepId, task: &TaskKey, name: &str) -> String {
    format!("artifact://run/{run}/step/{step}/task/{task}/{name}")
}
