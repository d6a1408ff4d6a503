//! Waiting for a person, with the engine's own primitives: events for what is asked and decided,
//! a message for the answer.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::gate::{
    Choice, DEFAULT_TTL_S, Decision, GateMessage, Prompt, PromptResult, Rationale, ResultState,
    choice_of, plan_form,
};
use cofferdam_contracts::id::GateKey;
use cofferdam_ledger::gates::{GateTimes, NewGate};
use dbos::{recv, set_event, step};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Flows;
use crate::decide;
use crate::patience::patiently;
use crate::run::{Flow, FlowError, step_error};

/// Time for the message of a reply that was accepted just before the deadline: it commits with the
/// reply, so it is there already and this only bounds the impossible.
const LATE_MESSAGE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Opened {
    run: String,
    created_at: i64,
    deadline_at: i64,
    ttl_s: u32,
    digest: Option<String>,
}

/// Opens the plan gate and waits. `Err` inside says why nothing may be executed.
pub(crate) async fn await_approval(
    flows: &Arc<Flows>,
    workflow: &str,
    gate: &GateKey,
) -> Flow<Result<(), String>> {
    let topic = format!("human:{gate}");
    let opened: Opened = step("gate.open", || open(flows, workflow, gate, &topic)).await?;
    let prompt = Prompt {
        schema_version: 1,
        form_schema: plan_form(),
        ttl_s: opened.ttl_s,
        created_at: opened.created_at,
        deadline_at: opened.deadline_at,
        ui_hints: Some(json!({"kind": "approve-plan", "planDigest": opened.digest})),
        defaults: None,
    };
    set_event(&format!("ui:{gate}"), &prompt).await?;
    let answer = answer(flows, workflow, gate, &topic, &opened).await?;
    let (result, decision) = decide(answer, opened.deadline_at);
    set_event(&format!("ui:{gate}:result"), &result).await?;
    set_event(&format!("decision:{gate}"), &decision).await?;
    step("gate.resolve", || async {
        let run = run_id(&opened)?;
        patiently(|| flows.ledger.gate_resolve(&run, gate, &topic)).await.map_err(step_error)
    })
    .await?;
    Ok(match decision.decision {
        Choice::Yes => Ok(()),
        Choice::No => {
            let why = decision
                .payload
                .and_then(|p| p.rationale)
                .map_or(String::new(), |r| format!(": {r}"));
            Err(format!("the plan was not approved{why}"))
        }
    })
}

async fn open(flows: &Flows, workflow: &str, gate: &GateKey, topic: &str) -> Flow<Opened> {
    let run = patiently(|| flows.ledger.run_context(workflow))
        .await
        .map_err(step_error)?
        .ok_or_else(|| dbos::Error::Application(FlowError::Ledger("no run".into())))?;
    let asked = run.constraints.plan_approval_timeout_s.unwrap_or(DEFAULT_TTL_S);
    let ttl_s =
        decide::gate_ttl_s(asked, run.created_at, clock::now_ms(), run.timeout_ms, &run.budget);
    let digest = patiently(|| flows.ledger.run_plan_digest(&run.id)).await.map_err(step_error)?;
    let form = plan_form();
    let new = NewGate {
        run: &run.id,
        workflow,
        tenant: &run.tenant,
        key: gate,
        topic,
        form: &form,
        plan_digest: digest.as_ref(),
        ttl_s,
    };
    let GateTimes { created_at, deadline_at } =
        patiently(|| flows.ledger.gate_open(&new)).await.map_err(step_error)?;
    Ok(Opened {
        run: run.id.into(),
        created_at,
        deadline_at,
        ttl_s,
        digest: digest.map(Into::into),
    })
}

fn run_id(opened: &Opened) -> Flow<cofferdam_contracts::id::RunId> {
    cofferdam_contracts::id::RunId::parse(&opened.run)
        .map_err(|e| dbos::Error::Application(FlowError::Ledger(e.to_string())))
}

/// The accepted reply, or `None` when the deadline won.
async fn answer(
    flows: &Arc<Flows>,
    workflow: &str,
    gate: &GateKey,
    topic: &str,
    opened: &Opened,
) -> Flow<Option<GateMessage>> {
    let mut timeout = Duration::from_secs(u64::from(opened.ttl_s));
    loop {
        match recv::<GateMessage, FlowError>(Some(topic), timeout).await? {
            Some(message) if message.sys.is_none() => return Ok(Some(message)),
            // A cancel woke the wait: the next step finds the workflow CANCELLED and ends it. Only a
            // workflow that was resumed meanwhile goes on, and then it waits again.
            Some(_) => {
                step("gate.woken", || async { Flow::Ok(()) }).await?;
            }
            None => {
                let timed_out: bool = step("gate.timeout", || async {
                    let run = run_id(opened)?;
                    patiently(|| flows.ledger.gate_time_out(&run, workflow, gate, topic))
                        .await
                        .map_err(step_error)
                })
                .await?;
                if timed_out {
                    return Ok(None);
                }
                timeout = LATE_MESSAGE;
            }
        }
    }
}

/// What is published of an answer. Pure.
fn decide(answer: Option<GateMessage>, deadline_at: i64) -> (PromptResult, Decision) {
    let Some(message) = answer else {
        let result = PromptResult {
            schema_version: 1,
            state: ResultState::TimedOut,
            payload: None,
            payload_hash: None,
            at: Some(deadline_at),
        };
        return (result, decision(Choice::No, Some("timeout".into()), deadline_at));
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

/// `esc:<workflow>:<gate>`; a gate's key may hold colons, a run's workflow id never does. Started once by the timeout; leaves the audit event that an operator's
/// tools and the inbox read.
pub(crate) async fn escalation_workflow(flows: Arc<Flows>) -> Flow<()> {
    let id = dbos::workflow_id().unwrap_or_default();
    let Some((workflow, gate)) = id.strip_prefix("esc:").and_then(|rest| rest.split_once(':'))
    else {
        return Err(dbos::Error::Application(FlowError::Ledger(format!(
            "{id} is not an escalation"
        ))));
    };
    step("escalate", || async {
        let value = json!({
            "schemaVersion": 1, "event": "escalated", "reason": "timeout",
            "at": cofferdam_ambient::clock::now_ms(),
        });
        patiently(|| flows.ledger.gate_audit_event(workflow, gate, &value))
            .await
            .map_err(step_error)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_a_no_with_the_rationale_timeout() {
        let (result, decision) = decide(None, 7);
        assert_eq!(result.state, ResultState::TimedOut);
        assert_eq!(decision.decision, Choice::No);
        assert_eq!(decision.payload.unwrap().rationale.as_deref(), Some("timeout"));
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
        let (result, decision) = decide(Some(message), 9);
        assert_eq!(result.payload_hash, Some(hash));
        assert_eq!(decision.decision, Choice::Yes);
        assert_eq!(decision.at, 3);
    }
}
