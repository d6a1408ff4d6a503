//! Answers, whole and streamed.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::answer;
use crate::connect::content_type::{Codec, PROTO};
use crate::connect::fault::{Fault, ReplyResult};
use crate::connect::frames::{ending, framed};
use crate::connect::pieces::Pieces;

/// Frames on their way to a reader; beyond them the sender waits.
const QUEUED: usize = 16;

pub(crate) fn unary(replied: ReplyResult, codec: Codec) -> Response<Body> {
    match (replied, codec) {
        (Ok(value), Codec::Json) => answer::json(200, &value),
        (Ok(value), codec @ Codec::Proto(_)) => typed(Body::from(codec.written(&value)), PROTO),
        (Err(fault), _) => fault.response(),
    }
}

fn typed(body: Body, kind: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The writing half of a streamed answer. Its reader is gone once [`Replies::is_closed`].
#[derive(Debug, Clone)]
pub(crate) struct Replies(mpsc::Sender<Bytes>, Codec);

impl Replies {
    /// `false`: the reader is gone.
    pub(crate) async fn send(&self, value: &Value) -> bool {
        self.0.send(framed(0, &self.1.written(value))).await.is_ok()
    }

    /// The last frame.
    pub(crate) async fn end(&self, fault: Option<&Fault>) {
        let _ = self.0.send(ending(fault)).await;
    }

    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// A streamed answer and its writing half.
pub(crate) fn stream(codec: Codec) -> (Replies, Response<Body>) {
    let (sender, receiver) = mpsc::channel(QUEUED);
    let response = typed(Body::new(Pieces(receiver)), codec.stream_type());
    (Replies(sender, codec), response)
}

/// A stream that only says what is wrong.
pub(crate) fn failed(fault: &Fault, codec: Codec) -> Response<Body> {
    typed(Body::from(ending(Some(fault))), codec.stream_type())
}

/// How long a stream may be silent before a sign of life.
pub(crate) fn ping(seconds: Option<&HeaderValue>) -> Duration {
    let asked = seconds.and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
    Duration::from_secs(asked.unwrap_or(90).clamp(1, 3_600))
}
