//! The plan of a run, fetched for the person who is to agree to it.

use anyhow::Context;
use cofferdam_contracts::plan::Plan;
use serde_json::Value;

use super::client::{Client, segment};

/// Lines that a question on a terminal shows before it refers to `gate show`.
pub(crate) const ASKED_LINES: usize = 200;

/// The newest plan of a run, if it has one: an approver's edit makes another.
pub(crate) async fn fetch(client: &Client, run: &str) -> anyhow::Result<Option<Plan>> {
    let artifacts: Vec<Value> =
        client.get(&format!("/api/runs/{}/artifacts", segment(run))).await?;
    let cards =
        artifacts.iter().filter(|a| a.get("kind").and_then(Value::as_str) == Some("plan_card"));
    let newest = cards.max_by_key(|a| a.get("attempt").and_then(Value::as_i64).unwrap_or(0));
    let Some(uri) = newest.and_then(|c| c.get("uri")).and_then(Value::as_str) else {
        return Ok(None);
    };
    let bytes =
        client.bytes(&format!("/api/artifacts/{}", uri.trim_start_matches("artifact://"))).await?;
    serde_json::from_slice(&bytes).map(Some).context("the plan card is not one of this version")
}
