//! Rows of a graph and what its state says: how the one is read and the other written.

use cofferdam_contracts::plan::PlanTask;
use cofferdam_contracts::sandbox::ErrCode;
use cofferdam_ledger::graphs::{GraphRecord, NewMember};

use crate::graph::{GraphProgress, SkipReason, StepProgress};

/// What earlier lives of the run left, by step.
pub(crate) fn progress_of(record: &GraphRecord) -> GraphProgress {
    let mut progress = GraphProgress::new();
    for one in record.attempts.iter().filter(|one| one.is_earlier) {
        let step: &mut StepProgress = progress.entry(one.step_id.clone()).or_default();
        step.attempts = step.attempts.max(one.attempt);
        if one.err_code == ErrCode::None {
            step.is_done = true;
            step.outputs.clone_from(&one.outputs);
        }
    }
    progress
}

/// A task as the member of its group; `None` where it has none.
pub(crate) fn member(task: &PlanTask) -> Option<NewMember> {
    let (step_id, name) = (task.step_id(), task.name.clone());
    Some(NewMember { step_id, group_name: task.group.clone()?, name })
}

/// A skip as it is on record: its kind, and more in words.
pub(crate) fn reason(why: SkipReason) -> (&'static str, Option<String>) {
    match why {
        SkipReason::Condition => ("condition", None),
        SkipReason::FailFast => ("fail_fast", None),
        SkipReason::Budget => ("budget", None),
        SkipReason::Gate(why) => ("gate", Some(why)),
        SkipReason::Late(fault) => ("late", Some(fault.to_string())),
        SkipReason::Fanout(why) => ("late", Some(why)),
    }
}
