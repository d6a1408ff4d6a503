//! A refusal in the words of the provider that a client believes to talk to.

use serde_json::{Value, json};

use super::ModelProtocol;

/// The body of a refusal: the client's own library reads it as an error that another try does not change.
#[must_use]
pub fn refusal_body(protocol: ModelProtocol, code: &str, message: &str) -> Value {
    match protocol {
        ModelProtocol::OpenaiChat | ModelProtocol::OpenaiResponses => json!({"error": {
            "message": message, "type": "invalid_request_error", "param": null, "code": code,
        }}),
        ModelProtocol::AnthropicMessages => json!({"type": "error", "error": {
            "type": "permission_error", "message": format!("{code}: {message}"),
        }}),
    }
}
