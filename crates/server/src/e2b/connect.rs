//! The Connect protocol over HTTP/1.1, as far as envd's clients speak it: JSON or protobuf, uncompressed.
//!
//! ```text
//! unary    application/json, application/proto     body = the message; error = HTTP status and {"code","message"}
//! stream   application/connect+json, connect+proto  frames [flags u8][length u32 BE][message]; flag 2 ends: {} or {"error":{..}}
//! ```
//! The services are written in JSON; a message in protobuf is read into it, and written from it ([`proto`]). Errors are JSON in both.

use cofferdam_ambient::own;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::proto;
use super::schema::Method;
use super::shape::{self, MAX_JSON_BYTES};
use crate::serve::BODY_PATIENCE;

const JSON: &str = "application/json";
const JSON_STREAM: &str = "application/connect+json";
const PROTO: &str = "application/proto";
const PROTO_STREAM: &str = "application/connect+proto";
const HEAD: usize = 5;
const COMPRESSED: u8 = 1;
const END: u8 = 2;
/// Frames on their way to a reader; beyond them the sender waits.
const QUEUED: usize = 16;

/// An error as the protocol knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub code: &'static str,
    pub message: String,
}

impl Fault {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: own::hidden(&message.into()).into_owned() }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self::new("invalid_argument", message)
    }

    pub(crate) fn missing(message: impl Into<String>) -> Self {
        Self::new("not_found", message)
    }

    fn status(&self) -> u16 {
        match self.code {
            "invalid_argument" | "failed_precondition" | "out_of_range" => 400,
            "unauthenticated" => 401,
            "permission_denied" => 403,
            "not_found" => 404,
            "already_exists" | "aborted" => 409,
            "resource_exhausted" => 429,
            "unimplemented" => 501,
            "unavailable" => 503,
            "deadline_exceeded" => 504,
            _ => 500,
        }
    }

    fn json(&self) -> Value {
        json!({"code": self.code, "message": self.message})
    }

    pub(crate) fn response(&self) -> Response<Body> {
        shape::json_of(self.status(), &self.json())
    }
}

pub(crate) type Replied = Result<Value, Fault>;

/// What a client sends and expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Unary,
    Stream,
}

/// How messages lie on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    Json,
    /// The messages of the method.
    Proto(&'static Method),
}

impl Codec {
    fn read(self, bytes: &[u8]) -> Replied {
        match self {
            Self::Json => serde_json::from_slice(bytes)
                .map_err(|why| Fault::argument(format!("not JSON: {why}"))),
            Self::Proto(method) => proto::decode(bytes, method.request),
        }
    }

    fn written(self, value: &Value) -> Vec<u8> {
        match self {
            Self::Json => value.to_string().into_bytes(),
            Self::Proto(method) => proto::encode(value, method.reply),
        }
    }

    const fn stream_type(self) -> &'static str {
        match self {
            Self::Json => JSON_STREAM,
            Self::Proto(_) => PROTO_STREAM,
        }
    }
}

/// What a request's type says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentType {
    pub form: Form,
    pub codec: Codec,
}

/// The type of a request, or the answer to one that we do not speak. `method`: the one that is called, where it
/// is known.
pub(crate) fn spoken(
    headers: &HeaderMap,
    method: Option<&'static Method>,
) -> Result<ContentType, Box<Response<Body>>> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let kind = text(header::CONTENT_TYPE).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let packed = [
        text(header::CONTENT_ENCODING),
        headers.get("connect-content-encoding").and_then(|v| v.to_str().ok()),
    ];
    if packed.into_iter().flatten().any(|coding| coding != "identity") {
        let fault = Fault::new("unimplemented", "compressed requests are not supported");
        return Err(Box::new(fault.response()));
    }
    let of = |form, codec| Ok(ContentType { form, codec });
    match (kind.as_str(), method) {
        (JSON, _) => of(Form::Unary, Codec::Json),
        (JSON_STREAM, _) => of(Form::Stream, Codec::Json),
        (PROTO, Some(method)) => of(Form::Unary, Codec::Proto(method)),
        (PROTO_STREAM, Some(method)) => of(Form::Stream, Codec::Proto(method)),
        (PROTO | PROTO_STREAM, None) => {
            Err(Box::new(Fault::new("unimplemented", "the service has no such method").response()))
        }
        (other, _) => {
            let why = format!(
                "content type {other:?} is not supported; send {JSON}, {JSON_STREAM}, {PROTO} or {PROTO_STREAM}"
            );
            Err(Box::new(shape::error(415, why)))
        }
    }
}

pub(crate) fn unary(replied: Replied, codec: Codec) -> Response<Body> {
    match (replied, codec) {
        (Ok(value), Codec::Json) => shape::json_of(200, &value),
        (Ok(value), codec @ Codec::Proto(_)) => typed(Body::from(codec.written(&value)), PROTO),
        (Err(fault), _) => fault.response(),
    }
}

fn typed(body: Body, kind: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A message as the type of its method. Unknown fields are refused, as everywhere.
pub(crate) fn parse<T: DeserializeOwned>(value: Value) -> Result<T, Fault> {
    serde_json::from_value(value).map_err(|why| Fault::argument(format!("the message: {why}")))
}

/// The one message of a unary request.
pub(crate) async fn message(body: Incoming, codec: Codec) -> Result<Value, Fault> {
    let bytes = shape::bytes(body).await;
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

/// The next whole frame of a buffer: its flags and its payload.
fn frame(buffer: &mut BytesMut) -> Result<Option<(u8, Bytes)>, Fault> {
    let mut head = &**buffer;
    if head.remaining() < HEAD {
        return Ok(None);
    }
    let flags = head.get_u8();
    let length = usize::try_from(head.get_u32()).unwrap_or(usize::MAX);
    if length > MAX_JSON_BYTES {
        let why = format!("a message of {length} bytes; at most {MAX_JSON_BYTES} are taken");
        return Err(Fault::new("resource_exhausted", why));
    }
    if head.remaining() < length {
        return Ok(None);
    }
    buffer.advance(HEAD);
    Ok(Some((flags, buffer.split_to(length).freeze())))
}

fn framed(flags: u8, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HEAD + payload.len());
    out.put_u8(flags);
    out.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    out.put_slice(payload);
    out.freeze()
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

/// The last frame, which is JSON in both codecs.
fn ending(fault: Option<&Fault>) -> Bytes {
    let value = fault.map_or_else(|| json!({}), |fault| json!({"error": fault.json()}));
    framed(END, value.to_string().as_bytes())
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

/// A body of pieces as they come.
pub(crate) struct Pieces(pub mpsc::Receiver<Bytes>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_hostile::fuzz;

    use super::super::schema::{FILESYSTEM, PROCESS};
    use super::*;

    #[test]
    fn frames_are_read_whole_and_never_beyond_their_bound() {
        let whole = framed(0, b"{\"a\":1}");
        for cut in 0..whole.len() {
            let mut buffer = BytesMut::from(&whole[..cut]);
            assert_eq!(frame(&mut buffer), Ok(None), "{cut}");
        }
        let mut buffer = BytesMut::from(&whole[..]);
        assert_eq!(frame(&mut buffer), Ok(Some((0, Bytes::from_static(b"{\"a\":1}")))));
        assert!(buffer.is_empty());
        let mut huge = BytesMut::from(&[0, 255, 255, 255, 255][..]);
        assert_eq!(frame(&mut huge).unwrap_err().code, "resource_exhausted");
    }

    #[test]
    fn both_codecs_are_spoken_uncompressed() {
        let list = &PROCESS[0].1;
        let of = |kind: &str, coding: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            if let Some(coding) = coding {
                headers.insert(header::CONTENT_ENCODING, coding.parse().unwrap());
            }
            spoken(&headers, Some(list)).map_err(|response| response.status().as_u16())
        };
        let (json, proto) = (Codec::Json, Codec::Proto(list));
        let spoken = |form, codec| Ok(ContentType { form, codec });
        assert_eq!(of("application/json; charset=utf-8", None), spoken(Form::Unary, json));
        assert_eq!(of("application/connect+json", Some("identity")), spoken(Form::Stream, json));
        assert_eq!(of("application/proto", None), spoken(Form::Unary, proto));
        assert_eq!(of("application/connect+proto", None), spoken(Form::Stream, proto));
        assert_eq!(of("application/grpc", None), Err(415));
        assert_eq!(of("application/proto", Some("gzip")), Err(501));
        assert_eq!(of("application/json", Some("gzip")), Err(501));
    }

    #[test]
    fn fuzz_frames_of_connect_are_read_however_they_are_cut() {
        let frames = |bytes: &[u8], step: usize| {
            let (mut buffer, mut found) = (BytesMut::new(), Vec::new());
            for piece in bytes.chunks(step) {
                buffer.extend_from_slice(piece);
                loop {
                    match frame(&mut buffer) {
                        Ok(Some(whole)) => found.push(whole),
                        Ok(None) => break,
                        Err(fault) => return (found, Some(fault.code)),
                    }
                }
            }
            (found, None)
        };
        fuzz!("connect", |bytes: &[u8]| {
            let whole = frames(bytes, bytes.len().max(1));
            assert_eq!(frames(bytes, 3), whole);
            for (_, payload) in &whole.0 {
                drop(Codec::Json.read(payload));
                for (_, method) in PROCESS.iter().chain(&FILESYSTEM) {
                    drop(Codec::Proto(method).read(payload));
                }
            }
        });
    }
}
