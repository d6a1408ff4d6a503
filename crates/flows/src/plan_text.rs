//! A plan and its tasks as they are written.

use cofferdam_contracts::artifact;
use cofferdam_contracts::canonical;
use cofferdam_contracts::id::{Digest, IntentId, RunId, StepId, TaskKey};
use cofferdam_contracts::plan::{Plan, PlanTask};
use cofferdam_ledger::runs::RunContext;
use cofferdam_ledger::steps::CompileRecord;
use cofferdam_ledger::tasks::NewTask;
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The step's name in the ledger and in the engine.
pub(crate) const COMPILE: &str = "CompileST";

/// Which compilation of a run: an effect with a key of its own, over what it reads.
pub(crate) struct Compilation<'a> {
    pub intent: &'a IntentId,
    pub run: &'a RunId,
    pub recipe_hash: &'a Digest,
    pub inputs: &'a Value,
    /// From 1; each further one, and each edit, has the next.
    pub attempt: u32,
}

impl<'a> Compilation<'a> {
    pub(crate) fn of(run: &'a RunContext, inputs: &'a Value, attempt: u32) -> Self {
        let RunContext { intent_id: intent, id: run, recipe_hash, .. } = run;
        Self { intent, run, recipe_hash, inputs, attempt }
    }

    /// Task key of the compilation: a digest of intent, run, step, attempt, recipe and inputs.
    pub(crate) fn key(&self) -> Result<TaskKey> {
        let identity = json!({
            "intentId": self.intent, "runId": self.run, "stepId": COMPILE, "attempt": self.attempt,
            "request": {"recipeHash": self.recipe_hash, "inputs": self.inputs},
        });
        let digest = canonical::digest(&identity)?;
        TaskKey::parse(digest.as_str()).map_err(Error::corrupt("task key"))
    }
}

/// A plan as its card has it.
#[derive(Debug)]
pub(crate) struct PlanText {
    run: RunId,
    key: TaskKey,
    attempt: u32,
    pub text: String,
    pub digest: Digest,
    uri: String,
}

impl PlanText {
    pub(crate) fn of(plan: &Plan, of: &Compilation<'_>) -> Result<Self> {
        let text = String::from_utf8(canonical::canonical(plan)?);
        let text = text.map_err(Error::corrupt("plan card"))?;
        let (key, digest) = (of.key()?, canonical::digest_bytes(text.as_bytes()));
        let uri = artifact::uri(of.run, &step_id(COMPILE)?, &key, "plan.json");
        Ok(Self { run: of.run.clone(), key, attempt: of.attempt, text, digest, uri })
    }

    /// What CompileST commits.
    pub(crate) fn compiled(&self, plan: &Plan) -> CompileRecord<'_> {
        let output =
            json!({"planDigest": self.digest, "tasks": plan.tasks.len(), "gate": plan.gate});
        self.committed(output)
    }

    /// With this summary for readers.
    pub(crate) fn committed(&self, output: Value) -> CompileRecord<'_> {
        let Self { run, key: task_key, attempt, text: plan, digest, uri } = self;
        CompileRecord { run, task_key, plan, digest, uri, attempt: *attempt, output }
    }
}

/// An attempt of a task as it is.
pub(crate) fn new_task(
    task: PlanTask,
    intent: &IntentId,
    run: &RunId,
    attempt: u32,
) -> Result<NewTask> {
    let (key, step_id) = (task.key(intent, run, attempt)?, task.step_id());
    Ok(NewTask { key, step_id, attempt, name: task.name, work: task.work })
}

pub(crate) fn step_id(text: &str) -> Result<StepId> {
    StepId::parse(text).map_err(Error::corrupt("step id"))
}
