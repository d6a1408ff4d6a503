//! Waiting for people, with the engine's own primitives: events for what is asked and decided, a
//! message for the answer, durable timeouts for reminders, escalation and silence.

use std::collections::BTreeMap;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::consent::{Bindings, Difference};
use cofferdam_contracts::gate::{
    Choice, DEFAULT_TTL_S, Decision, GateMessage, Prompt, PromptResult, Rationale, ResultState,
    choice_of, plan_form,
};
use cofferdam_contracts::gate_spec::{DeadlineAction, GateSpec, MAX_REMINDERS};
use cofferdam_contracts::id::{Digest, GateKey, RunId};
use cofferdam_contracts::run::Budget;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::failpoint::fail_point;
use cofferdam_ledger::gates::{Deadline, NewGate};
use dbos::{recv, set_event, step};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::compile;
use crate::decide;
use crate::error::{Error, Result};
use crate::flow::{Flow, FlowError, step_error};
use crate::gates::consent::{self, EditOutcome};
use crate::patience::patiently;
use crate::workflow_context::WorkflowContext;

/// Time for the message of a reply that was accepted just before the deadline: it commits with the
/// reply, so it is there already and this only bounds the impossible.
const LATE_MESSAGE: Duration = Duration::from_secs(30);

/// What is asked.
pub(crate) struct GateRequest<'a> {
    /// The recipe's law.
    pub spec: &'a GateSpec,
    /// From 1: the consent of the round before is void.
    pub round: u32,
    /// Why it is asked again.
    pub difference: &'a [Difference],
}

/// What came of it.
pub(crate) enum GateOutcome {
    /// Consent to a plan.
    Yes(ApprovedPlan),
    /// Nothing may be executed, and why.
    No(String),
    /// The answer cannot be bound to a plan: ask again, showing why.
    Again(Vec<Difference>),
}

/// What was consented to.
pub(crate) struct ApprovedPlan {
    pub plan: Digest,
    pub budget: Budget,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct GateWait {
    run: RunId,
    created_at: i64,
    deadline_at: i64,
    ttl_s: u32,
    longer_s: u32,
    bindings: Bindings,
    budget: Budget,
    /// Only where there is something to edit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    form: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inputs: Option<Value>,
}

/// One gate while it waits.
struct Gate<'a> {
    ledger: &'a Ledger,
    workflow: &'a str,
    spec: &'a GateSpec,
    key: GateKey,
    topic: String,
}

enum GateSignal {
    Message(GateMessage),
    Silence(DeadlineAction),
}

/// Opens a round of the plan gate and waits for its decision.
pub(crate) async fn await_human(
    this: &WorkflowContext<'_>,
    asking: &GateRequest<'_>,
) -> Flow<GateOutcome> {
    let key = asking.spec.round_key(asking.round);
    let gate = Gate {
        ledger: this.ledger,
        workflow: this.workflow,
        spec: asking.spec,
        topic: format!("human:{key}"),
        key,
    };
    let opened: GateWait = step("gate.open", || async {
        let opened = patiently(|| open(this, &gate, asking.round)).await.map_err(step_error)?;
        fail_point("wait.opened");
        Ok(opened)
    })
    .await?;
    let key = gate.key.as_str();
    set_event(&format!("ui:{key}"), &prompt(asking, &opened)).await?;
    fail_point("wait.prompted");
    let (heard, deadline_at) = listen(&gate, &opened).await?;
    fail_point("wait.heard");
    let (result, decision) = decide(heard, deadline_at);
    set_event(&format!("ui:{key}:result"), &result).await?;
    fail_point("wait.result");
    set_event(&format!("decision:{key}"), &decision).await?;
    fail_point("wait.decided");
    let edits = result.payload.as_ref().is_some_and(|p| p.get("edits").is_some());
    let plan = match decision.decision {
        Choice::Yes if edits => {
            step("gate.edit", || async {
                patiently(|| edit(this, &gate, asking.round, &opened)).await.map_err(step_error)
            })
            .await?
        }
        _ => EditOutcome::Compiled(opened.bindings.plan.clone()),
    };
    step("gate.resolve", || async {
        patiently(|| gate.ledger.gates().resolve(&opened.run, &gate.key, &gate.topic))
            .await
            .map_err(step_error)?;
        fail_point("wait.resolved");
        Ok(())
    })
    .await?;
    Ok(match (decision.decision, plan) {
        (Choice::Yes, EditOutcome::Compiled(plan)) => {
            GateOutcome::Yes(ApprovedPlan { plan, budget: opened.budget })
        }
        (Choice::Yes, EditOutcome::Rejected(why)) => GateOutcome::Again(vec![Difference {
            part: "edit".into(),
            path: String::new(),
            approved: None,
            now: Some(why),
        }]),
        (Choice::No, _) => {
            let why = decision.payload.and_then(|p| p.rationale);
            let why = why.map_or(String::new(), |r| format!(": {r}"));
            GateOutcome::No(format!("the plan was not approved{why}"))
        }
    })
}

/// An edit that changes nothing is a plain yes, which the reply itself recorded.
async fn edit(
    this: &WorkflowContext<'_>,
    gate: &Gate<'_>,
    round: u32,
    opened: &GateWait,
) -> Result<EditOutcome> {
    let standing = this.ledger.gates().consent_standing(&opened.run).await?;
    match standing.approval {
        Some(a) if a.round == round => Ok(EditOutcome::Compiled(a.facts.bindings.plan)),
        _ => consent::edit(this, &gate.key, round).await,
    }
}

async fn open(this: &WorkflowContext<'_>, gate: &Gate<'_>, round: u32) -> Result<GateWait> {
    let ledger = gate.ledger;
    let missing = || Error::Corrupt { what: "runs", why: format!("no run of {}", gate.workflow) };
    let run = ledger.runs().context(gate.workflow).await?.ok_or_else(missing)?;
    let standing = ledger.gates().consent_standing(&run.id).await?;
    let (facts, _) = consent::now(this, &run, &standing).await?;
    let within = |asked: u32| {
        decide::gate_ttl_s(asked, run.began_at, clock::now_ms(), run.timeout_ms, &run.budget)
    };
    let asked = run.constraints.plan_approval_timeout_s.or_else(|| gate.spec.deadline_s());
    let ttl_s = within(asked.unwrap_or(DEFAULT_TTL_S));
    let longer_s = within(ttl_s.saturating_add(gate.spec.escalation_wait_s().unwrap_or(1)));
    let (form, inputs) = match gate.spec.edit.is_empty() {
        true => (None, None),
        false => {
            let recipe = compile::recipe_of(ledger, &run).await?;
            let form = recipe.form_schema();
            let all = consent::inputs_now(this, &run, &form, &gate.key).await?;
            let value = |name: &String| Some((name.clone(), all.get(name)?.clone()));
            let inputs: serde_json::Map<_, _> = gate.spec.edit.iter().filter_map(value).collect();
            (Some(gate.spec.form(&form)), Some(Value::Object(inputs)))
        }
    };
    let new = NewGate {
        run: &run.id,
        workflow: gate.workflow,
        tenant: &run.tenant,
        key: &gate.key,
        topic: &gate.topic,
        round,
        spec: gate.spec,
        form: &form.clone().unwrap_or_else(plan_form),
        inputs: inputs.as_ref(),
        facts: &facts,
        ttl_s,
    };
    let times = ledger.gates().open(&new).await?;
    Ok(GateWait {
        run: run.id,
        created_at: times.created_at,
        deadline_at: times.deadline_at,
        ttl_s,
        longer_s: longer_s.saturating_sub(ttl_s).max(1),
        bindings: facts.bindings,
        budget: standing.budget,
        form,
        inputs,
    })
}

/// What is asked, from recorded facts alone. Pure.
fn prompt(asking: &GateRequest<'_>, opened: &GateWait) -> Prompt {
    let mut hints = BTreeMap::from([
        ("kind", json!("approve-plan")),
        ("planDigest", json!(opened.bindings.plan)),
        ("bindings", json!(opened.bindings)),
    ]);
    if *asking.spec != GateSpec::plain(asking.spec.key.clone()) {
        hints.insert("law", json!(asking.spec));
    }
    if asking.round > 1 {
        hints.insert("round", json!(asking.round));
        hints.insert("difference", json!(asking.difference));
    }
    Prompt {
        schema_version: 1,
        form_schema: opened.form.clone().unwrap_or_else(plan_form),
        ttl_s: opened.ttl_s,
        created_at: opened.created_at,
        deadline_at: opened.deadline_at,
        ui_hints: Some(json!(hints)),
        defaults: opened.inputs.as_ref().map(|inputs| json!({"edits": inputs})),
    }
}

/// The accepted reply, or what silence means; and the deadline that held in the end.
async fn listen(gate: &Gate<'_>, opened: &GateWait) -> Flow<(GateSignal, i64)> {
    let ledger = gate.ledger;
    let mut left_ms = u64::from(opened.ttl_s) * 1_000;
    let mut deadline_at = opened.deadline_at;
    let mut pause_ms = gate.spec.remind_s().map(|s| u64::from(s) * 1_000);
    let mut reminded: u32 = 0;
    loop {
        let slice_ms =
            decide::slice_ms(left_ms, pause_ms.filter(|_| u64::from(reminded) < MAX_REMINDERS));
        let message =
            recv::<GateMessage, FlowError>(Some(&gate.topic), Duration::from_millis(slice_ms))
                .await?;
        match message {
            Some(message) if message.sys.is_none() => {
                return Ok((GateSignal::Message(message), deadline_at));
            }
            // A cancel woke the wait: the next step finds the workflow CANCELLED and ends it. Only a
            // workflow that was resumed meanwhile goes on, and then it waits for what is left.
            Some(_) => {
                left_ms = step("gate.woken", || async {
                    patiently(|| ledger.gates().left_ms(&opened.run, &gate.key))
                        .await
                        .map_err(step_error)
                })
                .await?;
            }
            None if slice_ms < left_ms => {
                reminded += 1;
                left_ms -= slice_ms;
                step("gate.remind", || async {
                    patiently(|| ledger.gates().remind(&opened.run, &gate.key, reminded))
                        .await
                        .map_err(step_error)
                })
                .await?;
            }
            None => match timed_out(gate, opened).await? {
                Deadline::Over(silence) => return Ok((GateSignal::Silence(silence), deadline_at)),
                Deadline::Waits(ms) => {
                    left_ms = ms.max(1);
                    deadline_at = deadline_at.saturating_add(i64::try_from(ms).unwrap_or(0));
                }
                Deadline::Answered => {
                    left_ms = u64::try_from(LATE_MESSAGE.as_millis()).unwrap_or(30_000);
                    pause_ms = None;
                }
            },
        }
    }
}

async fn timed_out(gate: &Gate<'_>, opened: &GateWait) -> Flow<Deadline> {
    step("gate.timeout", || async {
        let over = patiently(|| {
            gate.ledger.gates().time_out(
                &opened.run,
                gate.workflow,
                &gate.key,
                &gate.topic,
                opened.longer_s,
            )
        })
        .await
        .map_err(step_error)?;
        fail_point("wait.timeout");
        Ok(over)
    })
    .await
}

/// What is published of an answer. Pure.
fn decide(heard: GateSignal, deadline_at: i64) -> (PromptResult, Decision) {
    let message = match heard {
        GateSignal::Message(message) => message,
        GateSignal::Silence(silence) => {
            let result = PromptResult {
                schema_version: 1,
                state: ResultState::TimedOut,
                payload: None,
                payload_hash: None,
                at: Some(deadline_at),
            };
            let decision = decision(silence.choice(), Some("timeout".into()), deadline_at);
            return (result, decision);
        }
    };
    let payload = message.payload.unwrap_or(serde_json::Value::Null);
    // The gate service validated it already; should a row have been tampered with since, it is a no.
    let (choice, rationale) =
        choice_of(&payload).unwrap_or((Choice::No, Some("unreadable reply".into())));
    let result = PromptResult {
        schema_version: 1,
        state: ResultState::Received,
        payload: Some(payload),
        payload_hash: message.payload_hash,
        at: Some(message.at),
    };
    (result, decision(choice, rationale, message.at))
}

fn decision(decision: Choice, rationale: Option<String>, at: i64) -> Decision {
    Decision { schema_version: 1, decision, payload: Some(Rationale { rationale }), at }
}

/// `esc:<workflow>:<gate>`; a gate's key may hold colons, a run's workflow id never does. Started once
/// by the timeout: asks more people where the recipe says so, and leaves the audit event that an
/// operator's tools and the inbox read.
pub(crate) async fn escalation_workflow(ledger: Ledger) -> Flow<()> {
    let id = dbos::workflow_id().unwrap_or_default();
    let parts = id.strip_prefix("esc:").and_then(|rest| rest.split_once(':'));
    let Some((workflow, gate)) = parts.and_then(|(w, g)| Some((w, GateKey::parse(g).ok()?))) else {
        return Err(dbos::Error::Application(FlowError::Step(format!(
            "{id} is not an escalation"
        ))));
    };
    step("escalate", || async {
        patiently(|| ledger.gates().escalate(workflow, &gate)).await.map_err(step_error)?;
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_a_no_with_the_rationale_timeout() {
        let (result, decision) = decide(GateSignal::Silence(DeadlineAction::Deny), 7);
        assert_eq!(result.state, ResultState::TimedOut);
        assert_eq!(decision.decision, Choice::No);
        assert_eq!(decision.payload.unwrap().rationale.as_deref(), Some("timeout"));
    }

    #[test]
    fn silence_is_a_yes_only_where_the_recipe_says_so() {
        let (result, decision) = decide(GateSignal::Silence(DeadlineAction::Approve), 7);
        assert_eq!(result.state, ResultState::TimedOut);
        assert_eq!(decision.decision, Choice::Yes);
    }

    #[test]
    fn a_reply_is_published_with_the_hash_it_was_recorded_under() {
        let payload = json!({"choice": "yes", "rationale": "fine"});
        let hash = cofferdam_contracts::canonical::digest(&payload).unwrap();
        let message = GateMessage {
            payload: Some(payload),
            payload_hash: Some(hash.clone()),
            at: 3,
            sys: None,
        };
        let (result, decision) = decide(GateSignal::Message(message), 9);
        assert_eq!(result.payload_hash, Some(hash));
        assert_eq!(decision.decision, Choice::Yes);
        assert_eq!(decision.at, 3);
    }
}
