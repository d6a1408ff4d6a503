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
    /// A value that it needs is not there: what kept that away says why.
    Late,
}

/// A task or a group that failed by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) kind: FailureKind,
    pub(super) text: String,
}

/// How a run ends whose groups have all ended, by its failures in their order: the weightiest says why.
pub(super) fn finish(stop: Option<&Stop>, failures: &[Failure]) -> GraphAction {
    if let Some(Stop::Budget(b)) = stop {
        return GraphAction::Finish { status: RunStatus::Failed, error: Some(b.words()) };
    }
    // Of those that weigh as much the first: others may follow from it.
    let Some(first) = failures.iter().min_by_key(|failure| failure.kind) else {
        return GraphAction::Finish { status: RunStatus::Succeeded, error: None };
    };
    let status = match first.kind {
        FailureKind::Exceeded => RunStatus::RetriesExceeded,
        FailureKind::Failed | FailureKind::Permanent | FailureKind::Late => RunStatus::Failed,
    };
    let more = match failures.len() {
        1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    };
    GraphAction::Finish { status, error: Some(format!("{}{more}", first.text)) }
}
