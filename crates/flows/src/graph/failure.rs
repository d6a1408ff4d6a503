//! What failed in a graph, and how the run ends by it.

use cofferdam_contracts::run::RunStatus;

use super::action::GraphAction;
use crate::decide::BudgetExcess;

/// Why no more tasks start than those of `always`.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stop {
    FailFast,
    Budget(BudgetExcess),
}

/// How a failure bears on the run's status, the weightiest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FailureKind {
    Failed,
    Permanent,
    Exceeded,
}

/// A task or a group that failed by itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Failure {
    pub(super) kind: FailureKind,
    pub(super) index: usize,
    pub(super) text: String,
}

/// How a run ends whose groups have all ended: the weightiest failure says why.
pub(super) fn finish(stop: Option<&Stop>, failures: &[Failure]) -> GraphAction {
    if let Some(Stop::Budget(b)) = stop {
        let error = format!("budget reached: {} is {}, observed {}", b.metric, b.limit, b.observed);
        return GraphAction::Finish { status: RunStatus::Failed, error: Some(error) };
    }
    let Some(first) = failures.iter().min() else {
        return GraphAction::Finish { status: RunStatus::Succeeded, error: None };
    };
    let status = match first.kind {
        FailureKind::Exceeded => RunStatus::RetriesExceeded,
        FailureKind::Failed | FailureKind::Permanent => RunStatus::Failed,
    };
    let more = match failures.len() {
        1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    };
    GraphAction::Finish { status, error: Some(format!("{}{more}", first.text)) }
}
