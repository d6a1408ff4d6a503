//! Values out of bounds and against policy are refused, resource by resource, and nothing is written.

use crate::http::world::{DENIED, GATED, NOT_FOUND, POLICY, RECIPE, SCHEMA, Wants, World, bytes};
use cofferdam_tests::text;
use serde_json::{Value, json};

/// A path and a body, and how the API refuses them.
type Case = ((String, Value), Wants);

fn to(path: &str, body: Value) -> (String, Value) {
    (path.to_owned(), body)
}

fn long(n: usize) -> String {
    "x".repeat(n)
}

fn intents() -> Vec<Case> {
    vec![
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
    ]
}

/// Of an intent that has no run yet, so that nothing but policy stands in its way.
fn runs(intent: &Value) -> Vec<Case> {
    let run = |more: Value| {
        let mut body = json!({"intentId": intent, "recipeName": "gated"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/api/runs".to_owned(), body)
    };
    vec![
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
    ]
}

fn starts() -> Vec<Case> {
    let opts = |opts: Value| {
        (
            "/api/run".to_owned(),
            json!({"recipeRef": {"id": "gated", "v": "1"}, "formData": {"n": 2}, "opts": opts}),
        )
    };
    let form = |data: Value| {
        ("/api/run".to_owned(), json!({"recipeRef": {"id": "gated", "v": "1"}, "formData": data}))
    };
    vec![
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
    ]
}

fn replies(world: &World) -> Vec<Case> {
    let gate = format!("/api/runs/{}/gates/approve-plan/reply", text(&world.gated, "runId"));
    let approve = format!("/api/runs/{}/approve-plan", text(&world.gated, "runId"));
    vec![
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
        (to(&approve, json!({"approvedBy": ""})), SCHEMA),
        (to(&approve, json!({"approvedBy": long(257)})), SCHEMA),
        (to(&approve, json!({"approvedBy": "a", "notes": long(4001)})), SCHEMA),
    ]
}

fn operations(world: &World) -> Vec<Case> {
    let cancel = format!("/api/ops/wf/{}/cancel", text(&world.gated, "workflowID"));
    let fork = format!("/api/ops/wf/{}/fork", text(&world.gated, "workflowID"));
    vec![
        (to(&cancel, json!({"actor": "", "reason": "r"})), SCHEMA),
        (to(&cancel, json!({"actor": "a", "reason": ""})), SCHEMA),
        (to(&cancel, json!({"actor": "a", "reason": "r", "stepN": 0})), SCHEMA),
        (to(&fork, json!({"actor": "a", "reason": "r"})), SCHEMA),
        (to(&fork, json!({"actor": "a", "reason": "r", "stepN": -1})), SCHEMA),
        (to(&fork, json!({"actor": "a", "reason": "r", "stepN": 99})), &[(409, "state_conflict")]),
    ]
}

fn keys_and_delegations(world: &World) -> Vec<Case> {
    vec![
        (to("/api/delegations", json!({"to": "k\n", "ttlS": 1})), SCHEMA),
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
    ]
}

fn recipes() -> Vec<Case> {
    let yaml = |yaml: &str| to("/api/recipes/import", json!({"yaml": yaml, "origin": "bad.yaml"}));
    vec![
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
    ]
}

#[tokio::test]
async fn values_out_of_bounds_and_against_policy_are_refused() {
    let world = World::new().await;
    let (_, fresh) =
        world.server.post("/api/intents", &json!({"goal": "g", "inputs": {"n": 1}})).await;
    let before = world.rows().await;
    let cases = [
        intents(),
        runs(&fresh["intentId"]),
        starts(),
        replies(&world),
        operations(&world),
        keys_and_delegations(&world),
        recipes(),
    ];
    for ((path, body), want) in cases.into_iter().flatten() {
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
