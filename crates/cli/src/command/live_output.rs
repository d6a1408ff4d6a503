//! All that the tasks of a run write, by one answer of the server: what a person sees of them while they run. An adjunct: what is
//! missed here is in the artifacts.

use std::time::Duration;

use cofferdam_ambient::clock;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use serde::Deserialize;

use super::client::{Client, segment};
use super::exit::Negative;

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

/// Follows one run.
pub(crate) struct LiveOutput<'a> {
    client: &'a Client,
    run: &'a str,
    answer: Option<BoxStream<'static, Option<Vec<u8>>>>,
    pending: Vec<u8>,
    from_ms: i64,
    /// Nothing is asked for, or the server knows no such stream.
    is_over: bool,
}

impl<'a> LiveOutput<'a> {
    /// `is_wanted`: the server is not asked otherwise.
    pub(crate) fn new(client: &'a Client, run: &'a str, is_wanted: bool) -> Self {
        let is_over = !is_wanted;
        Self { client, run, answer: None, pending: Vec::new(), from_ms: 0, is_over }
    }

    /// What comes next; pending where nothing will. Dropped, it has lost nothing.
    pub(crate) async fn next(&mut self) -> Vec<TaskText> {
        while !self.is_over {
            let Some(answer) = &mut self.answer else {
                self.open().await;
                continue;
            };
            match answer.next().await.flatten() {
                Some(bytes) => {
                    self.pending.extend_from_slice(&bytes);
                    let texts = taken(&mut self.pending);
                    if self.pending.len() > MAX_LINE {
                        self.is_over = true;
                    }
                    if let Some(last) = texts.last() {
                        self.from_ms = last.at;
                        return texts;
                    }
                }
                None => {
                    self.answer = None;
                    self.pending.clear();
                    clock::sleep(AGAIN).await;
                }
            }
        }
        std::future::pending().await
    }

    async fn open(&mut self) {
        let (run, from) = (segment(self.run), self.from_ms);
        let path = format!("/api/runs/{run}/stream/all?follow=true&from={from}");
        match self.client.open(&path).await {
            Ok(answer) => {
                let bytes = answer.bytes_stream();
                self.answer = Some(bytes.map(|part| part.ok().map(|part| part.to_vec())).boxed());
            }
            // A server from before this stream.
            Err(error) if error.is::<Negative>() => self.is_over = true,
            Err(_) => clock::sleep(AGAIN).await,
        }
    }
}

/// The whole lines of what came; the rest stays.
fn taken(pending: &mut Vec<u8>) -> Vec<TaskText> {
    let Some(end) = pending.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
    let lines: Vec<u8> = pending.drain(..=end).collect();
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_whole_and_the_rest_waits() {
        let text = b"{\"task\":\"a\",\"stream\":\"stdout\",\"chunk\":\"x\\n\",\"seq\":0,\"at\":5,\"new\":1}\nnonsense\n{\"task\":";
        let mut pending = text.to_vec();
        let texts = taken(&mut pending);
        let one =
            TaskText { task: "a".into(), stream: "stdout".into(), chunk: "x\n".into(), at: 5 };
        assert_eq!(texts, [one]);
        assert_eq!(pending, b"{\"task\":");
        assert!(taken(&mut pending).is_empty());
    }
}
