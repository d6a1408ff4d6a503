//! Whether the consent still holds: the five parts as execution would use them now, against what was
//! approved. Fails closed.

use std::collections::BTreeMap;
use std::sync::Mutex;

use cofferdam_contracts::consent::{Difference, Edit, Facts, differences, facts};
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::gate_spec::escape;
use cofferdam_contracts::id::{Digest, GateKey};
use cofferdam_contracts::plan::{Plan, Work};
use cofferdam_contracts::run::Budget;
use cofferdam_contracts::schema::{Validator, with_defaults};
use cofferdam_ledger::gates::CurrentPlan;
use cofferdam_ledger::runs::RunContext;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::checks;
use crate::compile;
use crate::config;
use crate::error::{Error, Result};
use crate::flow::{Flow, failed, step_error};
use crate::patience::patiently;
use crate::plan_text::{Compilation, PlanText};
use crate::workflow_context::WorkflowContext;

/// What every `envRef` of a plan stands for on this host.
pub(crate) type Pins = BTreeMap<String, String>;

/// A consent that holds; the default is that of a run which needs none.
#[derive(Default)]
pub(crate) struct ActiveConsent {
    /// The images that it is for.
    pub pins: Pins,
    /// The person who gave it; nobody where the recipe answers at its deadline.
    pub approver: Option<String>,
    /// The patch that the plan's tests run on, once its build left one.
    pub patch: Option<String>,
}

/// Whether a consent holds.
pub(crate) enum ConsentCheck {
    /// The approved facts equal the current ones, so execution may go on.
    Holds(ActiveConsent),
    /// It is void, and nothing was started under it.
    Drifted(Vec<Difference>),
}

/// An error where there is no consent, or where it no longer holds although work has begun.
pub(crate) async fn check(this: &WorkflowContext<'_>, digest: &Digest) -> Flow<ConsentCheck> {
    let ledger = this.ledger;
    let run = this.context().await?;
    let standing =
        patiently(|| ledger.gates().consent_standing(&run.id)).await.map_err(step_error)?;
    let Some(approval) = &standing.approval else {
        return Err(failed("the plan was not approved"));
    };
    if let Some(voided) = &approval.voided {
        // A replay of the step that voided it.
        return Ok(ConsentCheck::Drifted(voided.clone()));
    }
    let (now, pins) = patiently(|| now(this, run, &standing)).await.map_err(step_error)?;
    let drift = differences(&approval.facts, &now);
    if drift.is_empty() {
        return match approval.facts.bindings.plan == *digest {
            true => {
                let approver = (!approval.by_silence).then(|| approval.approved_by.clone());
                Ok(ConsentCheck::Holds(ActiveConsent { pins, approver, patch: None }))
            }
            false => Err(failed("the plan is not the one that was approved")),
        };
    }
    let voids = || ledger.gates().consent_void(&run.id, approval.round, &now.bindings, &drift);
    if patiently(voids).await.map_err(step_error)? {
        return Ok(ConsentCheck::Drifted(drift));
    }
    patiently(|| ledger.ops().tasks_cancel(&run.id)).await.map_err(step_error)?;
    let what = drift.first().map(|d| format!("{}{}", d.part, d.path)).unwrap_or_default();
    Err(failed(format!("what was approved changed while it ran: {what}")))
}

/// The parts as they stand now: the plan that the run names, its budget, the images of this host.
pub(crate) async fn now(
    this: &WorkflowContext<'_>,
    run: &RunContext,
    standing: &CurrentPlan,
) -> Result<(Facts, Pins)> {
    let digest = standing.plan_digest.as_ref().ok_or_else(|| Error::Corrupt {
        what: "runs.plan_digest",
        why: "the run has no plan".into(),
    })?;
    let plan = compile::plan_read(this.ledger, run, digest).await?;
    facts_of(this, plan, standing.budget, standing.timeout_ms).await
}

/// Resolving an image reads files, so it leaves the runtime's own threads alone.
async fn facts_of(
    this: &WorkflowContext<'_>,
    plan: Plan,
    budget: Budget,
    timeout_ms: Option<u64>,
) -> Result<(Facts, Pins)> {
    let host = this.executor.host.clone();
    let made = tokio::task::spawn_blocking(move || {
        // A fan-out names one image often.
        let pins: Mutex<Pins> = Mutex::default();
        let pin = |env_ref: &str| {
            let mut pins = pins.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            pins.entry(env_ref.to_owned()).or_insert_with(|| host.pin(env_ref)).clone()
        };
        let facts = facts(&plan, &budget, timeout_ms, &pin)?;
        Ok::<_, Error>((facts, pins.into_inner().unwrap_or_default()))
    });
    made.await?
}

/// The work as it was approved: an image by its digest, so that what is imported under its name between
/// the comparison and the task's start is not what runs.
pub(crate) fn pinned(work: &Work, pins: &Pins) -> Work {
    let mut work = work.clone();
    if let Some(request) = work.request_mut()
        && let Some(pin) = pins.get(&request.env_ref).filter(|pin| pin.contains("@sha256:"))
    {
        request.env_ref.clone_from(pin);
    }
    work
}

/// The inputs as approvers have edited them so far, with the form's defaults. `also`: a gate whose
/// consent is still to be written.
pub(crate) async fn inputs_now(
    this: &WorkflowContext<'_>,
    run: &RunContext,
    form: &Value,
    also: &GateKey,
) -> Result<Value> {
    let mut inputs = run.inputs.clone();
    with_defaults(form, &mut inputs);
    for edit in this.ledger.gates().edits_approved(&run.id, also).await? {
        apply(&mut inputs, &edit);
    }
    Ok(inputs)
}

fn apply(inputs: &mut Value, edit: &Edit) {
    let Some(fields) = inputs.as_object_mut() else { return };
    let name = edit.path.trim_start_matches('/').replace("~1", "/").replace("~0", "~");
    debug_assert_eq!(format!("/{}", escape(&name)), edit.path);
    fields.insert(name, edit.value.clone());
}

/// What became of a plan that an approver edited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EditOutcome {
    /// The edited inputs have this plan, and the approval is of it.
    Compiled(Digest),
    /// They have none, and why.
    Rejected(String),
}

impl From<Refusal> for EditOutcome {
    fn from(refusal: Refusal) -> Self {
        Self::Rejected(refusal.message)
    }
}

/// An approver edited: the plan is compiled again, and approved as edited.
pub(crate) async fn edit(
    this: &WorkflowContext<'_>,
    key: &GateKey,
    round: u32,
) -> Result<EditOutcome> {
    let ledger = this.ledger;
    let Some(run) = ledger.runs().context(this.workflow).await? else {
        return Err(Error::corrupt("runs")("no run"));
    };
    let recipe = match compile::recipe_of(ledger, &run).await {
        Ok(recipe) => recipe,
        Err(Error::Refused(refusal)) => return Ok(refusal.into()),
        Err(error) => return Err(error),
    };
    let form = recipe.form_schema();
    let inputs = inputs_now(this, &run, &form, key).await?;
    let checked = checks::check(&run.tenant, || Validator::compile(&form)?.check(&inputs)).await?;
    if let Err(refusal) = checked {
        return Ok(refusal.into());
    }
    // An edited plan is a new one: it is compiled with the configuration of now, which it names.
    let settings = config::settings(ledger, &run.tenant).await?;
    let host = this.compile_host();
    let plan = match compile::planned(ledger, host, recipe, &run, inputs.clone(), settings).await? {
        Ok(plan) => plan,
        Err(refusal) => return Ok(refusal.into()),
    };
    if plan.draft_tests().is_some() {
        let why = "an agent made this plan, and other inputs need another one: answer no, and start again";
        return Ok(EditOutcome::Rejected(why.to_owned()));
    }
    // Beyond every compilation before it, whatever retries there were.
    let attempt = run.retries + round + 1;
    let written = PlanText::of(&plan, &Compilation::of(&run, &inputs, attempt))?;
    let (facts, _) = facts_of(this, plan, run.budget, run.timeout_ms).await?;
    let output = json!({"planDigest": written.digest, "editedAt": key});
    let compiled = written.committed(output);
    ledger.gates().consent_edited(&compiled, key, &facts).await?;
    Ok(EditOutcome::Compiled(written.digest))
}
