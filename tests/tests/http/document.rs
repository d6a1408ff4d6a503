//! The OpenAPI document against a running server: what it bounds is bounded, and what it does not bound is not.

use cofferdam_server::openapi;
use cofferdam_server::routes::ROUTES;
use serde_json::{Value, json};

use crate::http::world::{SCHEMA, World, bytes};

/// Values that a schema of a parameter lets through, and values that it does not.
fn values(schema: &Value) -> (Vec<String>, Vec<String>) {
    let number = |name: &str| schema[name].as_i64();
    if let (Some(low), Some(high)) = (number("minimum"), number("maximum")) {
        let beyond = |n: i64, by: i64| (i128::from(n) + i128::from(by)).to_string();
        let bad = vec![beyond(low, -1), beyond(high, 1), "x".into(), "1.5".into()];
        return (vec![low.to_string(), high.to_string()], bad);
    }
    if let Some(names) = schema["enum"].as_array() {
        let good = names.iter().map(|name| name.as_str().unwrap().to_owned()).collect();
        return (good, vec!["no-such-value".into()]);
    }
    // A list of names, each once, with commas between them.
    if schema["type"] == "array" {
        let (mut good, mut bad) = values(&schema["items"]);
        bad.extend([String::new(), format!("{0},{0}", good[0]), format!("{},", good[0])]);
        good.push(good.join(","));
        return (good, bad);
    }
    (Vec::new(), Vec::new())
}

fn parameters(method: &str, path: &str, place: &str) -> Vec<Value> {
    let document = openapi::document();
    let path = path.replace("{*", "{");
    let listed = document["paths"][&path][method.to_lowercase()]["parameters"].clone();
    let mut all: Vec<Value> = serde_json::from_value(listed).unwrap();
    all.retain(|parameter| parameter["in"] == place);
    all
}

#[tokio::test]
async fn e7_what_the_document_says_of_queries_is_what_the_server_takes() {
    let world = World::new().await;
    let mut tried = 0;
    for route in ROUTES.iter().filter(|route| route.method == "GET") {
        for parameter in parameters(route.method, route.path, "query") {
            let name = parameter["name"].as_str().unwrap();
            let (good, bad) = values(&parameter["schema"]);
            for value in good.iter().filter(|_| name != "timeoutS" && name != "follow") {
                let path = format!("{}?{name}={value}", world.path(route));
                let (status, answer) = world.server.get(&path).await;
                assert_eq!(status, 200, "{path}: {answer}");
                tried += 1;
            }
            for value in bad {
                let path = format!("{}?{name}={value}", world.path(route));
                world.refused("beyond", "GET", &path, None, SCHEMA).await;
                tried += 1;
            }
        }
    }
    assert!(tried > 80, "{tried}");
}

/// What the table lists for a path is what its handler parses.
#[tokio::test]
async fn e7_what_the_document_says_of_paths_is_what_the_server_takes() {
    let world = World::new().await;
    for route in ROUTES {
        for parameter in parameters(route.method, route.path, "path") {
            let (name, schema) = (parameter["name"].as_str().unwrap(), &parameter["schema"]);
            let what = parameter["description"].as_str().unwrap_or("");
            assert!(!what.is_empty(), "{route:?}: {name} is not described");
            let (good, bad) = values(schema);
            let bad = match (schema.get("pattern"), bad.is_empty()) {
                (Some(_), _) if !["uri", "token"].contains(&name) && what != "a key's id" => {
                    vec!["%20".to_owned(), "!".to_owned()]
                }
                (_, false) => bad,
                _ => continue,
            };
            let with = |value: &str| {
                let param = format!("{{{name}}}");
                world.fill(&route.path.replace(&param, value))
            };
            for value in bad {
                let body = route.request.and_then(|_| bytes(&world.body(route)));
                let path = with(&value);
                let (status, answer) =
                    world.server.request(route.method, &path, Some(&world.server.key), body).await;
                let code = answer["code"].as_str().unwrap_or("");
                let refused = ["invalid_id", "not_found", "schema_violation"].contains(&code);
                assert!((400..500).contains(&status) && refused, "{path}: {status} {answer}");
            }
            for value in good.iter().filter(|_| route.method == "GET" && name == "name") {
                assert_eq!(world.server.get(&with(value)).await.0, 200, "{value}");
            }
        }
    }
}

#[tokio::test]
async fn e7_a_repeated_start_a_tasks_output_and_a_page_are_declared() {
    let world = World::new().await;
    let body =
        json!({"recipeRef": {"id": "gated", "v": "1"}, "formData": {}, "opts": {"runKey": "k"}});
    let first = world.server.post("/api/run", &body).await;
    let again = world.server.post("/api/run", &body).await;
    assert_eq!((first.0, again.0, &first.1["runId"]), (201, 200, &again.1["runId"]));
    // Every answer below is held against the document by the client of these tests.
    let output = format!("/api/runs/{}/stream/stdout", world.task);
    assert_eq!(world.server.get(&output).await.0, 200);
    let document = openapi::document();
    let responses = |path: &str, method: &str| document["paths"][path][method]["responses"].clone();
    assert!(responses("/api/run", "post")["200"]["content"]["application/json"].is_object());
    let stream = responses("/api/runs/{id}/stream/{key}", "get");
    assert!(stream["200"]["content"]["application/x-ndjson"].is_object());
    assert!(responses("/api/links/{token}", "get")["200"]["content"]["text/html"].is_object());
    let artifact = responses("/api/artifacts/{uri}", "get");
    assert!(["206", "304", "416"].iter().all(|status| artifact[status].is_object()), "{artifact}");
    let headers = parameters("GET", "/api/artifacts/{*uri}", "header");
    assert_eq!(headers[0]["name"], "Range", "{headers:?}");
}
