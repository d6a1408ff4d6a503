//! Answers and errors as E2B's clients read them.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode, header};
use cofferdam_ambient::own;
use cofferdam_contracts::error::ErrorCode;
use cofferdam_flows::Error;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::serve::BODY_PATIENCE;

/// Bytes of a JSON body: a command line and its environment, or a page of input, and JSON escapes.
pub(crate) const MAX_JSON_BYTES: usize = 4 * 1024 * 1024;
/// Bytes that are read and dropped of a body whose request is refused, and how long that may take: a file of usual size
/// over a usual line.
const DRAINED_BYTES: usize = 64 * 1024 * 1024;
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);
/// Seconds after which a client may try again where there is no room now.
const RETRY_S: &str = "5";
/// Whether a client may send the request again by itself; without it, it does after a 429.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// JSON with a status.
pub(crate) fn json_of(status: u16, value: &Value) -> Response<Body> {
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

/// An error.
pub(crate) fn error(status: u16, message: impl Into<String>) -> Response<Body> {
    let message = message.into();
    json_of(status, &json!({"code": status, "message": own::hidden(&message)}))
}

/// Clients read this message word by word.
pub(crate) fn not_found(id: &str) -> Response<Body> {
    let id: String = id.chars().take(64).collect();
    let message = "The sandbox was not found";
    json_of(502, &json!({"sandboxId": id, "code": 502, "message": message}))
}

/// Clients read this message word by word.
pub(crate) fn port_closed(id: &str, port: u16) -> Response<Body> {
    let message = "The sandbox is running but port is not open";
    json_of(502, &json!({"sandboxId": id, "port": port, "code": 502, "message": message}))
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

/// The body, within its bounds of size and time.
pub(crate) async fn bytes(mut body: Incoming) -> Result<Vec<u8>, Response<Body>> {
    let gathered = Limited::new(&mut body, MAX_JSON_BYTES).collect();
    match tokio::time::timeout(BODY_PATIENCE, gathered).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes().to_vec()),
        Ok(Err(_)) => {
            drain(&mut body).await;
            let why = format!("the body broke off or has more than {MAX_JSON_BYTES} bytes");
            Err(error(413, why))
        }
        Err(_) => Err(error(408, "the body did not arrive in time")),
    }
}

/// Reads and drops what a client still sends, up to a bound: closing on it would reset its connection before it has read
/// why its request is refused.
pub(crate) async fn drain(body: &mut Incoming) {
    let mut left = DRAINED_BYTES;
    let drained = async {
        while let Some(Ok(frame)) = body.frame().await {
            let size = frame.data_ref().map_or(0, bytes::Bytes::len);
            let Some(rest) = left.checked_sub(size) else { return };
            left = rest;
        }
    };
    // Where it takes longer, the connection is reset after all.
    let _ = tokio::time::timeout(DRAIN_PATIENCE, drained).await;
}

/// A JSON body; an empty one is an empty object.
pub(crate) async fn body<T: DeserializeOwned>(body: Incoming) -> Result<T, Response<Body>> {
    let bytes = bytes(body).await?;
    let text = if bytes.is_empty() { b"{}".as_slice() } else { &bytes };
    serde_json::from_slice(text).map_err(|why| error(400, format!("the body: {why}")))
}

/// A value of the query, decoded. The first one counts.
pub(crate) fn query(query: &str, name: &str) -> Option<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)?;
    decoded(value)
}

/// Percent-decoded text; `None` where it is not UTF-8.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    let decoded = percent_encoding::percent_decode_str(&spaced).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

/// A time as these clients write it: RFC 3339 in UTC.
pub(crate) fn time(ms: i64) -> String {
    cofferdam_contracts::instant::Instant::from_ms(ms).to_string()
}

/// How long a stream may be silent before a sign of life.
pub(crate) fn ping(seconds: Option<&HeaderValue>) -> Duration {
    let asked = seconds.and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
    Duration::from_secs(asked.unwrap_or(90).clamp(1, 3_600))
}
