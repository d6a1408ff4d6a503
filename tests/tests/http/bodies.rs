//! A body that is not the route's is refused on every route, with its status and its code, and leaves
//! the rows of every table as they were.

use crate::http::world::{NO_JSON, SCHEMA, Wants, World, bytes, with_body};
use cofferdam_server::MAX_BODY_BYTES;
use cofferdam_tests::text;
use serde_json::json;

#[tokio::test]
async fn a_body_that_is_not_the_routes_json_is_refused_and_nothing_is_written() {
    let world = World::new().await;
    let before = world.rows().await;
    let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
    let padded = |size: usize| [b"{".to_vec(), vec![b' '; size - 2], b"}".to_vec()].concat();
    let too_large: Wants = &[(413, "body_too_large")];
    let bodies: Vec<(&str, Vec<u8>, Wants)> = vec![
        ("empty", Vec::new(), NO_JSON),
        ("white space", b" \n".to_vec(), NO_JSON),
        ("cut off", b"{\"a\": ".to_vec(), NO_JSON),
        ("a bare word", b"yes".to_vec(), NO_JSON),
        ("something after the end", b"{} {}".to_vec(), NO_JSON),
        ("not a number", b"{\"a\": NaN}".to_vec(), NO_JSON),
        ("a number beyond any", b"{\"a\": 1e999}".to_vec(), NO_JSON),
        ("not UTF-8", b"{\"a\": \"\xff\xfe\"}".to_vec(), NO_JSON),
        ("half a character", b"{\"a\": \"\xe2\x82\"}".to_vec(), NO_JSON),
        ("a lone surrogate", br#"{"a": "\ud800"}"#.to_vec(), NO_JSON),
        ("a raw control character", b"{\"a\": \"\x01\"}".to_vec(), NO_JSON),
        ("a member named twice", br#"{"a": 1, "a": 1}"#.to_vec(), NO_JSON),
        ("1000 levels deep", nested(1000), NO_JSON),
        ("100 levels deep", nested(100), SCHEMA),
        (
            "100 levels below a field",
            [b"{\"x\":".to_vec(), nested(100), b"}".to_vec()].concat(),
            SCHEMA,
        ),
        ("null", b"null".to_vec(), SCHEMA),
        ("a list", b"[]".to_vec(), SCHEMA),
        ("a text", b"\"x\"".to_vec(), SCHEMA),
        ("an empty object", b"{}".to_vec(), SCHEMA),
        ("an unknown field", b"{\"surprise\": 1}".to_vec(), SCHEMA),
        ("a NUL in a text", br#"{"surprise": "a\u0000b"}"#.to_vec(), SCHEMA),
        ("a NUL in a name", br#"{"a\u0000b": 1}"#.to_vec(), SCHEMA),
        (
            "a number that its hash would not hold",
            b"{\"surprise\": 9007199254740993}".to_vec(),
            SCHEMA,
        ),
        ("as large as may be", padded(MAX_BODY_BYTES), SCHEMA),
        ("one byte larger", padded(MAX_BODY_BYTES + 1), too_large),
        ("four times as large", padded(4 * MAX_BODY_BYTES), too_large),
    ];
    let gone: Wants = &[(404, "not_found")];
    for route in with_body() {
        let schema = (route.request.unwrap())();
        let needs_none = schema["required"].as_array().is_none_or(Vec::is_empty);
        let has_defaults = needs_none && schema["oneOf"].is_null();
        for (what, body, want) in &bodies {
            // Where every field has a default, an object without any is a request: of a sandbox that has ended.
            let is_bare = *want == SCHEMA
                && body
                    .trim_ascii()
                    .strip_prefix(b"{")
                    .is_some_and(|rest| rest.trim_ascii() == b"}");
            // A collection from the beginning: what it did is counted below.
            if is_bare && route.path == "/api/gc" {
                let (status, said) = world
                    .server
                    .request("POST", "/api/gc", Some(&world.server.key), Some(body.clone()))
                    .await;
                assert_eq!(status, 200, "{said}");
                continue;
            }
            let want = if has_defaults && is_bare { &gone } else { want };
            world.refused(what, route.method, &world.path(route), Some(body.clone()), want).await;
        }
    }
    assert_eq!(world.rows().await, before);
}

#[tokio::test]
async fn wrong_types_and_missing_and_unknown_fields_are_refused_one_by_one_and_all_at_once() {
    let world = World::new().await;
    let before = world.rows().await;
    for route in with_body() {
        let (good, path) = (world.body(route), world.path(route));
        let schema = (route.request.unwrap())();
        let required: Vec<&str> = schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|r| r.as_str().unwrap())
            .collect();
        for (field, value) in good.as_object().unwrap() {
            let mut wrong = good.clone();
            wrong[field] = if value.is_object() { json!(12.5) } else { json!({"wrong": true}) };
            world
                .refused(
                    &format!("{field} of a wrong type"),
                    route.method,
                    &path,
                    bytes(&wrong),
                    SCHEMA,
                )
                .await;
            if value.is_string() {
                wrong[field] = json!("a\u{0}b");
                world
                    .refused(
                        &format!("{field} with a NUL"),
                        route.method,
                        &path,
                        bytes(&wrong),
                        SCHEMA,
                    )
                    .await;
            }
            if required.contains(&field.as_str()) {
                let mut wrong = good.clone();
                wrong.as_object_mut().unwrap().remove(field);
                world
                    .refused(
                        &format!("{field} missing"),
                        route.method,
                        &path,
                        bytes(&wrong),
                        SCHEMA,
                    )
                    .await;
            }
        }
        let mut wrong = good.clone();
        wrong["surprise"] = json!(1);
        world.refused("an unknown field", route.method, &path, bytes(&wrong), SCHEMA).await;
    }
    let wrong = json!({"goal": "", "inputs": [], "constraints": {"planApprovalTimeoutS": 0}});
    let answer =
        world.refused("three violations", "POST", "/api/intents", bytes(&wrong), SCHEMA).await;
    let mut paths: Vec<String> =
        answer["details"].as_array().unwrap().iter().map(|d| text(d, "instancePath")).collect();
    paths.sort();
    assert_eq!(paths, ["/constraints/planApprovalTimeoutS", "/goal", "/inputs"], "{answer}");
    assert!(
        answer["details"].as_array().unwrap().iter().all(|d| d["message"].is_string()),
        "{answer}"
    );
    assert_eq!(world.rows().await, before);
}
