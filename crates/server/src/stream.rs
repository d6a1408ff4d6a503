//! `GET /api/runs/:id/stream/:key`: what was written so far, or also what comes.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::{RunId, TaskKey};
use cofferdam_contracts::retention::Content;
use cofferdam_flows::Error;
use cofferdam_ledger::listen::{WATCH_AGAIN, Wake};
use cofferdam_ledger::streams::{AllStreamsLook, Chunk, StreamCursor, TaskChunk};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use crate::answer::{Answer, AnswerResult};
use crate::call::{Call, query_error};

/// Chunks of one read.
const PAGE: i64 = 256;
/// A follower looks this often by itself; it is woken for what is written.
const LOOK: Duration = Duration::from_millis(200);
/// Between two looks, however often it is woken: a run of many tasks writes all the time.
const LOOK_LEAST: Duration = Duration::from_millis(20);

struct Follow {
    call: Call,
    source: Source,
    run: RunId,
    live: bool,
    over: bool,
    /// The key that asked is revoked: the answer is cut off, which no reader takes for its end.
    revoked: bool,
    wakes: broadcast::Receiver<Wake>,
    /// Runs whose tasks wrote something; `None` for status lines.
    outputs: Option<broadcast::Receiver<String>>,
    /// Since workers were told that somebody watches.
    told: Option<Stopwatch>,
}

/// The year 9999: later ones are no times of the database.
const LATEST_MS: i64 = 253_402_300_799_000;

/// Which stream is read, and how far.
enum Source {
    /// One of a run or a task.
    One { owner: String, key: String, next: i32 },
    /// Both of every task of the run.
    All { from_ms: i64, next: BTreeMap<String, [i32; 2]>, is_first: bool },
}

/// The names of the streams of a task, in the order of their numbers in [`Source::All`].
const STREAMS: [&str; 2] = ["stdout", "stderr"];

pub(crate) async fn run_stream(call: Call) -> AnswerResult {
    let key = call.param("key").to_owned();
    let from = call.number("from", 0..=i64::MAX, 0)?;
    let live = match call.query.get("follow").map(String::as_str) {
        None | Some("0" | "false") => call.wants_events,
        Some("" | "1" | "true") => true,
        Some(_) => return Err(query_error("follow", "true or false").into()),
    };
    let (source, run) = source_of(&call, &key, from).await?;
    let events = call.wants_events;
    let wakes = call.flows().wakes.subscribe();
    let outputs = (key != "status").then(|| call.flows().wakes.outputs());
    let follow =
        Follow { call, source, run, live, over: false, revoked: false, wakes, outputs, told: None };
    let body = Body::from_stream(stream::try_unfold(follow, move |mut follow| async move {
        let Some(page) = follow.page().await? else { return Ok(None) };
        let text: String = page.iter().map(|line| line.text(events)).collect();
        io::Result::Ok(Some((Bytes::from(text), follow)))
    }));
    let content_type = if events { "text/event-stream" } else { "application/x-ndjson" };
    Ok(Answer::Stream { content_type, body })
}

/// `status` and `all` are a run's; `stdout` and `stderr` are a task's.
async fn source_of(call: &Call, key: &str, from: i64) -> Result<(Source, RunId), Error> {
    let one = |owner: String| Source::One {
        owner,
        key: key.to_owned(),
        next: i32::try_from(from).unwrap_or(i32::MAX),
    };
    match key {
        "status" => {
            let run = call.run_id().await?;
            Ok((one(run.to_string()), run))
        }
        "all" => {
            let from_ms = from.min(LATEST_MS);
            let source = Source::All { from_ms, next: BTreeMap::new(), is_first: true };
            Ok((source, call.run_with(Content::Output).await?))
        }
        "stdout" | "stderr" => {
            let task: TaskKey = call.id("id").map_err(|_| Refusal::not_found("task"))?;
            let run = call.flows().ledger.tasks().run(&call.who.tenant, &task).await?;
            let run = run.ok_or_else(|| Refusal::not_found("task"))?;
            call.flows().ledger.erasures().refuse(&run, Some(Content::Output)).await?;
            Ok((one(task.into()), run))
        }
        _ => Err(Refusal::not_found("stream").into()),
    }
}

/// One line of an answer.
struct Line {
    /// What a reader that comes back begins with.
    id: i64,
    value: Value,
}

impl Line {
    fn of(chunk: &Chunk) -> Self {
        let value = match chunk.kind.as_str() {
            "status" => serde_json::json!({"status": chunk.chunk, "seq": chunk.seq}),
            _ => serde_json::json!(chunk),
        };
        Self { id: i64::from(chunk.seq), value }
    }

    fn text(&self, events: bool) -> String {
        let Self { id, value } = self;
        if events { format!("id: {id}\ndata: {value}\n\n") } else { format!("{value}\n") }
    }
}

impl Source {
    /// What comes next, at most a page; `is_last`: nothing will come after it.
    async fn read(
        &mut self,
        streams: cofferdam_ledger::families::Streams<'_>,
        run: &RunId,
        is_last: bool,
    ) -> cofferdam_ledger::Result<Vec<Line>> {
        match self {
            Self::One { owner, key, next } => {
                let page = streams.read(owner, key, *next, PAGE).await?;
                if let Some(last) = page.last() {
                    *next = last.seq.saturating_add(1);
                }
                Ok(page.iter().map(Line::of).collect())
            }
            Self::All { from_ms, next, is_first } => {
                let look = AllStreamsLook { from_ms: *from_ms, is_whole: *is_first || is_last };
                let page = streams.read_all(run, &cursors(next), look).await?;
                // A first page that is full has more behind it, of tasks that ended long ago, too.
                *is_first &= !page.is_empty();
                for chunk in &page {
                    advance(next, chunk);
                }
                let line =
                    |chunk: &TaskChunk| Line { id: chunk.at, value: serde_json::json!(chunk) };
                Ok(page.iter().map(line).collect())
            }
        }
    }
}

/// How far each stream was read, as the ledger asks for it.
fn cursors(next: &BTreeMap<String, [i32; 2]>) -> Vec<StreamCursor> {
    let of_task = |(task, numbers): (&String, &[i32; 2])| {
        let cursor = |(stream, next): (&str, i32)| StreamCursor {
            task: task.clone(),
            stream: stream.to_owned(),
            next,
        };
        STREAMS
            .into_iter()
            .zip(*numbers)
            .filter(|(_, next)| *next > 0)
            .map(cursor)
            .collect::<Vec<_>>()
    };
    next.iter().flat_map(of_task).collect()
}

fn advance(next: &mut BTreeMap<String, [i32; 2]>, chunk: &TaskChunk) {
    let numbers = next.entry(chunk.task.clone()).or_default();
    let mut both = STREAMS.into_iter().zip(numbers);
    if let Some((_, number)) = both.find(|(stream, _)| *stream == chunk.stream) {
        *number = chunk.seq.saturating_add(1);
    }
}

impl Follow {
    /// The next chunks; `None` at the end.
    async fn page(&mut self) -> io::Result<Option<Vec<Line>>> {
        loop {
            self.catch_up().await;
            if self.revoked {
                return Err(io::Error::other("the key that asked for this stream is revoked"));
            }
            self.tell().await;
            // Asked before the read, so that nothing written in between is missed.
            let was_over = self.over || !self.live || self.is_over().await;
            let streams = self.call.flows().ledger.streams();
            let page = match self.source.read(streams, &self.run, was_over).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::debug!(%error, "a stream broke off");
                    return Ok(None);
                }
            };
            if !page.is_empty() {
                return Ok(Some(page));
            }
            if was_over {
                return Ok(None);
            }
            let looked = Stopwatch::start();
            self.wait().await;
            clock::sleep(LOOK_LEAST.saturating_sub(looked.elapsed())).await;
        }
    }

    /// Tells workers now and then that somebody watches what the run writes. Not heard, they give it out less often.
    async fn tell(&mut self) {
        let is_due = self.told.as_ref().is_none_or(|told| told.elapsed() >= WATCH_AGAIN);
        if self.live && !self.over && self.outputs.is_some() && is_due {
            self.told = Some(Stopwatch::start());
            if let Err(error) = self.call.flows().ledger.streams().watch(&self.run).await {
                tracing::debug!(%error, run = %self.run, "workers were not told of a watcher");
            }
        }
    }

    /// Until the run's header changes, its reader's key is revoked, or it is time to look for output.
    async fn wait(&mut self) {
        let mut look = std::pin::pin!(clock::sleep(LOOK));
        loop {
            let written = written(&mut self.outputs, self.run.as_str());
            let word = tokio::select! {
                word = self.wakes.recv() => word,
                () = written => return,
                () = &mut look => return,
            };
            if matches!(word, Err(RecvError::Closed)) {
                return look.await;
            }
            if self.concerns(word.ok()).await {
                return;
            }
        }
    }

    /// What was said while its reader took what there was.
    async fn catch_up(&mut self) {
        loop {
            let word = match self.wakes.try_recv() {
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
                word => word.ok(),
            };
            self.concerns(word).await;
        }
    }

    /// Whether a word is for this stream; `None`: words were lost.
    async fn concerns(&mut self, word: Option<Wake>) -> bool {
        match word {
            Some(Wake::Run(run) | Wake::Task(run)) => run == self.run.as_str(),
            Some(Wake::Key(key)) if key == self.call.who.key_id => {
                self.revoked = true;
                true
            }
            Some(Wake::All) | None => {
                let keys = self.call.flows().ledger.keys();
                self.revoked |= keys.is_revoked(&self.call.who.key_id).await.unwrap_or(false);
                true
            }
            Some(_) => false,
        }
    }

    async fn is_over(&mut self) -> bool {
        let runs = self.call.flows().ledger.runs();
        self.over = runs.is_over(&self.call.who.tenant, &self.run).await.unwrap_or(false);
        self.over
    }
}

/// Until a task of this run writes something, or that may have been missed. Never where nobody asks for it.
async fn written(outputs: &mut Option<broadcast::Receiver<String>>, run: &str) {
    let Some(outputs) = outputs else { return std::future::pending().await };
    loop {
        match outputs.recv().await {
            Ok(writes) if writes == run => return,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_of_each_task_has_its_own_cursor() {
        let chunk = |task: &str, stream: &str, seq: i32| TaskChunk {
            task: task.to_owned(),
            stream: stream.to_owned(),
            chunk: String::new(),
            seq,
            at: 0,
        };
        let mut next = BTreeMap::new();
        for read in [chunk("a", "stdout", 0), chunk("b", "stderr", 4), chunk("a", "stdout", 1)] {
            advance(&mut next, &read);
        }
        let cursor = |task: &str, stream: &str, next: i32| StreamCursor {
            task: task.to_owned(),
            stream: stream.to_owned(),
            next,
        };
        assert_eq!(cursors(&next), [cursor("a", "stdout", 2), cursor("b", "stderr", 5)]);
    }
}
