//! The provider's API: sandboxes are made, listed, prolonged and deleted. Every request has a bound, and
//! every answer is read up to one.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::Limits;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::spec::provider::Provider;

/// A provider that does not take a connection for so long is down.
const CONNECT: Duration = Duration::from_secs(10);
/// Bound on one request and its answer, unless the request sets another.
const REQUEST: Duration = Duration::from_secs(30);
/// The request that makes a sandbox. Providers need a second or less; one that is busy may hold a creation for as long as E2B's
/// own clients wait, and a Cofferdam says after 50 s that it has no room.
const MAKE: Duration = Duration::from_secs(60);
/// Bytes of an answer: a page of a hundred sandboxes takes some 50 KiB.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// Of what a refusal says, so much is passed on.
const MAX_WORDS: usize = 300;
/// Pages of a list: ten thousand sandboxes.
const MAX_PAGES: usize = 100;
/// Whose sandbox it is, for whoever finds it.
pub(super) const META_SANDBOX: &str = "cofferdam-sandbox";
pub(super) const META_STATE: &str = "cofferdam-state";

/// What is wrong with a provider.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteError {
    #[error("the provider does not answer ({what})")]
    Lost { what: &'static str, source: reqwest::Error },
    #[error("the provider refused {what} with {status}: {said}")]
    Refused { what: &'static str, status: u16, said: String },
    #[error("the provider's answer makes no sense ({what})")]
    Forged { what: &'static str },
    #[error("the provider gave a sandbox that reaches the internet, which was refused")]
    Open,
    #[error("a file of this host could not be used")]
    Files(#[from] std::io::Error),
    #[error("this worker has no provider")]
    None,
    #[error("the provider has the sandbox no more")]
    Gone,
}

pub(super) type Result<T> = std::result::Result<T, RemoteError>;

/// A sandbox that was made. What else an answer says is the provider's own matter.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateResponse {
    #[serde(rename = "sandboxID")]
    pub id: String,
    pub envd_access_token: Option<String>,
    pub domain: Option<String>,
}

/// What the provider says that it gave.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Size {
    pub cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    pub memory_mb: Option<u64>,
    #[serde(rename = "diskSizeMB")]
    pub disk_mb: Option<u64>,
    allow_internet_access: Option<bool>,
}

impl Size {
    /// What is enforced, as the provider says, beside what the agent enforces.
    pub(crate) fn limits(&self, ours: Limits) -> Limits {
        Limits {
            cpu: self.cpu_count.map(f64::from),
            mem_mb: self.memory_mb,
            disk_mb: self.disk_mb,
            ..ours
        }
    }
}

/// One of a list.
#[derive(Deserialize)]
pub(super) struct SandboxItem {
    #[serde(rename = "sandboxID")]
    pub id: String,
    #[serde(default)]
    pub metadata: Option<std::collections::BTreeMap<String, String>>,
}

/// A connection to a provider.
#[derive(Debug)]
pub(super) struct Api {
    http: Client,
    pub provider: Arc<Provider>,
}

impl Api {
    pub(super) fn of(provider: Arc<Provider>) -> Result<Self> {
        let what = "its key";
        let mut key = HeaderValue::from_str(provider.key.expose())
            .map_err(|_| RemoteError::Forged { what })?;
        key.set_sensitive(true);
        let headers =
            HeaderMap::from_iter([(reqwest::header::HeaderName::from_static("x-api-key"), key)]);
        let http = client(headers).timeout(REQUEST).build();
        Ok(Self { http: http.map_err(|source| RemoteError::Lost { what, source })?, provider })
    }

    /// Makes one that has no internet, ends by itself, and is found by the names that are ours.
    pub(super) async fn make(&self, sandbox: &SandboxId) -> Result<CreateResponse> {
        let what = "making a sandbox";
        let wanted = json!({
            "templateID": self.provider.template,
            "timeout": self.provider.term_s,
            "secure": true,
            "autoPause": false,
            "allow_internet_access": false,
            "metadata": {META_SANDBOX: sandbox, META_STATE: self.provider.tag},
        });
        let request = self.request(Method::POST, "sandboxes", what)?.json(&wanted).timeout(MAKE);
        let made: CreateResponse = parse(&good(request, what).await?, what)?;
        // It becomes part of addresses.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        match (1..=64).contains(&made.id.len()) && made.id.bytes().all(is_plain) {
            true => Ok(made),
            false => Err(RemoteError::Forged { what }),
        }
    }

    /// What it is; `None` where there is none.
    pub(super) async fn get(&self, id: &str) -> Result<Option<Size>> {
        let what = "describing a sandbox";
        self.text_of(id, what).await?.map(|text| closed(&text, what)).transpose()
    }

    /// The same, and how it is spoken to, for a worker that did not make it.
    pub(super) async fn described(&self, id: &str) -> Result<Option<(CreateResponse, Size)>> {
        let what = "describing a sandbox";
        let Some(text) = self.text_of(id, what).await? else { return Ok(None) };
        let made: CreateResponse = parse(&text, what)?;
        match made.id == id {
            true => Ok(Some((made, closed(&text, what)?))),
            false => Err(RemoteError::Forged { what }),
        }
    }

    async fn text_of(&self, id: &str, what: &'static str) -> Result<Option<Bytes>> {
        let request = self.request(Method::GET, &format!("sandboxes/{id}"), what)?;
        match good(request, what).await {
            Ok(text) => Ok(Some(text)),
            Err(RemoteError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it is there; how it is does not matter.
    pub(super) async fn exists(&self, id: &str) -> Result<bool> {
        match self.get(id).await {
            Ok(found) => Ok(found.is_some()),
            Err(RemoteError::Open) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Has it end a term from now; `false`: there is none.
    pub(super) async fn prolong(&self, id: &str) -> Result<bool> {
        let what = "prolonging a sandbox";
        let request = self.request(Method::POST, &format!("sandboxes/{id}/timeout"), what)?;
        there(good(request.json(&json!({"timeout": self.provider.term_s})), what).await)
    }

    /// Ends it; `false`: there was none.
    pub(super) async fn delete(&self, id: &str) -> Result<bool> {
        let what = "deleting a sandbox";
        there(good(self.request(Method::DELETE, &format!("sandboxes/{id}"), what)?, what).await)
    }

    /// Those of this state directory, or that of one sandbox, whatever state they are in.
    pub(super) async fn listed(&self, sandbox: Option<&SandboxId>) -> Result<Vec<SandboxItem>> {
        let what = "listing sandboxes";
        let (name, value) = match sandbox {
            Some(id) => (META_SANDBOX, id.as_str()),
            None => (META_STATE, self.provider.tag.as_str()),
        };
        let filter = encoded(&format!("{name}={value}"));
        let mut found = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let more = next.as_deref().map(|token| format!("&nextToken={}", encoded(token)));
            let more = more.unwrap_or_default();
            let path =
                format!("v2/sandboxes?limit=100&state=running,paused&metadata={filter}{more}");
            let response = sent(self.request(Method::GET, &path, what)?, what).await?;
            let token = response.headers().get("x-next-token");
            next = token.and_then(|token| token.to_str().ok()).map(str::to_owned);
            let page: Vec<SandboxItem> = parse(&read(response, what).await?, what)?;
            // A provider that does not filter must not have us delete what is not ours.
            let is_ours = |one: &SandboxItem| {
                one.metadata.as_ref().and_then(|all| all.get(name)).is_some_and(|v| v == value)
            };
            found.extend(page.into_iter().filter(is_ours));
            if next.as_deref().is_none_or(str::is_empty) {
                return Ok(found);
            }
        }
        Err(RemoteError::Forged { what: "a list without end" })
    }

    fn request(&self, method: Method, path: &str, what: &'static str) -> Result<RequestBuilder> {
        let url = self.provider.url.join(path).map_err(|_| RemoteError::Forged { what })?;
        Ok(self.http.request(method, url))
    }
}

/// What every client of ours has: no detour, so that a key is sent where it was meant to go.
pub(super) fn client(headers: HeaderMap) -> reqwest::ClientBuilder {
    // Harmless where the process has chosen one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT)
        .default_headers(headers)
        .user_agent(concat!("cofferdam/", env!("CARGO_PKG_VERSION")))
}

pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// One that reaches the internet is refused, whatever it is else.
fn closed(text: &[u8], what: &'static str) -> Result<Size> {
    let size: Size = parse(text, what)?;
    match size.allow_internet_access {
        Some(true) => Err(RemoteError::Open),
        _ => Ok(size),
    }
}

fn there(answer: Result<Bytes>) -> Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(RemoteError::Refused { status: 404, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The body of an answer that is one of success.
pub(super) async fn good(request: RequestBuilder, what: &'static str) -> Result<Bytes> {
    read(sent(request, what).await?, what).await
}

pub(super) async fn sent(request: RequestBuilder, what: &'static str) -> Result<Response> {
    let response = request.send().await.map_err(|source| RemoteError::Lost { what, source })?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let said = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "the key is wrong".to_owned(),
        _ => words(&read(response, what).await?),
    };
    Err(RemoteError::Refused { what, status: status.as_u16(), said })
}

/// What a refusal says, in a line.
fn words(body: &[u8]) -> String {
    let value: Option<Value> = serde_json::from_slice(body).ok();
    let message = value.as_ref().and_then(|value| value.get("message")).and_then(Value::as_str);
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    text.chars().filter(|c| !c.is_control()).take(MAX_WORDS).collect()
}

async fn read(mut response: Response, what: &'static str) -> Result<Bytes> {
    let mut text = BytesMut::new();
    let lost = |source| RemoteError::Lost { what, source };
    while let Some(piece) = response.chunk().await.map_err(lost)? {
        if text.len() + piece.len() > MAX_ANSWER_BYTES {
            return Err(RemoteError::Forged { what });
        }
        text.extend_from_slice(&piece);
    }
    Ok(text.freeze())
}

fn parse<T: serde::de::DeserializeOwned>(text: &[u8], what: &'static str) -> Result<T> {
    serde_json::from_slice(text).map_err(|_| RemoteError::Forged { what })
}
