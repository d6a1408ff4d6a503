//! Commands that outlive the stream that asked for them.
//!
//! A job has a name of the host's. Asking for a name that is known follows the command that runs, or ran,
//! under it: it is never started twice. Its output lies in files of the agent, of each stream as much as the
//! request allows, so that whoever follows says from which byte on.

use serde::{Deserialize, Serialize};

use crate::wire::ExecRequest;

/// First argument of a process that carries another stream to the agent of its sandbox.
pub const ATTACH: &str = "attach";
/// Where a subreaper agent is met by such a process.
pub const SOCKET: &str = "/.cofferdam/lodger.sock";
/// Jobs that an agent remembers; the oldest that has ended makes room.
pub const MAX_JOBS: usize = 64;
/// Bytes of a name.
pub const MAX_NAME_BYTES: usize = 32;

/// A command, and how much of its output is known already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// Its name in this sandbox.
    pub name: String,
    /// What runs, unless the name is known.
    pub exec: ExecRequest,
    /// Bytes of standard output that are not sent again.
    #[serde(default)]
    pub stdout: u64,
    /// Bytes of standard error that are not sent again.
    #[serde(default)]
    pub stderr: u64,
}

/// Whether a text may name a job: it becomes a file's name.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_plain_file_name() {
        assert!(is_name("build-1") && is_name("exec-12"));
        for wrong in ["", "..", "a/b", "A", "a b", &"a".repeat(33)] {
            assert!(!is_name(wrong), "{wrong:?}");
        }
    }
}
