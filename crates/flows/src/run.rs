//! The parent workflow: compile, ask, execute in rounds, finish.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::consent::Difference;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::gate_spec::GateSpec;
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::run::{Budget, RunStatus};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::runs::RunContext;
use dbos::step;
use serde_json::json;

use crate::compile::{self, Card, CompileOutcome};
use crate::decide::{self, Next, Round};
use crate::error::Error;
use crate::executor::Executor;
use crate::flow::{Flow, ended, failed, step_error};
use crate::gates::consent::{self, ActiveConsent, ConsentCheck};
use crate::gates::wait::{self, GateOutcome, GateRequest};
use crate::patience::patiently;
use crate::plan_text::COMPILE;
use crate::retry_entry::{self, EntryPoint, PlanRemainder};
use crate::round::round_run;
use crate::stages;
use crate::workflow_context::WorkflowContext;

/// How long the engine may take to record a pause, and to notice its end.
const PAUSE_SLACK: Duration = Duration::from_secs(1);

/// Times that a run asks for consent: whatever drifts so often is not decided by asking again.
const MAX_ROUNDS: u32 = 8;

/// The workflow's body: the run, and behind each of its failures that somebody had retried, the rest of it.
pub(crate) async fn run_workflow(executor: Arc<Executor>) -> Flow<RunStatus> {
    let workflow = dbos::workflow_id().unwrap_or_default();
    let mut this = WorkflowContext::new(&executor, &workflow);
    let mut card = None;
    let mut begin = EntryPoint::Compile { attempt: 1 };
    for retry in 1.. {
        let over = run_from(&mut this, &mut card, begin).await;
        let Err(dbos::Error::Application(_)) = over else { return over };
        match retry_entry::begin(&this, card.as_ref(), retry).await? {
            Some(next) => begin = next,
            None => return over,
        }
        this = WorkflowContext::new(&executor, &workflow);
    }
    Err(failed("a run is not retried for ever"))
}

/// One life of the run. `card` is what CompileST left, from whichever life.
async fn run_from(
    this: &mut WorkflowContext<'_>,
    card: &mut Option<Card>,
    begin: EntryPoint,
) -> Flow<RunStatus> {
    if let EntryPoint::Over { error } = begin {
        return Err(failed(error));
    }
    if let EntryPoint::Compile { attempt } = begin {
        *card = Some(compiled(this, attempt).await?);
    }
    let card = card.clone().ok_or_else(|| failed("the plan is missing"))?;
    let digest = match (card.digest, card.error) {
        (Some(digest), None) => digest,
        (_, error) => {
            return finish(this, error.unwrap_or_else(|| "the plan is missing".into())).await;
        }
    };
    let Some(spec) = card.gate else {
        let rest = match begin {
            EntryPoint::Execute { rest, .. } => rest,
            _ => PlanRemainder::default(),
        };
        let start =
            Execution { digest: &digest, budget: &card.budget, gated: false, staged: card.staged };
        return match execute(this, start, rest).await? {
            RoundsOutcome::Over(status, error) => ended(status, error),
            RoundsOutcome::Drifted(_) => {
                finish(this, "a run without a gate has no consent".into()).await
            }
        };
    };
    let mut first = 1;
    match begin {
        EntryPoint::Execute { plan, budget, rest } => {
            let start =
                Execution { digest: &plan, budget: &budget, gated: true, staged: card.staged };
            return match execute(this, start, rest).await? {
                RoundsOutcome::Over(status, error) => ended(status, error),
                RoundsOutcome::Drifted(_) => {
                    finish(this, "the consent no longer holds".into()).await
                }
            };
        }
        EntryPoint::Ask { round } => first = round,
        _ => {}
    }
    ask(this, &spec, &digest, card.staged, first).await
}

/// CompileST, under its number where it is not the first.
async fn compiled(this: &WorkflowContext<'_>, attempt: u32) -> Flow<Card> {
    let name = match attempt {
        1 => COMPILE.to_owned(),
        n => format!("{}#{n}", COMPILE),
    };
    step(&name, || async {
        let compile = || compile::compile(this.ledger, this.compile_host(), this.workflow);
        let compiled = patiently(compile).await.map_err(step_error)?;
        let (run, compiled) = compiled.ok_or_else(|| this.missing())?;
        let compiled = match compiled {
            CompileOutcome::Draft(draft) => Box::pin(adopted(this, &run, *draft, attempt)).await?,
            card => card,
        };
        let CompileOutcome::Card(card, plan) = compiled else {
            return Err(failed("the draft of a plan became none"));
        };
        this.cache_context(run);
        if let Some(plan) = plan {
            // A replay within this execution finds the first one there, which is the same.
            let _ = this.plan.set(plan);
        }
        Ok(card)
    })
    .await
}

/// The plan that an agent made of a draft, committed.
async fn adopted(
    this: &WorkflowContext<'_>,
    run: &RunContext,
    draft: Plan,
    life: u32,
) -> Flow<CompileOutcome> {
    let ledger = this.ledger;
    let planned = stages::planned(this, run, &draft, life).await?;
    let adopted = match planned {
        Ok((plan, session)) => draft.adopt(plan, session),
        Err(why) => Err(Refusal::new(ErrorCode::PolicyViolation, why)),
    };
    patiently(|| async {
        match &adopted {
            Ok(plan) => compile::commit(ledger, run, plan.clone()).await,
            Err(refusal) => compile::unplanned(ledger, run, refusal.clone()).await,
        }
    })
    .await
    .map_err(step_error)
}

/// Asks for consent from round `first` on, and executes what was consented to.
async fn ask(
    this: &mut WorkflowContext<'_>,
    spec: &GateSpec,
    digest: &Digest,
    staged: bool,
    first: u32,
) -> Flow<RunStatus> {
    let mut difference = Vec::new();
    for round in first..first + MAX_ROUNDS {
        let asking = GateRequest { spec, round, difference: &difference };
        let approved = match wait::await_human(this, &asking).await? {
            GateOutcome::Yes(approved) => approved,
            GateOutcome::No(why) => return finish(this, why).await,
            GateOutcome::Again(why) => {
                difference = why;
                continue;
            }
        };
        if approved.plan != *digest {
            // Edited, or asked again: this execution has another plan in hand.
            *this = WorkflowContext::new(this.executor, this.workflow);
        }
        let (plan, budget) = (&approved.plan, &approved.budget);
        let start = Execution { digest: plan, budget, gated: true, staged };
        match execute(this, start, PlanRemainder::default()).await? {
            RoundsOutcome::Over(status, error) => return ended(status, error),
            RoundsOutcome::Drifted(why) => {
                difference = why;
                // What this execution has read of the run is what drifted.
                *this = WorkflowContext::new(this.executor, this.workflow);
            }
        }
    }
    finish(this, format!("asked {MAX_ROUNDS} times, and what would run kept changing")).await
}

/// How rounds of attempts ended.
enum RoundsOutcome {
    Over(RunStatus, Option<String>),
    /// Nothing was started: the consent is void.
    Drifted(Vec<Difference>),
}

/// What is executed, and under which law.
#[derive(Clone, Copy)]
struct Execution<'a> {
    digest: &'a Digest,
    budget: &'a Budget,
    gated: bool,
    /// Whether the first task builds what the others test.
    staged: bool,
}

/// Some of the plan's tasks.
#[derive(Default)]
struct Stage {
    /// Before more follows: their success does not end the run.
    is_first: bool,
    /// What tests run on.
    patch: Option<String>,
}

async fn execute(
    this: &WorkflowContext<'_>,
    start: Execution<'_>,
    rest: PlanRemainder,
) -> Flow<RoundsOutcome> {
    if !start.staged {
        return rounds(this, start, rest, Stage::default()).await;
    }
    let PlanRemainder { attempts, tasks, .. } = rest;
    let is_open = |index: &usize| tasks.as_ref().is_none_or(|tasks| tasks.contains(index));
    if is_open(&0) {
        let build = PlanRemainder { attempts, ok: 0, tasks: Some(vec![0]) };
        let stage = Stage { is_first: true, patch: None };
        match Box::pin(rounds(this, start, build, stage)).await? {
            RoundsOutcome::Over(RunStatus::Succeeded, _) => {}
            other => return Ok(other),
        }
    }
    let attempt = attempts + 1;
    let patch = step("ApplyPatchST", || stages::recorded(this, attempt)).await?;
    let decided = step("DecideST", || async {
        stages::decided(this, this.plan(start.digest).await?, attempt).await
    })
    .await?;
    let tests: Vec<usize> = decided.tasks.into_iter().filter(is_open).collect();
    let ok = 1;
    let stage = Stage { is_first: false, patch: Some(patch) };
    Box::pin(rounds(this, start, PlanRemainder { attempts, ok, tasks: Some(tests) }, stage)).await
}

/// Rounds of attempts. The last one ends the run in its own step: a step more would cost every run
/// five statements.
async fn rounds(
    this: &WorkflowContext<'_>,
    start: Execution<'_>,
    rest: PlanRemainder,
    stage: Stage,
) -> Flow<RoundsOutcome> {
    let Execution { digest, budget, gated, .. } = start;
    let PlanRemainder { attempts: before, mut ok, tasks: mut again } = rest;
    let goes_on = |next: &Next| {
        stage.is_first && matches!(next, Next::Finish { status: RunStatus::Succeeded, .. })
    };
    let mut attempt = before + 1;
    loop {
        let tasks = again.clone();
        // On the heap, as a task is: a run waits here, for days where it holds a sandbox.
        let body = async || -> Flow<Round> {
            let mut consented = match gated {
                false => ActiveConsent::default(),
                true => match consent::check(this, digest).await? {
                    ConsentCheck::Holds(consented) => consented,
                    ConsentCheck::Drifted(drift) => {
                        return Ok(Round { drift: Some(drift), ..Round::none() });
                    }
                },
            };
            consented.patch.clone_from(&stage.patch);
            let round = round_run(this, digest, attempt, tasks.as_deref(), &consented);
            let round = Box::pin(round).await?;
            let next = decide::after_round(&round, attempt - before, budget);
            if let (false, Next::Finish { status, error }) = (goes_on(&next), &next) {
                // A graph counts what earlier lives did, too.
                let done = if round.over.is_some() { round.ok } else { ok + round.ok };
                let failed = round.over.as_ref().map_or(round.missed.len(), |over| over.failed);
                let mut output = json!({"ok": done, "failed": failed, "attempts": attempt, "blocked": round.blocked});
                if let (Some(over), Some(fields)) = (&round.over, output.as_object_mut()) {
                    fields.insert("skipped".to_owned(), json!(over.skipped));
                }
                this.close(*status, error.as_deref(), &output).await?;
            }
            Ok(round)
        };
        let round = step(&format!("ExecuteST#{attempt}"), || Box::pin(body())).await?;
        if let Some(drift) = round.drift {
            return Ok(RoundsOutcome::Drifted(drift));
        }
        ok += round.ok;
        match decide::after_round(&round, attempt - before, budget) {
            Next::Finish { status, error } => return Ok(RoundsOutcome::Over(status, error)),
            Next::Again { tasks, backoff_ms } => {
                pause(Duration::from_millis(backoff_ms)).await?;
                again = Some(tasks);
                attempt += 1;
            }
        }
    }
}

/// The engine's durable sleep ends at an instant of the wall clock of the worker that began it; where that
/// clock was wrong, the pause is over when it is over by ours.
async fn pause(time: Duration) -> Flow<()> {
    let slept = dbos::sleep(time).into_future();
    tokio::select! {
        slept = slept => slept,
        () = clock::sleep(time + PAUSE_SLACK) => Ok(()),
    }
}

/// Ends a run that never came to a round.
async fn finish(this: &WorkflowContext<'_>, error: String) -> Flow<RunStatus> {
    step("finish", || this.close(RunStatus::Failed, Some(&error), &json!(null))).await?;
    ended(RunStatus::Failed, Some(error))
}

/// The row of a run whose workflow failed without reaching its own end, such as a consent that no
/// longer holds: the ledger must not call it running for ever. One that was retried meanwhile goes on.
/// Waits for the database as a step does; where it is away for longer, the leader ends the run.
pub(crate) async fn close_failed(ledger: &Ledger, workflow: &str, error: &str) {
    let closing = patiently(|| async {
        if let Some(run) = ledger.runs().context(workflow).await? {
            let (failed, is_dispatch) = (RunStatus::Failed, run.is_dispatch());
            ledger.runs().finish_left_open(&run.id, failed, error, is_dispatch).await?;
        }
        Ok::<(), Error>(())
    });
    if let Err(error) = closing.await {
        tracing::error!(%error, workflow, "a failed run could not be closed; the leader will");
    }
}
