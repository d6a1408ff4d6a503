//! The endpoint of models inside a sandbox: plain HTTP on its own loopback, in the wire formats of providers.
//!
//! ```text
//! agent -> 127.0.0.53:3129 /v1/chat/completions -> ModelGateway (budget, key, provider) -> answer, as it comes
//! ```
//! No key is inside: what the agent sends as one is a placeholder, and no header of it is passed on that could
//! be one. **This module knows neither providers nor budgets; who decides stands behind [`ModelGateway`](super::model_gateway::ModelGateway).**

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context as Poll_, Poll};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contracts::model::{MAX_REQUEST_BYTES, ModelProtocol, refusal_body};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::context::{Client, FIRST_WORD_MS};
use super::model_gateway::{ModelCall, ModelCut, ModelEndpoint, ModelReply};
use super::ports::{ADDRESS, MODEL_PORT};

/// A request's body arrives within this time, from a busy sandbox too.
const BODY_MS: u64 = 60_000;
const MIB: usize = 1024 * 1024;
/// Of the body of a request that is refused, at most so much is read and thrown away: a client that still writes when
/// its connection is closed loses the answer.
const DRAINED_BYTES: usize = 4 * MAX_REQUEST_BYTES;
const DRAIN_MS: u64 = 10_000;
/// What clients send as a key: the real one is added outside.
pub(crate) const PLACEHOLDER: &str = "cofferdam-placeholder";

/// Headers of a request that a provider gets. None of them is a credential.
const PASSED: [&str; 6] =
    ["accept", "content-type", "user-agent", "anthropic-version", "anthropic-beta", "openai-beta"];

/// Where clients inside find the endpoint, in the form that OpenAI's take.
#[must_use]
pub fn model_base_url() -> String {
    format!("http://{ADDRESS}:{MODEL_PORT}/v1")
}

/// Variables by which agents and clients find the endpoint.
pub(crate) fn variables() -> [(&'static str, String); 4] {
    let root = format!("http://{ADDRESS}:{MODEL_PORT}");
    [
        ("OPENAI_BASE_URL", format!("{root}/v1")),
        ("OPENAI_API_KEY", PLACEHOLDER.to_owned()),
        ("ANTHROPIC_BASE_URL", root),
        ("ANTHROPIC_API_KEY", PLACEHOLDER.to_owned()),
    ]
}

type ModelAnswer = Response<BoxBody<Bytes, ModelCut>>;

/// Serves one connection to its end.
pub(crate) async fn serve<C: Client>(stream: C, door: ModelEndpoint) {
    let service = service_fn(|request: Request<Incoming>| {
        let door = door.clone();
        async move {
            let (head, mut body) = request.into_parts();
            let told = match answer(&head, &mut body, &door).await {
                Ok(told) => told,
                Err(refused) => {
                    drain(&mut body).await;
                    refused
                }
            };
            Ok::<_, Infallible>(told)
        }
    });
    let served = server::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(FIRST_WORD_MS))
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the endpoint of models ended");
    }
}

/// Reads what is left of a body, within bounds, and keeps nothing of it.
async fn drain(body: &mut Incoming) {
    let read = async {
        let mut left = DRAINED_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let size = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(size) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(DRAIN_MS), read).await;
}

async fn answer(
    head: &Parts,
    body: &mut Incoming,
    door: &ModelEndpoint,
) -> Result<ModelAnswer, ModelAnswer> {
    let path = head.uri.path();
    let guess = match path.contains("messages") {
        true => ModelProtocol::AnthropicMessages,
        false => ModelProtocol::OpenaiChat,
    };
    let refuse = |protocol, status, code: &str, words: &str| {
        let body = refusal_body(protocol, code, words).to_string();
        let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed();
        let mut told = Response::new(body);
        *told.status_mut() = status;
        told.headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        told.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
        told
    };
    if let (&Method::GET, "/v1/models" | "/models", Some(gateway)) =
        (&head.method, path, &door.gateway)
    {
        return Ok(listed(&gateway.clone().models().await, head));
    }
    let counted = ModelProtocol::counted_at(path);
    let Some(protocol) = counted.or_else(|| ModelProtocol::of_path(path)) else {
        let words = "the endpoint has chat/completions, responses, messages, messages/count_tokens and models only";
        return Err(refuse(guess, StatusCode::NOT_FOUND, "no_such_endpoint", words));
    };
    if head.headers.contains_key(header::UPGRADE) {
        // By this status codex gives its websocket up at once; by any other it tries for 20 s.
        let words = "the endpoint has no websockets; send the request by POST";
        return Err(refuse(protocol, StatusCode::UPGRADE_REQUIRED, "no_websocket", words));
    }
    if head.method != Method::POST {
        return Err(refuse(protocol, StatusCode::METHOD_NOT_ALLOWED, "method", "only POST"));
    }
    let Some(gateway) = door.gateway.clone() else {
        let words = "this sandbox may call no model now";
        return Err(refuse(protocol, StatusCode::FORBIDDEN, "no_models", words));
    };
    let headers = passed(&head.headers);
    let too_large = |_| {
        refuse(
            protocol,
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            "the body is larger than 32 MiB",
        )
    };
    let length = body.size_hint().upper().and_then(|upper| usize::try_from(upper).ok());
    let length = length.unwrap_or(MAX_REQUEST_BYTES);
    if length > MAX_REQUEST_BYTES {
        return Err(too_large(()));
    }
    let permits = u32::try_from(length.div_ceil(MIB).max(1)).unwrap_or(1);
    let _room = door.room.acquire_many(permits).await.map_err(|_| too_large(()))?;
    let whole = Limited::new(body, MAX_REQUEST_BYTES).collect();
    let whole = tokio::time::timeout(Duration::from_millis(BODY_MS), whole).await;
    let late = |_| refuse(protocol, StatusCode::BAD_REQUEST, "late", "the body did not arrive");
    let body = whole.map_err(late)?.map_err(|_| too_large(()))?.to_bytes();
    let reply =
        gateway.call(ModelCall { protocol, headers, body, counts: counted.is_some() }).await;
    Ok(told(reply))
}

/// The models that may be called, as OpenAI's clients read a list, or Anthropic's.
fn listed(names: &[String], head: &Parts) -> ModelAnswer {
    let body = match head.headers.contains_key("anthropic-version") {
        true => {
            let data: Vec<Value> = names
                .iter()
                .map(|name| json!({"type": "model", "id": name, "display_name": name}))
                .collect();
            json!({"data": data, "has_more": false, "first_id": names.first(), "last_id": names.last()})
        }
        false => {
            let data: Vec<Value> = names
                .iter()
                .map(|name| json!({"id": name, "object": "model", "created": 0, "owned_by": "cofferdam"}))
                .collect();
            json!({"object": "list", "data": data})
        }
    };
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed();
    let mut told = Response::new(body);
    told.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    told
}

fn told(ModelReply { status, headers, body }: ModelReply) -> ModelAnswer {
    let mut told = Response::new(RelayBody { body, cut: None }.boxed());
    *told.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            told.headers_mut().insert(name, value);
        }
    }
    told
}

fn passed(headers: &HeaderMap) -> Vec<(&'static str, String)> {
    PASSED
        .into_iter()
        .filter_map(|name| Some((name, headers.get(name)?.to_str().ok()?.to_owned())))
        .collect()
}

/// A body that passes as it comes.
struct RelayBody {
    body: mpsc::Receiver<Result<Bytes, ModelCut>>,
    /// It broke off; what came before that, and the head, are sent first.
    cut: Option<ModelCut>,
}

impl Body for RelayBody {
    type Data = Bytes;
    type Error = ModelCut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Poll_<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ModelCut>>> {
        if let Some(cut) = self.cut.take() {
            return Poll::Ready(Some(Err(cut)));
        }
        match self.body.poll_recv(context) {
            // Whatever was written is flushed while a body is pending; an error at once would take the head along.
            Poll::Ready(Some(Err(cut))) => {
                self.cut = Some(cut);
                context.waker().wake_by_ref();
                Poll::Pending
            }
            next => next.map(|next| next.map(|bytes| bytes.map(Frame::data))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    #[test]
    fn an_answer_that_breaks_off_at_once_lets_its_head_go_first() {
        let (pipe, body) = mpsc::channel(2);
        pipe.try_send(Ok(Bytes::from_static(b"a"))).unwrap();
        pipe.try_send(Err(ModelCut)).unwrap();
        let mut passing = RelayBody { body, cut: None };
        let mut context = Poll_::from_waker(Waker::noop());
        let mut next = || Pin::new(&mut passing).poll_frame(&mut context);
        assert!(matches!(next(), Poll::Ready(Some(Ok(_)))));
        assert!(next().is_pending());
        assert!(matches!(next(), Poll::Ready(Some(Err(ModelCut)))));
    }

    #[test]
    fn no_header_that_could_be_a_key_is_passed_on() {
        let mut headers = HeaderMap::new();
        for name in ["authorization", "x-api-key", "cookie", "proxy-authorization", "host"] {
            headers.insert(name, HeaderValue::from_static("secret"));
        }
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
        assert_eq!(passed(&headers), [("anthropic-version", "2023-06-01".to_owned())]);
    }
}
