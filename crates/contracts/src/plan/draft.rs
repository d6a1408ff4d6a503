//! The draft of a run that an agent plans: one task, which asks for the plan.

use std::collections::BTreeMap;

use crate::agent_plan::{AgentSpec, BUILDING, MAX_GOAL_BYTES, PLANNING, PROGRAM, PROJECT};
use crate::duration::Duration;
use crate::error::Refusal;
use crate::recipe::Recipe;
use crate::sandbox::{AccessMode, InputFile, Limits, Mount, SandboxRequest, SandboxSpec};
use crate::template::Scope;
use crate::timeout::{self, Wall};
use crate::work::{AgentRole, OpencodeWork, PatchTestWork, PlanTask, Work};

use super::fault::{CompileError, Fault};
use super::task_config::{Config, text};

/// The daemon's port on the loopback of its sandbox, which it has for itself.
pub const PORT: u16 = 4096;
/// Wall time of planning, and of building, when nobody says.
const TIMEOUT: Duration = Duration::from_ms(1_800_000);
/// A model that thinks is silent for minutes at most.
const PATIENCE: Duration = Duration::from_ms(300_000);
/// The daemon peaks at 570 MiB before its first prompt; the rest is for the commands that it runs.
const MEM_MB: u64 = 2_048;
/// Where the program of a host is found, and those of an image.
const PATH: &str = "/opt/agents/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl AgentSpec {
    /// What the types cannot say; the error begins with the field, `.` in front.
    pub(crate) fn check(&self, recipe: &Recipe) -> Result<(), String> {
        if recipe.plan.gate.is_none() {
            return Err(
                ": nothing is built before a person agrees to the agent's plan; add `plan.gate`"
                    .into(),
            );
        }
        if self.goal.trim().is_empty() || self.goal.len() > MAX_GOAL_BYTES {
            return Err(format!(".goal: must be 1 to {MAX_GOAL_BYTES} bytes"));
        }
        self.models.check().map_err(|e| format!(".{e}"))?;
        let (timeout, patience) = self.times()?;
        if patience >= timeout {
            return Err(".patience: must be less than `timeout`, or no stall is ever told".into());
        }
        for (i, task) in recipe.plan.tasks.iter().enumerate() {
            if task.exec.is_none() || [PLANNING, BUILDING].contains(&task.name.as_str()) {
                return Err(format!(
                    ": plan.tasks[{i}]: a test has `exec`, and another name than `{PLANNING}` and `{BUILDING}`"
                ));
            }
            let networks =
                [task.exec.as_ref().map(|e| &e.egress), task.build.as_ref().map(|b| &b.egress)];
            if networks.into_iter().flatten().any(|egress| !egress.is_none()) {
                return Err(format!(
                    ": plan.tasks[{i}]: a test has no network; remove `egress`, and bring what it needs in its image"
                ));
            }
            if task.files.iter().any(|file| file.to.trim_end_matches('/') == PROJECT) {
                return Err(format!(
                    ": plan.tasks[{i}].files: `{PROJECT}` is the patched project; remove the file"
                ));
            }
        }
        Ok(())
    }

    /// Wall time and patience.
    fn times(&self) -> Result<(Duration, Duration), String> {
        let read = |field: &str, said: &Option<String>, otherwise| match said {
            None => Ok(otherwise),
            Some(said) => match timeout::read(said).map_err(|e| format!(".{field}: {e}"))? {
                Wall::Fixed(duration) => Ok(duration),
                Wall::Profile(_) => Err(format!(".{field}: {said:?} is not a duration")),
            },
        };
        Ok((read("timeout", &self.timeout, TIMEOUT)?, read("patience", &self.patience, PATIENCE)?))
    }
}

/// The task that asks for a plan, which may name these tests.
pub(super) fn draft(
    recipe: &Recipe,
    spec: &AgentSpec,
    tests: Vec<PlanTask>,
    scope: &Scope<'_>,
    config: &mut Config<'_>,
) -> Result<PlanTask, CompileError> {
    let mut work = work(spec, tests, scope).map_err(|fault| of_agent(fault, recipe))?;
    let what = format!("recipe {}@{}: plan.agent", recipe.id, recipe.v);
    config.settings.settle(&what, &mut work.request)?;
    Ok(PlanTask::of(PLANNING.to_owned(), Work::Opencode(Box::new(work))))
}

fn of_agent(fault: Fault, recipe: &Recipe) -> CompileError {
    match fault {
        Fault::NeedsFiles => CompileError::NeedsFiles,
        Fault::Invalid(why) => super::invalid(recipe, &format!("plan.agent.{why}")).into(),
        Fault::TooLarge { metric, limit } => {
            let why = format!("plan.agent: {metric} would pass {limit}");
            let details = serde_json::json!({"metric": metric, "limit": limit});
            let code = crate::error::ErrorCode::QueuePolicyViolation;
            Refusal::new(code, why).with(details).into()
        }
    }
}

fn work(spec: &AgentSpec, tests: Vec<PlanTask>, scope: &Scope<'_>) -> Result<OpencodeWork, Fault> {
    let goal = text(&spec.goal, scope, "goal")?;
    if goal.trim().is_empty() || goal.len() > MAX_GOAL_BYTES {
        return Err(format!("goal: must be 1 to {MAX_GOAL_BYTES} bytes").into());
    }
    let absolute = |field: &str, said: &str| -> Result<String, Fault> {
        let path = text(said, scope, field)?;
        let shown: String = path.chars().take(200).collect();
        let why = || Fault::Invalid(format!("{field}: {shown:?} is not an absolute path"));
        if path.starts_with('/') { Ok(path) } else { Err(why()) }
    };
    let project = InputFile {
        path: PROJECT.to_owned(),
        inline: None,
        uri: Some(format!("host://{}", absolute("project", &spec.project)?)),
        tree: None,
        live: false,
        access: AccessMode::WorkspaceWrite,
        optional: false,
    };
    let program = spec.program.as_deref().map(|path| absolute("program", path)).transpose()?;
    let mounts = program.map(|source| {
        vec![Mount { source, target: PROGRAM.to_owned(), access: AccessMode::ReadOnly }]
    });
    let (timeout, patience) = spec.times()?;
    let tests = tests.into_iter().map(|test| patched(test, &project)).collect::<Result<_, _>>()?;
    let serve = ["opencode", "serve", "--hostname", "127.0.0.1", "--port", &PORT.to_string()]
        .map(str::to_owned)
        .to_vec();
    let image = text(spec.image.as_deref().unwrap_or("host"), scope, "image")?;
    let request = SandboxRequest {
        files_in: vec![project],
        env: BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]),
        workdir: Some(PROJECT.to_owned()),
        limits: Limits { mem_mb: spec.limits.mem_mb.or(Some(MEM_MB)), ..spec.limits },
        spec: Some(SandboxSpec {
            mounts,
            isolation: spec.isolation,
            models: Some(spec.models.clone()),
            ..SandboxSpec::default()
        }),
        ..SandboxRequest::plain(&image, serve, timeout.ms())
    };
    let (model, patience_ms) = (spec.model.clone(), patience.ms());
    Ok(OpencodeWork { request, goal, model, patience_ms, role: AgentRole::Plan { tests } })
}

/// A test, which sees the project patched.
fn patched(test: PlanTask, project: &InputFile) -> Result<PlanTask, Fault> {
    let Work::Sandbox(mut request) = test.work else {
        return Err("tests: a test is a command".into());
    };
    if request.repo.is_some() {
        return Err("tests: a test sees the patched project; remove `repo`".into());
    }
    request.files_in.push(project.clone());
    request.workdir.get_or_insert_with(|| PROJECT.to_owned());
    let work = Work::Patched(Box::new(PatchTestWork { request: *request, patch: None }));
    Ok(PlanTask::of(test.name, work))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_plan::AgentPlan;
    use crate::plan::{Plan, compile};
    use crate::profile::Settings;
    use serde_json::{Value, json};

    fn recipe(change: impl FnOnce(&mut Value)) -> Value {
        let mut recipe = json!({"id": "r", "v": "1", "plan": {"gate": "approve-plan",
            "agent": {"goal": "g", "project": "/srv/p", "model": "m", "models": {"providers": ["p"]},
                "program": "/usr/bin/opencode"},
            "tasks": [{"name": "unit", "exec": {"run": "true"}}, {"name": "lint", "exec": {"run": "true"}}]}});
        change(&mut recipe["plan"]);
        recipe
    }

    fn draft(recipe: &Value) -> Result<Plan, String> {
        let parsed = Recipe::from_yaml("r", &recipe.to_string()).map_err(|e| e.message)?;
        compile(&parsed, &json!({}), &Settings::default(), &|_, _| Ok(Vec::new()))
            .map_err(|e| e.refusal().message)
    }

    #[test]
    fn a_draft_asks_for_a_plan_and_becomes_its_build_and_the_tests_that_it_names() {
        let plan = draft(&recipe(|_| {})).unwrap();
        let steps = |plan: &Plan| -> Vec<String> {
            plan.tasks.iter().map(|task| task.step_id().to_string()).collect()
        };
        assert_eq!(steps(&plan), ["CompileST:plan"]);
        assert_eq!(plan.draft_tests().unwrap().len(), 2);
        let answer = json!({"design": "d", "files": [{"path": "a", "change": "edit", "why": "w"}],
            "risks": [], "tests": ["lint"], "patch_plan": ["p"]});
        let agent = AgentPlan::read(&answer, &["unit", "lint"]).unwrap();
        let plan = plan.adopt(agent.clone(), "s".to_owned()).unwrap();
        assert_eq!(steps(&plan), ["ExecuteST:build", "ExecuteST:lint"]);
        assert_eq!((plan.agent(), plan.draft_tests()), (Some(&agent), None));
        let build = plan.tasks[0].work.request().unwrap();
        assert_eq!(build.spec.as_ref().unwrap().mounts.as_ref().unwrap()[0].target, PROGRAM);
        let test = plan.tasks[1].work.request().unwrap();
        assert!(test.models().is_none() && test.files_in[0].path == PROJECT);
        assert_eq!(test.workdir.as_deref(), Some(PROJECT));
        let shown = crate::plan_text::lines(&plan).join("\n");
        assert!(shown.contains("may edit \"a\"") && shown.contains("| d"), "{shown}");
        // What is built follows the goal too, and which tests decide is the agent's choice.
        for line in ["    model m", "    goal\n      | g", "tests that do not run: [\"unit\"]"] {
            assert!(shown.contains(line), "{line}: {shown}");
        }
        assert!(plan.adopt(agent, "s".to_owned()).is_err(), "a plan is adopted once");
    }

    #[test]
    fn what_an_agents_recipe_may_not_say_is_refused_by_its_field() {
        type Spoil = fn(&mut Value);
        let spoiled: [(Spoil, &str); 7] = [
            (|plan| drop(plan.as_object_mut().unwrap().remove("gate")), "plan.gate"),
            (|plan| plan["agent"]["goal"] = json!(" "), "plan.agent.goal"),
            (|plan| plan["agent"]["project"] = json!("p"), "plan.agent.project"),
            (|plan| plan["agent"]["patience"] = json!("1h"), "plan.agent.patience"),
            (|plan| plan["tasks"][0]["name"] = json!("build"), "plan.tasks[0]"),
            (|plan| plan["tasks"][1]["exec"]["egress"] = json!(["a.example"]), "plan.tasks[1]"),
            (|plan| plan["tasks"][0] = json!({"name": "v", "value": "v"}), "plan.tasks[0]"),
        ];
        for (spoil, place) in spoiled {
            let why = draft(&recipe(spoil)).unwrap_err();
            assert!(why.contains(place), "{place}: {why}");
        }
    }
}
