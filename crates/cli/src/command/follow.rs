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
use cofferdam_contracts::id::TaskKey;
use cofferdam_contracts::ops::OpsAccepted;
use cofferdam_contracts::run::{RunHeader, RunStatus};
use cofferdam_contracts::sandbox::ErrCode;
use cofferdam_contracts::step::{StepRow, StepStatus, TaskOutcome};
use futures_util::StreamExt;
use serde_json::json;

use super::client::{Client, segment};
use super::end_signal::{EndSignal, EndSignals};
use super::exit::Exit;
use super::question::{AtGate, at_gate, open_gate};
use super::{output, stdout};

/// How the person at the other end takes part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    /// Say yes to gates.
    pub yes: bool,
    /// Say less: the caller wants one JSON object.
    pub quiet: bool,
    /// The run is there for its output: it is canceled when nobody reads that any more, or the parent process ends.
    pub for_output: bool,
}

/// How following ended.
#[derive(Debug)]
pub(crate) enum Followed {
    /// The run is over.
    Ended {
        header: Box<RunHeader>,
        /// The command was asked to end, so that the run was canceled or nearly so.
        asked: Option<EndSignal>,
    },
    /// The command left; the run goes on.
    Left(EndSignal),
}

impl Followed {
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
pub(crate) async fn follow(client: &Client, run: &str, manner: Manner) -> anyhow::Result<Followed> {
    let path = format!("/api/runs/{}", segment(run));
    let mut signals = match manner.for_output {
        true => EndSignals::of_starter()?,
        false => EndSignals::listen()?,
    };
    let answer = client.open(&format!("{path}/stream/status?follow=true")).await?;
    let mut lines = answer.bytes_stream().fuse();
    let mut shown = BTreeSet::new();
    let mut asked = BTreeSet::new();
    let mut ended_by = None;
    let mut canceled = false;
    loop {
        let header: RunHeader = client.get(&path).await?;
        if !manner.quiet {
            progress(client, &path, &mut shown).await?;
        }
        // The ledger ends a run a moment before the engine does; over means that both say so.
        if header.status.is_terminal() && !is_live(&header) {
            if canceled {
                tasks_end(client, &path).await?;
            }
            return Ok(Followed::Ended { header: Box::new(header), asked: ended_by });
        }
        if header.status == RunStatus::WaitingInput
            && !canceled
            && let Some(gate) = open_gate(client, &path).await?
            && asked.insert(gate.clone())
        {
            match at_gate(client, &header, &gate, manner, &mut signals).await? {
                AtGate::Passed => continue,
                AtGate::Left(signal) => return Ok(Followed::Left(signal)),
            }
        }
        tokio::select! {
            line = lines.next(), if !header.status.is_terminal() => {
                // A stream that ended says nothing more: the look goes on without it.
                if line.is_none() { clock::sleep(LOOK).await }
            }
            () = clock::sleep(if header.status.is_terminal() { SETTLE } else { LOOK }) => {}
            () = stdout::reader_gone(), if manner.for_output && !canceled => {
                canceled = true;
                cancel(client, &header, "its output has no reader").await?;
            }
            signal = signals.recv() => {
                if ended_by.is_some() {
                    output::note("left; the cancel continues");
                    return Ok(Followed::Left(signal));
                }
                ended_by = Some(signal);
                canceled = true;
                output::note(&format!("canceling {run}{}", signal.again()));
                tokio::select! {
                    done = cancel(client, &header, "interrupted") => done?,
                    signal = signals.recv() => {
                        output::note(&format!("left before {run} was canceled: see `cofferdam show {run}`"));
                        return Ok(Followed::Left(signal));
                    }
                }
            }
        }
    }
}

/// Cancels the run; one that just ended by itself needs none.
///
/// # Errors
/// A run that goes on, by why.
async fn cancel(client: &Client, header: &RunHeader, reason: &str) -> anyhow::Result<()> {
    let action = json!({"actor": "cli", "reason": reason});
    let on = segment(header.workflow_id.as_str());
    let asked = client.post::<OpsAccepted>(&format!("/api/ops/wf/{on}/cancel"), &action).await;
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

/// A line for each task that ended since the last look.
async fn progress(
    client: &Client,
    path: &str,
    shown: &mut BTreeSet<TaskKey>,
) -> anyhow::Result<()> {
    let steps: Vec<StepRow> = client.get(&format!("{path}/steps")).await?;
    for step in &steps {
        let (Some(key), Some(outcome)) = (&step.task_key, step.outcome()?) else { continue };
        if step.status != StepStatus::Running && shown.insert(key.clone()) {
            output::mark(step.status == StepStatus::Ok, &ended(step, &outcome));
        }
    }
    Ok(())
}

/// How a task's attempt ended, in a line.
fn ended(step: &StepRow, outcome: &TaskOutcome) -> String {
    let wall_ms = outcome.metrics.map_or(0, |metrics| metrics.wall_ms);
    let again = match step.attempt {
        attempt @ 2.. => format!(", attempt {attempt}"),
        _ => String::new(),
    };
    let cache = outcome.cache.as_ref().map(cached).unwrap_or_default();
    let code = outcome.err_code.filter(|code| *code != ErrCode::None);
    let code = code.map(|code| format!(" {}", code.as_str())).unwrap_or_default();
    let why = step.error.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    format!("{} ({wall_ms} ms{again}{cache}){code}{why}", step.task_name())
}

/// What came of the dependency cache, after a comma.
fn cached(report: &CacheReport) -> String {
    let why = report.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    format!(", cache {}{why}", report.outcome.as_str())
}
