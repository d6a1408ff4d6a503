//! Following a run: progress on stderr, the gate's question, Ctrl-C, and a job runner's TERM or HUP.
//!
//! ```text
//! look -> over -> Ended
//!      -> at a gate that was not asked here -> question: answered here | elsewhere | Ctrl-C -> Left
//!      -> wait for a change, or a signal: the run is canceled and followed to its end; once more -> Left
//! ```
//! A question ends with its gate: what decides is the ledger, and this end is only one of those who may answer.

use std::collections::BTreeSet;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::cache::CacheReport;
use cofferdam_contracts::ops::OpsResponse;
use cofferdam_contracts::run::{RunHeader, RunStatus};
use cofferdam_contracts::sandbox::ErrCode;
use cofferdam_contracts::step::{StepRow, StepStatus, TaskOutcome};
use futures_util::StreamExt;
use futures_util::stream::FusedStream;
use serde_json::json;

use super::client::{Client, segment};
use super::end_signal::{EndSignal, EndSignals};
use super::exit::Exit;
use super::live_output::{LiveOutput, TaskText};
use super::output::Mark;
use super::progress::screen::{EndLine, Screen, end_key};
use super::question::{GateEnd, at_gate, open_gate};
use super::task_time::{TaskTime, duration};
use super::{output, stdout};

/// How the person at the other end takes part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FollowOptions {
    /// Say yes to gates.
    pub yes: bool,
    /// Say less: the caller wants one JSON object.
    pub quiet: bool,
    /// The run is there for its output: it is canceled when nobody reads that any more, or the parent process ends.
    pub for_output: bool,
    /// Lines that stay instead of live ones, on a terminal too.
    pub no_progress: bool,
}

/// How following ended.
#[derive(Debug)]
pub(crate) enum FollowEnd {
    /// The run is over.
    Ended {
        header: Box<RunHeader>,
        /// The command was asked to end, so that the run was canceled or nearly so.
        asked: Option<EndSignal>,
    },
    /// The command left; the run goes on.
    Left(EndSignal),
}

impl FollowEnd {
    /// The exit of a command that followed a run.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Left(signal) => signal.exit(),
            Self::Ended { header, asked } => match (header.status, asked) {
                (RunStatus::Succeeded, _) => Exit::Ok,
                (_, Some(signal)) => signal.exit(),
                (_, None) => Exit::No,
            },
        }
    }
}

/// Between the ledger's end of a run and the engine's lie a few milliseconds.
const SETTLE: Duration = Duration::from_millis(5);
/// Progress is looked at this often besides when the run changes.
pub(crate) const LOOK: Duration = Duration::from_millis(250);

/// A wipe takes milliseconds, and at most 15 s.
const WIPED: Duration = Duration::from_secs(30);
/// Between two looks at it.
const AGAIN: Duration = Duration::from_millis(50);

/// Until the run is terminal, or somebody leaves.
pub(crate) async fn follow(
    client: &Client,
    run: &str,
    options: FollowOptions,
) -> anyhow::Result<FollowEnd> {
    let path = format!("/api/runs/{}", segment(run));
    let signals = match options.for_output {
        true => EndSignals::of_starter()?,
        false => EndSignals::listen()?,
    };
    let answer = client.open(&format!("{path}/stream/status?follow=true")).await?;
    let mut lines = answer.bytes_stream().fuse();
    let screen = Screen::new(options.quiet, options.no_progress);
    let output = LiveOutput::new(client, run, screen.is_live());
    let mut followed = Follower {
        client,
        run,
        path,
        options,
        signals,
        screen,
        output,
        asked: BTreeSet::new(),
        ended_by: None,
        is_canceled: false,
        queue: Queue::default(),
    };
    loop {
        let header: RunHeader = client.get(&followed.path).await?;
        followed.look(&header).await?;
        // The ledger ends a run a moment before the engine does; over means that both say so.
        if header.status.is_terminal() && !is_live(&header) {
            followed.screen.clear();
            if followed.is_canceled {
                tasks_end(client, &followed.path).await?;
            }
            let asked = followed.ended_by;
            return Ok(FollowEnd::Ended { header: Box::new(header), asked });
        }
        match followed.at_open_gate(&header).await? {
            Some(GateEnd::Passed) => continue,
            Some(GateEnd::Left(signal)) => return Ok(FollowEnd::Left(signal)),
            None => {}
        }
        let event = followed.event(&mut lines, header.status.is_terminal()).await;
        if let Some(left) = followed.turn(&header, event).await? {
            return Ok(left);
        }
    }
}

/// What a follower waits for.
enum Event {
    /// It is time to look.
    Look,
    /// Nobody reads the output that the run is there for.
    Unread,
    Signal(EndSignal),
}

/// One end that follows a run.
struct Follower<'a> {
    client: &'a Client,
    run: &'a str,
    path: String,
    options: FollowOptions,
    signals: EndSignals,
    screen: Screen,
    output: LiveOutput<'a>,
    /// Gates that were asked about here.
    asked: BTreeSet<String>,
    /// What asked this command to end.
    ended_by: Option<EndSignal>,
    is_canceled: bool,
    queue: Queue,
}

impl Follower<'_> {
    /// Shows how far the run is.
    async fn look(&mut self, header: &RunHeader) -> anyhow::Result<()> {
        if self.screen.is_silent() {
            return Ok(());
        }
        let steps: Vec<StepRow> = self.client.get(&format!("{}/steps", self.path)).await?;
        let ends = ends(&steps, |key| self.screen.has_shown(key))?;
        self.screen.look(steps, ends);
        // What a person is asked for is said with the question.
        let waits_for = header.waits_for.as_deref();
        let waits_for = waits_for.filter(|_| header.status != RunStatus::WaitingInput);
        if let Some(words) = self.queue.look(waits_for) {
            self.screen.note(&words);
        }
        Ok(())
    }

    /// Asks at a gate that was not asked about here.
    async fn at_open_gate(&mut self, header: &RunHeader) -> anyhow::Result<Option<GateEnd>> {
        if header.status == RunStatus::WaitingInput
            && !self.is_canceled
            && let Some(gate) = open_gate(self.client, &self.path, &self.asked).await?
        {
            self.asked.insert(gate.gate_key.to_string());
            self.screen.clear();
            let signals = &mut self.signals;
            let end = at_gate(self.client, header, &gate, self.options, signals).await?;
            return Ok(Some(end));
        }
        Ok(None)
    }

    /// Draws what tasks write until something else is to be done.
    async fn event<T>(
        &mut self,
        lines: &mut (impl FusedStream<Item = T> + Unpin),
        is_terminal: bool,
    ) -> Event {
        let mut look = std::pin::pin!(clock::sleep(if is_terminal { SETTLE } else { LOOK }));
        let waits_for_reader = self.options.for_output && !self.is_canceled;
        loop {
            tokio::select! {
                // A stream that ended says nothing more: the look goes on without it.
                Some(_) = lines.next(), if !is_terminal => return Event::Look,
                () = &mut look => return Event::Look,
                () = stdout::reader_gone(), if waits_for_reader => return Event::Unread,
                signal = self.signals.recv() => return Event::Signal(signal),
                texts = self.output.next() => {
                    for TaskText { task, stream, chunk, .. } in &texts {
                        self.screen.wrote(task, stream, chunk);
                    }
                    self.screen.draw_if_due();
                }
            }
        }
    }

    /// Does what an event asks for; the end, where that is to leave.
    async fn turn(
        &mut self,
        header: &RunHeader,
        event: Event,
    ) -> anyhow::Result<Option<FollowEnd>> {
        let (client, run) = (self.client, self.run);
        match event {
            Event::Look => {}
            Event::Unread => {
                self.is_canceled = true;
                cancel(client, header, "its output has no reader").await?;
            }
            Event::Signal(signal) => {
                self.screen.clear();
                if self.ended_by.is_some() {
                    output::note("left; the cancel continues");
                    return Ok(Some(FollowEnd::Left(signal)));
                }
                self.ended_by = Some(signal);
                self.is_canceled = true;
                output::note(&format!("canceling {run}{}", signal.again()));
                tokio::select! {
                    done = cancel(client, header, "interrupted") => done?,
                    signal = self.signals.recv() => {
                        output::note(&format!("left before {run} was canceled: see `cofferdam show {run}`"));
                        return Ok(Some(FollowEnd::Left(signal)));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// What a run was seen to wait for.
#[derive(Debug, Default)]
struct Queue {
    seen: Option<String>,
    told: Option<String>,
}

impl Queue {
    /// Says it once it is seen twice, and again where something else is waited for: how many are before it changes all the time.
    fn look(&mut self, waits_for: Option<&str>) -> Option<String> {
        let kind = |what: &str| what.split(':').next().unwrap_or_default().to_owned();
        let now = waits_for.map(kind);
        let is_news = now.is_some() && now == self.seen && now != self.told;
        if is_news {
            self.told.clone_from(&now);
        }
        self.seen = now;
        is_news.then(|| format!("queued: waits for {}", waits_for.unwrap_or_default()))
    }
}

/// Cancels the run; one that just ended by itself needs none.
///
/// # Errors
/// A run that goes on, by why.
async fn cancel(client: &Client, header: &RunHeader, reason: &str) -> anyhow::Result<()> {
    let action = json!({"actor": "cli", "reason": reason});
    let on = segment(header.workflow_id.as_str());
    let asked = client.post::<OpsResponse>(&format!("/api/ops/wf/{on}/cancel"), &action).await;
    let Err(error) = asked else { return Ok(()) };
    let run = header.run_id.as_str();
    match client.get::<RunHeader>(&format!("/api/runs/{}", segment(run))).await {
        Ok(now) if now.status.is_terminal() => Ok(()),
        _ => Err(error.context(format!("{run} was not canceled and goes on"))),
    }
}

/// Until the tasks of a canceled run have ended with their sandboxes: the run itself is over at once.
async fn tasks_end(client: &Client, path: &str) -> anyhow::Result<()> {
    let waited = Stopwatch::start();
    while waited.elapsed() < WIPED {
        let steps: Vec<StepRow> = client.get(&format!("{path}/steps")).await?;
        let mut goes_on = false;
        for step in &steps {
            goes_on |= step.outcome()?.is_some_and(|outcome| outcome.err_code.is_none());
        }
        if !goes_on {
            return Ok(());
        }
        clock::sleep(AGAIN).await;
    }
    output::note("its sandboxes are still being ended; see `cofferdam session ls`");
    Ok(())
}

fn is_live(header: &RunHeader) -> bool {
    matches!(header.durable_status.as_deref(), Some("PENDING" | "ENQUEUED"))
}

/// A line for each attempt that has ended and each task that is not started, but for those that were shown.
fn ends(steps: &[StepRow], is_shown: impl Fn(&str) -> bool) -> anyhow::Result<Vec<EndLine>> {
    let mut ends = Vec::new();
    for step in steps.iter().filter(|step| step.is_task() && !step.status.is_open()) {
        let key = end_key(step);
        if is_shown(key) {
            continue;
        }
        let mark = match step.status {
            StepStatus::Ok => Mark::Ok,
            StepStatus::Skipped => Mark::Skipped,
            StepStatus::Canceled => Mark::Canceled,
            _ => Mark::Failed,
        };
        let text = match step.outcome()? {
            _ if step.status == StepStatus::Canceled => canceled(step),
            Some(outcome) => ended(step, &outcome),
            None => format!("{}: {}", step.task_name(), step.error.as_deref().unwrap_or_default()),
        };
        ends.push(EndLine { key: key.to_owned(), mark, text });
    }
    Ok(ends)
}

/// How long a task ran that something else ended: its command has no result. Pure.
fn canceled(step: &StepRow) -> String {
    let ran = step.started_at.and_then(|began| u64::try_from(step.at.saturating_sub(began)).ok());
    let ran = ran.map(|ms| format!(" ({})", duration(ms))).unwrap_or_default();
    let why = step.error.as_deref().filter(|why| *why != "canceled");
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    format!("{}{ran}{why}", step.task_name())
}

/// How a task's attempt ended, in a line.
fn ended(step: &StepRow, outcome: &TaskOutcome) -> String {
    let metrics = outcome.metrics.unwrap_or_default();
    let took = TaskTime::of(&metrics, step.error.as_deref()).phases();
    let again = match step.attempt {
        attempt @ 2.. => format!(", attempt {attempt}"),
        _ => String::new(),
    };
    let cache = outcome.cache.as_ref().map(cached).unwrap_or_default();
    let code = outcome.err_code.filter(|code| *code != ErrCode::None);
    let code = code.map(|code| format!(" {}", code.as_str())).unwrap_or_default();
    let why = step.error.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    format!("{} ({took}{again}{cache}){code}{why}", step.task_name())
}

/// What came of the dependency cache, after a comma.
fn cached(report: &CacheReport) -> String {
    let why = report.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    format!(", cache {}{why}", report.outcome.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tasks_line_names_the_time_of_each_phase_that_it_had() {
        let line = |build_ms: u64, error: Option<&str>| {
            let metrics = json!({"wallMs": 7, "cpuMs": 1, "memPeakMB": 1, "buildMs": build_ms});
            let row = json!({
                "stepId": "ExecuteST:a", "stepID": "ExecuteST:a", "name": "a", "taskKey": "a".repeat(64),
                "attempt": 1, "status": "ok", "startedAt": null, "at": 5, "error": error, "artifactRefs": [],
                "output": {"metrics": metrics},
            });
            let step: StepRow = serde_json::from_value(row).unwrap();
            let outcome = step.outcome().unwrap().unwrap();
            ended(&step, &outcome)
        };
        assert_eq!(line(0, None), "a (7 ms)");
        assert_eq!(line(62_000, None), "a (62.0 s: build 62.0 s, exec 7 ms)");
        let why = "in the build phase: exit status 1";
        assert_eq!(line(7, Some(why)), format!("a (build 7 ms): {why}"));
    }

    #[test]
    fn a_canceled_task_has_the_time_that_it_ran_and_no_code() {
        let step = |began: Option<i64>, why: &str| -> StepRow {
            let row = json!({
                "stepId": "ExecuteST:a", "stepID": "ExecuteST:a", "name": "a", "taskKey": "a".repeat(64),
                "attempt": 1, "status": "canceled", "startedAt": began, "at": 3_000, "error": why,
                "artifactRefs": [], "output": {"errCode": "CMD_NONZERO"},
            });
            serde_json::from_value(row).unwrap()
        };
        assert_eq!(canceled(&step(Some(1_900), "canceled")), "a (1.1 s)");
        assert_eq!(canceled(&step(None, "why")), "a: why");
        let ends = ends(&[step(Some(1_900), "canceled")], |_| false).unwrap();
        assert_eq!((ends[0].mark, ends[0].text.as_str()), (Mark::Canceled, "a (1.1 s)"));
    }

    #[test]
    fn what_a_run_waits_for_is_told_when_it_is_seen_twice_and_once() {
        let mut queue = Queue::default();
        for (waits, told) in [
            (Some("a place"), None),
            (None, None),
            (Some("memory"), None),
            (Some("memory: 3 before you"), Some("memory")),
            (Some("memory: 2 before you"), Some("memory")),
            (None, Some("memory")),
        ] {
            queue.look(waits);
            assert_eq!(queue.told.as_deref(), told, "{waits:?}");
        }
    }
}
