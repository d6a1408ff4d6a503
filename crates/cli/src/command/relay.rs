//! The output of one command, whole while it runs.
//!
//! ```text
//! feed (every byte, at the pace of our reader)    -> printed
//! chunks (text, at most 1 MiB of each stream)     -> printed until the feed has begun: the task may run elsewhere
//! the artifact (what the record keeps)            -> what neither had
//! ```
//! One thread prints, so that a reader who stands still stops neither signals nor requests. The server keeps what was not
//! confirmed, and takes a client that does not ask for 30 s for gone.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_ambient::clock;
use cofferdam_contracts::artifact::ArtifactRow;
use cofferdam_contracts::output::{OutputPage, OutputPiece, OutputStream};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::client::{Client, segment};
use super::exit::Negative;
use super::tail::{StreamEvent, StreamName, StreamQuery, tail, tasks};
use super::{output, stdout};

/// How often a task that has not started yet is looked for.
const LOOK: Duration = Duration::from_millis(100);
/// Seconds that the server waits for the next piece.
const WAIT_S: u64 = 10;
/// How often the server hears from us while our own reader stands still: thrice before it takes us for gone.
const HEARD: Duration = Duration::from_secs(9);
/// Between two requests of which the first failed.
const AGAIN: Duration = Duration::from_secs(1);
/// What stands in a chunk for bytes that are not text.
const NOT_TEXT: char = '\u{fffd}';
/// Bytes of a stream's beginning that are compared with its artifact.
const HEAD_BYTES: usize = 1 << 20;
/// Bytes of the end of standard error that are searched for programs that were not found.
const TAIL_BYTES: usize = 16 * 1024;
/// Pieces that wait to be printed.
const QUEUED: usize = 2;

/// Bytes for one of our streams.
type Print = (StreamName, Vec<u8>);

/// How the command's output is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RelayStyle {
    /// Its bytes; a terminal gets none that act on it.
    Safe,
    /// Its bytes as they are: its terminal is ours.
    Raw,
    /// Not at all: the caller has it from the record.
    Silent,
}

/// What was shown of each stream.
#[derive(Debug)]
pub(crate) struct Relay {
    style: RelayStyle,
    shown: RefCell<BTreeMap<(String, StreamName), StreamProgress>>,
    /// The end of what was shown of standard error.
    last: RefCell<Vec<u8>>,
    /// Whether the task runs in the server that we ask.
    fed: watch::Sender<bool>,
    /// The server has nothing more for us, or left a piece out.
    is_over: Cell<bool>,
    next: Cell<u64>,
    printer: mpsc::Sender<Print>,
    printing: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct StreamProgress {
    count: u64,
    head: Vec<u8>,
    /// A chunk was not the command's own bytes: others have them.
    stopped: bool,
}

impl StreamProgress {
    fn take(&mut self, bytes: &[u8]) {
        let room = HEAD_BYTES.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(bytes.get(..room).unwrap_or_default());
        self.count = self.count.saturating_add(wide(bytes.len()));
    }
}

/// What is known of a command's output once it is printed.
#[derive(Debug)]
pub(crate) struct RelayReport {
    /// Whether every byte was printed that the command wrote.
    pub is_whole: bool,
    /// The end of its standard error.
    pub last_words: String,
}

impl Relay {
    /// Begins to print. Needs a runtime.
    pub(crate) fn begin(style: RelayStyle) -> Self {
        let (printer, mut printed) = mpsc::channel::<Print>(QUEUED);
        let printing = tokio::task::spawn_blocking(move || {
            while let Some((which, bytes)) = printed.blocking_recv() {
                put(style, which, &bytes);
            }
        });
        Self {
            style,
            shown: RefCell::default(),
            last: RefCell::default(),
            fed: watch::Sender::new(false),
            is_over: Cell::new(false),
            next: Cell::new(0),
            printer,
            printing,
        }
    }

    /// Shows what comes. Never ends: it is dropped once the run is over.
    pub(crate) async fn live(&self, client: &Client, run: &str) -> Infallible {
        let mut fed = self.fed.subscribe();
        let elsewhere = async {
            // Chunks are only shown.
            if self.style == RelayStyle::Silent {
                return;
            }
            tokio::select! {
                never = self.chunks(client, run) => match never {},
                _ = fed.wait_for(|fed| *fed) => {}
            }
        };
        let here = async { while self.turn(client, run, WAIT_S).await {} };
        tokio::join!(elsewhere, here);
        pending().await
    }

    /// Asks for what comes next, and shows it. Whether it is worth to ask again.
    async fn turn(&self, client: &Client, run: &str, wait_s: u64) -> bool {
        let page = match self.page(client, run, wait_s).await {
            Ok(page) if page.held => page,
            // A server that is away for a moment has it still.
            Err(error) if wait_s > 0 && !error.is::<Negative>() => {
                clock::sleep(AGAIN).await;
                return true;
            }
            _ => {
                self.is_over.set(true);
                return false;
            }
        };
        if page.begun {
            self.fed.send_replace(true);
        }
        for piece in &page.pieces {
            if !self.piece(client, run, piece).await {
                self.is_over.set(true);
                return false;
            }
        }
        self.next.set(page.next);
        wait_s > 0 || !page.pieces.is_empty()
    }

    async fn page(&self, client: &Client, run: &str, wait_s: u64) -> anyhow::Result<OutputPage> {
        let (run, from) = (segment(run), self.next.get());
        client.get(&format!("/api/runs/{run}/output?from={from}&timeoutS={wait_s}")).await
    }

    /// Shows what of a piece is not shown yet. Whether it was the next one.
    async fn piece(&self, client: &Client, run: &str, piece: &OutputPiece) -> bool {
        let which = match piece.stream {
            OutputStream::Stdout => StreamName::Stdout,
            OutputStream::Stderr => StreamName::Stderr,
        };
        let key = (piece.task_key.to_string(), which);
        let count = self.shown.borrow().get(&key).map_or(0, |shown| shown.count);
        let (Ok(mut bytes), Some(known)) =
            (STANDARD.decode(&piece.base64), count.checked_sub(piece.at))
        else {
            return false;
        };
        bytes.drain(..bytes.len().min(usize::try_from(known).unwrap_or(usize::MAX)));
        let printed = self.print(which, bytes.clone());
        tokio::pin!(printed);
        loop {
            tokio::select! {
                biased;
                () = &mut printed => break,
                // Confirms nothing: it only says that we are here.
                () = clock::sleep(HEARD) => drop(self.page(client, run, 0).await),
            }
        }
        self.shown.borrow_mut().entry(key).or_default().take(&bytes);
        true
    }

    /// Waits until all before it but a few pieces were taken from us.
    async fn print(&self, which: StreamName, bytes: Vec<u8>) {
        self.note(which, &bytes);
        if !bytes.is_empty() {
            // Its thread ends after us.
            let _ = self.printer.send((which, bytes)).await;
        }
    }

    fn note(&self, which: StreamName, bytes: &[u8]) {
        if which == StreamName::Stderr {
            let mut last = self.last.borrow_mut();
            last.extend_from_slice(bytes);
            let over = last.len().saturating_sub(TAIL_BYTES);
            last.drain(..over);
        }
    }

    /// Shows chunks of every task of the run, as the ledger has them.
    async fn chunks(&self, client: &Client, run: &str) -> Infallible {
        let mut known = BTreeSet::new();
        let mut tails = FuturesUnordered::new();
        loop {
            // An adjunct: what it misses is shown at the end.
            for task in tasks(client, run).await.unwrap_or_default() {
                if known.insert(task.key.clone()) {
                    for stream in StreamName::BOTH {
                        let key = task.key.to_string();
                        tails.push(async move {
                            let query = StreamQuery { task: &key, stream, from: 0, follow: true };
                            let taken = |event: StreamEvent<'_>| {
                                if let StreamEvent::Chunk(text) = event {
                                    self.push(&key, stream, text);
                                }
                            };
                            let _ = tail(client, query, taken).await;
                        });
                    }
                }
            }
            tokio::select! {
                Some(()) = tails.next() => {}
                () = clock::sleep(LOOK) => {}
            }
        }
    }

    fn push(&self, key: &str, which: StreamName, text: &str) {
        let mut all = self.shown.borrow_mut();
        let shown = all.entry((key.to_owned(), which)).or_default();
        if shown.stopped || *self.fed.borrow() {
            return;
        }
        let exact = text.split(NOT_TEXT).next().unwrap_or_default();
        shown.stopped = exact.len() < text.len();
        put(self.style, which, exact.as_bytes());
        self.note(which, exact.as_bytes());
        shown.take(exact.as_bytes());
    }

    /// Shows the rest of what the task wrote, and waits until it is printed.
    pub(crate) async fn finish(
        self,
        client: &Client,
        run: &str,
        task: &str,
    ) -> anyhow::Result<RelayReport> {
        while !self.is_over.get() && self.turn(client, run, 0).await {}
        let is_whole = *self.fed.borrow() && !self.is_over.get();
        let artifacts: Vec<ArtifactRow> = match is_whole {
            true => Vec::new(),
            false => client.get(&format!("/api/runs/{}/artifacts", segment(run))).await?,
        };
        for which in StreamName::BOTH {
            let is_log = |row: &&ArtifactRow| {
                row.kind.as_str() == which.as_str() && row.task_key.as_str() == task
            };
            let Some(log) = artifacts.iter().find(is_log) else { continue };
            let whole = client.artifact(&log.uri).await?;
            match self.rest(&whole, task, which) {
                Some(rest) => self.print(which, rest).await,
                // Its worker was lost, and the command ran again elsewhere: both wrote.
                None => output::note(&format!(
                    "the command was started again after its worker was lost; what it wrote on {} in the end: \
                     cofferdam logs {run}",
                    which.as_str()
                )),
            }
        }
        let last_words = String::from_utf8_lossy(&self.last.borrow()).into_owned();
        drop(self.printer);
        // It has printed what it could; what it could not, standard output knows.
        let _ = self.printing.await;
        Ok(RelayReport { is_whole, last_words })
    }

    /// What of an artifact is not shown; `None` where what was shown is not its beginning.
    fn rest(&self, whole: &[u8], task: &str, which: StreamName) -> Option<Vec<u8>> {
        let all = self.shown.borrow();
        let Some(shown) = all.get(&(task.to_owned(), which)) else { return Some(whole.to_vec()) };
        let compared = shown.head.len().min(whole.len());
        if shown.head.get(..compared) != whole.get(..compared) {
            return None;
        }
        let from = usize::try_from(shown.count).unwrap_or(usize::MAX);
        Some(whole.get(from..).unwrap_or_default().to_vec())
    }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn put(style: RelayStyle, which: StreamName, bytes: &[u8]) {
    match (style, which) {
        (RelayStyle::Silent, _) => {}
        // A command with a terminal has one output.
        (RelayStyle::Raw, _) => stdout::write(bytes),
        (RelayStyle::Safe, StreamName::Stdout) => output::raw(bytes),
        (RelayStyle::Safe, StreamName::Stderr) => output::raw_err(bytes),
    }
}
