//! Templates by name: those of this host, which are everybody's as its images are, and those that the caller's tenant built.

use axum::body::Body;
use axum::http::Response;
use cofferdam_contracts::id::{TemplateId, TemplateName};
use cofferdam_contracts::live::{BASE_TEMPLATE, LiveRequest};
use cofferdam_contracts::template_build::{DEFAULT_TAG, tagged};
use cofferdam_flows::{Error, Flows};
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::template_views::{BuildRow, TemplateRow};
use cofferdam_live::{FindTemplateFiles, ListHostTemplates, LiveClient, Template};
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::{self, time};
use crate::call::Call;
use crate::envd::VERSION;

/// A template of the host has no builds that clients could follow.
const BUILD: &str = "00000000-0000-0000-0000-000000000000";
/// CPUs and MiB of a sandbox, where its template says nothing.
const CPUS: u64 = 2;
const MEM_MB: u64 = 512;

/// Those of the host, then those that the caller's tenant built.
pub(crate) async fn all(call: &Call) -> Result<Vec<TemplateAnswer>, Response<Body>> {
    let flows = &call.services.flows;
    let mut all = hosts(&call.services.live).await.map_err(answer::refused)?;
    let built = flows.ledger.builds().list(&call.who.tenant).await;
    all.extend(built.map_err(|error| answer::refused(error.into()))?.iter().map(own));
    Ok(all)
}

/// Those of the host.
pub(crate) async fn hosts(lives: &LiveClient) -> Result<Vec<TemplateAnswer>, Error> {
    Ok(listed(&lives.ask(ListHostTemplates).await?))
}

/// A template that the caller's tenant built, by its id or name; `None`: there is none.
pub(crate) async fn built(
    flows: &Flows,
    who: &Principal,
    text: &str,
) -> Result<Option<(TemplateId, TemplateName)>, Response<Body>> {
    let found = flows.ledger.builds().template(&who.tenant, text).await;
    found.map_err(|error| answer::refused(error.into()))
}

/// Finds what a creation means by its template: a build of the tenant's with its tag, or a template of the host.
pub(crate) async fn choose(
    lives: &LiveClient,
    who: &Principal,
    asked: &str,
    request: &mut LiveRequest,
) -> Result<(), Response<Body>> {
    // A bare name is found where the sandbox is made.
    if request.snapshot.is_none() && !asked.contains(':') {
        return Ok(());
    }
    // Before a snapshot: both have ids of one form.
    let named = FindTemplateFiles { who: who.clone(), text: asked.to_owned() };
    if let Some(files) = lives.ask(named).await.map_err(answer::refused)? {
        request.snapshot = Some(files);
        BASE_TEMPLATE.clone_into(&mut request.template);
        return Ok(());
    }
    if request.snapshot.is_some() {
        return Ok(());
    }
    // The host's have one build each.
    if let Ok((name, Some(tag))) = tagged(&request.template) {
        if tag != DEFAULT_TAG && tag != BUILD {
            return Err(missing(&request.template));
        }
        name.as_str().clone_into(&mut request.template);
    }
    Ok(())
}

/// Whether this host has a template of this name.
pub(crate) async fn is_known(lives: &LiveClient, name: &str) -> Result<bool, Error> {
    let made = lives.ask(ListHostTemplates).await?;
    Ok(name == BASE_TEMPLATE || made.iter().any(|template| template.name.as_str() == name))
}

pub(crate) fn missing(name: &str) -> Response<Body> {
    let name: String = name.chars().take(64).collect();
    answer::error(404, format!("template {name:?} not found"))
}

/// A template in a list, or alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TemplateAnswer {
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Of one that a tenant built, the newest build that is ready.
    #[serde(rename = "buildID")]
    build_id: String,
    /// One of the host's is everybody's.
    pub public: bool,
    aliases: [String; 1],
    pub names: [String; 1],
    cpu_count: u64,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    created_at: String,
    updated_at: String,
    created_by: Option<String>,
    last_spawned_at: Option<String>,
    /// Creations with it.
    spawn_count: i64,
    build_count: i64,
    envd_version: &'static str,
    /// Of the newest build.
    build_status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_default: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    builds: Option<Vec<BuildAnswer>>,
}

impl TemplateAnswer {
    /// With a page of its builds.
    pub(crate) fn with_builds(self, builds: Vec<BuildAnswer>) -> Self {
        Self { builds: Some(builds), ..self }
    }

    /// Of this name.
    #[cfg(test)]
    pub(crate) fn tested(name: &str, public: bool) -> Self {
        Self { public, ..entry(name, 0, None) }
    }

    /// As one of the default ones.
    pub(crate) fn by_default(self) -> Self {
        Self { is_default: Some(true), ..self }
    }
}

/// A build of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BuildAnswer {
    #[serde(rename = "buildID")]
    build_id: String,
    status: &'static str,
    created_at: String,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
    cpu_count: u64,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    envd_version: &'static str,
}

impl BuildAnswer {
    pub(crate) fn of(build: &BuildRow) -> Self {
        let mem_mb = build.mem_mb.map_or(MEM_MB, u64::from);
        Self {
            build_id: build.id.to_string(),
            status: build.status.as_str(),
            created_at: time(build.created_ms),
            updated_at: time(build.ended_ms.unwrap_or(build.created_ms)),
            finished_at: build.ended_ms.map(time),
            cpu_count: build.cpu.map_or(CPUS, u64::from),
            memory_mb: mem_mb,
            disk_size_mb: default_disk(mem_mb),
            envd_version: VERSION,
        }
    }
}

/// `base` is there, built or not. Pure.
fn listed(made: &[Template]) -> Vec<TemplateAnswer> {
    let is_built = made.iter().any(|template| template.name.as_str() == BASE_TEMPLATE);
    let host = (!is_built).then(|| entry(BASE_TEMPLATE, 0, None));
    let own = made.iter().map(|one| entry(one.name.as_str(), one.created_at_ms, one.mem_mb));
    host.into_iter().chain(own).collect()
}

/// A template that its tenant built.
pub(crate) fn own(template: &TemplateRow) -> TemplateAnswer {
    let names = [template.name.to_string()];
    TemplateAnswer {
        public: false,
        aliases: names.clone(),
        names,
        build_id: template.build.to_string(),
        build_status: template.status.as_str(),
        build_count: template.builds,
        spawn_count: template.spawns,
        last_spawned_at: template.spawned_ms.map(time),
        cpu_count: template.cpu.map_or(CPUS, u64::from),
        updated_at: time(template.updated_ms),
        ..entry(template.id.as_str(), template.created_ms, template.mem_mb.map(u64::from))
    }
}

/// What a writable layer has of a sandbox's memory.
fn default_disk(mem_mb: u64) -> u64 {
    mem_mb / 4 * 3
}

fn entry(name: &str, at_ms: i64, mem_mb: Option<u64>) -> TemplateAnswer {
    let (mem_mb, at) = (mem_mb.unwrap_or(MEM_MB), time(at_ms));
    TemplateAnswer {
        template_id: name.to_owned(),
        build_id: BUILD.to_owned(),
        public: true,
        aliases: [name.to_owned()],
        names: [name.to_owned()],
        cpu_count: CPUS,
        memory_mb: mem_mb,
        disk_size_mb: default_disk(mem_mb),
        created_at: at.clone(),
        updated_at: at,
        created_by: None,
        last_spawned_at: None,
        spawn_count: 0,
        build_count: 0,
        envd_version: VERSION,
        build_status: "ready",
        is_default: None,
        builds: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn base_is_listed_built_or_not() {
        let names = |made: &[Template]| -> Vec<String> {
            listed(made).into_iter().map(|one| one.template_id).collect()
        };
        assert_eq!(names(&[]), ["base"]);
        let built = json!({"schemaVersion": 1, "name": "base", "image": "x", "user": "user", "createdAtMs": 1});
        let built: Template = serde_json::from_value(built).unwrap();
        assert_eq!(names(&[built]), ["base"]);
    }
}
