//! What a person reads who is asked for more of a budget.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::price::money;
use crate::enum_names::named;

named! {
    /// A bound of a budget that a person may raise.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum BudgetMetric {
        /// Calls that were sent.
        Calls = "calls",
        /// Input and output tokens.
        Tokens = "tokens",
        /// Micro-units of money.
        Micros = "micros",
    }
}

/// The bound that a call would pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetAsk {
    /// Bound of the sandbox's budget; also the unit of `limit`, `observed` and `wanted`.
    pub metric: BudgetMetric,
    /// Its value, with earlier grants.
    pub limit: u64,
    /// Used, or set aside for calls on their way, when the gate opened.
    pub observed: u64,
    /// Most that the waiting call may use; absent for calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<u64>,
}

impl BudgetAsk {
    /// Such as `tokens: 1200 of 2000 used, the waiting call may use 900`.
    #[must_use]
    pub fn words(&self) -> String {
        let of = |n: u64| match self.metric {
            BudgetMetric::Micros => money(n),
            BudgetMetric::Calls | BudgetMetric::Tokens => n.to_string(),
        };
        let name = match self.metric {
            BudgetMetric::Micros => "money",
            other => other.as_str(),
        };
        let wanted = self.wanted.map_or_else(String::new, |wanted| {
            format!(", the waiting call may use {}", of(wanted))
        });
        format!("{name}: {} of {} used{wanted}", of(self.observed), of(self.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_a1_a_question_says_what_was_reached_and_how_much_is_used() {
        let ask = |metric, wanted| BudgetAsk { metric, limit: 800_000, observed: 3, wanted };
        assert_eq!(ask(BudgetMetric::Calls, None).words(), "calls: 3 of 800000 used");
        assert_eq!(
            ask(BudgetMetric::Micros, Some(812_345)).words(),
            "money: 0.000003 of 0.800000 used, the waiting call may use 0.812345"
        );
        // As older versions wrote it.
        let old = serde_json::json!({"metric": "tokens", "limit": 5, "observed": 4});
        let old: BudgetAsk = serde_json::from_value(old).unwrap();
        assert_eq!(old.words(), "tokens: 4 of 5 used");
    }
}
