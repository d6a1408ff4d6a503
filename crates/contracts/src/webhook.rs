//! Webhooks: who is told of what, and how far a delivery is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{DeliveryId, RunId, WebhookId};

/// Events that a webhook may ask for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum EventType {
    /// A gate waits for a person, or waits again.
    #[serde(rename = "gate.opened")]
    GateOpened,
    /// A gate still waits and its people were reminded.
    #[serde(rename = "gate.reminded")]
    GateReminded,
    /// A gate took its answer.
    #[serde(rename = "gate.decided")]
    GateDecided,
    /// A gate's deadline passed without one.
    #[serde(rename = "gate.timed_out")]
    GateTimedOut,
    /// A gate's escalation was started.
    #[serde(rename = "gate.escalated")]
    GateEscalated,
    /// A gate's run was canceled.
    #[serde(rename = "gate.canceled")]
    GateCanceled,
    /// A run ended, however it did.
    #[serde(rename = "run.terminal")]
    RunTerminal,
}

impl EventType {
    /// Every event.
    pub const ALL: &[Self] = &[
        Self::GateOpened,
        Self::GateReminded,
        Self::GateDecided,
        Self::GateTimedOut,
        Self::GateEscalated,
        Self::GateCanceled,
        Self::RunTerminal,
    ];

    /// The event as it stands in SQL and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GateOpened => "gate.opened",
            Self::GateReminded => "gate.reminded",
            Self::GateDecided => "gate.decided",
            Self::GateTimedOut => "gate.timed_out",
            Self::GateEscalated => "gate.escalated",
            Self::GateCanceled => "gate.canceled",
            Self::RunTerminal => "run.terminal",
        }
    }

    /// Reads it back.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|event| event.as_str() == text)
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

/// How far a delivery is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryState {
    /// It is sent, or will be again.
    Pending,
    /// Its receiver acknowledged it.
    Delivered,
    /// It was given up; an operator may replay it.
    Dead,
}

impl DeliveryState {
    /// Every state.
    pub const ALL: &[Self] = &[Self::Pending, Self::Delivered, Self::Dead];

    /// The state as it stands in SQL.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }

    /// Reads it back.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|state| state.as_str() == text)
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
    /// Which.
    pub delivery_id: DeliveryId,
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
