//! What a call's body asks for: as much of it as a budget needs. Everything else is the provider's.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::ModelProtocol;
use crate::id::ModelName;

/// What of a body is read. Other fields are passed on as they are.
#[derive(Debug, Deserialize)]
struct Body {
    model: String,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    n: Option<u64>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    max_completion_tokens: Option<u64>,
    #[serde(default)]
    max_output_tokens: Option<u64>,
    #[serde(default)]
    background: Option<bool>,
    #[serde(default)]
    previous_response_id: Option<IgnoredAny>,
    #[serde(default)]
    conversation: Option<IgnoredAny>,
    #[serde(default)]
    prompt: Option<IgnoredAny>,
}

/// The members that are judged.
const JUDGED: [&str; 17] = [
    "model",
    "stream",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "background",
    "previous_response_id",
    "conversation",
    "prompt",
    "messages",
    "input",
    "instructions",
    "system",
    "tools",
    "service_tier",
    "speed",
];

/// Whether a provider that does not tell cases apart would read a judged member where we read another one. Pure.
pub(super) fn is_disguised(name: &str, is_judged: &dyn Fn(&str) -> bool) -> bool {
    let folded = name.to_lowercase().replace('\u{17f}', "s");
    folded != name && is_judged(&folded)
}

/// What a call asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRequest {
    /// Name from the body's member `model`.
    pub model: ModelName,
    /// Whether the answer is to be a stream.
    pub stream: bool,
    /// Output tokens that it allows, where it says.
    pub max_output: Option<u64>,
    /// Answers that it asks for at once.
    pub choices: u64,
}

/// Why a body is not a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelRequestError {
    /// It is not JSON, or has a field of the wrong type.
    #[error("the body is not a JSON object with a `model`")]
    Malformed,
    /// The name cannot be a model's.
    #[error("`model` is not the name of a model")]
    Name,
    /// Its answer would come at another time, past every budget.
    #[error("`background` answers later, past every budget; leave it out")]
    Background,
    /// Its input lies at the provider, so that its size is not known before it is sent.
    #[error(
        "{0:?} names input that the body does not hold, past every budget; send it in the body"
    )]
    Elsewhere(&'static str),
}

impl ModelRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// It does not say which model, or asks for what a budget cannot bound.
    pub fn parse(protocol: ModelProtocol, body: &[u8]) -> Result<Self, ModelRequestError> {
        let members: BTreeMap<String, IgnoredAny> =
            serde_json::from_slice(body).map_err(|_| ModelRequestError::Malformed)?;
        let is_judged = |name: &str| JUDGED.contains(&name);
        if members.keys().any(|name| is_disguised(name, &is_judged)) {
            return Err(ModelRequestError::Malformed);
        }
        let body: Body = serde_json::from_slice(body).map_err(|_| ModelRequestError::Malformed)?;
        if body.background == Some(true) {
            return Err(ModelRequestError::Background);
        }
        if protocol == ModelProtocol::OpenaiResponses {
            let named = [
                ("previous_response_id", &body.previous_response_id),
                ("conversation", &body.conversation),
                ("prompt", &body.prompt),
            ];
            if let Some((name, _)) = named.into_iter().find(|(_, value)| value.is_some()) {
                return Err(ModelRequestError::Elsewhere(name));
            }
        }
        let max_output = match protocol {
            // The larger one: a provider may know only one of them.
            ModelProtocol::OpenaiChat => body.max_completion_tokens.max(body.max_tokens),
            ModelProtocol::OpenaiResponses => body.max_output_tokens,
            ModelProtocol::AnthropicMessages => body.max_tokens,
        };
        Ok(Self {
            model: ModelName::parse(&body.model).map_err(|_| ModelRequestError::Name)?,
            stream: body.stream.unwrap_or(false),
            max_output,
            choices: match protocol {
                ModelProtocol::OpenaiChat => body.n.unwrap_or(1),
                _ => 1,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3l_a_judged_member_in_another_case_is_refused() {
        for more in ["Model", "MODEL", "Max_Tokens", "N", "max_to\u{212a}ens"] {
            let text = format!(r#"{{"model":"m","{more}":1}}"#);
            let read = ModelRequest::parse(ModelProtocol::OpenaiChat, text.as_bytes());
            assert_eq!(read, Err(ModelRequestError::Malformed), "{more}");
        }
    }

    #[test]
    fn a_body_says_model_stream_and_maximum_in_its_protocols_words() {
        let parse = |protocol, text: &str| ModelRequest::parse(protocol, text.as_bytes());
        let chat = ModelProtocol::OpenaiChat;
        let asked = parse(
            chat,
            r#"{"model":"gpt","n":2,"max_tokens":9,"max_completion_tokens":7,"x":[{}]}"#,
        );
        let asked = asked.unwrap();
        assert_eq!((asked.max_output, asked.choices, asked.stream), (Some(9), 2, false));
        let asked =
            parse(ModelProtocol::OpenaiResponses, r#"{"model":"m","stream":true,"max_tokens":9}"#);
        assert_eq!((asked.clone().unwrap().max_output, asked.unwrap().stream), (None, true));
        let asked =
            parse(ModelProtocol::AnthropicMessages, r#"{"model":"m","max_tokens":9,"n":5}"#);
        assert_eq!((asked.clone().unwrap().max_output, asked.unwrap().choices), (Some(9), 1));
        for bad in ["", "[]", "{}", r#"{"model":7}"#, r#"{"model":"m","max_tokens":-1}"#] {
            assert_eq!(parse(chat, bad), Err(ModelRequestError::Malformed), "{bad}");
        }
        assert_eq!(parse(chat, r#"{"model":"a b"}"#), Err(ModelRequestError::Name));
        assert_eq!(
            parse(chat, r#"{"model":"m","background":true}"#),
            Err(ModelRequestError::Background)
        );
        for field in ["previous_response_id", "conversation", "prompt"] {
            let body = format!(r#"{{"model":"m","{field}":"resp_1"}}"#);
            let wanted = Err(ModelRequestError::Elsewhere(field));
            assert_eq!(parse(ModelProtocol::OpenaiResponses, &body), wanted);
            let body = format!(r#"{{"model":"m","{field}":null}}"#);
            assert!(
                parse(ModelProtocol::OpenaiResponses, &body).is_ok(),
                "{field}: null is nothing"
            );
            assert!(parse(chat, &body).is_ok());
        }
    }
}
