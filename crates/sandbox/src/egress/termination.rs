//! A client's TLS, ended by the sandbox's own authority: for hosts that get a secret, and for mirrors under their own names.
//!
//! ```text
//! sandbox --TLS (this sandbox's authority)--> request for exactly this name -> inject  -> verified TLS -> that host
//!                                                                           \-> forward -> the mirror's site
//! ```
//! **A request goes to exactly the host that its connection asked for, or nowhere.** HTTP/1.1 alone is spoken.

use std::convert::Infallible;
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contracts::sandbox::ViolationReason;
use hyper::body::Incoming;
use hyper::http::uri::Authority;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt as _;
use tokio_rustls::TlsAcceptor;

use super::context::{Client, Context, FIRST_WORD_MS};
use super::forward::{self, Endpoint};
use super::http::{self, Answer, MAX_HEAD_BYTES};
use super::inject::Flow;
use super::keyring::Keyring;
use super::policy::{EgressRefusal, Name, Rule};
use super::tunnel::PendingTermination;

/// What stands behind a name.
enum Backend {
    /// A host that gets a secret.
    Host(Flow),
    /// Sites of mirrors.
    Mirrors(Rule),
}

/// Ends a connection's TLS, and serves its requests.
pub(crate) async fn serve(unended: PendingTermination<impl Client>, context: Context) {
    let (name, port) = (unended.name.clone(), unended.port);
    let rule = unended.rule.clone();
    let Some((stream, keys)) = accepted(unended, &context).await else {
        context.refuse(&EgressRefusal::name(ViolationReason::Unended, name.as_str(), Some(port)));
        return;
    };
    let backend = match rule.secrets.is_empty() {
        true => Backend::Mirrors(rule),
        false => Backend::Host(Flow::new(name.clone(), rule, context.clone(), keys)),
    };
    let backend = &backend;
    let name = &name;
    let service = service_fn(|request| {
        let context = &context;
        async move {
            let answer = answer(request, context, name, port, backend).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(|refusal| refusal))
        }
    });
    let served = server::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(FIRST_WORD_MS))
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served
        && error.is_parse()
    {
        context.refuse(&EgressRefusal::name(ViolationReason::Malformed, name.as_str(), Some(port)));
    }
}

/// The connection without its TLS; `None`: its client does not take the sandbox's authority.
async fn accepted<C: Client>(
    unended: PendingTermination<C>,
    context: &Context,
) -> Option<(impl Client, Arc<Keyring>)> {
    let PendingTermination { client, said, name, .. } = unended;
    let keys = context.keys.clone()?;
    let config = keys.authority.server_config(&name)?;
    let (read, write) = tokio::io::split(client);
    let whole = tokio::io::join(Cursor::new(said).chain(read), write);
    let limit = Duration::from_millis(FIRST_WORD_MS);
    let accepted = tokio::time::timeout(limit, TlsAcceptor::from(config).accept(whole)).await;
    Some((accepted.ok()?.ok()?, keys))
}

async fn answer(
    request: Request<Incoming>,
    context: &Context,
    name: &Name,
    port: u16,
    backend: &Backend,
) -> Result<Answer, Answer> {
    if let Err(other) = addressed(&request, name, port) {
        let refused = EgressRefusal::name(ViolationReason::Host, &other, Some(port));
        return Err(http::refuse(context, &refused));
    }
    match backend {
        Backend::Host(flow) => flow.pass(request).await,
        Backend::Mirrors(rule) => {
            forward::fetch(request, context, rule.targets(port), Endpoint { name, port }).await
        }
    }
}

/// Whether a request is for this host; `Err` names the other one.
fn addressed<B>(request: &Request<B>, name: &Name, port: u16) -> Result<(), String> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    let host = first.and_then(|host| host.to_str().ok()).filter(|_| second.is_none());
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    let is_ours = |said: &Authority| {
        Name::parse(said.host()).is_some_and(|said| said == *name)
            && said.port_u16().is_none_or(|said| said == port)
            && !said.as_str().contains('@')
    };
    let Some(host) = host else { return Err("(no host)".to_owned()) };
    let in_line = request.uri().authority();
    match [Some(&host), in_line].into_iter().flatten().find(|said| !is_ours(said)) {
        Some(other) => Err(other.to_string()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(uri: &str, hosts: &[&str]) -> Result<(), String> {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        addressed(&request.body(()).unwrap(), &Name::parse("a.example").unwrap(), 443)
    }

    #[test]
    fn a_request_is_for_the_host_of_its_connection_alone() {
        for host in ["a.example", "A.example", "a.example:443"] {
            assert_eq!(asked("/x", &[host]), Ok(()), "{host}");
        }
        assert_eq!(asked("https://a.example/x", &["a.example"]), Ok(()));
        for (uri, hosts, other) in [
            ("/", &["b.example"][..], "b.example"),
            ("/", &["a.example:80"], "a.example:80"),
            ("/", &["u@a.example"], "u@a.example"),
            ("/", &["a.example", "b.example"], "(no host)"),
            ("/", &[], "(no host)"),
            ("https://b.example/", &["a.example"], "b.example"),
        ] {
            assert_eq!(asked(uri, hosts), Err(other.to_owned()), "{uri} {hosts:?}");
        }
    }
}
