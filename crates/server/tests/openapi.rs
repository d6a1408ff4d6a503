//! The OpenAPI document and the permission matrix are goldens made from the one route table, and
//! what the table says can be relied on.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a helper of tests fails its test"
)]

#[path = "../../contracts/tests/golden/mod.rs"]
#[allow(dead_code, reason = "the pages of other crates use the rest")]
mod golden;
#[path = "openapi/reference.rs"]
mod reference;

use std::collections::BTreeSet;

use cofferdam_server::openapi;
use cofferdam_server::routes::ROUTES;
use golden::document as check;
use serde_json::Value;

fn hold(path: &str, document: &Value) {
    let manifest_dir = env!("CARGO_MANIFEST_DIR");
    golden::hold(manifest_dir, path, document, "openapi", "golden");
}

#[test]
fn the_openapi_document_is_its_golden() {
    hold("../../docs/openapi.json", &openapi::document());
}

#[test]
fn the_permission_matrix_is_its_golden() {
    hold("../../docs/permissions.json", &openapi::permissions());
}

#[test]
fn every_request_schema_compiles_and_refuses_unknown_fields() {
    for route in ROUTES {
        if let Some(schema) = route.request {
            check::request(route, &schema());
        }
    }
}

/// Fields that publish no type: (schema, field, why). The list only shrinks.
const UNTYPED: &[(&str, &str, &str)] = &[
    ("ConfigEntry", "value", "its key has its own schema"),
    ("ConfigPut", "value", "its key has its own schema"),
    ("ConfigVersion", "value", "its key has its own schema"),
    ("DispatchView", "sandbox_effective", "a record of any version, as it was written"),
    (
        "DispatchView",
        "sandbox_spec",
        "as it was asked for, unknown fields of a lenient spec included",
    ),
    ("ErrorBody", "details", "of its code: the page of the code shows it"),
    ("ErrorBody", "drift", "fields of a request of any kind"),
    ("HitlEvent", "payload", "the gate's own form"),
    ("ImportRequest", "rows", "rows of another program's table, checked one by one"),
    ("IntentRequest", "inputs", "the recipe's own form"),
    ("InteractionRow", "payload", "the gate's own form"),
    ("LinkReply", "payload", "the gate's own form"),
    ("LinkView", "formSchema", "a JSON Schema"),
    ("OpsStep", "error", "what the engine recorded"),
    ("OpsStep", "output", "what the engine recorded"),
    ("Prompt", "defaults", "the gate's own form"),
    ("Prompt", "formSchema", "a JSON Schema"),
    ("Prompt", "uiHints", "shown by forms, never read here"),
    ("PromptResult", "payload", "the gate's own form"),
    ("ProofResult", "rows", "of the proof's own statement"),
    ("Recipe", "form", "a JSON Schema"),
    (
        "RecipeImport",
        "recipe",
        "a recipe, refused with its field rather than by a schema of forty types",
    ),
    ("RecipeImportResponse", "form", "a JSON Schema"),
    ("RecipeRunRequest", "formData", "the recipe's own form"),
    (
        "RecipeVersion",
        "recipe",
        "a recipe, refused with its field rather than by a schema of forty types",
    ),
    ("ErasureRow", "removed", "counts by table"),
    ("ReplyRequest", "payload", "the gate's own form"),
    ("Repro", "formData", "the recipe's own form"),
    (
        "SpawnRequest",
        "sandbox_spec",
        "a sandbox spec, refused with its field, or kept where it is lenient",
    ),
    ("ScheduleFields", "inputs", "a form of the recipe's own"),
    ("TaskSpec", "each", "a list of anything, or an expression"),
];

#[test]
fn no_route_publishes_an_answer_without_a_type() {
    let document = openapi::document();
    let operations = document["paths"].as_object().unwrap();
    for (path, methods) in operations {
        for (method, operation) in methods.as_object().unwrap() {
            for (status, answer) in operation["responses"].as_object().unwrap() {
                let schema = &answer["content"]["application/json"]["schema"];
                assert!(
                    schema.is_null() || check::is_typed(schema),
                    "{method} {path} {status}: {schema}"
                );
            }
        }
    }
    let mut found = BTreeSet::new();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            if !check::is_typed(property) {
                found.insert((name.as_str(), field.as_str()));
            }
        }
    }
    let known: BTreeSet<(&str, &str)> =
        UNTYPED.iter().map(|(name, field, _)| (*name, *field)).collect();
    assert_eq!(found, known, "give the field a type, or its reason here");
}

#[test]
fn every_reference_resolves() {
    check::references(&openapi::document(), 20);
}

#[test]
fn a_hoisted_schema_is_the_schema_of_its_type() {
    let document = openapi::document();
    for route in ROUTES {
        for schema in [route.request, route.response].into_iter().flatten() {
            check::definitions(&document, route, &schema());
        }
    }
}

#[test]
fn every_operation_is_unique_and_says_what_it_does() {
    let mut paths = BTreeSet::new();
    for route in ROUTES {
        assert!(paths.insert((route.method, route.path)), "{route:?} is listed twice");
        assert!(!route.summary.is_empty(), "{route:?}");
        assert!((200..300).contains(&route.success), "{route:?}");
    }
    assert_eq!(check::operations(&openapi::document()).len(), ROUTES.len());
}

/// Whoever adds an endpoint decides who may call it. A reply link is its own key, and a delivery is signed.
#[test]
fn only_the_health_check_reply_links_and_deliveries_are_open_to_everybody() {
    let open: Vec<&str> =
        ROUTES.iter().filter(|route| route.roles.is_empty()).map(|route| route.path).collect();
    assert_eq!(open, ["/healthz", "/api/links/{token}", "/api/links/{token}", "/api/hooks/{hook}"]);
}
