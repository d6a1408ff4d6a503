//! What an agent did in its sandbox: the worker's answer about a dispatch.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an agent did, and what held it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentReport {
    /// What its events say.
    pub tally: Tally,
    /// For `sandbox_effective`; JSON because limits are fractions and this type is compared.
    pub effective: Value,
    /// What became of the project, and what the agent says of its work.
    #[serde(default, skip_serializing_if = "Findings::is_empty")]
    pub findings: Findings,
}

/// The columns of a dispatch that its own run finds out. The names are the table's.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Findings {
    /// Commit of the project's HEAD when the agent started.
    pub base_repo_commit: Option<String>,
    /// `base_moved` or `overlap`: the project on the host changed while the agent worked.
    pub conflict_type: Option<String>,
    /// `pass`, `warn` or `fail`, from the agent's verdict.
    pub verdict_status: Option<String>,
    /// The verdict's summary in one line.
    pub verdict_summary: Option<String>,
}

impl Findings {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What an agent's events, or the kernel's, count.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tally {
    /// Turns of the model.
    pub turns: u64,
    /// Commands that were executed.
    pub commands: u64,
    /// Messages of the agent.
    pub messages: u64,
    /// Input tokens of all turns, those read from a cache included; 0 where none were reported.
    pub input_tokens: u64,
    /// Output tokens of all turns; 0 where none were reported.
    pub output_tokens: u64,
    /// Tokens that a cache spared.
    pub cache_hits: u64,
}
