//! What a route answers, by status and type: for the document.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_contracts::error::ErrorCode;
use serde_json::{Map, Value, json};

use crate::route::Route;

/// The schema of an answer's JSON, where it has one.
pub(crate) fn of(route: &Route, schema: Option<&Value>) -> Map<String, Value> {
    let mut all = BTreeMap::new();
    all.insert(route.success, json!({"description": "success", "content": success(route, schema)}));
    let answered = all.get_mut(&route.success).and_then(Value::as_object_mut);
    if let Some(page) = answered.filter(|_| route.has_pages()) {
        let what =
            "the address of the page after this one, with `rel=\"next\"`; absent on the last";
        let link = json!({"Link": {"schema": {"type": "string"}, "description": what}});
        page.insert("headers".into(), link);
    }
    if route.replays() {
        let same = json!({"description": "the same start was there already: its run", "content": json_of(schema)});
        all.insert(200, same);
    }
    if route.is_bytes() {
        all.insert(304, json!({"description": "the bytes are those of If-None-Match"}));
        let part = json!({"description": "the bytes of Range, which Content-Range names", "content": success(route, schema)});
        all.insert(206, part);
    }
    let statuses: BTreeSet<u16> = ErrorCode::ALL.iter().map(|code| code.status()).collect();
    for status in statuses {
        let codes: Vec<&str> = ErrorCode::ALL
            .iter()
            .filter(|code| code.status() == status)
            .map(|code| code.as_str())
            .collect();
        let error = json!({"$ref": "#/components/schemas/ErrorBody"});
        all.insert(
            status,
            json!({"description": codes.join(", "), "content": json_of(Some(&error))}),
        );
    }
    if route.path == "/healthz" {
        // It says what is unwell in its own words.
        let said = json!({"description": "unwell, or unavailable", "content": json_of(schema)});
        all.insert(503, said);
    }
    all.into_iter().map(|(status, response)| (status.to_string(), response)).collect()
}

fn json_of(schema: Option<&Value>) -> Value {
    match schema {
        Some(schema) => json!({"application/json": {"schema": schema}}),
        None => json!({"application/json": {}}),
    }
}

fn success(route: &Route, schema: Option<&Value>) -> Value {
    match (schema, route.is_bytes()) {
        (Some(schema), _) if route.has_page() => {
            json!({"application/json": {"schema": schema}, "text/html": {"schema": {"type": "string"}}})
        }
        (Some(schema), _) if route.is_archive() => {
            json!({"application/json": {"schema": schema}, "application/x-tar": {}, "application/zip": {}})
        }
        (Some(_), _) => json_of(schema),
        (None, true) => {
            json!({"application/octet-stream": {}, "application/json": {}, "text/plain": {"schema": {"type": "string"}}})
        }
        (None, false) => {
            json!({"application/x-ndjson": {"schema": {"type": "string"}}, "text/event-stream": {"schema": {"type": "string"}}})
        }
    }
}
