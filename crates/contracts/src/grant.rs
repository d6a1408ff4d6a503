//! The answer of a person whom a running task asks for more.

use serde_json::{Value, json};

/// The form of its gate: no, or yes with a grant that fits this schema.
pub(crate) fn grant_gate_form(grant: &Value) -> Value {
    json!({
        "type": "object",
        "properties": {
            "choice": {"enum": ["yes", "no"]},
            "grant": grant,
            "rationale": {"type": "string", "maxLength": 4000}
        },
        "required": ["choice"],
        "additionalProperties": false,
        "if": {"properties": {"choice": {"const": "yes"}}},
        "then": {"required": ["grant"]},
        "else": {"properties": {"grant": false}}
    })
}
