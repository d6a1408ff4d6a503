//! Tags of templates, as E2B's clients set them.

use axum::body::Body;
use axum::http::Response;
use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::TemplateId;
use cofferdam_contracts::template_build::{DEFAULT_TAG, MAX_TAGS, tag, tagged};
use cofferdam_flows::Error;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::template_tags::TagView;
use cofferdam_live::{TagBuild, UntagBuilds};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::answer::{self, bad_request};
use crate::call::{Call, Outcome};
use crate::services::Services;
use crate::template::names;
use crate::{body, query};

/// Tags for a build.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TagRequest {
    /// The template and the tag of its build: `web:v1`. Without a tag, `default` is meant.
    target: String,
    /// Tags that this build gets, 1 to 32 in one call.
    tags: Vec<String>,
}

/// Tags that a template is to lose.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UntagRequest {
    /// Id or name of the template; a tag in it is ignored.
    name: String,
    /// The tags. `default` stays.
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
pub(crate) async fn known(
    services: &Services,
    who: &Principal,
    text: &str,
) -> Result<TemplateId, Response<Body>> {
    let found = names::built(&services.flows, who, text).await?;
    found.map(|(id, _)| id).ok_or_else(|| names::missing(text))
}

fn fault(text: &str, error: Error) -> Response<Body> {
    match error {
        Error::Refused(refusal) if refusal.code == ErrorCode::NotFound => {
            let text: String = text.chars().take(200).collect();
            answer::error(404, format!("template {text:?} has no such tag"))
        }
        error => answer::refused(error),
    }
}

/// Tags that a build has.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TagsResponse {
    #[serde(rename = "buildID")]
    build_id: String,
    tags: Vec<String>,
}

/// A tag of a template, and its build.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TemplateTag {
    tag: String,
    #[serde(rename = "buildID")]
    build_id: String,
    created_at: String,
}

impl TemplateTag {
    fn of(view: &TagView) -> Self {
        let (tag, build_id) = (view.tag.clone(), view.build.to_string());
        Self { tag, build_id, created_at: answer::time(view.assigned_ms) }
    }
}

pub(crate) async fn assign(call: Call) -> Outcome {
    let Call { services, who, body, .. } = call;
    let asked: TagRequest = body::body(body).await?;
    let (name, from) = tagged(&asked.target).map_err(bad_request)?;
    let tags = checked(&asked.tags).map_err(bad_request)?;
    let template = known(&services, &who, name.as_str()).await?;
    let from = from.as_deref().unwrap_or(DEFAULT_TAG);
    let tag = TagBuild { who, template, from: from.to_owned(), tags: tags.clone() };
    let build = services.live.ask(tag).await;
    let build = build.map_err(|error| fault(&asked.target, error))?;
    Ok(answer::json_of(201, &TagsResponse { build_id: build.to_string(), tags }))
}

pub(crate) async fn remove(call: Call) -> Outcome {
    let Call { services, who, body, .. } = call;
    let asked: UntagRequest = body::body(body).await?;
    let (name, _) = tagged(&asked.name).map_err(bad_request)?;
    let tags = checked(&asked.tags).map_err(bad_request)?;
    let template = known(&services, &who, name.as_str()).await?;
    let removed = services.live.ask(UntagBuilds { who, template, tags }).await;
    removed.map_err(|error| fault(&asked.name, error))?;
    Ok(answer::empty(204))
}

pub(crate) async fn list(call: Call) -> Outcome {
    let text = &call.param("id");
    let text = query::decoded(text).unwrap_or_default();
    let template = known(&call.services, &call.who, &text).await?;
    let tags = call.services.flows.ledger.builds().tags(&call.who.tenant, &template).await;
    let tags = tags.map_err(|error| answer::refused(error.into()))?;
    Ok(answer::json_of(200, &tags.iter().map(TemplateTag::of).collect::<Vec<_>>()))
}
