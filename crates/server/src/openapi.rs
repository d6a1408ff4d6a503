//! The OpenAPI 3.1 document, from the route table and the contract's schemas. A committed golden
//! that a test makes again and compares.

use cofferdam_contracts::error::ErrorBody;
use cofferdam_contracts::schema::schema_of;
use serde_json::{Map, Value, json};

use crate::MAX_BODY_BYTES;
use crate::routes::{ROUTES, Route};
use crate::{parameters, responses};

/// The document.
#[must_use]
pub fn document() -> Value {
    let mut schemas = Map::new();
    let mut paths: Map<String, Value> = Map::new();
    hoist("ErrorBody", schema_of::<ErrorBody>(), &mut schemas);
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
            "schemas": schemas
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

fn operation(route: &Route, schemas: &mut Map<String, Value>) -> Value {
    let parameters = parameters::of(route);
    let answer = route.response.map(|schema| named(schema(), schemas));
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
            let body = json!({"required": true, "content": {"application/json": {"schema": named(schema(), schemas)}}});
            fields.insert("requestBody".into(), body);
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

/// A reference to a schema that has a title, after hoisting it; the schema itself otherwise.
fn named(schema: Value, schemas: &mut Map<String, Value>) -> Value {
    match schema.get("title").and_then(Value::as_str).map(str::to_owned) {
        Some(title) if !title.starts_with("Array_of") && title != "AnyValue" => {
            hoist(&title, schema, schemas);
            json!({"$ref": format!("#/components/schemas/{title}")})
        }
        _ => inline(schema, schemas),
    }
}

fn inline(mut schema: Value, schemas: &mut Map<String, Value>) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.remove("$schema");
        object.remove("title");
        if let Some(Value::Object(defs)) = object.remove("$defs") {
            for (name, def) in defs {
                schemas.insert(name, relink(def));
            }
        }
    }
    relink(schema)
}

fn hoist(title: &str, schema: Value, schemas: &mut Map<String, Value>) {
    let schema = inline(schema, schemas);
    schemas.insert(title.to_owned(), schema);
}

/// `#/$defs/X` becomes `#/components/schemas/X`.
fn relink(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .map(|(name, value)| {
                    // Classes of Unicode are no part of what every reader of patterns knows.
                    if name == "pattern" && value.as_str().is_some_and(|t| t.contains("\\p{")) {
                        return ("x-pattern".to_owned(), value);
                    }
                    match value.as_str().and_then(|t| t.strip_prefix("#/$defs/")) {
                        Some(target) if name == "$ref" => {
                            (name, json!(format!("#/components/schemas/{target}")))
                        }
                        _ => (name, relink(value)),
                    }
                })
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(relink).collect()),
        other => other,
    }
}
