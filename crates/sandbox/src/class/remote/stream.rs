//! The agent's stream: what the provider carries of its process, as one end of a socket pair.
//!
//! ```text
//! Agent <-> socket pair <-> pump --SendInput, one after another--> stdin of the agent
//!                            ^------ events of the answer -------- stdout, stderr: the last words
//!                            '------ four times a term ----------- the term, prolonged
//! ```
//! Nothing is held but one piece each way, so whoever is slow holds up whoever is fast. A stream that ends
//! ends no sandbox: the next one goes to the same agent (`reattach`), this worker's or another's. A sandbox
//! that is killed is deleted; a worker that is killed prolongs nothing, and it ends by itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use reqwest::Response;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use cofferdam_ambient::clock;
use cofferdam_contracts::sandbox::Limits;
use cofferdam_guest::wire::{ExecEnd, ExecRequest};

use super::api::{Api, RemoteError, Result, Size};
use super::envd::Envd;
use super::frames::{Event, MessageFrames};
use crate::agent::{Agent, AgentError};
use crate::class::isolation::{LaunchResult, RemoteLine, RuntimeFuture, RuntimeHandle, TakeOutput};
use crate::class::tail::keep_last;
use crate::host::task::Driver;
use crate::spec::provider::RemoteLocation;

/// One piece of input: as much as the agent lets the host send ahead, so that a round trip is not paid
/// more often than must be.
const PIECE_BYTES: usize = 256 * 1024;

/// The handle on a sandbox elsewhere.
#[derive(Debug, Clone)]
pub(super) struct RemoteHandle {
    pub(super) held: Arc<RemoteSandbox>,
    cut: Arc<watch::Sender<bool>>,
    up: Arc<Mutex<ActiveStream>>,
}

/// The stream that is up, or was the last.
#[derive(Debug)]
struct ActiveStream {
    ended: watch::Receiver<()>,
    /// Of one that followed another.
    _driver: Option<Driver>,
}

impl RemoteHandle {
    pub(super) fn is_cut(&self) -> bool {
        *self.cut.borrow()
    }

    /// The stream of this process is the one that is up.
    pub(super) fn carried(
        &self,
        pid: u32,
        events: ProcessEvents,
    ) -> Result<(StreamTask, UnixStream)> {
        carry(&self.held, &self.cut, pid, events, 0)
    }

    pub(super) fn is_carried_by(&self, carried: StreamTask, driver: Driver) {
        *self.up() = ActiveStream { ended: carried.ended, _driver: Some(driver) };
    }

    fn up(&self) -> MutexGuard<'_, ActiveStream> {
        // A poisoned lock only means that somebody panicked beside it; what it holds is whole.
        self.up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RuntimeHandle for RemoteHandle {
    /// Waits for the end of the stream.
    fn wait(&mut self) -> RuntimeFuture<'_, Option<String>> {
        let mut ended = self.up().ended.clone();
        Box::pin(async move {
            // Nothing is ever sent: it is an error when the pump is gone, again and again.
            let _ = ended.changed().await;
            Some("the remote agent's stream ended".to_owned())
        })
    }

    fn kill(&mut self) -> RuntimeFuture<'_, bool> {
        self.cut();
        Box::pin(std::future::ready(true))
    }

    fn line(&self) -> Option<Arc<dyn RemoteLine>> {
        Some(Arc::new(self.clone()))
    }
}

impl RemoteLine for RemoteHandle {
    fn limits(&self, asked: Limits) -> Limits {
        self.held.size.limits(asked)
    }

    fn place(&self) -> RemoteLocation {
        RemoteLocation { provider: self.held.api.provider.place(), id: self.held.id.clone() }
    }

    fn is_up(&self) -> bool {
        self.up().ended.has_changed().is_ok()
    }

    fn cut(&self) {
        self.cut.send_replace(true);
    }

    fn run<'a>(
        &'a self,
        agent: &'a Agent,
        name: String,
        exec: ExecRequest,
        output: &'a mut TakeOutput<'_>,
    ) -> RuntimeFuture<'a, std::result::Result<ExecEnd, AgentError>> {
        Box::pin(self.followed(agent, name, exec, output))
    }
}

/// A process whose events are read.
pub(super) struct ProcessEvents {
    answer: Response,
    frames: MessageFrames,
}

impl ProcessEvents {
    pub(super) fn of(answer: Response) -> Self {
        Self { answer, frames: MessageFrames::default() }
    }

    pub(super) async fn next(&mut self) -> Result<Event> {
        let what = "a process's stream";
        loop {
            if let Some(event) = self.frames.next()? {
                return Ok(event);
            }
            match self.answer.chunk().await {
                Ok(Some(piece)) => self.frames.push(&piece),
                Ok(None) => {
                    return Ok(Event::Ended("the connection to the agent ended".to_owned()));
                }
                Err(source) => return Err(RemoteError::Lost { what, source }),
            }
        }
    }
}

/// A sandbox elsewhere.
#[derive(Debug)]
pub(super) struct RemoteSandbox {
    pub api: Api,
    pub envd: Envd,
    pub id: String,
    pub size: Size,
}

/// A stream on its way.
pub(super) struct StreamTask {
    ended: watch::Receiver<()>,
    log: JoinHandle<String>,
}

/// The line to a sandbox whose agent is this process; its last words, of so many bytes.
pub(super) fn line(
    held: RemoteSandbox,
    pid: u32,
    events: ProcessEvents,
    kept_bytes: usize,
) -> Result<LaunchResult> {
    let (held, cut) = (Arc::new(held), Arc::new(watch::Sender::new(false)));
    let (StreamTask { ended, log }, stream) = carry(&held, &cut, pid, events, kept_bytes)?;
    let up = Arc::new(Mutex::new(ActiveStream { ended, _driver: None }));
    Ok(LaunchResult::of(Box::new(RemoteHandle { held, cut, up }), log, stream))
}

/// Carries a process's streams until it ends.
fn carry(
    held: &Arc<RemoteSandbox>,
    cut: &Arc<watch::Sender<bool>>,
    pid: u32,
    events: ProcessEvents,
    kept_bytes: usize,
) -> Result<(StreamTask, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let (sender, ended) = watch::channel(());
    let (held, is_cut) = (Arc::clone(held), cut.subscribe());
    let log = tokio::spawn(async move {
        let mut words = Vec::new();
        let why = pump(&held, pid, events, theirs, is_cut.clone(), &mut words, kept_bytes).await;
        drop(sender);
        keep_last(&mut words, why.as_bytes(), kept_bytes);
        // The wipe does the same, and looks; this is for the sandbox that nobody comes to wipe.
        if *is_cut.borrow()
            && let Err(error) = held.api.delete(&held.id).await
        {
            tracing::debug!(%error, id = held.id, "a remote sandbox was left to its wipe");
        }
        String::from_utf8_lossy(&words).into_owned()
    });
    Ok((StreamTask { ended, log }, ours))
}

/// Until one side ends; why that was.
async fn pump(
    held: &RemoteSandbox,
    pid: u32,
    events: ProcessEvents,
    theirs: UnixStream,
    mut is_cut: watch::Receiver<bool>,
    words: &mut Vec<u8>,
    kept_bytes: usize,
) -> String {
    let (from_us, to_us) = theirs.into_split();
    tokio::select! {
        why = heard(events, to_us, words, kept_bytes) => why,
        why = told(held, pid, from_us) => why,
        why = prolonged(held) => why,
        _ = is_cut.wait_for(|is_cut| *is_cut) => "it was killed".to_owned(),
    }
}

async fn heard(
    mut events: ProcessEvents,
    mut to_us: OwnedWriteHalf,
    words: &mut Vec<u8>,
    kept_bytes: usize,
) -> String {
    loop {
        match events.next().await {
            Ok(Event::Stdout(bytes)) => {
                if to_us.write_all(&bytes).await.is_err() {
                    return "the worker no longer listens to the agent".to_owned();
                }
            }
            Ok(Event::Stderr(bytes)) => keep_last(words, &bytes, kept_bytes),
            Ok(Event::Started(_) | Event::Kept) => {}
            Ok(Event::Ended(said)) => return said,
            Err(error) => return error.to_string(),
        }
    }
}

async fn told(held: &RemoteSandbox, pid: u32, mut from_us: OwnedReadHalf) -> String {
    let mut piece = BytesMut::with_capacity(PIECE_BYTES);
    loop {
        piece.clear();
        piece.reserve(PIECE_BYTES);
        match from_us.read_buf(&mut piece).await {
            Ok(1..) => {}
            _ => {
                // What carries this stream there is needed no more.
                let _ = held.envd.close(pid).await;
                return "the worker closed the stream".to_owned();
            }
        }
        if let Err(error) = held.envd.input(pid, &piece).await {
            return error.to_string();
        }
    }
}

/// As long as this worker lives, the sandbox may. One that is gone is an end; a provider that does not
/// answer may do so again before the term ends.
async fn prolonged(held: &RemoteSandbox) -> String {
    loop {
        clock::sleep(held.api.provider.beat()).await;
        match held.api.prolong(&held.id).await {
            Ok(true) => {}
            Ok(false) => return "the provider has it no more".to_owned(),
            Err(error) => {
                tracing::warn!(%error, id = held.id, "a remote sandbox was not prolonged")
            }
        }
    }
}
