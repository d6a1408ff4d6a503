//! What a handler answers, and how errors look.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_flows::Error;
use cofferdam_http::{refuse, with_json};
use cofferdam_ledger::LedgerError;
use serde::Serialize;
use serde_json::Value;

pub(crate) enum Answer {
    /// JSON with a status.
    Json(StatusCode, Value),
    /// A page of a list as JSON; the header `Link` leads to the page after it, where there is one.
    List { rows: Value, next: Option<String> },
    /// An artifact; the ETag is its digest.
    Bytes(ArtifactAnswer),
    /// A range behind the last byte of an artifact of this size.
    BeyondEnd { size: u64 },
    /// A page of ours whose script has this nonce. Its address is a secret, so nothing keeps or tells it.
    Page { html: String, nonce: String },
    /// An archive as it is written.
    Archive(ArchiveAnswer),
    /// Lines or events as they come.
    Stream { content_type: &'static str, body: Body },
}

/// An archive of a run's files.
pub(crate) struct ArchiveAnswer {
    pub content_type: &'static str,
    /// What a browser saves it as: an id and an extension.
    pub name: String,
    pub body: Body,
}

/// An artifact, or one range of it.
pub(crate) struct ArtifactAnswer {
    /// Digest of the whole artifact.
    pub sha256: String,
    pub content_type: &'static str,
    /// All of its bytes, or those of `part`, here or as they come.
    pub body: Body,
    /// Number of bytes of a body that comes.
    pub length: Option<u64>,
    pub part: Option<BytePart>,
    /// The caller has it already.
    pub matched: bool,
}

/// Which bytes of an artifact are answered: `to` is behind the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BytePart {
    pub from: u64,
    pub to: u64,
    pub size: u64,
}

pub(crate) type AnswerResult = Result<Answer, Error>;

/// JSON with a status.
pub(crate) fn json<T: Serialize>(status: StatusCode, value: &T) -> AnswerResult {
    Ok(Answer::Json(status, json_of(value)?))
}

/// A page of a list; `next` is the path of the page after it.
pub(crate) fn list<T: Serialize>(rows: &[T], next: Option<String>) -> AnswerResult {
    Ok(Answer::List { rows: json_of(rows)?, next })
}

fn json_of<T: Serialize + ?Sized>(value: &T) -> Result<Value, Refusal> {
    serde_json::to_value(value)
        .map_err(|e| Refusal::new(ErrorCode::Internal, format!("an answer has no JSON form: {e}")))
}

pub(crate) fn ok<T: Serialize>(value: &T) -> AnswerResult {
    json(StatusCode::OK, value)
}

/// A response from an answer. Errors are logged here, once, with their cause; the caller gets the
/// public half.
pub(crate) fn respond(answered: AnswerResult) -> Response<Body> {
    match answered {
        Ok(Answer::Json(status, value)) => with_json(status, &value),
        Ok(Answer::List { rows, next }) => {
            let mut response = with_json(StatusCode::OK, &rows);
            let link = next.map(|next| HeaderValue::from_str(&format!("<{next}>; rel=\"next\"")));
            if let Some(Ok(link)) = link {
                response.headers_mut().insert(header::LINK, link);
            }
            response
        }
        Ok(Answer::Bytes(artifact)) => bytes(artifact),
        Ok(Answer::BeyondEnd { size }) => beyond_end(size),
        Ok(Answer::Page { html, nonce }) => {
            let mut response = Response::new(Body::from(html));
            let policy = format!(
                "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; \
                 form-action 'none'; frame-ancestors 'none'"
            );
            let headers = response.headers_mut();
            let fixed = [
                (header::CONTENT_TYPE, "text/html; charset=utf-8"),
                (header::CACHE_CONTROL, "no-store"),
                (header::REFERRER_POLICY, "no-referrer"),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            ];
            for (name, value) in fixed {
                headers.insert(name, HeaderValue::from_static(value));
            }
            if let Ok(policy) = HeaderValue::from_str(&policy) {
                headers.insert(header::CONTENT_SECURITY_POLICY, policy);
            }
            response
        }
        Ok(Answer::Archive(archive)) => archived(archive),
        Ok(Answer::Stream { content_type, body }) => {
            let mut response = Response::new(body);
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        Err(error) => {
            log(&error);
            refuse(error.refusal())
        }
    }
}

fn archived(archive: ArchiveAnswer) -> Response<Body> {
    let ArchiveAnswer { content_type, name, body } = archive;
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(name) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    response
}

fn bytes(artifact: ArtifactAnswer) -> Response<Body> {
    let ArtifactAnswer { sha256, content_type, body, length, part, matched } = artifact;
    let mut response = Response::new(if matched { Body::empty() } else { body });
    let part = part.filter(|_| !matched);
    *response.status_mut() = match (matched, part) {
        (true, _) => StatusCode::NOT_MODIFIED,
        (false, Some(_)) => StatusCode::PARTIAL_CONTENT,
        (false, None) => StatusCode::OK,
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some(length) = length.filter(|_| !matched) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    // What a task wrote is shown by no browser as a page of ours.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{sha256}\"")) {
        headers.insert(header::ETAG, tag);
    }
    if let Some(BytePart { from, to, size }) = part {
        let last = to.saturating_sub(1);
        content_range(headers, &format!("bytes {from}-{last}/{size}"));
    }
    response
}

fn beyond_end(size: u64) -> Response<Body> {
    let message = format!("the artifact has {size} bytes, none of them in this range");
    let refusal = Refusal::new(ErrorCode::RangeNotSatisfiable, message);
    let mut response = refuse(refusal.with(serde_json::json!({"size": size})));
    content_range(response.headers_mut(), &format!("bytes */{size}"));
    response
}

fn content_range(headers: &mut HeaderMap, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(header::CONTENT_RANGE, value);
    }
}

fn log(error: &Error) {
    match error {
        Error::Refused(refusal) => tracing::debug!(code = refusal.code.as_str(), "{refusal}"),
        Error::Ledger(LedgerError::Unavailable(source)) => {
            tracing::warn!(%source, "the database cannot be reached")
        }
        other => tracing::error!(error = ?other, "a request failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(part: Option<BytePart>, matched: bool) -> Response<Body> {
        let artifact = ArtifactAnswer {
            sha256: "a".repeat(64),
            content_type: "text/plain",
            body: Body::from("tail"),
            length: None,
            part,
            matched,
        };
        respond(Ok(Answer::Bytes(artifact)))
    }

    #[test]
    fn a_page_of_a_list_leads_to_the_page_after_it() {
        let link = |next: Option<&str>| {
            let response = respond(list(&[1], next.map(str::to_owned)));
            assert_eq!(response.status(), 200);
            let link = response.headers().get(header::LINK);
            link.map(|link| link.to_str().unwrap().to_owned())
        };
        assert_eq!(link(None), None);
        assert_eq!(
            link(Some("/api/runs?after=rn_1")).as_deref(),
            Some("</api/runs?after=rn_1>; rel=\"next\"")
        );
    }

    #[test]
    fn a_range_is_answered_as_such_and_what_the_caller_has_as_unchanged() {
        let range = |response: &Response<Body>| {
            let value = response.headers().get(header::CONTENT_RANGE);
            value.map(|value| value.to_str().unwrap().to_owned())
        };
        let part = Some(BytePart { from: 96, to: 100, size: 100 });
        for (part, matched, status, wanted) in [
            (None, false, 200, None),
            (part, false, 206, Some("bytes 96-99/100")),
            (part, true, 304, None),
        ] {
            let response = answered(part, matched);
            assert_eq!(response.status(), status);
            assert_eq!(range(&response).as_deref(), wanted);
            assert_eq!(response.headers()[header::ETAG], format!("\"{}\"", "a".repeat(64)));
        }
        let beyond = respond(Ok(Answer::BeyondEnd { size: 100 }));
        assert_eq!(beyond.status(), 416);
        assert_eq!(range(&beyond).as_deref(), Some("bytes */100"));
    }
}
