//! A task's output while it comes.

use cofferdam_contracts::printable;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::Value;
use std::collections::BTreeSet;

use cofferdam_ambient::clock;
use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::step::StepRow;

use super::client::{Client, segment};
use super::follow::LOOK;
use super::{output, stdout};

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

/// The chunks of one stream of one task; with `follow` until the run is over.
pub(crate) async fn tail(
    client: &Client,
    task: &str,
    which: StreamName,
    follow: bool,
    mut take: impl FnMut(&str),
) -> anyhow::Result<()> {
    let path = format!("/api/runs/{task}/stream/{}?follow={follow}", which.as_str());
    let mut chunks = client.open(&path).await?.bytes_stream();
    let mut pending = Vec::new();
    while let Some(bytes) = chunks.next().await {
        pending.extend_from_slice(&bytes?);
        while let Some(end) = pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let value: Value = serde_json::from_slice(&line)?;
            take(value.get("chunk").and_then(Value::as_str).unwrap_or(""));
        }
    }
    Ok(())
}

/// A task of a run: its key and its name.
pub(crate) type Task = (String, String);

/// The tasks that a run has so far, in their order.
pub(crate) async fn tasks(client: &Client, run: &str) -> anyhow::Result<Vec<Task>> {
    let steps: Vec<StepRow> = client.get(&format!("/api/runs/{}/steps", segment(run))).await?;
    let named = steps.iter().filter_map(|step| {
        let key = step.task_key.as_ref()?;
        Some((key.to_string(), step.task_name().to_owned()))
    });
    Ok(named.collect())
}

/// Shows a run's output as it comes, that of tasks to come too, until the run is over or nobody reads it.
pub(crate) async fn follow_run(client: &Client, run: &str) -> anyhow::Result<()> {
    let mut known = BTreeSet::new();
    let mut tails = FuturesUnordered::new();
    loop {
        let header: RunHeader = client.get(&format!("/api/runs/{}", segment(run))).await?;
        let all = tasks(client, run).await?;
        let only = all.len() == 1;
        for (key, name) in all {
            if known.insert(key.clone()) {
                for which in StreamName::BOTH {
                    let (key, name) = (key.clone(), (!only).then(|| name.clone()));
                    tails.push(async move {
                        tail(client, &key, which, true, |text| show(text, name.as_deref())).await
                    });
                }
            }
        }
        if header.status.is_terminal() {
            break;
        }
        tokio::select! {
            Some(ended) = tails.next() => ended?,
            () = clock::sleep(LOOK) => {}
            () = stdout::reader_gone() => return Ok(()),
        }
    }
    loop {
        tokio::select! {
            ended = tails.next() => match ended {
                Some(ended) => ended?,
                None => return Ok(()),
            },
            () = stdout::reader_gone() => return Ok(()),
        }
    }
}

/// A chunk, each line of it with its task's name where there are several.
pub(crate) fn show(text: &str, name: Option<&str>) {
    match name {
        None => output::raw(text.as_bytes()),
        Some(name) => {
            let name = printable::line(name);
            text.lines().for_each(|l| output::raw(format!("{name} | {l}\n").as_bytes()));
        }
    }
}
