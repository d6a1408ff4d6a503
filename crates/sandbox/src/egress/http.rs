//! HTTP/1.1 as proxies speak it: CONNECT, and plain requests one by one.

#[cfg(test)]
mod fuzz;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Poll_, Poll};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contracts::sandbox::ViolationReason;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1 as client;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::Authority;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use super::body_screen::Fault;
use super::context::{Client, Context, FIRST_WORD_MS};
use super::forward::{self, Endpoint};
use super::policy::{EgressRefusal, Name, Wire};
use super::ports::HTTP_PORT;
use super::tunnel::{self, PendingTermination};
use super::upstream::Upstream;
use crate::host::task::Driver;

/// Bytes of a request's head: what servers take.
pub(crate) const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Headers between two neighbours, and never beyond.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// How the client came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// It knows that it talks to a proxy.
    Proxy,
    /// It believes to talk to the name itself.
    Transparent,
}

pub(crate) type Answer = Response<BoxBody<Bytes, Fault>>;

/// A tunnel that stands once the answer is sent.
struct Tunnel {
    client: OnUpgrade,
    /// None where TLS is ended here.
    server: Option<TcpStream>,
    name: Name,
    port: u16,
}

/// Serves one connection to its end, or to where its TLS is to be ended.
pub(crate) async fn serve<C: Client>(
    stream: C,
    context: Context,
    entrance: Entrance,
) -> Option<PendingTermination<C>> {
    let slot: Arc<Mutex<Option<Tunnel>>> = Arc::default();
    let service = service_fn(|request: Request<Incoming>| {
        let (context, slot) = (context.clone(), Arc::clone(&slot));
        async move {
            let answer = if request.method() == Method::CONNECT {
                connect(request, &context, entrance, &slot).await
            } else {
                forward(request, &context, entrance).await
            };
            Ok::<_, Infallible>(answer.unwrap_or_else(|refusal| refusal))
        }
    });
    let served = server::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(FIRST_WORD_MS))
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served
        && error.is_parse()
    {
        context.refuse(&EgressRefusal::nameless(ViolationReason::Malformed, None));
    }
    let tunnel = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(Tunnel { client, server, name, port }) = tunnel
        && let Ok(upgraded) = client.await
        && let Ok((client, said)) = unwrap::<C>(upgraded)
    {
        return match server {
            Some(server) => {
                tunnel::asked_for(client, server, said, &name, port, &context).await;
                None
            }
            None => tunnel::ended_here(client, said, &name, port, &context).await,
        };
    }
    None
}

/// The connection below the protocol that was left, and what was already read of it.
fn unwrap<C: Client>(upgraded: Upgraded) -> Result<(C, Vec<u8>), Upgraded> {
    let parts = upgraded.downcast::<TokioIo<C>>()?;
    Ok((parts.io.into_inner(), parts.read_buf.to_vec()))
}

async fn connect(
    request: Request<Incoming>,
    context: &Context,
    entrance: Entrance,
    slot: &Mutex<Option<Tunnel>>,
) -> Result<Answer, Answer> {
    let target = request.uri().authority().filter(|_| entrance == Entrance::Proxy);
    let target = target.and_then(|target| Some((target.host(), target.port_u16()?)));
    let Some((host, port)) = target else { return Err(malformed(context)) };
    let (name, rule) =
        context.admit(host, port, Wire::Tls).map_err(|refused| refuse(context, &refused))?;
    let server = match rule.ends_tls(port) {
        true => None,
        false => Some(context.dialer.tunnel(&name, port, &rule).await.map_err(|error| {
            tunnel::note(context, &name, port, &error);
            say(StatusCode::BAD_GATEWAY, &format!("{name}:{port}: {error}"))
        })?),
    };
    let tunnel = Tunnel { client: hyper::upgrade::on(request), server, name, port };
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnel);
    Ok(say(StatusCode::OK, ""))
}

async fn forward(
    mut request: Request<Incoming>,
    context: &Context,
    entrance: Entrance,
) -> Result<Answer, Answer> {
    let (host, port) = target(&request, entrance).ok_or_else(|| malformed(context))?;
    let (name, rule) =
        context.admit(&host, port, Wire::Plain).map_err(|refused| refuse(context, &refused))?;
    let (name, rule) = (&name, &rule);
    if !rule.targets(port).is_empty() {
        return forward::fetch(request, context, rule.targets(port), Endpoint { name, port }).await;
    }
    if rule.is_mirror_alone() && !forward::only_reads(request.method()) {
        let refused = EgressRefusal::name(ViolationReason::Method, name.as_str(), Some(port));
        return Err(refuse(context, &refused));
    }
    let gone = |words: String| say(StatusCode::BAD_GATEWAY, &format!("{name}:{port}: {words}"));
    let dialed = context.dialer.plain(name, port, rule).await.map_err(|error| {
        tunnel::note(context, name, port, &error);
        gone(error.to_string())
    })?;
    address(&mut request, name, port, dialed.proxy.as_ref()).ok_or_else(|| malformed(context))?;
    let (mut requests, connection) = client::handshake(TokioIo::new(dialed.stream))
        .await
        .map_err(|error| gone(error.to_string()))?;
    let (flow, of) = (context.clone(), name.clone());
    let driver = Driver(tokio::spawn(async move {
        if let Some(Err(error)) = flow.within(&of, connection).await {
            tracing::debug!(%error, "a forwarded connection ended");
        }
    }));
    let mut response =
        requests.send_request(request).await.map_err(|error| gone(error.to_string()))?;
    strip(response.headers_mut());
    Ok(response.map(|body| ConnectionBody::new(body, driver).map_err(Into::into).boxed()))
}

/// Whom a plain request is for.
fn target(request: &Request<Incoming>, entrance: Entrance) -> Option<(String, u16)> {
    let (authority, port) = match (entrance, request.uri().scheme_str()) {
        (Entrance::Proxy, Some("http")) => (request.uri().authority()?.clone(), None),
        (Entrance::Transparent, None) => {
            let mut hosts = request.headers().get_all(header::HOST).iter();
            let host = hosts.next()?.to_str().ok()?;
            // Two of them would let the server read another one than we do.
            if hosts.next().is_some() {
                return None;
            }
            (host.parse::<Authority>().ok()?, Some(HTTP_PORT))
        }
        _ => return None,
    };
    let said = authority.port_u16().unwrap_or(HTTP_PORT);
    // A transparent client has reached one port, whatever it writes.
    if port.is_some_and(|port| port != said) {
        return None;
    }
    Some((authority.host().to_owned(), said))
}

/// Writes the request's address anew, from what was admitted and nothing else.
fn address(
    request: &mut Request<Incoming>,
    name: &Name,
    port: u16,
    proxy: Option<&Upstream>,
) -> Option<()> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let host = if port == HTTP_PORT { name.to_string() } else { format!("{name}:{port}") };
    let whole = if proxy.is_some() { format!("http://{host}{path}") } else { path };
    *request.uri_mut() = whole.parse::<Uri>().ok()?;
    strip(request.headers_mut());
    request.headers_mut().insert(header::HOST, HeaderValue::from_str(&host).ok()?);
    if let Some(authorization) = proxy.and_then(Upstream::authorization) {
        let value = HeaderValue::from_str(authorization).ok()?;
        request.headers_mut().insert(header::PROXY_AUTHORIZATION, value);
    }
    Some(())
}

pub(crate) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

pub(crate) fn malformed(context: &Context) -> Answer {
    let refused = EgressRefusal::nameless(ViolationReason::Malformed, None);
    context.refuse(&refused);
    say(StatusCode::BAD_REQUEST, refused.why.in_words())
}

pub(crate) fn refuse(context: &Context, refused: &EgressRefusal) -> Answer {
    let is_asked = context.refuse(refused);
    let what = refused.name.clone().or_else(|| refused.address.map(|ip| ip.to_string()));
    let what = what.unwrap_or_default();
    let words = format!("{what}: {} ({} phase)", refused.why.in_words(), context.phase.as_str());
    let words = if is_asked { format!("{words}; a person is asked: try again") } else { words };
    let status = match refused.why {
        ViolationReason::Method => StatusCode::METHOD_NOT_ALLOWED,
        _ => StatusCode::FORBIDDEN,
    };
    say(status, &words)
}

pub(crate) fn say(status: StatusCode, words: &str) -> Answer {
    let text = if words.is_empty() { Bytes::new() } else { format!("cofferdam: {words}\n").into() };
    let mut answer = Response::new(Full::new(text).map_err(|never| match never {}).boxed());
    *answer.status_mut() = status;
    answer
}

/// A body whose connection ends with it.
pub(crate) struct ConnectionBody {
    body: Incoming,
    _driver: Driver,
}

impl ConnectionBody {
    pub(crate) const fn new(body: Incoming, driver: Driver) -> Self {
        Self { body, _driver: driver }
    }
}

impl Body for ConnectionBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Poll_<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
