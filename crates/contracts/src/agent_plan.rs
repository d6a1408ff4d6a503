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

use crate::id::{ModelName, RunId};
use crate::model::ModelsSpec;
use crate::patch::{PathRefusal, why_refused};
use crate::plan_text::agent::bytes_of;
use crate::sandbox::{IsolationSpec, Limits};
use crate::schema::Validator;
use crate::tree_change::{Image, TreeEntry};

/// Where the project is in the sandboxes of such a run.
pub const PROJECT: &str = "/work";
/// Where the program of a host is mounted in the agent's sandbox.
pub const PROGRAM: &str = "/opt/agents/bin/opencode";
/// The name of the task that asks for a plan.
pub const PLANNING: &str = "plan";
/// The name of the task that builds.
pub const BUILDING: &str = "build";
/// The artifact of [`PLANNING`]: an [`AgentPlan`].
pub const PLAN_NAME: &str = "agent-plan.json";
/// The artifact of [`BUILDING`]: a [`TreeChange`](crate::tree_change::TreeChange).
pub const PATCH_NAME: &str = "patch.json";
/// Bytes of a goal: a page of text, which each prompt repeats.
pub const MAX_GOAL_BYTES: usize = 64 * 1024;
/// Entries of one list of a plan: what a person reads before approving it.
const MAX_ITEMS: usize = 200;
/// Characters of one text of a plan.
const MAX_TEXT: usize = 8_000;
/// Bytes of a plan as a person is shown it. A page shows 256 KiB of a run's plan; an agent that writes more would push the
/// files, the tests and the sandbox out of sight.
const MAX_SHOWN: usize = 64 * 1024;

/// OpenCode plans, a person approves, OpenCode builds; `tasks` are the tests of what it built.
#[serde_with::skip_serializing_none]
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
    pub program: Option<String>,
    /// Image of the agent's sandbox; default `host`.
    pub image: Option<String>,
    /// Limits of the agent's sandbox; default 2,048 MiB of memory.
    #[serde(default)]
    pub limits: Limits,
    /// Weakest boundary accepted.
    pub isolation: Option<IsolationSpec>,
    /// Wall time of planning, and of building: a duration; default 30m.
    pub timeout: Option<String>,
    /// How long a turn may be silent: a duration; default 5m.
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
    /// What becomes of it, and nothing else; `edit` of a directory allows every change below it.
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

/// The conversation of an attempt to plan, which its build goes on with: the daemon derives the session's id from it.
#[must_use]
pub fn session_of(run: &RunId, attempt: u32) -> String {
    format!("{run}/{attempt}")
}

/// Why a plan may not name a path, if it may not.
fn why_unplannable(path: &str) -> Option<PathRefusal> {
    why_refused(path.strip_suffix('/').unwrap_or(path).as_bytes())
}

impl PlannedFile {
    /// Whether a change of this kind at or below its path is the one that it names.
    fn allows(&self, entry: &TreeEntry) -> bool {
        let (is_tree, change) = (self.path.ends_with('/'), self.change);
        match (&entry.pre, &entry.post) {
            (None, None) => false,
            _ if is_tree && change == PlannedChange::Edit => true,
            (None, Some(_)) => change == PlannedChange::Create,
            (Some(_), None) => change == PlannedChange::Remove,
            (Some(pre), Some(post)) => {
                change == PlannedChange::Edit && pre.is_dir() == post.is_dir()
            }
        }
    }

    /// Whether an entry of a patch is a change that this file stands for.
    fn covers(&self, entry: &TreeEntry) -> bool {
        let (named, path) = (self.path.as_str(), entry.path.as_str());
        if named.trim_end_matches('/') == path || named.ends_with('/') && path.starts_with(named) {
            return self.allows(entry);
        }
        // The way to it may be made, and taken away with it; one that stays keeps its mode.
        let is_way = named.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        let (pre, post) = (entry.pre.as_ref(), entry.post.as_ref());
        is_way && (pre.is_none() || post.is_none()) && pre.or(post).is_some_and(Image::is_dir)
    }
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
        let bad = plan.files.iter().enumerate().filter_map(|(n, file)| {
            let why = why_unplannable(&file.path)?.as_str();
            let path = &file.path;
            Some(format!("/files/{n}/path: {path:?} must be a path inside the project, relative, of plain names, outside .git and its hooks ({why})"))
        });
        let mut bad: Vec<String> = bad.take(20).collect();
        let shown = bytes_of(&plan);
        if shown > MAX_SHOWN {
            bad.push(format!(
                ": the plan has {shown} bytes as a person reads it; the limit is {MAX_SHOWN}"
            ));
        }
        if bad.is_empty() { Ok(plan) } else { Err(bad) }
    }

    /// Whether an entry of a patch is in the plan: a path that it names, changed as it says, or a directory on the way to
    /// one.
    #[must_use]
    pub fn covers(&self, entry: &TreeEntry) -> bool {
        self.files.iter().any(|file| file.covers(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree_change::{Node, Tree, TreeChange};

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

    fn node(is_dir: bool, mode: u32) -> Node {
        match is_dir {
            true => Node::Dir { mode },
            false => Node::File { mode, bytes: vec![1] },
        }
    }

    /// The entry of one path: what was there and what is, each a directory or a file with its mode.
    fn entry(path: &str, pre: Option<(bool, u32)>, post: Option<(bool, u32)>) -> TreeEntry {
        let tree = |side: Option<(bool, u32)>| -> Tree {
            side.map(|(is_dir, mode)| (path.to_owned(), node(is_dir, mode))).into_iter().collect()
        };
        TreeChange::between(&tree(pre), &tree(post)).unwrap().entries.remove(0)
    }

    #[test]
    fn a_plan_covers_its_files_the_way_to_them_and_nothing_else() {
        const FILE: Option<(bool, u32)> = Some((false, 0o644));
        const PROGRAM: Option<(bool, u32)> = Some((false, 0o755));
        const DIR: Option<(bool, u32)> = Some((true, 0o755));
        let mut plan = AgentPlan::read(&good(), &["unit"]).unwrap();
        let covers = |plan: &AgentPlan, path: &str, pre, post| plan.covers(&entry(path, pre, post));
        assert!(covers(&plan, "src/a.py", FILE, PROGRAM), "an edit, of its mode too");
        assert!(covers(&plan, "src", None, DIR) && covers(&plan, "src", DIR, None));
        for (path, pre, post) in [
            ("src", None, FILE),
            ("src", FILE, DIR),
            ("src", DIR, Some((true, 0o777))),
            ("src/b.py", FILE, PROGRAM),
            ("src/a.pyc", None, FILE),
            ("sr", None, DIR),
        ] {
            assert!(!covers(&plan, path, pre, post), "{path} {pre:?} {post:?}");
        }
        plan.files[0].path = "src/".to_owned();
        assert!(covers(&plan, "src/b.py", None, FILE) && !covers(&plan, "srcs", None, FILE));
        assert!(covers(&plan, "src/b.py", FILE, None), "an edit of a directory is of all below it");
    }

    #[test]
    fn a_plan_covers_the_change_that_it_names_and_no_other() {
        use PlannedChange::{Create, Edit, Remove};
        const FILE: Option<(bool, u32)> = Some((false, 0o644));
        const OTHER: Option<(bool, u32)> = Some((false, 0o600));
        const DIR: Option<(bool, u32)> = Some((true, 0o755));
        let mut plan = AgentPlan::read(&good(), &["unit"]).unwrap();
        let done = [(Create, None, FILE), (Edit, FILE, OTHER), (Remove, FILE, None)];
        for planned in [Create, Edit, Remove] {
            plan.files[0].change = planned;
            for (change, pre, post) in done {
                let is_covered = plan.covers(&entry("src/a.py", pre, post));
                assert_eq!(is_covered, change == planned, "{planned:?} {change:?}");
            }
            assert!(!plan.covers(&entry("src/a.py", FILE, DIR)), "{planned:?}: another kind");
            plan.files[0].path = "src/".to_owned();
            let is_covered = plan.covers(&entry("src/x", FILE, None));
            assert_eq!(is_covered, planned != Create, "{planned:?} in a directory");
            plan.files[0].path = "src/a.py".to_owned();
        }
    }

    #[test]
    fn a_plan_names_nothing_of_gits_in_any_spelling() {
        for path in [
            ".GIT/config",
            "a/.git./x",
            "git~1/hooks/y",
            ".g\u{200c}it/x",
            "a\\..\\b",
            ".gitmodules",
            "C:/x",
            "HEAD",
            ".husky/pre-commit",
            "/x",
            "a//b",
            "a/./b",
            "",
            "/",
            "a\0b",
        ] {
            let mut plan = good();
            plan["files"][0]["path"] = json!(path);
            let why = AgentPlan::read(&plan, &["unit"]).unwrap_err().join("\n");
            assert!(why.contains("/files/0/path"), "{path:?}: {why}");
        }
        for path in [".gitignore", "src/", ".github/workflows/x.yml", "a b/\u{e4}.py"] {
            let mut plan = good();
            plan["files"][0]["path"] = json!(path);
            assert!(AgentPlan::read(&plan, &["unit"]).is_ok(), "{path}");
        }
    }

    #[test]
    fn a_plan_that_no_page_would_show_whole_is_refused() {
        for text in ["x".repeat(7_000), "\n".repeat(7_000), "\u{202e}".repeat(1_500)] {
            let mut plan = good();
            plan["risks"] = json!(vec![text; 20]);
            let why = AgentPlan::read(&plan, &["unit"]).unwrap_err().join("\n");
            assert!(why.contains("as a person reads it"), "{why}");
        }
    }
}
