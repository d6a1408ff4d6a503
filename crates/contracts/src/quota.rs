//! What one tenant may use at once and a minute, as the host says it of single tenants.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Largest value of a quota, and its default: no host comes near it.
pub const NO_BOUND: u64 = 1_000_000_000;

/// Quotas by tenant: the value of `quota.tenants`.
pub type TenantQuotas = BTreeMap<String, TenantQuota>;

/// Quotas of one tenant. What is left out is the host's value for every tenant.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TenantQuota {
    /// Cores that its sandboxes may ask for together, by `limits.cpu`.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub cpu: Option<u64>,
    /// MiB of the writable layers of its sandboxes together, by `limits.diskMB`.
    #[serde(rename = "diskMB")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub disk_mb: Option<u64>,
    /// Sandboxes that it may start a minute.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub starts_per_minute: Option<u64>,
}
