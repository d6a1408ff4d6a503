//! Commands with more than output: input, a terminal, signals, a user, a life beyond the commands.

use serde::{Deserialize, Serialize};

use crate::wire::ExecRequest;

/// A terminal's size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Height in lines.
    pub rows: u16,
    /// Characters of a line.
    pub cols: u16,
}

/// One command that can be talked to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// Program, environment, user and bounds of the command.
    pub exec: ExecRequest,
    /// The host's name for it while it runs: stdin and control carry it. One that is in use is
    /// refused.
    pub id: u64,
    /// Whether its input comes by `PUT /v1/stdin`; otherwise it finds none.
    #[serde(default)]
    pub stdin: bool,
    /// A terminal of this size as all three of its streams; everything then comes as standard output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Size>,
    /// It and what it starts outlive the other commands, until it ends or the host hangs up.
    #[serde(default)]
    pub service: bool,
    /// What it leaves running lives on after its end, as in a shell, and its first frame is [`StartFrame`]. Level 8.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves: bool,
    /// Kept beside it for the host, at most [`crate::sleep::MAX_NOTE`] bytes. Level 9.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// A directory that is its root; its program, user and working directory are of that root. Level 14.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
}

/// A command has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartFrame {
    /// Its process id, as processes of its sandbox see it.
    pub pid: u32,
}

/// Something for a running command. At least one of the two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// Id that the host gave the command in its [`RunRequest`].
    pub id: u64,
    /// A signal for its process group: 1 to 31.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Its terminal's new size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
}

/// What the sandbox uses, as it sees itself: the agent included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Processes, zombies included.
    pub processes: u64,
    /// Sum of their resident sets in KiB; shared pages count for each.
    pub rss_kb: u64,
    /// Resident set of the agent alone in KiB.
    pub agent_rss_kb: u64,
    /// User and system time of all processes, those that are gone included, in milliseconds.
    pub cpu_ms: u64,
    /// Size of the writable layer in bytes.
    pub disk_bytes: u64,
    /// What is free of it.
    pub disk_free_bytes: u64,
    /// As [`crate::wire::LimitCounters`] has it; 0 where the kernel is the host's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub no_routes: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
