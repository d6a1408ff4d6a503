//! Bodies of requests, within their bounds of size and time.

use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use cofferdam_http::BODY_PATIENCE;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use crate::answer::error;

/// Bytes of a JSON body: a command line and its environment, or a page of input, and JSON escapes.
pub(crate) const MAX_JSON_BYTES: usize = 4 * 1024 * 1024;
/// Bytes that are read and dropped of a body whose request is refused, and how long that may take: a file of usual size
/// over a usual line.
const DRAINED_BYTES: usize = 64 * 1024 * 1024;
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

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
