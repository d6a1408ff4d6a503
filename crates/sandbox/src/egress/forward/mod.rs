//! The forwarder of a mirror: the host fetches in the sandbox's stead, with the credentials of its own
//! client, which never go inside.
//!
//! ```text
//! sandbox: GET https://index/simple/x/  (TLS ended by the sandbox's authority)        no credentials
//!          GET http://pip-0.mirrors.cofferdam.internal/simple/x/  (its alias)          no credentials
//!   -> method, path -> host: GET https://index/simple/x/                              + Authorization, verified TLS
//!   <- links lose users and passwords; under an alias they become links to aliases
//! ```
//! **Only GET and HEAD, only below the index's own path or to what one of its pages linked to, and never to
//! what is about the account; credentials
//! go to the one site that they are configured for, below its own path, and a redirect is the client's to
//! follow, through the same checks.** Conditions and encodings are not passed on, so that every page is seen
//! whole.

mod anchors;
mod char_encoding;
mod choice;
mod links;
mod pages;
mod path;
mod site;
mod target;

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contracts::sandbox::ViolationReason;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::response;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

pub(crate) use links::PageLinks;
use pages::Page;
use site::MirrorSite;
pub(crate) use site::{Credentials, IndexKind, MirrorBase, MirrorOrigin};
pub(crate) use target::{Forward, Target};

use super::context::Context;
use super::http::{self, Answer, ConnectionBody};
use super::policy::{EgressRefusal, MirrorName, Name, Rule, Wire};
use super::upstream::Upstream;
use super::{trust, tunnel};
use crate::host::task::Driver;

/// From the request to the head of the answer: mirrors that fetch first themselves are slow.
const ANSWER_MS: u64 = 300_000;
/// A page that is rewritten is held whole; the largest ones of public registries have a third of it.
const MAX_PAGE_BYTES: usize = 64 * 1024 * 1024;
/// Pages that are held at once, of all sandboxes of this host together.
const PAGES_AT_ONCE: usize = 4;
/// A file: several times the largest package that public registries take.
const MAX_FILE_BYTES: usize = 16 * 1024 * 1024 * 1024;

/// What a client's request may carry to the mirror.
const ASKED: [HeaderName; 3] = [header::ACCEPT, header::USER_AGENT, header::RANGE];
/// What a mirror's answer may carry into the sandbox: no cookie, and nothing that asks for credentials.
const TOLD: [HeaderName; 9] = [
    header::ACCEPT_RANGES,
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::LAST_MODIFIED,
    header::RETRY_AFTER,
];

/// Why the host could not fetch.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error(transparent)]
    Dial(#[from] super::dial::DialError),
    #[error("TLS failed: {0}")]
    Tls(io::Error),
    #[error("the connection failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("its address cannot be written as a request")]
    Request,
    #[error("it did not answer within {ANSWER_MS} ms")]
    Late,
    #[error("its page is longer than {MAX_PAGE_BYTES} bytes, a part of one, or could not be read")]
    Page,
    #[error("it redirects to another place, which is not followed")]
    Elsewhere,
}

/// Either kind of connection.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// By which of its names a site is asked, and where: its pages name it so too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endpoint<'a> {
    pub name: &'a Name,
    pub port: u16,
}

/// A sandbox's request for a file or page of a mirror.
struct MirrorRequest<'a> {
    at: Endpoint<'a>,
    place: MirrorSite<'a>,
    method: Method,
    /// Path and query.
    path: &'a str,
    headers: &'a HeaderMap,
}

impl Endpoint<'_> {
    /// The sites that a page is to name by their aliases.
    fn aliased<'b>(&self, forward: &'b Forward, base: &MirrorBase) -> &'b [MirrorBase] {
        match *self.name == base.alias {
            true => &forward.bases,
            false => &[],
        }
    }
}

impl Forward {
    /// `via`: the proxy of the mirror's client; `ca`: the certificates that it trusts.
    pub(crate) fn new(
        mirror: MirrorName,
        bases: Vec<MirrorBase>,
        via: Option<&Upstream>,
        ca: Option<&Path>,
    ) -> Result<Self, String> {
        let (rule, tls) = (Rule::of_mirror(via), trust::client_config(ca)?);
        Ok(Self { mirror, bases, rule, tls, pages: Semaphore::new(PAGES_AT_ONCE) })
    }

    pub(crate) fn bases(&self) -> &[MirrorBase] {
        &self.bases
    }

    async fn reach(
        &self,
        base: &MirrorBase,
        context: &Context,
    ) -> Result<(Box<dyn Io>, Option<Upstream>), FetchError> {
        let MirrorOrigin { name, port, wire } = &base.place;
        if *wire == Wire::Plain {
            let dialed = context.dialer.plain(name, *port, &self.rule).await?;
            return Ok((Box::new(dialed.stream), dialed.proxy));
        }
        let stream = context.dialer.tunnel(name, *port, &self.rule).await?;
        let stream = trust::connect(&self.tls, name, stream).await.map_err(FetchError::Tls)?;
        Ok((Box::new(stream), None))
    }

    /// Asks the mirror, and gives the head of its answer with a body whose connection ends with it.
    async fn ask(
        &self,
        request: &MirrorRequest<'_>,
        context: &Context,
    ) -> Result<Response<ConnectionBody>, FetchError> {
        let (base, path) = (request.place.base, request.path);
        let (stream, proxy) = self.reach(base, context).await?;
        let (mut requests, connection) = client::handshake(TokioIo::new(stream)).await?;
        let driver = Driver(tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a mirror's connection ended");
            }
        }));
        let target = if proxy.is_some() { base.url(path) } else { path.to_owned() };
        let mut outbound = Request::builder()
            .method(request.method.clone())
            .uri(target)
            .header(header::HOST, base.host());
        for name in &ASKED {
            if let Some(value) = request.headers.get(name) {
                outbound = outbound.header(name, value);
            }
        }
        outbound = outbound.header(header::ACCEPT_ENCODING, "identity");
        let credentials = base.credentials.as_ref().filter(|_| base.knows_us(path));
        if let Some(Credentials(value)) = credentials {
            outbound = outbound.header(header::AUTHORIZATION, value);
        }
        if let Some(authorization) = proxy.as_ref().and_then(Upstream::authorization) {
            outbound = outbound.header(header::PROXY_AUTHORIZATION, authorization);
        }
        let outbound = outbound.body(Full::<Bytes>::default()).map_err(|_| FetchError::Request)?;
        let response = requests.send_request(outbound).await?;
        Ok(response.map(|body| ConnectionBody::new(body, driver)))
    }

    /// What the sandbox is told of an answer.
    async fn told(
        &self,
        request: &MirrorRequest<'_>,
        context: &Context,
        response: Response<ConnectionBody>,
    ) -> Result<Answer, FetchError> {
        let MirrorRequest { at, path, .. } = *request;
        let base = request.place.base;
        let (head, body) = response.into_parts();
        let mut headers = HeaderMap::new();
        for name in &TOLD {
            if let Some(value) = head.headers.get(name) {
                headers.insert(name, value.clone());
            }
        }
        if head.status.is_redirection() {
            let location = head.headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
            let is_aliased = !at.aliased(self, base).is_empty();
            let to = |to| pages::inside(&self.bases, base, path, to, is_aliased);
            let inside = location.and_then(to);
            let value = inside.and_then(|to| HeaderValue::from_str(&to).ok());
            headers.insert(header::LOCATION, value.ok_or(FetchError::Elsewhere)?);
        }
        let page = pages::page(&head.headers)
            .filter(|_| base.index.is_some() && !head.status.is_redirection());
        // A part of a page may begin in the middle of an address, and parts of several are no page by their type.
        let is_part = base.index.is_some() && head.status == StatusCode::PARTIAL_CONTENT;
        if is_part && (page.is_some() || pages::is_of_parts(&head.headers)) {
            return Err(FetchError::Page);
        }
        let body = if let Some(kind) = page {
            headers.remove(header::CONTENT_LENGTH);
            headers.remove(header::CONTENT_ENCODING);
            let text = match request.method == Method::HEAD {
                true => Bytes::new(),
                false => self.page(request, kind, context, &head, body).await?,
            };
            Full::new(text).map_err(|never| match never {}).boxed()
        } else {
            Limited::new(body, MAX_FILE_BYTES).boxed()
        };
        let mut answer = Response::new(body);
        (*answer.status_mut(), *answer.headers_mut()) = (head.status, headers);
        Ok(answer)
    }

    /// A page with these sites in it called by their aliases. What it links to may be fetched.
    async fn page(
        &self,
        request: &MirrorRequest<'_>,
        kind: Page,
        context: &Context,
        head: &response::Parts,
        body: ConnectionBody,
    ) -> Result<Bytes, FetchError> {
        let MirrorRequest { place, path, .. } = *request;
        let _turn = self.pages.acquire().await.map_err(|_| FetchError::Page)?;
        let whole =
            Limited::new(body, MAX_PAGE_BYTES).collect().await.map_err(|_| FetchError::Page)?;
        let text = pages::decoded(&head.headers, whole.to_bytes(), MAX_PAGE_BYTES)
            .ok_or(FetchError::Page)?;
        if head.status == StatusCode::OK {
            let found = links::links(&self.bases, place, path, kind, &text);
            context.links.learn(self.mirror, found);
        }
        let aliased = request.at.aliased(self, place.base);
        Ok(pages::rewritten(aliased, place.base.place.wire, kind, &text).into())
    }
}

/// Whether a method only fetches.
pub(crate) fn only_reads(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Answers one request for a mirror, whose sites are these behind the name and port that it was asked by.
pub(crate) async fn fetch(
    request: Request<Incoming>,
    context: &Context,
    targets: &[Target],
    at: Endpoint<'_>,
) -> Result<Answer, Answer> {
    let refuse =
        |why| http::refuse(context, &EgressRefusal::name(why, at.name.as_str(), Some(at.port)));
    if !only_reads(request.method()) {
        return Err(refuse(ViolationReason::Method));
    }
    let asked = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let of = choice::asked_of(targets, &context.links, &asked);
    let of = of.and_then(|(target, is_linked)| Some((target, target.base()?, is_linked)));
    let Some((target, base, is_linked)) = of else { return Err(http::malformed(context)) };
    if !base.may_fetch(&asked, is_linked) {
        return Err(refuse(ViolationReason::Path));
    }
    let forward = &target.forward;
    let place = MirrorSite { index: target.index, base };
    let (method, headers) = (request.method().clone(), request.headers());
    let inbound = MirrorRequest { at, place, method, path: &asked, headers };
    let answer = async {
        let limit = Duration::from_millis(ANSWER_MS);
        let ask = forward.ask(&inbound, context);
        let response = tokio::time::timeout(limit, ask).await.map_err(|_| FetchError::Late)??;
        forward.told(&inbound, context, response).await
    };
    answer.await.map_err(|error| {
        // The operator reads where it is; the sandbox only what it is called inside.
        let MirrorOrigin { name, port, .. } = &base.place;
        tracing::info!(%name, port, %error, "a mirror could not be fetched from");
        if let FetchError::Dial(error) = &error {
            tunnel::note(context, at.name, at.port, error);
        }
        http::say(StatusCode::BAD_GATEWAY, &format!("{}: {error}", at.name))
    })
}
