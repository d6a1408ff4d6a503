//! Messages of requests.

use bytes::BytesMut;
use cofferdam_http::BODY_PATIENCE;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::body;
use crate::connect::content_type::Codec;
use crate::connect::fault::Fault;
use crate::connect::frames::{COMPRESSED, END, frame};

/// A message as the type of its method. Unknown fields are refused, as everywhere.
pub(crate) fn parse<T: DeserializeOwned>(value: Value) -> Result<T, Fault> {
    serde_json::from_value(value).map_err(|why| Fault::argument(format!("the message: {why}")))
}

/// The one message of a unary request.
pub(crate) async fn message(body: Incoming, codec: Codec) -> Result<Value, Fault> {
    let bytes = body::bytes(body).await;
    let bytes = bytes
        .map_err(|_| Fault::new("resource_exhausted", "the message is too large or broke off"))?;
    match codec {
        Codec::Json if bytes.is_empty() => Ok(json!({})),
        codec => codec.read(&bytes),
    }
}

/// The messages of a stream as they come.
pub(crate) struct Messages {
    body: Incoming,
    buffer: BytesMut,
    codec: Codec,
}

impl Messages {
    pub(crate) fn of(body: Incoming, codec: Codec) -> Self {
        Self { body, buffer: BytesMut::new(), codec }
    }

    /// The first message of a stream, which comes at once.
    pub(crate) async fn first(body: Incoming, codec: Codec) -> Result<Value, Fault> {
        let mut messages = Self::of(body, codec);
        let late = |_| Fault::new("deadline_exceeded", "the message did not arrive in time");
        let first = tokio::time::timeout(BODY_PATIENCE, messages.next()).await.map_err(late)?;
        first?.ok_or_else(|| Fault::argument("no message"))
    }

    /// The next message; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>, Fault> {
        loop {
            if let Some((flags, payload)) = frame(&mut self.buffer)? {
                if flags & COMPRESSED != 0 {
                    return Err(Fault::new(
                        "unimplemented",
                        "compressed messages are not supported",
                    ));
                }
                if flags & END != 0 {
                    return Ok(None);
                }
                return self.codec.read(&payload).map(Some);
            }
            match self.body.frame().await {
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Fault::argument("the stream ends within a message")),
                Some(Err(_)) => return Err(Fault::new("canceled", "the stream broke off")),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.buffer.extend_from_slice(&bytes);
                    }
                }
            }
        }
    }
}
