//! Runs of one task whose plan is built in, instead of compiled from a recipe: dispatches and long-lived sandboxes.
//!
//! ```text
//! start: work -> intent's input + run of the static recipe     plan_of: the run's input -> work -> the one task
//! first_round: the same plan and task, for the transaction of the start
//! ```
//! The run names a recipe that nobody can import, by its hash. The caller writes both with a row of its own.
//!
//! **What nobody is asked about need not wait for its workflow**: where the plan names nothing on the network, the plan and the
//! queued task are written with the run, in the state in which a crash would leave them after its first steps. The workflow
//! begins as after that crash: it finds its plan committed and its task queued.

use cofferdam_contracts::canonical;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::{Digest, IntentId, RunId, TaskKey, WorkflowId};
use cofferdam_contracts::live::LiveWork;
use cofferdam_contracts::plan::{Plan, PlanTask, Work};
use cofferdam_contracts::recipe::{Caps, Lane, RecipeRef};
use cofferdam_contracts::run::{Constraints, IntentRequest};
use cofferdam_ledger::intents::NewIntent;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::live_start::InitialPlan;
use cofferdam_ledger::policies::NewPolicySnapshot;
use cofferdam_ledger::runs::{NewRun, RunContext};
use cofferdam_ledger::tasks::NewTask;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::egress::unasked;
use crate::error::{Error, Result};
use crate::fresh_ids::FreshIds;
use crate::plan_text::{Compilation, PlanText, new_task};

const VERSION: &str = "1";
/// The input that has the work.
const WORK: &str = "work";

/// A kind of such runs.
#[derive(Debug)]
pub struct StaticRecipe<W> {
    /// The recipe's id. Triggers know it.
    pub recipe: &'static str,
    /// The task's name. Triggers know it.
    pub task: &'static str,
    /// Sandbox minutes that its run may take.
    pub cap_minutes: u32,
    /// The work of its task.
    pub work: fn(W) -> Work,
}

/// The run of a long-lived sandbox, which may live for a year if it is extended every day.
pub const LIVE: StaticRecipe<LiveWork> = StaticRecipe {
    recipe: "sandbox",
    task: "hold",
    cap_minutes: 366 * 24 * 60,
    work: |work| Work::Live(Box::new(work)),
};

/// An intent and its run, to be written together.
#[derive(Debug)]
pub struct IntentRun {
    id: IntentId,
    request: IntentRequest,
    key_id: String,
    /// Row of `app.runs` to write; the intent gets the same tenant.
    pub run: NewRun,
}

impl IntentRun {
    /// The intent, for the record.
    #[must_use]
    pub fn intent(&self) -> NewIntent<'_> {
        NewIntent {
            id: &self.id,
            tenant: &self.run.tenant,
            request: &self.request,
            hash: None,
            key_id: &self.key_id,
            origin: Origin::ApiShim,
        }
    }
}

/// What a run begins with.
#[derive(Debug)]
pub struct FirstRound {
    written: PlanText,
    plan: Plan,
    task: NewTask,
    /// `None`: it names what somebody has to consent to, and its workflow looks for that.
    snapshots: Option<Vec<NewPolicySnapshot>>,
}

impl FirstRound {
    /// The key of its task.
    #[must_use]
    pub fn key(&self) -> &TaskKey {
        &self.task.key
    }

    /// What is written with the run; `None`: nothing of it.
    #[must_use]
    pub fn opening(&self) -> Option<InitialPlan<'_>> {
        let snapshots = self.snapshots.as_ref()?;
        Some(InitialPlan {
            compiled: self.written.compiled(&self.plan),
            task: &self.task,
            snapshots,
        })
    }
}

/// What one start says.
#[derive(Debug)]
pub struct Launch<'a, W> {
    /// Who starts it.
    pub who: &'a Principal,
    /// Whose the intent is: another than the caller's where it repeats another's.
    pub key_id: &'a str,
    /// What its ids are drawn for; unique.
    pub subject: String,
    /// What its intent is called.
    pub goal: String,
    /// The work of its task.
    pub work: &'a W,
    /// The lane of its run.
    pub lane: Lane,
}

impl<W: Serialize + DeserializeOwned> StaticRecipe<W> {
    /// The recipe as runs name it, and its hash.
    fn reference(&self) -> Result<(RecipeRef, Digest)> {
        let reference: RecipeRef = serde_json::from_value(json!({"id": self.recipe, "v": VERSION}))
            .map_err(Error::corrupt("built-in recipe"))?;
        Ok((reference, canonical::digest(&json!({"builtin": self.recipe, "v": VERSION}))?))
    }

    /// The plan of a run, if it is one of these.
    pub(crate) fn plan_of(&self, run: &RunContext) -> Option<Result<Plan, Refusal>> {
        let (recipe_ref, recipe_hash) = self.reference().ok()?;
        if run.recipe_hash != recipe_hash || run.recipe_id != recipe_ref.id {
            return None;
        }
        let work = run.inputs.get(WORK).cloned().unwrap_or(Value::Null);
        Some(match serde_json::from_value::<W>(work) {
            Ok(work) => Ok(self.plan(recipe_ref, recipe_hash, work)),
            Err(e) => {
                let why = format!("the work of a run of {}: {e}", self.recipe);
                Err(Refusal::new(ErrorCode::Internal, why))
            }
        })
    }

    fn plan(&self, recipe_ref: RecipeRef, recipe_hash: Digest, work: W) -> Plan {
        Plan {
            recipe_ref,
            recipe_hash,
            gate: None,
            config: Vec::new(),
            caps: Caps { sandbox_minutes: self.cap_minutes, ..Caps::default() },
            tasks: vec![PlanTask::of(self.task.into(), (self.work)(work))],
            graph: None,
        }
    }

    /// The plan of this work, and the first attempt of its task.
    ///
    /// # Errors
    /// The plan does not hold together.
    pub fn first_round(&self, begun: &IntentRun, work: W) -> Result<FirstRound> {
        let (run, intent) = (&begun.run, &begun.id);
        let plan = self.plan(run.recipe.clone(), run.recipe_hash.clone(), work);
        let written = PlanText::of(
            &plan,
            &Compilation {
                intent,
                run: &run.id,
                recipe_hash: &run.recipe_hash,
                inputs: &Value::Object(begun.request.inputs.clone()),
                attempt: 1,
            },
        )?;
        // As the workflow will read it: what it queues is to be what is queued here.
        let plan: Plan =
            serde_json::from_str(&written.text).map_err(Error::corrupt("plan card"))?;
        let task = plan.tasks.first().cloned();
        let task = task.ok_or_else(|| Error::corrupt("plan card")("it has no task"))?;
        let task = new_task(task, intent, &run.id, 1)?;
        Ok(FirstRound { written, task, snapshots: unasked(&plan), plan })
    }

    /// The intent and the run of this work.
    ///
    /// # Errors
    /// An id or the work does not hold together.
    pub fn start(&self, ids: &FreshIds, start: Launch<'_, W>) -> Result<IntentRun> {
        let Launch { who, key_id, subject, goal, work, lane } = start;
        let id = IntentId::parse(&format!("it_{}", ids.hex(&subject, 16)))
            .map_err(Error::corrupt("id"))?;
        let run_id = ids.hex(&format!("run:{id}:0"), 16);
        let run_id = RunId::parse(&format!("rn_{run_id}")).map_err(Error::corrupt("id"))?;
        let mut inputs = Map::new();
        inputs.insert(WORK.into(), serde_json::to_value(work).map_err(Error::corrupt("id"))?);
        let (recipe, recipe_hash) = self.reference()?;
        let run = NewRun {
            id: run_id,
            workflow_id: WorkflowId::parse(id.as_str()).map_err(Error::corrupt("id"))?,
            intent_id: id.clone(),
            tenant: who.tenant.clone(),
            recipe,
            recipe_hash,
            intent_hash: None,
            trace_id: None,
            budget: None,
            timeout_ms: None,
            partition_key: who.tenant.to_string(),
            priority: lane.priority(),
            dedup: None,
            mode_wanted: None,
            retry_count: 0,
            retry_of: None,
            asked_by: None,
            origin: Origin::ApiShim,
            key_id: who.key_id.clone(),
        };
        let constraints = Constraints::default();
        let request = IntentRequest { goal, inputs, constraints, connectors: None };
        Ok(IntentRun { id, request, key_id: key_id.to_owned(), run })
    }
}
