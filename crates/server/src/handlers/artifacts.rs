//! `GET /api/artifacts/{uri}`: an artifact's bytes, or one range of them.
//!
//! ```text
//! head --its object--> the store, 1 MiB at a time --> body
//!      --none--------> the database: the range alone leaves it
//! ```
//! **Bytes of an object that are missing or were changed break the body off, which no client takes for its end.**

use std::io;

use axum::body::Body;
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::Digest;
use cofferdam_flows::Error;
use cofferdam_flows::objects::ObjectStream;
use cofferdam_http::ByteRange;
use cofferdam_ledger::artifacts::ArtifactHead;
use futures_util::stream;

use crate::answer::{Answer, AnswerResult, ArtifactAnswer, BytePart};
use crate::call::Call;

pub(crate) async fn artifact_get(call: Call) -> AnswerResult {
    // Clients may send the URI whole, or without its scheme; a path normalizer may have eaten a slash.
    let tail = call.param("uri").trim_start_matches("artifact:").trim_start_matches('/');
    let uri = format!("artifact://{tail}");
    let artifacts = call.flows().ledger.artifacts();
    let Some(head) = artifacts.head(&call.who.tenant, &uri).await? else {
        return Err(missing(&call, &uri).await);
    };
    match part(&call, &head) {
        ByteRange::Beyond => Ok(Answer::BeyondEnd { size: head.size }),
        ByteRange::Whole => answered(&call, &uri, head, None).await,
        ByteRange::Part { from, to } => {
            let part = BytePart { from, to, size: head.size };
            answered(&call, &uri, head, Some(part)).await
        }
    }
}

/// Says that the bytes of an artifact were erased, or that there is none.
async fn missing(call: &Call, uri: &str) -> Error {
    match call.flows().ledger.erasures().missing_artifact(&call.who.tenant, uri).await {
        Ok(why) => why.into(),
        Err(error) => error.into(),
    }
}

/// What is asked for of it. A condition that does not hold asks for all.
fn part(call: &Call, head: &ArtifactHead) -> ByteRange {
    let is_same = |tag: &String| *tag == etag(&head.sha256);
    match &call.range {
        Some(range) if call.if_range.as_ref().is_none_or(is_same) => {
            ByteRange::of(range, head.size)
        }
        _ => ByteRange::Whole,
    }
}

async fn answered(
    call: &Call,
    uri: &str,
    head: ArtifactHead,
    part: Option<BytePart>,
) -> AnswerResult {
    let tag = etag(&head.sha256);
    let matched = call.if_none_match.as_deref().is_some_and(|t| t == tag || t == "*");
    let range = part.map_or(0..head.size, |part| part.from..part.to);
    let (artifacts, tenant) = (call.flows().ledger.artifacts(), &call.who.tenant);
    // Erased since its head was read.
    let missing = || Refusal::not_found("artifact");
    let (body, length) = match (&head.object, part) {
        _ if matched => (Body::empty(), None),
        (Some(row), _) => {
            let reader = call.flows().objects.open(row).await?;
            let length = range.end.saturating_sub(range.start);
            (streamed(reader.stream(range), uri.to_owned()), Some(length))
        }
        (None, Some(_)) => {
            let bytes = artifacts.part(tenant, uri, &head.sha256, range).await?;
            (Body::from(bytes.ok_or_else(missing)?), None)
        }
        (None, None) => {
            let content = artifacts.read(tenant, uri).await?.ok_or_else(missing)?;
            (Body::from(content.bytes), None)
        }
    };
    let content_type = match head.kind.as_str() {
        "stdout" | "stderr" => "text/plain; charset=utf-8",
        "artifact_index" | "timings" | "raw" | "plan_card" | "json_diagnostic" => {
            "application/json"
        }
        _ => "application/octet-stream",
    };
    let sha256 = head.sha256.into();
    Ok(Answer::Bytes(ArtifactAnswer { sha256, content_type, body, length, part, matched }))
}

fn streamed(object: ObjectStream, uri: String) -> Body {
    Body::from_stream(stream::try_unfold((object, uri), |(mut object, uri)| async move {
        match object.next().await {
            Ok(piece) => io::Result::Ok(piece.map(|piece| (piece, (object, uri)))),
            Err(error) => {
                tracing::warn!(%uri, %error, "an artifact broke off");
                Err(io::Error::other("the artifact broke off"))
            }
        }
    }))
}

fn etag(sha256: &Digest) -> String {
    format!("\"{sha256}\"")
}
