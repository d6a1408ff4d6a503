//! Templates, as E2B's clients list and name them: those of this host, which are everybody's as its images are, and those
//! that the caller's tenant built.

use axum::body::Body;
use axum::http::Response;
use cofferdam_contracts::id::{TemplateId, TemplateName};
use cofferdam_contracts::live::{BASE_TEMPLATE, LiveRequest};
use cofferdam_contracts::template_build::{DEFAULT_TAG, tagged};
use cofferdam_flows::{Error, Flows};
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::template_views::ListedTemplate;
use cofferdam_live::{ListHostTemplates, LiveClient, NamedTemplate, Template};
use serde::Deserialize;
use serde_json::{Value, json};

use super::control::{Asking, Outcome};
use super::envd::VERSION;
use super::shape;

/// What is said of changes that are not there.
pub(super) const OLDER: &str = "not supported: builds by E2B's older API, which pushes images to a registry: use Template.build of e2b 2 (POST /v3/templates)";
pub(super) const UNCHANGED: &str = "not supported: changes of templates: a tenant's are its own; `cofferdam template` makes the host's";
/// A template of the host has no builds that clients could follow.
const BUILD: &str = "00000000-0000-0000-0000-000000000000";
/// CPUs and MiB of a sandbox, where its template says nothing.
pub(super) const CPUS: u64 = 2;
pub(super) const MEM_MB: u64 = 512;

/// Those of the host, then those that the caller's tenant built.
pub(super) async fn all(call: &Asking<'_>) -> Result<Vec<Value>, Response<Body>> {
    let flows = &call.front.shared.flows;
    let mut all = hosts(&call.front.shared.live).await.map_err(shape::refused)?;
    let built = flows.ledger.builds().list(&call.who.tenant).await;
    all.extend(built.map_err(|error| shape::refused(error.into()))?.iter().map(own));
    Ok(all)
}

/// Those of the host.
pub(super) async fn hosts(lives: &LiveClient) -> Result<Vec<Value>, Error> {
    Ok(listed(&lives.ask(ListHostTemplates).await?))
}

/// `GET /templates`.
pub(super) async fn list(call: Asking<'_>) -> Outcome {
    Ok(shape::json_of(200, &Value::Array(all(&call).await?)))
}

/// A template that the caller's tenant built, by its id or name; `None`: there is none.
pub(super) async fn built(
    flows: &Flows,
    who: &Principal,
    text: &str,
) -> Result<Option<(TemplateId, TemplateName)>, Response<Body>> {
    let found = flows.ledger.builds().template(&who.tenant, text).await;
    found.map_err(|error| shape::refused(error.into()))
}

/// `GET /templates/aliases/{alias}`. Names are a tenant's own, so another's is simply not there.
pub(super) async fn alias(call: Asking<'_>, alias: &str) -> Outcome {
    let flows = &call.front.shared.flows;
    let alias = shape::decoded(alias).unwrap_or_default();
    // Whether it is there, whatever its tags are.
    let alias = alias.split_once(':').map_or(alias.as_str(), |(name, _)| name);
    if let Some((id, _)) = built(flows, &call.who, alias).await? {
        return Ok(shape::json_of(200, &json!({"templateID": id, "public": false})));
    }
    match is_known(&call.front.shared.live, alias).await.map_err(shape::refused)? {
        true => Ok(shape::json_of(200, &json!({"templateID": alias, "public": true}))),
        false => Err(missing(alias)),
    }
}

/// `PATCH` of a template.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    public: Option<bool>,
}

/// A template of a tenant stays its own; that it is so is no change. Others are the host's.
pub(super) async fn change(call: Asking<'_>, id: &str) -> Outcome {
    let Asking { front, who, body, .. } = call;
    let asked: Change = shape::body(body).await?;
    let id = shape::decoded(id).unwrap_or_default();
    match (built(&front.shared.flows, &who, &id).await?, asked.public) {
        (Some((_, name)), None | Some(false)) => Ok(shape::json_of(200, &json!({"names": [name]}))),
        _ => Err(shape::error(400, UNCHANGED)),
    }
}

/// Finds what a creation means by its template: a build of the tenant's with its tag, or a template of the host.
pub(super) async fn choose(
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
    let named = NamedTemplate { who: who.clone(), text: asked.to_owned() };
    if let Some(files) = lives.ask(named).await.map_err(shape::refused)? {
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
    shape::error(404, format!("template {name:?} not found"))
}

/// `base` is there, built or not. Pure.
fn listed(made: &[Template]) -> Vec<Value> {
    let is_built = made.iter().any(|template| template.name.as_str() == BASE_TEMPLATE);
    let host = (!is_built).then(|| entry(BASE_TEMPLATE, 0, None));
    let own = made.iter().map(|one| entry(one.name.as_str(), one.created_at_ms, one.mem_mb));
    host.into_iter().chain(own).collect()
}

/// A template that its tenant built.
pub(super) fn own(template: &ListedTemplate) -> Value {
    let id = template.id.as_str();
    let mut value = entry(id, template.created_ms, template.mem_mb.map(u64::from));
    if let Some(fields) = value.as_object_mut() {
        fields.insert("public".into(), false.into());
        for names in ["names", "aliases"] {
            fields.insert(names.into(), json!([template.name]));
        }
        fields.insert("buildID".into(), template.build.as_str().into());
        fields.insert("buildStatus".into(), template.status.as_str().into());
        fields.insert("buildCount".into(), template.builds.into());
        fields.insert("spawnCount".into(), template.spawns.into());
        fields.insert("lastSpawnedAt".into(), json!(template.spawned_ms.map(shape::time)));
        fields.insert("cpuCount".into(), template.cpu.map_or(CPUS, u64::from).into());
        fields.insert("updatedAt".into(), shape::time(template.updated_ms).into());
    }
    value
}

/// What a writable layer has of a sandbox's memory.
pub(super) fn default_disk(mem_mb: u64) -> u64 {
    mem_mb / 4 * 3
}

fn entry(name: &str, at_ms: i64, mem_mb: Option<u64>) -> Value {
    let mem_mb = mem_mb.unwrap_or(MEM_MB);
    let at = shape::time(at_ms);
    json!({
        "templateID": name, "buildID": BUILD, "public": true, "aliases": [name], "names": [name], "cpuCount": CPUS,
        "memoryMB": mem_mb, "diskSizeMB": default_disk(mem_mb), "createdAt": at, "updatedAt": at, "createdBy": null,
        "lastSpawnedAt": null, "spawnCount": 0, "buildCount": 0, "envdVersion": VERSION, "buildStatus": "ready",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_is_listed_built_or_not() {
        let names = |made: &[Template]| -> Vec<String> {
            listed(made).iter().map(|one| one["templateID"].to_string()).collect()
        };
        assert_eq!(names(&[]), ["\"base\""]);
        let built = json!({"schemaVersion": 1, "name": "base", "image": "x", "user": "user", "createdAtMs": 1});
        let built: Template = serde_json::from_value(built).unwrap();
        assert_eq!(names(&[built]), ["\"base\""]);
    }
}
