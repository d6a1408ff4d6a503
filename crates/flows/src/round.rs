//! One round of attempts: queued, waited for, counted, and stopped where a budget is reached.

use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::{Digest, RunId, TaskKey};
use cofferdam_contracts::plan::{Plan, PlanTask, Work};
use cofferdam_contracts::sandbox::ErrCode;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::listen::{Wake, notified};
use cofferdam_ledger::policies::NewPolicySnapshot;
use cofferdam_ledger::runs::RunContext;
use cofferdam_ledger::tasks::{NewTask, TaskBatch, TaskOutcome};
use serde_json::json;

use crate::decide::{self, BudgetExcess, Miss, Round};
use crate::egress;
use crate::error::{Error, Result};
use crate::flow::{Flow, FlowError, failed, step_error};
use crate::gates::consent::{self, ActiveConsent};
use crate::graph_run;
use crate::patience::patiently;
use crate::plan_text::new_task;
use crate::task::kept;
use crate::workflow_context::WorkflowContext;

/// A wait looks for itself after this long, should a wake-up get lost, and then ever less often:
/// thousands of runs that wait for a long task, or for their turn, must cost next to nothing.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The longest that a lost wake-up can cost. A lost connection is no lost wake-up: it wakes everyone.
pub(crate) const LOOK_AT_LEAST: Duration = Duration::from_secs(30);

/// An attempt of a round.
struct RoundTask {
    /// Its task's place in the plan.
    index: usize,
    task: NewTask,
}

/// Queues the round's attempts, at most `caps.concurrency` at a time, and waits for their ends.
pub(crate) async fn round_run(
    this: &WorkflowContext<'_>,
    digest: &Digest,
    attempt: u32,
    only: Option<&[usize]>,
    consented: &ActiveConsent,
) -> Flow<Round> {
    let (plan, run) = (this.plan(digest).await?, this.context().await?);
    if plan.graph.is_some() {
        return graph_run::graph_run(this, run, plan, consented).await;
    }
    round_of(this, run, plan, attempt, only, consented).await
}

/// The same of a plan that nobody has recorded yet.
pub(crate) async fn round_of(
    this: &WorkflowContext<'_>,
    run: &RunContext,
    plan: &Plan,
    attempt: u32,
    only: Option<&[usize]>,
    consented: &ActiveConsent,
) -> Flow<Round> {
    let (ledger, workflow) = (this.ledger, this.workflow);
    let mut snapshots = snapshots(ledger, run, plan, consented.approver.clone()).await?;
    let mut todo = attempts_of(plan, run, attempt, only, consented).map_err(step_error)?;
    todo.reverse();
    let concurrency = usize::try_from(plan.caps.concurrency).unwrap_or(1);
    let mut wakes = this.executor.flows.wakes.subscribe();
    let mut expected = this.executor.handed.expect();
    let mut open: Vec<RoundTask> = Vec::new();
    let mut round = Round::none();
    // A sandbox that lives for hours is not looked for each second, or two: nothing but a lost wake-up is found.
    let often = match plan.tasks.iter().all(|task| matches!(task.work, Work::Live(_))) {
        true => LOOK_AT_LEAST,
        false => LOOK_AGAIN,
    };
    let mut pause = often;
    let mut over = Vec::new();
    loop {
        let mut fresh = Vec::new();
        while open.len() < concurrency && round.blocked.is_none() {
            let Some(next) = todo.pop() else { break };
            expected.add(&next.task.key);
            fresh.push(next.task.clone());
            open.push(next);
        }
        if !fresh.is_empty() {
            let ends: Vec<_> = fresh.iter().filter_map(|task| kept(run, task)).collect();
            let values: Vec<_> = ends.iter().map(|(task, end)| end.committed(task)).collect();
            let wave = TaskBatch {
                tasks: &fresh,
                snapshots: &snapshots,
                values: &values,
                ..wave_of(this, run)
            };
            let queued = patiently(|| ledger.tasks().enqueue(&wave)).await.map_err(step_error)?;
            over = queued.ok_or_else(|| canceled(workflow))?;
            snapshots.clear();
            // One that was queued with its run, and does not run here: it may have ended before this round expected it.
            let is_other = |task: &NewTask| {
                matches!(task.work, Work::Live(_)) && !this.executor.started.has(task.key.as_str())
            };
            if fresh.iter().any(is_other) {
                pause = Duration::ZERO;
            }
        }
        if open.is_empty() {
            round.missed.sort_by_key(|m| m.index);
            return Ok(round);
        }
        if over.is_empty() {
            // Once it has passed, only the ends of what was stopped are waited for.
            let deadline = deadline_of(run).filter(|_| round.blocked.is_none());
            let woken = wait_for_end(&mut wakes, &run.id, workflow, deadline, pause).await;
            pause = if woken { often } else { (pause * 2).clamp(often, LOOK_AT_LEAST) };
            over = expected.take().await;
        }
        let ended = match over.is_empty() {
            false => over.drain(..).map(TaskOutcome::succeeded).collect(),
            true => outcomes(ledger, workflow, open.iter().map(|one| &one.task.key)).await?,
        };
        for (index, canceled) in settle(&mut open, &mut round, ended) {
            if let Some(task) = plan.tasks.get(index) {
                let again = attempt_of(task, run, canceled + 1, consented);
                todo.push(RoundTask { index, task: again.map_err(step_error)? });
            }
        }
        if round.blocked.is_none() {
            round.blocked = blocked(ledger, run, plan).await?;
            if let Some(b) = &round.blocked {
                stop_tasks(ledger, run, b).await?;
            }
        }
    }
}

/// Nothing to queue for a run, by a worker.
pub(crate) fn wave_of<'a>(this: &'a WorkflowContext<'_>, run: &'a RunContext) -> TaskBatch<'a> {
    TaskBatch {
        run: &run.id,
        parent: this.workflow,
        partition: &run.partition_key,
        priority: run.priority,
        tasks: &[],
        snapshots: &[],
        values: &[],
        executor: &this.executor.id,
    }
}

/// How an execution ends whose run was canceled.
pub(crate) fn canceled(workflow: &str) -> dbos::Error<FlowError> {
    dbos::Error::WorkflowCancelled { workflow_id: workflow.to_owned() }
}

/// Those of the open attempts that have ended.
///
/// # Errors
/// The run was canceled.
pub(crate) async fn outcomes<'a>(
    ledger: &Ledger,
    workflow: &str,
    open: impl Iterator<Item = &'a TaskKey>,
) -> Flow<Vec<TaskOutcome>> {
    let keys: Vec<TaskKey> = open.cloned().collect();
    let asking = || ledger.tasks().round_outcomes(workflow, &keys);
    patiently(asking).await.map_err(step_error)?.ok_or_else(|| canceled(workflow))
}

/// The run's egress policies, which commit with its first tasks; without consent to them none starts.
pub(crate) async fn snapshots(
    ledger: &Ledger,
    run: &RunContext,
    plan: &Plan,
    approver: Option<String>,
) -> Flow<Vec<NewPolicySnapshot>> {
    patiently(|| egress::mirrors_of(ledger, run, plan)).await.map_err(step_error)?;
    let consent = patiently(|| egress::consent_of(ledger, run, plan, approver.clone())).await;
    egress::snapshots(plan, &consent.map_err(step_error)?)
        .map_err(|refusal| failed(refusal.message))
}

fn attempts_of(
    plan: &Plan,
    run: &RunContext,
    attempt: u32,
    only: Option<&[usize]>,
    consented: &ActiveConsent,
) -> Result<Vec<RoundTask>> {
    plan.tasks
        .iter()
        .enumerate()
        .filter(|(index, _)| only.is_none_or(|o| o.contains(index)))
        .map(|(index, task)| {
            Ok(RoundTask { index, task: attempt_of(task, run, attempt, consented)? })
        })
        .collect()
}

/// The key of an attempt of a task that nobody's consent changes.
pub(crate) fn attempt_key(task: &PlanTask, run: &RunContext, attempt: u32) -> Result<TaskKey> {
    Ok(attempt_of(task, run, attempt, &ActiveConsent::default())?.key)
}

fn attempt_of(
    task: &PlanTask,
    run: &RunContext,
    attempt: u32,
    consented: &ActiveConsent,
) -> Result<NewTask> {
    let mut work = consent::pinned(&task.work, &consented.pins);
    if let Work::Patched(work) = &mut work {
        work.patch.clone_from(&consented.patch);
    }
    let task = PlanTask::of(task.name.clone(), work);
    new_task(task, &run.intent_id, &run.id, attempt)
}

pub(crate) fn deadline_of(run: &RunContext) -> Option<i64> {
    decide::deadline(run.began_at, run.timeout_ms, &run.budget)
}

/// Returns when a task of the run ended or a gate of it moved, the run was canceled, its deadline came, or the pause is
/// over. Whether it was woken.
pub(crate) async fn wait_for_end(
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
        // A gate before one of its tasks was answered.
        Wake::Task(r) | Wake::Gate(r) => r == run.as_str(),
        Wake::Cancel(w) => w == workflow,
        _ => false,
    };
    tokio::select! {
        () = notified(wakes, moved) => true,
        () = clock::sleep(pause) => false,
    }
}

/// Takes what has ended out of `open`. Yields the tasks that a resume asks for again, each with its
/// canceled attempt: a resumed run does what its cancel kept it from.
fn settle(
    open: &mut Vec<RoundTask>,
    round: &mut Round,
    ended: Vec<TaskOutcome>,
) -> Vec<(usize, u32)> {
    let mut again = Vec::new();
    for outcome in ended {
        let Some(at) = open.iter().position(|one| one.task.key == outcome.key) else { continue };
        let RoundTask { index, task } = open.swap_remove(at);
        match outcome.err_code {
            ErrCode::None => round.ok += 1,
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

pub(crate) async fn blocked(
    ledger: &Ledger,
    run: &RunContext,
    plan: &Plan,
) -> Flow<Option<BudgetExcess>> {
    if let Some(deadline) = deadline_of(run)
        && clock::now_ms() >= deadline
    {
        let ms = |from: i64, to: i64| u64::try_from(to - from).unwrap_or(0);
        return Ok(Some(BudgetExcess {
            metric: "wall_clock_ms".into(),
            limit: ms(run.began_at, deadline),
            observed: ms(run.began_at, clock::now_ms()),
        }));
    }
    let bounded = run.budget.max_sbx_minutes.is_some() || run.budget.max_artifacts_mb.is_some();
    // A small plan whose ceilings sum up to less than the cap cannot reach it: no need to ask.
    let ceiling_ms: u64 = plan.all_tasks().map(PlanTask::budget_ms).sum();
    // A late fan-out has as many tasks as an output says, and retries take as long again.
    let mut groups = plan.graph.iter().flat_map(|graph| &graph.groups);
    let is_late = groups.any(|group| group.fanout.is_some() || group.retry.is_some());
    if !bounded && !is_late && ceiling_ms <= u64::from(plan.caps.sandbox_minutes) * 60_000 {
        return Ok(None);
    }
    let (ms, bytes) = patiently(|| ledger.tasks().usage(&run.id)).await.map_err(step_error)?;
    let whole = |n: i64| u64::try_from(n).unwrap_or(0);
    Ok(decide::over_budget(&run.budget, &plan.caps, whole(ms), whole(bytes)))
}

/// Leaves the diagnosis and cancels what is still open, so that the round ends.
pub(crate) async fn stop_tasks(ledger: &Ledger, run: &RunContext, b: &BudgetExcess) -> Flow<()> {
    diagnose(ledger, run, b).await?;
    patiently(|| ledger.ops().tasks_cancel(&run.id)).await.map_err(step_error)
}

/// Leaves the diagnosis of a reached budget.
pub(crate) async fn diagnose(ledger: &Ledger, run: &RunContext, b: &BudgetExcess) -> Flow<()> {
    let text = json!({"blocked": b}).to_string();
    let key = digest_bytes(format!("{}:{text}", run.id).as_bytes());
    let key = TaskKey::parse(key.as_str())
        .map_err(|e| step_error(Error::Corrupt { what: "task key", why: e.to_string() }))?;
    patiently(|| ledger.steps().diagnostic(&run.id, "ExecuteST", &key, &text))
        .await
        .map_err(step_error)
}
