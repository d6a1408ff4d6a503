//! What starts no more: behind a gate that did not say yes, after a failure, at a reached budget.

use std::collections::BTreeSet;

use cofferdam_contracts::id::GroupName;

use super::action::{GraphAction, SkipReason};
use super::failure::{Failure, FailureKind, Stop};
use super::group::{GroupState, TaskPhase};
use super::state::{GraphState, is_done};

impl GraphState<'_> {
    /// The gate of a group said yes, or why it did not.
    pub(super) fn answered(
        &mut self,
        at: usize,
        refusal: Option<String>,
        actions: &mut Vec<GraphAction>,
    ) {
        self.asking.remove(&at);
        let Some(group) = self.groups.get(at) else { return };
        let Some(why) = refusal else {
            group.tasks.clone().into_iter().for_each(|index| self.enter(index));
            return;
        };
        let name = group.name().map(GroupName::as_str).unwrap_or_default();
        let text = format!("task group {name:?} was not approved: {why}");
        self.failures.push(Failure { kind: FailureKind::Failed, text });
        self.leave(at, SkipReason::Gate(why), actions);
        if let Some(group) = self.groups.get_mut(at) {
            group.is_broken = true;
        }
        self.group_over(at, None);
        self.fail_fast(actions);
    }

    /// Starts no task of a group whose gate was asked; how many it has. What an earlier life did stays done.
    fn leave(&mut self, at: usize, why: SkipReason, actions: &mut Vec<GraphAction>) -> usize {
        let Some(group) = self.groups.get_mut(at) else { return 0 };
        // Its end is its caller's.
        group.open += 1;
        let (name, tasks) = (group.name().cloned(), group.tasks.clone());
        let (done, left): (Vec<usize>, Vec<usize>) =
            tasks.into_iter().partition(|index| is_done(self, *index));
        done.into_iter().for_each(|index| self.enter(index));
        left.iter().for_each(|index| self.phase(*index, TaskPhase::Over));
        if let Some(group) = self.groups.get_mut(at) {
            group.open = 0;
        }
        let count = left.len();
        actions.push(GraphAction::Skip { group: name, tasks: left, why });
        count
    }

    pub(super) fn fail_fast(&mut self, actions: &mut Vec<GraphAction>) {
        let is_asked = self.plan.graph.as_ref().is_some_and(|graph| graph.fail_fast);
        if is_asked && self.stop.is_none() {
            self.stop(Stop::FailFast, actions);
        }
    }

    /// Whether a stop leaves a task alone.
    fn is_spared(&self, stop: &Stop, index: usize) -> bool {
        let group = self.tasks.get(index).and_then(|task| self.groups.get(task.group));
        *stop == Stop::FailFast && group.is_some_and(GroupState::is_always)
    }

    /// Cancels what runs, and lets nothing start that the stop does not spare. It happens twice at most.
    pub(super) fn stop(&mut self, stop: Stop, actions: &mut Vec<GraphAction>) {
        let of = |set: &BTreeSet<usize>| -> Vec<usize> {
            set.iter().copied().filter(|index| !self.is_spared(&stop, *index)).collect()
        };
        let (running, backoff, ready) = (of(&self.running), of(&self.backoff), of(&self.ready));
        let why = match stop {
            Stop::FailFast => SkipReason::FailFast,
            Stop::Budget(_) => SkipReason::Budget,
        };
        let is_always = |at: &usize| self.groups.get(*at).is_some_and(GroupState::is_always);
        let is_spared = |at: &usize| stop == Stop::FailFast && is_always(at);
        let asking: Vec<usize> = self.asking.iter().copied().filter(|at| !is_spared(at)).collect();
        self.stop = Some(stop);
        for at in asking {
            self.asking.remove(&at);
            let name = self.groups.get(at).and_then(GroupState::name).cloned();
            actions.extend(name.map(|group| GraphAction::Withdraw { group }));
            let count = self.leave(at, why.clone(), actions);
            if let Some(group) = self.groups.get_mut(at) {
                group.skipped += count;
            }
            self.group_over(at, None);
        }
        for index in running {
            let Some(task) = self.tasks.get_mut(index) else { continue };
            if !std::mem::replace(&mut task.is_canceled, true) {
                actions.push(GraphAction::Cancel { index });
            }
        }
        for index in backoff {
            self.backoff.remove(&index);
            self.task_over(index);
        }
        for index in ready {
            self.ready.remove(&index);
            let is_new = self.tasks.get(index).is_none_or(|task| task.tries == 0);
            let at = self.tasks.get(index).map(|task| task.group);
            if let Some(group) = at.and_then(|at| self.groups.get_mut(at))
                && is_new
            {
                group.skipped += 1;
                let (group, tasks) = (group.name().cloned(), vec![index]);
                actions.push(GraphAction::Skip { group, tasks, why: why.clone() });
            }
            self.task_over(index);
        }
    }
}
