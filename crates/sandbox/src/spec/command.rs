//! One command of a sandbox.

use std::collections::BTreeMap;

use cofferdam_contracts::sandbox::Phase;
use cofferdam_guest::jail::Jail;
use cofferdam_guest::wire::User;

/// One command in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// Working directory, absolute.
    pub cwd: String,
    /// Wall time in milliseconds.
    pub timeout_ms: u64,
    /// Whose network policy holds while it runs. A sandbox's phases only go forward.
    pub phase: Phase,
    /// Who runs it; `None` is root, without most of root's capabilities.
    pub user: Option<User>,
    /// Every group of that user; empty: the primary one alone.
    pub groups: Vec<u32>,
    /// A file of the sandbox that is its standard input.
    pub stdin_file: Option<String>,
    /// What holds it beyond its sandbox.
    pub jail: Option<Jail>,
}
