//! The parent workflow: compile, ask, execute in rounds, finish.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::consent::Difference;
use cofferdam_contracts::gate_spec::GateSpec;
use cofferdam_contracts::id::{Digest, RunId, TaskKey};
use cofferdam_contracts::plan::{Plan, PlanTask};
use cofferdam_contracts::run::{Budget, RunStatus};
use cofferdam_ledger::LedgerError;
use cofferdam_ledger::listen::{Wake, woken};
use cofferdam_ledger::policies::NewSnapshot;
use cofferdam_ledger::runs::RunContext;
use cofferdam_ledger::tasks::{NewTask, Round as Wave, TaskOutcome};
use dbos::step;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::Flows;
use crate::again::{self, Begin, Rest};
use crate::compile::{self, Card};
use crate::consent::{self, Checked, Consented, Pins};
use crate::decide::{self, Blocked, Miss, Next, Round};
use crate::egress;
use crate::gate::{self, Answered, Asking};
use crate::patience::patiently;
use crate::task::Executor;

/// How a workflow of ours fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub(crate) enum FlowError {
    /// The run ended without success; the ledger has the details.
    #[error("the run ended as {status}: {error}")]
    Ended {
        /// The run's status.
        status: String,
        /// Why.
        error: String,
    },
    /// The ledger refused a step.
    #[error("the ledger refused: {0}")]
    Ledger(String),
}

pub(crate) type Flow<T> = dbos::Result<T, FlowError>;

/// A wait looks for itself after this long, should a wake-up get lost, and then ever less often:
/// thousands of runs that wait for a long task, or for their turn, must cost next to nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The longest that a lost wake-up can cost. A lost connection is no lost wake-up: it wakes everyone.
const LOOK_AT_LEAST: Duration = Duration::from_secs(30);

/// How long the engine may take to record a pause, and to notice its end.
const PAUSE_SLACK: Duration = Duration::from_secs(1);

/// A ledger failure as a step reports it: an outage leaves the workflow PENDING, anything else is
/// the workflow's own failure.
pub(crate) fn step_error(error: LedgerError) -> dbos::Error<FlowError> {
    match error {
        LedgerError::Unavailable(_) => {
            dbos::Error::Interrupted { workflow_id: dbos::workflow_id().unwrap_or_default() }
        }
        other => {
            tracing::error!(error = ?other, "a step failed");
            dbos::Error::Application(FlowError::Ledger(other.to_string()))
        }
    }
}

/// Times that a run asks for consent: whatever drifts so often is not decided by asking again.
const MAX_ROUNDS: u32 = 8;

/// The workflow's body: the run, and behind each of its failures that somebody had retried, the rest of it.
pub(crate) async fn run_workflow(executor: Arc<Executor>) -> Flow<RunStatus> {
    let workflow = dbos::workflow_id().unwrap_or_default();
    let mut this = This::new(&executor, &workflow);
    let mut card = None;
    let mut begin = Begin::Compile { attempt: 1 };
    for retry in 1.. {
        let over = run_from(&mut this, &mut card, begin).await;
        let Err(dbos::Error::Application(_)) = over else { return over };
        match again::begin(&this, card.as_ref(), retry).await? {
            Some(next) => begin = next,
            None => return over,
        }
        this = This::new(&executor, &workflow);
    }
    Err(failed("a run is not retried for ever"))
}

/// One life of the run. `card` is what CompileST left, from whichever life.
async fn run_from(this: &mut This<'_>, card: &mut Option<Card>, begin: Begin) -> Flow<RunStatus> {
    if let Begin::Over { error } = begin {
        return Err(failed(error));
    }
    if let Begin::Compile { attempt } = begin {
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
            Begin::Execute { rest, .. } => rest,
            _ => Rest::default(),
        };
        return match execute(this, &digest, &card.budget, false, rest).await? {
            Executed::Over(status, error) => ended(status, error),
            Executed::Drifted(_) => {
                finish(this, "a run without a gate has no consent".into()).await
            }
        };
    };
    let mut first = 1;
    match begin {
        Begin::Execute { plan, budget, rest } => {
            return match execute(this, &plan, &budget, true, rest).await? {
                Executed::Over(status, error) => ended(status, error),
                Executed::Drifted(_) => finish(this, "the consent no longer holds".into()).await,
            };
        }
        Begin::Ask { round } => first = round,
        _ => {}
    }
    ask(this, &spec, &digest, first).await
}

/// CompileST, under its number where it is not the first.
async fn compiled(this: &This<'_>, attempt: u32) -> Flow<Card> {
    let name = match attempt {
        1 => compile::COMPILE.to_owned(),
        n => format!("{}#{n}", compile::COMPILE),
    };
    let allowed = &this.executor.host.facts().allowed;
    step(&name, || async {
        let run = this.context().await?;
        let (card, plan) = patiently(|| compile::compile(&this.flows.ledger, allowed, run))
            .await
            .map_err(step_error)?;
        if let Some(plan) = plan {
            // A replay within this execution finds the first one there, which is the same.
            let _ = this.plan.set(plan);
        }
        Ok(card)
    })
    .await
}

/// Asks for consent from round `first` on, and executes what was consented to.
async fn ask(this: &mut This<'_>, spec: &GateSpec, digest: &Digest, first: u32) -> Flow<RunStatus> {
    let mut difference = Vec::new();
    for round in first..first + MAX_ROUNDS {
        let asking = Asking { spec, round, difference: &difference };
        let consent = match gate::await_human(this, &asking).await? {
            Answered::Yes(consent) => consent,
            Answered::No(why) => return finish(this, why).await,
            Answered::Again(why) => {
                difference = why;
                continue;
            }
        };
        if consent.plan != *digest {
            // Edited, or asked again: this execution has another plan in hand.
            *this = This::new(this.executor, this.workflow);
        }
        match execute(this, &consent.plan, &consent.budget, true, Rest::default()).await? {
            Executed::Over(status, error) => return ended(status, error),
            Executed::Drifted(why) => {
                difference = why;
                // What this execution has read of the run is what drifted.
                *this = This::new(this.executor, this.workflow);
            }
        }
    }
    finish(this, format!("asked {MAX_ROUNDS} times, and what would run kept changing")).await
}

/// How rounds of attempts ended.
enum Executed {
    Over(RunStatus, Option<String>),
    /// Nothing was started: the consent is void.
    Drifted(Vec<Difference>),
}

/// Rounds of attempts. The last one ends the run in its own step: a step more would cost every run
/// five statements.
async fn execute(
    this: &This<'_>,
    digest: &Digest,
    budget: &Budget,
    gated: bool,
    rest: Rest,
) -> Flow<Executed> {
    let Rest { attempts: before, mut ok, tasks: mut again } = rest;
    let mut attempt = before + 1;
    loop {
        let tasks = again.clone();
        let round: Round = step(&format!("ExecuteST#{attempt}"), || async {
            let consented = match gated {
                false => Consented::default(),
                true => match consent::check(this, digest).await? {
                    Checked::Holds(consented) => consented,
                    Checked::Drifted(drift) => {
                        let (missed, drift) = (Vec::new(), Some(drift));
                        return Ok(Round { ok: 0, missed, blocked: None, drift });
                    }
                },
            };
            let round = round_run(this, digest, attempt, tasks.as_deref(), &consented).await?;
            if let Next::Finish { status, error } = decide::after_round(&round, attempt - before, budget) {
                let output = json!({"ok": ok + round.ok, "failed": round.missed.len(), "attempts": attempt, "blocked": round.blocked});
                this.close(status, error.as_deref(), &output).await?;
            }
            Ok(round)
        })
        .await?;
        if let Some(drift) = round.drift {
            return Ok(Executed::Drifted(drift));
        }
        ok += round.ok;
        match decide::after_round(&round, attempt - before, budget) {
            Next::Finish { status, error } => return Ok(Executed::Over(status, error)),
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

/// One execution of the workflow.
pub(crate) struct This<'a> {
    pub executor: &'a Executor,
    pub flows: &'a Flows,
    pub workflow: &'a str,
    /// What the run was started with. It never changes, so the first step that needs it reads it
    /// for all of them; a replay may begin with any step.
    context: OnceCell<RunContext>,
    /// The plan and its digest, once this execution has seen them.
    plan: OnceCell<(Digest, Plan)>,
}

impl<'a> This<'a> {
    fn new(executor: &'a Executor, workflow: &'a str) -> Self {
        Self {
            executor,
            flows: &executor.flows,
            workflow,
            context: OnceCell::new(),
            plan: OnceCell::new(),
        }
    }

    pub(crate) async fn context(&self) -> Flow<&RunContext> {
        self.context
            .get_or_try_init(|| async {
                patiently(|| self.flows.ledger.run_context(self.workflow))
                    .await
                    .map_err(step_error)?
                    .ok_or_else(|| {
                        let error = format!("no run of workflow {}", self.workflow);
                        dbos::Error::Application(FlowError::Ledger(error))
                    })
            })
            .await
    }

    /// The plan of this digest: what this execution compiled itself, or what CompileST left.
    pub(crate) async fn plan(&self, digest: &Digest) -> Flow<&Plan> {
        let (seen, plan) = self
            .plan
            .get_or_try_init(|| async {
                let run = self.context().await?;
                let plan = patiently(|| compile::plan_read(&self.flows.ledger, run, digest)).await;
                Flow::Ok((digest.clone(), plan.map_err(step_error)?))
            })
            .await?;
        match seen == digest {
            true => Ok(plan),
            false => Err(step_error(LedgerError::Row {
                what: "plan digest",
                why: "it changed while the run went on".into(),
            })),
        }
    }

    pub(crate) async fn close(
        &self,
        status: RunStatus,
        error: Option<&str>,
        output: &serde_json::Value,
    ) -> Flow<bool> {
        let run = self.context().await?;
        patiently(|| self.flows.ledger.run_finish(&run.id, status, error, "ExecuteST", output))
            .await
            .map_err(step_error)
    }
}

/// Queues the round's attempts, at most `caps.concurrency` at a time, and waits for their ends.
async fn round_run(
    this: &This<'_>,
    digest: &Digest,
    attempt: u32,
    only: Option<&[usize]>,
    consented: &Consented,
) -> Flow<Round> {
    let (flows, workflow) = (this.flows, this.workflow);
    let pins = &consented.pins;
    let run = this.context().await?;
    let plan = this.plan(digest).await?;
    let mut snapshots = snapshots(flows, run, plan, consented.approver.clone()).await?;
    let mut todo = attempts_of(plan, run, attempt, only, pins).map_err(step_error)?;
    todo.reverse();
    let concurrency = usize::try_from(plan.caps.concurrency).unwrap_or(1);
    let mut wakes = flows.wakes.subscribe();
    let mut open: Vec<(usize, NewTask)> = Vec::new();
    let mut round = Round { ok: 0, missed: Vec::new(), blocked: None, drift: None };
    let mut pause = LOOK_AGAIN;
    loop {
        let mut fresh = Vec::new();
        while open.len() < concurrency && round.blocked.is_none() {
            let Some((index, task)) = todo.pop() else { break };
            open.push((index, task.clone()));
            fresh.push(task);
        }
        if !fresh.is_empty() {
            let wave = Wave {
                run: &run.id,
                parent: workflow,
                partition: &run.partition_key,
                priority: run.priority,
                tasks: &fresh,
                snapshots: &snapshots,
            };
            patiently(|| flows.ledger.tasks_enqueue(&wave)).await.map_err(step_error)?;
            snapshots.clear();
        }
        if open.is_empty() {
            round.missed.sort_by_key(|m| m.index);
            return Ok(round);
        }
        pause = match wait_for_end(&mut wakes, &run.id, workflow, deadline_of(run), pause).await {
            true => LOOK_AGAIN,
            false => (pause * 2).min(LOOK_AT_LEAST),
        };
        let keys: Vec<TaskKey> = open.iter().map(|(_, task)| task.key.clone()).collect();
        let ended =
            patiently(|| flows.ledger.round_outcomes(workflow, &keys)).await.map_err(step_error)?;
        let Some(ended) = ended else {
            return Err(dbos::Error::WorkflowCancelled { workflow_id: workflow.to_owned() });
        };
        for (index, canceled) in settle(&mut open, &mut round, ended) {
            if let Some(task) = plan.tasks.get(index) {
                todo.push((index, attempt_of(task, run, canceled + 1, pins).map_err(step_error)?));
            }
        }
        if round.blocked.is_none() {
            round.blocked = blocked(flows, run, plan).await?;
            if let Some(b) = &round.blocked {
                stop_tasks(flows, run, b).await?;
            }
        }
    }
}

/// The run's egress policies, which commit with its first tasks; without consent to them none starts.
async fn snapshots(
    flows: &Flows,
    run: &RunContext,
    plan: &Plan,
    approver: Option<String>,
) -> Flow<Vec<NewSnapshot>> {
    patiently(|| egress::mirrors_of(&flows.ledger, run, plan))
        .await
        .map_err(step_error)?
        .map_err(|refusal| failed(refusal.message))?;
    let consent =
        patiently(|| egress::consent_of(&flows.ledger, run, plan, approver.clone())).await;
    egress::snapshots(plan, &consent.map_err(step_error)?)
        .map_err(|refusal| failed(refusal.message))
}

fn attempts_of(
    plan: &Plan,
    run: &RunContext,
    attempt: u32,
    only: Option<&[usize]>,
    pins: &Pins,
) -> Result<Vec<(usize, NewTask)>, LedgerError> {
    plan.tasks
        .iter()
        .enumerate()
        .filter(|(index, _)| only.is_none_or(|o| o.contains(index)))
        .map(|(index, task)| Ok((index, attempt_of(task, run, attempt, pins)?)))
        .collect()
}

fn attempt_of(
    task: &PlanTask,
    run: &RunContext,
    attempt: u32,
    pins: &Pins,
) -> Result<NewTask, LedgerError> {
    let task = PlanTask { name: task.name.clone(), work: consent::pinned(&task.work, pins) };
    Ok(NewTask {
        key: task.key(&run.intent_id, &run.id, attempt)?,
        step_id: task.step_id(),
        attempt,
        name: task.name.clone(),
        work: task.work.clone(),
    })
}

fn deadline_of(run: &RunContext) -> Option<i64> {
    decide::deadline(run.began_at, run.timeout_ms, &run.budget)
}

/// Returns when a task of the run ended, the run was canceled, its deadline came, or the pause is
/// over. Whether it was woken.
async fn wait_for_end(
    wakes: &mut tokio::sync::broadcast::Receiver<Wake>,
    run: &RunId,
    workflow: &str,
    deadline: Option<i64>,
    pause: Duration,
) -> bool {
    let left =
        deadline.map(|d| Duration::from_millis(u64::try_from(d - clock::now_ms()).unwrap_or(0)));
    let pause = left.map_or(pause, |l| l.min(pause));
    let moved = |wake: &Wake| match wake {
        Wake::Task(r) => r == run.as_str(),
        Wake::Cancel(w) => w == workflow,
        _ => false,
    };
    tokio::select! {
        () = woken(wakes, moved) => true,
        () = clock::sleep(pause) => false,
    }
}

/// Takes what has ended out of `open`. Yields the tasks that a resume asks for again, each with its
/// canceled attempt: a resumed run does what its cancel kept it from.
fn settle(
    open: &mut Vec<(usize, NewTask)>,
    round: &mut Round,
    ended: Vec<TaskOutcome>,
) -> Vec<(usize, u32)> {
    let mut again = Vec::new();
    for outcome in ended {
        let Some(at) = open.iter().position(|(_, task)| task.key == outcome.key) else { continue };
        let (index, task) = open.swap_remove(at);
        match outcome.err_code {
            cofferdam_contracts::sandbox::ErrCode::None => round.ok += 1,
            _ if outcome.resumed && round.blocked.is_none() => again.push((index, task.attempt)),
            err_code => {
                let (name, cause) = (task.name, outcome.cause);
                round.missed.push(Miss {
                    index,
                    name,
                    err_code,
                    cause,
                    permanent: outcome.permanent,
                })
            }
        }
    }
    again
}

pub(crate) async fn blocked(flows: &Flows, run: &RunContext, plan: &Plan) -> Flow<Option<Blocked>> {
    if let Some(deadline) = deadline_of(run)
        && clock::now_ms() >= deadline
    {
        let ms = |from: i64, to: i64| u64::try_from(to - from).unwrap_or(0);
        return Ok(Some(Blocked {
            metric: "wall_clock_ms".into(),
            limit: ms(run.began_at, deadline),
            observed: ms(run.began_at, clock::now_ms()),
        }));
    }
    let bounded = run.budget.max_sbx_minutes.is_some() || run.budget.max_artifacts_mb.is_some();
    // A small plan whose ceilings sum up to less than the cap cannot reach it: no need to ask.
    let ceiling_ms: u64 = plan.tasks.iter().map(PlanTask::budget_ms).sum();
    if !bounded && ceiling_ms <= u64::from(plan.caps.sandbox_minutes) * 60_000 {
        return Ok(None);
    }
    let (ms, bytes) = patiently(|| flows.ledger.tasks_usage(&run.id)).await.map_err(step_error)?;
    let whole = |n: i64| u64::try_from(n).unwrap_or(0);
    Ok(decide::over_budget(&run.budget, &plan.caps, whole(ms), whole(bytes)))
}

/// Leaves the diagnosis and cancels what is still open, so that the round ends.
pub(crate) async fn stop_tasks(flows: &Flows, run: &RunContext, b: &Blocked) -> Flow<()> {
    let text = json!({"blocked": b}).to_string();
    let key = cofferdam_contracts::canonical::digest_bytes(format!("{}:{text}", run.id).as_bytes());
    let key = TaskKey::parse(key.as_str())
        .map_err(|e| step_error(LedgerError::Row { what: "task key", why: e.to_string() }))?;
    patiently(|| flows.ledger.step_diagnostic(&run.id, "ExecuteST", &key, &text))
        .await
        .map_err(step_error)?;
    patiently(|| flows.ledger.tasks_cancel(&run.id)).await.map_err(step_error)
}

/// Ends a run that never came to a round.
async fn finish(this: &This<'_>, error: String) -> Flow<RunStatus> {
    step("finish", || this.close(RunStatus::Failed, Some(&error), &json!(null))).await?;
    ended(RunStatus::Failed, Some(error))
}

/// The end of a workflow whose run failed, whatever its row says so far.
pub(crate) fn failed(error: impl Into<String>) -> dbos::Error<FlowError> {
    let status = RunStatus::Failed.as_str().to_owned();
    dbos::Error::Application(FlowError::Ended { status, error: error.into() })
}

/// How the workflow ends with its run.
fn ended(status: RunStatus, error: Option<String>) -> Flow<RunStatus> {
    match status {
        RunStatus::Succeeded => Ok(status),
        other => Err(dbos::Error::Application(FlowError::Ended {
            status: other.as_str().to_owned(),
            error: error.unwrap_or_default(),
        })),
    }
}

/// The row of a run whose workflow failed without reaching its own end, such as a consent that no
/// longer holds: the ledger must not call it running for ever.
/// Waits for the database as a step does; where it is away for longer, the leader ends the run.
pub(crate) async fn close_failed(flows: &Flows, workflow: &str, error: &str) {
    let ledger = &flows.ledger;
    let closing = patiently(|| async {
        if let Some(run) = ledger.run_context(workflow).await? {
            let failed = RunStatus::Failed;
            ledger.run_finish(&run.id, failed, Some(error), "ExecuteST", &json!(null)).await?;
        }
        Ok::<(), LedgerError>(())
    });
    if let Err(error) = closing.await {
        tracing::error!(%error, workflow, "a failed run could not be closed; the leader will");
    }
}
