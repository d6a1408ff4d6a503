//! Exit codes: one enum, shown in `--help` and in `docs/reference/commands.md`.

use std::process::ExitCode;

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Exit code 0.
    Ok,
    /// The answer is no: a run did not succeed, a proof found a row, a thing is not there.
    No,
    /// Exit code 2: an error that is neither a no nor wrong usage.
    Error,
    /// The command line is wrong.
    Usage,
    /// This worker was declared dead; a supervisor should start it again (EX_TEMPFAIL).
    Fenced,
    /// Somebody pressed Ctrl-C (128 + SIGINT, as a shell says it).
    Interrupted,
    /// Asked to end by TERM (128 + 15).
    Terminated,
    /// Its terminal went (HUP, 128 + 1).
    HungUp,
    /// Nobody reads what it prints (128 + SIGPIPE, as a shell says it).
    Unread,
    /// What a sandboxed command ended with.
    Of(u8),
}

impl Exit {
    /// What the process returns.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::No => 1,
            Self::Error => 2,
            Self::Usage => 3,
            Self::Fenced => 75,
            Self::HungUp => 129,
            Self::Interrupted => 130,
            Self::Unread => 141,
            Self::Terminated => 143,
            Self::Of(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// An error that is an expected no.
#[derive(Debug)]
pub(crate) struct Negative(pub String);

impl std::fmt::Display for Negative {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Negative {}

/// An error of the command line that clap cannot see.
#[derive(Debug)]
pub(crate) struct Misuse(pub String);

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// The code of an error.
pub(crate) fn of(error: &anyhow::Error) -> Exit {
    if error.is::<Negative>() {
        Exit::No
    } else if error.is::<Misuse>() {
        Exit::Usage
    } else {
        Exit::Error
    }
}
