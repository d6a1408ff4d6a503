//! A build by its names, and one that is not there.

use axum::body::Body;
use axum::http::Response;
use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::{BuildId, TemplateId};
use cofferdam_flows::Error;
use cofferdam_ledger::builds::Build;
use cofferdam_ledger::keys::Principal;
use cofferdam_live::{LiveClient, ViewBuild};

use crate::answer;

/// Both ids of a path; `None`: one of them is malformed, so it names nothing.
pub(crate) fn named(template: &str, build: &str) -> Option<(TemplateId, BuildId)> {
    Some((TemplateId::parse(template).ok()?, BuildId::parse(build).ok()?))
}

pub(crate) fn missing(build: &str) -> Response<Body> {
    let build: String = build.chars().take(64).collect();
    answer::error(404, format!("build {build:?} not found"))
}

pub(crate) fn found(build: &BuildId, error: Error) -> Response<Body> {
    match &error {
        Error::Refused(refusal) if refusal.code == ErrorCode::NotFound => missing(build.as_str()),
        _ => answer::refused(error),
    }
}

/// A build of the caller's tenant.
pub(crate) async fn viewed(
    lives: &LiveClient,
    who: &Principal,
    template: &TemplateId,
    build: &BuildId,
) -> Result<Build, Response<Body>> {
    let view = ViewBuild { who: who.clone(), template: template.clone(), build: build.clone() };
    lives.ask(view).await.map_err(|error| found(build, error))
}
