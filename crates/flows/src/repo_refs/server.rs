//! A git server's names: at most two requests of its smart protocol, and never more than is read.

use std::time::Duration;

use cofferdam_contracts::patch::{
    AdvertError, GitRef, GitRefs, MAX_ADVERT, RefAdvert, advert, host_of, listed, ls_refs,
};
use cofferdam_sandbox::{OutsideError, OutsideNames};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, StatusCode};

/// Both requests with their answers: a large forge lists its names in some seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a server's names are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServerError {
    #[error(transparent)]
    Outside(#[from] OutsideError),
    #[error("the server does not answer")]
    Request(#[source] reqwest::Error),
    #[error(
        "the server does not give it without credentials, which only a sandbox's build phase has: give `commit`"
    )]
    Private,
    #[error("the server answers {0}, which leads elsewhere: write the URL that it leads to")]
    Moved(StatusCode),
    #[error("the server answers {0}")]
    Status(StatusCode),
    #[error(
        "the server's answer has more than {MAX_ADVERT} bytes: write the full name, such as refs/heads/main, or give `commit`"
    )]
    Large,
    #[error(transparent)]
    Answer(#[from] AdvertError),
}

impl ServerError {
    /// Whether another try may be answered.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Request(_) | Self::Outside(OutsideError::Resolve { .. }) => true,
            Self::Status(status) => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            _ => false,
        }
    }
}

/// Names that lead where a sandbox's would.
struct OutsideResolver(OutsideNames);

impl Resolve for OutsideResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let names = self.0.clone();
        Box::pin(async move {
            let found = names.addresses(name.as_str()).await?;
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}

/// What a name may stand for in the repository of a URL.
pub(super) async fn refs(
    names: &OutsideNames,
    url: &str,
    name: &GitRef,
) -> Result<GitRefs, ServerError> {
    let host = host_of(url).unwrap_or_default();
    // Said by its own error, before a client wraps it.
    if names.is_pinned(host) || !is_proxied() {
        names.addresses(host).await?;
    }
    let client = client(names, host).map_err(ServerError::Request)?;
    let base = url.trim_end_matches('/');
    let asked = client
        .get(format!("{base}/info/refs?service=git-upload-pack"))
        .header("git-protocol", "version=2");
    let answer = answer(asked).await?;
    let format = match advert(&answer, name)? {
        RefAdvert::Listed(refs) => return Ok(refs),
        RefAdvert::Asked(format) => format,
    };
    let asked = client
        .post(format!("{base}/git-upload-pack"))
        .header("git-protocol", "version=2")
        .header("content-type", "application/x-git-upload-pack-request")
        .header("accept", "application/x-git-upload-pack-result")
        .body(ls_refs(name, format));
    Ok(listed(&self::answer(asked).await?, name)?)
}

/// Whether this process reaches names by a proxy, as its sandboxes' proxy does then.
fn is_proxied() -> bool {
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"]
        .iter()
        .any(|name| cofferdam_ambient::env::var(name).is_some_and(|proxy| !proxy.is_empty()))
}

fn client(names: &OutsideNames, host: &str) -> reqwest::Result<Client> {
    // A second call changes nothing: one provider is enough for all of the process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder()
        .redirect(Policy::none())
        .dns_resolver(OutsideResolver(names.clone()))
        .timeout(PATIENCE)
        .user_agent(concat!("git/2 cofferdam/", env!("CARGO_PKG_VERSION")));
    match names.is_pinned(host) {
        true => client.no_proxy().build(),
        false => client.build(),
    }
}

async fn answer(asked: RequestBuilder) -> Result<Vec<u8>, ServerError> {
    let mut answer = asked.send().await.map_err(ServerError::Request)?;
    let status = answer.status();
    match status {
        _ if status.is_success() => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(ServerError::Private),
        _ if status.is_redirection() => return Err(ServerError::Moved(status)),
        _ => return Err(ServerError::Status(status)),
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(ServerError::Request)? {
        if bytes.len() + chunk.len() > MAX_ADVERT {
            return Err(ServerError::Large);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}
