//! How much a tenant has stored, in artifacts and in texts (`app.blob_usage`), how many sandboxes of it live, and whether
//! that is too much. What its sandboxes may take at once is decided where they are claimed (`app.quota_left`).

use cofferdam_contracts::config::{DEFAULT_BLOBS_MB, DEFAULT_LIVE_SANDBOXES};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::TenantId;
use serde_json::json;

use crate::error::{OpResult, Result};
use crate::families::Runs;

/// The quota where no row says otherwise, as a parameter of SQL.
pub(crate) fn default_mb() -> i64 {
    i64::try_from(DEFAULT_BLOBS_MB).unwrap_or(i64::MAX)
}

/// What is said where `app.blobs_over_quota` gives a pair.
pub(crate) fn refusal(over: Option<Vec<i64>>) -> Option<Refusal> {
    let over = over?;
    let [limit, observed] = over.as_slice() else { return None };
    let why = format!(
        "the tenant's stored artifacts, inputs and recipes have {observed} MiB, quota.blobs_mb is {limit}: \
         the host's admin may raise it"
    );
    let details = json!({"metric": "blobs_mb", "limit": limit, "observed": observed});
    Some(Refusal::new(ErrorCode::QueuePolicyViolation, why).with(details))
}

/// Live sandboxes of a tenant where no row says otherwise, as a parameter of SQL.
pub(crate) fn live_default() -> i64 {
    i64::try_from(DEFAULT_LIVE_SANDBOXES).unwrap_or(i64::MAX)
}

/// What is said where `app.live_over_quota` gives a pair.
pub(crate) fn live_refusal(over: Option<Vec<i64>>) -> Option<Refusal> {
    let over = over?;
    let [limit, observed] = over.as_slice() else { return None };
    let why = format!(
        "the tenant has {observed} live sandboxes, quota.live_sandboxes is {limit}: kill or pause some, or ask the \
         host's admin to raise it"
    );
    let details = json!({"metric": "live_sandboxes", "limit": limit, "observed": observed});
    Some(Refusal::new(ErrorCode::TooManySandboxes, why).with(details))
}

/// What is said where `app.quota_never` gives metric, quota and what a task asks for.
pub(crate) fn never(over: Option<Vec<String>>) -> Option<Refusal> {
    let over = over?;
    let [metric, limit, observed] = over.as_slice() else { return None };
    let field = if metric == "cpu" { "limits.cpu" } else { "limits.diskMB" };
    let why = format!(
        "{field} is {observed}, quota.{metric} allows {limit}: ask for less, or let the host's admin raise the quota"
    );
    let details = json!({"metric": metric, "limit": limit, "observed": observed});
    Some(Refusal::new(ErrorCode::QueuePolicyViolation, why).with(details))
}

impl Runs<'_> {
    /// Refuses where what the tenant has stored fills its quota. Layers of its builds make room first; `true`: some were
    /// erased, and their files are still to be removed.
    pub async fn quota_admit(self, tenant: &TenantId) -> OpResult<bool> {
        let full: Option<Vec<i64>> = sqlx::query_scalar("SELECT app.blobs_full($1, $2)")
            .bind(tenant.as_str())
            .bind(default_mb())
            .fetch_one(self.pool())
            .await?;
        if full.is_none() {
            return Ok(false);
        }
        let erased: i64 = sqlx::query_scalar("SELECT app.layers_make_room($1, $2)")
            .bind(tenant.as_str())
            .bind(default_mb())
            .fetch_one(self.pool())
            .await?;
        let over: Option<Vec<i64>> = sqlx::query_scalar("SELECT app.blobs_over_quota($1, $2)")
            .bind(tenant.as_str())
            .bind(default_mb())
            .fetch_one(self.pool())
            .await?;
        refusal(over).map_or(Ok(erased > 0), |refusal| Err(refusal.into()))
    }

    /// Bytes that the tenant's quota leaves, where layers of its builds make room.
    pub async fn quota_left_bytes(self, tenant: &TenantId) -> Result<u64> {
        let rest: i64 = sqlx::query_scalar("SELECT app.blobs_rest($1, $2)")
            .bind(tenant.as_str())
            .bind(default_mb())
            .fetch_one(self.pool())
            .await?;
        Ok(u64::try_from(rest).unwrap_or(0))
    }
}
