//! What tokens cost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::ModelName;

/// Tokens that a price is for.
const PER: u128 = 1_000_000;
/// Tokens that an answer may claim: a claim beyond is not believed. Far beyond the context of any model.
const MAX_CLAIM: u64 = 100_000_000;

/// A model that a provider may be asked for, with its prices: micro-units per million tokens.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    /// The model's name, as calls write it.
    pub model: ModelName,
    /// Micro-units per million input tokens: 0 to 1,000,000,000,000.
    #[serde(default)]
    #[schemars(range(max = 1_000_000_000_000_u64))]
    pub input_micros: u64,
    /// Micro-units per million output tokens: 0 to 1,000,000,000,000.
    #[serde(default)]
    #[schemars(range(max = 1_000_000_000_000_u64))]
    pub output_micros: u64,
    /// Micro-units per million input tokens that the provider read from its cache; default: as other input.
    #[schemars(range(max = 1_000_000_000_000_u64))]
    pub cached_micros: Option<u64>,
    /// Micro-units per million input tokens that the provider wrote to its cache for five minutes; default: as other
    /// input.
    #[schemars(range(max = 1_000_000_000_000_u64))]
    pub cache_write_micros: Option<u64>,
    /// Micro-units per million input tokens that the provider wrote to its cache for an hour; default: as those for five
    /// minutes.
    #[schemars(range(max = 1_000_000_000_000_u64))]
    pub cache_write_hour_micros: Option<u64>,
    /// Output tokens that are set aside for a call that does not name its own maximum: 1 to 10,000,000. Under a budget of
    /// tokens or money the call is sent with it.
    #[serde(default = "default_output")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_output: u64,
}

/// Micro-units of one unit of money.
pub const MICROS: u64 = 1_000_000;

/// Micro-units as a decimal of units with six places.
#[must_use]
pub fn money(micros: u64) -> String {
    format!("{}.{:06}", micros / MICROS, micros % MICROS)
}

/// Most models write at most this in one answer unless the call asks for more.
const fn default_output() -> u64 {
    32_768
}

/// Tokens of a call, as its provider claims them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelUsage {
    /// Input tokens, the cached ones included.
    pub input: u64,
    /// Output tokens, priced at `output_micros`.
    pub output: u64,
    /// Input tokens that were read from the provider's cache.
    pub cached: u64,
    /// Input tokens that were written to the provider's cache.
    #[serde(default)]
    pub written: u64,
    /// Those of them that stay there for an hour.
    #[serde(default)]
    pub written_hour: u64,
}

impl ModelUsage {
    /// Input and output.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// The claim where it can be believed: fewer tokens than any call has, and no more of the cache's than read.
    #[must_use]
    pub fn believed(self) -> Option<Self> {
        let is_small = self.input <= MAX_CLAIM && self.output <= MAX_CLAIM;
        let of_cache = self.cached.checked_add(self.written);
        let is_part = of_cache.is_some_and(|sum| sum <= self.input);
        (is_small && is_part && self.written_hour <= self.written).then_some(self)
    }
}

impl ModelPrice {
    /// What these tokens cost in micro-units, a part of one rounded up.
    #[must_use]
    pub fn cost_micros(&self, usage: ModelUsage) -> u64 {
        let of = |tokens: u64, micros: u64| u128::from(tokens) * u128::from(micros);
        let fresh = usage.input.saturating_sub(usage.cached).saturating_sub(usage.written);
        let [cached_micros, write_micros, hour_micros] = self.cache_prices();
        let sum = of(fresh, self.input_micros)
            + of(usage.cached, cached_micros)
            + of(usage.written.saturating_sub(usage.written_hour), write_micros)
            + of(usage.written_hour, hour_micros)
            + of(usage.output, self.output_micros);
        u64::try_from(sum.div_ceil(PER)).unwrap_or(u64::MAX)
    }

    /// What a token read from the cache, written for five minutes and written for an hour costs.
    fn cache_prices(&self) -> [u64; 3] {
        let write = self.cache_write_micros.unwrap_or(self.input_micros);
        [
            self.cached_micros.unwrap_or(self.input_micros),
            write,
            self.cache_write_hour_micros.unwrap_or(write),
        ]
    }

    /// The most that a call may use: at most `input` tokens of input ([`super::CallBound::input`]), and `max_output` tokens,
    /// by default the model's own maximum, for each of `choices` answers.
    #[must_use]
    pub fn most(&self, input: u64, max_output: Option<u64>, choices: u64) -> ModelUsage {
        let output = max_output.unwrap_or(self.max_output).saturating_mul(choices.max(1));
        ModelUsage { input, output, ..ModelUsage::default() }
    }

    /// The most that these tokens may cost, whatever the provider's cache does: its dearest input counts.
    #[must_use]
    pub fn most_micros(&self, most: ModelUsage) -> u64 {
        let dearest = self.cache_prices().into_iter().fold(self.input_micros, u64::max);
        Self { input_micros: dearest, ..self.clone() }.cost_micros(ModelUsage {
            cached: 0,
            written: 0,
            written_hour: 0,
            ..most
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn price() -> ModelPrice {
        ModelPrice {
            model: ModelName::parse("m").unwrap(),
            input_micros: 1_250_000,
            output_micros: 10_000_000,
            cached_micros: Some(125_000),
            cache_write_micros: None,
            cache_write_hour_micros: None,
            max_output: 100,
        }
    }

    #[test]
    fn a_cost_is_exact_and_rounded_up_once() {
        let cost = |input, output, cached| {
            price().cost_micros(ModelUsage { input, output, cached, ..ModelUsage::default() })
        };
        assert_eq!(cost(1_000_000, 0, 0), 1_250_000);
        assert_eq!(cost(1_000_000, 0, 1_000_000), 125_000);
        assert_eq!(cost(1_000, 17, 100), 1_125 + 12 + 1 + 170);
        assert_eq!(cost(0, 0, 0), 0);
        assert_eq!(cost(1, 0, 0), 2, "1.25 micro-units");
        assert_eq!(cost(u64::MAX, u64::MAX, 0), u64::MAX);
    }

    #[test]
    fn what_is_set_aside_is_the_most_that_a_call_may_use() {
        let most = |max, choices| price().most(4_000, max, choices);
        let plain = ModelUsage { input: 4_000, output: 100, ..ModelUsage::default() };
        assert_eq!(most(None, 1), plain);
        assert_eq!(most(Some(7), 3).output, 21);
        assert_eq!(most(Some(u64::MAX), 9).output, u64::MAX);
    }

    #[test]
    fn a_claim_beyond_belief_is_none() {
        let claim = |input, output, cached| {
            ModelUsage { input, output, cached, ..ModelUsage::default() }.believed()
        };
        assert!(claim(10, 10, 10).is_some());
        assert!(claim(u64::MAX, 1, 0).is_none() && claim(1, u64::MAX, 0).is_none());
        assert!(claim(1, 1, 2).is_none());
        let wrote = |cached, written, written_hour| {
            ModelUsage { input: 9, output: 1, cached, written, written_hour }.believed()
        };
        assert!(wrote(4, 5, 5).is_some());
        assert!(wrote(5, 5, 0).is_none() && wrote(1, u64::MAX, 0).is_none());
        assert!(wrote(0, 5, 6).is_none());
    }

    #[test]
    fn a4_what_is_written_to_a_cache_has_its_price_and_is_set_aside_at_the_dearest() {
        let dear = ModelPrice {
            input_micros: 3_000_000,
            cache_write_micros: Some(3_750_000),
            cache_write_hour_micros: Some(6_000_000),
            ..price()
        };
        let usage = ModelUsage {
            input: 100_095,
            output: 0,
            cached: 0,
            written: 100_000,
            written_hour: 100_000,
        };
        assert_eq!(dear.cost_micros(usage), 600_285);
        assert_eq!(dear.cost_micros(ModelUsage { written_hour: 0, ..usage }), 375_285);
        assert_eq!(
            price().cost_micros(ModelUsage { cached: 0, ..usage }),
            125_119,
            "as other input"
        );
        let most = dear.most(100_095, Some(0), 1);
        assert!(dear.most_micros(most) >= dear.cost_micros(usage));
        assert_eq!(dear.most_micros(most), 600_570);
    }
}
