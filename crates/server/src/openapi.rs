//! The OpenAPI 3.1 document, from the route table and the contract's schemas. A committed golden
//! that a test makes again and compares.

use cofferdam_contracts::error::ErrorBody;
use cofferdam_contracts::schema::{Components, schema_of};
use serde_json::{Map, Value, json};

use crate::MAX_BODY_BYTES;
use crate::route::Route;
use crate::routes::ROUTES;
use crate::{parameters, responses};

/// The OpenAPI 3.1 document of every route, committed as `docs/openapi.json`.
#[must_use]
pub fn document() -> Value {
    let mut schemas = Components::default();
    let mut paths: Map<String, Value> = Map::new();
    schemas.hoist("ErrorBody", schema_of::<ErrorBody>());
    for route in ROUTES {
        let path = route.path.replace("{*", "{");
        let operation = operation(route, &mut schemas);
        if let Some(methods) = paths.entry(path).or_insert_with(|| json!({})).as_object_mut() {
            methods.insert(route.method.to_lowercase(), operation);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Cofferdam",
            "version": env!("CARGO_PKG_VERSION"),
            "description": format!("Bodies are at most {MAX_BODY_BYTES} bytes of JSON; unknown fields are refused, and so is U+0000 in any text or name.")
        },
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas.into_value()
        }
    })
}

/// Role by endpoint: who may call what. A golden too.
#[must_use]
pub fn permissions() -> Value {
    let rows: Map<String, Value> = ROUTES
        .iter()
        .map(|r| {
            let roles: Vec<&str> = r.roles.iter().map(|role| role.as_str()).collect();
            let who = if roles.is_empty() { json!("everybody") } else { json!(roles) };
            (format!("{} {}", r.method, r.path), who)
        })
        .collect();
    Value::Object(rows)
}

fn operation(route: &Route, schemas: &mut Components) -> Value {
    let parameters = parameters::of(route);
    let answer = route.response.map(|schema| schemas.named(schema()));
    let responses = responses::of(route, answer.as_ref());
    let mut operation = json!({
        "summary": route.summary,
        "operationId": operation_id(route),
        "parameters": parameters,
        "responses": responses,
        "x-roles": route.roles.iter().map(|r| r.as_str()).collect::<Vec<_>>(),
    });
    if let Some(fields) = operation.as_object_mut() {
        if let Some(schema) = route.request {
            let body = json!({"required": true, "content": {"application/json": {"schema": schemas.named(schema())}}});
            fields.insert("requestBody".into(), body);
        }
        if route.bytes_bound().is_some() {
            fields
                .insert("requestBody".into(), json!({"content": {"application/octet-stream": {}}}));
        }
        if route.takes_delivery() {
            let content = json!({"application/json": {}});
            fields.insert("requestBody".into(), json!({"required": true, "content": content}));
        }
        if route.roles.is_empty() {
            fields.insert("security".into(), json!([]));
        }
    }
    operation
}

fn operation_id(route: &Route) -> String {
    let words: Vec<&str> = route
        .path
        .split(['/', '{', '}', '*', '-'])
        .filter(|w| !w.is_empty() && *w != "api")
        .collect();
    format!("{}_{}", route.method.to_lowercase(), words.join("_"))
}
