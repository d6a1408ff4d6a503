//! Answers and errors as E2B's clients read them.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode, header};
use cofferdam_ambient::own;
use cofferdam_contracts::error::ErrorCode;
use cofferdam_flows::Error;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

/// Seconds after which a client may try again where there is no room now.
const RETRY_S: &str = "5";
/// Whether a client may send the request again by itself; without it, it does after a 429.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// An answer of any type, with a status.
pub(crate) fn json_of(status: u16, answer: &impl Serialize) -> Response<Body> {
    // By way of a value: fields are in the order of their names, whatever type they are of.
    serde_json::to_value(answer).map_or_else(|_| empty(500), |value| json(status, &value))
}

/// JSON with a status. The value is written as it is: of a large one there is no copy.
pub(crate) fn json(status: u16, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Nothing but a status.
pub(crate) fn empty(status: u16) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// An error of the control plane and of files, and of envd where it refuses a request's sandbox, token, method or content type.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ErrorAnswer {
    /// The status of the answer.
    code: u16,
    message: String,
}

/// Answers with a JSON error; paths of this host's own directories are hidden in it.
pub(crate) fn error(status: u16, message: impl Into<String>) -> Response<Body> {
    let message = message.into();
    json_of(status, &ErrorAnswer { code: status, message: own::hidden(&message).into_owned() })
}

pub(crate) fn bad_request(why: impl Into<String>) -> Response<Body> {
    error(400, why)
}

/// Clients read this message word by word.
pub(crate) fn not_found(id: &str) -> Response<Body> {
    let id: String = id.chars().take(64).collect();
    let message = "The sandbox was not found";
    json(502, &json!({"sandboxId": id, "code": 502, "message": message}))
}

/// Clients read this message word by word.
pub(crate) fn port_closed(id: &str, port: u16) -> Response<Body> {
    let message = "The sandbox is running but port is not open";
    json(502, &json!({"sandboxId": id, "port": port, "code": 502, "message": message}))
}

/// What our own code refused. The cause of a fault of ours is for the operator's log.
pub(crate) fn refused(fault: Error) -> Response<Body> {
    let said = (!matches!(fault, Error::Refused(_))).then(|| format!("{fault:?}"));
    let refusal = fault.refusal();
    // A caller's mistake that the database saw first is no fault of this server.
    if let Some(error) = said.filter(|_| refusal.code.status() >= 500) {
        tracing::error!(error, "a request of an E2B client failed");
    }
    let message = match refusal.code {
        // E2B's words, by which programs such as harbor wait for a place.
        ErrorCode::TooManySandboxes => {
            format!("maximum number of concurrent E2B sandboxes reached: {}", refusal.message)
        }
        _ => refusal.message,
    };
    let mut response = error(refusal.code.status(), message);
    let headers = response.headers_mut();
    match refusal.code {
        ErrorCode::Unavailable => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_S));
        }
        // Nothing that a client waits for makes room: its user hears at once.
        ErrorCode::TooManySandboxes => {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        _ => {}
    }
    response
}

/// A page, with the token of the next one.
pub(crate) fn page(rows: &impl Serialize, next: Option<&str>) -> Response<Body> {
    let mut response = json_of(200, rows);
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(next).ok()) {
        response.headers_mut().insert("x-next-token", next);
    }
    response
}

/// A time as these clients write it: RFC 3339 in UTC.
pub(crate) fn time(ms: i64) -> String {
    cofferdam_contracts::instant::Instant::from_ms(ms).to_string()
}
