//! Delegations: somebody answers gates in another's place, until then.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::GroupId;

/// `POST /api/delegations`: the caller's own standing, given to another key.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DelegationRequest {
    /// The key that answers in the caller's place.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[^\x00-\x1f\x7f]*$"))]
    pub to: String,
    /// Only at gates of this group.
    pub group: Option<GroupId>,
    /// For how long, in seconds: up to 30 days.
    #[serde(rename = "ttlS")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub ttl_s: u32,
    /// Why, for the record.
    #[schemars(length(max = 1_000), regex(pattern = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$"))]
    pub reason: Option<String>,
}

/// A delegation as it stands.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DelegationRow {
    /// Number of the delegation; `DELETE /api/delegations/{delegation}` takes it.
    pub id: i64,
    /// Who gave it.
    pub from: String,
    /// Who holds it.
    pub to: String,
    /// Only at gates of this group.
    pub group: Option<GroupId>,
    /// Reason, for the record.
    pub reason: String,
    /// ms since the epoch.
    pub created_at: i64,
    /// ms since the epoch.
    pub expires_at: i64,
    /// ms since the epoch; absent unless it was ended early.
    pub ended_at: Option<i64>,
}

/// Answer of ending a delegation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DelegationEnd {
    /// Always true; a refused call answers with an error instead.
    pub ended: bool,
}
