//! What sandboxes use, at this moment: no samples are kept.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::Response;
use cofferdam_ambient::clock;
use cofferdam_live::Guest;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Call, Outcome};
use crate::envd::usage;
use crate::sandbox::refusals::{missing, running};
use crate::services::Services;
use crate::{answer, query};

/// Sandboxes whose metrics one request may ask for.
const MAX_METRICS: usize = 100;

/// What a sandbox used at one moment; sizes in bytes.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sample {
    timestamp: String,
    timestamp_unix: i64,
    cpu_count: u64,
    /// Of all of them, since the sandbox began.
    cpu_used_pct: Option<f64>,
    mem_used: u64,
    mem_total: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

/// Samples by the id of their sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Samples {
    sandboxes: BTreeMap<String, Sample>,
}

/// One sample, of now: none are kept.
async fn sample(services: &Services, guest: &Guest) -> Result<Sample, Response<Body>> {
    let id = &guest.facts.id;
    let envd = services.envd(id).await.map_err(answer::refused)?;
    let envd = envd.ok_or_else(|| missing(id.as_str()))?;
    let now = usage::now(&envd).await.map_err(|fault| answer::error(503, fault.message))?;
    let at = clock::now_ms();
    Ok(Sample {
        timestamp: answer::time(at),
        timestamp_unix: at / 1_000,
        cpu_count: now.cpu_count,
        cpu_used_pct: now.cpu_used_pct,
        mem_used: now.mem_used,
        mem_total: now.mem_total,
        mem_cache: now.mem_cache,
        disk_used: now.disk_used,
        disk_total: now.disk_total,
    })
}

pub(crate) async fn metrics(call: Call) -> Outcome {
    let id = &call.param("id");
    let guest = running(&call, id).await?;
    Ok(answer::json_of(200, &[sample(&call.services, &guest).await?]))
}

pub(crate) async fn metrics_of_all(call: Call) -> Outcome {
    let asked = query::value(&call.query, "sandbox_ids").unwrap_or_default();
    let ids: Vec<&str> = asked.split(',').filter(|id| !id.is_empty()).collect();
    if ids.is_empty() || ids.len() > MAX_METRICS {
        return Err(answer::error(400, format!("sandbox_ids has 1 to {MAX_METRICS} ids")));
    }
    let mut sandboxes = BTreeMap::new();
    for id in ids {
        // One that is another tenant's or over has no metrics, as one that never was.
        if let Ok(guest) = running(&call, id).await
            && let Ok(value) = sample(&call.services, &guest).await
        {
            sandboxes.insert(id.to_owned(), value);
        }
    }
    Ok(answer::json_of(200, &Samples { sandboxes }))
}
