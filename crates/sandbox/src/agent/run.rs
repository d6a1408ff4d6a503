//! Commands that can be talked to, and ports.

use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use cofferdam_guest::frame::Kind;
use cofferdam_guest::process::{Control, RunRequest, Size, StartFrame, Usage};
use cofferdam_guest::sleep::MAX_NOTE;
use cofferdam_guest::wire::{self, ExecEnd, ExecRequest};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Method, Response};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::body::RequestBody;
use super::{Agent, AgentError, Frames, OutputSink, Result, Stream, encode, follow, parse, short};

/// Pieces on their way to a command or port; the writer waits beyond.
pub(super) const QUEUED: usize = 4;
/// What a dialled stream holds each way, and one read of it.
const DUPLEX_BYTES: usize = 64 * 1024;

/// How a command is run, beyond what an exec knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExecOptions {
    /// Whether it gets input.
    pub stdin: bool,
    /// A terminal of this size.
    pub terminal: Option<Size>,
    /// It outlives the commands.
    pub service: bool,
    /// What it leaves running lives on after its end.
    pub leaves: bool,
}

/// What comes from a command.
#[derive(Debug)]
pub enum CommandEvent {
    /// A piece of its output.
    Output(Stream, Bytes),
    /// Its end, after which nothing comes.
    End(Box<ExecEnd>),
}

/// A command that runs. Dropping it, or what [`CommandHandle::follow`] gave, kills the command.
#[derive(Debug)]
pub struct CommandHandle {
    pub(super) agent: Agent,
    pub(super) id: u64,
    pub(super) frames: Frames,
    pub(super) limit: u64,
    pub(super) pid: Option<u32>,
    /// What came in the place of its process id.
    pub(super) first: Option<(Kind, Bytes)>,
}

/// What can be said to a running command.
#[derive(Debug, Clone)]
pub struct CommandControl {
    agent: Agent,
    id: u64,
}

impl CommandHandle {
    /// Its other half, for another task.
    #[must_use]
    pub fn remote(&self) -> CommandControl {
        CommandControl { agent: self.agent.clone(), id: self.id }
    }

    /// Its number among the agent's commands, by which [`Agent::remote`] finds it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.id
    }

    /// Its process id as its sandbox sees it, where it was started with [`ExecOptions::leaves`] and did start.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// The next piece of it. Who does not ask stops the command once its pipes are full.
    pub async fn next(&mut self) -> Result<CommandEvent> {
        let (kind, payload) = match self.first.take() {
            Some(first) => first,
            None => self.frames.next().await?,
        };
        match kind {
            Kind::Stdout => Ok(CommandEvent::Output(Stream::Stdout, payload)),
            Kind::Stderr => Ok(CommandEvent::Output(Stream::Stderr, payload)),
            Kind::End => Ok(CommandEvent::End(Box::new(parse(&payload)?))),
            _ => Err(AgentError::Forged("a file in a command's output")),
        }
    }

    /// Follows it to its end.
    pub async fn follow(self, sink: impl FnMut(Stream, &[u8]) + Send) -> Result<ExecEnd> {
        self.follow_into(sink).await
    }

    /// Follows it for a sink that may make the command wait.
    pub(crate) async fn follow_into(mut self, sink: impl OutputSink) -> Result<ExecEnd> {
        follow(&mut self.frames, self.limit, self.limit, sink).await
    }
}

impl CommandControl {
    /// Gives it all its input, as the pieces come, then the end of input. It may be called once.
    pub async fn stdin(&self, pieces: mpsc::Receiver<Bytes>) -> Result<()> {
        let route = format!("{}?id={}", wire::STDIN, self.id);
        self.agent.request(Method::PUT, &route, RequestBody::Stream(pieces)).await.map(|_| ())
    }

    /// Sends a signal to its process group.
    pub async fn signal(&self, signal: i32) -> Result<()> {
        self.control(&Control { id: self.id, signal: Some(signal), size: None }).await
    }

    /// Gives its terminal a new size.
    pub async fn resize(&self, size: Size) -> Result<()> {
        self.control(&Control { id: self.id, signal: None, size: Some(size) }).await
    }

    async fn control(&self, control: &Control) -> Result<()> {
        self.agent.send(Method::POST, wire::CONTROL, encode(control)?).await.map(|_| ())
    }
}

impl Agent {
    /// Starts a command; its end tells whether it could be.
    pub async fn start(&self, exec: ExecRequest, options: ExecOptions) -> Result<CommandHandle> {
        self.start_noted(exec, options, String::new()).await
    }

    /// The same with a note that is kept beside the command while it runs, for whoever follows it after a sleep.
    pub async fn start_noted(
        &self,
        exec: ExecRequest,
        options: ExecOptions,
        note: String,
    ) -> Result<CommandHandle> {
        self.launch(None, exec, options, note).await
    }

    /// The same in a root of its own, a directory of the sandbox: program, user and working directory are of that root.
    pub(crate) async fn launch(
        &self,
        root: Option<String>,
        exec: ExecRequest,
        options: ExecOptions,
        mut note: String,
    ) -> Result<CommandHandle> {
        self.needs(if root.is_some() { 14 } else { 2 })?;
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let limit = exec.stream_limit_bytes;
        let ExecOptions { stdin, terminal, service, leaves } = options;
        if leaves {
            self.needs(8)?;
        }
        if note.len() > MAX_NOTE || self.needs(9).is_err() {
            note.clear();
        }
        let request = RunRequest { exec, id, stdin, terminal, service, leaves, note, root };
        let response = self.send(Method::POST, wire::RUN, encode(&request)?).await?;
        let (mut frames, mut pid, mut first) = (Frames::of(response), None, None);
        if leaves {
            match frames.next().await? {
                (Kind::Begun, payload) => pid = Some(parse::<StartFrame>(&payload)?.pid),
                other => first = Some(other),
            }
        }
        Ok(CommandHandle { agent: self.clone(), id, frames, limit, pid, first })
    }

    /// What can be said to the command of this number; once it has ended, that is refused.
    #[must_use]
    pub fn remote(&self, number: u64) -> CommandControl {
        CommandControl { agent: self.clone(), id: number }
    }

    /// What the sandbox uses, as it says: the task may have taken the agent over.
    pub async fn metrics(&self) -> Result<Usage> {
        self.needs(2)?;
        let response = self.send(Method::GET, wire::METRICS, Bytes::new()).await?;
        parse(&short(response).await?)
    }

    /// A byte stream to a port of the sandbox's loopback; refused where nobody listens.
    pub async fn dial(&self, port: u16) -> Result<DuplexStream> {
        self.needs(2)?;
        let (pieces, body) = mpsc::channel(QUEUED);
        let route = format!("{}?port={port}", wire::DIAL);
        let response = self.request(Method::POST, &route, RequestBody::Stream(body)).await?;
        Ok(join(response, pieces).0)
    }
}

/// The two bodies of a request as one stream, and what ends when the answer does.
pub(super) fn join(
    response: Response<Incoming>,
    pieces: mpsc::Sender<Bytes>,
) -> (DuplexStream, JoinHandle<()>) {
    let (ours, theirs) = tokio::io::duplex(DUPLEX_BYTES);
    let (from, to) = tokio::io::split(theirs);
    let outward = tokio::spawn(send(from, pieces));
    let inward = tokio::spawn(async move {
        receive(response.into_body(), to).await;
        outward.abort();
    });
    (ours, inward)
}

async fn send(mut from: impl tokio::io::AsyncRead + Unpin, pieces: mpsc::Sender<Bytes>) {
    loop {
        let mut buffer = BytesMut::with_capacity(DUPLEX_BYTES);
        match from.read_buf(&mut buffer).await {
            Ok(count) if count > 0 => {
                if pieces.send(buffer.freeze()).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

async fn receive(mut body: Incoming, mut to: impl tokio::io::AsyncWrite + Unpin) {
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(bytes) = frame.into_data() else { continue };
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
