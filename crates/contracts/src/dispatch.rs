//! Dispatches: an agent that is sent off, what was asked of its sandbox, and what was enforced.
//!
//! ```text
//! SpawnRequest --(flows)--> app.dispatches + AgentWork --(worker)--> AgentReport
//!   sandbox_spec, immutable                                sandbox_effective, once, at the end
//! ```
//! Names are those of the table's columns: the orchestrators that read them read the table too.

mod end;
mod record;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::agent_plan::PROJECT;
use crate::canonical;
use crate::enum_names::named;
use crate::error::{ErrorCode, Refusal, Violation};
use crate::id::{Digest, DispatchId, RunId};
use crate::patch::RepoSpec;
use crate::project::ProjectLocation;
use crate::sandbox::{AccessMode, CommandPolicy, SandboxRequest, SandboxSpec};
use crate::schema::{Validator, schema_of};

pub use crate::agent_report::{AgentReport, Findings, Tally};
pub use end::{DispatchEnd, DispatchEndFacts, ended};
pub use record::{
    AgentViolation, CountSource, EffectiveModels, ObservedEgress, Peaks, SandboxEffective,
    ViolationKind,
};

/// Bytes of a sandbox spec: a policy that a person can still read.
pub const MAX_SPEC_BYTES: usize = 64 * 1024;
/// Bytes of a prompt: with its escapes it must fit into one request's body.
pub const MAX_PROMPT_BYTES: usize = 256 * 1024;
/// Seconds that an agent may work when nobody says.
pub const DEFAULT_TIMEOUT_SEC: u64 = 1_800;
/// What a list of executables holds.
const PROGRAM: &str = "a program's name, or its absolute path";
/// Names that one list of a policy may hold.
pub const MAX_TOOLS: usize = 256;
/// Distinct violations of one dispatch; further ones are counted only.
pub const MAX_VIOLATIONS: usize = 256;

named! {
    /// What kind of agent.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
    pub enum AgentType {
        /// OpenAI's Codex, run as `codex exec`.
        #[default]
        Codex = "codex",
        /// Anthropic's Claude Code, run as `claude -p`.
        Claude = "claude",
        /// OpenCode, run as `opencode run`.
        Opencode = "opencode",
        /// Any command, or the prompt file itself as a shell script.
        Command = "command",
    }
}

named! {
    /// Where a dispatch is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum DispatchStatus {
        /// On record, not started.
        Spawned = "spawned",
        /// Its workflow runs.
        Running = "running",
        /// Its agent exited with 0.
        Completed = "completed",
        /// Its agent did not, or could not be started.
        Failed = "failed",
        /// Its time ran out.
        Timeout = "timeout",
        /// Somebody ended it. The contract of dispatches spells it so; our own word is read too.
        #[serde(alias = "canceled")]
        Canceled = "cancelled",
    }
}

impl DispatchStatus {
    /// Whether nothing follows.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Spawned | Self::Running)
    }
}

/// Body of `POST /api/dispatches`: the agent to start, its prompt, project and policy.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpawnRequest {
    /// Kind of agent that the sandbox runs; default `codex`.
    #[serde(default)]
    pub agent_type: AgentType,
    /// The prompt of the agent: 1 to 262,144 bytes.
    #[schemars(length(min = 1, max = 262_144))]
    pub prompt: String,
    /// The file that it was read from.
    #[schemars(length(min = 1, max = 4096))]
    pub prompt_file: Option<String>,
    /// argv, for the type `command` alone; without it the prompt is a shell script.
    #[schemars(length(min = 1, max = 1024))]
    pub cmd: Option<Vec<String>>,
    /// Absolute path of a directory of the worker's host.
    #[schemars(length(min = 1, max = 4096))]
    pub project_dir: String,
    /// Where the agent finds that directory. A commit of `repo` lies at `/work`.
    #[serde(default, skip_serializing_if = "is_own")]
    pub project_at: ProjectLocation,
    /// Absolute path of the repository of the linked git worktree that the project is; shown copy-on-write at its own path.
    #[schemars(length(min = 1, max = 4096))]
    pub worktree_of: Option<String>,
    /// A repository whose commit the agent works on instead of the directory; its changes are kept as a patch.
    pub repo: Option<RepoSpec>,
    /// Where a client that waits writes the agent's output.
    #[schemars(length(min = 1, max = 4096))]
    pub output_file: Option<String>,
    /// A name for people.
    #[schemars(length(min = 1, max = 128))]
    pub name: Option<String>,
    /// The agent's model.
    #[schemars(length(min = 1, max = 128))]
    pub model: Option<String>,
    /// Absolute path of the agent's program on the worker's host, which the sandbox sees read-only; left out: the one that
    /// is installed there.
    #[schemars(length(min = 1, max = 4096))]
    pub agent_program: Option<String>,
    /// The old, simple policy; the spec's `access_mode` supersedes it.
    pub sandbox: Option<AccessMode>,
    /// The requested policy: a `SandboxSpec`.
    pub sandbox_spec: Option<Value>,
    /// Keeps fields of the spec that are not known, and says in the effective record that they were
    /// not enforced.
    #[serde(default)]
    pub lenient_spec: bool,
    /// Ends the dispatch at its limits on turns and commands, which otherwise are only reported.
    #[serde(default)]
    pub enforce: bool,
    /// Groups dispatches; a tenant's scope has a limit on live ones.
    #[schemars(length(min = 1, max = 128))]
    pub scope_id: Option<String>,
    /// The dispatch that spawns this one.
    pub parent_id: Option<DispatchId>,
    /// Wall time in seconds: 1 to 86,400.
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_sec: Option<u64>,
    /// Runs after interactive work.
    #[serde(default)]
    pub scheduled: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_own(place: &ProjectLocation) -> bool {
    *place == ProjectLocation::Own
}

/// A spec, checked: the part that is enforced, and the whole as it was given.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedSpec {
    /// What is known.
    pub spec: SandboxSpec,
    /// Everything, as it was given.
    pub verbatim: Value,
    /// What is not known; empty unless that was allowed.
    pub unknown: Map<String, Value>,
}

impl CheckedSpec {
    /// Its canonical form, and the hash of that.
    pub fn canonical(&self) -> Result<(String, Digest), Refusal> {
        let bytes = canonical::canonical(&self.verbatim)
            .map_err(|e| Refusal::new(ErrorCode::SchemaViolation, e.to_string()))?;
        let digest = canonical::digest_bytes(&bytes);
        Ok((String::from_utf8_lossy(&bytes).into_owned(), digest))
    }
}

/// Holds a spec against its schema. With `lenient`, fields that the top level does not know are kept
/// aside; what is known is held as strictly as ever.
pub fn check_spec(value: &Value, lenient: bool) -> Result<CheckedSpec, Refusal> {
    if value.to_string().len() > MAX_SPEC_BYTES {
        let why = format!("sandbox_spec has more than {MAX_SPEC_BYTES} bytes");
        return Err(Refusal::new(ErrorCode::SchemaViolation, why));
    }
    let schema = schema_of::<SandboxSpec>();
    let known = |name: &str| schema.pointer(&format!("/properties/{name}")).is_some();
    let mut unknown = Map::new();
    let mut rest = value.clone();
    if let (true, Value::Object(fields)) = (lenient, &mut rest) {
        let names: Vec<String> = fields.keys().filter(|name| !known(name)).cloned().collect();
        for name in names {
            if let Some(found) = fields.remove(&name) {
                unknown.insert(name, found);
            }
        }
    }
    Validator::compile(&schema)?.check(&rest)?;
    let spec: SandboxSpec = serde_json::from_value(rest)
        .map_err(|e| Refusal::new(ErrorCode::SchemaViolation, format!("sandbox_spec: {e}")))?;
    tools(&spec)?;
    Ok(CheckedSpec { spec, verbatim: value.clone(), unknown })
}

fn tools(spec: &SandboxSpec) -> Result<(), Refusal> {
    let commands = spec.commands.as_ref();
    let lists = [
        ("tools_allowed", spec.tools_allowed.as_ref(), "a tool's name"),
        ("tools_denied", spec.tools_denied.as_ref(), "a tool's name"),
        ("commands/allowed", commands.and_then(|list| list.allowed.as_ref()), PROGRAM),
        ("commands/denied", commands.and_then(|list| list.denied.as_ref()), PROGRAM),
    ];
    let mut wrong = Vec::new();
    for (field, list, words) in lists {
        let Some(list) = list else { continue };
        if list.len() > MAX_TOOLS {
            wrong.push(violation(format!("/{field}"), format!("at most {MAX_TOOLS} names")));
        }
        for (index, _) in list.iter().enumerate().filter(|(_, name)| !is_plain(name)) {
            wrong.push(violation(format!("/{field}/{index}"), words.to_owned()));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Refusal::violations(&wrong)) }
}

/// Whether a name is one word: a bare name, or an absolute path without `..`.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() < 256
        && !name.chars().any(|c| c.is_control() || c.is_whitespace() || c == ',')
        && (!name.contains('/') || name.starts_with('/'))
        && !name.split('/').any(|part| part == "..")
}

fn violation(instance_path: String, message: String) -> Violation {
    Violation { instance_path, message }
}

/// The work of a dispatch's one task.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentWork {
    /// Whose work it is.
    pub dispatch: DispatchId,
    /// How its events are read.
    pub agent_type: AgentType,
    /// The sandbox, its command included. Its spec has no tools, limits on turns or access mode:
    /// these stand below.
    pub request: SandboxRequest,
    /// Path in the sandbox of the file that is the agent's standard input.
    pub stdin: String,
    /// The agent's own tools that it may use; absent: all. Work stored before `commands` existed has programs here.
    pub tools_allowed: Option<Vec<String>>,
    /// The agent's own tools that it may not use.
    pub tools_denied: Option<Vec<String>>,
    /// What may be executed beside the agent itself.
    pub commands: Option<CommandPolicy>,
    /// What it may do with its working directory.
    pub access_mode: AccessMode,
    /// The working directory on the host.
    pub working_dir: String,
    /// Advisory unless `enforce`.
    pub max_turns: Option<u64>,
    /// Advisory unless `enforce`.
    pub max_commands: Option<u64>,
    /// Whether a limit ends it.
    #[serde(default)]
    pub enforce: bool,
    /// Fields of the spec that nobody knows and nothing enforces.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub unknown: Map<String, Value>,
}

impl AgentWork {
    /// Where the project lies in the sandbox.
    #[must_use]
    pub fn place(&self) -> &str {
        self.request.workdir.as_deref().unwrap_or(PROJECT)
    }
}

/// One dispatch, as the API and `status --json` show it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the field names are the table's columns")]
pub struct DispatchView {
    pub id: DispatchId,
    pub agent_type: String,
    pub status: DispatchStatus,
    pub project_dir: String,
    pub turns: i64,
    pub commands: i64,
    pub messages: i64,
    pub in_tokens: i64,
    pub out_tokens: i64,
    pub cache_hits: i64,
    /// Seconds since the epoch.
    pub created_at: i64,
    pub started_at: Option<i64>,
    pub completed_at: Option<i64>,
    pub prompt_file: Option<String>,
    pub prompt_hash: Option<String>,
    pub output_file: Option<String>,
    pub verdict_file: Option<String>,
    pub pid: Option<i64>,
    pub exit_code: Option<i64>,
    pub name: Option<String>,
    pub model: Option<String>,
    pub sandbox: String,
    #[serde(default)]
    #[serialize_always]
    pub sandbox_spec: Option<Value>,
    #[serde(default)]
    #[serialize_always]
    pub sandbox_effective: Option<Value>,
    pub timeout_sec: Option<i64>,
    pub verdict_status: Option<String>,
    pub verdict_summary: Option<String>,
    pub error_message: Option<String>,
    pub scope_id: Option<String>,
    pub parent_id: Option<String>,
    pub base_repo_commit: Option<String>,
    pub retry_count: i64,
    pub conflict_type: Option<String>,
    pub quarantine_reason: Option<String>,
    pub spawn_depth: i64,
    pub parent_dispatch_id: Option<String>,
    /// Its run; absent where it was imported.
    pub run_id: Option<RunId>,
}

/// Tokens of one dispatch or many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names say it")]
pub struct DispatchTokens {
    pub dispatches: i64,
    pub in_tokens: i64,
    pub out_tokens: i64,
    pub cache_hits: i64,
    pub total: i64,
}

/// Body of `POST /api/dispatches/prune`: the age from which ended dispatches are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneRequest {
    /// Ended dispatches older than this many seconds are removed.
    #[schemars(range(min = 0, max = 3_153_600_000_u64))]
    pub older_than_sec: u64,
}

/// What was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneResponse {
    /// Number of ended dispatches that were removed.
    pub pruned: u64,
}

/// `POST /api/dispatches/import`: rows of another database, each as its columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportRequest {
    /// Rows of the other database, 1 to 500, each an object of its columns.
    #[schemars(length(min = 1, max = 500))]
    pub rows: Vec<Map<String, Value>>,
}

/// What became of the rows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportResponse {
    /// Ids that are new here.
    pub imported: Vec<String>,
    /// Rows that were there already, the same.
    pub unchanged: u64,
    /// Rows that were left out.
    pub skipped: Vec<ImportSkip>,
}

/// A row that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportSkip {
    /// Its id, as it stands there.
    pub id: String,
    /// Reason, for the record.
    pub reason: String,
}

/// Where the output of a dispatch is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DispatchOutput {
    /// The artifact of its standard output; `null` until there is one.
    pub uri: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_spec_is_strict_and_lenient_only_about_what_it_does_not_know() {
        let odd = json!({"tools_allowed": ["ls"], "vendor_x": {"a": 1}});
        assert!(check_spec(&odd, false).is_err());
        let kept = check_spec(&odd, true).unwrap();
        assert_eq!(kept.unknown["vendor_x"], json!({"a": 1}));
        assert_eq!(kept.spec.tools_allowed.as_deref(), Some(&["ls".to_owned()][..]));
        assert_eq!(kept.verbatim, odd);
        for bad in [
            json!({"max_turns": -1}),
            json!({"access_mode": "sudo"}),
            json!({"tools_denied": ["a b"]}),
            json!({"tools_denied": ["../x"]}),
            json!([]),
        ] {
            assert!(check_spec(&bad, true).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_spec_that_nobody_can_read_is_refused() {
        let big = json!({"tools_allowed": vec!["x".repeat(200); 1_000]});
        let refusal = check_spec(&big, true).unwrap_err();
        assert!(refusal.message.contains("65536"), "{}", refusal.message);
    }

    #[test]
    fn equal_specs_have_equal_hashes_whatever_their_order() {
        let hash = |text: &str| {
            let value: Value = serde_json::from_str(text).unwrap();
            check_spec(&value, false).unwrap().canonical().unwrap().1
        };
        assert_eq!(
            hash(r#"{"max_turns":3,"max_commands":4}"#),
            hash(r#"{"max_commands":4,"max_turns":3}"#)
        );
        assert_ne!(hash(r#"{"max_turns":3}"#), hash(r#"{"max_turns":4}"#));
    }
}
