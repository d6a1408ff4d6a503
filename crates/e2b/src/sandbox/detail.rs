//! One sandbox, as its owner sees it.

use std::collections::BTreeMap;

use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::live::LiveState;
use cofferdam_live::{FindAnyGuest, ViewSandbox};
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer;
use crate::call::{Call, Outcome};
use crate::caller::may;
use crate::sandbox::answers::SandboxItem;
use crate::sandbox::refusals::{found, missing};

/// A sandbox as `GET /sandboxes/{id}` shows it, running or paused.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxDetail {
    #[serde(rename = "templateID")]
    template_id: String,
    alias: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    started_at: String,
    end_at: String,
    cpu_count: u64,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    state: &'static str,
    envd_version: &'static str,
    metadata: BTreeMap<String, String>,
    domain: String,
    allow_internet_access: bool,
    network: NetworkDetail,
    lifecycle: Lifecycle,
    /// For a key that may run commands in it, while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
}

/// What it reaches.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct NetworkDetail {
    allow_out: Vec<String>,
    deny_out: [&'static str; 2],
    allow_public_traffic: bool,
}

/// What its time and a request do to it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Lifecycle {
    auto_resume: bool,
    on_timeout: &'static str,
}

pub(crate) async fn detail(call: Call) -> Outcome {
    let id = &call.param("id");
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let lives = &call.services.live;
    let view = lives.ask(ViewSandbox { who: call.who.clone(), id: live.clone() }).await;
    let view = view.map_err(|error| found(id, error))?;
    if !matches!(view.state, LiveState::Running | LiveState::Paused) {
        return Err(missing(id));
    }
    let on_timeout = if view.pause_on_timeout { "pause" } else { "kill" };
    let listed = SandboxItem::of(&view);
    let names = view.egress.entries().iter().map(|entry| entry.as_str().to_owned());
    let guest = lives.ask(FindAnyGuest { id: live }).await.map_err(answer::refused)?;
    // Of one that runs, the name that its tenant gave.
    let alias = guest.as_ref().map(|guest| guest.facts.alias.to_string());
    let private = guest.as_ref().is_some_and(|guest| guest.facts.traffic.is_some());
    // Who may only read is not given what runs commands.
    let guest = guest.filter(|_| may(&call.who, true));
    let detail = SandboxDetail {
        template_id: listed.template_id,
        alias: alias.unwrap_or(listed.alias),
        sandbox_id: listed.sandbox_id,
        client_id: listed.client_id,
        started_at: listed.started_at,
        end_at: listed.end_at,
        cpu_count: listed.cpu_count,
        memory_mb: listed.memory_mb,
        disk_size_mb: listed.disk_size_mb,
        state: listed.state,
        envd_version: listed.envd_version,
        metadata: listed.metadata,
        domain: call.domain,
        // As enforced, whatever was asked for.
        allow_internet_access: false,
        network: NetworkDetail {
            allow_out: names.collect(),
            deny_out: ["0.0.0.0/0", "::/0"],
            allow_public_traffic: !private,
        },
        lifecycle: Lifecycle { auto_resume: view.resume_on_traffic, on_timeout },
        envd_access_token: guest.map(|guest| guest.facts.token.clone()),
    };
    Ok(answer::json_of(200, &detail))
}
