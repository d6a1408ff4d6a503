//! Input for commands.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::connect::fault::{Fault, ReplyResult};
use crate::connect::message::{self, Messages};
use crate::connect::reply;
use crate::envd::call::{Rpc, StreamRpc};
use crate::envd::process::select::SelectRequest;
use crate::envd::state::process::Process;
use crate::envd::state::processes::{Selector, running};

/// Bytes of one piece of input: a few wait for a command which does not read, and beyond them its sender.
const INPUT_BYTES: usize = 64 * 1024;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SendInput {
    process: Selector,
    input: Input,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamInput {
    start: Option<SelectRequest>,
    data: Option<Data>,
    #[serde(rename = "keepalive")]
    _keepalive: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    input: Input,
}

async fn put(process: &Process, input: &Input) -> Result<(), Fault> {
    let text = match (&input.stdin, &input.pty) {
        (Some(text), None) | (None, Some(text)) => text,
        _ => return Err(Fault::argument("input is stdin or pty")),
    };
    if input.pty.is_some() != process.known.is_pty {
        return Err(Fault::argument(
            "pty input is for processes with a terminal, stdin for the others",
        ));
    }
    let bytes = STANDARD.decode(text).map_err(|_| Fault::argument("input is not base64"))?;
    let (input, mut bytes) = (process.input()?, Bytes::from(bytes));
    while !bytes.is_empty() {
        let piece = bytes.split_to(INPUT_BYTES.min(bytes.len()));
        let sent = input.send(piece).await;
        sent.map_err(|_| Fault::new("failed_precondition", "the process reads no more"))?;
    }
    Ok(())
}

/// Gives a command a piece of input.
pub(crate) async fn send(call: Rpc) -> ReplyResult {
    let SendInput { process, input } = message::parse(call.message)?;
    let process = running(&call.envd, &process)?;
    put(&process, &input).await.map(|()| json!({}))
}

/// Closes a command's input.
pub(crate) async fn close(call: Rpc) -> ReplyResult {
    let SelectRequest { process } = message::parse(call.message)?;
    running(&call.envd, &process)?.close_input();
    Ok(json!({}))
}

/// `StreamInput`: the process first, then pieces.
pub(crate) async fn stream(call: StreamRpc) -> Response<Body> {
    let StreamRpc { envd, codec, body, .. } = call;
    let mut messages = Messages::of(body, codec);
    let mut process: Option<Arc<Process>> = None;
    let taken = async {
        while let Some(message) = messages.next().await? {
            let StreamInput { start, data, _keepalive } = message::parse(message)?;
            if let Some(start) = start {
                process = Some(running(&envd, &start.process)?);
            }
            if let Some(data) = data {
                let process = process.as_ref();
                let process = process
                    .ok_or_else(|| Fault::argument("the first message names the process"))?;
                put(process, &data.input).await?;
            }
        }
        Ok::<_, Fault>(())
    };
    match taken.await {
        Ok(()) => {
            let (replies, response) = reply::stream(codec);
            tokio::spawn(async move {
                replies.send(&json!({})).await;
                replies.end(None).await;
            });
            response
        }
        Err(fault) => reply::failed(&fault, codec),
    }
}
