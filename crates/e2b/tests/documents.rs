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

use std::sync::LazyLock;

use cofferdam_contracts::schema::Validator;
use cofferdam_e2b::{ROUTES, Surface, permissions};
use golden::document as check;
use serde_json::Value;

const SURFACES: [Surface; 2] = [Surface::Control, Surface::Envd];

/// Of a surface, made once.
fn document(surface: Surface) -> &'static Value {
    static DOCUMENTS: LazyLock<[Value; 2]> =
        LazyLock::new(|| SURFACES.map(cofferdam_e2b::document));
    let [control, envd] = &*DOCUMENTS;
    if surface == Surface::Control { control } else { envd }
}

fn hold(path: &str, document: &Value) {
    let manifest_dir = env!("CARGO_MANIFEST_DIR");
    golden::hold(manifest_dir, path, document, "documents", "golden");
}

#[test]
fn the_openapi_document_of_the_control_plane_is_its_golden() {
    hold("../../docs/e2b-openapi.json", document(Surface::Control));
}

#[test]
fn the_openapi_document_of_envd_is_its_golden() {
    hold("../../docs/e2b-envd-openapi.json", document(Surface::Envd));
}

#[test]
fn who_may_call_what_is_its_golden() {
    hold("../../docs/e2b-permissions.json", &serde_json::to_value(permissions()).unwrap());
}

#[test]
fn every_request_schema_compiles_and_refuses_unknown_fields() {
    for route in ROUTES {
        if let Some(schema) = route.request {
            check::request(route, &schema());
        }
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
                assert!(check::is_typed(property), "{name}.{field}");
            }
        }
    }
}

#[test]
fn every_reference_resolves() {
    for surface in SURFACES {
        check::references(document(surface), 10);
    }
}

#[test]
fn a_hoisted_schema_is_the_schema_of_its_type() {
    for route in ROUTES {
        for schema in [route.request, route.response].into_iter().flatten() {
            check::definitions(document(route.surface), route, &schema());
        }
    }
}

#[test]
fn every_operation_is_unique_and_says_what_it_does() {
    for surface in SURFACES {
        let is_here = |route: &&cofferdam_e2b::Route| route.surface == surface;
        let served = ROUTES.iter().filter(is_here).filter(|route| route.refusal().is_none());
        let operations = check::operations(document(surface)).len();
        assert_eq!(operations, served.count(), "two rows are one operation");
    }
    for route in ROUTES.iter().filter(|route| route.refusal().is_none()) {
        assert!(!route.summary.is_empty() && !route.success.is_empty(), "{route:?}");
        assert!(route.success.iter().all(|status| (200..300).contains(status)), "{route:?}");
    }
}
