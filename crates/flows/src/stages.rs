//! The stages of a run that are its own: the plan that is awaited, the patch that is recorded, the tests that are chosen.

use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::agent_plan::{AgentPlan, BUILDING, PLAN_NAME, PLANNING, session_of};
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::StepId;
use cofferdam_contracts::plan::{Plan, PlanTask};
use cofferdam_contracts::tree_change::TreeChange;
use cofferdam_ledger::runs::RunContext;
use serde::{Deserialize, Serialize};

use crate::decide::{self, Next};
use crate::error::{Error, Result};
use crate::flow::{Flow, failed, step_error};
use crate::gates::consent::ActiveConsent;
use crate::patience::patiently;
use crate::plan_text::step_id;
use crate::round::{attempt_key, round_of};
use crate::workflow_context::WorkflowContext;

/// Attempts that one life of a run may take, so that those of its next life have numbers of their own.
const LIFE: u32 = 1_000;

/// What planning came to: the agent's plan and its conversation, or why there is none.
pub(crate) type PlanOutcome = std::result::Result<(AgentPlan, String), String>;

/// Has the draft's task give a plan. Called again after a crash, it finds the task that it queued.
pub(crate) async fn planned(
    this: &WorkflowContext<'_>,
    run: &RunContext,
    draft: &Plan,
    life: u32,
) -> Flow<PlanOutcome> {
    let ledger = this.ledger;
    patiently(|| ledger.planner().planning(&run.id)).await.map_err(step_error)?;
    let before = life.saturating_sub(1).saturating_mul(LIFE);
    let mut attempt = before + 1;
    loop {
        let consented = ActiveConsent::default();
        let round = Box::pin(round_of(this, run, draft, attempt, None, &consented)).await?;
        match decide::after_round(&round, attempt - before, &run.budget) {
            Next::Again { backoff_ms, .. } => {
                clock::sleep(Duration::from_millis(backoff_ms)).await;
                attempt += 1;
            }
            Next::Finish { error: Some(error), .. } => return Ok(Err(error)),
            Next::Finish { error: None, .. } => break,
        }
    }
    let plan = patiently(|| plan_of(this, run, draft, attempt)).await.map_err(step_error)?;
    Ok(Ok((plan, session_of(&run.id, attempt))))
}

async fn plan_of(
    this: &WorkflowContext<'_>,
    run: &RunContext,
    draft: &Plan,
    attempt: u32,
) -> Result<AgentPlan> {
    let corrupt = Error::corrupt("agent plan");
    let task = draft.tasks.iter().find(|task| task.name == PLANNING);
    let task = task.ok_or_else(|| Error::corrupt("agent plan")("the draft has no task"))?;
    let uri = cofferdam_contracts::artifact::uri(
        &run.id,
        &task.step_id(),
        &attempt_key(task, run, attempt)?,
        PLAN_NAME,
    );
    let stored = this.ledger.artifacts().read(&run.tenant, &uri).await?;
    let stored = stored.ok_or_else(|| Error::corrupt("agent plan")("missing"))?;
    if digest_bytes(&stored.bytes) != stored.sha256 {
        return Err(Error::corrupt("agent plan")("its bytes do not have the recorded hash"));
    }
    serde_json::from_slice(&stored.bytes).map_err(corrupt)
}

fn building() -> Result<StepId> {
    step_id(&format!("ExecuteST:{BUILDING}"))
}

/// ApplyPatchST: the build's patch goes on record, file by file. Its artifact's URI.
pub(crate) async fn recorded(this: &WorkflowContext<'_>, attempt: u32) -> Flow<String> {
    let run = this.context().await?;
    let recording = || async {
        let ledger = this.ledger;
        let missing = || Error::corrupt("patch")("the build left none");
        let found = ledger.planner().patch_of(&run.id, &building()?).await?;
        let (task, uri, digest) = found.ok_or_else(missing)?;
        let stored = ledger.artifacts().read(&run.tenant, &uri).await?.ok_or_else(missing)?;
        if digest_bytes(&stored.bytes) != digest {
            return Err(Error::corrupt("patch")("its bytes do not have the recorded hash"));
        }
        let patch: TreeChange =
            serde_json::from_slice(&stored.bytes).map_err(Error::corrupt("patch"))?;
        patch.steps().map_err(Error::corrupt("patch"))?;
        ledger.planner().patch_record(&run.id, &task, &digest, &patch, attempt).await?;
        Ok(uri)
    };
    patiently(recording).await.map_err(step_error)
}

/// The tests of an approved plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TestSelection {
    /// Their places in the plan.
    pub tasks: Vec<usize>,
}

/// DecideST: the tests that the approved plan names, whatever its build says.
pub(crate) async fn decided(
    this: &WorkflowContext<'_>,
    plan: &Plan,
    attempt: u32,
) -> Flow<TestSelection> {
    let run = this.context().await?;
    let tests: Vec<(usize, &PlanTask)> =
        plan.tasks.iter().enumerate().filter(|(_, task)| task.name != BUILDING).collect();
    if tests.is_empty() {
        return Err(failed("the approved plan names no test"));
    }
    let names: Vec<&str> = tests.iter().map(|(_, task)| task.name.as_str()).collect();
    let deciding = || this.ledger.planner().tests_decided(&run.id, &names, attempt);
    patiently(deciding).await.map_err(step_error)?;
    Ok(TestSelection { tasks: tests.into_iter().map(|(index, _)| index).collect() })
}
