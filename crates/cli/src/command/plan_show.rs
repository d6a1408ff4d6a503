//! The plan of a run, fetched for the person who is to agree to it.

use anyhow::Context;
use cofferdam_contracts::artifact::{ArtifactKind, ArtifactRow};
use cofferdam_contracts::plan::Plan;

use super::client::{Client, segment};

/// Lines that a question on a terminal shows before it refers to `gate show`.
pub(crate) const ASKED_LINES: usize = 200;

/// The newest plan of a run, if it has one: an approver's edit makes another.
pub(crate) async fn fetch(client: &Client, run: &str) -> anyhow::Result<Option<Plan>> {
    let artifacts: Vec<ArtifactRow> =
        client.get(&format!("/api/runs/{}/artifacts", segment(run))).await?;
    let cards = artifacts.iter().filter(|row| row.kind == ArtifactKind::PlanCard);
    let Some(newest) = cards.max_by_key(|row| row.attempt) else { return Ok(None) };
    let bytes = client.artifact(&newest.uri).await?;
    serde_json::from_slice(&bytes)
        .map(Some)
        .context("the plan card does not fit this version; use the client of the server's version")
}
