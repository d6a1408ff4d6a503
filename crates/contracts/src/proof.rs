//! Proofs: claims that a query shows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The verdict over all proofs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Verdict {
    /// Every query returned no row.
    Go,
    /// At least one returned a row. One that cannot run is an error instead.
    NoGo,
}

/// One proof and what it found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProofResult {
    /// Unique name of the proof, such as `cache_keys_hold`.
    pub name: String,
    /// What it claims.
    pub claim: String,
    /// What a row would mean.
    pub meaning: String,
    /// The query, for an auditor to rerun.
    pub sql: String,
    /// Rows found, at most 100 of them: each contradicts the claim.
    pub rows: Vec<Value>,
}

/// Result of `cofferdam prove` and `GET /api/proofs`: each proof, and one verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProofReport {
    /// Version of this shape: 1.
    pub schema_version: u32,
    /// `GO` where no proof found a row, otherwise `NO_GO`.
    pub verdict: Verdict,
    /// Every proof, with its query and the rows that it found.
    pub proofs: Vec<ProofResult>,
}
