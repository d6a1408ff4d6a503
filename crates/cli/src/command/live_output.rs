//! All that the tasks of a run write, by one answer of the server: what a person sees of them while they run. An adjunct: what is
//! missed here is in the artifacts.

use std::time::Duration;

use cofferdam_ambient::clock;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use serde::Deserialize;

use super::client::{Client, segment};
use super::exit::Negative;
use super::line_buffer::whole_lines;

/// Bytes of one line: a chunk of 1 MiB, each byte of it an escape of six.
const MAX_LINE: usize = 8 * 1024 * 1024;
/// Between two answers, of which the first broke off.
const AGAIN: Duration = Duration::from_secs(1);

/// A chunk of a task's output. Fields of later servers are left out.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct TaskText {
    /// The attempt's key.
    pub task: String,
    pub stream: String,
    pub chunk: String,
    /// When it was stored, ms since the epoch.
    at: i64,
}

/// The bytes of an answer; `None`: it broke off.
type LiveStream = BoxStream<'static, Option<Vec<u8>>>;

/// Follows one run.
pub(crate) struct LiveOutput<'a> {
    client: &'a Client,
    run: &'a str,
    state: LiveState<'a>,
    pending: Vec<u8>,
    from_ms: i64,
}

enum LiveState<'a> {
    /// Nothing is asked for, or the server knows no such stream.
    Over,
    Opening(BoxFuture<'a, Option<LiveStream>>),
    Open(LiveStream),
}

impl<'a> LiveOutput<'a> {
    /// `is_wanted`: the server is not asked otherwise.
    pub(crate) fn new(client: &'a Client, run: &'a str, is_wanted: bool) -> Self {
        let state = match is_wanted {
            true => LiveState::Opening(opened(client, run, 0, Duration::ZERO).boxed()),
            false => LiveState::Over,
        };
        Self { client, run, state, pending: Vec::new(), from_ms: 0 }
    }

    /// What comes next; pending where nothing will. Dropped, it has lost nothing.
    pub(crate) async fn next(&mut self) -> Vec<TaskText> {
        loop {
            match &mut self.state {
                LiveState::Over => std::future::pending().await,
                LiveState::Opening(answer) => {
                    self.state = answer.await.map_or(LiveState::Over, LiveState::Open);
                }
                LiveState::Open(pieces) => match pieces.next().await.flatten() {
                    Some(bytes) => {
                        let texts = taken(&mut self.pending, &bytes);
                        if self.pending.len() > MAX_LINE {
                            self.state = LiveState::Over;
                        }
                        if let Some(last) = texts.last() {
                            self.from_ms = last.at;
                            return texts;
                        }
                    }
                    None => {
                        self.pending.clear();
                        let again = opened(self.client, self.run, self.from_ms, AGAIN);
                        self.state = LiveState::Opening(again.boxed());
                    }
                },
            }
        }
    }
}

/// The stream from this time on, asked for until the server answers; `None`: one from before this stream.
async fn opened(client: &Client, run: &str, from_ms: i64, after: Duration) -> Option<LiveStream> {
    clock::sleep(after).await;
    let run = segment(run);
    let path = format!("/api/runs/{run}/stream/all?follow=true&from={from_ms}");
    loop {
        match client.open(&path).await {
            Ok(answer) => {
                let bytes = answer.bytes_stream();
                return Some(bytes.map(|part| part.ok().map(|part| part.to_vec())).boxed());
            }
            Err(error) if error.is::<Negative>() => return None,
            Err(_) => clock::sleep(AGAIN).await,
        }
    }
}

/// The chunks of the lines that end in a piece; the rest stays.
fn taken(pending: &mut Vec<u8>, piece: &[u8]) -> Vec<TaskText> {
    let lines = whole_lines(pending, piece);
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_whole_and_the_rest_waits() {
        let text = b"{\"task\":\"a\",\"stream\":\"stdout\",\"chunk\":\"x\\n\",\"seq\":0,\"at\":5,\"new\":1}\nnonsense\n{\"task\":";
        let mut pending = Vec::new();
        let texts = taken(&mut pending, text);
        let one =
            TaskText { task: "a".into(), stream: "stdout".into(), chunk: "x\n".into(), at: 5 };
        assert_eq!(texts, [one]);
        assert_eq!(pending, b"{\"task\":");
        assert!(taken(&mut pending, b"").is_empty());
    }
}
