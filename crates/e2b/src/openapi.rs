//! The OpenAPI 3.1 documents of E2B's API and who may call what, from the one table. Committed goldens, which a test makes again and
//! compares. Pure.

use std::collections::BTreeMap;

use cofferdam_contracts::schema::{Components, schema_of};
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use crate::answer::ErrorAnswer;
use crate::body::MAX_JSON_BYTES;
use crate::connect::fault::Fault;
use crate::connect::json_schema::message;
use crate::envd::VERSION;
use crate::parameters;
use crate::route::{Access, Endpoint, Route, Schema, Surface};
use crate::routes::ROUTES;

/// The document of the control plane, or of envd.
#[must_use]
pub fn document(surface: Surface) -> Value {
    let mut schemas = Components::default();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in ROUTES.iter().filter(|route| route.surface == surface) {
        if route.refusal().is_none() {
            let method = route.shown_method().to_lowercase();
            let operation = operation(route, &mut schemas);
            paths.entry(route.path).or_default().insert(method, operation);
        }
    }
    let (title, about) = match surface {
        Surface::Control => {
            ("E2B's control plane, as Cofferdam serves it", "Sandboxes and templates.")
        }
        Surface::Envd => (
            "E2B's envd, as Cofferdam serves it",
            "Port 49983 of a sandbox: its commands and files. Calls of `process.Process` and `filesystem.Filesystem` speak the Connect protocol, \
             in JSON and in protobuf; of a stream, the schema is that of one message.",
        ),
    };
    let version = if surface == Surface::Envd { VERSION } else { env!("CARGO_PKG_VERSION") };
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": version,
            "description": format!("{about} JSON has at most {MAX_JSON_BYTES} bytes; unknown fields are refused.")
        },
        "paths": paths,
        "components": {
            "securitySchemes": security_schemes(surface),
            "schemas": schemas.into_value()
        }
    })
}

fn security_schemes(surface: Surface) -> Value {
    let header = |name: &str| json!({"type": "apiKey", "in": "header", "name": name});
    match surface {
        Surface::Control => {
            json!({"key": header("X-API-Key"), "bearer": {"type": "http", "scheme": "bearer"}})
        }
        Surface::Envd => json!({"token": header("X-Access-Token")}),
    }
}

fn operation(route: &Route, schemas: &mut Components) -> Value {
    let mut operation = json!({
        "summary": route.summary,
        "operationId": operation_id(route),
        "parameters": parameters::of(route),
        "responses": responses(route, schemas),
        "security": security(route.access),
        "x-permission": permission(route.access),
    });
    if let Some(fields) = operation.as_object_mut() {
        if !route.notes.is_empty() {
            fields.insert("description".into(), route.notes.into());
        }
        if let Some(content) = request(route, schemas) {
            // An empty body is an empty object.
            let is_optional = |schema: Schema| schema().get("required").is_none();
            let is_required = !route.request.is_some_and(is_optional);
            let body = json!({"required": is_required, "content": content});
            fields.insert("requestBody".into(), body);
        }
    }
    operation
}

fn request(route: &Route, schemas: &mut Components) -> Option<Value> {
    let bytes = || json!({"application/octet-stream": {}});
    Some(match &route.endpoint {
        Endpoint::Unary { codec, .. } => unary(&message(codec.request, schemas)),
        Endpoint::Stream { codec, .. } => stream(&message(codec.request, schemas)),
        Endpoint::Upload(_) => bytes(),
        Endpoint::Files(_) if route.method == "POST" => {
            let file = json!({"type": "string", "contentMediaType": "application/octet-stream"});
            let form =
                json!({"type": "object", "properties": {"file": {"type": "array", "items": file}}});
            json!({"multipart/form-data": {"schema": form}, "application/octet-stream": {}})
        }
        _ => json!({"application/json": {"schema": schemas.named(route.request?())}}),
    })
}

fn responses(route: &Route, schemas: &mut Components) -> Value {
    let content = match &route.endpoint {
        Endpoint::Unary { codec, .. } => Some(unary(&message(codec.reply, schemas))),
        Endpoint::Stream { codec, .. } => Some(stream(&message(codec.reply, schemas))),
        Endpoint::Files(_) if route.response.is_none() => {
            Some(json!({"application/octet-stream": {}}))
        }
        _ => {
            let schema = route.response.map(|schema| schemas.named(schema()));
            schema.map(|schema| json!({"application/json": {"schema": schema}}))
        }
    };
    let text = |what: &str| json!({"schema": {"type": "string"}, "description": what});
    let mut success = json!({"description": "success"});
    if let Some(fields) = success.as_object_mut() {
        fields.extend(content.map(|content| ("content".to_owned(), content)));
        if route.query.contains(&"nextToken") {
            let next = text("`nextToken` of the next page; absent on the last one");
            fields.insert("headers".into(), json!({"X-Next-Token": next}));
        }
    }
    let mut all: Map<String, Value> =
        route.success.iter().map(|status| (status.to_string(), success.clone())).collect();
    // Where a sandbox is needed it may be gone, whoever asks.
    if (route.surface, route.access) != (Surface::Control, Access::Open) {
        let json = json!({"application/json": {"schema": fault(&route.endpoint, schemas)}});
        all.insert("default".into(), json!({"description": "refused", "content": json}));
    }
    Value::Object(all)
}

/// Of a call of envd, and of what envd tells, it is Connect's, once sandbox, token, method and content type are accepted.
fn fault(endpoint: &Endpoint, schemas: &mut Components) -> Value {
    let answer = named::<ErrorAnswer>(schemas);
    match endpoint {
        Endpoint::Told(_) | Endpoint::Unary { .. } | Endpoint::Stream { .. } => {
            json!({"anyOf": [named::<Fault>(schemas), answer]})
        }
        _ => answer,
    }
}

fn named<T: JsonSchema>(schemas: &mut Components) -> Value {
    schemas.named(schema_of::<T>())
}

fn unary(schema: &Value) -> Value {
    json!({"application/json": {"schema": schema}, "application/proto": {}})
}

fn stream(schema: &Value) -> Value {
    json!({"application/connect+json": {"schema": schema}, "application/connect+proto": {}})
}

fn security(access: Access) -> Value {
    match access {
        Access::Open | Access::Link => json!([]),
        Access::Reads | Access::Writes | Access::ByMethod => json!([{"key": []}, {"bearer": []}]),
        Access::Token => json!([{"token": []}]),
        Access::TokenOrSignature => json!([{"token": []}, {}]),
    }
}

/// Who may call what.
fn permission(access: Access) -> &'static str {
    match access {
        Access::Open => "everybody",
        Access::Reads => "submitter, approver, operator, auditor",
        Access::Writes => "submitter",
        Access::ByMethod => "GET: submitter, approver, operator, auditor; other methods: submitter",
        Access::Link => "who has the upload link",
        Access::Token => "who has the sandbox's token",
        Access::TokenOrSignature => {
            "who has the sandbox's token, or a link that was signed with it"
        }
    }
}

/// Who may call each endpoint, by method and path.
#[must_use]
pub fn permissions() -> BTreeMap<String, &'static str> {
    let surface = |surface| if surface == Surface::Envd { " (port 49983)" } else { "" };
    let rows = ROUTES.iter().filter(|route| route.refusal().is_none());
    rows.map(|route| {
        let name = format!("{} {}{}", route.method, route.path, surface(route.surface));
        (name, permission(route.access))
    })
    .collect()
}

fn operation_id(route: &Route) -> String {
    if route.endpoint.codec().is_some() {
        return route.path.trim_start_matches('/').replace(['.', '/'], "_");
    }
    let words = route.path.split(['/', '{', '}', '-']).filter(|word| !word.is_empty());
    let method = route.shown_method().to_lowercase();
    std::iter::once(method.as_str()).chain(words).collect::<Vec<_>>().join("_")
}
