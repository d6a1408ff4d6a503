//! `PUT /sandboxes/{id}/network`: another network for a sandbox that runs.

use std::collections::BTreeMap;

use cofferdam_contracts::id::LiveId;
use cofferdam_live::ChangeNetwork;
use serde::Deserialize;
use serde_json::Value;

use super::control::{Asking, Outcome, found, missing};
use super::create::Network;
use super::shape;

/// All rules at once: what is left out is cleared.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct NetworkUpdate {
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    dns_servers: Option<Vec<String>>,
    egress_proxy: Option<Value>,
    rules: Option<BTreeMap<String, Value>>,
    /// Grants nothing, as at the creation.
    #[serde(rename = "allow_internet_access")]
    _allow_internet_access: Option<bool>,
}

impl From<NetworkUpdate> for Network {
    fn from(update: NetworkUpdate) -> Self {
        let NetworkUpdate { allow_out, deny_out, dns_servers, egress_proxy, rules, .. } = update;
        Self { allow_out, deny_out, dns_servers, egress_proxy, rules, ..Self::default() }
    }
}

pub(super) async fn update(call: Asking<'_>, id: &str) -> Outcome {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Asking { front, who, body, .. } = call;
    let asked: NetworkUpdate = shape::body(body).await?;
    let (egress, _) = Network::from(asked).checked().map_err(|why| shape::error(400, why))?;
    let changed = front.shared.live.ask(ChangeNetwork { who, id: live, egress }).await;
    changed.map_err(|error| found(id, error))?;
    Ok(shape::empty(204))
}
