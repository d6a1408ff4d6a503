//! Snapshots: taken of a sandbox, and listed.

use cofferdam_contracts::id::{LiveId, SnapshotId};
use cofferdam_contracts::snapshot::{SnapshotKind, SnapshotView};
use cofferdam_live::TakeSnapshot;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call::{Call, Outcome};
use crate::query::MAX_PAGE;
use crate::sandbox::refusals::{found, missing};
use crate::{answer, body, query};

/// A snapshot of a sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewSnapshot {
    /// Name for people, 1 to 128 bytes without NUL; absent: the snapshot gets none.
    pub(crate) name: Option<String>,
    /// Accepted, and without effect: a snapshot has files only.
    #[serde(rename = "memory")]
    _memory: Option<bool>,
}

/// A snapshot as clients have it: its names are the one that its user gave.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Snapshot {
    #[serde(rename = "snapshotID")]
    snapshot_id: String,
    names: Vec<String>,
}

impl Snapshot {
    fn of(view: &SnapshotView) -> Self {
        Self { snapshot_id: view.id.to_string(), names: view.name.iter().cloned().collect() }
    }
}

pub(crate) async fn snapshot(call: Call) -> Outcome {
    let id = &call.param("id");
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Call { services, who, body, .. } = call;
    let asked: NewSnapshot = body::body(body).await?;
    let take = TakeSnapshot { who, id: live, name: asked.name };
    let made = services.live.ask(take).await;
    Ok(answer::json_of(201, &Snapshot::of(&made.map_err(|error| found(id, error))?)))
}

/// What a client's list asks for: a sandbox, how many, and after which.
#[derive(Debug, Default)]
pub(crate) struct SnapshotQuery {
    live: Option<LiveId>,
    name: Option<String>,
    limit: Option<usize>,
    after: Option<SnapshotId>,
}

pub(crate) fn asked(query: &str) -> Result<SnapshotQuery, String> {
    let mut asked = SnapshotQuery::default();
    for (name, value) in query::pairs(query) {
        match name {
            "sandboxID" => asked.live = Some(LiveId::parse(value).map_err(|why| why.to_string())?),
            "limit" => {
                asked.limit = Some(query::rows(name, value)?);
            }
            "name" => asked.name = Some(query::decoded(value).ok_or("name is not UTF-8")?),
            "nextToken" => {
                asked.after = Some(SnapshotId::parse(value).map_err(|why| why.to_string())?)
            }
            other => return Err(format!("the query's {other} is not supported")),
        }
    }
    Ok(asked)
}

pub(crate) async fn list(call: Call) -> Outcome {
    let SnapshotQuery { live, name, limit, after } =
        asked(&call.query).map_err(|why| answer::error(400, why))?;
    let rows = &call.services.flows.ledger;
    let all = rows.snapshots().list(&call.who.tenant, live.as_ref()).await;
    let mut all = all.map_err(|error| answer::refused(error.into()))?;
    // What a sandbox is paused into is that sandbox, not a template.
    all.retain(|view| view.kind == SnapshotKind::Snapshot && (name.is_none() || view.name == name));
    let limit = limit.unwrap_or(MAX_PAGE.into());
    let from = after.and_then(|after| all.iter().position(|view| view.id == after));
    let rest = all.get(from.map_or(0, |at| at.saturating_add(1))..).unwrap_or_default();
    let shown = rest.get(..limit).unwrap_or(rest);
    let last = shown.last().filter(|_| rest.len() > limit);
    Ok(answer::page(
        &shown.iter().map(Snapshot::of).collect::<Vec<_>>(),
        last.map(|last| last.id.as_str()),
    ))
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_list_of_snapshots_is_asked_for_by_sandbox_and_by_page() {
        let id = "b".repeat(20);
        let read = asked(&format!("sandboxID={id}&limit=3&nextToken={id}&name=a%20b")).unwrap();
        assert_eq!((read.live.unwrap().as_str(), read.limit), (id.as_str(), Some(3)));
        assert_eq!(
            (read.after.unwrap().as_str(), read.name.unwrap().as_str()),
            (id.as_str(), "a b")
        );
        for bad in ["limit=0", "limit=101", "x=y", "sandboxID=x", "nextToken=x"] {
            assert!(asked(bad).is_err(), "{bad}");
        }
    }
}
