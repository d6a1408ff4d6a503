//! Proofs: claims that a query shows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::object::ObjectReport;

/// The verdict over all proofs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Verdict {
    /// Every query returned no row, and every stored object that was read holds what its row says.
    Go,
    /// At least one returned a row, or an object does not hold what its row says. A query that cannot run is an error instead.
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
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProofReport {
    /// Version of this shape: 1.
    pub schema_version: u32,
    /// `GO` where no proof found a row and no stored object is faulty, otherwise `NO_GO`.
    pub verdict: Verdict,
    /// Every proof, with its query and the rows that it found.
    pub proofs: Vec<ProofResult>,
    /// What a reading of the stored objects found; absent where it was left out.
    pub objects: Option<ObjectReport>,
}
