//! Webhooks: who is told of what, and how far a delivery is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{DeliveryId, RunId, WebhookId};
use crate::named::named;

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

/// `POST /api/webhooks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookRequest {
    /// Where to: http or https, without user, password and fragment.
    #[schemars(length(min = 1, max = 2_048))]
    pub url: String,
    /// Of what; left out: of everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 7))]
    pub events: Option<Vec<EventType>>,
    /// A note for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub label: Option<String>,
}

/// A new webhook; its secret is shown once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebhookCreated {
    /// Names it.
    pub webhook_id: WebhookId,
    /// What its receiver checks signatures with: `whsec_<base64>`.
    pub secret: String,
    /// Where to.
    pub url: String,
    /// Of what.
    pub events: Vec<EventType>,
}

/// A webhook without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebhookRow {
    /// Names it.
    pub webhook_id: WebhookId,
    /// Where to.
    pub url: String,
    /// Of what.
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
    /// Of what.
    pub event: EventType,
    /// The run.
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
pub struct DeliveryReplayed {
    /// Always true.
    pub accepted: bool,
    /// Delivery that is sent again.
    pub delivery_id: DeliveryId,
}

/// Answer of removing a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebhookRemoved {
    /// The webhook that is gone.
    pub removed: WebhookId,
}

#[cfg(test)]
mod tests {
    use super::*;

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
