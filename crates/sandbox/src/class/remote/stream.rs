//! The agent's stream: what the provider carries of its process, as one end of a socket pair.
//!
//! ```text
//! Agent <-> socket pair <-> pump --SendInput, one after another--> stdin of the agent
//!                            ^------ events of the answer -------- stdout, stderr: the last words
//!                            '------ four times a term ----------- the term, prolonged
//! ```
//! Nothing is held but one piece each way, so whoever is slow holds up whoever is fast. However it ends,
//! the sandbox is deleted; a worker that is killed prolongs nothing, and it ends by itself.

use std::sync::Arc;

use bytes::BytesMut;
use reqwest::Response;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use cofferdam_ambient::clock;

use super::api::{Api, RemoteError, Result, Size};
use super::envd::Envd;
use super::frames::{Event, Frames};
use crate::class::tail::keep_last;

/// One piece of input: as much as the agent lets the host send ahead, so that a round trip is not paid
/// more often than must be.
const PIECE_BYTES: usize = 256 * 1024;

/// The hold on a sandbox elsewhere.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// What the provider says that it gave.
    pub(crate) size: Size,
    cut: Arc<watch::Sender<bool>>,
    ended: watch::Receiver<()>,
}

impl Line {
    /// Ends the stream, and with it the sandbox.
    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Whether the agent's stream has not ended.
    pub(crate) fn is_up(&self) -> bool {
        self.ended.has_changed().is_ok()
    }

    /// Waits for the end of the stream.
    pub(crate) async fn wait(&mut self) {
        // Nothing is ever sent: it is an error when the pump is gone, again and again.
        let _ = self.ended.changed().await;
    }
}

/// A process whose events are read.
pub(super) struct Events {
    answer: Response,
    frames: Frames,
}

impl Events {
    pub(super) fn of(answer: Response) -> Self {
        Self { answer, frames: Frames::default() }
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

/// A process, and what it is in.
pub(super) struct Held {
    pub api: Api,
    pub envd: Envd,
    pub id: String,
    pub pid: u32,
    pub size: Size,
}

/// Carries a process's streams until it ends; gives the last words, of so many bytes.
pub(super) fn carry(
    held: Held,
    events: Events,
    kept_bytes: usize,
) -> Result<(Line, JoinHandle<String>, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let (sender, ended) = watch::channel(());
    let (cut, is_cut) = watch::channel(false);
    let size = held.size.clone();
    let log = tokio::spawn(async move {
        let mut words = Vec::new();
        let why = pump(&held, events, theirs, is_cut, &mut words, kept_bytes).await;
        drop(sender);
        keep_last(&mut words, why.as_bytes(), kept_bytes);
        // The wipe does the same, and looks; this is for the sandbox that nobody comes to wipe.
        if let Err(error) = held.api.delete(&held.id).await {
            tracing::debug!(%error, id = held.id, "a remote sandbox was left to its wipe");
        }
        String::from_utf8_lossy(&words).into_owned()
    });
    Ok((Line { size, cut: Arc::new(cut), ended }, log, ours))
}

/// Until one side ends; why that was.
async fn pump(
    held: &Held,
    events: Events,
    theirs: UnixStream,
    mut is_cut: watch::Receiver<bool>,
    words: &mut Vec<u8>,
    kept_bytes: usize,
) -> String {
    let (from_us, to_us) = theirs.into_split();
    tokio::select! {
        why = heard(events, to_us, words, kept_bytes) => why,
        why = told(held, from_us) => why,
        why = prolonged(held) => why,
        _ = is_cut.wait_for(|is_cut| *is_cut) => "it was killed".to_owned(),
    }
}

async fn heard(
    mut events: Events,
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

async fn told(held: &Held, mut from_us: OwnedReadHalf) -> String {
    let mut piece = BytesMut::with_capacity(PIECE_BYTES);
    loop {
        piece.clear();
        piece.reserve(PIECE_BYTES);
        match from_us.read_buf(&mut piece).await {
            Ok(1..) => {}
            _ => {
                // The agent ends by itself then; what else is in the sandbox ends with it.
                let _ = held.envd.close(held.pid).await;
                return "the worker closed the stream".to_owned();
            }
        }
        if let Err(error) = held.envd.input(held.pid, &piece).await {
            return error.to_string();
        }
    }
}

/// As long as this worker lives, the sandbox may. One that is gone is an end; a provider that does not
/// answer may do so again before the term ends.
async fn prolonged(held: &Held) -> String {
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
