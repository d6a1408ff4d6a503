//! The JSON Schema of a message, from the table of its fields: for the OpenAPI document. Pure.

use cofferdam_contracts::schema::Components;
use serde_json::{Map, Value, json};

use crate::connect::schema::{Field, Kind, Message, Rule};

/// The schema of a message. One with a name of its own is kept, and referred to.
pub(crate) fn message(message: &Message, schemas: &mut Components) -> Value {
    let properties: Map<String, Value> = message
        .fields
        .iter()
        .map(|field| (field.name.to_owned(), property(field, schemas)))
        .collect();
    let schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if message.name.contains(' ') {
        return schema;
    }
    schemas.hoist(message.name, schema);
    json!({"$ref": format!("#/components/schemas/{}", message.name)})
}

fn property(field: &Field, schemas: &mut Components) -> Value {
    let one = match field.kind {
        Kind::Text => json!({"type": "string"}),
        Kind::Bytes => json!({"type": "string", "contentEncoding": "base64"}),
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Uint32 => json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
        Kind::Sint32 => json!({"type": "integer", "minimum": i32::MIN, "maximum": i32::MAX}),
        Kind::Int64 => json!({"type": "string", "pattern": "^-?[0-9]+$"}),
        Kind::Enum(names) => {
            let names: Vec<&str> = names.iter().map(|one| one.name).collect();
            json!({"type": "string", "enum": names})
        }
        Kind::Message(inner) => message(inner, schemas),
        Kind::Timestamp => json!({"type": "string", "format": "date-time"}),
        Kind::Texts => json!({"type": "object", "additionalProperties": {"type": "string"}}),
    };
    match field.rule {
        Rule::Repeated => json!({"type": "array", "items": one}),
        _ => one,
    }
}
