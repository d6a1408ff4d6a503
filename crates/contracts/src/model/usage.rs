//! Tokens and errors of one JSON value, in the three wire formats. Pure.

use serde_json::Value;

use super::ModelProtocol;
use super::price::ModelUsage;

/// What one value of an answer says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Claims {
    /// The tokens that it claims.
    pub input: Option<u64>,
    pub output: Option<u64>,
    pub cached: Option<u64>,
    pub written: Option<u64>,
    pub written_hour: Option<u64>,
    /// Whether the input counts neither what was read from the cache nor what was written there.
    pub is_apart: bool,
    /// The error that it is.
    pub error: Option<String>,
    /// Whether nothing follows it in a stream.
    pub is_last: bool,
}

/// Characters of an error that are kept.
const MAX_ERROR_CHARS: usize = 400;

/// Reads one value: a whole answer, or an event of a stream.
pub(super) fn read(protocol: ModelProtocol, value: &Value) -> Claims {
    let kind = value.get("type").and_then(Value::as_str).unwrap_or_default();
    let mut said = Claims { error: error(value, kind), ..Claims::default() };
    match protocol {
        ModelProtocol::OpenaiChat => {
            let usage = value.get("usage");
            let field = |name| usage.and_then(|usage| usage.get(name)).and_then(Value::as_u64);
            said.input = field("prompt_tokens");
            said.output = field("completion_tokens");
            said.cached = detail(usage, "prompt_tokens_details");
        }
        ModelProtocol::OpenaiResponses => {
            let response = value.get("response").unwrap_or(value);
            let usage = response.get("usage");
            let field = |name| usage.and_then(|usage| usage.get(name)).and_then(Value::as_u64);
            said.input = field("input_tokens");
            said.output = field("output_tokens");
            said.cached = detail(usage, "input_tokens_details");
            said.error = said.error.or_else(|| error(response, ""));
            said.is_last =
                ["response.completed", "response.incomplete", "response.failed"].contains(&kind);
        }
        ModelProtocol::AnthropicMessages => {
            let usage = value.get("usage").or_else(|| value.get("message")?.get("usage"));
            let field = |name| usage.and_then(|usage| usage.get(name)).and_then(Value::as_u64);
            said.input = field("input_tokens");
            said.output = field("output_tokens");
            said.cached = field("cache_read_input_tokens");
            said.written = field("cache_creation_input_tokens");
            said.written_hour = usage
                .and_then(|usage| usage.get("cache_creation")?.get("ephemeral_1h_input_tokens"))
                .and_then(Value::as_u64);
            said.is_apart = true;
            said.is_last = kind == "message_stop";
        }
    }
    said
}

fn detail(usage: Option<&Value>, name: &str) -> Option<u64> {
    usage?.get(name)?.get("cached_tokens")?.as_u64()
}

fn error(value: &Value, kind: &str) -> Option<String> {
    let error = value.get("error").filter(|error| !error.is_null());
    let error = error.or_else(|| (kind == "error").then_some(value))?;
    let text = error.get("message").and_then(Value::as_str).or_else(|| error.as_str());
    let text = text.map_or_else(|| error.to_string(), str::to_owned);
    Some(text.chars().take(MAX_ERROR_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect())
}

impl Claims {
    /// Adds what a later value says: of each field the last word counts.
    pub(super) fn then(&mut self, later: Self) {
        self.input = later.input.or(self.input);
        self.output = later.output.or(self.output);
        self.cached = later.cached.or(self.cached);
        self.written = later.written.or(self.written);
        self.written_hour = later.written_hour.or(self.written_hour);
        self.is_apart |= later.is_apart;
        self.error = self.error.take().or(later.error);
        self.is_last |= later.is_last;
    }

    /// The claim, where it is whole and can be believed.
    pub(super) fn usage(&self) -> Option<ModelUsage> {
        let (input, output) = (self.input?, self.output?);
        let (cached, written) = (self.cached.unwrap_or(0), self.written.unwrap_or(0));
        let input = match self.is_apart {
            true => input.saturating_add(cached).saturating_add(written),
            false => input,
        };
        let written_hour = self.written_hour.unwrap_or(0);
        ModelUsage { input, output, cached, written, written_hour }.believed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_protocol_claims_its_tokens_in_its_own_fields() {
        let usage = |protocol, value: Value| read(protocol, &value).usage();
        let same =
            Some(ModelUsage { input: 1_000, output: 17, cached: 100, ..ModelUsage::default() });
        let chat = json!({"usage": {"prompt_tokens": 1000, "completion_tokens": 17,
            "prompt_tokens_details": {"cached_tokens": 100}}});
        assert_eq!(usage(ModelProtocol::OpenaiChat, chat), same);
        let responses = json!({"usage": {"input_tokens": 1000, "output_tokens": 17,
            "input_tokens_details": {"cached_tokens": 100}}});
        assert_eq!(usage(ModelProtocol::OpenaiResponses, responses.clone()), same);
        let event = json!({"type": "response.completed", "response": responses});
        assert_eq!(usage(ModelProtocol::OpenaiResponses, event), same);
        let messages = json!({"usage": {"input_tokens": 850, "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 50, "output_tokens": 17}});
        let wrote =
            |written_hour| same.map(|same| ModelUsage { written: 50, written_hour, ..same });
        assert_eq!(usage(ModelProtocol::AnthropicMessages, messages.clone()), wrote(0));
        let mut hour = messages;
        hour["usage"]["cache_creation"] =
            json!({"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 40});
        assert_eq!(usage(ModelProtocol::AnthropicMessages, hour.clone()), wrote(40));
        // A later event counts its input again, and not what it wrote.
        let mut said = read(
            ModelProtocol::AnthropicMessages,
            &json!({"type": "message_start", "message": hour}),
        );
        said.then(read(
            ModelProtocol::AnthropicMessages,
            &json!({"usage": {"input_tokens": 850, "output_tokens": 17}}),
        ));
        assert_eq!(said.usage(), wrote(40));
        for lie in [json!(-1), json!("9"), json!(1.5), json!(u64::MAX), json!(null)] {
            let value = json!({"usage": {"prompt_tokens": lie, "completion_tokens": 1}});
            assert_eq!(usage(ModelProtocol::OpenaiChat, value), None, "{lie}");
        }
    }

    #[test]
    fn an_error_inside_an_answer_is_an_error() {
        for (protocol, value) in [
            (ModelProtocol::OpenaiChat, json!({"error": {"message": "no"}})),
            (ModelProtocol::OpenaiResponses, json!({"type": "error", "message": "no"})),
            (
                ModelProtocol::OpenaiResponses,
                json!({"type": "response.failed", "response": {"error": {"message": "no"}}}),
            ),
            (
                ModelProtocol::AnthropicMessages,
                json!({"type": "error", "error": {"type": "overloaded_error", "message": "no"}}),
            ),
        ] {
            assert_eq!(read(protocol, &value).error.as_deref(), Some("no"), "{value}");
        }
        assert_eq!(read(ModelProtocol::OpenaiResponses, &json!({"error": null})).error, None);
    }
}
