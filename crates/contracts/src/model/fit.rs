//! A call that asks for more output than its budgets have room for is sent with as much as they have. Pure.
//!
//! Agents ask for the most that a model writes, and use a thousandth of it. What is set aside for a call is what it asks for, so
//! that the first call of a small budget would be refused although it costs next to nothing.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ModelPrice, ModelProtocol};

/// Output tokens with which a call is still worth sending, where it asks for more: an answer of some 12,000 letters.
pub const LEAST_OUTPUT: u64 = 4_096;

/// What budgets leave to one call; absent where none bounds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallAllowance {
    /// Tokens that it may use, input and output.
    pub tokens: Option<u64>,
    /// Micro-units of money that it may cost.
    pub micros: Option<u64>,
}

impl CallAllowance {
    fn holds(&self, price: &ModelPrice, input: u64, output: u64, choices: u64) -> bool {
        let most = price.most(input, Some(output), choices);
        self.tokens.is_none_or(|left| most.tokens() <= left)
            && self.micros.is_none_or(|left| price.most_micros(most) <= left)
    }

    /// The most output with which a call of `input` tokens fits: `asked` tokens for each of `choices` answers, or fewer, but not fewer than
    /// `least`, which is asked for only where it does not fit. `None`: as it is asked for, because it fits so, or because it
    /// fits in no way.
    #[must_use]
    pub fn output(
        &self,
        price: &ModelPrice,
        input: u64,
        asked: u64,
        choices: u64,
        least: impl FnOnce() -> u64,
    ) -> Option<u64> {
        let holds = |output| self.holds(price, input, output, choices);
        if holds(asked) {
            return None;
        }
        let least = least();
        if least >= asked || !holds(least) {
            return None;
        }
        let (mut fits, mut beyond) = (least, asked);
        while beyond.saturating_sub(fits) > 1 {
            let middle = fits.saturating_add(beyond.saturating_sub(fits) / 2);
            match holds(middle) {
                true => fits = middle,
                false => beyond = middle,
            }
        }
        Some(fits)
    }
}

#[derive(Deserialize)]
struct ThinkingConfig {
    #[serde(default)]
    budget_tokens: Option<u64>,
}

/// The members of a call, each as it was written.
fn members(body: &[u8]) -> Option<BTreeMap<&str, &RawValue>> {
    serde_json::from_slice(body).ok()
}

/// The least output that a call can be cut to: what it wants to think comes out of it.
#[must_use]
pub fn least_output(body: &[u8]) -> u64 {
    let thinking = members(body).and_then(|members| members.get("thinking").copied());
    let thinking =
        thinking.and_then(|text| serde_json::from_str::<ThinkingConfig>(text.get()).ok());
    let thought = thinking.and_then(|thinking| thinking.budget_tokens).unwrap_or(0);
    LEAST_OUTPUT.saturating_add(thought)
}

/// The body with this output in place of what it asks for. What is below its members stays as it was written, since a
/// provider's cache knows it so. `None`: it is no call's body.
#[must_use]
pub fn with_less_output(protocol: ModelProtocol, body: &[u8], output: u64) -> Option<Vec<u8>> {
    let names = protocol.output_members();
    let number = RawValue::from_string(output.to_string()).ok()?;
    let mut members = members(body)?;
    let mut is_named = false;
    for name in names {
        if let Some(value) = members.get_mut(name).filter(|value| value.get() != "null") {
            *value = &number;
            is_named = true;
        }
    }
    if !is_named {
        members.insert(names.first()?, &number);
    }
    serde_json::to_vec(&members).ok()
}

#[cfg(test)]
mod tests {
    use super::super::price::tests::price as cheap;
    use super::*;

    /// As the large models of the day cost: 3 and 15 a million.
    fn price() -> ModelPrice {
        ModelPrice { input_micros: 3_000_000, output_micros: 15_000_000, ..cheap() }
    }

    fn room(tokens: u64, micros: u64) -> CallAllowance {
        let of = |n: u64| (n > 0).then_some(n);
        CallAllowance { tokens: of(tokens), micros: of(micros) }
    }

    #[test]
    fn b2_a_first_call_that_asks_for_more_than_its_budget_is_sent_with_what_fits() {
        // Claude's first request has 116 KB and asks for 32,000.
        let fits = |room: CallAllowance| room.output(&price(), 116_000, 32_000, 1, || LEAST_OUTPUT);
        assert_eq!(fits(room(140_000, 0)), Some(24_000));
        assert_eq!(fits(room(0, 800_000)), Some(30_133));
        assert_eq!(fits(room(140_000, 800_000)), Some(24_000), "the tighter of both");
        assert_eq!(fits(room(148_000, 0)), None, "it fits as it is");
        assert_eq!(fits(room(120_095, 0)), None, "less is not worth sending: it is refused");
        assert_eq!(fits(room(120_096, 0)), Some(LEAST_OUTPUT));
        assert_eq!(fits(CallAllowance::default()), None);
        let two = room(140_000, 0).output(&price(), 116_000, 32_000, 2, || LEAST_OUTPUT);
        assert_eq!(two, Some(12_000), "for each of two answers");
        let small = room(10, 0).output(&price(), 5, 100, 1, || LEAST_OUTPUT);
        assert_eq!(small, None, "it asks for less than what is worth sending");
    }

    #[test]
    fn b2_what_is_cut_leaves_room_for_what_is_thought() {
        assert_eq!(least_output(br#"{"model":"m"}"#), LEAST_OUTPUT);
        let body = br#"{"thinking":{"type":"enabled","budget_tokens":10000}}"#;
        assert_eq!(least_output(body), LEAST_OUTPUT + 10_000);
        for odd in [&b"{"[..], br#"{"thinking":7}"#, br#"{"thinking":{"budget_tokens":-1}}"#] {
            assert_eq!(least_output(odd), LEAST_OUTPUT);
        }
    }

    #[test]
    fn b2_the_rest_of_a_body_stays_as_it_was_written() {
        let messages = r#"[{"role":"user",  "content":"a \u00e9 \"max_tokens\":1","z":1,"a":1e3}]"#;
        let body = format!(r#"{{"model":"m","max_tokens":32000,"messages":{messages}}}"#);
        let less = with_less_output(ModelProtocol::AnthropicMessages, body.as_bytes(), 5_000);
        let less = String::from_utf8(less.unwrap()).unwrap();
        assert_eq!(less, format!(r#"{{"max_tokens":5000,"messages":{messages},"model":"m"}}"#));
        let chat = |body: &str| {
            let less = with_less_output(ModelProtocol::OpenaiChat, body.as_bytes(), 7);
            String::from_utf8(less.unwrap()).unwrap()
        };
        assert_eq!(chat(r#"{"model":"m"}"#), r#"{"max_completion_tokens":7,"model":"m"}"#);
        let both = r#"{"max_completion_tokens":9,"max_tokens":8}"#;
        assert_eq!(chat(both), r#"{"max_completion_tokens":7,"max_tokens":7}"#);
        assert_eq!(with_less_output(ModelProtocol::OpenaiChat, b"[]", 7), None);
    }
}
