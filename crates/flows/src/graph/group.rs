//! Where the groups of a graph and their tasks stand.

use cofferdam_contracts::id::GroupName;
use cofferdam_contracts::plan::PlanGroup;
use cofferdam_contracts::retry_spec::RetrySpec;
use cofferdam_contracts::start_condition::StartCondition;
use cofferdam_contracts::start_spec::GroupOutcome;

/// How far a task came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskPhase {
    /// Its group waits.
    Waiting,
    /// It starts as soon as there is a slot.
    Ready,
    /// An attempt is queued or runs.
    Running,
    /// It waits for its next attempt.
    Backoff,
    /// It has ended, or is skipped.
    Over,
}

#[derive(Debug, Clone)]
pub(super) struct TaskState {
    pub(super) group: usize,
    pub(super) phase: TaskPhase,
    /// Attempts before this life, and those that a resume repeated.
    pub(super) before: u32,
    /// Attempts of this life that count.
    pub(super) tries: u32,
    pub(super) is_canceled: bool,
}

impl TaskState {
    /// A task of a group that waits.
    pub(super) const fn of(group: usize) -> Self {
        Self { group, phase: TaskPhase::Waiting, before: 0, tries: 0, is_canceled: false }
    }
}

/// A task group.
#[derive(Debug)]
pub(super) struct GroupState<'p> {
    pub(super) spec: Option<&'p PlanGroup>,
    /// Its tasks, by their index.
    pub(super) tasks: Vec<usize>,
    /// Tasks that have not ended.
    pub(super) open: usize,
    /// Needs that have not ended.
    pub(super) pending: usize,
    /// Groups that wait for it.
    pub(super) dependents: Vec<usize>,
    pub(super) succeeded: usize,
    pub(super) skipped: usize,
    /// Its tasks could not be made.
    pub(super) is_broken: bool,
    /// A task of it was started in this life of the run.
    pub(super) has_started: bool,
    /// A need of it, or a need's, was: what an earlier life did on them is of what was before.
    pub(super) is_stale: bool,
}

impl<'p> GroupState<'p> {
    pub(super) fn of(spec: Option<&'p PlanGroup>) -> Self {
        let (tasks, dependents) = (Vec::new(), Vec::new());
        Self {
            spec,
            tasks,
            open: 0,
            pending: 0,
            dependents,
            succeeded: 0,
            skipped: 0,
            is_broken: false,
            has_started: false,
            is_stale: false,
        }
    }

    pub(super) fn name(&self) -> Option<&'p GroupName> {
        self.spec.map(|spec| &spec.name)
    }

    pub(super) fn retry(&self) -> Option<&'p RetrySpec> {
        self.spec.and_then(|spec| spec.retry.as_ref())
    }

    pub(super) fn is_always(&self) -> bool {
        self.spec.is_some_and(|spec| spec.when == Some(StartCondition::Always))
    }

    pub(super) fn outcome(&self) -> GroupOutcome {
        if self.is_broken {
            GroupOutcome::Failed
        } else if self.succeeded == self.tasks.len() {
            GroupOutcome::Succeeded
        } else if self.skipped == self.tasks.len() {
            GroupOutcome::Skipped
        } else {
            GroupOutcome::Failed
        }
    }
}
