//! Where the files of a COPY step may be sent.

use axum::http::{HeaderMap, header};
use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::id::{Digest, TemplateId};
use cofferdam_live::FindUpload;
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::{self, bad_request};
use crate::call::{Call, Outcome};
use crate::services::Services;
use crate::template::links::Link;
use crate::template::names;

/// The address that the operator said; without one, `http` or `https`, then how the caller named this server.
fn origin(services: &Services, headers: &HeaderMap) -> String {
    if let Some(said) = &services.site.public_url {
        return said.as_str().to_owned();
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST.as_str()).unwrap_or("localhost");
    // Behind a proxy that ends TLS it is the proxy's word, for this caller alone.
    let is_tls = services.site.tls || text("x-forwarded-proto") == Some("https");
    format!("{}://{host}", if is_tls { "https" } else { "http" })
}

/// Where an archive may be sent, and whether it is there already.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct UploadLink {
    present: bool,
    url: String,
}

/// Answers `GET /templates/{id}/files/{hash}`: a link to which the archive is sent.
pub(crate) async fn link(call: Call) -> Outcome {
    let template = &call.param("id");
    let hash = &call.param("hash");
    let template = TemplateId::parse(template).map_err(|_| names::missing(template))?;
    let hash = Digest::parse(hash)
        .map_err(|_| bad_request("the files' hash is not a SHA-256 in lower-case hex"))?;
    let (flows, lives) = (&call.services.flows, &call.services.live);
    let known = names::built(flows, &call.who, template.as_str()).await?;
    if known.is_none_or(|(id, _)| id != template) {
        return Err(names::missing(template.as_str()));
    }
    let tenant = call.who.tenant.clone();
    let upload =
        FindUpload { tenant: tenant.clone(), template: template.clone(), hash: hash.clone() };
    let present = lives.ask(upload).await.map_err(answer::refused)?;
    let path = format!("/templates/{template}/files/{hash}");
    let key = call.who.key_id.clone();
    let link = Link { tenant, key, template, hash, since: Stopwatch::start() };
    let secret = call.services.links.add(link);
    let url = format!("{}{path}?signature={secret}", origin(&call.services, &call.headers));
    Ok(answer::json_of(201, &UploadLink { present, url }))
}
