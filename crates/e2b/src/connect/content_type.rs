//! Forms and codecs of the protocol, by the content type of a request.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use serde_json::Value;

use crate::answer;
use crate::connect::fault::{Fault, ReplyResult};
use crate::connect::protobuf;
use crate::connect::schema::Method;

const JSON: &str = "application/json";
const JSON_STREAM: &str = "application/connect+json";
pub(crate) const PROTO: &str = "application/proto";
const PROTO_STREAM: &str = "application/connect+proto";

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
    pub(crate) fn read(self, bytes: &[u8]) -> ReplyResult {
        match self {
            Self::Json => serde_json::from_slice(bytes)
                .map_err(|why| Fault::argument(format!("not JSON: {why}"))),
            Self::Proto(method) => protobuf::decode(bytes, method.request),
        }
    }

    pub(crate) fn written(self, value: &Value) -> Vec<u8> {
        match self {
            Self::Json => value.to_string().into_bytes(),
            Self::Proto(method) => protobuf::encode(value, method.reply),
        }
    }

    pub(crate) const fn stream_type(self) -> &'static str {
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
            Err(Box::new(answer::error(415, why)))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::routes::ROUTES;

    use super::*;

    #[test]
    fn both_codecs_are_spoken_uncompressed() {
        let list = ROUTES.iter().find_map(|route| route.endpoint.codec()).unwrap();
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
}
