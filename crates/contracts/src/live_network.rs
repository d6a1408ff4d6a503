//! The network of a long-lived sandbox, changed while it runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::egress::Egress;
use crate::enum_names::named;
use crate::id::RunId;
use crate::policy::PolicySource;

/// Body of `PUT /api/sandboxes/{id}/network`: the names that a running sandbox may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LiveNetwork {
    /// Names that it may reach from now on, under the tenant's grants, in the place of those before. `none`: no network.
    #[serde(rename = "net")]
    pub egress: Egress,
}

named! {
    /// What became of a change of a network.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum LiveNetworkOutcome {
        /// It is being made.
        Open = "open",
        /// The proxy had it: it was acknowledged.
        InForce = "in-force",
        /// It could not be had: the network before it stayed.
        Failed = "failed",
        /// Its sandbox ended, or was paused, before it was acknowledged.
        Lost = "lost",
    }
}

/// One change of a sandbox's network.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LiveNetworkChange {
    /// Its number, from 1.
    pub n: i32,
    /// What was in force.
    pub before: Egress,
    /// What was asked for, and granted.
    pub requested: Egress,
    /// What became of it.
    pub outcome: LiveNetworkOutcome,
    /// Names that the proxy admitted after it; mirrors are there by the names of their hosts.
    pub observed: Option<Vec<String>>,
    /// Connections that it ended.
    pub cut: Option<i32>,
    /// Why it is not in force.
    pub why: Option<String>,
    /// Who let the names be; `recipe` where there is none.
    pub source: PolicySource,
    /// Version of the organisation's policy, where that let them be.
    pub policy_version: Option<i32>,
    /// Key that asked.
    pub key_id: String,
    /// Run that held the sandbox.
    pub run_id: RunId,
    /// ms since the epoch.
    pub created_at: i64,
    /// When its outcome was known, in ms since the epoch.
    pub settled_at: Option<i64>,
}
