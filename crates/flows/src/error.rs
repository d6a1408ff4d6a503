//! How an operation of this crate fails.
//!
//! A caller may read a [`Refusal`]; everything else is for the operator's log, and the caller learns only
//! its code. **A failure is told apart by its variant, never by its text.**

use std::fmt::Display;

use cofferdam_contracts::canonical::CanonicalError;
use cofferdam_contracts::error::Refusal;
use cofferdam_ledger::{LedgerError, OpError};

/// A failed operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request breaks a rule or contradicts recorded truth; the message is for the caller.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The ledger failed, or cannot be reached.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A value that this program recorded or derived does not hold together.
    #[error("the {what} does not hold together: {why}")]
    Corrupt {
        /// The value, in words.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Work beside the runtime's threads did not end: it panicked.
    #[error("work beside the runtime's threads did not end")]
    Thread(#[from] tokio::task::JoinError),
}

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// For `map_err`: what a parser says of our own value.
    pub fn corrupt<E: Display>(what: &'static str) -> impl Fn(E) -> Self {
        move |why| Self::Corrupt { what, why: why.to_string() }
    }

    /// Whether a row was there already.
    #[must_use]
    pub fn is_unique_violation(&self) -> bool {
        matches!(self, Self::Ledger(error) if error.is_unique_violation())
    }

    /// What the caller gets; the operator's log has the rest.
    #[must_use]
    pub fn refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::Ledger(error) => error.refusal(),
            Self::Corrupt { .. } | Self::Thread(_) => Refusal::internal(),
        }
    }
}

impl From<OpError> for Error {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Refused(refusal) => Self::Refused(refusal),
            OpError::Ledger(error) => Self::Ledger(error),
        }
    }
}

impl From<CanonicalError> for Error {
    fn from(error: CanonicalError) -> Self {
        Self::corrupt("canonical form")(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::error::ErrorCode;

    #[test]
    fn a_caller_reads_a_refusal_and_of_everything_else_only_the_code() {
        let refused = Error::from(Refusal::not_found("run")).refusal();
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (ErrorCode::NotFound, "run not found")
        );
        let corrupt = Error::corrupt("plan card")("a secret of the row").refusal();
        assert_eq!(corrupt, Refusal::internal());
        assert_eq!(Error::from(LedgerError::silent()).refusal().code, ErrorCode::Unavailable);
    }
}
