//! The question at a gate of a run that is followed: who answers first, here or elsewhere, ends it.
//!
//! ```text
//! plan -> question -> a line: reply | end of input, or nobody to ask: others may | gone: answered elsewhere | Ctrl-C: left
//! ```

use std::collections::BTreeSet;

use cofferdam_ambient::clock;
use cofferdam_contracts::gate::{GateState, GateView, ReplyResponse, ResultState};
use cofferdam_contracts::plan_text;
use cofferdam_contracts::printable;
use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::start_ask::StartAsk;
use serde_json::json;

use super::client::{Client, segment};
use super::end_signal::{EndSignal, EndSignals};
use super::exit::Negative;
use super::follow::{FollowOptions, LOOK};
use super::output;
use super::plan_show::{self, ASKED_LINES};
use super::prompt::{self, Answer};

/// What came of a gate at this end.
pub(crate) enum GateEnd {
    /// It was answered, here or elsewhere, or waits for somebody else: the run is followed on.
    Passed,
    /// Ctrl-C at the question, or another signal.
    Left(EndSignal),
}

/// A gate that waits for an answer and was not asked about here.
pub(crate) async fn open_gate(
    client: &Client,
    path: &str,
    asked: &BTreeSet<String>,
) -> anyhow::Result<Option<GateView>> {
    let gates: Vec<GateView> = client.get(&format!("{path}/gates")).await?;
    let is_new = |gate: &GateView| {
        gate.state == GateState::Pending && !asked.contains(gate.gate_key.as_str())
    };
    Ok(gates.into_iter().find(is_new))
}

/// Shows what is asked and asks; with `--yes` answers.
pub(crate) async fn at_gate(
    client: &Client,
    header: &RunHeader,
    gate: &GateView,
    options: FollowOptions,
    signals: &mut EndSignals,
) -> anyhow::Result<GateEnd> {
    // It says yes to the plan, and not to files that are not there yet.
    let yes = options.yes && gate.start.is_none();
    if !options.quiet || (!yes && prompt::can_ask()) {
        match &gate.start {
            Some(start) => show_start(header, start),
            None => show_plan(client, header).await?,
        }
    }
    let question = match &gate.start {
        Some(start) => format!("start {}", start.group),
        None => "execute this plan".to_owned(),
    };
    let gate = gate.gate_key.as_str();
    let choice = match yes {
        true => "yes",
        false if !prompt::can_ask() => {
            elsewhere(header, gate);
            return Ok(GateEnd::Passed);
        }
        false => match asked(client, header, gate, &question, signals).await? {
            Ok(choice) => choice,
            Err(at_gate) => return Ok(at_gate),
        },
    };
    match reply(client, header, gate, choice).await {
        Ok(()) => {
            if !options.quiet {
                output::note(&format!("{gate}: {choice}"));
            }
        }
        // Whoever says yes unasked is not there to wait for others.
        Err(error) if yes && !error.is::<Negative>() => {
            left(header, gate);
            return Err(error.context(format!("{gate}: --yes was refused")));
        }
        // It was answered in the same moment, or this key may not: what follows is the run's.
        Err(error) => {
            output::note(&format!("{gate}: not answered here: {error}"));
            elsewhere(header, gate);
        }
    }
    Ok(GateEnd::Passed)
}

/// Asks until somebody says yes or no here, or the question is over without that.
async fn asked(
    client: &Client,
    header: &RunHeader,
    gate: &str,
    question: &str,
    signals: &mut EndSignals,
) -> anyhow::Result<Result<&'static str, GateEnd>> {
    loop {
        prompt::ask(&format!("{gate}: {question}? [yes/no]"));
        let came = tokio::select! {
            answer = prompt::answer() => QuestionEnd::Answer(answer),
            gone = gone(client, header, gate) => QuestionEnd::Gone(gone?),
            signal = signals.recv() => QuestionEnd::Signal(signal),
        };
        match came {
            QuestionEnd::Answer(Answer::Line(line)) => match line.as_str() {
                "y" | "yes" => return Ok(Ok("yes")),
                "n" | "no" => return Ok(Ok("no")),
                _ => output::note("answer yes or no; Ctrl-C leaves the gate open"),
            },
            QuestionEnd::Answer(Answer::End) => {
                prompt::withdraw();
                elsewhere(header, gate);
                return Ok(Err(GateEnd::Passed));
            }
            QuestionEnd::Gone(how) => {
                prompt::withdraw();
                output::note(&format!("{gate}: {how}"));
                return Ok(Err(GateEnd::Passed));
            }
            QuestionEnd::Signal(signal) => {
                prompt::withdraw();
                left(header, gate);
                return Ok(Err(GateEnd::Left(signal)));
            }
        }
    }
}

/// What ends a question.
enum QuestionEnd {
    Answer(Answer),
    Gone(String),
    Signal(EndSignal),
}

/// Until the gate is open no more, and how that came.
async fn gone(client: &Client, header: &RunHeader, gate: &str) -> anyhow::Result<String> {
    let run = format!("/api/runs/{}", segment(header.run_id.as_str()));
    let look = async || -> anyhow::Result<(Option<GateState>, Option<String>)> {
        let gates: Vec<GateView> = client.get(&format!("{run}/gates")).await?;
        let found = gates.into_iter().find(|found| found.gate_key.as_str() == gate);
        let made = found.as_ref().and_then(|found| found.decision.as_ref());
        let is_late = found.as_ref().is_some_and(is_timed_out);
        let made = made.map(|made| match (is_late, made.decision.as_str()) {
            (true, choice) => format!("its deadline passed: {choice}"),
            (false, choice) => format!("answered elsewhere: {choice}"),
        });
        Ok((found.map(|found| found.state), made))
    };
    loop {
        clock::sleep(LOOK).await;
        let (state, made) = look().await?;
        if let Some(made) = made {
            return Ok(made);
        }
        let header: RunHeader = client.get(&run).await?;
        if header.status.is_terminal() {
            // It may have been answered between the two looks.
            let (_, made) = look().await?;
            let over =
                || format!("no answer is awaited any more: the run is {}", header.status.as_str());
            return Ok(made.unwrap_or_else(over));
        }
        // An answer that was received is decided on, and said, a moment later.
        if !matches!(state, Some(GateState::Pending | GateState::Received)) {
            return Ok("no answer is awaited any more".to_owned());
        }
    }
}

/// Whether a gate's deadline passed without an answer. Pure.
fn is_timed_out(gate: &GateView) -> bool {
    let result = gate.result.as_ref().map(|result| result.state);
    gate.state == GateState::TimedOut || result == Some(ResultState::TimedOut)
}

async fn reply(
    client: &Client,
    header: &RunHeader,
    gate: &str,
    choice: &str,
) -> anyhow::Result<()> {
    let path =
        format!("/api/runs/{}/gates/{}/reply", segment(header.run_id.as_str()), segment(gate));
    let body = json!({
        "payload": {"choice": choice},
        "dedupeKey": format!("cli:{}", cofferdam_ambient::random::secret_hex(8)),
        "origin": "manual",
    });
    let _: ReplyResponse = client.post(&path, &body).await?;
    Ok(())
}

/// The question stays open; this end goes on following.
fn elsewhere(header: &RunHeader, gate: &str) {
    let run = &header.run_id;
    output::note(&format!(
        "waiting for an answer: cofferdam gate reply {run} {gate} --choice yes|no"
    ));
}

/// The question stays open and this end leaves.
fn left(header: &RunHeader, gate: &str) {
    let run = &header.run_id;
    output::note(&format!("left; the run {run} still waits at {gate}:"));
    output::note(&format!("  answer:  cofferdam gate reply {run} {gate} --choice yes|no"));
    output::note(&format!("  follow:  cofferdam logs -f {run}"));
    output::note(&format!("  or end:  cofferdam cancel {run}"));
}

/// What the tasks behind a gate would start with. Names and values in it are a task's.
fn show_start(header: &RunHeader, start: &StartAsk) {
    let lines = start.lines();
    lines.iter().take(ASKED_LINES).for_each(|line| output::note(&printable::line(line)));
    if let Some(more) = lines.len().checked_sub(ASKED_LINES).filter(|more| *more > 0) {
        let run = &header.run_id;
        output::note(&format!("  {more} more lines; see `cofferdam gate show {run}`"));
    }
}

async fn show_plan(client: &Client, header: &RunHeader) -> anyhow::Result<()> {
    let run = header.run_id.as_str();
    let Some(plan) = plan_show::fetch(client, run).await? else { return Ok(()) };
    let lines = plan_text::lines(&plan);
    lines.iter().take(ASKED_LINES).for_each(|line| output::note(line));
    if let Some(more) = lines.len().checked_sub(ASKED_LINES).filter(|more| *more > 0) {
        output::note(&format!("  {more} more lines; see `cofferdam gate show {run}`"));
    }
    Ok(())
}
