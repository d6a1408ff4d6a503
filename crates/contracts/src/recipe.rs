//! Recipes: YAML that reads like what it does. Parsing is strict; an error names line, column and field.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent_plan::AgentSpec;
use crate::cache::{BuildCache, CacheSpec};
use crate::canonical::{self, CanonicalError};
use crate::error::{ErrorCode, Refusal};
use crate::gate_spec::GateSpec;
use crate::id::{Digest, RecipeId};
use crate::model::ModelsSpec;
use crate::named::named;
use crate::patch::RepoSpec;
use crate::profile::Language;
use crate::sandbox::{AccessMode, Egress, IsolationSpec, Limits};
use crate::schema::Validator;
use crate::secret::{self, SecretUse};
use crate::service::Service;
use crate::shell;
use crate::user;
use crate::yaml::{self, YamlError};

/// Bytes of a recipe's text; a recipe is written by hand.
pub const MAX_RECIPE_BYTES: usize = 256 * 1024;
/// Tasks that a recipe may list, before fan-out.
pub const MAX_TASKS: usize = 256;

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

/// A recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Its id.
    pub id: RecipeId,
    /// Its version.
    pub v: String,
    /// What it is for, shown beside its form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// JSON Schema of the inputs. Absent: no inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Value>,
    /// Bounds that no run of it may pass.
    #[serde(default)]
    pub caps: Caps,
    /// Where its runs queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueSpec>,
    /// What it does.
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
    /// Priority 1.
    #[default]
    Interactive,
    /// Priority 1000.
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanSpec {
    /// People must agree first: the gate's key, or its key and its law.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateSpec>,
    /// OpenCode plans and builds; `tasks` are its tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentSpec>,
    /// The work.
    pub tasks: Vec<TaskSpec>,
}

/// A command: a text for `/bin/sh -c`, or an argv. What may stand in the text is [`shell`]'s rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cmd {
    /// `/bin/sh -c TEXT`
    Shell(String),
    /// Program and arguments.
    Argv(Vec<String>),
}

impl JsonSchema for Cmd {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Cmd".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"oneOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "minItems": 1, "items": {"type": "string"}}
        ]})
    }
}

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// Path on the host (absolute, or relative to where the CLI was started), or `artifact://...`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The file's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Absolute path inside.
    pub to: String,
    /// What the task may do with it.
    #[serde(default)]
    pub access: AccessMode,
}

/// A task's first phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildSpec {
    /// The command.
    pub run: Cmd,
    /// Its network.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<BuildCache>,
    /// Wall time: a profile (`python`) or a duration (`90s`, `5m`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Whom this phase runs as; default: the task's `user`.
    #[serde(default, deserialize_with = "user::template", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "user::template_schema")]
    pub user: Option<String>,
}

/// A task's command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// The command.
    pub run: Cmd,
    /// Its environment, and not the build's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Its network.
    #[serde(default)]
    pub egress: Egress,
    /// Whether a person is asked when it is refused a name; default no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ask: bool,
    /// Secrets that the egress proxy adds to its requests; each names one host of `egress`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretUse>,
    /// Wall time: a profile (`python`) or a duration (`90s`, `5m`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Working directory, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// A file of the sandbox that is its standard input, absolute; default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
}

/// A task. Exactly one of `exec` (a sandbox) and `value` (the engine stores a text, no sandbox).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// Its name; with `each` it must differ for each item.
    pub name: String,
    /// Fan-out: a list, or an expression that yields one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub each: Option<Value>,
    /// Root file system: `host` or `dir:/path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Whom its commands run as: a name of the root file system or a number, and after a colon a group. Default: the image's user.
    #[serde(default, deserialize_with = "user::template", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "user::template_schema")]
    pub user: Option<String>,
    /// Files that it finds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileSpec>,
    /// A repository whose commit it finds at `/work`; what it changes there is kept as a patch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<RepoSpec>,
    /// First phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildSpec>,
    /// The command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecSpec>,
    /// A text that becomes the task's artifact: engine only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The language whose profile gives the wall times and limits that the task leaves out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Language>,
    /// Limits of CPU, memory, processes, disk, files and output.
    #[serde(default)]
    pub limits: Limits,
    /// Services inside the boundary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Service>,
    /// Dependency cache. A lock file at `build.cache` is one more of its paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheSpec>,
    /// Weakest boundary accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationSpec>,
    /// Models that it may call while it executes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<ModelsSpec>,
    /// Globs of the files to keep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<String>,
}

impl Recipe {
    /// Parses YAML (and so JSON). `origin` names the text in errors: a file name.
    pub fn from_yaml(origin: &str, text: &str) -> Result<Self, Refusal> {
        if text.len() > MAX_RECIPE_BYTES {
            return Err(invalid(origin, &format!("larger than {MAX_RECIPE_BYTES} bytes")));
        }
        let recipe: Self = yaml::parse(text).map_err(|e| unparsed(origin, &e))?;
        recipe.check().map_err(|e| invalid(origin, &e))?;
        Ok(recipe)
    }

    /// `{id, v}` of this recipe.
    #[must_use]
    pub fn reference(&self) -> RecipeRef {
        RecipeRef { id: self.id.clone(), v: self.v.clone() }
    }

    /// The recipe's hash: over its canonical form, so that comments and layout do not matter.
    pub fn hash(&self) -> Result<Digest, CanonicalError> {
        canonical::digest(self)
    }

    /// The form's schema; a recipe without one takes no inputs.
    #[must_use]
    pub fn form_schema(&self) -> Value {
        self.form.clone().unwrap_or_else(
            || serde_json::json!({"type": "object", "properties": {}, "additionalProperties": false}),
        )
    }

    /// What the types cannot say.
    pub fn check(&self) -> Result<(), String> {
        if self.v.is_empty() || self.v.len() > 32 {
            return Err("v: must be 1 to 32 characters".into());
        }
        if self.plan.tasks.is_empty() || self.plan.tasks.len() > MAX_TASKS {
            return Err(format!("plan.tasks: must list 1 to {MAX_TASKS} tasks"));
        }
        if let Some(agent) = &self.plan.agent {
            agent.check(self).map_err(|e| format!("plan.agent{e}"))?;
        }
        if let Some(gate) = &self.plan.gate {
            gate.check(self.form.as_ref()).map_err(|e| format!("plan.gate.{e}"))?;
        }
        let caps = self.caps;
        if !(1..=1000).contains(&caps.concurrency)
            || !(1..=10_000).contains(&caps.steps)
            || !(1..=100_000).contains(&caps.sandbox_minutes)
        {
            return Err(
                "caps: concurrency must be 1 to 1000, steps 1 to 10000, sandbox_minutes 1 to 100000".into()
            );
        }
        if let Some(form) = &self.form {
            if form.get("type").and_then(Value::as_str) != Some("object") {
                return Err("form: must be a JSON Schema with `type: object`".into());
            }
            Validator::compile(form).map_err(|e| format!("form: {e}"))?;
        }
        for (i, task) in self.plan.tasks.iter().enumerate() {
            task.check().map_err(|e| format!("plan.tasks[{i}].{e}"))?;
        }
        shell::check(self, shell::Held::All)
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

    /// A repository is checked out by the build phase, which a cached base replaces.
    fn check_repo(&self) -> Result<(), String> {
        let Some(repo) = &self.repo else { return Ok(()) };
        repo.check()?;
        if self.exec.is_none() {
            return Err("repo: a task with `value` has no files; remove `repo`".to_owned());
        }
        if self.cache.is_some() || self.build.as_ref().is_some_and(|build| build.cache.is_some()) {
            return Err("repo: cannot be combined with `cache`; remove one of them".to_owned());
        }
        match repo.url.is_some() && self.build.is_none() {
            true => Err("repo.url: needs `build.egress` with its host; add `build: {run: \"true\", egress: [HOST]}`".to_owned()),
            false => Ok(()),
        }
    }

    /// The cache that is spelled out, and the field that says it.
    #[must_use]
    pub fn said_cache(&self) -> Option<(&'static str, &CacheSpec)> {
        let own = self.cache.as_ref().map(|spec| ("cache", spec));
        own.or_else(|| self.build_cache().map(|spec| ("build.cache", spec)))
    }

    fn check(&self) -> Result<(), String> {
        if self.name.is_empty() || self.name.len() > 128 {
            return Err("name: must be 1 to 128 characters".into());
        }
        match (&self.exec, &self.value) {
            (Some(_), None) => {}
            (None, Some(_)) => {
                if self.profile.is_some() {
                    return Err(
                        "profile: a task with `value` has no wall time or limits; remove `profile`"
                            .into(),
                    );
                }
                if self.build.is_some() || !self.files.is_empty() || !self.services.is_empty() {
                    return Err("value: a task with `value` has no build, files or services; remove them, or use `exec`".into());
                }
            }
            _ => return Err("exec: give exactly one of `exec` and `value`".into()),
        }
        self.check_repo()?;
        let build_user = self.build.as_ref().and_then(|build| build.user.as_deref());
        user::check(self.user.as_deref(), build_user, self.exec.is_some())?;
        if let Some(models) = &self.models {
            if self.exec.is_none() {
                return Err("models: a task with `value` calls no model; remove `models`".into());
            }
            models.check()?;
        }
        for (i, file) in self.files.iter().enumerate() {
            if file.from.is_some() == file.text.is_some() {
                return Err(format!("files[{i}]: give exactly one of `from` and `text`"));
            }
        }
        if self.cache.is_some() && self.build.is_none() {
            return Err(
                "cache: needs a build phase, which fills it; add `build`, or remove `cache`".into(),
            );
        }
        if self.cache.is_some() && self.build_cache().is_some() {
            return Err("cache: given here and at `build.cache`; give it once".into());
        }
        if let Some(exec) = &self.exec {
            secret::check(&exec.secrets, &exec.egress).map_err(|e| format!("exec.{e}"))?;
        }
        if let Some(build) = &self.build {
            secret::check(&build.secrets, &build.egress).map_err(|e| format!("build.{e}"))?;
        }
        if self.image.as_deref().is_none_or(|image| image == "host") {
            let exec = self.exec.as_ref().map(|exec| ("exec", &exec.egress));
            let build = self.build.as_ref().map(|build| ("build", &build.egress));
            for (phase, egress) in exec.into_iter().chain(build) {
                egress.of_host().map_err(|e| format!("{phase}.egress: {e}"))?;
            }
        }
        let timeouts = [
            ("exec.timeout", self.exec.as_ref().and_then(|e| e.timeout.as_ref())),
            ("build.timeout", self.build.as_ref().and_then(|b| b.timeout.as_ref())),
        ];
        for (field, timeout) in timeouts {
            if let Some(text) = timeout
                && !text.contains("${")
            {
                crate::timeout::read(text).map_err(|e| format!("{field}: {e}"))?;
            }
        }
        Ok(())
    }
}

/// `file:line:column: what`, as editors read it.
fn unparsed(origin: &str, error: &YamlError) -> Refusal {
    match error.at {
        Some((line, column)) => invalid(&format!("{origin}:{line}:{column}"), &error.what),
        None => invalid(origin, &error.what),
    }
}

fn invalid(origin: &str, why: &str) -> Refusal {
    Refusal::new(ErrorCode::RecipeInvalid, format!("{origin}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
