//! What can go wrong with the ledger, classified by SQLSTATE, never by a message's text.

use cofferdam_contracts::canonical::CanonicalError;
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
    /// The database was migrated by a series that is not ours.
    #[error(
        "the database has the schema of another baseline (its migration {version} differs), and nothing in it was \
         changed: give an empty database or state directory, or use the version of cofferdam that made this one"
    )]
    OtherBaseline {
        /// The first migration that differs.
        version: i64,
    },
    /// A migration failed.
    #[error("migrating the database failed")]
    Migrate(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Why an operation that holds a request against recorded truth did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// The request contradicts recorded truth.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The operation failed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl From<CanonicalError> for LedgerError {
    fn from(error: CanonicalError) -> Self {
        Self::Row { what: "canonical form", why: error.to_string() }
    }
}

impl From<CanonicalError> for OpError {
    fn from(error: CanonicalError) -> Self {
        Self::Ledger(error.into())
    }
}

impl From<sqlx::Error> for OpError {
    fn from(error: sqlx::Error) -> Self {
        Self::Ledger(error.into())
    }
}

impl From<sqlx::Error> for LedgerError {
    /// What PostgreSQL answered is judged by its SQLSTATE. What this program asked wrongly, or read wrongly
    /// out of an answer, is a statement's fault. All else is a connection that broke, wherever in its life:
    /// a driver that reads the end of a cut connection as a broken protocol says the same with other words.
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error as Driver;
        match &error {
            Driver::Database(db) => match db.code().as_deref() {
                Some(code) if is_passing(code) => Self::Unavailable(error),
                // Class 23 integrity constraint violation; 23001 is what our own triggers raise.
                Some(code) if code.starts_with("23") => Self::Refused(db.message().to_owned(), error),
                _ => Self::Statement(error),
            },
            // The address of the database, or a file that it names.
            Driver::Configuration(_) | Driver::ConfigFile(_)
            // What was asked.
            | Driver::InvalidArgument(_) | Driver::Encode(_) | Driver::InvalidSavePointStatement
            // What was read out of a whole answer.
            | Driver::RowNotFound | Driver::TypeNotFound { .. } | Driver::ColumnIndexOutOfBounds { .. }
            | Driver::ColumnNotFound(_) | Driver::ColumnDecode { .. } | Driver::Decode(_)
            | Driver::AnyDriverError(_) | Driver::Migrate(_) => Self::Statement(error),
            // `Io`, `Tls`, `Protocol`, `PoolTimedOut`, `PoolClosed`, `WorkerCrashed`, `BeginFailed`, and what a
            // later driver adds.
            _ => Self::Unavailable(error),
        }
    }
}

/// Whether this SQLSTATE means that the same statement may be answered later.
fn is_passing(code: &str) -> bool {
    // Class 08 connection, 57P admin shutdown, 53 resources (disk full, too many connections), 58 the
    // system under the server (an IO error), 40 a transaction that lost to another.
    const CLASSES: [&str; 5] = ["08", "57P", "53", "58", "40"];
    // A statement that ran out of its time, a lock that was not to be had, a transaction that was idle for
    // too long: what the server ends by itself for a client that it may have lost.
    const CODES: [&str; 3] = ["57014", "55P03", "25P03"];
    CLASSES.iter().any(|class| code.starts_with(class)) || CODES.contains(&code)
}

impl From<sqlx::migrate::MigrateError> for LedgerError {
    fn from(error: sqlx::migrate::MigrateError) -> Self {
        use sqlx::migrate::MigrateError;
        let at = |cause, version: Option<i64>| match (Self::from(cause), version) {
            (lost @ Self::Unavailable(_), _) => lost,
            (Self::Statement(cause) | Self::Refused(_, cause), Some(version)) => {
                Self::Migrate(Box::new(MigrateError::ExecuteMigration(cause, version)))
            }
            (other, _) => Self::Migrate(Box::new(other)),
        };
        match error {
            MigrateError::Execute(cause) => at(cause, None),
            MigrateError::ExecuteMigration(cause, version) => at(cause, Some(version)),
            other => Self::Migrate(Box::new(other)),
        }
    }
}

impl LedgerError {
    /// The database did not answer in the time that somebody had.
    #[must_use]
    pub fn silent() -> Self {
        Self::Unavailable(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))
    }

    /// Whether the connection failed, so that another statement would too. A statement that the server ended is not lost.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::Unavailable(cause) if !matches!(cause, sqlx::Error::Database(_)))
    }

    /// Whether the statement lost to a unique key (SQLSTATE 23505).
    #[must_use]
    pub fn is_unique_violation(&self) -> bool {
        matches!(self, Self::Refused(_, sqlx::Error::Database(db)) if db.code().as_deref() == Some("23505"))
    }

    /// Whether a trigger of ours refused the statement (SQLSTATE 23001).
    #[must_use]
    pub fn is_restrict_violation(&self) -> bool {
        matches!(self, Self::Refused(_, sqlx::Error::Database(db)) if db.code().as_deref() == Some("23001"))
    }

    /// What the caller gets; the operator's log gets the source.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Unavailable(sqlx::Error::Database(db))
                if db.code().as_deref() == Some("53100") =>
            {
                Refusal::new(
                    ErrorCode::Unavailable,
                    "the database's disk is full; try again when it has room",
                )
            }
            // A character that no text of PostgreSQL can hold, in a text or within JSON: only a caller's words have it.
            Self::Statement(sqlx::Error::Database(db))
                if matches!(db.code().as_deref(), Some("22021" | "22P05")) =>
            {
                Refusal::new(
                    ErrorCode::PolicyViolation,
                    "a text of the request has a NUL character: send it without",
                )
            }
            Self::Unavailable(_) => {
                Refusal::new(ErrorCode::Unavailable, "the database cannot be reached; try again")
            }
            _ => Refusal::internal(),
        }
    }
}

/// The result of a ledger operation.
pub type Result<T> = std::result::Result<T, LedgerError>;

/// The result of an operation that may refuse.
pub type OpResult<T> = std::result::Result<T, OpError>;

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

/// Parses rows strictly, each by the JSON value that is made of it.
pub(crate) fn load_all<T: serde::de::DeserializeOwned>(
    what: &'static str,
    rows: &[sqlx::postgres::PgRow],
    value: impl Fn(&sqlx::postgres::PgRow) -> Result<serde_json::Value>,
) -> Result<Vec<T>> {
    rows.iter().map(|row| load(what, value(row)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver() -> Vec<(sqlx::Error, bool)> {
        let io = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        vec![
            (sqlx::Error::Io(io()), true),
            (sqlx::Error::Tls("the handshake was cut".into()), true),
            (sqlx::Error::Protocol("unexpected response from SSLRequest: 0x00".into()), true),
            (sqlx::Error::PoolTimedOut, true),
            (sqlx::Error::PoolClosed, true),
            (sqlx::Error::WorkerCrashed, true),
            (sqlx::Error::BeginFailed, true),
            (sqlx::Error::Configuration("no such parameter".into()), false),
            (sqlx::Error::InvalidArgument("too many".into()), false),
            (sqlx::Error::RowNotFound, false),
            (sqlx::Error::TypeNotFound { type_name: "t".into() }, false),
            (sqlx::Error::ColumnIndexOutOfBounds { index: 1, len: 1 }, false),
            (sqlx::Error::ColumnNotFound("c".into()), false),
            (sqlx::Error::ColumnDecode { index: "0".into(), source: "null".into() }, false),
            (sqlx::Error::Encode("too long".into()), false),
            (sqlx::Error::Decode("not a number".into()), false),
            (sqlx::Error::InvalidSavePointStatement, false),
        ]
    }

    #[test]
    fn what_is_not_an_answer_of_the_database_is_unavailable() {
        for (error, is_unavailable) in driver() {
            let said = format!("{error:?}");
            let error = LedgerError::from(error);
            assert_eq!(matches!(error, LedgerError::Unavailable(_)), is_unavailable, "{said}");
            let code = if is_unavailable { ErrorCode::Unavailable } else { ErrorCode::Internal };
            assert_eq!(error.refusal().code, code, "{said}");
        }
    }

    #[test]
    fn an_answer_is_judged_by_its_sqlstate() {
        for code in
            ["08006", "57P01", "57P03", "53300", "53100", "58030", "40001", "57014", "25P03"]
        {
            assert!(is_passing(code), "{code}");
        }
        for code in ["23505", "42703", "22P02", "XX000", "0A000", "25P02"] {
            assert!(!is_passing(code), "{code}");
        }
    }
}
