//! Gates: prompts, replies, and what a choice is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::egress::EgressAsk;
use crate::enum_names::named;
use crate::error::{Refusal, Violation};
use crate::id::{Digest, GateKey, RunId, WorkflowId};
use crate::instant::Instant;
use crate::model::BudgetAsk;
use crate::start_ask::StartAsk;

/// How long a plan gate waits when nobody says, in seconds.
pub const DEFAULT_TTL_S: u32 = 3_600;

named! {
    /// Where a ledger row came from: a closed list, also a SQL CHECK.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[allow(missing_docs, reason = "the names are the contract's own")]
    pub enum Origin {
        Manual = "manual",
        EngineDbos = "engine-dbos",
        ApiShim = "api-shim",
        Webhook = "webhook",
        WebhookCi = "webhook-ci",
        External = "external",
        Unknown = "unknown",
    }
}

/// The `ui:<gate>` event.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Prompt {
    /// Version of this shape: 1.
    pub schema_version: u32,
    /// JSON Schema of the payload.
    pub form_schema: Value,
    /// Seconds it waits: 1 to 86400.
    #[serde(rename = "ttlS")]
    pub ttl_s: u32,
    /// ms since the epoch.
    pub created_at: i64,
    /// ms since the epoch.
    pub deadline_at: i64,
    /// What to show beside the form.
    pub ui_hints: Option<Value>,
    /// Values to start from.
    pub defaults: Option<Value>,
}

/// The `ui:<gate>:result` event.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PromptResult {
    /// Version of this shape: 1.
    pub schema_version: u32,
    /// RECEIVED or TIMED_OUT.
    pub state: ResultState,
    /// What was answered.
    pub payload: Option<Value>,
    /// SHA-256 of the canonical payload; absent where the gate timed out.
    pub payload_hash: Option<Digest>,
    /// ms since the epoch.
    pub at: Option<i64>,
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "the names are the contract's own")]
pub enum ResultState {
    Received,
    TimedOut,
}

named! {
    /// yes or no.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[allow(missing_docs, reason = "the names are the contract's own")]
    pub enum Choice {
        Yes = "yes",
        No = "no",
    }
}

/// The `decision:<gate>` event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Decision {
    /// Version of this shape: 1.
    pub schema_version: u32,
    /// What was decided.
    pub decision: Choice,
    /// The approver's rationale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Rationale>,
    /// ms since the epoch.
    pub at: i64,
}

/// Rationale of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rationale {
    /// Reason in words: the approver's, or `timeout` where the deadline decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rationale: Option<String>,
}

/// What a workflow receives on `human:<gate>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GateMessage {
    /// The answer; absent in a message of the system's own (`sys`).
    pub payload: Option<Value>,
    /// SHA-256 of the canonical payload; absent where `payload` is.
    pub payload_hash: Option<Digest>,
    /// ms since the epoch.
    pub at: i64,
    /// What woke the wait without an answer: `sys:cancel`, or `sys:late` at its deadline.
    pub sys: Option<String>,
}

/// Body of `POST /api/runs/:id/gates/:gate/reply`: an answer to an open gate.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplyRequest {
    /// The answer; must fit the prompt's form.
    pub payload: Value,
    /// Equal replies with equal keys are one reply.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[^\x00-\x1f\x7f]*$"))]
    pub dedupe_key: String,
    /// Where it came from; stamped by the server where left out.
    pub origin: Option<Origin>,
    /// `human:<gate>` or `sys:<kind>`; must be the gate's topic where given.
    #[schemars(
        length(min = 1, max = 140),
        regex(pattern = r"^(human|sys):[a-z0-9][a-z0-9:_-]{0,127}$")
    )]
    pub topic: Option<String>,
}

/// Body of `POST /api/events/hitl`: a webhook's answer to an open gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HitlEvent {
    /// The waiting workflow.
    pub workflow_id: WorkflowId,
    /// Key of the gate that is answered.
    pub gate_key: GateKey,
    /// Topic of the gate, `human:<gate>`; an open gate refuses any other.
    #[schemars(
        length(min = 1, max = 140),
        regex(pattern = r"^(human|sys):[a-z0-9][a-z0-9:_-]{0,127}$")
    )]
    pub topic: String,
    /// Answer to the gate; must fit the JSON Schema of its form.
    pub payload: Value,
    /// Equal events with equal keys are one.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[^\x00-\x1f\x7f]*$"))]
    pub dedupe_key: String,
    /// Where it came from.
    pub origin: Origin,
}

/// Body of `POST /api/runs/:id/approve-plan`: a yes to the run's first plan gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovePlanRequest {
    /// Who approves, for the record; the authority is the key's.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[^\x00-\x1f\x7f]*$"))]
    pub approved_by: String,
    /// Rationale, for the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4_000), regex(pattern = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$"))]
    pub notes: Option<String>,
}

/// Answer of a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplyResponse {
    /// Always true; a refused reply answers with an error instead.
    pub ok: bool,
    /// Whether this very reply was there already.
    pub is_replay: bool,
}

/// Answer of approve-plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovePlanResponse {
    /// Always true; a refused approval answers with an error instead.
    pub accepted: bool,
    /// Run whose plan was approved.
    pub run_id: RunId,
    /// ISO 8601, in UTC.
    pub approved_at: Instant,
    /// ms since the epoch.
    pub approved_at_ms: i64,
}

named! {
    /// Where a gate stands.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[allow(missing_docs, reason = "the names are the contract's own")]
    pub enum GateState {
        Pending = "PENDING",
        Received = "RECEIVED",
        TimedOut = "TIMED_OUT",
        Resolved = "RESOLVED",
        Canceled = "CANCELED",
    }
}

/// One gate as a reader sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GateView {
    /// The waiting workflow.
    #[serde(rename = "workflowID")]
    pub workflow_id: WorkflowId,
    /// Key of the gate, unique in its run.
    pub gate_key: GateKey,
    /// Topic of the replies to the gate: `human:<gate>`.
    pub topic: String,
    /// Where it stands.
    pub state: GateState,
    /// What is asked.
    pub prompt: Option<Prompt>,
    /// What was answered.
    pub result: Option<PromptResult>,
    /// What was decided.
    pub decision: Option<Decision>,
    /// Where the answer came from.
    pub origin: Option<Origin>,
    /// Digest of the answer.
    pub payload_hash: Option<Digest>,
    /// ms since the epoch.
    pub created_at: i64,
    /// ms since the epoch.
    pub deadline_at: i64,
    /// The name that a task asks for, where the gate is such a question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asks: Option<EgressAsk>,
    /// The bound of a budget that a task asks to raise, where the gate is such a question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetAsk>,
    /// The task group that waits to start, where the gate stands before one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartAsk>,
    /// The answers that count, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub votes: Vec<VoteRow>,
}

/// One answer that counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VoteRow {
    /// The key that answered.
    pub voter: String,
    /// In whose place: its own, or its delegator's.
    pub authority: String,
    /// What it said.
    pub choice: Choice,
    /// ms since the epoch.
    pub at: i64,
}

named! {
    /// How late an open gate is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[allow(missing_docs, reason = "the names are the contract's own")]
    pub enum SlaStatus {
        Normal = "NORMAL",
        Warning = "WARNING",
        Critical = "CRITICAL",
    }
}

named! {
    /// What the row of a reply says of it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum InteractionOutcome {
        /// It decided the gate.
        Accepted = "accepted",
        /// It is one vote of those that the gate waits for.
        Voted = "voted",
        /// The key, or the one that it stands in for, had answered before.
        AlreadyVoted = "already_voted",
        /// The deadline had passed.
        Late = "late",
        /// Another reply, or a cancel, was first.
        AlreadyDecided = "already_decided",
    }
}

/// One reply to a gate, whatever became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InteractionRow {
    /// The waiting workflow.
    #[serde(rename = "workflowID")]
    pub workflow_id: WorkflowId,
    /// Key of the gate that was answered.
    pub gate_key: GateKey,
    /// Topic of the gate, `human:<gate>`; a dedupe key is unique within it.
    pub topic: String,
    /// Names the reply: a second one with this key is the same.
    pub dedupe_key: String,
    /// Digest of what was said.
    pub payload_hash: Digest,
    /// What was said, as the gate's form has it.
    pub payload: Value,
    /// Where it came from.
    pub origin: Origin,
    /// What became of it.
    pub outcome: InteractionOutcome,
    /// The key that said it.
    pub key_id: String,
    /// ms since the epoch.
    pub created_at: i64,
}

impl SlaStatus {
    /// WARNING from 60 s before the deadline, CRITICAL after it.
    #[must_use]
    pub const fn at(now_ms: i64, deadline_ms: i64) -> Self {
        match deadline_ms - now_ms {
            left if left < 0 => Self::Critical,
            left if left <= 60_000 => Self::Warning,
            _ => Self::Normal,
        }
    }
}

/// A row of the inbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InboxRow {
    /// The waiting workflow.
    #[serde(rename = "workflowID")]
    pub workflow_id: WorkflowId,
    /// Run that the gate belongs to.
    pub run_id: RunId,
    /// Key of the gate, unique in its run.
    pub gate_key: GateKey,
    /// Topic of the replies to the gate: `human:<gate>`.
    pub topic: String,
    /// ms since the epoch.
    pub deadline: i64,
    /// How late it is.
    pub sla_status: SlaStatus,
    /// The escalation, once started.
    #[serde(rename = "escalationWorkflowID")]
    pub escalation_workflow_id: Option<WorkflowId>,
    /// ms since the epoch.
    pub created_at: i64,
    /// The name that a task asks for, where the gate is such a question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asks: Option<EgressAsk>,
    /// The bound of a budget that a task asks to raise, where the gate is such a question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetAsk>,
    /// The task group that waits to start, where the gate stands before one; without its files and outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartAsk>,
    /// Raised by an escalation; higher first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
const fn is_zero(n: &i32) -> bool {
    *n == 0
}

/// The form of a plan gate: `choice` and `rationale`, with the synonyms that existing clients send.
#[must_use]
pub fn plan_form() -> Value {
    let words = serde_json::json!({"type": "string", "maxLength": 4000,
        "pattern": r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$"});
    serde_json::json!({
        "type": "object",
        "properties": {
            "choice": {"enum": ["yes", "no"]},
            "approved": {"type": "boolean"},
            "decision": {"enum": ["approve", "approved", "yes", "reject", "rejected", "no"]},
            "rationale": words, "notes": words, "note": words
        },
        "additionalProperties": false,
        "oneOf": [{"required": ["choice"]}, {"required": ["approved"]}, {"required": ["decision"]}]
    })
}

/// Reads the choice out of a payload that fits [`plan_form`]; anything else is refused, never a no.
pub fn choice_of(payload: &Value) -> Result<(Choice, Option<String>), Refusal> {
    let said = payload.get("choice").or_else(|| payload.get("decision")).and_then(Value::as_str);
    let choice = match (said, payload.get("approved").and_then(Value::as_bool)) {
        (Some("yes" | "approve" | "approved"), _) | (None, Some(true)) => Choice::Yes,
        (Some("no" | "reject" | "rejected"), _) | (None, Some(false)) => Choice::No,
        _ => {
            return Err(Refusal::violations(&[Violation {
                instance_path: "/payload".into(),
                message: "choice is exactly yes or no".into(),
            }]));
        }
    };
    let said = ["rationale", "notes", "note"].into_iter().find_map(|name| payload.get(name));
    let rationale = said.and_then(Value::as_str).map(str::to_owned);
    Ok((choice, rationale))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Validator;
    use serde_json::json;

    #[test]
    fn synonyms_are_accepted_and_anything_else_is_refused() {
        let form = Validator::compile(&plan_form()).unwrap();
        for (payload, want) in [
            (json!({"choice": "yes"}), Choice::Yes),
            (json!({"approved": false, "rationale": "r"}), Choice::No),
            (json!({"decision": "rejected"}), Choice::No),
            (json!({"decision": "approve"}), Choice::Yes),
            (json!({"choice": "no", "notes": "not today"}), Choice::No),
            (json!({"approved": true, "note": "fine"}), Choice::Yes),
        ] {
            assert!(form.check(&payload).is_ok(), "{payload}");
            assert_eq!(choice_of(&payload).unwrap().0, want);
        }
        for bad in [
            json!({}),
            json!({"choice": "maybe"}),
            json!({"choice": "YES"}),
            json!({"choice": "yes", "approved": false}),
            json!({"approved": "true"}),
            json!({"choice": "yes", "x": 1}),
            json!("yes"),
        ] {
            assert!(form.check(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sla_turns_at_sixty_seconds_and_at_the_deadline() {
        assert_eq!(SlaStatus::at(0, 60_001), SlaStatus::Normal);
        assert_eq!(SlaStatus::at(0, 60_000), SlaStatus::Warning);
        assert_eq!(SlaStatus::at(1, 0), SlaStatus::Critical);
    }
}
