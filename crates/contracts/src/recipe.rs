//! Recipes: YAML that reads like what it does. Parsing is strict; an error names line, column and field.
//!
//! One file: the fields of a recipe stand together, as a person writes them.

mod check;
mod editor_schema;
pub mod pipeline;
mod task_texts;

use std::collections::BTreeMap;

pub use editor_schema::editor_schema;

use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent_plan::AgentSpec;
use crate::artifact_spec::ArtifactSpec;
use crate::cache::{BuildCache, CacheSpec};
use crate::canonical::{self, CanonicalError};
use crate::enum_names::named;
use crate::gate_spec::GateSpec;
use crate::id::{Digest, GroupName, RecipeId};
use crate::input::InputMode;
use crate::model::ModelsSpec;
use crate::own_schema::own_schema;
use crate::patch::RepoSpec;
use crate::profile::Language;
use crate::retry_spec::RetrySpec;
use crate::sandbox::{AccessMode, Egress, IsolationSpec, Limits};
use crate::schedule::ScheduleSpec;
use crate::secret::SecretUse;
use crate::service::Service;
use crate::start_spec::StartSpec;
use crate::test_report::{MAX_REPORT_SPECS, ReportSpec};
use crate::toolchain::{MAX_TOOLCHAINS, ToolchainSpec};
use crate::user;

/// Id of the recipe of one command that `cofferdam exec` writes: its exit status is the command's, 127 for a missing one.
pub const EXEC_RECIPE: &str = "exec";
/// Bytes of a recipe's text; a recipe is written by hand.
pub const MAX_RECIPE_BYTES: usize = 256 * 1024;
/// Tasks that a recipe may list, before fan-out.
pub const MAX_TASKS: usize = 1_000;

/// `{id, v}`: which recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeRef {
    /// The recipe's id.
    pub id: RecipeId,
    /// Its version, any text of 1 to 32 characters.
    #[schemars(length(min = 1, max = 32))]
    pub v: String,
}

named! {
    /// How settled a version is; it moves in this order alone, and `stable` never changes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    #[allow(missing_docs, reason = "the names are the contract's own")]
    pub enum RecipeStatus {
        Draft = "draft",
        Candidate = "candidate",
        Stable = "stable",
    }
}

/// A versioned template of intents: form, caps, gate and tasks.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The recipe's id.
    pub id: RecipeId,
    /// Its version: any text of 1 to 32 characters.
    pub v: String,
    /// What it is for, shown beside its form.
    pub title: Option<String>,
    /// JSON Schema of the inputs. Absent: no inputs.
    pub form: Option<Value>,
    /// Bounds that no run of it may pass.
    #[serde(default)]
    pub caps: Caps,
    /// Where its runs queue.
    pub queue: Option<QueueSpec>,
    /// When its runs begin by themselves, once `cofferdam schedule add` consents to it: a cron pattern (`"0 3 * * *"`), or the long
    /// form.
    pub schedule: Option<ScheduleSpec>,
    /// Gate, agent and tasks.
    pub plan: PlanSpec,
}

/// Bounds of every run of a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Caps {
    /// Tasks of one run at the same time.
    #[schemars(range(min = 1, max = 1000))]
    pub concurrency: u32,
    /// Tasks of one run in all.
    #[schemars(range(min = 1, max = 10_000))]
    pub steps: u32,
    /// Sandbox minutes of one run in all.
    #[schemars(range(min = 1, max = 100_000))]
    pub sandbox_minutes: u32,
}

impl Default for Caps {
    fn default() -> Self {
        Self { concurrency: 8, steps: 256, sandbox_minutes: 60 }
    }
}

/// Urgency: interactive runs before batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Lane {
    /// Priority 1, served before batch runs; the default.
    #[default]
    Interactive,
    /// Priority 1000, served after interactive runs.
    Batch,
}

impl Lane {
    /// Lower runs first.
    #[must_use]
    pub const fn priority(self) -> i32 {
        match self {
            Self::Interactive => 1,
            Self::Batch => 1000,
        }
    }
}

/// A recipe's queueing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    /// Urgency of its runs.
    #[serde(default)]
    pub lane: Lane,
}

/// What a recipe does.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanSpec {
    /// A gate before the first task: its key, or its key and rules.
    pub gate: Option<GateSpec>,
    /// OpenCode plans and builds; `tasks` are its tests.
    pub agent: Option<AgentSpec>,
    /// Tasks of the run: 1 to 1,000, before `each` and `matrix`.
    pub tasks: Vec<TaskSpec>,
    /// Whether the first task that fails ends the run: others are canceled or skipped, except `when: always`. Default no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fail_fast: bool,
}

/// A command: a text for `/bin/sh -c`, or an argv. What may stand in the text is [`crate::shell`]'s rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cmd {
    /// `/bin/sh -c TEXT`
    Shell(String),
    /// Program and arguments.
    Argv(Vec<String>),
}

own_schema!(Cmd, |_| json_schema!({"oneOf": [
    {"type": "string", "minLength": 1},
    {"type": "array", "minItems": 1, "items": {"type": "string"}}
]}));

impl Serialize for Cmd {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Shell(text) => serializer.serialize_str(text),
            Self::Argv(argv) => argv.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Cmd {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Cmd;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a command: a text for the shell, or a list of arguments")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Cmd, E> {
                if text.trim().is_empty() {
                    return Err(E::custom("an empty command"));
                }
                Ok(Cmd::Shell(text.to_owned()))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Cmd, A::Error> {
                let mut argv = Vec::new();
                while let Some(arg) = seq.next_element::<String>()? {
                    argv.push(arg);
                }
                if argv.first().is_none_or(String::is_empty) {
                    return Err(serde::de::Error::custom("an empty command"));
                }
                Ok(Cmd::Argv(argv))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A file or directory for a task. Exactly one of `from` and `text`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// Path on the host (absolute, or relative to where the CLI was started), `artifact://...`, or `task://TASK/GLOB`: artifacts
    /// of an earlier task.
    pub from: Option<String>,
    /// The file's text.
    pub text: Option<String>,
    /// Absolute path inside.
    pub to: String,
    /// What the task may do with it.
    #[serde(default)]
    pub access: AccessMode,
    /// Whether a path of the host is given as it is while the task runs; default no: with the content that it had when the run was
    /// submitted, to which a consent and each retry are bound.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub live: bool,
}

/// The first phase of a task, which may have a network; `exec` follows it in the same sandbox.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildSpec {
    /// Command of the phase: a text for `/bin/sh -c`, or a list of arguments.
    pub run: Cmd,
    /// Network of the phase: `none`, or names that it reaches by HTTP and HTTPS.
    #[serde(default)]
    pub egress: Egress,
    /// Whether a person is asked when it is refused a name; default no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ask: bool,
    /// Secrets that the egress proxy adds to its requests; each names one host of `egress`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretUse>,
    /// Its environment; what `exec.env` says is not seen here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What selects a cached base: a lock file, or what a task's `cache` says.
    pub cache: Option<BuildCache>,
    /// Wall time: a profile (`python`) or a duration (`90s`, `5m`).
    pub timeout: Option<String>,
    /// Whom this phase runs as; default: the task's `user`.
    #[serde(default, deserialize_with = "user::template", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "user::template_schema")]
    pub user: Option<String>,
}

/// A task's command.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// Command of the task: a text for `/bin/sh -c`, or a list of arguments.
    pub run: Cmd,
    /// Its environment, and not the build's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Network of the phase: `none`, or names that it reaches by HTTP and HTTPS.
    #[serde(default)]
    pub egress: Egress,
    /// Whether a person is asked when it is refused a name; default no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ask: bool,
    /// Secrets that the egress proxy adds to its requests; each names one host of `egress`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretUse>,
    /// Wall time: a profile (`python`) or a duration (`90s`, `5m`).
    pub timeout: Option<String>,
    /// Working directory, absolute.
    pub workdir: Option<String>,
    /// A file of the sandbox that is its standard input, absolute; default: none.
    pub stdin: Option<String>,
    /// Standard input that the client sends while it runs: `stream`, or `terminal`. One task of a recipe; needs a start with
    /// `output=true`.
    pub input: Option<InputMode>,
}

/// A task. Exactly one of `exec` (a sandbox) and `value` (the engine stores a text, no sandbox).
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// Its name; with `each` and `matrix` it must differ for each item.
    pub name: String,
    /// What `needs` and `${tasks.ID..}` call it. Default: its name, where that is such a word.
    pub id: Option<GroupName>,
    /// Tasks that end before it starts, at most 64. They must succeed, unless `when` asks for their outcome.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub needs: Vec<GroupName>,
    /// Condition of its start, once its needs have ended: `always`, or on an outcome or a value.
    pub when: Option<StartSpec>,
    /// A gate before it: its key, or its key and rules. It opens once its needs have ended and `when` holds; its task starts after a
    /// yes to what they left. A fan-out has one gate.
    pub gate: Option<GateSpec>,
    /// Fan-out: a list, or an expression that yields one, such as `${tasks.list.outputs.shards}`.
    pub each: Option<Value>,
    /// Fan-out over every combination of these values, in the order of their names: `${matrix.NAME}`. Not beside `each`.
    pub matrix: Option<BTreeMap<String, Vec<Value>>>,
    /// Attempts beyond the first, and after which failures. Default: faults of the host, twice.
    pub retry: Option<RetrySpec>,
    /// A file with its outputs, relative to its working directory: `NAME=value` lines (`out.env`) or a flat object (`out.json`).
    pub outputs: Option<String>,
    /// Root file system: `host`, `image:NAME` or `dir:/path`. Default: `host`.
    pub image: Option<String>,
    /// Whom its commands run as: a name of the root file system or a number, and after a colon a group. Default: the image's user.
    #[serde(default, deserialize_with = "user::template", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "user::template_schema")]
    pub user: Option<String>,
    /// Files and directories that the task finds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileSpec>,
    /// Toolchains of the host, each once: `rust`, `node@22`, `python@3.12`, `go`. They are mounted read-only, first in `PATH`, and
    /// pinned in the plan by version and identity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_TOOLCHAINS))]
    pub toolchains: Vec<ToolchainSpec>,
    /// A repository whose commit it finds at `/work`; what it changes there is kept as a patch.
    pub repo: Option<RepoSpec>,
    /// The first phase, such as an installation.
    pub build: Option<BuildSpec>,
    /// The command of a sandbox.
    pub exec: Option<ExecSpec>,
    /// A text that becomes the task's artifact: engine only.
    pub value: Option<String>,
    /// The language whose profile gives the wall times and limits that the task leaves out.
    pub profile: Option<Language>,
    /// Limits of CPU, memory, processes, disk, files and output.
    #[serde(default)]
    pub limits: Limits,
    /// Services inside the sandbox, by name (`postgres`) or in the long form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Service>,
    /// Dependency cache. A lock file at `build.cache` is one more of its paths.
    pub cache: Option<CacheSpec>,
    /// Weakest boundary accepted.
    pub isolation: Option<IsolationSpec>,
    /// Models that it may call while it executes.
    pub models: Option<ModelsSpec>,
    /// Files to keep, each a glob or `{path, required}`: a task fails without a file that is required. Links, execute bits and
    /// empty directories are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<ArtifactSpec>,
    /// Test reports and coverage that it writes, each a glob or `{path, kind}`: at most 20. They are kept as artifacts, and their
    /// totals are shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_REPORT_SPECS))]
    pub reports: Vec<ReportSpec>,
}

impl Recipe {
    /// `{id, v}` of this recipe.
    #[must_use]
    pub fn reference(&self) -> RecipeRef {
        RecipeRef { id: self.id.clone(), v: self.v.clone() }
    }

    /// The recipe's hash: over its canonical form, so that comments and layout do not matter.
    pub fn hash(&self) -> Result<Digest, CanonicalError> {
        canonical::digest(self)
    }

    /// What a task of it takes from the client that starts it.
    #[must_use]
    pub fn input(&self) -> Option<InputMode> {
        self.plan.tasks.iter().find_map(|task| task.exec.as_ref()?.input)
    }

    /// The form's schema; a recipe without one takes no inputs.
    #[must_use]
    pub fn form_schema(&self) -> Value {
        self.form.clone().unwrap_or_else(
            || serde_json::json!({"type": "object", "properties": {}, "additionalProperties": false}),
        )
    }
}

impl TaskSpec {
    /// The cache that the build phase spells out.
    fn build_cache(&self) -> Option<&CacheSpec> {
        match self.build.as_ref()?.cache.as_ref()? {
            BuildCache::Spec(spec) => Some(spec),
            BuildCache::Lock(_) => None,
        }
    }

    /// The cache that is spelled out, and the field that says it.
    #[must_use]
    pub fn said_cache(&self) -> Option<(&'static str, &CacheSpec)> {
        let own = self.cache.as_ref().map(|spec| ("cache", spec));
        own.or_else(|| self.build_cache().map(|spec| ("build.cache", spec)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

    const GOOD: &str =
        "id: hello\nv: \"1\"\nplan:\n  tasks:\n    - name: hi\n      exec: {run: echo hi}\n";

    #[test]
    fn layout_and_comments_do_not_change_the_hash() {
        let a = Recipe::from_yaml("a.yaml", GOOD).unwrap();
        let b = Recipe::from_yaml("b.yaml", &format!("# note\n{GOOD}\n\n")).unwrap();
        assert_eq!(a.hash().unwrap(), b.hash().unwrap());
    }

    #[test]
    fn a_bad_recipe_names_file_line_and_field() {
        let err = Recipe::from_yaml("x.yaml", &GOOD.replace("exec:", "exce:")).unwrap_err();
        assert!(
            err.message.starts_with("x.yaml:6:7: plan.tasks[0].exce: unknown field `exce`"),
            "{err}"
        );
        assert!(!err.message.contains("line"), "the place is said once: {err}");
        let err = Recipe::from_yaml("x.yaml", "id: [").unwrap_err();
        assert_eq!(err.code, ErrorCode::RecipeInvalid);
        let err = Recipe::from_yaml("x.yaml", &GOOD.replace("echo hi", "\"\"")).unwrap_err();
        assert!(err.message.contains("empty command"), "{err}");
    }

    #[test]
    fn yes_and_no_are_texts() {
        let form = "form: {type: object, required: [n], properties: {n: {enum: [yes, no, on, off]}, t: {default: true}}}";
        let recipe = Recipe::from_yaml("x.yaml", &format!("{GOOD}{form}\n")).unwrap();
        let form = recipe.form.unwrap();
        assert_eq!(form["required"], serde_json::json!(["n"]));
        assert_eq!(form["properties"]["n"]["enum"], serde_json::json!(["yes", "no", "on", "off"]));
        assert_eq!(form["properties"]["t"]["default"], true);
    }

    #[test]
    fn a_value_of_the_wrong_type_names_its_field_too() {
        let text = GOOD.replace("name: hi", "name: hi\n      limits: {cpu: many}");
        let err = Recipe::from_yaml("x.yaml", &text).unwrap_err();
        assert!(err.message.starts_with("x.yaml:6:"), "{err}");
        assert!(err.message.contains("plan.tasks[0].limits.cpu"), "{err}");
    }

    #[test]
    fn a_task_is_either_a_sandbox_or_a_value() {
        let err = Recipe::from_yaml("x.yaml", &GOOD.replace("exec: {run: echo hi}", "image: host"))
            .unwrap_err();
        assert!(err.message.contains("plan.tasks[0].exec"), "{err}");
    }

    #[test]
    fn one_task_reads_what_the_client_sends() {
        let tasks = |tasks: &str| format!("id: r\nv: \"1\"\nplan:\n  tasks:\n{tasks}");
        let reads = "    - {name: a, exec: {run: cat, input: stream}}\n";
        let recipe = Recipe::from_yaml("x.yaml", &tasks(reads)).unwrap();
        assert_eq!(recipe.input(), Some(InputMode::Stream));
        assert_eq!(Recipe::from_yaml("x.yaml", GOOD).unwrap().input(), None);
        for (refused, word) in [
            (format!("{reads}{}", reads.replace("name: a", "name: b")), "tasks[1].exec.input"),
            (reads.replace("name: a", "name: \"a${item}\", each: [1, 2]"), "`each`"),
            (reads.replace("name: a", "name: 'a${matrix.x}', matrix: {x: [1, 2]}"), "`matrix`"),
            (reads.replace("input: stream", "input: terminal, stdin: /in"), "`stdin`"),
            (reads.replace("stream", "file"), "exec.input"),
        ] {
            let err = Recipe::from_yaml("x.yaml", &tasks(&refused)).unwrap_err();
            assert_eq!(err.code, ErrorCode::RecipeInvalid);
            assert!(err.message.contains(word), "{refused}: {err}");
        }
    }

    #[test]
    fn a_bad_name_and_a_bad_duration_are_refused_with_file_line_and_field() {
        let exec = |fields: &str| GOOD.replace("{run: echo hi}", &format!("{{run: x, {fields}}}"));
        for (text, place, word) in [
            (
                exec("egress: [a.example, '*.example.org']"),
                "x.yaml:6:",
                "plan.tasks[0].exec.egress[1]: \"*.example.org\" is not an exact domain name",
            ),
            (
                exec("egress: ['@maven']"),
                "x.yaml:6:",
                "plan.tasks[0].exec.egress[0]: unknown mirror \"@maven\"",
            ),
            (
                exec("timeout: 5 minutes"),
                "x.yaml",
                "plan.tasks[0].exec.timeout: \"5 minutes\" is neither a duration",
            ),
            (
                GOOD.replace("  tasks:", "  gate: {key: approve-plan, deadline: python}\n  tasks:"),
                "x.yaml:4:",
                "deadline: \"python\" is not a duration",
            ),
        ] {
            let err = Recipe::from_yaml("x.yaml", &text).unwrap_err();
            assert_eq!(err.code, ErrorCode::RecipeInvalid);
            assert!(err.message.starts_with(place) && err.message.contains(word), "{err}");
        }
    }
}
