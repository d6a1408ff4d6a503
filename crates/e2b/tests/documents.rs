//! The OpenAPI documents of E2B's API, who may call what, and the page of the reference are goldens made from the one table, and what
//! the table says can be relied on.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a helper of tests fails its test"
)]

#[path = "../../contracts/tests/golden/mod.rs"]
#[allow(dead_code, reason = "pages of other crates are made with the rest of it")]
mod golden;
#[path = "documents/reference.rs"]
mod reference;

use std::collections::BTreeSet;

use cofferdam_contracts::schema::Validator;
use cofferdam_e2b::{ROUTES, Surface, document, permissions};
use serde_json::{Value, json};

const SURFACES: [Surface; 2] = [Surface::Control, Surface::Envd];

fn hold(path: &str, document: &Value) {
    let manifest_dir = env!("CARGO_MANIFEST_DIR");
    golden::hold(manifest_dir, path, document, "documents", "golden");
}

#[test]
fn the_openapi_document_of_the_control_plane_is_its_golden() {
    hold("../../docs/e2b-openapi.json", &document(Surface::Control));
}

#[test]
fn the_openapi_document_of_envd_is_its_golden() {
    hold("../../docs/e2b-envd-openapi.json", &document(Surface::Envd));
}

#[test]
fn who_may_call_what_is_its_golden() {
    hold("../../docs/e2b-permissions.json", &serde_json::to_value(permissions()).unwrap());
}

#[test]
fn every_request_schema_compiles_and_refuses_unknown_fields() {
    for route in ROUTES {
        let Some(schema) = route.request else { continue };
        let validator = Validator::compile(&schema()).unwrap_or_else(|e| panic!("{route:?}: {e}"));
        let violations = validator.violations(&json!({"no such field": 1}));
        let is_named = violations.iter().any(|v| v.message.contains("no such field"));
        assert!(is_named, "{route:?}: {violations:?}");
    }
}

#[test]
fn every_schema_of_a_document_compiles_and_types_each_field() {
    for surface in SURFACES {
        let document = document(surface);
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            let mut whole = schema.clone();
            whole["components"] = document["components"].clone();
            Validator::compile(&whole).unwrap_or_else(|e| panic!("{name}: {e}"));
            for (field, property) in schema["properties"].as_object().into_iter().flatten() {
                let fields = property.as_object().unwrap();
                let says = ["type", "$ref", "enum", "const", "oneOf", "anyOf", "allOf"];
                assert!(says.iter().any(|word| fields.contains_key(*word)), "{name}.{field}");
            }
        }
    }
}

#[test]
fn every_reference_resolves() {
    for surface in SURFACES {
        let document = document(surface);
        let mut references = BTreeSet::new();
        collect(&document, &mut references);
        assert!(references.len() > 10, "{references:?}");
        for reference in references {
            let pointer = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference}"));
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
    }
}

fn collect(value: &Value, references: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(target) if name == "$ref" => drop(references.insert(target.to_owned())),
                    _ => collect(value, references),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, references)),
        _ => {}
    }
}

/// Two schemas of one name would overwrite each other in `components`.
#[test]
fn a_hoisted_schema_is_the_schema_of_its_type() {
    for route in ROUTES {
        let document = document(route.surface);
        for schema in [route.request, route.response].into_iter().flatten() {
            let schema = schema();
            for (name, def) in schema["$defs"].as_object().into_iter().flatten() {
                let text = def.to_string().replace("#/$defs/", "#/components/schemas/");
                let hoisted = &document["components"]["schemas"][name];
                assert_eq!(hoisted.to_string(), text, "{route:?}: {name}");
            }
        }
    }
}

#[test]
fn every_operation_is_unique_and_says_what_it_does() {
    for surface in SURFACES {
        let (mut ids, mut count) = (BTreeSet::new(), 0);
        for methods in document(surface)["paths"].as_object().unwrap().values() {
            for operation in methods.as_object().unwrap().values() {
                let id = operation["operationId"].as_str().unwrap().to_owned();
                assert!(ids.insert(id.clone()), "{id} names two operations");
                count += 1;
            }
        }
        let is_here = |route: &&cofferdam_e2b::Route| route.surface == surface;
        let served = ROUTES.iter().filter(is_here).filter(|route| route.refusal().is_none());
        assert_eq!(count, served.count(), "two rows are one operation");
    }
    for route in ROUTES.iter().filter(|route| route.refusal().is_none()) {
        assert!(!route.summary.is_empty() && !route.success.is_empty(), "{route:?}");
        assert!(route.success.iter().all(|status| (200..300).contains(status)), "{route:?}");
    }
}
