//! Ids, queries, methods and paths that are not right are refused on every route, and nothing is
//! written.

use crate::http::world::{NO_ID, NOT_FOUND, SCHEMA, Wants, World, bytes};
use cofferdam_contracts::id::RecipeId;
use cofferdam_server::Route;
use cofferdam_server::routes::ROUTES;
use cofferdam_tests::text;

/// Every parameter of a path.
const PARAMS: [&str; 13] = [
    "{id}",
    "{wid}",
    "{gate}",
    "{key}",
    "{sandbox}",
    "{delegation}",
    "{*uri}",
    "{webhook}",
    "{provider}",
    "{delivery}",
    "{token}",
    "{schedule}",
    "{hook}",
];
const ANY: Wants =
    &[(400, "invalid_id"), (403, "link_invalid"), (404, "not_found"), (405, "method_not_allowed")];

#[tokio::test]
async fn ids_queries_methods_and_paths_that_are_not_right_are_refused() {
    let world = World::new().await;
    let before = world.rows().await;
    for route in ROUTES {
        for param in PARAMS.iter().filter(|param| route.path.contains(**param)) {
            ids(&world, route, param).await;
        }
        queries(&world, route).await;
        methods(&world, route).await;
    }
    limits(&world).await;
    paths(&world).await;
    assert_eq!(world.rows().await, before);
}

fn body_of(world: &World, route: &Route) -> Option<Vec<u8>> {
    route.request.and_then(|_| bytes(&world.body(route)))
}

/// A parameter, replaced by what cannot be one, and by what is nobody's.
async fn ids(world: &World, route: &Route, param: &str) {
    let body = body_of(world, route);
    let long = "a".repeat(4000);
    let with = |value: &str| world.fill(&route.path.replace(param, value));
    for bad in ["%00", "a%00b", "%ff", "a%0ab", "%c3%28", "%1b%5b", "%7f", "%c2%85"] {
        let wants: Wants = if route.roles.is_empty() { ANY } else { NO_ID };
        world.refused("no id", route.method, &with(bad), body.clone(), wants).await;
    }
    for bad in ["%20", "...", "%2f", "%27%3bdrop", "%C3%A9", "*", "%25", long.as_str(), "-"] {
        world.refused("no id", route.method, &with(bad), body.clone(), ANY).await;
    }
    let nobody = match param {
        "{id}" if route.path.starts_with("/api/recipes") => "nobody".to_owned(),
        "{id}" if route.path.starts_with("/api/dispatches") => "zzzzzzzz".to_owned(),
        "{id}" => format!("rn_{}", "0".repeat(32)),
        "{key}" if route.path.starts_with("/api/cache") => "1".repeat(64),
        "{wid}" => format!("it_{}", "0".repeat(32)),
        "{sandbox}" => format!("sb{}", "0".repeat(20)),
        "{*uri}" => world.uri.replace("stdout.log", "nothing.log"),
        "{webhook}" => format!("wh_{}", "0".repeat(32)),
        "{delivery}" => format!("msg_{}", "1".repeat(32)),
        "{delegation}" => "999999998".to_owned(),
        _ => "nobody".to_owned(),
    };
    let wants: Wants = match (param, route.roles.is_empty()) {
        ("{token}", _) => &[(403, "link_invalid")],
        // A stranger is not told which hooks there are.
        ("{hook}", true) => &[(401, "signature_invalid")],
        _ => NOT_FOUND,
    };
    world.refused("nobody's id", route.method, &with(&nobody), body, wants).await;
}

async fn queries(world: &World, route: &Route) {
    let (good, body) = (world.path(route), body_of(world, route));
    for query in [
        "surprise=1",
        "surprise",
        "%00=1",
        "limit%20=1",
        "a=%ff",
        "%ff",
        "=1",
        "limit=1&surprise=2",
    ] {
        let wants: Wants = &[(400, "schema_violation"), (400, "invalid_id")];
        let path = format!("{good}?{query}");
        world.refused("an unknown query key", route.method, &path, body.clone(), wants).await;
    }
    for name in route.query {
        let twice = format!("{good}?{name}=1&{name}=1");
        world.refused("a query key twice", route.method, &twice, body.clone(), SCHEMA).await;
        for bad in ["x", "-1", "1e3", "%zz", "99999999999999999999", "1.5", "%20", "1%00"] {
            if matches!(*name, "name" | "scope" | "glob" | "task") && !bad.contains("%00") {
                continue;
            }
            // Nobody's recipe, and no run of it: an empty list.
            if *name == "recipe" && RecipeId::parse(bad).is_ok() {
                continue;
            }
            let wants: Wants = match *name {
                // What is a tenant's name is another's.
                "tenant" => &[(400, "schema_violation"), (400, "invalid_id"), (403, "forbidden")],
                _ => &[(400, "schema_violation"), (400, "invalid_id")],
            };
            let path = format!("{good}?{name}={bad}");
            world.refused("a bad query value", route.method, &path, body.clone(), wants).await;
        }
    }
}

async fn methods(world: &World, route: &Route) {
    let good = world.path(route);
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        if !ROUTES.iter().any(|r| r.path == route.path && r.method == method) {
            let wants: Wants = &[(405, "method_not_allowed")];
            world.refused("a wrong method", method, &good, Some(b"{}".to_vec()), wants).await;
        }
    }
}

async fn limits(world: &World) {
    for (path, bounds) in [("/api/runs", 500), ("/api/hitl/inbox", 200), ("/api/ops/wf", 200)] {
        for limit in [0, bounds + 1] {
            let path = format!("{path}?limit={limit}");
            world.refused("a limit out of bounds", "GET", &path, None, SCHEMA).await;
        }
    }
    let run = text(&world.gated, "runId");
    for path in [
        format!("/api/runs/{run}/interactions?limit=501"),
        format!("/api/runs/{run}/gates/approve-plan?timeoutS=31"),
    ] {
        world.refused("a limit out of bounds", "GET", &path, None, SCHEMA).await;
    }
}

async fn paths(world: &World) {
    for path in [
        "/",
        "/api",
        "/api/",
        "/api/runs/",
        "/api/nothing",
        "/API/runs",
        "/healthz/x",
        "/api/runs/a/b/c/d",
        "//api/runs",
    ] {
        for method in ["GET", "POST", "DELETE"] {
            world.refused("an unknown route", method, path, None, NOT_FOUND).await;
        }
    }
    let task = format!("/api/runs/{}/stream/stdout", "0".repeat(64));
    world.refused("nobody's task", "GET", &task, None, NOT_FOUND).await;
    let name = format!("/api/runs/{}/stream/secrets", world.task);
    world.refused("an unknown stream", "GET", &name, None, NOT_FOUND).await;
}
