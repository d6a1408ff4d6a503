//! Where a patch was written, on record.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::GitId;
use crate::id::{Digest, RunId, StepId};

/// Says where an approved patch was written. The approval is the run of an apply gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApplyRecord {
    /// The run whose gate was approved.
    pub approved_in: RunId,
    /// The step of the task that left the patch.
    pub task: StepId,
    /// sha256 of `patch.json`.
    pub patch: Digest,
    /// Directory of the repository on the host of `apply`, as the receipt names it.
    #[schemars(length(min = 1, max = 4096))]
    pub repo: String,
    /// Branch of that repository that the commit was written to.
    #[schemars(length(min = 1, max = 1024))]
    pub branch: String,
    /// The commit that the patch starts from.
    pub base: GitId,
    /// The tree of the commit that was written; absent in rows of before it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<GitId>,
    /// The commit that was written.
    pub commit: GitId,
}

/// A patch that was written: one row for each approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApplyRow {
    /// The run that left the patch.
    pub run_id: RunId,
    /// Where it was written, and by which approval.
    pub written: ApplyRecord,
    /// The key that reported it.
    pub by: String,
    /// When it was reported, ms since the epoch.
    pub at: i64,
}
