//! What a path, a query and a header may hold, for the documents. The handlers parse the same names and bounds, which a test asks.

use cofferdam_contracts::id::{BuildId, Digest, LiveId, SnapshotId, TemplateId};
use cofferdam_contracts::sandbox::IsolationClass;
use cofferdam_contracts::schema::schema_of;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::call::{CLASS, IDEMPOTENCY_KEY, MAX_IDEMPOTENCY_KEY};
use crate::envd::process::start::TIMEOUT;
use crate::levels::LEVELS;
use crate::query::MAX_PAGE;
use crate::route::Route;
use crate::sandbox::logs;
use crate::template::log_entry;
use crate::template::tag_groups::DEFAULT_PAGE;

/// The parameters of a route.
pub(crate) fn of(route: &Route) -> Vec<Value> {
    let names = route
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{').and_then(|name| name.strip_suffix('}')));
    let mut all: Vec<Value> = names
        .map(|name| {
            let (schema, what) = in_path(route.path, name);
            json!({"name": name, "in": "path", "required": true, "schema": schema, "description": what})
        })
        .collect();
    all.extend(route.query.iter().map(|name| {
        let (schema, what) = in_query(route.path, name);
        json!({"name": name, "in": "query", "schema": schema, "description": what})
    }));
    all.extend(in_headers(route).into_iter().map(|(name, schema, what)| {
        json!({"name": name, "in": "header", "schema": schema, "description": what})
    }));
    all
}

fn id<T: JsonSchema>() -> Value {
    let mut schema = schema_of::<T>();
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("$schema");
        fields.remove("title");
        fields.remove("description");
    }
    schema
}

fn text() -> Value {
    json!({"type": "string"})
}

fn in_path(path: &str, name: &str) -> (Value, &'static str) {
    match name {
        "build" => (id::<BuildId>(), "a build"),
        "hash" => (id::<Digest>(), "the SHA-256 of the files"),
        "alias" => (text(), "the name of a template"),
        "tag" => (text(), "a tag"),
        _ if path.contains("/sandboxes/") => (id::<LiveId>(), "a sandbox"),
        _ if path.contains("/files/") || path.contains("/builds/") => {
            (id::<TemplateId>(), "a template of the tenant")
        }
        _ => (text(), "a template, by its id or its name"),
    }
}

fn number<N: Serialize>(minimum: u64, maximum: N, default: N) -> Value {
    json!({"type": "integer", "minimum": minimum, "maximum": maximum, "default": default})
}

fn one_of(names: &[&str], default: Option<&str>) -> Value {
    let mut schema = json!({"type": "string", "enum": names});
    if let (Some(default), Some(fields)) = (default, schema.as_object_mut()) {
        fields.insert("default".into(), default.into());
    }
    schema
}

fn in_query(path: &str, name: &str) -> (Value, &'static str) {
    match name {
        "limit" if path.contains("/sandboxes/") => {
            (number(0, logs::MAX_ENTRIES, logs::MAX_ENTRIES), "maximum number of entries")
        }
        "limit" if path.contains("/builds/") => {
            (number(1, log_entry::MAX_ENTRIES, log_entry::MAX_ENTRIES), "maximum number of entries")
        }
        "limit" => (number(1, MAX_PAGE, MAX_PAGE), "maximum number of rows"),
        "assignmentLimit" => {
            (number(1, MAX_PAGE, MAX_PAGE), "maximum number of assignments of a tag")
        }
        "tagsLimit" => (number(1, MAX_PAGE, DEFAULT_PAGE), "maximum number of tags"),
        "nextToken" if path == "/snapshots" => {
            (id::<SnapshotId>(), "`X-Next-Token` of the page before")
        }
        "nextToken" => (text(), "`X-Next-Token` of the page before"),
        "tagsCursor" => (text(), "`nextCursor` of the page before"),
        "metadata" => (
            text(),
            "labels that a sandbox must have: `NAME=VALUE`, joined by `&`, each name and value percent-encoded once more",
        ),
        "state" => (
            json!({"type": "string", "pattern": "^(running|paused)(,(running|paused))*$"}),
            "states of the sandboxes",
        ),
        "template" => (text(), "the template of the sandboxes"),
        "startedAfter" => (
            json!({"type": "string", "format": "date-time"}),
            "sandboxes that started then or later",
        ),
        "order" => (one_of(&["asc", "desc"], Some("desc")), "order by creation"),
        "sandbox_ids" => (text(), "up to 100 ids, with commas between them"),
        "sandboxID" => (id::<LiveId>(), "snapshots of this sandbox"),
        "name" => (text(), "snapshots of this name"),
        "start" => (json!({"type": "integer"}), "entries from then on, in ms since the epoch"),
        "cursor" => (
            json!({"type": "integer"}),
            "entries from then on, or backward from then, in ms since the epoch",
        ),
        "direction" => (
            one_of(&["forward", "backward"], Some("forward")),
            "`backward`: the newest entries first",
        ),
        "level" => (one_of(&LEVELS, None), "entries of this level and above"),
        "search" if path.contains("/tags/") => (text(), "a part of the tag"),
        "search" => (text(), "a part of the message"),
        "logsOffset" => (
            json!({"type": "integer", "minimum": 0, "maximum": i32::MAX, "default": 0}),
            "the first entry",
        ),
        "source" => (one_of(&["temporary", "persistent"], None), "without effect"),
        "teamID" => (text(), "without effect"),
        "tag" => (text(), "the tag"),
        "sort" => (
            one_of(&["latest_desc", "latest_asc", "name_desc", "name_asc"], Some("latest_desc")),
            "order of the tags",
        ),
        "path" => (text(), "the file"),
        "username" => (text(), "the user that reads or writes; the default user without it"),
        "signature" => (text(), "the signature of the link"),
        "signature_expiration" => {
            (json!({"type": "integer"}), "when the link ends, in seconds since the epoch")
        }
        _ => (text(), ""),
    }
}

fn in_headers(route: &Route) -> Vec<(&'static str, Value, &'static str)> {
    let class = || {
        let names: Vec<&str> = IsolationClass::ALL.iter().map(|class| class.as_str()).collect();
        (CLASS, one_of(&names, None), "the least isolation class")
    };
    match (route.method, route.path) {
        ("POST", "/sandboxes" | "/v2/sandboxes") => {
            let key = json!({"type": "string", "maxLength": MAX_IDEMPOTENCY_KEY});
            vec![
                (
                    IDEMPOTENCY_KEY,
                    key,
                    "a repeated creation with this key answers the first sandbox; with another body it is a 409",
                ),
                class(),
            ]
        }
        ("POST", "/v2/templates/{id}/builds/{build}") => vec![class()],
        ("POST", "/process.Process/Start") => {
            let ms = json!({"type": "integer", "minimum": 1});
            vec![(TIMEOUT, ms, "how long the command may run; without it, as long as the sandbox")]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::routes::ROUTES;
    use crate::sandbox::{list, snapshots};
    use crate::template::{build_logs, build_status, list as templates, tag_groups};

    use super::*;

    /// Whether the handler of a list reads a query; `None`: it ignores names that it does not know.
    fn is_read(path: &str, query: &str) -> Option<bool> {
        Some(match path {
            "/v2/sandboxes" => list::filter(query, true).is_ok(),
            "/sandboxes" => list::filter(query, false).is_ok(),
            "/snapshots" => snapshots::asked(query).is_ok(),
            "/v2/sandboxes/{id}/logs" => logs::wanted(query, true).is_ok(),
            "/sandboxes/{id}/logs" => logs::wanted(query, false).is_ok(),
            "/v2/templates" | "/templates/{id}" => templates::Page::of(query).is_ok(),
            "/templates/{id}/builds/{build}/status" => build_status::entries(query).is_ok(),
            "/templates/{id}/builds/{build}/logs" => build_logs::asked(query).is_ok(),
            "/templates/{id}/tags/groups" => tag_groups::groups_of(query).is_ok(),
            _ => return None,
        })
    }

    /// A value that a schema allows for each kind of bound, and one beyond it.
    fn values(name: &str, schema: &Value) -> (Vec<String>, Vec<String>) {
        let bound = |key: &str| schema[key].as_i64();
        let mut good: Vec<String> =
            ["minimum", "maximum"].into_iter().filter_map(bound).map(|n| n.to_string()).collect();
        let mut bad: Vec<String> =
            bound("minimum").map(|n| (n - 1).to_string()).into_iter().collect();
        bad.extend(bound("maximum").map(|n| (n + 1).to_string()));
        if let Some(names) = schema["enum"].as_array() {
            good.extend(names.iter().filter_map(Value::as_str).map(str::to_owned));
            bad.push("none".to_owned());
        }
        match name {
            "metadata" => good.push("a%3Db".to_owned()),
            "state" => good.push("running,paused".to_owned()),
            "startedAfter" => good.push("2026-01-19T08:30:00Z".to_owned()),
            "nextToken" => good.push("b".repeat(20)),
            "tagsCursor" => good.push("1%20v1".to_owned()),
            "sandboxID" => good.push("b".repeat(20)),
            _ if good.is_empty() => good.push("1".to_owned()),
            _ => {}
        }
        (good, bad)
    }

    #[test]
    fn a_list_reads_the_names_of_its_row_within_their_bounds_and_no_others() {
        let mut lists = 0;
        for route in ROUTES.iter().filter(|route| route.method == "GET") {
            let Some(knows) = is_read(route.path, "nothing=1") else { continue };
            lists += 1;
            assert!(!knows, "{route:?} reads any name");
            for name in route.query {
                let (good, bad) = values(name, &in_query(route.path, name).0);
                for (value, wanted) in
                    good.iter().map(|v| (v, true)).chain(bad.iter().map(|v| (v, false)))
                {
                    // A token of sandboxes is of its own form.
                    let value = match (route.path, *name) {
                        ("/v2/sandboxes", "nextToken") => format!("12.{value}"),
                        _ => value.clone(),
                    };
                    let query = format!("{name}={value}");
                    assert_eq!(is_read(route.path, &query), Some(wanted), "{route:?}?{query}");
                }
            }
        }
        assert_eq!(lists, 10);
    }
}
