//! Where a run's graph stands.
//!
//! One file: the rules of what follows an event, which share one state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cofferdam_contracts::gate::Choice;
use cofferdam_contracts::id::{GroupName, StepId};
use cofferdam_contracts::late::{LateFault, MAX_LATE_BYTES, MAX_RUN_OUTPUT_BYTES};
use cofferdam_contracts::plan::{LateFanout, Plan, PlanGroup, PlanTask, Work, late};
use cofferdam_contracts::retry_spec::{self, RetryDecision};
use cofferdam_contracts::run::{Budget, RunStatus};
use cofferdam_contracts::start_condition::{GroupEnds, holds};
use cofferdam_contracts::start_spec::GroupOutcome;
use cofferdam_contracts::task_outputs::TaskOutputs;
use serde_json::Value;

use super::action::{GraphAction, GraphEvent, GroupEnd, SkipReason, TaskEnd};
use super::failure::{Failure, FailureKind, Stop, finish};
use super::group::{GroupState, TaskPhase, TaskState};

/// What earlier lives of a run left of one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepProgress {
    /// Attempts that it has behind it.
    pub attempts: u32,
    /// Whether the last of them succeeded: it is not started again.
    pub is_done: bool,
    /// Its outputs, where it succeeded and has some.
    pub outputs: Option<TaskOutputs>,
}

/// What earlier lives of a run left, by step.
pub type GraphProgress = BTreeMap<StepId, StepProgress>;

/// Tasks of a graph by their ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphCounts {
    /// Those that succeeded.
    pub ok: usize,
    /// Those that failed, or were stopped.
    pub failed: usize,
    /// Those that were not started.
    pub skipped: usize,
}

/// The graph of one run: what has ended, what runs, what may start.
#[derive(Debug)]
pub struct GraphState<'p> {
    pub(super) plan: &'p Plan,
    pub(super) retries: Option<u32>,
    /// Tasks that there may be in all.
    pub(super) max_tasks: usize,
    pub(super) concurrency: usize,
    pub(super) progress: &'p GraphProgress,
    pub(super) groups: Vec<GroupState<'p>>,
    pub(super) tasks: Vec<TaskState>,
    /// Tasks behind those of the plan, from late fan-outs.
    pub(super) expanded: Vec<PlanTask>,
    pub(super) steps: BTreeSet<StepId>,
    pub(super) ends: GroupEnds,
    pub(super) released: VecDeque<usize>,
    pub(super) ready: BTreeSet<usize>,
    pub(super) running: BTreeSet<usize>,
    pub(super) backoff: BTreeSet<usize>,
    /// Groups whose gates wait for an answer.
    pub(super) asking: BTreeSet<usize>,
    pub(super) open_groups: usize,
    /// Those that ended since they were asked for.
    pub(super) ended_groups: Vec<GroupEnd>,
    pub(super) failures: Vec<Failure>,
    /// Bytes that tasks may still have which outputs make or fill in.
    pub(super) late_left: usize,
    /// Bytes that outputs may still have.
    pub(super) outputs_left: usize,
    pub(super) stop: Option<Stop>,
    pub(super) is_over: bool,
}

impl<'p> GraphState<'p> {
    /// The graph of a plan before its first task. `progress`: what earlier lives of the run left.
    #[must_use]
    pub fn new(plan: &'p Plan, budget: &Budget, progress: &'p GraphProgress) -> Self {
        let whole = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        let mut groups: Vec<GroupState<'p>> = Vec::new();
        let mut index: BTreeMap<&GroupName, usize> = BTreeMap::new();
        for spec in plan.graph.iter().flat_map(|graph| &graph.groups) {
            index.insert(&spec.name, groups.len());
            groups.push(GroupState::of(Some(spec)));
        }
        let mut tasks = Vec::with_capacity(plan.tasks.len());
        for (at, task) in plan.tasks.iter().enumerate() {
            let known = task.group.as_ref().and_then(|name| index.get(name).copied());
            let group = known.unwrap_or(groups.len());
            // Without a graph each task is a group of its own.
            if known.is_none() {
                groups.push(GroupState::of(None));
            }
            if let Some(state) = groups.get_mut(group) {
                state.tasks.push(at);
                state.open += 1;
            }
            tasks.push(TaskState::of(group));
        }
        let mut edges = Vec::new();
        for (at, state) in groups.iter_mut().enumerate() {
            let needs = state.spec.into_iter().flat_map(|spec| &spec.needs);
            let needs: BTreeSet<usize> =
                needs.filter_map(|need| index.get(need).copied()).collect();
            state.pending = needs.len();
            edges.extend(needs.into_iter().map(|need| (need, at)));
        }
        for (need, at) in edges {
            if let Some(state) = groups.get_mut(need) {
                state.dependents.push(at);
            }
        }
        Self {
            plan,
            retries: budget.max_retries_per_step,
            max_tasks: whole(plan.caps.steps).min(budget.max_fanout.map_or(usize::MAX, whole)),
            concurrency: whole(plan.caps.concurrency).max(1),
            progress,
            open_groups: groups.len(),
            groups,
            tasks,
            expanded: Vec::new(),
            steps: plan.tasks.iter().map(PlanTask::step_id).collect(),
            ends: GroupEnds::default(),
            released: VecDeque::new(),
            ready: BTreeSet::new(),
            running: BTreeSet::new(),
            backoff: BTreeSet::new(),
            asking: BTreeSet::new(),
            ended_groups: Vec::new(),
            failures: Vec::new(),
            late_left: MAX_LATE_BYTES,
            outputs_left: MAX_RUN_OUTPUT_BYTES,
            stop: None,
            is_over: false,
        }
    }

    /// A task of the plan, or of a late fan-out.
    #[must_use]
    pub fn task(&self, index: usize) -> Option<&PlanTask> {
        let behind = index.checked_sub(self.plan.tasks.len());
        behind.map_or_else(|| self.plan.tasks.get(index), |behind| self.expanded.get(behind))
    }

    /// The groups that ended since the last time.
    pub fn take_group_ends(&mut self) -> Vec<GroupEnd> {
        std::mem::take(&mut self.ended_groups)
    }

    /// Tasks of a group, by their index: none before they are made.
    pub fn members<'s>(&'s self, name: &'s GroupName) -> impl Iterator<Item = usize> + 's {
        let group = self.groups.iter().find(move |group| group.name() == Some(name));
        group.into_iter().flat_map(|group| group.tasks.iter().copied())
    }

    /// Whether a resume of the run may have a canceled attempt of a task again: the graph itself did not stop it.
    #[must_use]
    pub fn may_resume(&self, index: usize) -> bool {
        self.tasks.get(index).is_some_and(|task| !task.is_canceled)
    }

    /// How its tasks ended, so far.
    #[must_use]
    pub fn counts(&self) -> GraphCounts {
        let count = |of: fn(&GroupState<'_>) -> usize| self.groups.iter().map(of).sum();
        let (ok, skipped) = (count(|group| group.succeeded), count(|group| group.skipped));
        let over = self.tasks.iter().filter(|task| task.phase == TaskPhase::Over).count();
        GraphCounts { ok, skipped, failed: over.saturating_sub(ok).saturating_sub(skipped) }
    }

    /// What follows an event.
    pub fn apply(&mut self, event: GraphEvent) -> Vec<GraphAction> {
        let mut actions = Vec::new();
        if self.is_over {
            return actions;
        }
        match event {
            GraphEvent::Begin => {
                let free = self.groups.iter().enumerate().filter(|(_, group)| group.pending == 0);
                self.released.extend(free.map(|(at, _)| at));
            }
            GraphEvent::Ended(end) => self.ended(end, &mut actions),
            GraphEvent::Resumed { index, attempt } => self.resumed(index, attempt),
            GraphEvent::BackoffOver { index } => {
                if self.backoff.remove(&index) {
                    self.ready(index);
                }
            }
            GraphEvent::Answered { group, gate, choice, is_silence } => {
                let asked =
                    |at: &usize| self.groups.get(*at).and_then(GroupState::name) == Some(&group);
                if let Some(at) = self.asking.iter().copied().find(asked) {
                    let said = if is_silence { "timeout" } else { choice.as_str() };
                    let refusal = format!("{said} at gate {gate}");
                    let refusal = (choice == Choice::No).then_some(refusal);
                    self.answered(at, refusal, &mut actions);
                }
            }
            GraphEvent::Blocked(excess) => {
                if !matches!(self.stop, Some(Stop::Budget(_))) {
                    self.stop(Stop::Budget(excess), &mut actions);
                }
            }
            GraphEvent::Canceled => {
                let running = self.running.iter();
                actions.extend(running.map(|index| GraphAction::Cancel { index: *index }));
                self.is_over = true;
                actions.push(GraphAction::Finish { status: RunStatus::Canceled, error: None });
                return actions;
            }
        }
        self.advance(&mut actions);
        actions
    }

    /// Releases groups and starts tasks until neither is possible.
    fn advance(&mut self, actions: &mut Vec<GraphAction>) {
        loop {
            if let Some(group) = self.released.pop_front() {
                self.release(group, actions);
                continue;
            }
            if self.running.len() >= self.concurrency {
                break;
            }
            let Some(index) = self.ready.pop_first() else { break };
            self.start(index, actions);
        }
        if self.open_groups == 0 {
            self.is_over = true;
            actions.push(finish(self.stop.as_ref(), &self.failures));
        }
    }

    pub(super) fn phase(&mut self, index: usize, phase: TaskPhase) {
        if let Some(task) = self.tasks.get_mut(index) {
            task.phase = phase;
        }
    }

    fn ready(&mut self, index: usize) {
        self.phase(index, TaskPhase::Ready);
        self.ready.insert(index);
    }

    /// A group whose needs have all ended.
    fn release(&mut self, at: usize, actions: &mut Vec<GraphAction>) {
        let Some(group) = self.groups.get(at) else { return };
        let spec = group.spec;
        let stopped = match &self.stop {
            Some(Stop::Budget(_)) => Some(SkipReason::Budget),
            Some(Stop::FailFast) if !group.is_always() => Some(SkipReason::FailFast),
            _ => None,
        };
        let is_held = || spec.is_none_or(|spec| holds(spec.when.as_ref(), &spec.needs, &self.ends));
        let skip = match stopped {
            None if is_held() => None,
            None => Some(SkipReason::Condition),
            stopped => stopped,
        };
        if let Some(why) = skip {
            let tasks = group.tasks.clone();
            if let Some(group) = self.groups.get_mut(at) {
                // A fan-out that was not looked at has no tasks, and did not succeed.
                group.skipped = tasks.len();
                group.open = 0;
            }
            tasks.iter().for_each(|index| self.phase(*index, TaskPhase::Over));
            actions.push(GraphAction::Skip {
                group: spec.map(|spec| spec.name.clone()),
                tasks,
                why,
            });
            self.group_over(at, Some(GroupOutcome::Skipped));
            return;
        }
        if let Some((spec, fanout)) = spec.and_then(|spec| Some((spec, spec.fanout.as_deref()?)))
            && let Err(why) = self.expand(at, spec, fanout, actions)
        {
            if let Some(group) = self.groups.get_mut(at) {
                group.is_broken = true;
            }
            let kind = FailureKind::Late;
            let text = format!("task group {:?}: {why}", spec.name.as_str());
            self.failures.push(Failure { kind, text });
            let (name, why) = (spec.name.clone(), SkipReason::Fanout(why));
            actions.push(GraphAction::Skip { group: Some(name), tasks: Vec::new(), why });
            self.group_over(at, None);
            self.fail_fast(actions);
            return;
        }
        let tasks = self.groups.get(at).map(|group| group.tasks.clone()).unwrap_or_default();
        if tasks.is_empty() {
            self.group_over(at, None);
        }
        match spec.filter(|spec| spec.gate.is_some()) {
            // Only what would start is asked for.
            Some(spec) if !tasks.iter().all(|index| is_done(self, *index)) => {
                self.asking.insert(at);
                actions.push(GraphAction::Ask { group: spec.name.clone() });
            }
            _ => tasks.into_iter().for_each(|index| self.enter(index)),
        }
    }

    /// A task whose group is released: ready, or done by an earlier life. One whose need was done anew is done anew.
    pub(super) fn enter(&mut self, index: usize) {
        let progress = self.progress;
        let step = self.task(index).map(PlanTask::step_id);
        match step.and_then(|step| progress.get(&step)) {
            Some(found) if is_done(self, index) => {
                self.succeeded(index, found.outputs.clone());
            }
            found => {
                if let (Some(found), Some(task)) = (found, self.tasks.get_mut(index)) {
                    task.before = found.attempts;
                }
                self.ready(index);
            }
        }
    }

    /// Makes the tasks of a late fan-out.
    fn expand(
        &mut self,
        at: usize,
        spec: &'p PlanGroup,
        fanout: &'p LateFanout,
        actions: &mut Vec<GraphAction>,
    ) -> Result<(), String> {
        let of = &fanout.over;
        let value = self.ends.outputs.get(&of.task).and_then(|outputs| outputs.get(&of.name));
        let Some(Value::Array(items)) = value else {
            return Err(format!(
                "output {:?} of task {:?} is not a list",
                of.name.as_str(),
                of.task.as_str()
            ));
        };
        let first = self.tasks.len();
        let total = first.saturating_add(items.len());
        if total > self.max_tasks {
            return Err(format!(
                "the run would have {total} tasks, at most {} may be; raise caps.steps",
                self.max_tasks
            ));
        }
        let tasks = late::expanded(fanout, items, &mut self.late_left);
        let tasks = tasks.map_err(|fault| fault.to_string())?;
        let ids: BTreeSet<StepId> = tasks.iter().map(PlanTask::step_id).collect();
        if ids.len() < tasks.len() || !ids.is_disjoint(&self.steps) {
            return Err("two tasks would have one name; use ${index} in the name".to_owned());
        }
        self.steps.extend(ids);
        self.tasks.extend(tasks.iter().map(|_| TaskState::of(at)));
        self.expanded.extend(tasks.iter().cloned());
        if let Some(group) = self.groups.get_mut(at) {
            group.tasks = (first..total).collect();
            group.open = tasks.len();
        }
        actions.push(GraphAction::Expand { group: spec.name.clone(), first, tasks });
        Ok(())
    }

    fn start(&mut self, index: usize, actions: &mut Vec<GraphAction>) {
        let (Some(task), Some(state)) = (self.task(index), self.tasks.get(index)) else { return };
        let attempt = state.before.saturating_add(state.tries).saturating_add(1);
        let mut late_left = self.late_left;
        let work = match task.late.is_empty() {
            true => None,
            false => match late_work(task, &self.ends, &mut late_left) {
                Ok(work) => Some(Box::new(work)),
                Err(fault) => {
                    let text = format!("task {:?}: {fault}", task.name);
                    let group = task.group.clone();
                    self.failures.push(Failure { kind: FailureKind::Late, text });
                    let (tasks, why) = (vec![index], SkipReason::Late(fault));
                    actions.push(GraphAction::Skip { group, tasks, why });
                    self.task_over(index);
                    self.fail_fast(actions);
                    return;
                }
            },
        };
        let group = state.group;
        self.late_left = late_left;
        self.phase(index, TaskPhase::Running);
        self.running.insert(index);
        if let Some(group) = self.groups.get_mut(group) {
            group.has_started = true;
        }
        actions.push(GraphAction::Start { index, attempt, work });
    }

    /// Whether this attempt is the one that runs.
    fn is_running(&self, index: usize, attempt: u32) -> bool {
        let task = self.tasks.get(index).filter(|task| task.phase == TaskPhase::Running);
        task.is_some_and(|task| task.before.saturating_add(task.tries).saturating_add(1) == attempt)
    }

    fn resumed(&mut self, index: usize, attempt: u32) {
        let is_stopped = self.tasks.get(index).is_none_or(|task| task.is_canceled);
        if !self.is_running(index, attempt) || is_stopped {
            return;
        }
        if let Some(task) = self.tasks.get_mut(index) {
            task.before = task.before.saturating_add(1);
        }
        self.running.remove(&index);
        self.ready(index);
    }

    fn ended(&mut self, done: TaskEnd, actions: &mut Vec<GraphAction>) {
        let TaskEnd { index, attempt, end, cause, outputs } = done;
        if !self.is_running(index, attempt) {
            return;
        }
        self.running.remove(&index);
        let Some(task) = self.tasks.get_mut(index) else { return };
        task.tries = task.tries.saturating_add(1);
        let (tries, is_canceled, group) = (task.tries, task.is_canceled, task.group);
        let retry = self.groups.get(group).and_then(GroupState::retry);
        let kind = match retry_spec::decide(retry, &end, tries, self.retries) {
            RetryDecision::Succeeded => return self.succeeded(index, outputs),
            // Stopped by the run: what ended it is another task's failure, or the budget.
            _ if is_canceled => return self.task_over(index),
            RetryDecision::Again { backoff_ms } => {
                self.phase(index, TaskPhase::Backoff);
                self.backoff.insert(index);
                actions.push(GraphAction::Wait { index, backoff_ms });
                return;
            }
            RetryDecision::Failed => FailureKind::Failed,
            RetryDecision::Permanent => FailureKind::Permanent,
            RetryDecision::Exceeded => FailureKind::Exceeded,
        };
        let name = self.task(index).map(|task| task.name.as_str()).unwrap_or_default();
        let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
        let after = match kind {
            FailureKind::Failed | FailureKind::Late => String::new(),
            FailureKind::Permanent => "; another attempt would end the same".to_owned(),
            FailureKind::Exceeded => format!(" after {tries} attempts"),
        };
        let text = format!("task {name:?} ended with {}{cause}{after}", end.err_code.as_str());
        self.failures.push(Failure { kind, text });
        self.task_over(index);
        self.fail_fast(actions);
    }

    fn succeeded(&mut self, index: usize, outputs: Option<TaskOutputs>) {
        let group = self.tasks.get(index).and_then(|task| self.groups.get_mut(task.group));
        if let Some(group) = group {
            group.succeeded += 1;
            if let (Some(name), Some(outputs)) = (group.name(), outputs) {
                let bytes = serde_json::to_vec(&outputs).map_or(usize::MAX, |bytes| bytes.len());
                match self.outputs_left.checked_sub(bytes) {
                    Some(left) => {
                        self.outputs_left = left;
                        self.ends.outputs.insert(name.clone(), outputs);
                    }
                    // Who needs them fails for want of them.
                    None => {
                        let mib = MAX_RUN_OUTPUT_BYTES / (1024 * 1024);
                        let text = format!(
                            "outputs of task {:?}: the tasks of one run may put out {mib} MiB; keep artifacts instead",
                            name.as_str()
                        );
                        self.failures.push(Failure { kind: FailureKind::Failed, text });
                    }
                }
            }
        }
        self.task_over(index);
    }

    pub(super) fn task_over(&mut self, index: usize) {
        self.phase(index, TaskPhase::Over);
        let Some(at) = self.tasks.get(index).map(|task| task.group) else { return };
        let Some(group) = self.groups.get_mut(at) else { return };
        group.open = group.open.saturating_sub(1);
        if group.open == 0 {
            self.group_over(at, None);
        }
    }

    /// A group has ended; `None`: as its tasks did.
    pub(super) fn group_over(&mut self, at: usize, outcome: Option<GroupOutcome>) {
        let Some(group) = self.groups.get(at) else { return };
        let outcome = outcome.unwrap_or_else(|| group.outcome());
        if let Some(name) = group.name() {
            self.ended_groups.push(GroupEnd { name: name.clone(), outcome });
            self.ends.outcomes.insert(name.clone(), outcome);
        }
        self.open_groups = self.open_groups.saturating_sub(1);
        let is_new = group.has_started || group.is_stale;
        for next in group.dependents.clone() {
            let Some(next_group) = self.groups.get_mut(next) else { continue };
            next_group.is_stale |= is_new;
            next_group.pending = next_group.pending.saturating_sub(1);
            if next_group.pending == 0 {
                self.released.push_back(next);
            }
        }
    }
}

/// Whether an earlier life did a task, and nothing that it needs was done anew.
pub(super) fn is_done(state: &GraphState<'_>, index: usize) -> bool {
    let group = state.tasks.get(index).and_then(|task| state.groups.get(task.group));
    let step = state.task(index).map(PlanTask::step_id);
    let progress = step.and_then(|step| state.progress.get(&step));
    progress.is_some_and(|progress| progress.is_done) && group.is_some_and(|group| !group.is_stale)
}

/// A task's work with the outputs that it waits for, within the bytes that are left.
fn late_work(task: &PlanTask, ends: &GroupEnds, left: &mut usize) -> Result<Work, LateFault> {
    let work = late::filled(&task.work, &task.late, &ends.outputs)?;
    *left = left.checked_sub(late::size(&work)).ok_or(LateFault::TooMuch)?;
    Ok(work)
}
