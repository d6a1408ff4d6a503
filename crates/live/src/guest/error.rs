//! Why the inside of a sandbox gave no answer.

use cofferdam_sandbox::AgentError;
use serde::{Deserialize, Serialize};

/// Why the inside of a sandbox gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum GuestError {
    /// This life of it is over.
    #[error("the sandbox is over")]
    Over,
    /// As many streams as it has are in use.
    #[error("all streams of the sandbox are in use")]
    Busy,
    /// Its agent said no.
    #[error("the agent refused with {status}: {error}")]
    Refused {
        /// HTTP status of the agent's answer.
        status: u16,
        /// Message in the agent's answer.
        error: String,
    },
    /// A list or a file that did not come whole.
    #[error("{0}")]
    Collect(String),
    /// Its agent is gone, or wrong.
    #[error("{0}")]
    Lost(String),
}

impl From<AgentError> for GuestError {
    fn from(error: AgentError) -> Self {
        match error {
            AgentError::Refused { status, error } => Self::Refused { status, error },
            AgentError::Collect(why) => Self::Collect(why),
            other => Self::Lost(other.to_string()),
        }
    }
}
