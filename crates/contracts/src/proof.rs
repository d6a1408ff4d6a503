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
    /// At least one returned a row, or could not run.
    NoGo,
}

/// One proof and what it found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProofResult {
    /// Its name.
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

/// `cofferdam prove`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProofReport {
    /// Version of this shape: 1.
    pub schema_version: u32,
    /// The verdict.
    pub verdict: Verdict,
    /// Every proof.
    pub proofs: Vec<ProofResult>,
}
