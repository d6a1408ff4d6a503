//! How a workflow of ours fails, and how its steps say so.

use cofferdam_contracts::run::RunStatus;
use cofferdam_ledger::LedgerError;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// How a workflow of ours fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub(crate) enum FlowError {
    /// The run ended without success; the ledger has the details.
    #[error("the run ended as {status}: {error}")]
    Ended {
        /// The run's status.
        status: String,
        /// Why it did not succeed.
        error: String,
    },
    /// A step failed: the ledger, or something of ours that does not hold together.
    #[error("a step failed: {0}")]
    Step(String),
}

pub(crate) type Flow<T> = dbos::Result<T, FlowError>;

/// A failure as a step reports it: an outage leaves the workflow PENDING, a refusal ends the run with
/// its message, anything else is the workflow's own failure.
pub(crate) fn step_error(error: Error) -> dbos::Error<FlowError> {
    match error {
        Error::Ledger(LedgerError::Unavailable(_)) => {
            dbos::Error::Interrupted { workflow_id: dbos::workflow_id().unwrap_or_default() }
        }
        Error::Refused(refusal) => failed(refusal.message),
        other => {
            tracing::error!(error = ?other, "a step failed");
            dbos::Error::Application(FlowError::Step(other.to_string()))
        }
    }
}

/// The end of a workflow whose run failed, whatever its row says so far.
pub(crate) fn failed(error: impl Into<String>) -> dbos::Error<FlowError> {
    let status = RunStatus::Failed.as_str().to_owned();
    dbos::Error::Application(FlowError::Ended { status, error: error.into() })
}

/// How the workflow ends with its run.
pub(crate) fn ended(status: RunStatus, error: Option<String>) -> Flow<RunStatus> {
    match status {
        RunStatus::Succeeded => Ok(status),
        other => Err(dbos::Error::Application(FlowError::Ended {
            status: other.as_str().to_owned(),
            error: error.unwrap_or_default(),
        })),
    }
}
