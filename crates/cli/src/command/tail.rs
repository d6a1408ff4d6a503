//! A task's output while it comes.

use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::step::StepRow;
use futures_util::StreamExt;
use serde_json::Value;

use super::client::{Client, segment};
use super::line_buffer::whole_lines;
use super::task_choice::{LogTask, TaskChoice};

/// After so long without output, what has no end of line is shown: a program may have asked for something.
const QUIET: Duration = Duration::from_secs(1);

/// One of a command's two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StreamName {
    Stdout,
    Stderr,
}

impl StreamName {
    pub(crate) const BOTH: [Self; 2] = [Self::Stdout, Self::Stderr];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// What of a task's output is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamQuery<'a> {
    /// The attempt's key.
    pub task: &'a str,
    pub stream: StreamName,
    /// The number of the first chunk.
    pub from: i64,
    /// Until the run is over, and not only what there is.
    pub follow: bool,
}

/// What a stream that is read says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamEvent<'a> {
    /// The next text.
    Chunk(&'a str),
    /// Nothing came for a while.
    Quiet,
}

/// Reads the chunks of one stream, and gives the number of the one that comes next.
pub(crate) async fn tail(
    client: &Client,
    query: StreamQuery<'_>,
    mut take: impl FnMut(StreamEvent<'_>),
) -> anyhow::Result<i64> {
    let StreamQuery { task, stream, from, follow } = query;
    let name = stream.as_str();
    let path = format!("/api/runs/{}/stream/{name}?follow={follow}&from={from}", segment(task));
    let mut chunks = client.open(&path).await?.bytes_stream();
    let (mut pending, mut next, mut is_quiet) = (Vec::new(), from, false);
    loop {
        let bytes = tokio::select! {
            bytes = chunks.next() => bytes,
            () = clock::sleep(QUIET), if !is_quiet => {
                is_quiet = true;
                take(StreamEvent::Quiet);
                continue;
            }
        };
        let Some(bytes) = bytes else { return Ok(next) };
        is_quiet = false;
        for line in whole_lines(&mut pending, &bytes?).split_inclusive(|byte| *byte == b'\n') {
            let value: Value = serde_json::from_slice(line)?;
            if let Some(seq) = value.get("seq").and_then(Value::as_i64) {
                next = seq.saturating_add(1);
            }
            take(StreamEvent::Chunk(value.get("chunk").and_then(Value::as_str).unwrap_or("")));
        }
    }
}

/// The attempts that a run has so far, in their order.
pub(crate) async fn tasks(client: &Client, run: &str) -> anyhow::Result<Vec<LogTask>> {
    let steps: Vec<StepRow> = client.get(&format!("/api/runs/{}/steps", segment(run))).await?;
    Ok(TaskChoice::default().of(&steps)?.tasks)
}
