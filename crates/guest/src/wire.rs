//! The bodies of the agent's routes, and the list of all routes.
//!
//! | route | request | answer |
//! |---|---|---|
//! | `GET /v1/health` | | [`Health`] |
//! | `POST /v1/exec` | [`ExecRequest`] | frames: stdout, stderr, then one [`ExecEnd`] |
//! | `PUT /v1/file?path=&mode=` | the bytes; `path` percent-encoded, `mode` octal | 204 |
//! | `POST /v1/collect` | [`CollectRequest`] | frames: [`FileHead`], its chunks, ..., one [`CollectEnd`] |
//!
//! The routes below came with [`LEVEL`] 2; see [`crate::process`] and [`crate::tree`].
//!
//! | route | request | answer |
//! |---|---|---|
//! | `POST /v1/run` | [`crate::process::RunRequest`] | as of an exec |
//! | `PUT /v1/stdin?id=` | the bytes; their end is the end of input | 204 when all were taken |
//! | `POST /v1/control` | [`crate::process::Control`] | 204 |
//! | `POST /v1/dial?port=` | bytes for the port | bytes from the port; 502: nobody listens |
//! | `GET /v1/metrics` | | [`crate::process::Usage`] |
//! | `POST /v1/read` | [`crate::tree::Path`] | frames: [`FileHead`], its chunks, [`CollectEnd`] |
//! | `POST /v1/stat` | [`crate::tree::Path`] | [`crate::tree::Entry`]; 404: nothing there |
//! | `POST /v1/list` | [`crate::tree::Path`] | frames: [`crate::tree::Entry`]s, one [`CollectEnd`] |
//! | `POST /v1/mkdir` | [`crate::tree::NewDir`] | 204 |
//! | `POST /v1/remove` | [`crate::tree::Remove`] | 204 |
//! | `POST /v1/rename` | [`crate::tree::Rename`] | 204 |
//! | `POST /v1/watch` | [`crate::tree::Watch`] | frames: [`crate::tree::Change`]s, one [`CollectEnd`] |
//!
//! And these with level 3; see [`crate::archive`].
//!
//! | route | request | answer |
//! |---|---|---|
//! | `POST /v1/pack` | [`crate::archive::Pack`] | frames: chunks of a tar, one [`CollectEnd`] |
//! | `PUT /v1/unpack?with=` | a tar; `with` is [`crate::archive::Unpack`], percent-encoded | 204 when all is there |
//!
//! And with level 4; see [`crate::door`].
//!
//! | route | request | answer |
//! |---|---|---|
//! | `POST /v1/doors?with=` | a stream; `with` is [`crate::door::Doors`], percent-encoded | the stream's other half, once all listen; 409: a port is taken |
//!
//! Level 5 packs a directory exactly, level 6 looks whether it could: see [`crate::archive::Pack`].
//!
//! And with level 7; see [`crate::job`].
//!
//! | route | request | answer |
//! |---|---|---|
//! | `POST /v1/job` | [`crate::job::JobRequest`] | as of an exec, from the bytes on that the request names |
//!
//! Level 8 knows owners: `uid` and `gid` of a file that is put, of an [`crate::tree::Entry`], and commands that leave
//! processes behind ([`crate::process::RunRequest::leaves`]).
//!
//! And with level 9; see [`crate::sleep`]. And with level 10; see [`crate::layer_stream`].
//! Level 11 reads a part of a file: see [`crate::tree::Path`]. Level 12 knows a command's groups ([`ExecRequest::groups`]).
//! Level 13 collects what is there exactly ([`CollectRequest::exact`]). Level 14 runs a command in a root of its own
//! ([`crate::process::RunRequest::root`]).
//!
//! A host that finds a lower level in [`Health`] does not send what the agent does not know.
//!
//! A refused request answers 4xx or 5xx with a [`Refusal`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::jail::{Jail, JailReport};

/// First argument of an agent in a sandbox that somebody else holds.
pub const SUBREAPER: &str = "lodge";

/// `GET`: version and level of the agent.
pub const HEALTH: &str = "/v1/health";
/// `POST`: runs a command, streams its output.
pub const EXEC: &str = "/v1/exec";
/// `PUT`: writes one file.
pub const FILE: &str = "/v1/file";
/// `POST`: reads files out.
pub const COLLECT: &str = "/v1/collect";

/// `POST`: runs a command with input and terminal.
pub const RUN: &str = "/v1/run";
/// `PUT`: a command's input.
pub const STDIN: &str = "/v1/stdin";
/// `POST`: signals or resizes a command.
pub const CONTROL: &str = "/v1/control";
/// `POST`: connects to a port inside.
pub const DIAL: &str = "/v1/dial";
/// `POST`: keeps ports for the egress proxy.
pub const DOORS: &str = "/v1/doors";
/// `GET`: usage of the sandbox.
pub const METRICS: &str = "/v1/metrics";
/// `POST`: reads one file.
pub const READ: &str = "/v1/read";
/// `POST`: describes a path.
pub const STAT: &str = "/v1/stat";
/// `POST`: lists a directory.
pub const LIST: &str = "/v1/list";
/// `POST`: creates a directory.
pub const MKDIR: &str = "/v1/mkdir";
/// `POST`: removes a path.
pub const REMOVE: &str = "/v1/remove";
/// `POST`: renames a path.
pub const RENAME: &str = "/v1/rename";
/// `POST`: packs a directory into a tar.
pub const PACK: &str = "/v1/pack";
/// `PUT`: unpacks a tar.
pub const UNPACK: &str = "/v1/unpack";
/// `POST`: watches a path for changes.
pub const WATCH: &str = "/v1/watch";
/// `POST`: starts or follows a command that outlives its stream.
pub const JOB: &str = "/v1/job";

/// What an agent can do: see the tables of this page.
pub const LEVEL: u32 = 14;

/// [`ExecRequest::stream_limit_bytes`] of a host that takes all output, at its own pace.
pub const ALL_BYTES: u64 = u64::MAX;

/// Bytes of a JSON request body: the kernel's own limit on argv and environment is 2 MiB on a
/// default stack, and JSON escapes may double it.
pub const MAX_REQUEST_BYTES: usize = 4 * 1024 * 1024;

/// The agent is up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// Version of the agent's package.
    pub version: String,
    /// See [`LEVEL`]; the first agents do not say it.
    #[serde(default = "first_level")]
    pub level: u32,
}

const fn first_level() -> u32 {
    1
}

/// A command for the agent to run, with its bounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// argv; the first is looked up in the `PATH` of `env` unless it holds a slash.
    pub argv: Vec<String>,
    /// The whole environment; nothing is inherited.
    pub env: BTreeMap<String, String>,
    /// Working directory, absolute.
    pub cwd: String,
    /// Wall time in milliseconds, after which everything the command started is killed.
    pub timeout_ms: u64,
    /// Bytes of each stream that are sent; the rest is read, counted and dropped.
    pub stream_limit_bytes: u64,
    /// Who runs it; absent: the agent's own user, root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// Every group of that user; none: its primary one alone. Level 12.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<u32>,
    /// A file that is its standard input; absent: nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_file: Option<String>,
    /// What holds it further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jail: Option<Jail>,
}

/// A user of the sandbox, by number: names are the host's to look up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Numeric user id inside the sandbox.
    pub uid: u32,
    /// Id of the primary group.
    pub gid: u32,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum CommandExit {
    /// With this status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// It never started: the reason in words.
    Unstarted(String),
}

/// The last frame of an exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecEnd {
    /// How the command ended.
    pub ended: CommandExit,
    /// From the start to the end of the command in milliseconds.
    pub wall_ms: u64,
    /// User and system time of the command and its waited-for children in milliseconds.
    pub cpu_ms: u64,
    /// Largest resident set of any process that has ended in this sandbox so far, in KiB.
    pub max_rss_kb: u64,
    /// The wall time ran out and the agent killed it.
    pub timed_out: bool,
    /// Bytes of standard output beyond the limit.
    pub dropped_stdout: u64,
    /// Bytes of standard error beyond the limit.
    pub dropped_stderr: u64,
    /// Of a command that never started: its program is there, and is none that may be executed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub denied: bool,
    /// Processes and threads besides the agent just before what was left was killed; only counted
    /// where the command failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub crowd: u64,
    /// What its jail saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<JailReport>,
    /// What a kernel of the sandbox's own counted meanwhile; absent where the host's does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<LimitCounters>,
    /// Where attempts led that no route led anywhere, as far as that kernel told since a command
    /// started last: of those that it counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub no_routes: Vec<NoRoute>,
}

impl ExecEnd {
    /// An end of which nothing else is known: nothing was measured, dropped or seen.
    #[must_use]
    pub fn of(ended: CommandExit) -> Self {
        Self {
            ended,
            wall_ms: 0,
            cpu_ms: 0,
            max_rss_kb: 0,
            timed_out: false,
            dropped_stdout: 0,
            dropped_stderr: 0,
            denied: false,
            crowd: 0,
            seen: None,
            counted: None,
            no_routes: Vec::new(),
        }
    }
}

/// A place that a command tried to reach without a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoRoute {
    /// Address that the command tried to reach.
    pub address: IpAddr,
    /// 0 where there is none.
    pub port: u16,
    /// Attempts at this address and port since the last report.
    pub count: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(is: &bool) -> bool {
    !is
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What a kernel did to keep the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitCounters {
    /// Processes killed for memory.
    pub oom_kills: u64,
    /// Processes that were not started.
    pub pids_refused: u64,
    /// Whether the writable layer, which then is no file system of the host's, was seen without room.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub layer_full: bool,
    /// Attempts that no route led anywhere since the machine is the sandbox's, and not only meanwhile: so
    /// those of commands that run beside each other are counted once.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub no_routes: u64,
}

/// Which files to read out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectRequest {
    /// Absolute directory that the globs are relative to; not a symbolic link.
    pub root: String,
    /// Patterns of files to read out, in the form of [`crate::glob`].
    pub globs: Vec<String>,
    /// Bytes of all files.
    pub max_bytes: u64,
    /// Number of files.
    pub max_files: u64,
    /// Links, execute bits and empty directories come too; what a bound leaves out is counted instead of an error; and the
    /// globs that matched nothing are told. Level 13.
    #[serde(default, skip_serializing_if = "is_false")]
    pub exact: bool,
}

/// What a file of an exact collection is that is not a plain one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// Somebody may execute it.
    Executable,
    /// A symbolic link; its bytes are its target.
    Link,
    /// A directory with nothing in it, and no bytes.
    Directory,
}

/// A file follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileHead {
    /// Relative to the root.
    pub path: String,
    /// Bytes that follow in chunks.
    pub size: u64,
    /// Absent: a plain file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<FileKind>,
}

/// The last frame of a collection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectEnd {
    /// Number of files sent, or of a list's or tar's entries.
    pub files: u64,
    /// Why it stopped early; nothing that was sent may be used then.
    pub error: Option<String>,
    /// The bound that the files do not keep: they would not another time either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<CollectExcess>,
    /// Of an exact collection: what matches and was not sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted: Option<CollectOmission>,
    /// Of an exact collection: which of the request's globs matched nothing, from 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<u32>,
}

impl CollectEnd {
    /// The end of an answer that has no more to say than how many came, or why it broke off.
    #[must_use]
    pub fn of(files: u64, error: Option<String>) -> Self {
        Self { files, error, over: None, omitted: None, unmatched: Vec::new() }
    }
}

/// Files beyond a bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectOmission {
    /// Number of files.
    pub files: u64,
    /// Bytes that they have together.
    pub bytes: u64,
    /// The first in the order of their paths.
    pub first: String,
    /// Whether that one is beyond the number of files, and otherwise beyond their bytes.
    pub beyond_files: bool,
}

/// A bound of a collection, and how it was left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum CollectExcess {
    /// More files match than are collected.
    Files {
        /// That are collected.
        most: u64,
        /// Number of files that match.
        found: u64,
        /// The first that the walk found beyond the bound.
        path: String,
    },
    /// The files that match hold more bytes than are collected.
    Bytes {
        /// That are collected.
        most: u64,
        /// Of the files up to this one, it included.
        found: u64,
        /// The first, in the order of their paths, that does not fit.
        path: String,
    },
    /// More entries are there than are looked at.
    Entries {
        /// That are looked at.
        most: u64,
        /// Where that was.
        path: String,
    },
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Reason in words, which the host shows in its own error.
    pub error: String,
}

/// Percent-encodes everything but unreserved characters and `/`.
#[must_use]
pub fn encode_path(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Undoes [`encode_path`]; `None` where the text is not an encoding of UTF-8.
#[must_use]
pub fn decode_path(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_its_encoding() {
        for path in ["/a/b", "/a b&c=d?e#%", "/\u{e9}\n", ""] {
            assert_eq!(decode_path(&encode_path(path)).as_deref(), Some(path));
        }
        for bad in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decode_path(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_agent_that_does_not_say_its_level_is_one_of_the_first() {
        let health: Health = serde_json::from_str(r#"{"version":"0.1.0"}"#).unwrap();
        assert_eq!(health.level, 1);
    }

    #[test]
    fn an_unknown_field_is_refused() {
        assert!(serde_json::from_str::<Health>(r#"{"version":"1","extra":1}"#).is_err());
    }
}
