//! What holds of every OpenAPI document of ours.

use std::collections::BTreeSet;
use std::fmt::Debug;

use cofferdam_contracts::schema::Validator;
use serde_json::{Value, json};

/// The schema of a body compiles, and refuses a field that it does not list.
pub fn request(of: &impl Debug, schema: &Value) {
    let validator = Validator::compile(schema).unwrap_or_else(|e| panic!("{of:?}: {e}"));
    let violations = validator.violations(&json!({"no such field": 1}));
    let is_named = violations.iter().any(|v| v.message.contains("no such field"));
    assert!(is_named, "{of:?}: {violations:?}");
}

/// Every reference leads to something, and there are at least some.
pub fn references(document: &Value, least: usize) {
    let mut references = BTreeSet::new();
    collect(document, &mut references);
    assert!(references.len() > least, "{references:?}");
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference}"));
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}

fn collect<'d>(value: &'d Value, references: &mut BTreeSet<&'d str>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(target) if name == "$ref" => drop(references.insert(target)),
                    _ => collect(value, references),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, references)),
        _ => {}
    }
}

/// What a schema defines is in the document by the same name: two of one name would overwrite each other.
pub fn definitions(document: &Value, of: &impl Debug, schema: &Value) {
    for (name, definition) in schema["$defs"].as_object().into_iter().flatten() {
        let text = definition.to_string().replace("#/$defs/", "#/components/schemas/");
        let here = &document["components"]["schemas"][name];
        assert_eq!(here.to_string(), text, "{of:?}: {name}");
    }
}

/// The names of the operations, each of which is one's alone.
pub fn operations(document: &Value) -> BTreeSet<&str> {
    let mut ids = BTreeSet::new();
    for methods in document["paths"].as_object().unwrap().values() {
        for operation in methods.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id), "{id} names two operations");
        }
    }
    ids
}

/// What a schema says of itself beyond words about it.
pub fn is_typed(schema: &Value) -> bool {
    let says = ["type", "$ref", "enum", "const", "oneOf", "anyOf", "allOf"];
    let Some(fields) = schema.as_object() else { return false };
    match fields.get("type").and_then(Value::as_str) {
        Some("array") => fields.get("items").is_some_and(is_typed),
        Some("object") => {
            let is_map = fields.get("additionalProperties").is_some_and(is_typed);
            is_map || fields.contains_key("properties")
        }
        _ => says.iter().any(|word| fields.contains_key(*word)),
    }
}
