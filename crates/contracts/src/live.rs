//! Long-lived sandboxes: created, extended, listed and killed by their tenant.
//!
//! ```text
//! LiveRequest --(live)--> run of one task, Work::Live --(worker)--> held until killed, expired or canceled
//! ```

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;
use crate::id::{LiveId, RunId, SandboxId, SnapshotId, TemplateName};
use crate::sandbox::{Egress, IsolationClass, Limits, SandboxRequest};

/// Longest time to live that one call may set, in seconds: one day, as for the wall time of a task.
pub const MAX_LIVE_S: u64 = 86_400;
/// Time to live in seconds when a request does not say.
pub const DEFAULT_LIVE_S: u64 = 300;
/// The template that is always there: the host's programs, bash and a home for `user`, unless one of this name was built.
pub const BASE_TEMPLATE: &str = "base";
/// Labels of one sandbox, and variables of its environment. Rows stay small; 64 labels are a page of them.
pub const MAX_LIVE_PAIRS: usize = 64;
/// Bytes of a label's name or value. A variable's value may have as many as one argument of a program.
pub const MAX_LABEL_BYTES: usize = 1_024;
/// Bytes of a variable's value: the kernel takes 128 KiB for one string.
pub const MAX_VARIABLE_BYTES: usize = 128 * 1_024;
/// Bytes of all variables, names included. A program's arguments and environment have 2 MiB together, and this is kept
/// in memory for as long as the sandbox lives.
pub const MAX_ENV_BYTES: usize = 1_024 * 1_024;

/// The work of a task that holds a sandbox instead of running a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LiveWork {
    /// The sandbox as its tenant names it.
    pub live: LiveId,
    /// What is asked of it; its command is never run.
    pub request: SandboxRequest,
}

/// Body of `POST /api/sandboxes`: template, time to live, network and limits of a sandbox.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LiveRequest {
    /// Template: `base`, or one that was built or added on the host.
    pub template: String,
    /// Time to live from its start in seconds: 1 to 86,400. Default 300.
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_s: Option<u64>,
    /// Labels by which a list can be filtered; at most 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Environment of every command; at most 64 variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Names that it may reach, under the tenant's grants. Default: no network.
    #[serde(default, rename = "net")]
    pub egress: Egress,
    /// Resource limits; the template's memory is the least, and its CPUs replace `cpu`.
    #[serde(default)]
    pub limits: Limits,
    /// Weakest isolation class accepted. Default: the cheapest that the host has.
    pub class_min: Option<IsolationClass>,
    /// Whether requests for its ports need a token of their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private: bool,
    /// Files that it begins with: those of a snapshot of the tenant. Default: the template's alone.
    pub snapshot: Option<SnapshotId>,
    /// Whether the end of its time pauses it instead of ending it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pause_on_timeout: bool,
    /// Whether that pause keeps its memory, where its class can; `false`: files alone. Default: it does.
    pub pause_memory: Option<bool>,
    /// Whether the first request to it resumes it while it is paused; needs `pauseOnTimeout`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resume_on_traffic: bool,
    /// Repeating a request with this key returns the first one's sandbox; at most 256 bytes.
    #[schemars(length(min = 1, max = 256))]
    pub dedup: Option<String>,
}

/// Body of `POST /api/sandboxes/{id}/extend`: a sandbox's new time to live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LiveExtend {
    /// Time to live from now in seconds: 0 to 86,400. It may shorten.
    #[schemars(range(min = 0, max = 86_400))]
    pub timeout_s: u64,
}

/// Body of `POST /api/sandboxes/{id}/exec`: one command to run in a sandbox.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LiveExec {
    /// Program and arguments.
    #[schemars(length(min = 1))]
    pub cmd: Vec<String>,
    /// Variables beside the sandbox's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory. Default: the user's home.
    pub cwd: Option<String>,
    /// `user` or `root`. Default `user`.
    pub user: Option<String>,
    /// Wall time in seconds: 1 to 240, below the patience of the API for one answer. Default 60.
    #[schemars(range(min = 1, max = 240))]
    pub timeout_s: Option<u64>,
}

/// How a command of a long-lived sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LiveExecResult {
    /// Exit status; 128 and the signal's number for a death by signal, -1 where it never started.
    pub exit: i32,
    /// Standard output, at most 512 KiB of it; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
    /// Bytes of both that were left out.
    pub dropped_bytes: u64,
    /// Whether its wall time ran out.
    pub timed_out: bool,
    /// Why it never started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

named! {
    /// Where a long-lived sandbox is in its life.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum LiveState {
        /// It is queued or being made.
        Starting = "starting",
        /// It has started, and takes commands.
        Running = "running",
        /// It has no processes, and its files are kept.
        Paused = "paused",
        /// It is over.
        Ended = "ended",
    }
}

/// A long-lived sandbox.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LiveView {
    /// Id in API paths, 20 letters and digits; the same over pause and resume.
    pub id: LiveId,
    /// Template that it was made of.
    pub template: String,
    /// Where it is in its life.
    pub state: LiveState,
    /// Labels by which a list can be filtered.
    pub metadata: BTreeMap<String, String>,
    /// Names that it may reach; none: no network.
    #[serde(rename = "net")]
    pub egress: Egress,
    /// The run that holds it.
    pub run_id: RunId,
    /// The session of its sandbox, once there is one.
    pub session: Option<SandboxId>,
    /// CPUs as enforced; absent before its start.
    pub cpu: Option<f64>,
    /// Memory as enforced, in MiB.
    #[serde(rename = "memMB")]
    pub mem_mb: Option<u64>,
    /// Writable layer as enforced, in MiB.
    #[serde(rename = "diskMB")]
    pub disk_mb: Option<u64>,
    /// ms since the epoch.
    pub created_at: i64,
    /// ms since the epoch; absent before its start.
    pub started_at: Option<i64>,
    /// When its time is over, in ms since the epoch; absent before its start.
    pub ends_at: Option<i64>,
    /// Since when it is paused, in ms since the epoch; absent while it is not.
    pub paused_at: Option<i64>,
    /// Whether the end of its time pauses it instead of ending it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pause_on_timeout: bool,
    /// Whether the first request to it resumes it while it is paused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resume_on_traffic: bool,
    /// ms since the epoch; absent before its end.
    pub ended_at: Option<i64>,
    /// Why it ended.
    pub end_reason: Option<String>,
    /// How its template's program ended without success, with its last words; the sandbox goes on.
    pub program_failed: Option<String>,
    /// Whether its wipe is verified, or it never had a sandbox.
    pub wiped: bool,
}

/// Why a request for a sandbox is refused before anything is written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LiveRequestError {
    /// Not a template's name.
    #[error("{0:?} is not a template's name: 1 to 63 of a-z, 0-9, - and _")]
    Template(String),
    /// A time beyond the bounds.
    #[error("timeoutS is {0}; it must be between 1 and {MAX_LIVE_S} seconds")]
    Timeout(u64),
    /// Too many labels or variables.
    #[error("{field} has {count} entries; at most {MAX_LIVE_PAIRS} are kept")]
    Pairs {
        /// The request's field.
        field: &'static str,
        /// Number of entries in the field, more than [`MAX_LIVE_PAIRS`].
        count: usize,
    },
    /// Variables beyond what a program can be given.
    #[error("env has more than {MAX_ENV_BYTES} bytes of names and values")]
    Env,
    /// A name or a value that cannot be kept.
    #[error(
        "{field}: the entry {name:?} is empty, too long or has a NUL byte, `=` in its name, or more than its bytes"
    )]
    Pair {
        /// The request's field.
        field: &'static str,
        /// The entry's name, cut to 64 characters.
        name: String,
    },
}

fn pairs(
    field: &'static str,
    all: &BTreeMap<String, String>,
    most: usize,
) -> Result<(), LiveRequestError> {
    if all.len() > MAX_LIVE_PAIRS {
        return Err(LiveRequestError::Pairs { field, count: all.len() });
    }
    let wrong = all.iter().find(|(name, value)| {
        let named =
            !name.is_empty() && name.len() <= MAX_LABEL_BYTES && !name.contains(['\0', '=']);
        !named || value.len() > most || value.contains('\0')
    });
    match wrong {
        Some((name, _)) => {
            Err(LiveRequestError::Pair { field, name: name.chars().take(64).collect() })
        }
        None => Ok(()),
    }
}

impl LiveRequest {
    /// A sandbox of this template, and every default.
    #[must_use]
    pub fn of(template: &str) -> Self {
        Self {
            template: template.to_owned(),
            timeout_s: None,
            metadata: BTreeMap::new(),
            env: BTreeMap::new(),
            egress: Egress::None,
            limits: Limits::default(),
            class_min: None,
            private: false,
            snapshot: None,
            pause_on_timeout: false,
            pause_memory: None,
            resume_on_traffic: false,
            dedup: None,
        }
    }

    /// Its template's name and its time to live in seconds, once everything is within its bounds.
    ///
    /// # Errors
    /// The first field that is not.
    pub fn check(&self) -> Result<(TemplateName, u64), LiveRequestError> {
        let template = TemplateName::parse(&self.template)
            .map_err(|_| LiveRequestError::Template(self.template.chars().take(64).collect()))?;
        let timeout_s = self.timeout_s.unwrap_or(DEFAULT_LIVE_S);
        if !(1..=MAX_LIVE_S).contains(&timeout_s) {
            return Err(LiveRequestError::Timeout(timeout_s));
        }
        pairs("metadata", &self.metadata, MAX_LABEL_BYTES)?;
        pairs("env", &self.env, MAX_VARIABLE_BYTES)?;
        let bytes = self.env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        if bytes > MAX_ENV_BYTES {
            return Err(LiveRequestError::Env);
        }
        Ok((template, timeout_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn a_request_is_within_its_bounds() {
        let good = LiveRequest::of(BASE_TEMPLATE);
        let base = TemplateName::parse(BASE_TEMPLATE).unwrap();
        assert_eq!(good.check().unwrap(), (base, DEFAULT_LIVE_S));
        for timeout_s in [0, MAX_LIVE_S + 1] {
            let bad = LiveRequest { timeout_s: Some(timeout_s), ..LiveRequest::of(BASE_TEMPLATE) };
            assert_eq!(bad.check(), Err(LiveRequestError::Timeout(timeout_s)));
        }
        for name in ["", "A", "../base", &"x".repeat(64)] {
            let other = LiveRequest::of(name);
            assert!(matches!(other.check(), Err(LiveRequestError::Template(_))), "{name}");
        }
        let many = (0..=MAX_LIVE_PAIRS).map(|n| (n.to_string(), String::new())).collect();
        let many = LiveRequest { metadata: many, ..LiveRequest::of(BASE_TEMPLATE) };
        assert!(matches!(many.check(), Err(LiveRequestError::Pairs { .. })));
        for (name, value) in [("", "x"), ("a=b", "x"), ("a", "x\0y"), ("a\0", "x")] {
            let bad = LiveRequest { env: one(name, value), ..LiveRequest::of(BASE_TEMPLATE) };
            assert!(matches!(bad.check(), Err(LiveRequestError::Pair { .. })), "{name:?}");
        }
        let large = "x".repeat(MAX_VARIABLE_BYTES);
        let env = (0..9).map(|n| (n.to_string(), large.clone())).collect();
        let bad = LiveRequest { env, ..LiveRequest::of(BASE_TEMPLATE) };
        assert_eq!(bad.check(), Err(LiveRequestError::Env));
        let long = "x".repeat(MAX_LABEL_BYTES + 1);
        assert!(
            LiveRequest { env: one("a", &long), ..LiveRequest::of(BASE_TEMPLATE) }.check().is_ok()
        );
        assert!(
            LiveRequest { metadata: one("a", &long), ..LiveRequest::of(BASE_TEMPLATE) }
                .check()
                .is_err()
        );
    }
}
