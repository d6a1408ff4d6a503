//! A run that OpenCode plans and builds: what a recipe says of it, the plan that the agent gives, the work of each
//! stage.
//!
//! ```text
//! recipe (AgentSpec, tests) --compile--> draft: one task that asks for a plan
//! draft + AgentPlan --adopt--> the plan that a person approves: build, and the tests that it names
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{ErrorCode, Refusal};
use crate::id::ModelName;
use crate::model::ModelsSpec;
use crate::plan::{Plan, PlanTask};
use crate::sandbox::{IsolationSpec, Limits, SandboxRequest};
use crate::schema::Validator;
use crate::work::Work;

/// Where the project is in the sandboxes of such a run.
pub const PROJECT: &str = "/work";
/// Where the program of a host is mounted in the agent's sandbox.
pub const PROGRAM: &str = "/opt/agents/bin/opencode";
/// The name of the task that asks for a plan.
pub const PLANNING: &str = "plan";
/// The name of the task that builds.
pub const BUILDING: &str = "build";
/// Bytes of a goal: a page of text, which each prompt repeats.
pub const MAX_GOAL_BYTES: usize = 64 * 1024;
/// Entries of one list of a plan: what a person reads before approving it.
const MAX_ITEMS: usize = 200;
/// Characters of one text of a plan.
const MAX_TEXT: usize = 8_000;

/// OpenCode plans, a person approves, OpenCode builds; `tasks` are the tests of what it built.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// What is to be achieved.
    pub goal: String,
    /// Directory of the worker's host, seen copy-on-write as `/work`.
    pub project: String,
    /// The model that plans and builds.
    pub model: ModelName,
    /// Providers and budgets.
    pub models: ModelsSpec,
    /// The agent's program on the worker's host; absent: the image has it in its `PATH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Image of the agent's sandbox; default `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Limits of the agent's sandbox; default 2,048 MiB of memory.
    #[serde(default)]
    pub limits: Limits,
    /// Weakest boundary accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationSpec>,
    /// Wall time of planning, and of building: a duration; default 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// How long a turn may be silent: a duration; default 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<String>,
}

/// What becomes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PlannedChange {
    /// It is new.
    Create,
    /// It is there and will differ.
    Edit,
    /// It will be gone.
    Remove,
}

/// A file that the plan changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlannedFile {
    /// Path relative to the project; with `/` at its end a directory and all below it.
    pub path: String,
    /// What becomes of it.
    pub change: PlannedChange,
    /// Why it has to.
    pub why: String,
}

/// The agent's plan, as a person approves it. A build that changes another file fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentPlan {
    /// How the goal is reached.
    pub design: String,
    /// The files that will change, and no others.
    pub files: Vec<PlannedFile>,
    /// What may go wrong.
    pub risks: Vec<String>,
    /// Tests that decide, by the names of the recipe's tasks.
    pub tests: Vec<String>,
    /// The changes, in order.
    pub patch_plan: Vec<String>,
}

/// Work of OpenCode in a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpencodeWork {
    /// Its sandbox; the command is the daemon.
    pub request: SandboxRequest,
    /// What is to be achieved.
    pub goal: String,
    /// The model.
    pub model: ModelName,
    /// How long a turn may be silent, ms.
    pub patience_ms: u64,
    /// Planning or building.
    pub role: AgentRole,
}

/// What OpenCode does in a sandbox. The worker chooses the daemon's agent by it, never a caller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum AgentRole {
    /// Gives a plan.
    Plan {
        /// The tests that it may name.
        tests: Vec<PlanTask>,
    },
    /// Carries an approved plan out.
    Build {
        /// The plan.
        plan: Box<AgentPlan>,
        /// The conversation that the plan came from.
        session: String,
        /// The tests that the plan could name, as its prompts said.
        tests: Vec<String>,
    },
}

/// A test of a patched project, in a sandbox without the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchedWork {
    /// Its sandbox, which sees the project as it was.
    pub request: SandboxRequest,
    /// The patch that is applied before the command: an artifact. Absent in a plan: there is none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
}

/// A relative path of plain names.
fn is_plain(path: &str) -> bool {
    let path = path.strip_suffix('/').unwrap_or(path);
    !path.contains('\0') && path.split('/').all(|part| !matches!(part, "" | "." | ".." | ".git"))
}

impl AgentPlan {
    /// JSON Schema of a plan that may name these tests.
    #[must_use]
    pub fn schema(tests: &[&str]) -> Value {
        let text = json!({"type": "string", "minLength": 1, "maxLength": MAX_TEXT});
        let list = |items: &Value, least: usize| json!({"type": "array", "items": items, "minItems": least, "maxItems": MAX_ITEMS});
        let file = json!({"type": "object", "additionalProperties": false, "required": ["path", "change", "why"],
            "properties": {"path": {"type": "string", "minLength": 1, "maxLength": 1024},
                "change": {"enum": ["create", "edit", "remove"]}, "why": text}});
        json!({"type": "object", "additionalProperties": false,
            "required": ["design", "files", "risks", "tests", "patch_plan"],
            "properties": {"design": text, "files": list(&file, 1), "risks": list(&text, 0),
                "tests": list(&json!({"enum": tests}), 1), "patch_plan": list(&text, 1)}})
    }

    /// The plan that an answer holds.
    ///
    /// # Errors
    /// What does not fit, one line each: they are told to the agent.
    pub fn read(answer: &Value, tests: &[&str]) -> Result<Self, Vec<String>> {
        let line = |violation: crate::error::Violation| {
            format!("{}: {}", violation.instance_path, violation.message)
        };
        let validator =
            Validator::compile(&Self::schema(tests)).map_err(|e| vec![e.to_string()])?;
        let violations: Vec<String> =
            validator.violations(answer).into_iter().map(line).take(20).collect();
        if !violations.is_empty() {
            return Err(violations);
        }
        let plan: Self = serde_json::from_value(answer.clone()).map_err(|e| vec![e.to_string()])?;
        let bad = plan.files.iter().enumerate().filter(|(_, file)| !is_plain(&file.path));
        let bad: Vec<String> = bad
            .map(|(n, file)| format!("/files/{n}/path: {:?} must be a path inside the project, relative, of plain names, outside .git", file.path))
            .collect();
        if bad.is_empty() { Ok(plan) } else { Err(bad) }
    }

    /// Whether a change of this path is in the plan: of a file, or of a directory that leads to one.
    #[must_use]
    pub fn covers(&self, path: &str, is_dir: bool) -> bool {
        self.files.iter().any(|file| {
            let named = file.path.as_str();
            named.trim_end_matches('/') == path
                || named.ends_with('/') && path.starts_with(named)
                || is_dir && named.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
        })
    }
}

impl Plan {
    /// The tests that a draft's plan may name; `None`: it is no draft.
    #[must_use]
    pub fn draft_tests(&self) -> Option<&[PlanTask]> {
        match self.tasks.as_slice() {
            [PlanTask { work: Work::Opencode(work), .. }] => match &work.role {
                AgentRole::Plan { tests } => Some(tests),
                AgentRole::Build { .. } => None,
            },
            _ => None,
        }
    }

    /// The plan that a person approves: the draft's sandbox builds what the agent planned, then the tests run that the
    /// plan names, in the recipe's order.
    ///
    /// # Errors
    /// Where it is no draft.
    pub fn adopt(mut self, agent: AgentPlan, session: String) -> Result<Self, Refusal> {
        let none = || Refusal::new(ErrorCode::Internal, "the plan is not a draft");
        let tests = self.draft_tests().ok_or_else(none)?.to_vec();
        let Some(PlanTask { work: Work::Opencode(mut work), .. }) = self.tasks.pop() else {
            return Err(none());
        };
        let names = tests.iter().map(|test| test.name.clone()).collect();
        let plan = Box::new(agent.clone());
        work.role = AgentRole::Build { plan, session, tests: names };
        self.tasks = vec![PlanTask { name: BUILDING.to_owned(), work: Work::Opencode(work) }];
        self.tasks.extend(tests.into_iter().filter(|test| agent.tests.contains(&test.name)));
        Ok(self)
    }

    /// What the agent planned, where it builds.
    #[must_use]
    pub fn agent(&self) -> Option<&AgentPlan> {
        match &self.tasks.first()?.work {
            Work::Opencode(work) => match &work.role {
                AgentRole::Build { plan, .. } => Some(plan),
                AgentRole::Plan { .. } => None,
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Value {
        json!({"design": "d", "files": [{"path": "src/a.py", "change": "edit", "why": "w"}],
            "risks": [], "tests": ["unit"], "patch_plan": ["mend a"]})
    }

    #[test]
    fn a_plan_that_does_not_fit_says_where() {
        assert!(AgentPlan::read(&good(), &["unit", "lint"]).is_ok());
        type Spoil = fn(&mut Value);
        let spoiled: [(Spoil, &str); 7] = [
            (|plan| drop(plan.as_object_mut().unwrap().remove("risks")), "risks"),
            (|plan| plan["more"] = json!(1), "more"),
            (|plan| plan["tests"] = json!(["other"]), "/tests/0"),
            (|plan| plan["tests"] = json!([]), "/tests"),
            (|plan| plan["files"][0]["path"] = json!("../x"), "/files/0/path"),
            (|plan| plan["files"][0]["path"] = json!(".git/hooks/x"), "/files/0/path"),
            (|plan| plan["files"][0]["change"] = json!("move"), "/files/0/change"),
        ];
        for (spoil, place) in spoiled {
            let mut plan = good();
            spoil(&mut plan);
            let why = AgentPlan::read(&plan, &["unit"]).unwrap_err().join("\n");
            assert!(why.contains(place), "{place}: {why}");
        }
        assert!(AgentPlan::read(&json!("no plan"), &["unit"]).is_err());
    }

    #[test]
    fn a_plan_covers_its_files_the_way_to_them_and_nothing_else() {
        let mut plan = AgentPlan::read(&good(), &["unit"]).unwrap();
        assert!(plan.covers("src/a.py", false) && plan.covers("src", true));
        assert!(!plan.covers("src", false) && !plan.covers("src/b.py", false));
        assert!(!plan.covers("src/a.pyc", false) && !plan.covers("sr", true));
        plan.files[0].path = "src/".to_owned();
        assert!(plan.covers("src/b.py", false) && !plan.covers("srcs", false));
    }
}
