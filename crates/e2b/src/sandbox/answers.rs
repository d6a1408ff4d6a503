//! A sandbox as clients read it.

use std::collections::BTreeMap;

use cofferdam_contracts::live::{LiveState, LiveView};
use cofferdam_live::Facts;
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::time;
use crate::envd::VERSION;
use crate::envd::usage::cpus;

/// Who serves: this installation has no clusters.
const CLIENT: &str = "cofferdam";

/// A sandbox that was created, or went on, with what opens it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    alias: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    envd_version: &'static str,
    envd_access_token: String,
    traffic_access_token: Option<String>,
    domain: String,
}

impl Sandbox {
    pub(crate) fn of(facts: &Facts, domain: &str) -> Self {
        Self {
            template_id: facts.template.to_string(),
            alias: facts.alias.to_string(),
            sandbox_id: facts.id.to_string(),
            client_id: CLIENT,
            envd_version: VERSION,
            envd_access_token: facts.token.clone(),
            traffic_access_token: facts.traffic.clone(),
            domain: domain.to_owned(),
        }
    }
}

/// A sandbox in a list.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxItem {
    #[serde(rename = "templateID")]
    pub template_id: String,
    pub alias: String,
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    #[serde(rename = "clientID")]
    pub client_id: &'static str,
    pub started_at: String,
    pub end_at: String,
    pub cpu_count: u64,
    #[serde(rename = "memoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u64,
    pub state: &'static str,
    pub envd_version: &'static str,
    pub metadata: BTreeMap<String, String>,
}

impl SandboxItem {
    pub(crate) fn of(view: &LiveView) -> Self {
        Self {
            template_id: view.template.to_string(),
            alias: view.template.to_string(),
            sandbox_id: view.id.to_string(),
            client_id: CLIENT,
            started_at: time(view.started_at.unwrap_or(view.created_at)),
            end_at: time(view.ends_at.unwrap_or(view.created_at)),
            cpu_count: cpus(view.cpu),
            memory_mb: view.mem_mb.unwrap_or(0),
            disk_size_mb: view.disk_mb.unwrap_or(0),
            state: if view.state == LiveState::Paused { "paused" } else { "running" },
            envd_version: VERSION,
            metadata: view.metadata.clone(),
        }
    }
}
