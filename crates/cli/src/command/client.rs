//! The API from the caller's side.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use cofferdam_contracts::artifact::ArtifactRow;
use cofferdam_contracts::error::{ErrorBody, ErrorCode};
use reqwest::header::{CONTENT_TYPE, LINK, RANGE};
use reqwest::{Method, RequestBuilder, Response};
use rustls::InvalidMessage;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::database::WrongDatabase;
use super::exit::Negative;
use super::local::Socket;

/// Bytes of an answer that the command line reads: artifacts are at most 64 MiB.
const MAX_ANSWER_BYTES: u64 = 128 * 1024 * 1024;

/// The URL that requests over a socket begin with: the connection goes to the socket, whatever the name.
const SOCKET_URL: &str = "http://localhost";

/// A server that lives answers, or says in 2 s that its database does not.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a server that listens on the socket of a state directory cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerFault {
    /// No file says where it is.
    Unannounced,
    /// It ended after it was found.
    Gone,
    /// It gave no answer within 5 s, or broke off before one.
    Silent,
    /// An answer that is not understood.
    Unreadable,
    /// It does not reach its database.
    Databaseless,
}

impl ServerFault {
    pub(crate) fn says(self, dir: &Path) -> WrongDatabase {
        let dir = dir.display();
        match self {
            Self::Unannounced => WrongDatabase::new(
                "server_unannounced",
                format!(
                    "a server listens in {dir}, and {dir}/endpoint.json cannot be read: start it again"
                ),
            ),
            Self::Gone | Self::Silent => WrongDatabase::new(
                "server_silent",
                format!(
                    "the server of {dir} does not answer: nothing was asked; look at its log, or start it again"
                ),
            ),
            Self::Unreadable => WrongDatabase::new(
                "server_unreadable",
                format!(
                    "the answer of the server of {dir} is not understood: use a command line of its version"
                ),
            ),
            Self::Databaseless => WrongDatabase::new(
                "database_unreachable",
                format!(
                    "the server of {dir} does not reach its database: nothing was asked; try again when that is back"
                ),
            ),
        }
    }
}

/// A server and a key to it.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    /// The URL that requests begin with.
    base: String,
    /// The address for people, in links.
    url: String,
    key: String,
    /// Held, so that every connection goes to the socket that was looked at.
    _socket: Option<Socket>,
}

impl Client {
    /// A server at an address: one that the caller names, or that this process itself is.
    pub(crate) fn new(url: &str, key: &str) -> anyhow::Result<Self> {
        Self::by(url, key, None)
    }

    /// The server behind a socket; `url` is its address for people.
    pub(crate) fn local(socket: Socket, url: &str, key: &str) -> anyhow::Result<Self> {
        Self::by(url, key, Some(socket))
    }

    fn by(url: &str, key: &str, socket: Option<Socket>) -> anyhow::Result<Self> {
        // The database driver brings ring along; one provider is enough. A second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Loopback and fleets are reached directly; an environment's proxy is for the outside.
        let mut http = reqwest::Client::builder().no_proxy();
        let url = url.trim_end_matches('/').to_owned();
        let mut base = url.clone();
        if let Some(socket) = &socket {
            http = http.unix_socket(socket.path());
            base = SOCKET_URL.to_owned();
        }
        Ok(Self { http: http.build()?, base, url, key: key.to_owned(), _socket: socket })
    }

    /// Whether the server answers and reaches its database: without a worker it says 503 and serves.
    pub(crate) async fn look(&self) -> Result<Value, ServerFault> {
        let asked = self.http.get(format!("{}/healthz", self.base)).timeout(PATIENCE).send();
        let health = match asked.await {
            Ok(answer) => answer.json::<Value>().await.map_err(|_| ServerFault::Unreadable)?,
            Err(error) if error.is_connect() => return Err(ServerFault::Gone),
            Err(_) => return Err(ServerFault::Silent),
        };
        match health.get("db").and_then(Value::as_bool) {
            Some(true) => Ok(health),
            Some(false) => Err(ServerFault::Databaseless),
            None => Err(ServerFault::Unreadable),
        }
    }

    /// Workers that are heard of; `None` where that is not known.
    pub(crate) async fn workers(&self) -> Option<u64> {
        let asked = self.http.get(format!("{}/healthz", self.base)).send().await.ok()?;
        asked.json::<Value>().await.ok()?.get("workers")?.as_u64()
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        read(self.send(Method::GET, path, None).await?).await
    }

    /// Gives page after page of a list, of `most` rows in all or of every one; whether others follow.
    ///
    /// # Errors
    /// As of [`Client::page`].
    pub(crate) async fn pages<T: DeserializeOwned>(
        &self,
        mut path: String,
        most: Option<u32>,
        mut take: impl FnMut(&[T]),
    ) -> anyhow::Result<bool> {
        let mut left = most.map(usize::try_from).transpose()?;
        loop {
            let (mut rows, next) = self.page::<T>(&path).await?;
            let mut has_more = next.is_some();
            if let Some(left) = &mut left {
                has_more |= rows.len() > *left;
                rows.truncate(*left);
                *left -= rows.len();
            }
            take(&rows);
            match next {
                Some(next) if left != Some(0) => path = next,
                _ => return Ok(has_more),
            }
        }
    }

    /// A page of a list, and the path of the page after it.
    ///
    /// # Errors
    /// A path that is not this list's own is not followed.
    pub(crate) async fn page<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> anyhow::Result<(Vec<T>, Option<String>)> {
        let answer = self.send(Method::GET, path, None).await?;
        let link = answer.headers().get(LINK).and_then(|link| link.to_str().ok());
        let next = link.and_then(next_of).map(str::to_owned);
        let of_list = |path: &str| path.split('?').next().map(str::to_owned);
        if next.as_deref().is_some_and(|next| of_list(next) != of_list(path)) {
            anyhow::bail!(
                "the server's next page is of another list; use the client of the server's version"
            );
        }
        Ok((read(answer).await?, next))
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<T> {
        read(self.send(Method::POST, path, Some(body)).await?).await
    }

    pub(crate) async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<T> {
        read(self.send(Method::PUT, path, Some(body)).await?).await
    }

    /// Sends bytes of any kind.
    pub(crate) async fn put_bytes<T: DeserializeOwned>(
        &self,
        path: &str,
        bytes: Vec<u8>,
    ) -> anyhow::Result<T> {
        let request = self.keyed(Method::PUT, path);
        let request = request.header(CONTENT_TYPE, "application/octet-stream").body(bytes);
        read(self.answered(request).await?).await
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        read(self.send(Method::DELETE, path, None).await?).await
    }

    /// The last bytes of an artifact, at most so many.
    pub(crate) async fn artifact_end(
        &self,
        row: &ArtifactRow,
        most: u64,
    ) -> anyhow::Result<Vec<u8>> {
        let mut bytes = self.artifact_range(row, format!("bytes=-{most}")).await?;
        // A server from before ranges sends all of it.
        let over = bytes.len().saturating_sub(usize::try_from(most).unwrap_or(usize::MAX));
        bytes.drain(..over);
        Ok(bytes)
    }

    /// The first bytes of an artifact, at most so many.
    pub(crate) async fn artifact_begin(
        &self,
        row: &ArtifactRow,
        most: u64,
    ) -> anyhow::Result<Vec<u8>> {
        let last = most.saturating_sub(1);
        let mut bytes = self.artifact_range(row, format!("bytes=0-{last}")).await?;
        bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(bytes)
    }

    async fn artifact_range(&self, row: &ArtifactRow, range: String) -> anyhow::Result<Vec<u8>> {
        // No range lies in nothing.
        match row.size {
            0 => Ok(Vec::new()),
            _ => self.artifact_bytes(&row.uri, Some(range)).await,
        }
    }

    /// The bytes of an artifact, by its URI.
    pub(crate) async fn artifact(&self, uri: &str) -> anyhow::Result<Vec<u8>> {
        self.artifact_bytes(uri, None).await
    }

    /// The bytes of an artifact as they come.
    pub(crate) async fn artifact_stream(&self, uri: &str) -> anyhow::Result<Response> {
        self.open(&artifact_path(uri)).await
    }

    async fn artifact_bytes(&self, uri: &str, range: Option<String>) -> anyhow::Result<Vec<u8>> {
        let path = artifact_path(uri);
        let mut request = self.keyed(Method::GET, &path);
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        let answer = success(self.answered(request).await?).await?;
        if answer.content_length().is_some_and(|n| n > MAX_ANSWER_BYTES) {
            anyhow::bail!(
                "the artifact is larger than {MAX_ANSWER_BYTES} bytes; fetch it from the API"
            );
        }
        Ok(answer.bytes().await?.to_vec())
    }

    /// Whether the server is on this host: behind a socket, or at a loopback address.
    pub(crate) fn is_on_this_host(&self) -> bool {
        let host = self.base.split("://").nth(1).unwrap_or_default();
        ["localhost", "127.", "[::1]"].iter().any(|own| host.starts_with(own))
    }

    /// An answer to be read as it comes.
    pub(crate) async fn open(&self, path: &str) -> anyhow::Result<Response> {
        success(self.send(Method::GET, path, None).await?).await
    }

    /// A request with the caller's key, whose answer the caller reads.
    pub(crate) fn keyed(&self, method: Method, path: &str) -> RequestBuilder {
        self.keyless(method, path).bearer_auth(&self.key)
    }

    /// A request without the caller's key, such as one that carries a token.
    pub(crate) fn keyless(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Response> {
        let mut request = self.keyed(method, path);
        if let Some(body) = body {
            request = request.json(body);
        }
        self.answered(request).await
    }

    async fn answered(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        request.send().await.map_err(|error| {
            let url = &self.url;
            match (url.strip_prefix("https://"), speaks_no_tls(&error)) {
                (Some(host), true) => {
                    anyhow::anyhow!("the server at {url} answers without TLS: write http://{host}")
                }
                _ => anyhow::Error::from(error)
                    .context(format!("the server at {url} does not answer")),
            }
        })
    }
}

/// Whether what answered a TLS handshake is not TLS.
fn speaks_no_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let said = |error: &(dyn std::error::Error + 'static)| {
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        // An `io::Error` gives the cause of what it wraps, not that itself.
        let tls = match wrapped {
            Some(wrapped) => wrapped.downcast_ref::<rustls::Error>(),
            None => error.downcast_ref::<rustls::Error>(),
        };
        matches!(tls, Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)))
    };
    std::iter::successors(Some(error), |error| error.source()).any(said)
}

/// The answer of a request that succeeded.
async fn success(answer: Response) -> anyhow::Result<Response> {
    if answer.status().is_success() { Ok(answer) } else { Err(refused(answer).await) }
}

async fn read<T: DeserializeOwned>(answer: Response) -> anyhow::Result<T> {
    success(answer).await?.json().await.context(
        "the server's answer does not fit this version; use the client of the server's version",
    )
}

/// What the server refused, and may refuse for another reason when the caller does something about it.
#[derive(Debug)]
pub(crate) struct ApiRefusal {
    text: String,
    pub code: ErrorCode,
    /// As the answer's `details`.
    pub details: Option<Value>,
}

impl std::fmt::Display for ApiRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ApiRefusal {}

async fn refused(answer: Response) -> anyhow::Error {
    let status = answer.status();
    let Ok(body) = answer.json::<ErrorBody>().await else {
        return anyhow::anyhow!("the server answered {status}");
    };
    let mut text = format!("{} ({})", body.error, body.code.as_str());
    if let Some(drift) = body.details.as_ref().and_then(|d| d.get("drift")) {
        text.push_str(&format!(": {drift}"));
    }
    match body.code {
        ErrorCode::NotFound
        | ErrorCode::Conflict
        | ErrorCode::StateConflict
        | ErrorCode::WrongServer
        | ErrorCode::DedupeConflict
        | ErrorCode::LinkSpent
        | ErrorCode::Erased
        | ErrorCode::TopicMismatch => Negative(text).into(),
        _ => ApiRefusal { text, code: body.code, details: body.details }.into(),
    }
}

/// The address that a header `Link` gives for the page after: the only one that we write.
fn next_of(link: &str) -> Option<&str> {
    link.strip_prefix('<')?.strip_suffix(">; rel=\"next\"")
}

/// Where an artifact is read. A task's name and a file's path may have what means something else in a URL.
fn artifact_path(uri: &str) -> String {
    let parts = uri.trim_start_matches("artifact://").split('/').map(segment);
    format!("/api/artifacts/{}", parts.collect::<Vec<_>>().join("/"))
}

/// A path segment.
pub(crate) fn segment(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
