//! One request to a monitor's socket, and its answer.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

/// Both answer in milliseconds, but for a start, which is bounded by what they do in it.
const CALL: Duration = Duration::from_secs(10);
/// Of an answer: a few lines of JSON.
const MAX_BYTES: usize = 64 * 1024;
/// Characters of a refusal.
const MAX_WORDS: usize = 200;

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MonitorCall {
    pub method: Method,
    pub path: &'static str,
    pub body: Option<Value>,
}

impl MonitorCall {
    pub fn get(path: &'static str) -> Self {
        Self { method: Method::GET, path, body: None }
    }

    pub fn put(path: &'static str, body: Value) -> Self {
        Self { method: Method::PUT, path, body: Some(body) }
    }
}

/// The answer, null where it has no body; or why there is none that helps, in words.
pub(super) async fn call(socket: &Path, wanted: &MonitorCall) -> Result<Value, String> {
    match tokio::time::timeout(CALL, exchange(socket, wanted)).await {
        Ok(Ok((true, bytes))) if bytes.is_empty() => Ok(Value::Null),
        Ok(Ok((true, bytes))) => serde_json::from_slice(&bytes).map_err(|error| error.to_string()),
        Ok(Ok((false, bytes))) => Err(refusal(&bytes)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it was silent".to_owned()),
    }
}

type CallFault = Box<dyn std::error::Error + Send + Sync>;

async fn exchange(socket: &Path, wanted: &MonitorCall) -> Result<(bool, Bytes), CallFault> {
    let stream = UnixStream::connect(socket).await?;
    let (mut requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let body = wanted.body.as_ref().map(serde_json::to_vec).transpose()?;
    let request = Request::builder()
        .method(&wanted.method)
        .uri(wanted.path)
        .header("host", "localhost")
        .header("accept", "application/json");
    let request = match body {
        Some(body) => request.header("content-type", "application/json").body(body.into())?,
        None => request.body(Full::<Bytes>::default())?,
    };
    let asked = async {
        let response = requests.send_request(request).await?;
        let is_good = response.status().is_success();
        let bytes = Limited::new(response.into_body(), MAX_BYTES).collect().await?.to_bytes();
        Ok((is_good, bytes))
    };
    tokio::pin!(asked);
    // The connection carries the exchange; its own end says nothing while an answer may be there.
    tokio::select! {
        biased;
        answer = &mut asked => answer,
        _ = connection => asked.await,
    }
}

/// Firecracker's `fault_message`; of anything else its first characters.
fn refusal(bytes: &[u8]) -> String {
    let said: Option<Value> = serde_json::from_slice(bytes).ok();
    let fault = said.as_ref().and_then(|said| said.get("fault_message")?.as_str());
    let text = String::from_utf8_lossy(bytes);
    let words: String = fault.unwrap_or(&text).trim().chars().take(MAX_WORDS).collect();
    if words.is_empty() { "without a word".to_owned() } else { words }
}
