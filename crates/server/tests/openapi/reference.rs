//! `docs/reference/api.md`: the routes of our own API, from the table that the router is made from.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use cofferdam_server::Route;
use cofferdam_server::openapi;
use cofferdam_server::routes::ROUTES;
use serde_json::Value;

use crate::golden;
use crate::golden::page::{begun, code, link, plain, sentence, table, wrapped};
use crate::golden::schema::{Field, Types, description, fields, unopened};

const WRITES: &str = "UPDATE_GOLDENS=1 cargo test --workspace --test openapi api_md";
/// The roles that read, which most routes take.
const READ: [&str; 4] = ["submitter", "approver", "operator", "auditor"];

/// The noun of a route: `runs` of `/api/runs/{id}`.
fn noun(route: &Route) -> &'static str {
    let mut parts = route.path.trim_start_matches('/').split('/').filter(|part| *part != "api");
    match parts.next().unwrap_or_default() {
        "run" => "runs",
        "healthz" => "health",
        "events" | "hitl" => "gates",
        other => other,
    }
}

/// The section of a noun.
fn title(noun: &str) -> String {
    let mut letters = noun.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn who(route: &Route) -> String {
    let roles: Vec<&str> = route.roles.iter().map(|role| role.as_str()).collect();
    match roles.as_slice() {
        [] => "everybody".to_owned(),
        roles if roles == READ => "any role".to_owned(),
        roles => roles.join(", "),
    }
}

/// A schema by the name that it has in the document; `list of NAME` of a list.
fn named(schema: &Value) -> Option<String> {
    let name = |schema: &Value| {
        let target = schema["$ref"].as_str()?;
        target.rsplit('/').next().map(str::to_owned)
    };
    name(schema).or_else(|| name(&schema["items"]).map(|name| format!("list of {}", code(&name))))
}

fn operation<'d>(document: &'d Value, route: &Route) -> &'d Value {
    let path = route.path.replace("{*", "{");
    &document["paths"][path][route.method.to_lowercase()]
}

/// What a route answers where it does what it was asked for.
fn answer(operation: &Value, route: &Route) -> String {
    let content = &operation["responses"][route.success.to_string()]["content"];
    let name = named(&content["application/json"]["schema"]);
    let name = name.map(|name| if name.contains('`') { name } else { code(&name) });
    let kinds = content.as_object().into_iter().flatten().map(|(kind, _)| code(kind));
    let what = name.unwrap_or_else(|| kinds.collect::<Vec<_>>().join(", "));
    format!("{} {what}", route.success)
}

/// The names that a query may have, each with what it may be.
fn queries<'a>(page: &mut String, types: &Types<'a>, operation: &'a Value) {
    let all = operation["parameters"].as_array().into_iter().flatten();
    for one in all.filter(|one| one["in"] == "query") {
        let field = Field::parameter(one);
        let line = types.line(&format!("`?{}=`", field.name), &field, &unopened);
        page.push_str(&wrapped(&line, "  * ", "    "));
    }
}

fn described<'a>(page: &mut String, document: &'a Value, types: &Types<'a>, route: &Route) {
    let operation = operation(document, route);
    let said = format!("`{} {}`: {}", route.method, route.path, sentence(&plain(route.summary)));
    page.push_str(&wrapped(&said, "* ", "  "));
    let mut facts = vec![format!("Role: {}.", who(route))];
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    if let Some(name) = named(body) {
        facts.push(format!("Body: {}.", link(&code(&name), &name)));
    }
    facts.push(format!("Answer: {}.", answer(operation, route)));
    page.push_str(&wrapped(&facts.join(" "), "  ", "  "));
    queries(page, types, operation);
}

/// The bodies of requests, by name.
fn bodies(document: &Value) -> BTreeSet<String> {
    let body = |route: &Route| {
        let operation = operation(document, route);
        named(&operation["requestBody"]["content"]["application/json"]["schema"])
    };
    ROUTES.iter().filter_map(body).collect()
}

fn page() -> String {
    let document = openapi::document();
    let definitions = document["components"]["schemas"].as_object().unwrap();
    let types = Types { definitions };
    let mut page = begun("API", WRITES);
    let about = format!(
        "Cofferdam's own API over HTTP, on the address of `cofferdam up` and on the socket of the state directory. Requests carry \
         `Authorization: Bearer KEY`; bodies are JSON of at most {} MiB, in which an unknown field is refused. \
         The [OpenAPI document](../openapi.json) has every schema (`cofferdam openapi`), and the \
         [permissions](../permissions.json) every role. A key of the role `admin` may call everything. Any route may answer the \
         [errors](errors.md).",
        cofferdam_server::MAX_BODY_BYTES / (1024 * 1024)
    );
    page.push_str(&wrapped(&about, "", ""));
    page.push('\n');
    let mut nouns: Vec<&str> = Vec::new();
    for noun in ROUTES.iter().map(noun) {
        if !nouns.contains(&noun) {
            nouns.push(noun);
        }
    }
    let rows: Vec<[String; 2]> = nouns
        .iter()
        .map(|of| {
            let count = ROUTES.iter().filter(|route| noun(route) == *of).count();
            [link(&title(of), &title(of)), count.to_string()]
        })
        .collect();
    page.push_str(&table(["Section", "Routes"], &rows));
    for of in &nouns {
        write!(page, "\n## {}\n\n", title(of)).unwrap();
        for one in ROUTES.iter().filter(|route| noun(route) == *of) {
            described(&mut page, &document, &types, one);
        }
    }
    page.push_str("\n## Bodies\n\nFields of each request's body. Those of an object within it are in the OpenAPI document.\n");
    for name in bodies(&document) {
        let schema = &definitions[&name];
        write!(page, "\n### {name}\n\n").unwrap();
        let about = description(schema);
        if !about.is_empty() {
            page.push_str(&wrapped(&about, "", ""));
            page.push('\n');
        }
        for field in fields(schema) {
            let line = types.line(&code(field.name), &field, &unopened);
            page.push_str(&wrapped(&line, "* ", "  "));
        }
    }
    page
}

#[test]
fn api_md_is_the_route_table() {
    golden::hold_text(env!("CARGO_MANIFEST_DIR"), "../../docs/reference/api.md", &page(), WRITES);
}
