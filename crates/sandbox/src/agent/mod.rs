//! The host's end of the stream: an HTTP/2 client that trusts nothing it reads.
//!
//! The agent shares its sandbox with the task, so every answer is bounded, and one that is not
//! what the agent would say is an error and never a panic.

mod archive;
mod body;
pub(crate) mod changes;
mod collection;
mod command_input;
mod doors;
pub(crate) mod excess;
#[cfg(test)]
mod forged;
pub(crate) mod gitignore;
mod job;
pub(crate) mod layer_stream;
mod persistent_stream;
mod run;
pub(crate) mod sink;
mod sleep;
mod snapshot;
pub(crate) mod stop;
mod tree;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use body::RequestBody;
use bytes::Bytes;
use cofferdam_guest::frame::{Decoder, FrameError, Kind};
use cofferdam_guest::wire::{self, ExecEnd, ExecRequest, Health, Refusal};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use persistent_stream::{PersistentStream, Sleep, asleep};
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::sync::watch;

use crate::agent::excess::Excess;
use crate::host::task::Driver;

pub use collection::{
    CollectedFile, CollectedHead, Collection, CollectionEnd, CollectionItem, CollectionStream,
};
pub use command_input::CommandInput;
pub(crate) use doors::DoorConnection;
pub use run::{CommandControl, CommandEvent, CommandHandle, ExecOptions};
pub use sink::{OutputSink, Stream};
pub use snapshot::{IgnoreRules, SnapshotError};
pub use tree::{AgentFiles, FileReader, WatchStream};

/// Bytes of a short answer.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// What an agent may send ahead of us, and so what a flood costs the host: at most the larger one
/// for every sandbox. It is that of all streams together (an agent serves 64), so that readers who stop, such as
/// strangers at a port, take nothing from the others. Half of it is the library's budget for small pieces that nobody reads
/// yet: beyond it gives up the connection, and with it the sandbox. Frames are never small
/// (`cofferdam_guest::frame::MIN_PIECE`), so this is for the bytes of dialled ports.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// What is wrong with an answer.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The stream ended or is not HTTP/2.
    #[error("the agent's connection failed")]
    Connection(#[from] hyper::Error),
    /// The body ended before its end frame.
    #[error("the agent hung up in the middle of an answer")]
    Lost,
    /// The agent said no.
    #[error("the agent refused with {status}: {error}")]
    Refused {
        /// HTTP status of the agent's answer.
        status: u16,
        /// Why, in the agent's words.
        error: String,
    },
    /// The answer is not a sequence of frames.
    #[error("the agent's answer is malformed")]
    Frame(#[from] FrameError),
    /// Frames that make no sense.
    #[error("the agent's answer is malformed: {0}")]
    Forged(&'static str),
    /// A collection that did not succeed.
    #[error("{0}")]
    Collect(String),
    /// A collection whose files are too many or too large.
    #[error(transparent)]
    Excess(#[from] Excess),
    /// An agent that came before the route.
    #[error("the agent in this sandbox has routes of level {has}, and this needs level {needs}")]
    Old {
        /// Level that the agent says it has.
        has: u32,
        /// The least level that has the route ([`wire::LEVEL`]).
        needs: u32,
    },
    /// A request that has no HTTP form; paths are checked before, so this is our fault.
    #[error("the request could not be written")]
    Request(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl AgentError {
    /// Whether the agent is gone, rather than wrong.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Connection(_) | Self::Lost)
    }
}

type Result<T> = std::result::Result<T, AgentError>;

type AgentRequests = http2::SendRequest<RequestBody>;

/// A connected agent.
#[derive(Debug, Clone)]
pub struct Agent {
    /// Over the stream that is up: one elsewhere may be followed by another.
    requests: Arc<Mutex<AgentRequests>>,
    /// What its health said; the first level until then.
    level: Arc<AtomicU32>,
    last_id: Arc<AtomicU64>,
    sleep: watch::Sender<Sleep>,
}

impl Agent {
    /// Starts HTTP/2 on the stream. What drives it owns the stream: dropping it closes our end, which ends
    /// the sandbox, unless that is elsewhere.
    pub(crate) async fn connect(stream: UnixStream) -> Result<(Self, Driver)> {
        let sleep = watch::Sender::new(Sleep::Awake);
        let (requests, driver) = handshake(stream, &sleep).await?;
        let (requests, level) = (Arc::new(Mutex::new(requests)), Arc::new(AtomicU32::new(1)));
        Ok((Self { requests, level, last_id: Arc::default(), sleep }, driver))
    }

    fn lock(&self) -> MutexGuard<'_, AgentRequests> {
        // A poisoned lock only means that somebody panicked beside it; the handle is whole.
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is there, and which routes it has: asked first, so that an old agent never meets
    /// what it does not know.
    pub async fn health(&self) -> Result<Health> {
        let response = self.send(Method::GET, wire::HEALTH, Bytes::new()).await?;
        let health: Health = parse(&short(response).await?)?;
        self.level.store(health.level, Ordering::Release);
        Ok(health)
    }

    /// The files of its sandbox.
    #[must_use]
    pub fn files(&self) -> AgentFiles<'_> {
        AgentFiles { agent: self }
    }

    fn needs(&self, needs: u32) -> Result<()> {
        let has = self.level.load(Ordering::Acquire);
        if has < needs { Err(AgentError::Old { has, needs }) } else { Ok(()) }
    }

    /// Runs a command; `sink` gets its output as it comes, at most the request's limit for each
    /// stream whatever the agent sends.
    pub(crate) async fn exec(
        &self,
        request: &ExecRequest,
        sink: impl OutputSink,
    ) -> Result<ExecEnd> {
        let response = self.send(Method::POST, wire::EXEC, encode(request)?).await?;
        let limit = request.stream_limit_bytes;
        follow(&mut Frames::of(response), limit, limit, sink).await
    }

    async fn send(&self, method: Method, route: &str, body: Bytes) -> Result<Response<Incoming>> {
        self.request(method, route, RequestBody::Whole(Some(body))).await
    }

    async fn request(
        &self,
        method: Method,
        route: &str,
        body: RequestBody,
    ) -> Result<Response<Incoming>> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://guest{route}"))
            .body(body)
            .map_err(|error| AgentError::Request(error.into()))?;
        let mut requests = self.lock().clone();
        requests.ready().await?;
        let response = requests.send_request(request).await?;
        if matches!(response.status(), StatusCode::OK | StatusCode::NO_CONTENT) {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let refusal: Refusal = parse(&short(response).await?)?;
        Err(AgentError::Refused { status, error: refusal.error })
    }
}

async fn handshake(
    stream: UnixStream,
    sleep: &watch::Sender<Sleep>,
) -> Result<(AgentRequests, Driver)> {
    let (stream, held) = twice(stream).map_err(|error| AgentError::Request(error.into()))?;
    let (requests, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        // What was on its way when a stream was let go is reset, and the library ends a connection after
        // a thousand of these. A sandbox lives longer, and whoever floods costs its own processor's time.
        .max_local_error_reset_streams(None)
        .handshake(TokioIo::new(PersistentStream(stream)))
        .await?;
    let sleep = sleep.clone();
    let driver = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an agent's connection ended");
        }
        let is_called = *sleep.borrow() == Sleep::Called;
        if is_called && let Ok(stream) = asleep(held).await {
            sleep.send_replace(Sleep::Asleep);
            // Its agent ends with the stream, whose other handle is here: until this task is dropped.
            std::future::pending::<()>().await;
            drop(stream);
        }
    });
    Ok((requests, Driver(driver)))
}

/// Two handles of one stream.
fn twice(stream: UnixStream) -> std::io::Result<(UnixStream, std::os::unix::net::UnixStream)> {
    let stream = stream.into_std()?;
    let held = stream.try_clone()?;
    Ok((UnixStream::from_std(stream)?, held))
}

/// Gives a command's output to `sink` up to its end, at most so many bytes of each stream.
async fn follow(
    frames: &mut Frames,
    mut stdout: u64,
    mut stderr: u64,
    mut sink: impl OutputSink,
) -> Result<ExecEnd> {
    loop {
        let (kind, payload) = frames.next().await?;
        let (stream, room) = match kind {
            Kind::Stdout => (Stream::Stdout, &mut stdout),
            Kind::Stderr => (Stream::Stderr, &mut stderr),
            Kind::End => return parse(&payload),
            _ => return Err(AgentError::Forged("a file in an exec")),
        };
        *room = room
            .checked_sub(wide(payload.len()))
            .ok_or(AgentError::Forged("more output than was asked for"))?;
        sink.take(stream, &payload);
        sink.room().await;
    }
}

const TOO_MUCH: AgentError = AgentError::Forged("more files or bytes than were asked for");

#[derive(Debug)]
struct Frames {
    body: Incoming,
    decoder: Decoder,
}

impl Frames {
    fn of(response: Response<Incoming>) -> Self {
        Self { body: response.into_body(), decoder: Decoder::default() }
    }

    async fn next(&mut self) -> Result<(Kind, Bytes)> {
        loop {
            if let Some(frame) = self.decoder.next_frame()? {
                return Ok(frame);
            }
            let frame = self.body.frame().await.ok_or(AgentError::Lost)??;
            if let Ok(bytes) = frame.into_data() {
                self.decoder.push(&bytes);
            }
        }
    }
}

async fn short(response: Response<Incoming>) -> Result<Bytes> {
    let limited = Limited::new(response.into_body(), MAX_ANSWER_BYTES);
    let collected = limited.collect().await.map_err(|error| match error.downcast() {
        Ok(error) => AgentError::Connection(*error),
        Err(_) => AgentError::Forged("an answer without end"),
    })?;
    Ok(collected.to_bytes())
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|_| AgentError::Forged("not the JSON of this route"))
}

fn encode<T: serde::Serialize>(value: &T) -> Result<Bytes> {
    let bytes = serde_json::to_vec(value).map_err(|error| AgentError::Request(error.into()))?;
    Ok(bytes.into())
}

fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
