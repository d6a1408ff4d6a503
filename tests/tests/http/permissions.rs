//! Who may call which route, what another tenant sees of it, and that reading writes nothing.

use std::collections::BTreeMap;

use crate::http::world::{NOT_FOUND, ROLES, TRIGGER, Wants, World};
use cofferdam_server::routes::ROUTES;
use cofferdam_tests::{repository, text};
use serde_json::{Value, json};

#[tokio::test]
async fn who_may_call_what_is_the_golden_matrix_and_nobody_else_may() {
    let world = World::new().await;
    let golden: BTreeMap<String, Value> =
        serde_json::from_slice(&std::fs::read(repository().join("docs/permissions.json")).unwrap())
            .unwrap();
    let names: Vec<String> = ROUTES.iter().map(|r| format!("{} {}", r.method, r.path)).collect();
    assert!(
        names.iter().all(|n| golden.contains_key(n)) && names.len() == golden.len(),
        "the golden is not of these routes"
    );
    let (revoked_id, revoked) = world.keys["auditor"].clone();
    let (status, _) = world
        .server
        .request("DELETE", &format!("/api/keys/{revoked_id}"), Some(&world.server.key), None)
        .await;
    assert_eq!(status, 200);
    let mut keys = world.keys.clone();
    let again = json!({"tenant": "acme", "roles": ["auditor"]});
    keys.insert("auditor".into(), world.server.new_key(&again).await);
    let before = world.rows().await;
    let unauthorized: Wants = &[(401, "unauthorized")];
    let unknown = format!("cfd_{}", "0".repeat(64));
    for route in ROUTES {
        // A body that no route accepts: who passes the door fails behind it and writes nothing.
        let (path, body) = (
            world
                .path(route)
                .replace(&world.keys["auditor"].0, "k_nobody")
                .replace(&world.webhook, &format!("wh_{}", "0".repeat(32)))
                .replace(&world.dispatch, "zzzzzzzz")
                .replace(TRIGGER, "another"),
            route.request.map(|_| b"{}".to_vec()),
        );
        let roles = &golden[&format!("{} {}", route.method, route.path)];
        if roles == "everybody" {
            let (status, answer) =
                world.server.request(route.method, &path, None, body.clone()).await;
            // A health check asks for nothing, a link is its own key, and a delivery is not signed.
            let wants = match (body.is_some(), route.path) {
                (_, "/api/hooks/{hook}") => 401,
                (true, _) => 400,
                (false, _) => 200,
            };
            assert_eq!(status, wants, "{route:?} {answer}");
            continue;
        }
        for (what, key) in [
            ("no key", None),
            ("an unknown key", Some(unknown.as_str())),
            ("a revoked key", Some(revoked.as_str())),
            ("an empty key", Some("")),
        ] {
            world.refused_as(key, what, route.method, &path, body.clone(), unauthorized).await;
        }
        for role in ROLES {
            let allowed = role == "admin" || roles.as_array().unwrap().contains(&json!(role));
            if allowed {
                let (status, answer) = world
                    .server
                    .request(route.method, &path, Some(&keys[role].1), body.clone())
                    .await;
                assert!(
                    status < 500 && status != 401 && status != 403,
                    "{role} {route:?}: {status} {answer}"
                );
            } else {
                world
                    .refused_as(
                        Some(&keys[role].1),
                        role,
                        route.method,
                        &path,
                        body.clone(),
                        &[(403, "forbidden")],
                    )
                    .await;
            }
        }
    }
    headers(&world).await;
    assert_eq!(world.rows().await, before);
}

/// A key stands in one form alone.
async fn headers(world: &World) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for header in [
        "Basic abc",
        "Bearer",
        "Token x",
        &format!("Bearer {} x", world.server.key),
        &world.server.key,
    ] {
        let answer = client
            .get(format!("{}/api/runs", world.server.url))
            .header("authorization", header)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status().as_u16(), 401, "{header}");
        assert_eq!(answer.headers()["www-authenticate"], "Bearer");
    }
}

#[tokio::test]
async fn another_tenants_things_do_not_exist() {
    let world = World::new().await;
    let before = world.rows().await;
    for route in ROUTES {
        if route.roles.is_empty() {
            continue;
        }
        // The same keys exist for everybody; their values are tested in config.rs.
        let is_everybodys = route.path.starts_with("/api/config")
            // What is set or sent is the caller's own.
            || matches!(
                (route.method, route.path),
                ("PUT", "/api/secrets/{secret}" | "/api/trees/{tree}/manifest")
            );
        let mine = (route.path.contains('{') && !is_everybodys)
            || matches!(
                route.path,
                "/api/events/hitl"
                    | "/api/runs"
                    | "/api/recipes/export"
                    | "/api/run"
                    | "/api/delegations"
            );
        let body = route.request.map(|_| world.body(route)).map(|mut body| {
            // What the stranger says of themselves is true: only the ids are another's.
            if route.path == "/api/runs" {
                body["tenantId"] = json!("stranger");
                body["queuePartitionKey"] = json!("stranger");
            }
            body.to_string().into_bytes()
        });
        if mine
            && !(route.method == "GET" && matches!(route.path, "/api/runs" | "/api/delegations"))
        {
            world
                .refused_as(
                    Some(&world.stranger),
                    "another's",
                    route.method,
                    &world.path(route),
                    body,
                    NOT_FOUND,
                )
                .await;
        } else if route.method == "GET" {
            let (status, answer) =
                world.server.request("GET", &world.path(route), Some(&world.stranger), None).await;
            assert_eq!(status, 200, "{route:?} {answer}");
            assert!(!answer.to_string().contains("acme"), "{route:?} {answer}");
            let (run, workflow) = (text(&world.gated, "runId"), text(&world.gated, "workflowID"));
            assert!(
                !answer.to_string().contains(&run) && !answer.to_string().contains(&workflow),
                "{route:?} {answer}"
            );
        }
    }
    let done = text(&world.done, "workflowID");
    for path in [
        format!("/api/runs/{done}"),
        format!("/api/ops/wf/{done}"),
        format!("/api/ops/wf/{}", world.task),
        format!("/api/ops/wf/{}/steps", world.task),
        format!("/api/runs/{}/stream/stdout", world.task),
        format!("/api/artifacts/{}", world.uri),
        format!("/api/artifacts/{}", world.uri.replace("artifact://", "")),
    ] {
        let (status, answer) = world.server.get(&path).await;
        assert_eq!(status, 200, "{path} {answer}");
        world.refused_as(Some(&world.stranger), "another's", "GET", &path, None, NOT_FOUND).await;
    }
    assert_eq!(world.rows().await, before);
}

#[tokio::test]
async fn reading_writes_nothing() {
    let world = World::new().await;
    let before = world.rows().await;
    for route in ROUTES.iter().filter(|r| r.method == "GET") {
        let path = world.path(route);
        let (status, answer) = world.server.get(&path).await;
        assert_eq!(status, 200, "{path} {answer}");
        // A known implementation made a run of any id that was asked for.
        world.server.get(&path.replace("rn_", "it_").replace("ih_", "it_")).await;
    }
    let export = json!({"id": "gated", "v": "1"});
    assert_eq!(world.server.post("/api/recipes/export", &export).await.0, 200);
    assert_eq!(world.rows().await, before);
}
