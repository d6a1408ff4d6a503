//! What a sandbox uses, as envd tells it.

use cofferdam_ambient::clock;
use cofferdam_live::{GuestUsage, ReadUsage};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::connect::fault::{Fault, ReplyResult};
use crate::envd::call::Rpc;
use crate::envd::paths;
use crate::envd::state::Envd;

const MIB: u64 = 1024 * 1024;

/// What a sandbox uses, as envd tells it; sizes in bytes.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Usage {
    /// Seconds since the epoch.
    pub ts: i64,
    pub cpu_count: u64,
    /// Of all of them, since the sandbox began.
    pub cpu_used_pct: Option<f64>,
    pub mem_used: u64,
    pub mem_total: u64,
    pub mem_cache: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

/// Answers `GET /metrics` of envd: one sample of what the sandbox uses now.
pub(crate) async fn metrics(call: Rpc) -> ReplyResult {
    Ok(json!(now(&call.envd).await?))
}

/// What the sandbox uses, as envd tells it.
pub(crate) async fn now(envd: &Envd) -> Result<Usage, Fault> {
    let used = envd.guest.ask(ReadUsage).await;
    let GuestUsage { usage, lived_ms } = used.map_err(|error| paths::unavailable(&error))?;
    let limits = &envd.guest.facts.limits;
    let now = clock::now_ms();
    // Of all its life: a sandbox that is asked often has no other memory of it.
    let percent = usage.cpu_ms.saturating_mul(10_000).checked_div(lived_ms.max(1)).unwrap_or(0);
    Ok(Usage {
        ts: now / 1_000,
        cpu_count: cpus(limits.cpu),
        cpu_used_pct: percent_of(percent),
        mem_used: usage.rss_kb.saturating_mul(1_024),
        mem_total: limits.mem_mb.unwrap_or(0).saturating_mul(MIB),
        mem_cache: 0,
        disk_used: usage.disk_bytes.saturating_sub(usage.disk_free_bytes),
        disk_total: usage.disk_bytes,
    })
}

/// Hundredths of a percent as a number with two decimals.
fn percent_of(hundredths: u64) -> Option<f64> {
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    text.parse().ok()
}

/// Whole CPUs, at least one: what these clients can read.
pub(crate) fn cpus(limit: Option<f64>) -> u64 {
    let whole = limit.map(|limit| format!("{:.0}", limit.ceil()));
    whole.and_then(|text| text.parse().ok()).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn cpus_are_whole_and_percents_have_decimals() {
        assert_eq!([cpus(None), cpus(Some(0.5)), cpus(Some(2.0)), cpus(Some(2.1))], [1, 1, 2, 3]);
        assert_eq!(percent_of(1_205), Some(12.05));
    }
}
