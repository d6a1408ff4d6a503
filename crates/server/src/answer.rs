//! What a handler answers, and how errors look.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_flows::Error;
use cofferdam_http::{refuse, with_json};
use cofferdam_ledger::LedgerError;
use serde::Serialize;
use serde_json::Value;

pub(crate) enum Answer {
    /// JSON with a status.
    Json(StatusCode, Value),
    /// Bytes of an artifact; the ETag is their digest.
    Bytes { sha256: String, content_type: &'static str, bytes: Vec<u8>, matched: bool },
    /// A page of ours whose script has this nonce. Its address is a secret, so nothing keeps or tells it.
    Page { html: String, nonce: String },
    /// Lines or events as they come.
    Stream { content_type: &'static str, body: Body },
}

pub(crate) type AnswerResult = Result<Answer, Error>;

/// JSON with a status.
pub(crate) fn json<T: Serialize>(status: StatusCode, value: &T) -> AnswerResult {
    let value = serde_json::to_value(value).map_err(|e| {
        Refusal::new(ErrorCode::Internal, format!("an answer has no JSON form: {e}"))
    })?;
    Ok(Answer::Json(status, value))
}

pub(crate) fn ok<T: Serialize>(value: &T) -> AnswerResult {
    json(StatusCode::OK, value)
}

/// A response from an answer. Errors are logged here, once, with their cause; the caller gets the
/// public half.
pub(crate) fn respond(answered: AnswerResult) -> Response<Body> {
    match answered {
        Ok(Answer::Json(status, value)) => with_json(status, &value),
        Ok(Answer::Bytes { sha256, content_type, bytes, matched }) => {
            let body = if matched { Body::empty() } else { Body::from(bytes) };
            let mut response = Response::new(body);
            if matched {
                *response.status_mut() = StatusCode::NOT_MODIFIED;
            }
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            // What a task wrote is shown by no browser as a page of ours.
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
            if let Ok(tag) = HeaderValue::from_str(&format!("\"{sha256}\"")) {
                headers.insert(header::ETAG, tag);
            }
            response
        }
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

fn log(error: &Error) {
    match error {
        Error::Refused(refusal) => tracing::debug!(code = refusal.code.as_str(), "{refusal}"),
        Error::Ledger(LedgerError::Unavailable(source)) => {
            tracing::warn!(%source, "the database cannot be reached")
        }
        other => tracing::error!(error = ?other, "a request failed"),
    }
}
