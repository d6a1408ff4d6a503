//! What is not a run's own business: workflows, recipes, keys and the inbox over HTTP, and what stands
//! in the ledger afterwards.

use crate::http::calls::{attempts, fetched, import, list, ran, sha256};
use crate::support::found;
use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};

#[tokio::test]
async fn workflows_are_listed_canceled_resumed_and_forked_by_their_rules() {
    const SLOW: &str = "id: slow\nv: '1'\nplan: {tasks: [{name: s, exec: {run: 'sleep 6; echo woke', timeout: 60s}}]}\n";
    const QUICK: &str = "id: quick\nv: '1'\nplan: {tasks: [{name: q, value: x}]}\n";
    let home = Home::new();
    let server = home.up();
    let done = ran(&server, QUICK, json!({}), json!({})).await;
    let slow = server.run_recipe(SLOW, json!({}), json!({})).await;
    let (done_id, slow_id) = (text(&done, "workflowID"), text(&slow, "workflowID"));
    listed(&server, &done_id).await;
    untimely(&server, &done_id, &slow).await;
    canceled(&server, &slow_id).await;
    resumed(&server, &slow_id).await;
    forked(&server, &done_id).await;
    let report = fetched(&server, "/api/proofs").await;
    let failed: Vec<&Value> =
        list(&report["proofs"]).iter().filter(|p| !list(&p["rows"]).is_empty()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

fn action() -> Value {
    json!({"actor": "ann", "reason": "a drill"})
}

async fn act(server: &Server, wid: &str, op: &str, body: &Value) -> (u16, Value) {
    server.post(&format!("/api/ops/wf/{wid}/{op}"), body).await
}

async fn listed(server: &Server, done_id: &str) {
    let all = fetched(server, "/api/ops/wf?limit=200").await;
    let times: Vec<i64> = list(&all).iter().map(|w| w["createdAt"].as_i64().unwrap()).collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "newest first: {times:?}");
    assert_eq!(list(&fetched(server, "/api/ops/wf?limit=1").await).len(), 1);
    let runs = fetched(server, "/api/ops/wf?name=run&status=SUCCESS").await;
    assert_eq!(list(&runs).iter().map(|w| text(w, "workflowID")).collect::<Vec<_>>(), [done_id]);
    let steps = fetched(server, &format!("/api/ops/wf/{done_id}/steps")).await;
    let names: Vec<String> = list(&steps).iter().map(|s| text(s, "name")).collect();
    assert_eq!(names, ["CompileST", "ExecuteST#1"]);
    assert!(list(&steps).iter().enumerate().all(|(n, s)| s["stepN"] == json!(n)), "{steps}");
}

/// What an action is refused for: the state of its workflow, or that it is a task's.
async fn untimely(server: &Server, done_id: &str, slow: &Value) {
    let slow_id = text(slow, "workflowID");
    let slow_id = slow_id.as_str();
    for (wid, op) in [(done_id, "cancel"), (done_id, "resume"), (slow_id, "resume")] {
        if op == "resume" && wid == slow_id {
            server.wait_for(slow_id, "running", |h| h["durableStatus"] == "PENDING").await;
        }
        let (status, answer) = act(server, wid, op, &action()).await;
        assert_eq!((status, &answer["code"]), (409, &json!("state_conflict")), "{op}: {answer}");
    }
    // One that is canceled before its start has no sandbox to wipe.
    let task = found("the task has started", async || {
        let attempts = attempts(server, slow).await;
        attempts
            .first()
            .filter(|task| !task["startedAt"].is_null())
            .map(|task| text(task, "taskKey"))
    })
    .await;
    let (status, answer) =
        act(server, &task, "fork", &json!({"actor": "a", "reason": "r", "stepN": 0})).await;
    assert_eq!(
        (status, &answer["code"]),
        (409, &json!("state_conflict")),
        "a task is not forked: {answer}"
    );
}

async fn canceled(server: &Server, slow_id: &str) {
    let (status, answer) = act(server, slow_id, "cancel", &action()).await;
    assert_eq!((status, &answer["accepted"]), (202, &json!(true)), "{answer}");
    let canceled = server.wait_terminal(slow_id).await;
    assert_eq!(
        (&canceled["status"], &canceled["durableStatus"]),
        (&json!("canceled"), &json!("CANCELLED"))
    );
    assert_eq!(act(server, slow_id, "cancel", &action()).await.0, 409, "it is canceled already");
    let audit = fetched(server, &format!("/api/ops/wf/{slow_id}")).await["audit"].clone();
    assert_eq!(list(&audit).len(), 1, "refused actions leave no audit row: {audit}");
    let (at, at_ms) = (text(&audit[0], "at"), audit[0]["atMs"].as_i64().unwrap());
    assert_eq!(at, cofferdam_contracts::instant::Instant::from_ms(at_ms).to_string(), "{audit}");
    for (field, want) in
        [("op", "cancel"), ("actor", "ann"), ("reason", "a drill"), ("targetWorkflowID", slow_id)]
    {
        assert_eq!(audit[0][field], want, "{audit}");
    }
    // The sandbox of the canceled task goes at once, not after its six seconds.
    let wiped = wait_wipes(server, slow_id, 1).await;
    assert_eq!(wiped[0]["terminalState"], "CANCELED", "{wiped:?}");
}

async fn resumed(server: &Server, slow_id: &str) {
    let retried = server
        .request("POST", &format!("/api/runs/{slow_id}/retry"), Some(&server.key), None)
        .await;
    assert_eq!(
        (retried.0, &retried.1["code"]),
        (409, &json!("state_conflict")),
        "only a failed run is retried"
    );
    let (status, answer) = act(server, slow_id, "resume", &action()).await;
    assert_eq!(status, 202, "{answer}");
    let resumed =
        server.wait_for(slow_id, "going again", |h| h["durableStatus"] == "PENDING").await;
    assert_eq!(resumed["status"], "repairing", "a recorded repair: {resumed}");
    let end = server.wait_terminal(slow_id).await;
    assert_eq!(end["status"], "succeeded", "what was canceled is done after all: {end}");
    let attempts = attempts(server, &end).await;
    let seen: Vec<(&Value, &Value)> =
        attempts.iter().map(|a| (&a["attempt"], &a["status"])).collect();
    assert_eq!(seen, [(&json!(1), &json!("canceled")), (&json!(2), &json!("ok"))]);
}

async fn forked(server: &Server, done_id: &str) {
    for (step, want) in [(99, 409), (2, 409), (1, 202)] {
        let (status, answer) = act(
            server,
            done_id,
            "fork",
            &json!({"actor": "ann", "reason": "again", "stepN": step}),
        )
        .await;
        assert_eq!(status, want, "{step}: {answer}");
        if want == 202 {
            let fork = text(&answer, "forkedWorkflowID");
            assert_eq!(
                server.wait_terminal(&text(&answer, "newRunId")).await["workflowID"],
                json!(fork)
            );
            let audit = fetched(server, &format!("/api/ops/wf/{done_id}")).await["audit"].clone();
            assert_eq!(
                (&audit[0]["op"], &audit[0]["forkedWorkflowID"]),
                (&json!("fork"), &json!(fork))
            );
        }
    }
}

async fn wait_wipes(server: &Server, run: &str, count: usize) -> Vec<Value> {
    found(&format!("run {run} has {count} wipes"), async || {
        let wipes = fetched(server, &format!("/api/runs/{run}/wipes")).await;
        let done: Vec<Value> =
            list(&wipes).iter().filter(|w| w["status"].is_string()).cloned().collect();
        (done.len() >= count).then_some(done)
    })
    .await
}

#[tokio::test]
async fn recipes_are_imported_as_drafts_exported_canonically_and_immutable_once_stable() {
    const V1: &str = "id: r\nv: '1'\n# a note\ntitle: T\nplan: {tasks: [{name: t, value: one}]}\n";
    let home = Home::new();
    let server = home.up();
    let first = import(&server, V1).await;
    assert_eq!(
        import(&server, &format!("\n{V1}\n# another")).await["hash"],
        first["hash"],
        "layout is not content"
    );
    let changed = import(&server, &V1.replace("one", "two")).await;
    assert_ne!(changed["hash"], first["hash"]);
    import(&server, &V1.replace("v: '1'", "v: '2'")).await;
    let recipes = fetched(&server, "/api/recipes").await;
    assert_eq!((&recipes[0]["id"], &recipes[0]["versions"]), (&json!("r"), &json!(2)), "{recipes}");
    let versions = fetched(&server, "/api/recipes/r/versions").await;
    assert_eq!(list(&versions).len(), 3, "{versions}");
    assert!(list(&versions).iter().all(|v| v["status"] == "draft"), "{versions}");
    let promotion = json!({"v": "1", "hash": first["hash"], "to": "stable"});
    let (status, now) = server.post("/api/recipes/r/promote", &promotion).await;
    assert_eq!((status, &now["status"]), (200, &json!("stable")), "{now}");
    let (status, answer) =
        server.post("/api/recipes/import", &json!({"yaml": V1.replace("one", "three")})).await;
    assert_eq!((status, &answer["code"]), (409, &json!("conflict")), "{answer}");
    assert_eq!(import(&server, V1).await["hash"], first["hash"], "the same content is no change");
    let versions = fetched(&server, "/api/recipes/r/versions").await;
    let of_first = list(&versions).iter().find(|v| v["hash"] == first["hash"]).unwrap();
    assert_eq!(of_first["status"], "stable", "an import does not make it a draft again");
    let (status, body, ..) =
        post_raw(&server, "/api/recipes/export", &json!({"id": "r", "v": "1"})).await;
    assert_eq!(status, 200);
    assert_eq!(
        json!(sha256(body.as_bytes())),
        first["hash"],
        "what is exported is the canonical text: {body}"
    );
    let (status, again) = server
        .post(
            "/api/recipes/import",
            &json!({"recipe": serde_json::from_str::<Value>(&body).unwrap()}),
        )
        .await;
    assert_eq!((status, &again["hash"]), (201, &first["hash"]), "export and import are inverse");
    let (_, run) = server.post("/api/run", &json!({"recipeRef": {"id": "r", "v": "1"}})).await;
    assert_eq!(run["recipeHash"], first["hash"], "a version that is stable is the one that runs");
}

async fn post_raw(server: &Server, path: &str, body: &Value) -> (u16, String) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client
        .post(format!("{}{path}", server.url))
        .header("authorization", format!("Bearer {}", server.key))
        .header("content-type", "application/json")
        .body(body.to_string());
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn keys_are_made_listed_without_their_secret_and_revoked() {
    let home = Home::new();
    let mut server = home.up();
    let wanted = json!({"tenant": "default", "roles": ["submitter", "auditor", "submitter"], "label": "test"});
    let (status, made) = server.post("/api/keys", &wanted).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(made["roles"], json!(["submitter", "auditor"]));
    let secret = text(&made, "key");
    assert_eq!(server.request("GET", "/api/runs", Some(&secret), None).await.0, 200);
    let listed = fetched(&server, "/api/keys").await;
    let row = list(&listed).iter().find(|k| k["keyId"] == made["keyId"]).unwrap();
    assert_eq!(
        (&row["label"], &row["tenant"], &row["revokedAt"]),
        (&json!("test"), &json!("default"), &Value::Null)
    );
    assert!(!listed.to_string().contains(&secret), "a secret is shown once");
    let sql = server.sql().await;
    let stored: Vec<String> = sqlx::query_scalar("SELECT to_jsonb(k)::text FROM app.api_keys k")
        .fetch_all(&sql)
        .await
        .unwrap();
    assert!(
        stored.iter().all(|row| !row.contains(&secret) && !row.contains(&server.key)),
        "only a hash is stored"
    );
    let (id, admin) = (text(&made, "keyId"), server.key.clone());
    let path = format!("/api/keys/{id}");
    assert_eq!(server.request("DELETE", &path, Some(&admin), None).await.0, 200);
    assert_eq!(server.request("GET", "/api/runs", Some(&secret), None).await.0, 401);
    assert_eq!(
        server.request("DELETE", &path, Some(&admin), None).await.0,
        404,
        "it is revoked already"
    );
    let me = list(&listed).iter().find(|k| k["roles"] == json!(["admin"])).unwrap();
    let (status, answer) = server
        .request("DELETE", &format!("/api/keys/{}", text(me, "keyId")), Some(&admin), None)
        .await;
    assert_eq!(
        (status, &answer["code"]),
        (409, &json!("state_conflict")),
        "nobody locks themselves out: {answer}"
    );
    let ops: Vec<String> =
        sqlx::query_scalar("SELECT op FROM app.audit ORDER BY id").fetch_all(&sql).await.unwrap();
    // The first is the state directory's own key.
    assert_eq!(ops, ["key.create", "key.create", "key.revoke"]);
    server.key = server.new_key(&json!({"tenant": "acme", "roles": ["admin"]})).await.1;
    assert!(list(&fetched(&server, "/api/keys").await).iter().all(|k| k["tenant"] == "acme"));
    let (status, answer) =
        server.post("/api/keys", &json!({"tenant": "default", "roles": ["admin"]})).await;
    assert_eq!((status, &answer["code"]), (403, &json!("forbidden")), "{answer}");
}

#[tokio::test]
async fn the_inbox_shows_the_most_urgent_gate_first() {
    const WAIT: &str =
        "id: wait\nv: '1'\nplan: {gate: approve-plan, tasks: [{name: t, value: x}]}\n";
    let home = Home::new();
    let server = home.up();
    let mut runs = Vec::new();
    for ttl in [600, 30, 3000] {
        let opts = json!({"planApprovalTimeoutS": ttl, "runKey": format!("{ttl}")});
        runs.push(text(&server.run_recipe(WAIT, json!({}), opts).await, "runId"));
    }
    for run in &runs {
        server.wait_for(run, "at its gate", |h| h["status"] == "waiting_input").await;
    }
    let inbox = fetched(&server, "/api/hitl/inbox").await;
    let order: Vec<String> = list(&inbox).iter().map(|g| text(g, "runId")).collect();
    assert_eq!(order, [runs[1].clone(), runs[0].clone(), runs[2].clone()], "{inbox}");
    let sla: Vec<&Value> = list(&inbox).iter().map(|g| &g["slaStatus"]).collect();
    assert_eq!(sla, ["WARNING", "NORMAL", "NORMAL"], "{inbox}");
    for row in list(&inbox) {
        assert_eq!(
            (&row["gateKey"], &row["topic"]),
            (&json!("approve-plan"), &json!("human:approve-plan"))
        );
        assert!(
            row["deadline"].as_i64() > row["createdAt"].as_i64()
                && row["escalationWorkflowID"].is_null(),
            "{row}"
        );
    }
    assert_eq!(list(&fetched(&server, "/api/hitl/inbox?limit=1").await).len(), 1);
    assert_eq!(
        server
            .post(&format!("/api/runs/{}/approve-plan", runs[1]), &json!({"approvedBy": "ann"}))
            .await
            .0,
        202
    );
    assert_eq!(
        list(&fetched(&server, "/api/hitl/inbox").await).len(),
        2,
        "an answered gate is nobody's work"
    );
}
