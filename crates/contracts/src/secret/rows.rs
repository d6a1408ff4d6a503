//! What the API takes and shows of secrets: values go in and never come out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MAX_HOSTS, MAX_VALUE_BYTES, MIN_VALUE_BYTES, SecretName};
use crate::egress::Name;
use crate::id::{Digest, SandboxId, TaskKey};
use crate::sandbox::Phase;

/// `PUT /api/secrets/{name}`: sets a value, as the next version.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretPut {
    /// The value; it is stored sealed and never shown.
    #[schemars(length(min = MIN_VALUE_BYTES, max = MAX_VALUE_BYTES), extend("writeOnly" = true))]
    pub value: String,
    /// The only hosts that may get it. Empty: any host of a plan that a person approves.
    #[serde(default, rename = "for", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_HOSTS))]
    pub hosts: Vec<Name>,
}

impl std::fmt::Debug for SecretPut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretPut").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// `POST /api/secrets/{name}/rotate`: the next version of a secret that exists, for the hosts it has.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretRotate {
    /// The value; it is stored sealed and never shown.
    #[schemars(length(min = MIN_VALUE_BYTES, max = MAX_VALUE_BYTES), extend("writeOnly" = true))]
    pub value: String,
}

impl std::fmt::Debug for SecretRotate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretRotate")
    }
}

/// A secret without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretRow {
    /// Name of the secret, unique in its tenant.
    pub name: SecretName,
    /// The version in force, from 1.
    pub version: u32,
    /// The only hosts that may get it. Empty: any host of a plan that a person approves.
    #[serde(default, rename = "for", skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<Name>,
    /// sha256 of the key that it is sealed under, as hosts of a fleet compare it.
    pub sealed_by: Digest,
    /// The API key that set the version.
    pub key_id: String,
    /// When the version was set, ms since the epoch.
    pub created_at: i64,
}

/// Answer of removing a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretRemoval {
    /// Its name, which opens nothing from now on.
    pub removed: SecretName,
}

/// How often a phase of a sandbox sent a version of a secret to a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretUseRow {
    /// Sandbox whose requests carried the secret.
    pub sandbox_id: SandboxId,
    /// Key of the task attempt that the sandbox ran.
    pub task_key: TaskKey,
    /// In which phase; the run's egress policy of that phase says who consented.
    pub phase: Phase,
    /// Name of the secret that was sent.
    pub name: SecretName,
    /// Version of the secret that was sent, from 1.
    pub version: u32,
    /// The host that got it.
    pub host: Name,
    /// Requests that carried it. A worker that is killed may leave its last second uncounted.
    pub count: u64,
    /// The first request, ms since the epoch.
    pub first_at: i64,
    /// The newest request on record, ms since the epoch.
    pub last_at: i64,
}
