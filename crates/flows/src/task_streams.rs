//! A command's output where it arrives: kept for the artifact, offered to watchers, and given whole to the client that started
//! its run.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::{RunId, TaskKey};
use cofferdam_contracts::output::OutputStream;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{CommandStopper, OutputSink, Stream};
use tokio::sync::Notify;

use crate::dispatches;
use crate::driver::PlannerDriver;
use crate::executor::Executor;
use crate::feed::Feed;
use crate::output::{Cue, Output, Outputs};
use crate::patience::patiently;

/// The two streams of a task.
pub(crate) struct TaskStreams {
    out: Mutex<Outputs>,
    /// Where the run's client waits for all of it.
    feed: Option<Arc<Feed>>,
    task: TaskKey,
    run: RunId,
    /// Something was written.
    pushed: Notify,
}

impl TaskStreams {
    /// What watchers have of it already, they are not given again.
    pub(crate) async fn of(
        executor: &Executor,
        context: &TaskContext,
        taken_over: bool,
        feed: Option<Arc<Feed>>,
    ) -> Self {
        let (task, run) = (&context.key, context.run.clone());
        let mut out = [Output::new("stdout"), Output::new("stderr")];
        if taken_over {
            for (output, key) in out.iter_mut().zip(["stdout", "stderr"]) {
                let ledger = &executor.flows.ledger;
                match patiently(|| ledger.streams().end(task.as_str(), key)).await {
                    Ok(stored) => *output = Output::after(key, stored),
                    Err(error) => tracing::warn!(%error, %task, "what watchers have is not known"),
                }
            }
        }
        let [stdout, stderr] = out;
        let out = Mutex::new(Outputs { stdout, stderr });
        Self { out, feed, task: task.clone(), run, pushed: Notify::new() }
    }

    /// A command begins, of whose streams at most so many bytes are kept.
    pub(crate) fn begin(&self, limit: u64) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.stdout.begin(limit);
        out.stderr.begin(limit);
    }

    fn push(&self, stream: Stream, chunk: &[u8]) {
        // A poisoned lock only means that another push panicked; the bytes are still good.
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let (output, named) = match stream {
            Stream::Stdout => (&mut out.stdout, OutputStream::Stdout),
            Stream::Stderr => (&mut out.stderr, OutputStream::Stderr),
        };
        let at = output.push(chunk);
        self.pushed.notify_one();
        if let Some(feed) = &self.feed {
            feed.push(&self.task, named, at, chunk);
        }
    }

    /// Until it is time to give out a chunk of what was written. Dropped, it has lost nothing.
    pub(crate) async fn due(&self, executor: &Executor) {
        loop {
            let is_watched = executor.flows.wakes.is_watched(self.run.as_str());
            let wait = {
                let out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
                let waits = [out.stdout.due_in(is_watched), out.stderr.due_in(is_watched)];
                waits.into_iter().flatten().min()
            };
            match wait {
                Some(Duration::ZERO) => return,
                Some(wait) => {
                    tokio::select! {
                        () = clock::sleep(wait) => {}
                        // More may be due sooner.
                        () = self.pushed.notified() => {}
                    }
                }
                None => self.pushed.notified().await,
            }
        }
    }

    /// Gives out what is due; once the task has ended, everything.
    pub(crate) async fn show(&self, executor: &Executor, at_end: bool) {
        let cue = match (at_end, executor.flows.wakes.is_watched(self.run.as_str())) {
            (true, _) => Cue::End,
            (false, true) => Cue::Watched,
            (false, false) => Cue::Unwatched,
        };
        let chunks = {
            let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
            [out.stdout.take(cue), out.stderr.take(cue)]
        };
        for chunk in chunks.into_iter().flatten() {
            chunk.store(&executor.flows.ledger, &self.run, &self.task).await;
        }
    }

    /// The client that waits for all of it.
    pub(crate) const fn feed(&self) -> Option<&Arc<Feed>> {
        self.feed.as_ref()
    }

    /// What is kept of each stream.
    pub(crate) fn into_outputs(self) -> Outputs {
        self.out.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who hears one command.
pub(crate) struct CommandOutput<'a> {
    pub watched: &'a TaskStreams,
    pub driver: Option<&'a dyn PlannerDriver>,
    pub watch: Option<&'a dispatches::Watch<'a>>,
    pub end: Option<&'a CommandStopper>,
}

impl OutputSink for CommandOutput<'_> {
    fn take(&mut self, stream: Stream, chunk: &[u8]) {
        self.watched.push(stream, chunk);
        if let Some(driver) = self.driver {
            driver.push(chunk);
        }
        if let (Stream::Stdout, Some(watch), Some(end)) = (stream, self.watch, self.end)
            && watch.push(chunk)
        {
            end.end();
        }
    }

    fn wants_all(&self) -> bool {
        self.watched.feed.is_some()
    }

    async fn room(&mut self) {
        if let Some(feed) = &self.watched.feed {
            feed.room().await;
        }
    }
}
