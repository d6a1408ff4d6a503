//! What can go wrong with the ledger, classified by SQLSTATE, never by a message's text.

use cofferdam_contracts::error::{ErrorCode, Refusal};

/// A failed ledger operation.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// No connection, or it broke: nothing is known to be written; try again.
    #[error("the database cannot be reached")]
    Unavailable(#[source] sqlx::Error),
    /// A rule in SQL refused it: a CHECK, a trigger, a unique key.
    #[error("the ledger refuses: {0}")]
    Refused(String, #[source] sqlx::Error),
    /// Anything else the driver says.
    #[error("a ledger statement failed")]
    Statement(#[source] sqlx::Error),
    /// A stored row does not parse into its type: it was not written by us, or by a newer version.
    #[error("a stored {what} does not fit its type: {why}")]
    Row {
        /// The table or column.
        what: &'static str,
        /// What the parser said.
        why: String,
    },
    /// A migration failed.
    #[error("migrating the database failed")]
    Migrate(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The caller's request contradicts recorded truth.
    #[error(transparent)]
    Refusal(#[from] Refusal),
}

impl From<sqlx::Error> for LedgerError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Self::Unavailable(error),
            sqlx::Error::Database(db) => match db.code().as_deref() {
                // Class 08 connection, 57P admin shutdown, 53 resources (disk full, too many connections),
                // 40 a transaction that lost to another and may be tried again.
                Some(c) if ["08", "57P", "53", "40"].iter().any(|class| c.starts_with(class)) => {
                    Self::Unavailable(error)
                }
                // Class 23 integrity constraint violation; 23001 is what our own triggers raise.
                Some(c) if c.starts_with("23") => Self::Refused(db.message().to_owned(), error),
                _ => Self::Statement(error),
            },
            _ => Self::Statement(error),
        }
    }
}

impl LedgerError {
    /// Whether the statement lost to a unique key (SQLSTATE 23505).
    #[must_use]
    pub fn is_unique_violation(&self) -> bool {
        matches!(self, Self::Refused(_, sqlx::Error::Database(db)) if db.code().as_deref() == Some("23505"))
    }

    /// What the caller is told; the operator's log gets the source.
    #[must_use]
    pub fn refusal(self) -> Refusal {
        match self {
            Self::Refusal(refusal) => refusal,
            Self::Unavailable(sqlx::Error::Database(db))
                if db.code().as_deref() == Some("53100") =>
            {
                Refusal::new(
                    ErrorCode::Unavailable,
                    "the database's disk is full; try again when it has room",
                )
            }
            Self::Unavailable(_) => {
                Refusal::new(ErrorCode::Unavailable, "the database cannot be reached; try again")
            }
            _ => {
                Refusal::new(ErrorCode::Internal, "internal error; the server's log has the cause")
            }
        }
    }
}

/// The result of a ledger operation.
pub type Result<T> = std::result::Result<T, LedgerError>;

/// Parses a stored JSON value strictly.
pub(crate) fn load<T: serde::de::DeserializeOwned>(
    what: &'static str,
    value: serde_json::Value,
) -> Result<T> {
    serde_json::from_value(value).map_err(|e| LedgerError::Row { what, why: e.to_string() })
}

/// Parses a stored text into an id.
pub(crate) fn id<T: std::str::FromStr>(what: &'static str, text: &str) -> Result<T>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|e: T::Err| LedgerError::Row { what, why: e.to_string() })
}

/// Encodes a value for a jsonb column.
pub(crate) fn json<T: serde::Serialize>(
    what: &'static str,
    value: &T,
) -> Result<serde_json::Value> {
    serde_json::to_value(value).map_err(|e| LedgerError::Row { what, why: e.to_string() })
}
