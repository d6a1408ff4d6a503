//! API keys and their roles.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;
use crate::id::{GroupId, TenantId};

named! {
    /// What a key may do.
    #[derive(
        Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
    )]
    pub enum Role {
        /// Writes intents and starts runs.
        Submitter = "submitter",
        /// Answers gates, creates reply links, and delegates its answers.
        Approver = "approver",
        /// Cancels, resumes, forks, retries.
        Operator = "operator",
        /// Reads everything of its tenant, proofs included.
        Auditor = "auditor",
        /// Everything, keys included.
        Admin = "admin",
    }
}

named! {
    /// How a key's secret is written.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
    pub enum KeyFormat {
        /// `cfd_` and 64 hex digits.
        #[default]
        Cofferdam = "cofferdam",
        /// `e2b_` and 40 hex digits, which clients of E2B ask for.
        E2b = "e2b",
    }
}

impl KeyFormat {
    /// Whether it is what a request that says nothing gets.
    #[must_use]
    pub const fn is_usual(&self) -> bool {
        matches!(self, Self::Cofferdam)
    }
}

/// Body of `POST /api/keys`: the tenant, roles and groups of a new key.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyRequest {
    /// Its tenant; default the caller's.
    pub tenant: Option<TenantId>,
    /// Its roles, at least one.
    #[schemars(length(min = 1, max = 5))]
    pub roles: Vec<Role>,
    /// Groups that gates may ask for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub groups: Vec<GroupId>,
    /// A note for people.
    #[schemars(length(max = 128))]
    pub label: Option<String>,
    /// How the secret is written.
    #[serde(default, skip_serializing_if = "KeyFormat::is_usual")]
    pub format: KeyFormat,
}

/// A new key; the secret is shown once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyResponse {
    /// Names the key in lists and audit rows.
    pub key_id: String,
    /// Secret that callers send as `Authorization: Bearer <key>`.
    pub key: String,
    /// Tenant that the key acts for.
    pub tenant: TenantId,
    /// Roles that the key has, as requested.
    pub roles: Vec<Role>,
}

/// A key without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyRow {
    /// Id of the key in lists and audit rows: `k_` and 16 hex digits.
    pub key_id: String,
    /// Tenant that the key acts for.
    pub tenant: TenantId,
    /// Roles of the key, which decide what calls it may make.
    pub roles: Vec<Role>,
    /// Groups of the key, which gates may ask for; absent where it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupId>,
    /// A note for people.
    pub label: Option<String>,
    /// ms since the epoch.
    pub created_at: i64,
    /// ms since the epoch; absent while it works.
    pub revoked_at: Option<i64>,
}

/// Answer of revoking a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyRevocation {
    /// The id of the key, which opens nothing from now on.
    pub revoked: String,
}
