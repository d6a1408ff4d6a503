//! HTTPS to a host that gets a secret: looked at, filled in, and sent on over verified TLS.
//!
//! ```text
//! sandbox --TLS (this sandbox's authority)--> request -> host, placeholders -> + header -> TLS --> that host
//!         <-- headers and body without the secret <---------------------------------------/
//! ```
//! **A request goes to exactly the host that its connection asked for, over TLS that this host verifies, or
//! nowhere.** Bodies pass in chunks in both directions. HTTP/1.1 alone is spoken, and nothing is sent twice: a
//! request that a closed connection did not take goes over a new one.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_contracts::sandbox::ViolationReason;
use cofferdam_contracts::secret::{PLACEHOLDER, SecretUse};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1 as client;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use percent_encoding::percent_decode_str;
use tokio::sync::Mutex;

use super::body_screen::{Fault, Needles, ScreenBody};
use super::context::Context;
use super::dial::DialError;
use super::http::{self, Answer, say, strip};
use super::keyring::{Keyring, SecretHeader};
use super::policy::{EgressRefusal, Name, Rule};
use super::ports::TLS_PORT;
use super::{trust, tunnel};
use crate::host::task::Driver;

/// A body of known length up to here is looked through before anything of its request is sent.
const WHOLE_BODY_BYTES: u64 = 64 * 1024;
/// What stands in the place of a header that repeats a secret.
const REDACTED: HeaderValue = HeaderValue::from_static("redacted");

type ProxyBody = BoxBody<Bytes, Fault>;

/// Why a request did not reach its host.
#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("TLS failed: {0}")]
    Tls(#[from] io::Error),
    #[error("the connection failed: {0}")]
    Http(#[from] hyper::Error),
}

/// One connection of the sandbox's to a host that gets a secret.
pub(crate) struct Flow {
    name: Name,
    rule: Rule,
    context: Context,
    keys: Arc<Keyring>,
    /// The connection to the host, kept while the client keeps its own.
    server: Mutex<Option<HostConnection>>,
}

struct HostConnection {
    requests: client::SendRequest<ProxyBody>,
    _driver: Driver,
}

impl Flow {
    pub(crate) fn new(name: Name, rule: Rule, context: Context, keys: Arc<Keyring>) -> Self {
        Self { name, rule, context, keys, server: Mutex::default() }
    }

    fn refuse(&self, why: ViolationReason) -> Answer {
        let refused = EgressRefusal::name(why, self.name.as_str(), Some(TLS_PORT));
        http::refuse(&self.context, &refused)
    }

    fn uses(&self) -> &[SecretUse] {
        &self.rule.secrets
    }

    /// Answers one request, which is for this host.
    pub(crate) async fn pass(&self, request: Request<Incoming>) -> Result<Answer, Answer> {
        // TRACE gives a request's headers back, and CONNECT leads elsewhere.
        if matches!(*request.method(), Method::TRACE | Method::CONNECT) {
            return Err(self.refuse(ViolationReason::Malformed));
        }
        if has_placeholder(&request) {
            return Err(self.refuse(ViolationReason::Placeholder));
        }
        let request = self.screened(request).await?;
        let added = self.keys.added(self.context.phase, self.uses()).await;
        let added = added.ok_or_else(|| self.refuse(ViolationReason::Secret))?;
        let request = self.filled(request, &added).ok_or_else(|| http::malformed(&self.context))?;
        let response = self.send(request).await.map_err(|error| {
            if let PassError::Dial(error) = &error {
                tunnel::note(&self.context, &self.name, TLS_PORT, error);
            }
            say(StatusCode::BAD_GATEWAY, &format!("{}: {error}", self.name))
        })?;
        Ok(self.told(response, &added))
    }

    /// The request with a body that carries no placeholder.
    async fn screened(&self, request: Request<Incoming>) -> Result<Request<ProxyBody>, Answer> {
        let (head, body) = request.into_parts();
        let placeholder = Needles::of(PLACEHOLDER.as_bytes());
        if body.size_hint().exact().is_some_and(|bytes| bytes <= WHOLE_BODY_BYTES) {
            let whole =
                body.collect().await.map_err(|_| http::malformed(&self.context))?.to_bytes();
            if placeholder.are_in(&whole) {
                return Err(self.refuse(ViolationReason::Placeholder));
            }
            let body = Full::new(whole).map_err(|never| match never {}).boxed();
            return Ok(Request::from_parts(head, body));
        }
        let (context, name) = (self.context.clone(), self.name.clone());
        let found = move || {
            let why = ViolationReason::Placeholder;
            context.refuse(&EgressRefusal::name(why, name.as_str(), Some(TLS_PORT)));
        };
        let body = ScreenBody::new(body, placeholder, found).boxed();
        Ok(Request::from_parts(head, body))
    }

    /// The request as the host gets it: its address written anew, the secrets in the place of what the
    /// sandbox wrote there.
    fn filled(
        &self,
        mut request: Request<ProxyBody>,
        added: &[Arc<SecretHeader>],
    ) -> Option<Request<ProxyBody>> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse::<Uri>().ok()?;
        let headers = request.headers_mut();
        strip(headers);
        headers.remove(header::EXPECT);
        // A part of an answer may hold a part of a secret, which no look at it would find.
        headers.remove(header::RANGE);
        headers.remove(header::IF_RANGE);
        headers.insert(header::HOST, HeaderValue::from_str(self.name.as_str()).ok()?);
        // An encoded answer could not be looked through.
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        for one in added {
            headers.insert(one.name.clone(), one.value.clone());
        }
        Some(request)
    }

    async fn send(&self, request: Request<ProxyBody>) -> Result<Response<Incoming>, PassError> {
        let mut server = self.server.lock().await;
        let mut unsent = request;
        if let Some(reached) = server.as_mut()
            && reached.requests.ready().await.is_ok()
        {
            match reached.requests.try_send_request(unsent).await {
                Ok(response) => return Ok(response),
                // The host closed it before it took anything.
                Err(mut error) => match error.take_message() {
                    Some(request) => unsent = request,
                    None => return Err(error.into_error().into()),
                },
            }
        }
        let reached = server.insert(self.reach().await?);
        Ok(reached.requests.send_request(unsent).await?)
    }

    async fn reach(&self) -> Result<HostConnection, PassError> {
        let stream = self.context.dialer.tunnel(&self.name, TLS_PORT, &self.rule).await?;
        let stream = trust::connect(&self.keys.tls, &self.name, stream).await?;
        let (requests, connection) = client::handshake(TokioIo::new(stream)).await?;
        let driver = Driver(tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection that carried a secret ended");
            }
        }));
        Ok(HostConnection { requests, _driver: driver })
    }

    /// What the sandbox is told: headers that repeat a secret are redacted, a body that does is cut off.
    fn told(&self, mut response: Response<Incoming>, added: &[Arc<SecretHeader>]) -> Answer {
        // The host's own words beside its status are not looked through: the client gets the usual ones.
        response.extensions_mut().remove::<hyper::ext::ReasonPhrase>();
        let mut needles = Needles::default();
        added.iter().for_each(|one| needles.extend(&one.needles));
        let headers = response.headers_mut();
        strip(headers);
        headers.remove(header::ALT_SVC);
        let (context, name) = (self.context.clone(), self.name.clone());
        let found = move || {
            context.refuse(&EgressRefusal::name(
                ViolationReason::Echo,
                name.as_str(),
                Some(TLS_PORT),
            ));
        };
        let repeats = |value: &HeaderValue| needles.are_in(value.as_bytes());
        let mut is_redacted = false;
        for value in headers.values_mut().filter(|value| repeats(value)) {
            *value = REDACTED;
            is_redacted = true;
        }
        if is_redacted {
            found();
        }
        response.map(|body| ScreenBody::new(body, needles, found).boxed())
    }
}

fn has_placeholder<B>(request: &Request<B>) -> bool {
    let holds = |bytes: &[u8]| memmem::find(bytes, PLACEHOLDER.as_bytes()).is_some();
    let path = request.uri().path_and_query().map_or("", |path| path.as_str());
    let decoded: Vec<u8> = percent_decode_str(path).collect();
    holds(path.as_bytes())
        || holds(&decoded)
        || request.headers().values().any(|value: &HeaderValue| holds(value.as_bytes()))
        || request.headers().keys().any(|name: &HeaderName| holds(name.as_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_is_found_in_a_path_and_in_a_header() {
        let has = |uri: &str, value: &str| {
            has_placeholder(&Request::builder().uri(uri).header("x", value).body(()).unwrap())
        };
        assert!(!has("/a?b=secret:x", "{secret:x}"));
        assert!(has("/", "Bearer {{secret:x}}"));
        assert!(has("/a?token=%7B%7Bsecret:x%7D%7D", ""));
    }
}
