//! Webhooks: who is told of what, and how far a delivery is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;
use crate::id::{DeliveryId, Digest, IntentId, RunId, WebhookId};
use crate::recipe::RecipeRef;
use crate::run::RunStatus;

named! {
    /// Events that a webhook may ask for.
    #[derive(
        Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
    )]
    pub enum EventType {
        /// A gate waits for a person, or waits again.
        GateOpened = "gate.opened",
        /// A gate still waits and its people were reminded.
        GateReminded = "gate.reminded",
        /// A gate took its answer.
        GateDecided = "gate.decided",
        /// A gate's deadline passed without one.
        GateTimedOut = "gate.timed_out",
        /// A gate's escalation was started.
        GateEscalated = "gate.escalated",
        /// A gate's run was canceled.
        GateCanceled = "gate.canceled",
        /// A run ended, however it did.
        RunTerminal = "run.terminal",
    }
}

/// Body of `POST /api/webhooks`: the address and the events of a new webhook.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookRequest {
    /// Where to: http or https, without user, password and fragment.
    #[schemars(length(min = 1, max = 2_048))]
    pub url: String,
    /// Of what; left out: of everything.
    #[schemars(length(min = 1, max = 7))]
    pub events: Option<Vec<EventType>>,
    /// A note for people.
    #[schemars(length(max = 128))]
    pub label: Option<String>,
}

/// A new webhook; its secret is shown once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebhookResponse {
    /// Id of the webhook in API paths: `wh_` and 32 hex digits.
    pub webhook_id: WebhookId,
    /// What its receiver checks signatures with: `whsec_<base64>`.
    pub secret: String,
    /// Address that deliveries are posted to.
    pub url: String,
    /// Events that the webhook is sent, each once; all where the request named none.
    pub events: Vec<EventType>,
}

/// A webhook without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebhookRow {
    /// Id of the webhook in API paths: `wh_` and 32 hex digits.
    pub webhook_id: WebhookId,
    /// Address that deliveries are posted to.
    pub url: String,
    /// Events that the webhook is sent, each once.
    pub events: Vec<EventType>,
    /// A note for people.
    pub label: Option<String>,
    /// ms since the epoch.
    pub created_at: i64,
    /// ms since the epoch; absent while it is told of events.
    pub removed_at: Option<i64>,
    /// Deliveries on their way.
    pub pending: i64,
    /// Deliveries that were given up.
    pub dead: i64,
}

named! {
    /// How far a delivery is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum DeliveryState {
        /// It is sent, or will be again.
        Pending = "pending",
        /// Its receiver acknowledged it.
        Delivered = "delivered",
        /// It was given up; an operator may replay it.
        Dead = "dead",
    }
}

/// One event on its way to one webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeliveryRow {
    /// The `webhook-id` of every attempt.
    pub delivery_id: DeliveryId,
    /// Event that the delivery reports.
    pub event: EventType,
    /// Run that the event is about.
    pub run_id: RunId,
    /// The gate, where the event is a gate's.
    pub gate_key: Option<String>,
    /// How far it is.
    pub state: DeliveryState,
    /// How often it was sent, as far as is known.
    pub attempts: i32,
    /// When it is sent next, ms since the epoch; absent once that is over.
    pub next_at: Option<i64>,
    /// What the last answer was, where there was one.
    pub last_status: Option<i32>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// When it happened, ms since the epoch.
    pub occurred_at: i64,
}

/// Answer of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeliveryReplay {
    /// Always true; a refused replay answers with an error instead.
    pub accepted: bool,
    /// Delivery that is sent again.
    pub delivery_id: DeliveryId,
}

/// Answer of removing a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebhookRemoval {
    /// The webhook that is gone.
    pub removed: WebhookId,
}

/// Body of a delivery that tells of a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateEvent {
    /// Any but `run.terminal`.
    #[serde(rename = "type")]
    pub event: EventType,
    /// When it happened, in UTC with microseconds: `2026-01-31T09:05:00.000123Z`.
    pub timestamp: String,
    /// Gate that the event is about, as it was then.
    pub data: GateEventData,
}

/// A gate, as it was when the event happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GateEventData {
    /// Run that waits at the gate.
    pub run_id: RunId,
    /// Workflow of the run.
    #[serde(rename = "workflowID")]
    pub workflow_id: String,
    /// Key of the gate in its run.
    pub gate_key: String,
    /// Topic of the gate's answers.
    pub topic: String,
    /// Digest of the plan that the gate holds back; `null` for a task's question.
    pub plan_digest: Option<Digest>,
    /// When the gate opened, ms since the epoch.
    pub created_at: i64,
    /// When the gate stops waiting, ms since the epoch.
    pub deadline_at: i64,
    /// Workflow of the escalation; `null` until it was started.
    #[serde(rename = "escalationWorkflowID")]
    pub escalation_workflow_id: Option<String>,
    /// Choice that decided the gate; only in `gate.decided`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// Host name that a task asks for; only in a task's question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_name: Option<String>,
}

/// Body of a delivery that tells of a run's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunEvent {
    /// Type of the event: always `run.terminal`.
    #[serde(rename = "type")]
    pub event: EventType,
    /// When the run ended, in UTC with microseconds.
    pub timestamp: String,
    /// Run that ended, with its status.
    pub data: RunEventData,
}

/// A run that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunEventData {
    /// Id of the run: `rn_` and 32 hex digits.
    pub run_id: RunId,
    /// Workflow of the run.
    #[serde(rename = "workflowID")]
    pub workflow_id: String,
    /// Intent that the run serves.
    pub intent_id: IntentId,
    /// How the run ended.
    pub status: RunStatus,
    /// Recipe of the run.
    pub recipe_ref: RecipeRef,
    /// When the run ended, ms since the epoch.
    pub finished_at: i64,
}

/// What a delivery tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookEvent {
    /// A gate moved.
    Gate(Box<GateEvent>),
    /// A run ended.
    Run(Box<RunEvent>),
}

impl WebhookEvent {
    /// The bytes that are signed and sent, the same each time: fields in the order of their declaration.
    ///
    /// # Errors
    /// Never for a value that was parsed.
    pub fn body(&self) -> serde_json::Result<String> {
        match self {
            Self::Gate(event) => serde_json::to_string(event),
            Self::Run(event) => serde_json::to_string(event),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_the_same_bytes_each_time_and_parses_as_what_it_was() {
        let gate = r#"{"type":"gate.decided","timestamp":"2026-01-31T09:05:00.000123Z","data":{"runId":"rn_00000000000000000000000000000001","workflowID":"it_1","gateKey":"approve-plan","topic":"human:approve-plan","planDigest":null,"createdAt":1,"deadlineAt":2,"escalationWorkflowID":null,"decision":"yes"}}"#;
        let run = r#"{"type":"run.terminal","timestamp":"2026-01-31T09:05:00.000123Z","data":{"runId":"rn_00000000000000000000000000000001","workflowID":"it_1","intentId":"it_00000000000000000000000000000001","status":"succeeded","recipeRef":{"id":"hello","v":"1"},"finishedAt":3}}"#;
        let parsed = WebhookEvent::Gate(serde_json::from_str(gate).unwrap());
        assert_eq!((parsed.body().unwrap(), parsed.body().unwrap()), (gate.into(), gate.into()));
        let parsed = WebhookEvent::Run(serde_json::from_str(run).unwrap());
        assert_eq!(parsed.body().unwrap(), run);
        assert!(serde_json::from_str::<RunEvent>(gate).is_err());
        assert!(serde_json::from_str::<GateEvent>(run).is_err());
    }

    #[test]
    fn the_text_of_an_event_is_its_serialized_form() {
        for event in EventType::ALL {
            assert_eq!(serde_json::to_value(event).unwrap(), event.as_str());
            assert_eq!(EventType::parse(event.as_str()), Some(*event));
        }
        for state in DeliveryState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
        assert_eq!(EventType::parse("gate.*"), None);
    }
}
