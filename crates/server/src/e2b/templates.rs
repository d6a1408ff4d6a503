//! The templates of this host, as E2B's clients list them. Everybody's, as the host's images are.

use axum::body::Body;
use axum::http::Response;
use cofferdam_contracts::live::BASE_TEMPLATE;
use cofferdam_flows::live::Template;
use cofferdam_flows::{Error, Flows};
use serde_json::{Value, json};

use super::envd::VERSION;
use super::shape;

/// A template has no builds that clients could follow.
const BUILD: &str = "00000000-0000-0000-0000-000000000000";
/// CPUs and MiB of a sandbox, where its template says nothing.
const CPUS: u64 = 2;
const MEM_MB: u64 = 512;

/// `GET /templates`.
pub(crate) fn list(flows: &Flows) -> Response<Body> {
    match flows.live_templates() {
        Ok(made) => shape::json_of(200, &Value::Array(listed(&made))),
        Err(fault) => shape::refused(fault),
    }
}

/// `GET /templates/aliases/{alias}`.
pub(crate) fn alias(flows: &Flows, alias: &str) -> Response<Body> {
    match is_known(flows, alias) {
        Ok(true) => shape::json_of(200, &json!({"templateID": alias, "public": true})),
        Ok(false) => missing(alias),
        Err(fault) => shape::refused(fault),
    }
}

/// Whether this host has a template of this name.
pub(crate) fn is_known(flows: &Flows, name: &str) -> Result<bool, Error> {
    let made = flows.live_templates()?;
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

fn entry(name: &str, at_ms: i64, mem_mb: Option<u64>) -> Value {
    let mem_mb = mem_mb.unwrap_or(MEM_MB);
    let at = shape::time(at_ms);
    json!({
        "templateID": name, "buildID": BUILD, "public": true, "aliases": [name], "names": [name], "cpuCount": CPUS,
        "memoryMB": mem_mb, "diskSizeMB": mem_mb / 4 * 3, "createdAt": at, "updatedAt": at, "createdBy": null,
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
