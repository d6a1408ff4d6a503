//! Tags of templates, as E2B's clients set them.

use axum::body::Body;
use axum::http::Response;
use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::TemplateId;
use cofferdam_contracts::template_build::{DEFAULT_TAG, MAX_TAGS, tag, tagged};
use cofferdam_flows::Error;
use cofferdam_ledger::keys::Principal;
use cofferdam_live::{TagBuild, UntagBuilds};
use serde::Deserialize;
use serde_json::{Value, json};

use super::builds::refused;
use super::control::{Asking, Outcome};
use super::{Front, shape, templates};

/// `POST /templates/tags`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Assign {
    target: String,
    tags: Vec<String>,
}

/// `DELETE /templates/tags`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    name: String,
    tags: Vec<String>,
}

fn checked(tags: &[String]) -> Result<Vec<String>, String> {
    if !(1..=MAX_TAGS).contains(&tags.len()) {
        return Err(format!("tags: 1 to {MAX_TAGS}"));
    }
    let mut all = tags.iter().map(|text| tag(text)).collect::<Result<Vec<_>, _>>()?;
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// A template of the caller's tenant, by id or name.
pub(super) async fn known(
    front: &Front,
    who: &Principal,
    text: &str,
) -> Result<TemplateId, Response<Body>> {
    let found = templates::built(&front.shared.flows, who, text).await?;
    found.map(|(id, _)| id).ok_or_else(|| templates::missing(text))
}

fn fault(text: &str, error: Error) -> Response<Body> {
    match error {
        Error::Refused(refusal) if refusal.code == ErrorCode::NotFound => {
            let text: String = text.chars().take(200).collect();
            shape::error(404, format!("template {text:?} has no such tag"))
        }
        error => shape::refused(error),
    }
}

pub(super) async fn assign(call: Asking<'_>) -> Outcome {
    let Asking { front, who, body, .. } = call;
    let asked: Assign = shape::body(body).await?;
    let (name, from) = tagged(&asked.target).map_err(refused)?;
    let tags = checked(&asked.tags).map_err(refused)?;
    let template = known(front, &who, name.as_str()).await?;
    let from = from.as_deref().unwrap_or(DEFAULT_TAG);
    let tag = TagBuild { who, template, from: from.to_owned(), tags: tags.clone() };
    let build = front.shared.live.ask(tag).await;
    let build = build.map_err(|error| fault(&asked.target, error))?;
    Ok(shape::json_of(201, &json!({"buildID": build, "tags": tags})))
}

pub(super) async fn remove(call: Asking<'_>) -> Outcome {
    let Asking { front, who, body, .. } = call;
    let asked: Remove = shape::body(body).await?;
    let (name, _) = tagged(&asked.name).map_err(refused)?;
    let tags = checked(&asked.tags).map_err(refused)?;
    let template = known(front, &who, name.as_str()).await?;
    let removed = front.shared.live.ask(UntagBuilds { who, template, tags }).await;
    removed.map_err(|error| fault(&asked.name, error))?;
    Ok(shape::empty(204))
}

pub(super) async fn list(call: Asking<'_>, text: &str) -> Outcome {
    let text = shape::decoded(text).unwrap_or_default();
    let template = known(call.front, &call.who, &text).await?;
    let tags = call.front.shared.flows.ledger.builds().tags(&call.who.tenant, &template).await;
    let tags = tags.map_err(|error| shape::refused(error.into()))?;
    let entry = |one: &cofferdam_ledger::template_tags::TagView| json!({"tag": one.tag, "buildID": one.build, "createdAt": shape::time(one.assigned_ms)});
    Ok(shape::json_of(200, &Value::Array(tags.iter().map(entry).collect())))
}
