//! Which models a sandbox may call, and how much of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::grant::grant_gate_form;
use crate::id::{ModelName, ProviderName};

/// Providers that one sandbox may name.
const MAX_PROVIDERS: usize = 8;
/// Models that one sandbox may name: a list that a person reads before approving it.
const MAX_MODELS: usize = 64;

/// Most that one grant adds: far below what a sum of grants could overflow.
const MAX_GRANT: u64 = 1_000_000_000_000_000;

/// Bounds on the calls of a scope. Left out: not bounded here.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelLimit {
    /// Calls: 0 to 1,000,000,000.
    #[schemars(range(max = 1_000_000_000))]
    pub calls: Option<u64>,
    /// Input and output tokens: 0 to 1,000,000,000,000,000.
    #[schemars(range(max = 1_000_000_000_000_000_u64))]
    pub tokens: Option<u64>,
    /// Money in micro-units: 0 to 1,000,000,000,000,000.
    #[schemars(range(max = 1_000_000_000_000_000_u64))]
    pub micros: Option<u64>,
    /// Milliseconds from the scope's first call on: 1 to 86,400,000. A call that lasts longer is cut.
    #[schemars(range(min = 1, max = 86_400_000))]
    pub wall_ms: Option<u64>,
}

impl ModelLimit {
    /// Whether it bounds nothing.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it bounds what a call costs, and not only how many there are and how long they last.
    #[must_use]
    pub const fn bounds_cost(&self) -> bool {
        self.tokens.is_some() || self.micros.is_some()
    }
}

/// Bounds on the calls of one sandbox, and whether a person is asked for more where they are reached.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelBudget {
    /// Calls: 0 to 1,000,000,000.
    #[schemars(range(max = 1_000_000_000))]
    pub calls: Option<u64>,
    /// Input and output tokens: 0 to 1,000,000,000,000,000.
    #[schemars(range(max = 1_000_000_000_000_000_u64))]
    pub tokens: Option<u64>,
    /// Money in micro-units: 0 to 1,000,000,000,000,000.
    #[schemars(range(max = 1_000_000_000_000_000_u64))]
    pub micros: Option<u64>,
    /// Milliseconds from the first call on: 1 to 86,400,000. A call that lasts longer is cut.
    #[schemars(range(min = 1, max = 86_400_000))]
    pub wall_ms: Option<u64>,
    /// Whether a gate opens where the budget is reached, at which the call waits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ask: bool,
}

impl ModelBudget {
    /// The bounds alone.
    #[must_use]
    pub const fn limit(&self) -> ModelLimit {
        ModelLimit {
            calls: self.calls,
            tokens: self.tokens,
            micros: self.micros,
            wall_ms: self.wall_ms,
        }
    }
}

/// Which models a sandbox may call. Without it the sandbox has no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelsSpec {
    /// Providers, as `cofferdam model add` named them: 1 to 8. The first that speaks a call's protocol and has
    /// its model is asked.
    #[schemars(length(min = 1, max = 8))]
    pub providers: Vec<ProviderName>,
    /// Models: at most 64. Left out: every model of the providers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub models: Vec<ModelName>,
    /// Bounds of this sandbox.
    #[serde(default)]
    pub budget: ModelBudget,
    /// Bounds of all sandboxes of the run together.
    #[serde(default, skip_serializing_if = "ModelLimit::is_open")]
    pub run_budget: ModelLimit,
    /// Whether requests and answers are kept, redacted; default no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
}

impl ModelsSpec {
    /// What the types cannot say.
    ///
    /// # Errors
    /// The field that is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        if self.providers.is_empty() || self.providers.len() > MAX_PROVIDERS {
            return Err(format!("models.providers: must list 1 to {MAX_PROVIDERS} providers"));
        }
        if self.models.len() > MAX_MODELS {
            return Err(format!("models.models: must list at most {MAX_MODELS} models"));
        }
        Ok(())
    }

    /// Whether a call may name this model.
    #[must_use]
    pub fn allows(&self, model: &ModelName) -> bool {
        self.models.is_empty() || self.models.contains(model)
    }
}

/// The form of the gate at which a person grants a sandbox more of its budget.
#[must_use]
pub fn grant_form() -> Value {
    let more = |what: &str| json!({"type": "integer", "minimum": 0, "maximum": MAX_GRANT, "description": what});
    grant_gate_form(&json!({
        "type": "object",
        "properties": {
            "calls": more("calls"),
            "tokens": more("input and output tokens"),
            "micros": more("micro-units of money")
        },
        "minProperties": 1,
        "additionalProperties": false
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_spec_lists_providers_and_may_narrow_their_models() {
        let read = |value| serde_json::from_value::<ModelsSpec>(value);
        let spec = read(json!({"providers": ["p"], "budget": {"calls": 3, "ask": true}})).unwrap();
        assert!(spec.check().is_ok() && spec.budget.ask);
        assert_eq!(spec.budget.limit().calls, Some(3));
        assert!(spec.allows(&ModelName::parse("any").unwrap()));
        let narrow = read(json!({"providers": ["p"], "models": ["a"]})).unwrap();
        assert!(!narrow.allows(&ModelName::parse("b").unwrap()));
        assert!(read(json!({"providers": ["p"], "budget": {"calls": -1}})).is_err());
        assert!(read(json!({"providers": ["p"], "budgets": {}})).is_err());
        assert!(read(json!({"providers": []})).unwrap().check().is_err());
    }
}
