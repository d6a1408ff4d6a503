//! What the API refuses, and that a refusal leaves nothing behind: every route, every kind of bad
//! input, each with its status, its code, and the rows of every table as they were.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a helper of tests fails its test"
)]

use std::collections::BTreeMap;

use cofferdam_server::MAX_BODY_BYTES;
use cofferdam_server::routes::{ROUTES, Route};
use cofferdam_tests::{Home, Server, repository, row_counts};
use serde_json::{Value, json};
use sqlx::PgPool;

const ROLES: [&str; 5] = ["submitter", "approver", "operator", "auditor", "admin"];

const GATED: &str = "
id: gated
v: '1'
form: {type: object, additionalProperties: false, properties: {n: {type: integer, maximum: 9}}}
caps: {concurrency: 4, steps: 8, sandbox_minutes: 10}
plan:
  gate: approve-plan
  tasks: [{name: t, value: kept}]
";

const DONE: &str = "
id: done
v: '1'
plan:
  tasks: [{name: t, exec: {run: echo done, timeout: 30s}}]
";

/// Statuses with their codes, any of which is right.
type Wants = &'static [(u16, &'static str)];

/// A server on which the tenant `acme` has a run at its gate and a finished one.
struct World {
    // In this order: the server goes before its home.
    server: Server,
    sql: PgPool,
    keys: BTreeMap<String, (String, String)>,
    stranger: String,
    gated: Value,
    done: Value,
    task: String,
    uri: String,
    sandbox: String,
    webhook: String,
    link: String,
    dispatch: String,
    _home: Home,
}

impl World {
    async fn new() -> Self {
        let home = Home::new();
        let mut server = home.up_with(&["--allow-dir", "/usr/share"], &[]);
        let mut keys = BTreeMap::new();
        for role in ROLES {
            keys.insert(role.to_owned(), key(&server, "acme", &[role]).await);
        }
        let stranger = key(&server, "stranger", &["admin"]).await.1;
        server.key = keys["admin"].1.clone();
        let gated = server.run_recipe(GATED, json!({}), json!({})).await;
        let done = server.run_recipe(DONE, json!({}), json!({})).await;
        let gated = server
            .wait_for(gated["runId"].as_str().unwrap(), "at its gate", |h| {
                h["status"] == "waiting_input"
            })
            .await;
        let done = server.wait_terminal(done["runId"].as_str().unwrap()).await;
        assert_eq!(done["status"], "succeeded", "{done}");
        let (_, artifacts) =
            server.get(&format!("/api/runs/{}/artifacts", text(&done, "runId"))).await;
        let out = artifacts.as_array().unwrap().iter().find(|a| a["kind"] == "stdout").unwrap();
        let (task, uri) = (text(out, "taskKey"), text(out, "uri"));
        let sent = json!({"agent_type": "command", "prompt": "true", "project_dir": "/usr/share",
            "sandbox": "read-only"});
        let (status, made) = server.post("/api/dispatches", &sent).await;
        assert_eq!(status, 201, "{made}");
        let dispatch = text(&made, "id");
        let sent = server.wait_terminal(made["run_id"].as_str().unwrap()).await;
        assert_eq!(sent["status"], "succeeded", "{sent}");
        // Of an event that does not happen here: nothing is sent anywhere.
        let wanted = json!({"url": "https://example.com/", "events": ["gate.reminded"]});
        let (status, made) = server.post("/api/webhooks", &wanted).await;
        assert_eq!(status, 201, "{made}");
        let webhook = text(&made, "webhookId");
        let links = format!("/api/runs/{}/gates/approve-plan/links", text(&gated, "runId"));
        let (status, made) = server.post(&links, &json!({"for": "Ada", "expiresS": 3600})).await;
        assert_eq!(status, 201, "{made}");
        let link = text(&made, "path").rsplit('/').next().unwrap().to_owned();
        let sql = server.sql().await;
        let (_, sessions) = server.get("/api/sessions").await;
        let sandbox = text(&sessions[0], "sandboxId");
        let _home = home;
        Self {
            server,
            sql,
            keys,
            stranger,
            gated,
            done,
            task,
            uri,
            sandbox,
            webhook,
            link,
            dispatch,
            _home,
        }
    }

    /// The route's path with parameters that name things of acme.
    fn path(&self, route: &Route) -> String {
        self.fill(route.path)
    }

    fn fill(&self, path: &str) -> String {
        let run = if path.ends_with("/retry") { &self.done } else { &self.gated };
        let id = match path {
            _ if path.starts_with("/api/recipes") => "gated",
            _ if path.starts_with("/api/dispatches") => &self.dispatch,
            _ => run["runId"].as_str().unwrap(),
        };
        path.replace("/api/cache/{key}", &format!("/api/cache/{}", "0".repeat(64)))
            .replace("{id}", id)
            .replace("{wid}", self.gated["workflowID"].as_str().unwrap())
            .replace("{gate}", "approve-plan")
            .replace("{sandbox}", &self.sandbox)
            .replace("{delegation}", "999999999")
            .replace("{*uri}", &self.uri)
            .replace("{name}", "profile.go")
            .replace("{webhook}", &self.webhook)
            .replace("{delivery}", &format!("msg_{}", "0".repeat(32)))
            .replace("{token}", &self.link)
            .replace(
                "{key}",
                if path.contains("stream") { "status" } else { &self.keys["auditor"].0 },
            )
    }

    /// A body that the route would accept, with every optional field filled in.
    fn body(&self, route: &Route) -> Value {
        let run_opts = json!({
            "queuePartitionKey": "acme/x", "lane": "batch", "priority": 5,
            "workload": {"concurrency": 1, "steps": 1, "sandboxMinutes": 1},
            "budget": {"maxFanout": 1, "maxSBXMinutes": 1, "maxArtifactsMB": 1, "maxRetriesPerStep": 0, "maxWallClockMS": 9000},
            "timeoutMS": 8000, "traceId": "trace",
        });
        let action = json!({"actor": "ann", "reason": "because"});
        match (route.method, route.path) {
            (_, "/api/intents") => {
                json!({"goal": "g", "inputs": {}, "constraints": {"planApprovalTimeoutS": 9}, "connectors": ["c"]})
            }
            (_, "/api/runs") => {
                let mut body = run_opts;
                let more = json!({
                    "intentId": self.gated["intentId"], "queueName": "intentQ", "recipeName": "gated",
                    "recipeVersion": "1", "deduplicationID": "d", "tenantId": "acme",
                });
                body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                body
            }
            (_, "/api/run") => {
                json!({"recipeRef": {"id": "gated", "v": "1"}, "formData": {"n": 1}, "opts": run_opts})
            }
            (_, path) if path.ends_with("/reply") => {
                json!({"payload": {"choice": "yes"}, "dedupeKey": "k", "origin": "manual", "topic": "human:approve-plan"})
            }
            (_, path) if path.ends_with("/approve-plan") => {
                json!({"approvedBy": "ann", "notes": "fine"})
            }
            (_, "/api/events/hitl") => json!({
                "workflowId": self.gated["workflowID"], "gateKey": "approve-plan", "topic": "human:approve-plan",
                "payload": {"choice": "yes"}, "dedupeKey": "k", "origin": "webhook",
            }),
            (_, path) if path.ends_with("/fork") => {
                json!({"actor": "ann", "reason": "because", "stepN": 0})
            }
            (_, path) if path.starts_with("/api/ops/") || path.ends_with("/settle") => action,
            (_, "/api/recipes/import") => json!({"yaml": GATED, "origin": "gated.yaml"}),
            (_, "/api/recipes/export") => json!({"id": "gated", "v": "1"}),
            (_, "/api/config/{name}") => json!({
                "value": {"buildTimeoutMs": 1, "execTimeoutMs": 1, "limits": {}},
                "expectedVersion": 0, "scope": "tenant",
            }),
            (_, "/api/webhooks") => {
                json!({"url": "https://example.com/", "events": ["gate.reminded"], "label": "x"})
            }
            (_, "/api/links/{token}") => json!({"payload": {"choice": "yes"}}),
            (_, path) if path.ends_with("/links") => {
                json!({"for": "Ada", "expiresS": 60, "choice": "yes"})
            }
            (_, "/api/keys") => {
                json!({"tenant": "acme", "roles": ["auditor"], "groups": ["sre"], "label": "x"})
            }
            (_, "/api/delegations") => {
                json!({"to": self.keys["approver"].0, "group": "sre", "ttlS": 60, "reason": "holiday"})
            }
            (_, "/api/dispatches") => json!({
                "agent_type": "command", "prompt": "true", "prompt_file": "/p", "cmd": ["true"],
                "project_dir": "/srv/none", "output_file": "/o", "name": "n", "model": "m",
                "sandbox": "read-only", "sandbox_spec": {"max_turns": 1}, "lenient_spec": false,
                "enforce": false, "scope_id": "s", "parent_id": "abcd1234", "timeout_sec": 9,
                "scheduled": false,
            }),
            (_, "/api/dispatches/prune") => json!({"older_than_sec": 86_400}),
            (_, "/api/dispatches/import") => {
                json!({"rows": [{"id": "abcd1234", "status": "completed"}]})
            }
            (method, path) => panic!("{method} {path} takes a body: give this test a good one"),
        }
    }

    async fn refused(
        &self,
        what: &str,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
        want: Wants,
    ) -> Value {
        self.refused_as(Some(&self.server.key), what, method, path, body, want).await
    }

    /// The answer is one of `want`, and an error as the contract shapes it.
    async fn refused_as(
        &self,
        key: Option<&str>,
        what: &str,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
        want: Wants,
    ) -> Value {
        let shown =
            body.as_deref().map(|b| String::from_utf8_lossy(&b[..b.len().min(300)]).into_owned());
        let (status, answer) = self.server.request(method, path, key, body).await;
        let code = answer["code"].as_str().unwrap_or("");
        let seen = format!("{what}: {method} {path} {shown:?} -> {status} {answer}");
        assert!(want.contains(&(status, code)), "want {want:?}, got {seen}");
        assert!(answer["error"].as_str().is_some_and(|e| !e.is_empty()), "{seen}");
        let fields: Vec<&str> = answer.as_object().unwrap().keys().map(String::as_str).collect();
        assert!(fields.iter().all(|f| ["error", "code", "details"].contains(f)), "{seen}");
        answer
    }

    async fn rows(&self) -> Vec<(String, i64)> {
        row_counts(&self.sql).await
    }
}

async fn key(server: &Server, tenant: &str, roles: &[&str]) -> (String, String) {
    let (status, made) = server.post("/api/keys", &json!({"tenant": tenant, "roles": roles})).await;
    assert_eq!(status, 201, "{made}");
    (text(&made, "keyId"), text(&made, "key"))
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}")).to_owned()
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    Some(value.to_string().into_bytes())
}

fn with_body() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(|r| r.request.is_some())
}

const SCHEMA: Wants = &[(400, "schema_violation")];
const POLICY: Wants = &[(400, "queue_policy_violation")];
const NO_JSON: Wants = &[(400, "invalid_json")];
const NO_ID: Wants = &[(400, "invalid_id")];
const NOT_FOUND: Wants = &[(404, "not_found")];
const DENIED: Wants = &[(400, "policy_violation")];
const RECIPE: Wants = &[(400, "recipe_invalid")];

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
    for route in with_body() {
        for (what, body, want) in &bodies {
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

#[tokio::test]
async fn values_out_of_bounds_and_against_policy_are_refused() {
    let world = World::new().await;
    // An intent that has no run yet, so that nothing but policy stands in its way.
    let (_, fresh) =
        world.server.post("/api/intents", &json!({"goal": "g", "inputs": {"n": 1}})).await;
    let before = world.rows().await;
    let long = |n: usize| "x".repeat(n);
    let gate = format!("/api/runs/{}/gates/approve-plan/reply", text(&world.gated, "runId"));
    let approve = format!("/api/runs/{}/approve-plan", text(&world.gated, "runId"));
    let cancel = format!("/api/ops/wf/{}/cancel", text(&world.gated, "workflowID"));
    let fork = format!("/api/ops/wf/{}/fork", text(&world.gated, "workflowID"));
    let run = |more: Value| {
        let mut body = json!({"intentId": fresh["intentId"], "recipeName": "gated"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/api/runs".to_owned(), body)
    };
    let opts = |opts: Value| {
        (
            "/api/run".to_owned(),
            json!({"recipeRef": {"id": "gated", "v": "1"}, "formData": {"n": 2}, "opts": opts}),
        )
    };
    let form = |data: Value| {
        ("/api/run".to_owned(), json!({"recipeRef": {"id": "gated", "v": "1"}, "formData": data}))
    };
    let to = |path: &str, body: Value| (path.to_owned(), body);
    let yaml = |yaml: &str| to("/api/recipes/import", json!({"yaml": yaml, "origin": "bad.yaml"}));
    let cases: Vec<((String, Value), Wants)> = vec![
        (to("/api/intents", json!({"goal": ""})), SCHEMA),
        (to("/api/intents", json!({"goal": long(10_001)})), SCHEMA),
        (
            to(
                "/api/intents",
                json!({"goal": "g", "constraints": {"planApprovalTimeoutS": 86_401}}),
            ),
            SCHEMA,
        ),
        (
            to("/api/intents", json!({"goal": "g", "constraints": {"planApprovalTimeoutS": 1.5}})),
            SCHEMA,
        ),
        (
            to("/api/intents", json!({"goal": "g", "constraints": {"planApprovalTimeoutS": -1}})),
            SCHEMA,
        ),
        (to("/api/intents", json!({"goal": "g", "constraints": {"other": 1}})), SCHEMA),
        (to("/api/intents", json!({"goal": "g", "connectors": vec!["c"; 65]})), SCHEMA),
        (run(json!({"intentId": "it_x"})), SCHEMA),
        (run(json!({"intentId": format!("it_{}", "A".repeat(32))})), SCHEMA),
        (run(json!({"intentId": format!("it_{}", "0".repeat(32))})), NOT_FOUND),
        // Not found comes before policy.
        (
            run(json!({"intentId": format!("it_{}", "0".repeat(32)), "queueName": "sbxQ"})),
            NOT_FOUND,
        ),
        (run(json!({"recipeName": "nobody"})), NOT_FOUND),
        (run(json!({"recipeVersion": "2"})), NOT_FOUND),
        (run(json!({"recipeName": "shell", "recipeVersion": "2"})), NOT_FOUND),
        (run(json!({"queueName": "sbxQ"})), POLICY),
        (run(json!({"queueName": ""})), POLICY),
        (run(json!({"taskKey": "0".repeat(64)})), POLICY),
        (run(json!({"tenantId": "stranger"})), &[(400, "policy_violation")]),
        (run(json!({"queuePartitionKey": ""})), SCHEMA),
        (run(json!({"queuePartitionKey": long(129)})), SCHEMA),
        (run(json!({"queuePartitionKey": " "})), POLICY),
        (run(json!({"queuePartitionKey": "\t\n"})), POLICY),
        (run(json!({"queuePartitionKey": "stranger"})), POLICY),
        (run(json!({"queuePartitionKey": "acmecorp"})), POLICY),
        (run(json!({"queuePartitionKey": "acme/\u{1}"})), POLICY),
        (run(json!({"workload": {"concurrency": 5}})), POLICY),
        (run(json!({"workload": {"steps": 9}})), POLICY),
        (run(json!({"workload": {"sandboxMinutes": 11}})), POLICY),
        (run(json!({"workload": {"steps": 4}, "budget": {"maxFanout": 3}})), POLICY),
        (run(json!({"workload": {"sandboxMinutes": 4}, "budget": {"maxSBXMinutes": 3}})), POLICY),
        (run(json!({"budget": {"maxFanout": 9}})), POLICY),
        (run(json!({"budget": {"maxSBXMinutes": 11}})), POLICY),
        (run(json!({"timeoutMS": 2000, "budget": {"maxWallClockMS": 1000}})), POLICY),
        (run(json!({"timeoutMS": 0})), SCHEMA),
        (run(json!({"timeoutMS": 18_446_744_073_709_551_615_u64})), SCHEMA),
        (run(json!({"timeoutMS": 1e300})), SCHEMA),
        (run(json!({"priority": -1})), SCHEMA),
        (run(json!({"priority": 2_147_483_648_u64})), SCHEMA),
        (run(json!({"lane": "express"})), SCHEMA),
        (run(json!({"traceId": ""})), SCHEMA),
        (run(json!({"traceId": long(129)})), SCHEMA),
        (run(json!({"deduplicationID": ""})), SCHEMA),
        (run(json!({"deduplicationID": long(257)})), SCHEMA),
        (run(json!({"workload": {"concurrency": 0}})), SCHEMA),
        (run(json!({"budget": {"maxRetriesPerStep": 11}})), SCHEMA),
        (run(json!({"budget": {"unknown": 1}})), SCHEMA),
        (opts(json!({"queuePartitionKey": " "})), POLICY),
        (opts(json!({"queuePartitionKey": "stranger"})), POLICY),
        (opts(json!({"workload": {"steps": 9}})), POLICY),
        (opts(json!({"budget": {"maxFanout": 9}})), POLICY),
        (opts(json!({"timeoutMS": 2000, "budget": {"maxWallClockMS": 1000}})), POLICY),
        (opts(json!({"planApprovalTimeoutS": 0})), SCHEMA),
        (opts(json!({"runKey": ""})), SCHEMA),
        (opts(json!({"queueName": "intentQ"})), SCHEMA),
        (form(json!({"n": 10})), SCHEMA),
        (form(json!({"n": "1"})), SCHEMA),
        (form(json!({"n": 18_446_744_073_709_551_615_u64})), SCHEMA),
        (form(json!({"other": 1})), SCHEMA),
        (to("/api/run", json!({"recipeRef": {"id": "nobody", "v": "1"}})), NOT_FOUND),
        (to("/api/run", json!({"recipeRef": {"id": "gated", "v": "2"}})), NOT_FOUND),
        (to("/api/run", json!({"recipeRef": {"id": "NO", "v": "1"}})), SCHEMA),
        (to("/api/run", json!({"recipeRef": {"id": "gated", "v": ""}})), SCHEMA),
        (to(&gate, json!({"payload": {"choice": "yes"}, "dedupeKey": ""})), SCHEMA),
        (to(&gate, json!({"payload": {"choice": "yes"}, "dedupeKey": long(257)})), SCHEMA),
        (
            to(&gate, json!({"payload": {"choice": "yes"}, "dedupeKey": "k", "origin": "nowhere"})),
            SCHEMA,
        ),
        (to(&gate, json!({"payload": {"choice": "yes"}, "dedupeKey": "k", "topic": ""})), SCHEMA),
        (
            to(
                &gate,
                json!({"payload": {"choice": "yes"}, "dedupeKey": "k", "topic": "human:other"}),
            ),
            &[(409, "topic_mismatch")],
        ),
        (
            to(
                &gate,
                json!({"payload": {"choice": "yes", "rationale": long(4001)}, "dedupeKey": "k"}),
            ),
            SCHEMA,
        ),
        (to(&gate, json!({"payload": {"choice": "yes"}, "dedupeKey": "a\u{1b}[2J"})), SCHEMA),
        (to(&gate, json!({"payload": {"choice": "yes"}, "dedupeKey": "a\nb"})), SCHEMA),
        (
            to(&gate, json!({"payload": {"choice": "yes"}, "dedupeKey": "k", "topic": "a\rb"})),
            SCHEMA,
        ),
        (
            to(
                &gate,
                json!({"payload": {"choice": "yes", "rationale": "\u{7}"}, "dedupeKey": "k"}),
            ),
            SCHEMA,
        ),
        (
            to(&gate, json!({"payload": {"choice": "yes", "edits": {"n": 1}}, "dedupeKey": "k"})),
            SCHEMA,
        ),
        (to(&approve, json!({"approvedBy": "an\u{0}n"})), SCHEMA),
        (to(&approve, json!({"approvedBy": "ann", "notes": "\u{1b}]0;x"})), SCHEMA),
        (to("/api/delegations", json!({"to": "k\n", "ttlS": 1})), SCHEMA),
        (to(&approve, json!({"approvedBy": ""})), SCHEMA),
        (to(&approve, json!({"approvedBy": long(257)})), SCHEMA),
        (to(&approve, json!({"approvedBy": "a", "notes": long(4001)})), SCHEMA),
        (to(&cancel, json!({"actor": "", "reason": "r"})), SCHEMA),
        (to(&cancel, json!({"actor": "a", "reason": ""})), SCHEMA),
        (to(&cancel, json!({"actor": "a", "reason": "r", "stepN": 0})), SCHEMA),
        (to(&fork, json!({"actor": "a", "reason": "r"})), SCHEMA),
        (to(&fork, json!({"actor": "a", "reason": "r", "stepN": -1})), SCHEMA),
        (to(&fork, json!({"actor": "a", "reason": "r", "stepN": 99})), &[(409, "state_conflict")]),
        (to("/api/keys", json!({"roles": ["approver"], "groups": ["Not A Group"]})), SCHEMA),
        (to("/api/keys", json!({"roles": ["approver"], "groups": vec!["g"; 33]})), SCHEMA),
        (to("/api/delegations", json!({"to": "k_nobody", "ttlS": 60})), NOT_FOUND),
        (to("/api/delegations", json!({"to": world.keys["admin"].0, "ttlS": 60})), DENIED),
        (
            to(
                "/api/delegations",
                json!({"to": world.keys["approver"].0, "ttlS": 60, "group": "sre"}),
            ),
            DENIED,
        ),
        (to("/api/delegations", json!({"to": "", "ttlS": 60})), SCHEMA),
        (to("/api/delegations", json!({"to": long(65), "ttlS": 60})), SCHEMA),
        (to("/api/delegations", json!({"to": "k", "ttlS": 0})), SCHEMA),
        (to("/api/delegations", json!({"to": "k", "ttlS": 2_592_001})), SCHEMA),
        (to("/api/delegations", json!({"to": "k", "ttlS": 1.5})), SCHEMA),
        (to("/api/delegations", json!({"to": "k", "ttlS": 1, "reason": long(1001)})), SCHEMA),
        (to("/api/keys", json!({"roles": []})), SCHEMA),
        (to("/api/keys", json!({"roles": ["root"]})), SCHEMA),
        (to("/api/keys", json!({"roles": ["admin"], "tenant": "Not A Tenant"})), SCHEMA),
        (to("/api/keys", json!({"roles": ["admin"], "label": long(129)})), SCHEMA),
        (to("/api/keys", json!({"roles": ["admin"], "tenant": "default"})), &[(403, "forbidden")]),
        (to("/api/recipes/export", json!({"id": "nobody", "v": "1"})), NOT_FOUND),
        (to("/api/recipes/import", json!({})), SCHEMA),
        (to("/api/recipes/import", json!({"yaml": GATED, "recipe": {}})), SCHEMA),
        (to("/api/recipes/import", json!({"recipe": {}})), RECIPE),
        (to("/api/recipes/import", json!({"recipe": 7})), RECIPE),
        (yaml(""), RECIPE),
        (yaml("id: ["), RECIPE),
        (yaml(&"[".repeat(10_000)), RECIPE),
        (yaml(&GATED.replace("value: kept", "valeu: kept")), RECIPE),
        (yaml(&GATED.replace("id: gated", "id: NOT OK")), RECIPE),
        (yaml(&GATED.replace("v: '1'", "v: ''")), RECIPE),
        (yaml(&GATED.replace("steps: 8", "steps: 0")), RECIPE),
        (yaml(&GATED.replace("steps: 8", "steps: -1")), RECIPE),
        (yaml(&GATED.replace("maximum: 9", "maximum: many")), RECIPE),
        (yaml(&GATED.replace("maximum: 9", "pattern: '('")), RECIPE),
        (yaml(&GATED.replace("maximum: 9", "$ref: 'http://127.0.0.1:1/x'")), RECIPE),
        (yaml(&GATED.replace("approve-plan", "other-gate")), RECIPE),
        (yaml(&format!("{GATED}{}", "#".repeat(300_000))), RECIPE),
        (
            yaml(
                "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nid: [*c,*c,*c,*c]\n",
            ),
            RECIPE,
        ),
    ];
    for ((path, body), want) in cases {
        let answer = world.refused("a bad value", "POST", &path, bytes(&body), want).await;
        if want == POLICY && answer["details"].is_object() {
            let details = &answer["details"];
            assert!(
                details["metric"].is_string()
                    && details["limit"].is_u64()
                    && details["observed"].is_u64(),
                "{answer}"
            );
        }
        if want == RECIPE && body["origin"].is_string() {
            assert!(answer["error"].as_str().unwrap().starts_with("bad.yaml"), "{answer}");
        }
    }
    assert_eq!(world.rows().await, before);
    // A number that has no exact canonical form is a caller's fault too, wherever it stands.
    let huge = GATED.replace("maximum: 9", "default: 18446744073709551615");
    let (status, answer) = world.server.post("/api/recipes/import", &json!({"yaml": huge})).await;
    assert!((200..500).contains(&status), "{status} {answer}");
}

#[tokio::test]
async fn ids_queries_methods_and_paths_that_are_not_right_are_refused() {
    let world = World::new().await;
    let before = world.rows().await;
    let any: Wants = &[
        (400, "invalid_id"),
        (403, "link_invalid"),
        (404, "not_found"),
        (405, "method_not_allowed"),
    ];
    let long = "a".repeat(4000);
    for route in ROUTES {
        let good = world.path(route);
        let body = route.request.and_then(|_| bytes(&world.body(route)));
        // Every parameter, replaced by what cannot be one, and by what is nobody's.
        for param in [
            "{id}",
            "{wid}",
            "{gate}",
            "{key}",
            "{sandbox}",
            "{delegation}",
            "{*uri}",
            "{webhook}",
            "{delivery}",
            "{token}",
        ] {
            if !route.path.contains(param) {
                continue;
            }
            let with = |value: &str| world.fill(&route.path.replace(param, value));
            for bad in ["%00", "a%00b", "%ff", "a%0ab", "%c3%28", "%1b%5b", "%7f", "%c2%85"] {
                let wants: Wants = if route.roles.is_empty() { any } else { NO_ID };
                world.refused("no id", route.method, &with(bad), body.clone(), wants).await;
            }
            for bad in ["%20", "...", "%2f", "%27%3bdrop", "%C3%A9", "*", "%25", long.as_str(), "-"]
            {
                world.refused("no id", route.method, &with(bad), body.clone(), any).await;
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
            let wants: Wants =
                if param == "{token}" { &[(403, "link_invalid")] } else { NOT_FOUND };
            world.refused("nobody's id", route.method, &with(&nobody), body.clone(), wants).await;
        }
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
            world
                .refused(
                    "an unknown query key",
                    route.method,
                    &format!("{good}?{query}"),
                    body.clone(),
                    wants,
                )
                .await;
        }
        for name in route.query {
            let twice = format!("{good}?{name}=1&{name}=1");
            world.refused("a query key twice", route.method, &twice, None, SCHEMA).await;
            for bad in ["x", "-1", "1e3", "%zz", "99999999999999999999", "1.5", "%20", "1%00"] {
                if matches!(*name, "name" | "scope") && !bad.contains("%00") {
                    continue;
                }
                let wants: Wants = &[(400, "schema_violation"), (400, "invalid_id")];
                world
                    .refused(
                        "a bad query value",
                        route.method,
                        &format!("{good}?{name}={bad}"),
                        None,
                        wants,
                    )
                    .await;
            }
        }
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            if !ROUTES.iter().any(|r| r.path == route.path && r.method == method) {
                let wants: Wants = &[(405, "method_not_allowed")];
                world.refused("a wrong method", method, &good, Some(b"{}".to_vec()), wants).await;
            }
        }
    }
    for (path, bounds) in [("/api/runs", 500), ("/api/hitl/inbox", 200), ("/api/ops/wf", 200)] {
        for limit in [0, bounds + 1] {
            world
                .refused(
                    "a limit out of bounds",
                    "GET",
                    &format!("{path}?limit={limit}"),
                    None,
                    SCHEMA,
                )
                .await;
        }
    }
    let run = text(&world.gated, "runId");
    for path in [
        format!("/api/runs/{run}/interactions?limit=501"),
        format!("/api/runs/{run}/gates/approve-plan?timeoutS=31"),
    ] {
        world.refused("a limit out of bounds", "GET", &path, None, SCHEMA).await;
    }
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
    assert_eq!(world.rows().await, before);
}

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
    keys.insert("auditor".into(), key(&world.server, "acme", &["auditor"]).await);
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
                .replace(&world.dispatch, "zzzzzzzz"),
            route.request.map(|_| b"{}".to_vec()),
        );
        let roles = &golden[&format!("{} {}", route.method, route.path)];
        if roles == "everybody" {
            let (status, answer) =
                world.server.request(route.method, &path, None, body.clone()).await;
            // A health check asks for nothing, and a link is its own key.
            let wants = if body.is_some() { 400 } else { 200 };
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
    assert_eq!(world.rows().await, before);
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
        let mine = (route.path.contains('{') && !route.path.starts_with("/api/config"))
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
