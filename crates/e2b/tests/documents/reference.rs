//! `docs/reference/e2b.md`: the endpoints of E2B's API, from the table that the router is made from.

use std::fmt::Write as _;

use cofferdam_e2b::{ROUTES, Route, Surface, document};
use serde_json::Value;

use crate::golden;
use crate::golden::page::{begun, code, link, plain, sentence, table, wrapped};
use crate::golden::schema::{Field, Types, description, fields, unopened};

const WRITES: &str = "UPDATE_GOLDENS=1 cargo test --workspace --test documents e2b_md";
/// The roles that read, which most endpoints take.
const READ: &str = "submitter, approver, operator, auditor";
/// A section: its title, its surface, and the first segments of its paths without a version.
const SECTIONS: [(&str, Surface, &[&str]); 6] = [
    ("Sandboxes", Surface::Control, &["sandboxes", "snapshots"]),
    ("Templates", Surface::Control, &["templates", "default-templates"]),
    ("Health", Surface::Control, &["health"]),
    ("Port 49983: files and usage", Surface::Envd, &["health", "files", "envs", "metrics"]),
    ("Port 49983: commands", Surface::Envd, &["process.Process"]),
    ("Port 49983: directories", Surface::Envd, &["filesystem.Filesystem"]),
];

/// The endpoints of a section that are served.
fn served(surface: Surface, nouns: &[&str]) -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(move |route| {
        let mut parts = route.path.trim_start_matches('/').split('/');
        let noun = parts.find(|part| !["v2", "v3"].contains(part)).unwrap_or_default();
        route.surface == surface && route.refusal().is_none() && nouns.contains(&noun)
    })
}

/// A schema by the name that it has in the document, or by the names of its fields.
fn named(schema: &Value) -> String {
    let name = |schema: &Value| {
        let target = schema["$ref"].as_str()?;
        target.rsplit('/').next().map(code)
    };
    let fields = || schema["properties"].as_object().into_iter().flatten();
    match (name(schema), &schema["type"]) {
        (Some(name), _) => name,
        (None, kind) if kind == "array" => format!("list of {}", named(&schema["items"])),
        (None, _) if schema["additionalProperties"].is_object() => "map of text".to_owned(),
        (None, _) if fields().next().is_none() => "`{}`".to_owned(),
        _ => code(&format!(
            "{{{}}}",
            fields().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
        )),
    }
}

/// The JSON of a body or an answer, and whether it is a stream of it; its media types where there is no JSON.
fn content(content: &Value) -> String {
    for (kind, form) in [("application/json", ""), ("application/connect+json", "stream of ")] {
        let schema = &content[kind]["schema"];
        if schema.is_object() {
            return format!("{form}{}", named(schema));
        }
    }
    let kinds = content.as_object().into_iter().flatten();
    kinds.map(|(kind, _)| code(kind)).collect::<Vec<_>>().join(" or ")
}

/// The names of the query and the headers that mean something.
fn parameters<'a>(page: &mut String, types: &Types<'a>, operation: &'a Value) {
    for one in operation["parameters"].as_array().into_iter().flatten() {
        let name = one["name"].as_str().unwrap();
        let heading = match one["in"].as_str() {
            Some("query") => format!("`?{name}=`"),
            Some("header") => format!("Header `{name}`"),
            _ => continue,
        };
        let text = types.line(&heading, &Field::parameter(one), &unopened);
        page.push_str(&wrapped(&text, "  * ", "    "));
    }
}

fn described<'a>(page: &mut String, document: &'a Value, types: &Types<'a>, route: &Route) {
    let method = route.shown_method();
    let operation = &document["paths"][route.path][method.to_lowercase()];
    let text = format!("`{method} {}`: {}", route.path, sentence(&plain(route.summary)));
    page.push_str(&wrapped(&text, "* ", "  "));
    let who = operation["x-permission"].as_str().unwrap();
    let mut facts = vec![format!("For: {}.", if who == READ { "any role" } else { who })];
    let body = content(&operation["requestBody"]["content"]);
    if route.request.is_some() {
        facts.push(format!("Body: {}.", link(&body, body.trim_matches('`'))));
    } else if !body.is_empty() {
        facts.push(format!("Body: {body}."));
    }
    let statuses: Vec<String> = route.success.iter().map(u16::to_string).collect();
    let first = &operation["responses"][&statuses[0]]["content"];
    let answer = format!("Answer: {} {}", statuses.join(" or "), content(first));
    facts.push(format!("{}.", answer.trim_end()));
    facts.push(plain(route.notes));
    page.push_str(&wrapped(&facts.join(" "), "  ", "  "));
    parameters(page, types, operation);
}

/// The bodies of requests and what they refer to, by name.
fn bodies(document: &Value) -> Vec<(&String, &Value)> {
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let text = |value: &Value| value.to_string();
    let asked: Vec<String> =
        ROUTES.iter().filter_map(|route| Some(route.request?())).map(|s| text(&s)).collect();
    let is_asked = |name: &String| {
        let (title, nested) = (format!("\"title\":\"{name}\""), format!("#/$defs/{name}\""));
        asked.iter().any(|schema| schema.contains(&title) || schema.contains(&nested))
    };
    schemas.iter().filter(|(name, _)| is_asked(name)).collect()
}

fn fields_of<'a>(page: &mut String, types: &Types<'a>, name: &str, schema: &'a Value) {
    write!(page, "\n### {name}\n\n").unwrap();
    page.push_str(&wrapped(&description(schema), "", ""));
    page.push('\n');
    for field in fields(schema) {
        let text = types.line(&code(field.name), &field, &unopened);
        page.push_str(&wrapped(&text, "* ", "  "));
    }
}

fn page() -> String {
    let mut page = begun("E2B's API", WRITES);
    let about = "Endpoints of E2B's API that Cofferdam serves, for E2B's own clients; [e2b.md](../e2b.md) says how these are set up and what differs \
        from E2B. **The control plane** is at the address of `cofferdam up`: requests carry `X-API-Key: KEY`, or `Authorization: Bearer KEY`, and \
        errors are `{\"code\": STATUS, \"message\": TEXT}`. **Port 49983** of a sandbox is envd: requests carry the sandbox's token as `X-Access-Token: TOKEN`. \
        Its calls of `process.Process` and `filesystem.Filesystem` speak the Connect protocol over HTTP/1.1, uncompressed: a single message is \
        `application/json` or `application/proto`, a stream of messages `application/connect+json` or `application/connect+proto`, and an error has \
        a code in words, such as `not_found`, but for a request that its sandbox, token, method or content type has refused. Unknown fields of a body are refused, and so are unknown names of the query where names of it are listed, other than on port 49983. \
        The OpenAPI documents of the [control plane](../e2b-openapi.json) and of [envd](../e2b-envd-openapi.json) have every schema, \
        and the [permissions](../e2b-permissions.json) every role.";
    page.push_str(&wrapped(about, "", ""));
    page.push('\n');
    let rows = SECTIONS.map(|(title, surface, nouns)| {
        [link(title, title), served(surface, nouns).count().to_string()]
    });
    page.push_str(&table(["Section", "Endpoints"], &rows));
    for (title, surface, nouns) in SECTIONS {
        write!(page, "\n## {title}\n\n").unwrap();
        let document = document(surface);
        let definitions = document["components"]["schemas"].as_object().unwrap();
        for route in served(surface, nouns) {
            described(&mut page, &document, &Types { definitions }, route);
        }
    }
    page.push_str("\n## Endpoints that are refused\n\n");
    let refused: Vec<[String; 2]> = ROUTES
        .iter()
        .filter_map(|route| {
            let path = match (route.path, route.surface) {
                ("/{*rest}", Surface::Control) => {
                    "any other path below `/v2`, `/v3` or `/sandboxes`".to_owned()
                }
                ("/{*rest}", Surface::Envd) => {
                    "any other path of port 49983, such as `/init`".to_owned()
                }
                (path, _) if route.method == "*" => code(&path.replace("{*rest}", "..")),
                (path, _) => code(&format!("{} {path}", route.method)),
            };
            Some([path, route.refusal()?])
        })
        .collect();
    page.push_str(&table(["Endpoint", "Answer"], &refused));
    page.push_str("\n## Bodies\n");
    let document = document(Surface::Control);
    let definitions = document["components"]["schemas"].as_object().unwrap();
    for (name, schema) in bodies(&document) {
        fields_of(&mut page, &Types { definitions }, name, schema);
    }
    page
}

#[test]
fn e2b_md_is_the_table_of_endpoints() {
    let shown: usize =
        SECTIONS.iter().map(|(_, surface, nouns)| served(*surface, nouns).count()).sum();
    assert_eq!(shown, ROUTES.iter().filter(|route| route.refusal().is_none()).count());
    golden::hold_text(env!("CARGO_MANIFEST_DIR"), "../../docs/reference/e2b.md", &page(), WRITES);
}
