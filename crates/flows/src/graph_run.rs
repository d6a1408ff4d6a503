//! A run whose tasks are a graph: what ended is told to its state, what follows is taken down and queued, until nothing is left.
//!
//! ```text
//! ends, backoffs, budget --GraphEvent--> GraphState --GraphAction--> Advance --graph_advance--> rows, queued attempts
//!          ^                                                                                          |
//!          \------------------------------ wait for an end, a backoff, the deadline <----------------/
//! ```
//! **Every event is on record together with what follows from it**, so that who goes on after a crash takes the same events in the
//! same order and comes to the same attempts. What was not taken down yet happens again, in whatever order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::artifact;
use cofferdam_contracts::id::{GroupName, StepId, TaskKey};
use cofferdam_contracts::pipeline::MAX_FILE_SOURCES;
use cofferdam_contracts::plan::{Plan, PlanTask, TaskFiles, Work};
use cofferdam_contracts::retry_spec::AttemptEnd;
use cofferdam_contracts::run::RunStatus;
use cofferdam_contracts::run_file;
use cofferdam_contracts::sandbox::{ErrCode, InputFile};
use cofferdam_contracts::task_outputs::TaskOutputs;
use cofferdam_ledger::graph_gates::NewStartAnswer;
use cofferdam_ledger::graphs::{
    AdvanceOutcome, AttemptRecord, GraphAdvance, GraphEventRow, GraphRecord, NewGraphEvent,
    NewGroup, NewGroupEnd, NewSkip,
};
use cofferdam_ledger::policies::NewPolicySnapshot;
use cofferdam_ledger::runs::RunContext;
use cofferdam_ledger::tasks::{NewTask, TaskBatch, TaskOutcome};

use crate::decide::{BudgetExcess, GraphOutcome, Round};
use crate::error::{Error, Result};
use crate::flow::{Flow, step_error};
use crate::gates::consent::{self, ActiveConsent};
use crate::graph::{GraphAction, GraphEvent, GraphProgress, GraphState, TaskEnd};
use crate::graph_gates::StartGates;
use crate::graph_rows::{member, progress_of, reason};
use crate::patience::patiently;
use crate::plan_text::new_task;
use crate::round::{
    LOOK_AGAIN, LOOK_AT_LEAST, blocked, canceled, deadline_of, diagnose, outcomes, snapshots,
    wait_for_end, wave_of,
};
use crate::task::kept;
use crate::workflow_context::WorkflowContext;

/// How often the run's use is summed up at most: it is a sum over all of its attempts.
const BUDGET_EVERY: Duration = Duration::from_secs(1);

/// An attempt that is queued or runs.
#[derive(Debug, Clone, Copy)]
struct OpenAttempt {
    index: usize,
    attempt: u32,
}

/// The last attempt of a task, whose files others may ask for.
#[derive(Debug, Clone)]
struct LastAttempt {
    key: TaskKey,
    is_ok: bool,
}

/// What happened and is not on record yet, with what follows.
#[derive(Default)]
struct Batch<'a> {
    advance: GraphAdvance<'a>,
    fresh: Vec<NewTask>,
}

impl Batch<'_> {
    fn is_empty(&self) -> bool {
        self.advance.events.is_empty() && self.fresh.is_empty()
    }
}

struct GraphRun<'a> {
    run: &'a RunContext,
    plan: &'a Plan,
    consented: &'a ActiveConsent,
    state: GraphState<'a>,
    /// Of earlier lives, by step.
    earlier: BTreeMap<StepId, LastAttempt>,
    /// Of this life, by the task's index.
    last: BTreeMap<usize, LastAttempt>,
    open: BTreeMap<TaskKey, OpenAttempt>,
    /// Steps that this life does not start.
    skipped: BTreeSet<StepId>,
    /// When the pause before a task's next attempt is over, ms since the epoch.
    backoffs: BTreeMap<usize, i64>,
    gates: StartGates<'a>,
    canceled: Vec<TaskKey>,
    batch: Batch<'a>,
    events: u32,
    blocked: Option<BudgetExcess>,
    finish: Option<(RunStatus, Option<String>)>,
}

/// Executes the graph to its end.
pub(crate) async fn graph_run(
    this: &WorkflowContext<'_>,
    run: &RunContext,
    plan: &Plan,
    consented: &ActiveConsent,
) -> Flow<Round> {
    let ledger = this.ledger;
    let record = patiently(|| ledger.tasks().graph_record(&run.id, run.retries)).await;
    let record = record.map_err(step_error)?;
    let progress = progress_of(&record);
    let mut graph = GraphRun::new(run, plan, consented, &progress, &record);
    graph.replay(&record).map_err(step_error)?;
    graph.execute(this).await?;
    let (status, error) = graph.finish.unwrap_or((RunStatus::Failed, None));
    let counts = graph.state.counts();
    let over = GraphOutcome { status, error, failed: counts.failed, skipped: counts.skipped };
    Ok(Round { ok: counts.ok, blocked: graph.blocked, over: Some(over), ..Round::none() })
}

impl<'a> GraphRun<'a> {
    fn new(
        run: &'a RunContext,
        plan: &'a Plan,
        consented: &'a ActiveConsent,
        progress: &'a GraphProgress,
        record: &GraphRecord,
    ) -> Self {
        let last = |one: &AttemptRecord| {
            let is_ok = one.err_code == ErrCode::None;
            (one.step_id.clone(), LastAttempt { key: one.key.clone(), is_ok })
        };
        Self {
            run,
            plan,
            consented,
            state: GraphState::new(plan, &run.budget, progress),
            earlier: record.attempts.iter().filter(|one| one.is_earlier).map(last).collect(),
            last: BTreeMap::new(),
            open: BTreeMap::new(),
            skipped: BTreeSet::new(),
            backoffs: BTreeMap::new(),
            gates: StartGates::new(run, plan),
            canceled: Vec::new(),
            batch: Batch::default(),
            events: 0,
            blocked: None,
            finish: None,
        }
    }

    /// Takes what is on record, which is there with all that followed from it; or begins.
    fn replay(&mut self, record: &GraphRecord) -> Result<()> {
        let outputs: BTreeMap<(&StepId, u32), &TaskOutputs> = record
            .attempts
            .iter()
            .filter_map(|one| Some(((&one.step_id, one.attempt), one.outputs.as_ref()?)))
            .collect();
        for GraphEventRow { event, at_ms } in &record.events {
            let mut event: GraphEvent =
                serde_json::from_value(event.clone()).map_err(Error::corrupt("graph event"))?;
            if let GraphEvent::Ended(end) = &mut event {
                let step = self.state.task(end.index).map(PlanTask::step_id);
                let found = step.and_then(|step| outputs.get(&(&step, end.attempt)).copied());
                end.outputs = found.cloned();
            }
            self.happened(event, *at_ms)?;
            self.batch = Batch::default();
        }
        match record.events.is_empty() {
            true => self.happened(GraphEvent::Begin, clock::now_ms()),
            false => Ok(()),
        }
    }

    /// Tells the state, and notes what follows.
    fn happened(&mut self, event: GraphEvent, at_ms: i64) -> Result<()> {
        let row = serde_json::to_value(&event).map_err(Error::corrupt("graph event"))?;
        self.batch.advance.events.push(NewGraphEvent { seq: self.events, event: row });
        self.events = self.events.saturating_add(1);
        match &event {
            GraphEvent::Begin => self.begin(),
            GraphEvent::Ended(end) => {
                let is_ok = end.end.err_code == ErrCode::None;
                self.over(end.index, is_ok);
            }
            GraphEvent::Resumed { index, .. } => self.over(*index, false),
            GraphEvent::BackoffOver { index } => {
                self.backoffs.remove(index);
            }
            GraphEvent::Answered { group, choice, .. } => self.answer(group, choice.as_str()),
            GraphEvent::Blocked(excess) => self.blocked = Some(excess.clone()),
            GraphEvent::Canceled => {}
        }
        let mut broken = BTreeMap::new();
        for action in self.state.apply(event) {
            self.follow(action, at_ms, &mut broken)?;
        }
        for end in self.state.take_group_ends() {
            let detail = broken.get(&end.name).cloned();
            let end = NewGroupEnd { name: end.name, outcome: end.outcome, detail };
            self.batch.advance.ends.push(end);
        }
        Ok(())
    }

    fn begin(&mut self) {
        let groups = self.plan.graph.iter().flat_map(|graph| &graph.groups);
        self.batch.advance.groups = groups
            .map(|group| NewGroup {
                name: &group.name,
                needs: &group.needs,
                is_late: group.fanout.is_some(),
                is_gated: group.gate.is_some(),
            })
            .collect();
        self.batch.advance.members = self.plan.tasks.iter().filter_map(member).collect();
    }

    /// A gate of a group opens: a yes to it binds the last attempts of what the group needs.
    fn ask(&mut self, group: &GroupName, at_ms: i64) {
        let Some(group) = self.gates.group(group) else { return };
        let members = group.needs.iter().flat_map(|need| self.state.members(need));
        let keys = members.filter_map(|index| self.last_of(index)).map(|last| last.key.clone());
        let keys = keys.collect();
        self.batch.advance.gates.extend(self.gates.ask(group, keys, at_ms));
    }

    /// A gate is answered, or nobody is asked any more.
    fn answer(&mut self, group: &GroupName, choice: &'static str) {
        self.gates.close(group);
        let opened = self.batch.advance.gates.len();
        self.batch.advance.gates.retain(|gate| gate.group_name != group);
        // One that is not on record yet is never opened.
        if self.batch.advance.gates.len() == opened {
            let answer = NewStartAnswer { group_name: group.clone(), choice };
            self.batch.advance.answers.push(answer);
        }
    }

    /// The last attempt of a task that this life starts, or leaves as it was.
    fn last_of(&self, index: usize) -> Option<&LastAttempt> {
        let step = self.state.task(index)?.step_id();
        let earlier = || self.earlier.get(&step).filter(|_| !self.skipped.contains(&step));
        self.last.get(&index).or_else(earlier)
    }

    /// An attempt is no longer open.
    fn over(&mut self, index: usize, is_ok: bool) {
        if let Some(last) = self.last.get_mut(&index) {
            last.is_ok = is_ok;
            self.open.remove(&last.key);
        }
    }

    fn follow(
        &mut self,
        action: GraphAction,
        at_ms: i64,
        broken: &mut BTreeMap<GroupName, String>,
    ) -> Result<()> {
        match action {
            GraphAction::Start { index, attempt, work } => {
                let task = self.attempt(index, attempt, work)?;
                self.open.insert(task.key.clone(), OpenAttempt { index, attempt });
                let last = LastAttempt { key: task.key.clone(), is_ok: false };
                self.last.insert(index, last);
                self.batch.fresh.push(task);
            }
            GraphAction::Wait { index, backoff_ms } => {
                let pause = i64::try_from(backoff_ms).unwrap_or(i64::MAX);
                self.backoffs.insert(index, at_ms.saturating_add(pause));
            }
            GraphAction::Ask { group } => self.ask(&group, at_ms),
            GraphAction::Withdraw { group } => self.answer(&group, "withdrawn"),
            GraphAction::Skip { group, tasks, why } => {
                let (reason, detail) = reason(why);
                let steps = tasks.iter().filter_map(|index| self.state.task(*index));
                let skip = |task: &PlanTask| {
                    let (step_id, detail) = (task.step_id(), detail.clone());
                    NewSkip { step_id, reason, detail }
                };
                let skips: Vec<NewSkip> = steps.map(skip).collect();
                self.skipped.extend(skips.iter().map(|skip| skip.step_id.clone()));
                self.batch.advance.skips.extend(skips);
                if let (Some(group), Some(why), true) = (group, detail, tasks.is_empty()) {
                    broken.insert(group, why);
                }
            }
            GraphAction::Cancel { index } => {
                self.canceled.extend(self.last.get(&index).map(|last| last.key.clone()));
            }
            GraphAction::Expand { tasks, .. } => {
                self.batch.advance.members.extend(tasks.iter().filter_map(member));
            }
            GraphAction::Finish { status, error } => self.finish = Some((status, error)),
        }
        Ok(())
    }

    fn attempt(&self, index: usize, attempt: u32, work: Option<Box<Work>>) -> Result<NewTask> {
        let corrupt = || Error::Corrupt { what: "graph", why: format!("it has no task {index}") };
        let task = self.state.task(index).ok_or_else(corrupt)?;
        let work = work.as_deref().unwrap_or(&task.work);
        let mut work = consent::pinned(work, &self.consented.pins);
        if let Some(request) = work.request_mut() {
            // With one too many the task is refused where it is about to start.
            let inputs = task.files.iter().flat_map(|files| self.inputs(files));
            request.files_in.extend(inputs.take(MAX_FILE_SOURCES + 1));
        }
        new_task(PlanTask::of(task.name.clone(), work), &self.run.intent_id, &self.run.id, attempt)
    }

    /// Files of the last attempt of each task of a group. Those of a fan-out lie in a directory for each of its tasks, so that
    /// equal names do not meet.
    fn inputs(&self, files: &TaskFiles) -> Vec<InputFile> {
        let groups = self.plan.graph.iter().flat_map(|graph| &graph.groups);
        let fans_out = groups.clone().any(|group| group.name == files.task && group.fans_out);
        let one = |index: usize| {
            let (step, last) = (self.state.task(index)?.step_id(), self.last_of(index)?);
            let path = match fans_out {
                true => format!("{}/{}", files.to, run_file::directory_of(&step)),
                false => files.to.clone(),
            };
            Some(InputFile {
                path,
                inline: None,
                uri: Some(artifact::files_uri(&self.run.id, &step, &last.key, &files.glob)),
                tree: None,
                live: false,
                access: files.access,
                optional: fans_out || !last.is_ok,
            })
        };
        self.state.members(&files.task).filter_map(one).collect()
    }

    async fn execute(&mut self, this: &WorkflowContext<'_>) -> Flow<()> {
        let ledger = this.ledger;
        let approver = self.consented.approver.clone();
        let mut snapshots = snapshots(ledger, self.run, self.plan, approver).await?;
        let mut wakes = this.executor.flows.wakes.subscribe();
        let mut expected = this.executor.handed.expect();
        let mut summed: Option<Stopwatch> = None;
        let mut pause = LOOK_AGAIN;
        loop {
            for task in &self.batch.fresh {
                // What it leaves as outputs is on record alone.
                if !has_outputs(&task.work) {
                    expected.add(&task.key);
                }
            }
            let mut over = self.commit(this, &snapshots).await?;
            snapshots.clear();
            if !self.canceled.is_empty() {
                let canceled = std::mem::take(&mut self.canceled);
                patiently(|| ledger.ops().attempts_cancel(&self.run.id, &canceled))
                    .await
                    .map_err(step_error)?;
            }
            if self.finish.is_some() {
                return Ok(());
            }
            if over.is_empty() {
                // Once it has passed, only the ends of what was stopped are waited for.
                let deadline = deadline_of(self.run).filter(|_| self.blocked.is_none());
                let due = [self.backoff_left(), self.gates.left()];
                let left = due.into_iter().flatten().fold(pause, Duration::min);
                let woken =
                    wait_for_end(&mut wakes, &self.run.id, this.workflow, deadline, left).await;
                pause =
                    if woken { LOOK_AGAIN } else { (pause * 2).clamp(LOOK_AGAIN, LOOK_AT_LEAST) };
                over = expected.take().await;
            }
            let ended = match over.is_empty() {
                false => over.into_iter().map(TaskOutcome::succeeded).collect(),
                true => outcomes(ledger, this.workflow, self.open.keys()).await?,
            };
            self.settle(ended).map_err(step_error)?;
            self.backoffs_over().map_err(step_error)?;
            self.gates_look(this).await?;
            let is_due = summed.as_ref().is_none_or(|at| at.elapsed() >= BUDGET_EVERY)
                || deadline_of(self.run).is_some_and(|deadline| clock::now_ms() >= deadline);
            if self.blocked.is_none() && self.finish.is_none() && is_due {
                summed = Some(Stopwatch::start());
                if let Some(excess) = blocked(ledger, self.run, self.plan).await? {
                    diagnose(ledger, self.run, &excess).await?;
                    let now = clock::now_ms();
                    self.happened(GraphEvent::Blocked(excess), now).map_err(step_error)?;
                }
            }
        }
    }

    /// Takes down what happened and queues what follows. The keys of attempts that are over at once.
    async fn commit(
        &mut self,
        this: &WorkflowContext<'_>,
        snapshots: &[NewPolicySnapshot],
    ) -> Flow<Vec<TaskKey>> {
        if self.batch.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.advance.life = self.run.retries;
        batch.advance.waits = self.gates.waits(self.is_idle());
        self.gates.parked(batch.advance.waits);
        let ends: Vec<_> = batch.fresh.iter().filter_map(|task| kept(self.run, task)).collect();
        let values: Vec<_> = ends.iter().map(|(task, end)| end.committed(task)).collect();
        let wave = TaskBatch {
            tasks: &batch.fresh,
            snapshots,
            values: &values,
            ..wave_of(this, self.run)
        };
        let advancing = || this.ledger.tasks().graph_advance(&batch.advance, &wave);
        match patiently(advancing).await.map_err(step_error)? {
            AdvanceOutcome::Down(over) => Ok(over),
            AdvanceOutcome::Canceled => Err(canceled(this.workflow)),
            // Whoever took another event goes on with the run; here it ends without a word.
            AdvanceOutcome::Lost => {
                Err(dbos::Error::Interrupted { workflow_id: this.workflow.to_owned() })
            }
        }
    }

    fn settle(&mut self, mut ended: Vec<TaskOutcome>) -> Result<()> {
        let place = |outcome: &TaskOutcome| self.open.get(&outcome.key).map(|open| open.index);
        ended.sort_by_key(place);
        let now = clock::now_ms();
        for outcome in ended {
            let Some(OpenAttempt { index, attempt }) = self.open.get(&outcome.key).copied() else {
                continue;
            };
            let is_again = outcome.resumed && outcome.err_code != ErrCode::None;
            if is_again && self.blocked.is_none() && self.state.may_resume(index) {
                self.happened(GraphEvent::Resumed { index, attempt }, now)?;
                continue;
            }
            let TaskOutcome { err_code, exit, permanent, cause, outputs, .. } = outcome;
            let exit = (exit >= 0).then_some(exit);
            let end = AttemptEnd { err_code, exit, permanent };
            let end = TaskEnd { index, attempt, end, cause, outputs };
            self.happened(GraphEvent::Ended(end), now)?;
        }
        Ok(())
    }

    /// Whether nothing is queued, runs, or is about to.
    fn is_idle(&self) -> bool {
        self.open.is_empty() && self.backoffs.is_empty()
    }

    /// Takes the answers that gates of the graph have.
    async fn gates_look(&mut self, this: &WorkflowContext<'_>) -> Flow<()> {
        // A gate that is not on record yet is looked at once it is.
        let has_news = !self.batch.advance.gates.is_empty();
        if self.gates.is_empty() || self.finish.is_some() || has_news {
            return Ok(());
        }
        // What happened and is not on record yet says it with its commit.
        let is_idle = self.batch.is_empty().then(|| self.is_idle());
        let ledger = this.ledger;
        let look = self.gates.look(ledger, this.workflow, is_idle).await.map_err(step_error)?;
        let now = clock::now_ms();
        look.into_iter().try_for_each(|event| self.happened(event, now)).map_err(step_error)
    }

    fn backoff_left(&self) -> Option<Duration> {
        let due = self.backoffs.values().min()?;
        let left = due.saturating_sub(clock::now_ms()).max(0);
        Some(Duration::from_millis(u64::try_from(left).unwrap_or(0)))
    }

    fn backoffs_over(&mut self) -> Result<()> {
        let now = clock::now_ms();
        let due: BTreeSet<usize> =
            self.backoffs.iter().filter(|(_, due)| **due <= now).map(|(index, _)| *index).collect();
        due.into_iter().try_for_each(|index| self.happened(GraphEvent::BackoffOver { index }, now))
    }
}

fn has_outputs(work: &Work) -> bool {
    work.request().is_some_and(|request| request.outputs.is_some())
}
