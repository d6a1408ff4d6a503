//! A plan: what a recipe becomes for one intent. Compiling is pure; a plan leaves its executor no
//! choices, and its digest is what a person approves.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::{self, CanonicalError};
use crate::config::ConfigRef;
use crate::error::{ErrorCode, Refusal};
use crate::gate_spec::GateSpec;
use crate::id::{Digest, IntentId, RunId, StepId, TaskKey};
pub use crate::pipeline::{LateFanout, PlanGraph, PlanGroup};
use crate::profile::Settings;
use crate::recipe::{Caps, Recipe, RecipeRef, TaskSpec};
use crate::sandbox::DEFAULT_TIMEOUT_MS;
use crate::template::{Globber, RenderBudget, Scope, render_value};
use crate::work::AgentRole;
pub use crate::work::{PlanTask, TaskFiles, Work};
use crate::{artifact_glob, shell};

mod agent;
mod draft;
mod fault;
mod groups;
pub mod late;
mod render;
mod task_config;
pub use draft::PORT as OPENCODE_PORT;
pub use fault::CompileError;
use fault::{Fault, broken, invalid};
use render::rendered;
use task_config::Config;

/// The plan of one run: the `plan_card` artifact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plan {
    /// Id and version of the recipe that the plan was compiled from.
    pub recipe_ref: RecipeRef,
    /// Digest of the recipe's canonical form.
    pub recipe_hash: Digest,
    /// The gate before execution, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateSpec>,
    /// The versions of the configuration that its wall times and limits were taken from or held against.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<ConfigRef>,
    /// Upper bounds on concurrency, steps and sandbox minutes.
    pub caps: Caps,
    /// The work, in order.
    pub tasks: Vec<PlanTask>,
    /// Which tasks wait for which. Absent: none waits for another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<PlanGraph>,
}

/// What a task key is the hash of.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TaskIdentity<'a> {
    intent_id: &'a IntentId,
    run_id: &'a RunId,
    step_id: &'a StepId,
    attempt: u32,
    request: &'a Work,
}

impl Plan {
    /// The plan's digest.
    pub fn digest(&self) -> Result<Digest, CanonicalError> {
        canonical::digest(self)
    }

    /// Its tasks, and behind them each that a late fan-out makes its own of.
    pub fn all_tasks(&self) -> impl Iterator<Item = &PlanTask> {
        let groups = self.graph.iter().flat_map(|graph| &graph.groups);
        let fanouts = groups.filter_map(|group| group.fanout.as_deref());
        self.tasks.iter().chain(fanouts.map(|fanout| &fanout.task))
    }
}

impl Plan {
    /// The same, to be changed.
    pub fn all_tasks_mut(&mut self) -> impl Iterator<Item = &mut PlanTask> {
        let groups = self.graph.iter_mut().flat_map(|graph| &mut graph.groups);
        let fanouts = groups.filter_map(|group| group.fanout.as_deref_mut());
        self.tasks.iter_mut().chain(fanouts.map(|fanout| &mut fanout.task))
    }
}

impl PlanTask {
    /// `ExecuteST:<name>`, of a task that plans `CompileST:<name>`, with what a step id cannot hold replaced.
    #[must_use]
    pub fn step_id(&self) -> StepId {
        let name = step_name(&self.name);
        let is_planning = matches!(&self.work, Work::Opencode(work) if matches!(work.role, AgentRole::Plan { .. }));
        let step = if is_planning { "CompileST" } else { "ExecuteST" };
        StepId::parse(&format!("{step}:{name}")).unwrap_or_else(|_| execute_step())
    }

    /// The key of one attempt.
    pub fn key(
        &self,
        intent: &IntentId,
        run: &RunId,
        attempt: u32,
    ) -> Result<TaskKey, CanonicalError> {
        let identity = TaskIdentity {
            intent_id: intent,
            run_id: run,
            step_id: &self.step_id(),
            attempt,
            request: &self.work,
        };
        let digest = canonical::digest(&identity)?;
        Ok(TaskKey::parse(digest.as_str()).unwrap_or_else(|_| unreachable_key()))
    }

    /// Wall time of the whole task in milliseconds; nothing for an engine-only task.
    #[must_use]
    pub fn budget_ms(&self) -> u64 {
        self.work.request().map_or(0, |request| {
            let build = request.build.as_ref();
            request.timeout_ms + build.map_or(0, |b| b.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS))
        })
    }
}

fn execute_step() -> StepId {
    StepId::parse("ExecuteST").unwrap_or_else(|_| execute_step())
}

// A digest and a task key share one pattern, so this is never taken.
fn unreachable_key() -> TaskKey {
    TaskKey::parse(&"0".repeat(64)).unwrap_or_else(|_| unreachable_key())
}

/// Bytes that every task of a fan-out has besides its rendered texts: its lists of names and services.
fn fixed_bytes(spec: &TaskSpec) -> usize {
    let length = |value: Result<Vec<u8>, serde_json::Error>| value.map_or(0, |bytes| bytes.len());
    let exec = spec.exec.iter().flat_map(|exec| exec.env.keys());
    let build = spec.build.iter().flat_map(|build| build.env.keys());
    let env = exec.chain(build).map(String::len).sum::<usize>();
    let lists = length(serde_json::to_vec(&(
        spec.exec.as_ref().map(|exec| &exec.egress),
        spec.build.as_ref().map(|build| &build.egress),
        spec.exec.as_ref().map(|exec| &exec.secrets),
        spec.build.as_ref().map(|build| &build.secrets),
        &spec.services,
    )));
    env.saturating_add(lists)
}

/// Compiles a recipe for one form with the configuration of this moment. `glob` lists files;
/// everything else is pure. Every byte of the plan is charged to a budget before it is made.
///
/// # Errors
/// [`CompileError::NeedsFiles`] where `glob` answers [`GlobError::Elsewhere`](crate::template::GlobError).
pub fn compile(
    recipe: &Recipe,
    form: &Value,
    settings: &Settings,
    glob: Globber<'_>,
) -> Result<Plan, CompileError> {
    compiled(recipe, form, settings, glob)
}

fn compiled(
    recipe: &Recipe,
    form: &Value,
    settings: &Settings,
    glob: Globber<'_>,
) -> Result<Plan, CompileError> {
    shell::check(recipe, shell::RuleScope::Editable).map_err(|why| invalid(recipe, &why))?;
    let mut config = Config { settings, used: settings.always().collect() };
    let budget = RenderBudget::default();
    let mut tasks: Vec<PlanTask> = Vec::new();
    let mut graph = groups::GraphDraft::of(recipe);
    for (entry, spec) in recipe.plan.tasks.iter().enumerate() {
        let scope = Scope { form, item: None, matrix: None, glob, budget: &budget };
        let template = match spec.is_late_fanout() {
            true => Some(task_of(recipe, spec, &scope, &mut config)?),
            false => None,
        };
        let is_template = template.is_some();
        graph.group(entry, spec, template, &scope).map_err(|e| e.of_task(recipe, spec))?;
        if is_template {
            continue;
        }
        let items = match (&spec.each, &spec.matrix) {
            (Some(each), _) => Some(items_of(each, &scope).map_err(|e| e.of_task(recipe, spec))?),
            (None, Some(matrix)) => Some(groups::product(matrix)),
            (None, None) => None,
        };
        let count = items.as_ref().map_or(1, Vec::len);
        // Before anything is built, so that a fan-out over its caps costs nothing.
        over_caps(recipe, tasks.len() + count)?;
        let fixed = fixed_bytes(spec).saturating_mul(count);
        budget.charge(fixed).map_err(|e| Fault::of(e, "egress").of_task(recipe, spec))?;
        match items {
            None => {
                let task = task_of(recipe, spec, &scope, &mut config)?;
                tasks.push(graph.member(entry, task));
            }
            Some(items) => {
                for (index, item) in items.iter().enumerate() {
                    let matrix = spec.matrix.as_ref().map(|_| item);
                    let item = Some((item, index, count));
                    let scope = Scope { form, item, matrix, glob, budget: &budget };
                    let task = task_of(recipe, spec, &scope, &mut config)?;
                    tasks.push(graph.member(entry, task));
                }
            }
        }
    }
    unique_names(recipe, &tasks)?;
    if let Some(spec) = &recipe.plan.agent {
        let scope = Scope { form, item: None, matrix: None, glob, budget: &budget };
        tasks = vec![draft::draft(recipe, spec, tasks, &scope, &mut config)?];
    }
    let graph = graph.graph();
    let minutes = tasks.iter().map(PlanTask::budget_ms).sum::<u64>().div_ceil(60_000);
    let recipe_hash = recipe.hash().map_err(|e| invalid(recipe, &e.to_string()))?;
    let plan = Plan {
        recipe_ref: recipe.reference(),
        recipe_hash,
        gate: recipe.plan.gate.clone(),
        config: config.used.into_iter().collect(),
        caps: recipe.caps,
        tasks,
        graph,
    };
    // A cap on minutes bounds what may really run; timeouts are ceilings, so their sum may pass it.
    // What is refused is a single task that alone could pass the cap.
    let longest = plan.all_tasks().map(PlanTask::budget_ms).max().unwrap_or(0).div_ceil(60_000);
    let cap = u64::from(recipe.caps.sandbox_minutes);
    if longest > cap {
        return Err(Refusal::new(
            ErrorCode::QueuePolicyViolation,
            format!("a task may run {longest} minutes, caps.sandbox_minutes is {cap}; shorten it, or raise the cap"),
        )
        .with(serde_json::json!({"metric": "sandbox_minutes", "limit": cap, "observed": longest, "sum": minutes}))
        .into());
    }
    Ok(plan)
}

fn over_caps(recipe: &Recipe, tasks: usize) -> Result<(), Refusal> {
    let cap = usize::try_from(recipe.caps.steps).unwrap_or(usize::MAX);
    if tasks > cap {
        return Err(Refusal::new(
            ErrorCode::QueuePolicyViolation,
            format!(
                "the plan has {tasks} tasks, caps.steps is {cap}; start fewer, or raise the cap"
            ),
        )
        .with(serde_json::json!({"metric": "steps", "limit": cap, "observed": tasks})));
    }
    Ok(())
}

fn unique_names(recipe: &Recipe, tasks: &[PlanTask]) -> Result<(), Refusal> {
    let mut seen = std::collections::BTreeMap::new();
    for task in tasks {
        if let Some(other) = seen.insert(task.step_id(), &task.name) {
            return Err(invalid(recipe, &same_name(other, &task.name)));
        }
    }
    Ok(())
}

/// A task's name as the ids of its steps have it. Pure.
#[must_use]
pub fn step_name(name: &str) -> String {
    let fitting = |c: char| if c.is_ascii_alphanumeric() || "_:.-".contains(c) { c } else { '_' };
    name.chars().map(fitting).take(160).collect()
}

/// What is said of two tasks whose names mean one step. Pure.
fn same_name(one: &str, other: &str) -> String {
    match one == other {
        true => format!("two tasks are named {one:?}: use ${{item}} or ${{index}} in the name"),
        false => format!(
            "the tasks {one:?} and {other:?} have one name, since a space and some other characters count as `_`: rename one"
        ),
    }
}

fn items_of(each: &Value, scope: &Scope<'_>) -> Result<Vec<Value>, Fault> {
    let value = match each {
        Value::String(text) => render_value(text, scope).map_err(|e| Fault::of(e, "each"))?,
        other => other.clone(),
    };
    match value {
        Value::Array(items) => Ok(items),
        _ => Err("each: must be a list, or an expression that yields one".into()),
    }
}

fn task_of(
    recipe: &Recipe,
    spec: &TaskSpec,
    scope: &Scope<'_>,
    config: &mut Config<'_>,
) -> Result<PlanTask, CompileError> {
    let mut task = rendered(recipe, spec, scope, config).map_err(|e| e.of_task(recipe, spec))?;
    if let Work::Sandbox(request) = &mut task.work {
        artifact_glob::check_request(request).map_err(|why| broken(recipe, spec, &why))?;
        let what = format!("recipe {}@{}: task {:?}", recipe.id, recipe.v, task.name);
        config.settings.settle(&what, request)?;
    }
    Ok(task)
}

#[cfg(test)]
mod tests;
