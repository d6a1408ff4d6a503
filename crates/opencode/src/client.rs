//! The calls, each on a connection of its own, bounded in bytes and in time.
//!
//! One file: every call of one client, each bounded in the same way.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use base64::Engine as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;

use crate::VERSION;
use crate::error::{Error, TurnError};
use crate::events::EventStream;
use crate::ids::{Ids, SessionId};
use crate::readback::{PromptProgress, ReadbackAction, read_back};
use crate::reply::{Answer, Conclusion, Fault, PendingQuestion, Record, Reply, replies, words};
use crate::request::{self, Agent, Prompt};

/// Where the daemon listens.
#[derive(Debug, Clone)]
pub enum Address {
    /// Loopback of this network namespace.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
    /// Wherever this leads, such as the loopback of a sandbox.
    Through(Arc<dyn Dial>),
}

/// A connection that somebody else makes.
pub trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

/// A connection on its way.
pub type DialFuture<'a> =
    Pin<Box<dyn Future<Output = io::Result<Box<dyn Connection>>> + Send + 'a>>;

/// Leads to a daemon that no address of this host reaches.
pub trait Dial: fmt::Debug + Send + Sync {
    /// One connection to it.
    fn dial(&self) -> DialFuture<'_>;
}

/// What a call may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// A call that waits for no model.
    pub call: Duration,
    /// A whole turn: many steps of a model, and commands between them.
    pub turn: Duration,
    /// Silence of the event stream: three heartbeats.
    pub silence: Duration,
    /// An answer, and a line of the event stream: a message holds what its tools printed.
    pub answer_bytes: usize,
    /// A session's history: all of its messages, each in many states.
    pub history_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            call: Duration::from_secs(30),
            turn: Duration::from_secs(3_600),
            silence: Duration::from_secs(30),
            answer_bytes: 8 << 20,
            history_bytes: 64 << 20,
        }
    }
}

/// A client of one daemon.
#[derive(Debug, Clone)]
pub struct Client {
    address: Address,
    authorization: HeaderValue,
    bounds: Bounds,
}

/// A response whose body is read as it comes; dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Exchange {
    status: StatusCode,
    body: Incoming,
    connection: JoinHandle<()>,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Exchange {
    /// The body's next bytes; `None` at its end.
    pub async fn bytes(
        &mut self,
        call: &'static str,
        silence: Duration,
    ) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = within(call, silence, self.body.frame()).await?;
            match frame {
                None => return Ok(None),
                Some(Err(source)) => return Err(Error::Cut { call, source: Some(source) }),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    async fn whole(
        &mut self,
        call: &'static str,
        max: usize,
        time: Duration,
    ) -> Result<Vec<u8>, Error> {
        let mut read = Vec::new();
        while let Some(bytes) = self.bytes(call, time).await? {
            if read.len().saturating_add(bytes.len()) > max {
                return Err(Error::TooLarge { call, max });
            }
            read.extend_from_slice(&bytes);
        }
        Ok(read)
    }
}

async fn within<T>(
    call: &'static str,
    time: Duration,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    let after_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    tokio::time::timeout(time, work).await.map_err(|_| Error::TimedOut { call, after_ms })
}

// What is read of the daemon's answers, and no more: a hostile one would be many times as large in memory.

#[derive(Deserialize)]
struct Health {
    version: Option<String>,
}

#[derive(Deserialize)]
struct Status {
    r#type: Option<String>,
}

#[derive(Deserialize)]
struct Child {
    id: Option<String>,
}

/// Names at most ten sessions that nobody may have made.
fn banned(sessions: Vec<Child>) -> Result<(), Error> {
    if sessions.is_empty() {
        return Ok(());
    }
    let id = |one: &Child| words(one.id.as_deref().unwrap_or("unnamed"));
    Err(Error::Children(sessions.iter().map(id).take(10).collect()))
}

/// One call: its name in errors, and what it sends.
struct DaemonCall {
    call: &'static str,
    method: Method,
    path: String,
    body: Option<Vec<u8>>,
}

fn get(call: &'static str, path: impl Into<String>) -> DaemonCall {
    DaemonCall { call, method: Method::GET, path: path.into(), body: None }
}

fn post(call: &'static str, path: impl Into<String>, body: Vec<u8>) -> DaemonCall {
    DaemonCall { call, method: Method::POST, path: path.into(), body: Some(body) }
}

/// An id of the daemon's as part of a path: letters, digits and `_` only, so that it names no other call.
fn plain<'a>(call: &'static str, id: &'a str) -> Result<&'a str, Error> {
    let is_plain = !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let why = || Error::Garbled { call, why: "an id with signs that belong to a path".to_owned() };
    is_plain.then_some(id).ok_or_else(why)
}

async fn exchange<S>(
    stream: S,
    request: Request<Full<Bytes>>,
    call: &'static str,
) -> Result<Exchange, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let cut = |source| Error::Cut { call, source: Some(source) };
    let (mut requests, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(cut)?;
    let connection = tokio::spawn(async move {
        // Its error reaches the reader of the body or of the response.
        let _ended = connection.await;
    });
    match requests.send_request(request).await {
        Ok(response) => {
            let (head, body) = response.into_parts();
            Ok(Exchange { status: head.status, body, connection })
        }
        Err(source) => {
            connection.abort();
            Err(cut(source))
        }
    }
}

impl Client {
    /// A client with the name and password that the daemon was started with.
    ///
    /// # Errors
    /// [`Error::NotLoopback`] or [`Error::Credentials`].
    pub fn new(
        address: Address,
        username: &str,
        password: &str,
        bounds: Bounds,
    ) -> Result<Self, Error> {
        if let Address::Tcp(tcp) = &address
            && !tcp.ip().is_loopback()
        {
            return Err(Error::NotLoopback(*tcp));
        }
        let pair =
            base64::engine::general_purpose::STANDARD.encode(format!("{username}:{password}"));
        let mut authorization =
            HeaderValue::try_from(format!("Basic {pair}")).map_err(|_| Error::Credentials)?;
        authorization.set_sensitive(true);
        Ok(Self { address, authorization, bounds })
    }

    async fn open(&self, sent: DaemonCall) -> Result<Exchange, Error> {
        let call = sent.call;
        let request = Request::builder()
            .method(sent.method)
            .uri(sent.path)
            .header("host", "localhost")
            .header("accept", "application/json, text/event-stream")
            .header("authorization", self.authorization.clone())
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(sent.body.unwrap_or_default())))
            .map_err(|error| Error::Garbled { call, why: error.to_string() })?;
        let unreachable = |source| Error::Unreachable { call, source };
        match &self.address {
            Address::Tcp(tcp) => {
                exchange(TcpStream::connect(tcp).await.map_err(unreachable)?, request, call).await
            }
            Address::Unix(path) => {
                exchange(UnixStream::connect(path).await.map_err(unreachable)?, request, call).await
            }
            Address::Through(dial) => {
                exchange(dial.dial().await.map_err(unreachable)?, request, call).await
            }
        }
    }

    /// The body of a successful answer.
    async fn bytes(&self, sent: DaemonCall, max: usize, time: Duration) -> Result<Vec<u8>, Error> {
        let call = sent.call;
        let work = async {
            let mut exchange = self.open(sent).await?;
            let status = exchange.status;
            Ok::<_, Error>((status, exchange.whole(call, max, time).await?))
        };
        let (status, bytes) = within(call, time, work).await??;
        match status {
            StatusCode::UNAUTHORIZED => Err(Error::Unauthorized { call }),
            StatusCode::NOT_FOUND => Err(Error::NotFound { call }),
            status if status.is_success() => Ok(bytes),
            status => {
                let fault: Option<Fault> = serde_json::from_slice(&bytes).ok();
                let (name, message) = fault
                    .map_or_else(Default::default, |fault| (words(&fault.name), fault.message()));
                Err(Error::Refused { call, status: status.as_u16(), name, message })
            }
        }
    }

    async fn json<T: DeserializeOwned>(
        &self,
        sent: DaemonCall,
        max: usize,
        time: Duration,
    ) -> Result<T, Error> {
        let call = sent.call;
        let bytes = self.bytes(sent, max, time).await?;
        // A path that the daemon does not know is its web page, with status 200.
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::Garbled { call, why: error.to_string() })
    }

    async fn short<T: DeserializeOwned>(&self, sent: DaemonCall) -> Result<T, Error> {
        self.json(sent, self.bounds.answer_bytes, self.bounds.call).await
    }

    async fn quiet(&self, sent: DaemonCall) -> Result<(), Error> {
        self.bytes(sent, self.bounds.answer_bytes, self.bounds.call).await.map(|_| ())
    }

    /// The daemon's version.
    ///
    /// # Errors
    /// What any call can fail with.
    pub async fn version(&self) -> Result<String, Error> {
        let call = "GET /global/health";
        let health: Health = self.short(get(call, "/global/health")).await?;
        health
            .version
            .as_deref()
            .map(words)
            .ok_or_else(|| Error::Garbled { call, why: "no version".to_owned() })
    }

    /// Refuses another version than [`VERSION`].
    ///
    /// # Errors
    /// [`Error::Version`] names both.
    pub async fn check_version(&self) -> Result<(), Error> {
        let found = self.version().await?;
        if found == VERSION { Ok(()) } else { Err(Error::Version { found, wanted: VERSION }) }
    }

    /// Creates the session, or finds it: one id is one session. Child sessions and questions are denied in it.
    ///
    /// # Errors
    /// What any call can fail with; repeating it is harmless.
    pub async fn create(
        &self,
        session: &SessionId,
        agent: Agent,
        directory: &str,
    ) -> Result<(), Error> {
        let body = request::create(session, agent, directory);
        self.quiet(post("POST /api/session", "/api/session", body)).await?;
        let mut permit = post(
            "PATCH /session/ID",
            format!("/session/{session}"),
            request::permit(session.as_str()),
        );
        permit.method = Method::PATCH;
        self.quiet(permit).await
    }

    /// Sends a prompt and waits for the turn's end. Read back first, and after every error but [`Error::Turn`].
    ///
    /// # Errors
    /// [`Error::Turn`] where the daemon ended the turn without an answer, which it says with status 200.
    pub async fn prompt(&self, prompt: &Prompt<'_>) -> Result<Answer, Error> {
        let call = "POST /session/ID/message";
        let path = format!("/session/{}/message", prompt.ids.session);
        let sent = post(call, path, request::prompt(prompt));
        let reply: Reply = self.json(sent, self.bounds.answer_bytes, self.bounds.turn).await?;
        if reply.prompt() != Some(prompt.ids.message()) {
            return Err(Error::Garbled { call, why: "the answer to another prompt".to_owned() });
        }
        match reply.conclusion() {
            Conclusion::Answered(answer) => Ok(answer),
            Conclusion::Failed(error) => Err(error.into()),
            Conclusion::Open => {
                let message = "the daemon answered before the turn's end".to_owned();
                Err(TurnError { name: "Unfinished".to_owned(), message }.into())
            }
        }
    }

    /// Sends a prompt and does not wait. The daemon says yes even where it will fail: follow the events.
    ///
    /// # Errors
    /// What any call can fail with.
    pub async fn prompt_async(&self, prompt: &Prompt<'_>) -> Result<(), Error> {
        let path = format!("/session/{}/prompt_async", prompt.ids.session);
        self.quiet(post("POST /session/ID/prompt_async", path, request::prompt(prompt))).await
    }

    /// Whether the daemon has the message of a prompt.
    ///
    /// # Errors
    /// What any call can fail with, an unknown message excepted.
    pub async fn has(&self, ids: &Ids) -> Result<bool, Error> {
        let path = format!("/session/{}/message/{}", ids.session, ids.message());
        match self.short::<IgnoredAny>(get("GET /session/ID/message/ID", path)).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The messages that answer a prompt, from the session's durable history.
    ///
    /// # Errors
    /// [`Error::Garbled`] where the history has records of another version.
    pub async fn replies(&self, ids: &Ids) -> Result<Vec<Reply>, Error> {
        let call = "POST /sync/history";
        let sent = post(call, "/sync/history", b"{}".to_vec());
        let records: Vec<Record> =
            self.json(sent, self.bounds.history_bytes, self.bounds.call).await?;
        replies(&records, ids.session.as_str(), ids.message())
            .map_err(|why| Error::Garbled { call, why })
    }

    /// Whether the session has a turn that goes on.
    ///
    /// # Errors
    /// What any call can fail with.
    pub async fn is_busy(&self, session: &SessionId) -> Result<bool, Error> {
        let all: BTreeMap<String, Status> =
            self.short(get("GET /session/status", "/session/status")).await?;
        let kind = all.get(session.as_str()).and_then(|status| status.r#type.as_deref());
        Ok(kind.is_some_and(|kind| kind != "idle"))
    }

    /// What became of a prompt: what to do before any send.
    ///
    /// # Errors
    /// What any call can fail with. Nothing is known then: send nothing.
    pub async fn read_back(&self, ids: &Ids) -> Result<ReadbackAction, Error> {
        let busy = self.is_busy(&ids.session).await?;
        let admitted = self.has(ids).await?;
        let replies = if admitted && !busy { self.replies(ids).await? } else { Vec::new() };
        Ok(read_back(&PromptProgress { busy, admitted, replies }))
    }

    /// Ends the run of a session that has children.
    ///
    /// # Errors
    /// [`Error::Children`] names them.
    pub async fn check_children(&self, session: &SessionId) -> Result<(), Error> {
        let path = format!("/session/{session}/children");
        let children: Vec<Child> = self.short(get("GET /session/ID/children", path)).await?;
        banned(children)
    }

    /// The same for every other session of the daemon: who runs beside ours has no row and no place on record.
    ///
    /// # Errors
    /// [`Error::Children`] names them.
    pub async fn check_alone(&self, session: &SessionId) -> Result<(), Error> {
        let mut all: Vec<Child> = self.short(get("GET /session", "/session")).await?;
        all.retain(|one| one.id.as_deref() != Some(session.as_str()));
        banned(all)
    }

    /// Ends the session's turn; harmless where none goes on.
    ///
    /// # Errors
    /// What any call can fail with.
    pub async fn abort(&self, session: &SessionId) -> Result<(), Error> {
        let path = format!("/session/{session}/abort");
        self.quiet(post("POST /session/ID/abort", path, Vec::new())).await
    }

    /// Permissions that turns of this session wait for.
    ///
    /// # Errors
    /// What any call can fail with.
    pub async fn permissions(&self, session: &SessionId) -> Result<Vec<PendingQuestion>, Error> {
        let all: Vec<PendingQuestion> = self.short(get("GET /permission", "/permission")).await?;
        Ok(all.into_iter().filter(|one| one.session == session.as_str()).collect())
    }

    /// Grants a permission once, or rejects it, which ends the turn.
    ///
    /// # Errors
    /// [`Error::NotFound`] where it was answered already.
    pub async fn answer_permission(
        &self,
        pending: &PendingQuestion,
        once: bool,
    ) -> Result<(), Error> {
        let call = "POST /permission/ID/reply";
        let path = format!("/permission/{}/reply", plain(call, &pending.id)?);
        self.quiet(post(call, path, request::permission(once))).await
    }

    /// Questions to a person that turns of this session wait for.
    ///
    /// # Errors
    /// What any call can fail with.
    pub async fn questions(&self, session: &SessionId) -> Result<Vec<PendingQuestion>, Error> {
        let all: Vec<PendingQuestion> = self.short(get("GET /question", "/question")).await?;
        Ok(all.into_iter().filter(|one| one.session == session.as_str()).collect())
    }

    /// Rejects a question, which ends the turn.
    ///
    /// # Errors
    /// [`Error::NotFound`] where it was answered already.
    pub async fn reject_question(&self, pending: &PendingQuestion) -> Result<(), Error> {
        let call = "POST /question/ID/reject";
        let path = format!("/question/{}/reject", plain(call, &pending.id)?);
        self.quiet(post(call, path, Vec::new())).await
    }

    /// Opens the events of a session, and misses none that comes after this has returned. To re-attach: open, then read back once more, then follow, so no end is missed.
    ///
    /// # Errors
    /// What any call can fail with.
    pub async fn events(&self, session: &SessionId) -> Result<EventStream, Error> {
        let call = "GET /global/event";
        let exchange =
            within(call, self.bounds.call, self.open(get(call, "/global/event"))).await??;
        match exchange.status {
            StatusCode::UNAUTHORIZED => Err(Error::Unauthorized { call }),
            status if status.is_success() => {
                let Bounds { silence, answer_bytes, .. } = self.bounds;
                let mut events = EventStream::new(exchange, silence, answer_bytes, session.clone());
                // The answer's head comes before the daemon listens for events; its first word after that.
                within(call, self.bounds.call, events.next()).await??;
                Ok(events)
            }
            status => {
                let (name, message) = (String::new(), String::new());
                Err(Error::Refused { call, status: status.as_u16(), name, message })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_the_daemon_names_no_other_call() {
        assert_eq!(plain("c", "per_1aZ").unwrap(), "per_1aZ");
        for id in ["", "a/../b", "a?b", "a b", "%2e"] {
            assert!(matches!(plain("c", id), Err(Error::Garbled { .. })), "{id:?}");
        }
    }
}
