//! `GET /api/runs/:id/stream/:key`: what was written so far, or also what comes.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use cofferdam_ambient::clock;
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::{RunId, TaskKey};
use cofferdam_flows::Error;
use cofferdam_ledger::listen::Wake;
use cofferdam_ledger::streams::Chunk;
use futures_util::stream;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use crate::answer::{Answer, AnswerResult};
use crate::call::{Call, query_error};

/// Chunks of one read.
const PAGE: i64 = 256;
/// A follower looks this often; output is flushed five times a second.
const LOOK: Duration = Duration::from_millis(200);

struct Follow {
    call: Call,
    owner: String,
    key: String,
    run: RunId,
    next: i32,
    live: bool,
    over: bool,
    /// The key that asked is revoked: the answer is cut off, which no reader takes for its end.
    revoked: bool,
    wakes: broadcast::Receiver<Wake>,
}

pub(crate) async fn run_stream(call: Call) -> AnswerResult {
    let key = call.param("key").to_owned();
    let from = i32::try_from(call.number("from", 0..=i64::from(i32::MAX), 0)?).unwrap_or(0);
    let live = match call.query.get("follow").map(String::as_str) {
        None | Some("0" | "false") => call.wants_events,
        Some("" | "1" | "true") => true,
        Some(_) => return Err(query_error("follow", "true or false").into()),
    };
    let (owner, run) = owner_of(&call, &key).await?;
    let events = call.wants_events;
    let wakes = call.flows().wakes.subscribe();
    let follow =
        Follow { call, owner, key, run, next: from, live, over: false, revoked: false, wakes };
    let body = Body::from_stream(stream::try_unfold(follow, move |mut follow| async move {
        let Some(page) = follow.page().await? else { return Ok(None) };
        let text: String = page.iter().map(|chunk| line(chunk, events)).collect();
        io::Result::Ok(Some((Bytes::from(text), follow)))
    }));
    let content_type = if events { "text/event-stream" } else { "application/x-ndjson" };
    Ok(Answer::Stream { content_type, body })
}

/// `status` is a run's; `stdout` and `stderr` are a task's.
async fn owner_of(call: &Call, key: &str) -> Result<(String, RunId), Error> {
    match key {
        "status" => {
            let run = call.run_id().await?;
            Ok((run.to_string(), run))
        }
        "stdout" | "stderr" => {
            let task: TaskKey = call.id("id").map_err(|_| Refusal::not_found("task"))?;
            let run = call.flows().ledger.tasks().run(&call.who.tenant, &task).await?;
            Ok((task.into(), run.ok_or_else(|| Refusal::not_found("task"))?))
        }
        _ => Err(Refusal::not_found("stream").into()),
    }
}

fn line(chunk: &Chunk, events: bool) -> String {
    let value = if chunk.kind == "status" {
        serde_json::json!({"status": chunk.chunk, "seq": chunk.seq})
    } else {
        serde_json::json!(chunk)
    };
    if events { format!("id: {}\ndata: {value}\n\n", chunk.seq) } else { format!("{value}\n") }
}

impl Follow {
    /// The next chunks; `None` at the end.
    async fn page(&mut self) -> io::Result<Option<Vec<Chunk>>> {
        loop {
            self.catch_up().await;
            if self.revoked {
                return Err(io::Error::other("the key that asked for this stream is revoked"));
            }
            // Asked before the read, so that nothing written in between is missed.
            let was_over = self.over || !self.live || self.is_over().await;
            let ledger = &self.call.flows().ledger;
            let page = match ledger.streams().read(&self.owner, &self.key, self.next, PAGE).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::debug!(%error, "a stream broke off");
                    return Ok(None);
                }
            };
            if let Some(last) = page.last() {
                self.next = last.seq + 1;
                return Ok(Some(page));
            }
            if was_over {
                return Ok(None);
            }
            self.wait().await;
        }
    }

    /// Until the run's header changes, its reader's key is revoked, or it is time to look for output.
    async fn wait(&mut self) {
        let mut look = std::pin::pin!(clock::sleep(LOOK));
        loop {
            let word = tokio::select! {
                word = self.wakes.recv() => word,
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
