//! The network of a creation, and another one for a sandbox that runs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cofferdam_contracts::egress::{Entry, MAX_ENTRIES};
use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::sandbox::Egress;
use cofferdam_live::ChangeNetwork;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::call::{Call, Outcome};
use crate::sandbox::refusals::{found, missing};
use crate::{answer, body};

/// The network of a new sandbox.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Network {
    /// Names that the sandbox reaches, at most 64. Addresses and CIDR blocks are refused.
    pub(crate) allow_out: Option<Vec<String>>,
    /// Addresses and CIDR blocks. What is not allowed is denied in any case.
    pub(crate) deny_out: Option<Vec<String>>,
    /// `false`: the ports of the sandbox ask for its traffic token.
    pub(crate) allow_public_traffic: Option<bool>,
    /// Not supported: leave it out.
    #[schemars(with = "Option<()>")]
    pub(crate) dns_servers: Option<Vec<String>>,
    /// Not supported: leave it out.
    #[schemars(with = "Option<()>")]
    pub(crate) egress_proxy: Option<Value>,
    /// Not supported: leave it out.
    #[schemars(with = "Option<()>")]
    pub(crate) mask_request_host: Option<String>,
    /// Not supported: leave it out.
    #[schemars(with = "Option<()>")]
    pub(crate) https_ports: Option<Vec<u16>>,
    /// Not supported: leave it out.
    #[schemars(with = "Option<()>")]
    pub(crate) rules: Option<BTreeMap<String, Value>>,
}

impl Network {
    /// The names that it may reach, and whether its ports are private.
    pub(crate) fn checked(self) -> Result<(Egress, bool), String> {
        let absent = [
            ("dnsServers", self.dns_servers.is_some()),
            ("egressProxy", self.egress_proxy.is_some_and(|proxy| !proxy.is_null())),
            ("maskRequestHost", self.mask_request_host.is_some()),
            ("httpsPorts", self.https_ports.is_some_and(|ports| !ports.is_empty())),
            ("rules", self.rules.is_some_and(|rules| !rules.is_empty())),
        ];
        if let Some((field, _)) = absent.into_iter().find(|(_, asked)| *asked) {
            return Err(format!("network.{field} is not supported: leave it out"));
        }
        // All that is not allowed is denied anyway, and what is allowed beats what is denied.
        for denied in self.deny_out.unwrap_or_default() {
            if !is_addresses(&denied) {
                return Err(format!(
                    "network.denyOut: {denied:?} is neither an address nor a CIDR block"
                ));
            }
        }
        let mut names = Vec::new();
        for allowed in self.allow_out.unwrap_or_default() {
            if is_addresses(&allowed) {
                return Err(format!(
                    "network.allowOut: {allowed:?}: only names can be allowed here; addresses and CIDR blocks cannot"
                ));
            }
            let entry: Entry =
                allowed.parse().map_err(|why| format!("network.allowOut: {allowed:?}: {why}"))?;
            if !names.contains(&entry) {
                names.push(entry);
            }
            if names.len() > MAX_ENTRIES {
                return Err(format!("network.allowOut has more than {MAX_ENTRIES} names"));
            }
        }
        let egress = if names.is_empty() { Egress::None } else { Egress::Names(names) };
        Ok((egress, self.allow_public_traffic == Some(false)))
    }
}

/// An address, or a block of them.
fn is_addresses(text: &str) -> bool {
    let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.is_none_or(|bits| bits.parse::<u8>().is_ok_and(|bits| bits <= most))
}

/// The whole network of a running sandbox: a field that is left out is cleared.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct NetworkUpdate {
    /// Names that the sandbox reaches, at most 64. Addresses and CIDR blocks are refused.
    allow_out: Option<Vec<String>>,
    /// Addresses and CIDR blocks. What is not allowed is denied in any case.
    deny_out: Option<Vec<String>>,
    /// Not supported: leave it out.
    #[schemars(with = "Option<()>")]
    dns_servers: Option<Vec<String>>,
    /// Not supported: leave it out.
    #[schemars(with = "Option<()>")]
    egress_proxy: Option<Value>,
    /// Not supported: leave it out.
    #[schemars(with = "Option<()>")]
    rules: Option<BTreeMap<String, Value>>,
    /// Accepted, and without effect.
    #[serde(rename = "allow_internet_access")]
    _allow_internet_access: Option<bool>,
}

impl From<NetworkUpdate> for Network {
    fn from(update: NetworkUpdate) -> Self {
        let NetworkUpdate { allow_out, deny_out, dns_servers, egress_proxy, rules, .. } = update;
        Self { allow_out, deny_out, dns_servers, egress_proxy, rules, ..Self::default() }
    }
}

pub(crate) async fn update(call: Call) -> Outcome {
    let id = &call.param("id");
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Call { services, who, body, .. } = call;
    let asked: NetworkUpdate = body::body(body).await?;
    let (egress, _) = Network::from(asked).checked().map_err(|why| answer::error(400, why))?;
    let changed = services.live.ask(ChangeNetwork { who, id: live, egress }).await;
    changed.map_err(|error| found(id, error))?;
    Ok(answer::empty(204))
}
