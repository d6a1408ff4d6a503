//! The output of one command: in chunks while it runs, and whatever they left out from its artifact.
//!
//! ```text
//! chunks (text, at most 1 MiB of each stream) -> shown, byte for byte, up to the first that is not text
//! the artifact (all of it, at most 8 MiB)     -> the rest
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::artifact::ArtifactRow;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::client::{Client, segment};
use super::output;
use super::tail::{Which, tail, tasks};

/// How often a task that has not started yet is looked for.
const LOOK: Duration = Duration::from_millis(100);
/// What stands in a chunk for bytes that are not text.
const NOT_TEXT: char = '\u{fffd}';

/// What was shown of each stream.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    shown: RefCell<BTreeMap<(String, Which), Shown>>,
}

#[derive(Debug, Default)]
struct Shown {
    bytes: Vec<u8>,
    /// A chunk was not the command's own bytes: the artifact has them.
    stopped: bool,
}

impl Relay {
    /// Shows what comes. Never ends: whoever knows that the run is over drops it.
    pub(crate) async fn live(&self, client: &Client, run: &str) -> Infallible {
        let mut known = BTreeSet::new();
        let mut tails = FuturesUnordered::new();
        loop {
            // An adjunct: what it misses is shown at the end.
            for (key, _) in tasks(client, run).await.unwrap_or_default() {
                if known.insert(key.clone()) {
                    for which in Which::BOTH {
                        let key = key.clone();
                        tails.push(async move {
                            let taken = |text: &str| self.push(&key, which, text);
                            let _ = tail(client, &key, which, true, taken).await;
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

    fn push(&self, key: &str, which: Which, text: &str) {
        let mut all = self.shown.borrow_mut();
        let shown = all.entry((key.to_owned(), which)).or_default();
        if shown.stopped {
            return;
        }
        let exact = text.split(NOT_TEXT).next().unwrap_or_default();
        shown.stopped = exact.len() < text.len();
        put(which, exact.as_bytes());
        shown.bytes.extend_from_slice(exact.as_bytes());
    }

    /// Shows the rest of what the task wrote.
    pub(crate) async fn finish(
        &self,
        client: &Client,
        run: &str,
        task: &str,
    ) -> anyhow::Result<()> {
        let artifacts: Vec<ArtifactRow> =
            client.get(&format!("/api/runs/{}/artifacts", segment(run))).await?;
        for which in Which::BOTH {
            let is_log = |row: &&ArtifactRow| {
                row.kind.as_str() == which.as_str() && row.task_key.as_str() == task
            };
            let Some(log) = artifacts.iter().find(is_log) else { continue };
            let whole = client.artifact(&log.uri).await?;
            let all = self.shown.borrow();
            let shown = all.get(&(task.to_owned(), which)).map_or(&[][..], |s| &s.bytes);
            match whole.strip_prefix(shown) {
                Some(rest) => put(which, rest),
                // Its worker was lost, and the command ran again elsewhere: both wrote.
                None => output::note(&format!(
                    "the command was started again after its worker was lost; what it wrote on {} in the end: \
                     cofferdam logs {run}",
                    which.as_str()
                )),
            }
        }
        Ok(())
    }
}

fn put(which: Which, bytes: &[u8]) {
    match which {
        Which::Stdout => output::raw(bytes),
        Which::Stderr => output::raw_err(bytes),
    }
}
