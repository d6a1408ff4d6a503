//! Why a call of the daemon gave no answer.

/// Why the daemon ended a turn without an answer: `info.error` of a message, which arrives with status 200.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the turn ended with {name}: {message}; a next attempt needs new ids")]
pub struct TurnError {
    /// The daemon's name of the error, such as `APIError` or `MessageAbortedError`.
    pub name: String,
    /// The daemon's words, cut at their bound.
    pub message: String,
}

/// Why a call gave no answer. `call` is the method and the path's form, without ids.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is not one of this host's loopback.
    #[error("OpenCode's daemon at {0}: not a loopback address; use one or a unix socket")]
    NotLoopback(std::net::SocketAddr),
    /// A name or password that a header cannot carry.
    #[error("credentials of OpenCode's daemon: not fit for a header; use letters and digits")]
    Credentials,
    /// No connection. Nothing was sent.
    #[error("{call}: OpenCode's daemon cannot be reached; check that it runs")]
    Unreachable {
        /// Method and path of the call, without ids.
        call: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The connection ended before the answer did. What became of the call is not known: read back.
    #[error("{call}: the connection ended before the answer; read back before the next send")]
    Cut {
        /// Method and path of the call, without ids.
        call: &'static str,
        /// What broke, where it is more than an early end.
        #[source]
        source: Option<hyper::Error>,
    },
    /// Silence beyond the bound. What became of the call is not known: read back.
    #[error("{call}: silent for {after_ms} ms; read back before the next send")]
    TimedOut {
        /// Method and path of the call, without ids.
        call: &'static str,
        /// Time in milliseconds after which the client gave up, from [`crate::Bounds`].
        after_ms: u64,
    },
    /// An answer beyond its bound, of which the rest was not read.
    #[error("{call}: the answer has more than {max} bytes; its rest was not read")]
    TooLarge {
        /// Method and path of the call, without ids.
        call: &'static str,
        /// Bytes that the client reads of such an answer at most, from [`crate::Bounds`].
        max: usize,
    },
    /// An answer that is not of the form that this version of the daemon has.
    #[error("{call}: the answer cannot be read ({why}); check the daemon's version")]
    Garbled {
        /// Method and path of the call, without ids.
        call: &'static str,
        /// What did not fit.
        why: String,
    },
    /// Wrong name or password.
    #[error("{call}: the daemon refused the credentials; start both with the same ones")]
    Unauthorized {
        /// Method and path of the call, without ids.
        call: &'static str,
    },
    /// The session, message or question does not exist.
    #[error("{call}: the daemon knows nothing of that id; create the session first")]
    NotFound {
        /// Method and path of the call, without ids.
        call: &'static str,
    },
    /// The daemon refused the call.
    #[error("{call}: the daemon answered {status} {name}: {message}; see its log")]
    Refused {
        /// Method and path of the call, without ids.
        call: &'static str,
        /// HTTP status of the daemon's answer.
        status: u16,
        /// The daemon's name of the error.
        name: String,
        /// The daemon's words, cut at their bound.
        message: String,
    },
    /// Another version of the daemon than the pinned one.
    #[error("OpenCode's daemon is version {found}; install {wanted}")]
    Version {
        /// Version that the running daemon reports.
        found: String,
        /// What is pinned.
        wanted: &'static str,
    },
    /// The daemon has sessions besides the run's own, such as its children. The run ends.
    #[error("the daemon has sessions besides the run's own ({0:?}), which are banned; end the run")]
    Children(Vec<String>),
    /// The turn ended with an error.
    #[error(transparent)]
    Turn(#[from] TurnError),
}
