//! The creation of a sandbox: what of its body we can give, and what we refuse by name.

use std::collections::BTreeMap;

use cofferdam_contracts::id::SnapshotId;
use cofferdam_contracts::live::{BASE_TEMPLATE, LiveRequest};
use cofferdam_contracts::sandbox::{Egress, IsolationClass, Limits};
use cofferdam_flows::egress;
use cofferdam_live::CreateSandbox;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::call::{CLASS, Call, IDEMPOTENCY_KEY, MAX_IDEMPOTENCY_KEY, Outcome, class, header};
use crate::sandbox::answers::Sandbox;
use crate::sandbox::bodies::OLD_S;
use crate::sandbox::network::Network;
use crate::template::names;
use crate::{answer, body};

/// Time to live in seconds without one: of the newer and of the older creation, and of a connect.
const NEW_S: u64 = 300;
/// Memory of a sandbox in MiB and its CPUs, as E2B's clients expect of `base`.
const LIMITS: Limits = Limits {
    cpu: Some(2.0),
    mem_mb: Some(512),
    pids: None,
    disk_mb: None,
    output_bytes: None,
    nofile: None,
};

/// A new sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct NewSandbox {
    /// A template by its name, by `NAME:TAG` or by its id, or the id of a snapshot.
    #[serde(rename = "templateID")]
    pub(crate) template_id: String,
    /// Seconds that it lives. Without it 300, and 15 on the older path.
    timeout: Option<u64>,
    /// Labels, by which lists find it.
    metadata: Option<BTreeMap<String, String>>,
    /// Variables of its commands.
    env_vars: Option<BTreeMap<String, String>>,
    /// `false`: the names of `network.allowOut` alone. `true`: what `e2b.internet` says of this server.
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    /// Its network; where it lists nothing, what `allow_internet_access` says.
    network: Option<Network>,
    /// Whether it pauses at its timeout. Otherwise it ends.
    auto_pause: Option<bool>,
    /// `false`: a pause at its timeout keeps files only.
    auto_pause_memory: Option<bool>,
    /// Whether a request resumes it.
    auto_resume: Option<AutoResume>,
    /// Accepted, and without effect: every sandbox is secure.
    #[serde(rename = "secure")]
    _secure: Option<bool>,
    /// Not supported: leave it out.
    #[schemars(with = "Option<()>")]
    mcp: Option<Value>,
    /// Not supported: leave it out.
    #[schemars(with = "Option<()>")]
    iam: Option<Value>,
    /// Not supported: leave it out.
    #[schemars(with = "Option<()>")]
    volume_mounts: Option<Vec<Value>>,
}

/// Whether a request resumes a paused sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct AutoResume {
    /// Needs `autoPause`, and not `autoPauseMemory: false`.
    enabled: Option<bool>,
    /// Not supported: leave it out.
    #[schemars(with = "Option<()>")]
    timeout: Option<Value>,
}

impl NewSandbox {
    /// Whether its user leaves the network to its provider: `allow_internet_access: true` is what clients send when their user
    /// says nothing, so it is not refused, and means what the tenant's configuration says.
    pub(crate) fn wants_internet(&self) -> bool {
        let said = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| !list.is_empty());
        let is_said = |network: &Network| said(&network.allow_out) || said(&network.deny_out);
        self.allow_internet_access != Some(false) && !self.network.as_ref().is_some_and(is_said)
    }

    /// As our own request. `default_s`: the time to live without one.
    ///
    /// A sandbox reaches the names of `allowOut`, under the tenant's grants, and nothing else, and its detail says so.
    pub(crate) fn request(
        self,
        default_s: u64,
        dedup: Option<String>,
        class_min: Option<IsolationClass>,
    ) -> Result<LiveRequest, String> {
        let absent = [
            ("mcp", self.mcp.is_some_and(|mcp| !mcp.is_null())),
            ("iam", self.iam.is_some_and(|iam| !iam.is_null())),
            ("volumeMounts", self.volume_mounts.is_some_and(|mounts| !mounts.is_empty())),
        ];
        if let Some((field, _)) = absent.into_iter().find(|(_, asked)| *asked) {
            return Err(format!("{field} is not supported: leave it out"));
        }
        let pauses = self.auto_pause == Some(true);
        let resumes = match self.auto_resume {
            Some(AutoResume { enabled: Some(true), timeout }) => {
                if !pauses || self.auto_pause_memory == Some(false) {
                    return Err(
                        "autoResume needs autoPause, and not autoPauseMemory: false".to_owned()
                    );
                }
                if timeout.is_some_and(|timeout| !timeout.is_null()) {
                    return Err("autoResume.timeout is not supported: leave it out".to_owned());
                }
                true
            }
            _ => false,
        };
        let network = self.network.map(Network::checked).transpose()?;
        let (egress, private) = network.unwrap_or((Egress::None, false));
        // The id of a snapshot is a template too, with or without a tag.
        let name = self.template_id.split(':').next().unwrap_or_default();
        let snapshot = SnapshotId::parse(name).ok();
        let template = if snapshot.is_some() { BASE_TEMPLATE.to_owned() } else { self.template_id };
        Ok(LiveRequest {
            template,
            timeout_s: Some(self.timeout.unwrap_or(default_s)),
            metadata: self.metadata.unwrap_or_default(),
            env: self.env_vars.unwrap_or_default(),
            egress,
            limits: LIMITS,
            class_min,
            private,
            snapshot,
            pause_on_timeout: pauses,
            pause_memory: self.auto_pause_memory.filter(|_| pauses),
            resume_on_traffic: resumes,
            dedup,
        })
    }
}

/// Answers `POST /v2/sandboxes`: creates a sandbox, whose `timeout` is 300 s by default.
pub(crate) async fn newer(call: Call) -> Outcome {
    create(call, NEW_S).await
}

/// Answers `POST /sandboxes`: creates a sandbox, whose `timeout` is 15 s by default.
pub(crate) async fn older(call: Call) -> Outcome {
    create(call, OLD_S).await
}

async fn create(call: Call, default_s: u64) -> Outcome {
    let (dedup, class_min) = (header(&call.headers, IDEMPOTENCY_KEY), header(&call.headers, CLASS));
    let Call { services, who, domain, body, .. } = call;
    services.clean_up().await;
    let asked: NewSandbox = body::body(body).await?;
    if dedup.as_ref().is_some_and(|key| key.len() > MAX_IDEMPOTENCY_KEY) {
        let why = format!("the Idempotency-Key has more than {MAX_IDEMPOTENCY_KEY} bytes");
        return Err(answer::error(400, why));
    }
    let class_min = class_min.map(|name| class(&name)).transpose();
    let class_min = class_min.map_err(|why| answer::error(400, why))?;
    let (template, wants_internet) = (asked.template_id.clone(), asked.wants_internet());
    let mut request =
        asked.request(default_s, dedup, class_min).map_err(|why| answer::error(400, why))?;
    let (flows, lives) = (&services.flows, &services.live);
    names::choose(lives, &who, &template, &mut request).await?;
    if wants_internet {
        request.egress = egress::internet(&flows.ledger, &who).await.map_err(answer::refused)?;
    }
    let guest = lives.ask(CreateSandbox { who, request }).await.map_err(answer::refused)?;
    Ok(answer::json_of(201, &Sandbox::of(&guest.facts, &domain)))
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::egress::MAX_ENTRIES;
    use serde_json::json;

    use super::*;

    fn of(more: Value) -> Result<LiveRequest, String> {
        let mut body = json!({"templateID": "base"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let parsed: NewSandbox = serde_json::from_value(body).map_err(|e| e.to_string())?;
        parsed.request(300, None, None)
    }

    #[test]
    fn what_cannot_be_enforced_is_refused_by_name() {
        for (field, value) in [
            ("mcp", json!({"x": {}})),
            ("iam", json!({"tokens": {}})),
            ("volumeMounts", json!([{"name": "v", "path": "/v"}])),
        ] {
            let refused = of(json!({field: value})).unwrap_err();
            assert!(refused.starts_with(field), "{refused}");
        }
        for (field, value) in [
            ("dnsServers", json!(["8.8.8.8"])),
            ("egressProxy", json!({"address": "x"})),
            ("maskRequestHost", json!("localhost:${PORT}")),
            ("httpsPorts", json!([443])),
            ("rules", json!({"a.example": []})),
            ("allowOut", json!(["8.8.8.8"])),
            ("allowOut", json!(["0.0.0.0/0"])),
            ("allowOut", json!(["not a name"])),
            ("denyOut", json!(["a.example"])),
            ("denyOut", json!(["10.0.0.0/33"])),
        ] {
            let refused = of(json!({"network": {field: value}})).unwrap_err();
            assert!(refused.contains(field), "{refused}");
        }
        assert!(of(json!({"surprise": 1})).is_err());
        let names = |most: usize| (0..most).map(|n| format!("n{n}.example")).collect::<Vec<_>>();
        let listed = |names: Vec<String>| of(json!({"network": {"allowOut": names}}));
        assert_eq!(listed(names(MAX_ENTRIES)).unwrap().egress.entries().len(), MAX_ENTRIES);
        assert!(listed(names(MAX_ENTRIES + 1)).unwrap_err().contains("more than 64 names"));
        assert_eq!(listed([names(2), names(2)].concat()).unwrap().egress.entries().len(), 2);
    }

    #[test]
    fn auto_resume_is_taken_with_auto_pause_alone() {
        let asked = |more: Value| {
            let mut body = json!({"autoPause": true, "autoResume": {"enabled": true}});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of(body)
        };
        assert!(asked(json!({})).unwrap().resume_on_traffic);
        assert!(asked(json!({"autoPauseMemory": true})).unwrap().resume_on_traffic);
        for off in [json!({"enabled": false}), json!({}), Value::Null] {
            assert!(!asked(json!({"autoResume": off})).unwrap().resume_on_traffic);
        }
        for bad in [
            json!({"autoPause": false}),
            json!({"autoPauseMemory": false}),
            json!({"autoResume": {"enabled": true, "timeout": 9}}),
        ] {
            let refused = asked(bad).unwrap_err();
            assert!(refused.starts_with("autoResume"), "{refused}");
        }
    }

    #[test]
    fn the_network_is_left_to_the_provider_unless_something_is_said_of_it() {
        let wants = |more: Value| {
            let mut body = json!({"templateID": "base"});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<NewSandbox>(body).unwrap().wants_internet()
        };
        for silent in [
            json!({}),
            json!({"allow_internet_access": true}),
            json!({"network": {"allowPublicTraffic": false, "allowOut": []}}),
        ] {
            assert!(wants(silent.clone()), "{silent}");
        }
        for said in [
            json!({"allow_internet_access": false}),
            json!({"network": {"allowOut": ["a.example"]}}),
            json!({"network": {"denyOut": ["0.0.0.0/0"]}}),
        ] {
            assert!(!wants(said.clone()), "{said}");
        }
    }

    #[test]
    fn a_snapshot_is_a_template_and_auto_pause_is_taken() {
        let id = "a".repeat(20);
        for text in [id.clone(), format!("{id}:default")] {
            let request = of(json!({"templateID": text, "autoPause": true})).unwrap();
            assert_eq!(request.snapshot.unwrap().as_str(), id);
            assert_eq!((request.template.as_str(), request.pause_on_timeout), ("base", true));
        }
        assert!(of(json!({})).unwrap().snapshot.is_none());
    }

    #[test]
    fn the_default_call_is_taken_and_grants_no_network() {
        let request =
            of(json!({"allow_internet_access": true, "autoPause": false, "timeout": 9})).unwrap();
        assert!(request.egress.is_none() && !request.private);
        assert_eq!(request.timeout_s, Some(9));
        let denied =
            json!({"network": {"denyOut": ["0.0.0.0/0", "::/0"], "allowPublicTraffic": false}});
        let request = of(denied).unwrap();
        assert!(request.egress.is_none() && request.private);
        let names = of(json!({"network": {"allowOut": ["a.example"]}})).unwrap().egress;
        assert_eq!(names.entries().len(), 1);
    }
}
