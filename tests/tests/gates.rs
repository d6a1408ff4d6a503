//! Gates: what is asked, who may answer and how often, and what a decision does.
//!
//! One file: one gate from its question to its end, each test a turn of it.

use crate::support;

use std::sync::Arc;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;
use support::found;
use support::gates::{APPROVALS, EXECUTIONS, INTERACTIONS, TASKS, number, refused, value};

const GATED: &str = "
id: gated
v: '1'
plan:
  gate: approve-plan-1
  tasks: [{name: t, value: kept}]
";
const GATE: &str = "approve-plan-1";

fn yes(dedupe: &str) -> Value {
    json!({"payload": {"choice": "yes"}, "dedupeKey": dedupe})
}

/// A run that waits at its gate.
async fn waiting(server: &Server, run_key: &str, opts: Value) -> Value {
    let mut opts = opts;
    opts["runKey"] = json!(run_key);
    let run = server.run_recipe(GATED, json!({}), opts).await;
    server.wait_for(&text(&run, "runId"), "at its gate", |h| h["status"] == "waiting_input").await
}

/// The gate as a reader sees it, once its prompt is out.
async fn gate(server: &Server, run: &Value) -> Value {
    let path = format!("/api/runs/{}/gates/{GATE}", text(run, "runId"));
    found(&format!("{path} has a prompt"), async || {
        let (status, view) = server.get(&path).await;
        assert_eq!(status, 200, "{view}");
        (!view["prompt"].is_null()).then_some(view)
    })
    .await
}

async fn reply(server: &Server, run: &Value, body: &Value) -> (u16, Value) {
    server.post(&format!("/api/runs/{}/gates/{GATE}/reply", text(run, "runId")), body).await
}

/// An event of a workflow, and how often it was ever set.
async fn event(sql: &PgPool, run: &Value, key: &str) -> (Option<Value>, i64) {
    let workflow = text(run, "workflowID");
    let value: Option<String> = sqlx::query_scalar(
        "SELECT value FROM dbos.workflow_events WHERE workflow_uuid = $1 AND key = $2",
    )
    .bind(&workflow)
    .bind(key)
    .fetch_optional(sql)
    .await
    .unwrap();
    let times: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM dbos.workflow_events_history WHERE workflow_uuid = $1 AND key = $2",
    )
    .bind(&workflow)
    .bind(key)
    .fetch_one(sql)
    .await
    .unwrap();
    (value.map(|v| serde_json::from_str(&v).unwrap()), times)
}

const LATE: &str =
    "SELECT count(*) FROM app.human_interactions WHERE run_id = $1 AND outcome = 'late'";
const ACCEPTED: &str =
    "SELECT count(*) FROM app.human_interactions WHERE run_id = $1 AND outcome = 'accepted'";
const ESCALATIONS: &str = "SELECT count(*) FROM dbos.workflow_status w JOIN app.runs r ON w.workflow_uuid LIKE 'esc:' || r.workflow_id || ':%' WHERE r.id = $1";

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn a_yes_is_recorded_published_and_executed_once() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, "a", json!({})).await;
    assert_eq!(run["nextAction"], "APPROVE_PLAN");
    assert_asked(&server, &sql, &run).await;
    assert_eq!(number(&sql, TASKS, &run).await, 0, "nothing is queued before consent");

    let first =
        json!({"payload": {"choice": "yes", "rationale": "looks right"}, "dedupeKey": "k1"});
    let (status, answer) = reply(&server, &run, &first).await;
    assert_eq!((status, answer), (200, json!({"ok": true, "isReplay": false})));
    let end = server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(end["status"], "succeeded", "{end}");

    assert_published(&server, &sql, &run, &first["payload"]).await;

    // The very same again is a replay, with the run long over.
    assert_eq!(reply(&server, &run, &first).await, (200, json!({"ok": true, "isReplay": true})));
    assert_eq!(number(&sql, INTERACTIONS, &run).await, 1);
    refused(
        &reply(&server, &run, &json!({"payload": {"choice": "no"}, "dedupeKey": "k1"})).await,
        409,
        "dedupe_conflict",
    );
    let topic = json!({"payload": first["payload"], "dedupeKey": "k1", "topic": "human:other"});
    refused(&reply(&server, &run, &topic).await, 409, "dedupe_conflict");
    assert_eq!(number(&sql, INTERACTIONS, &run).await, 1, "a conflict leaves no row");
    refused(&reply(&server, &run, &yes("k2")).await, 409, "state_conflict");
    refused(&reply(&server, &run, &yes("k2")).await, 409, "state_conflict");
    assert_eq!(
        number(&sql, INTERACTIONS, &run).await,
        2,
        "a second decision is refused and on record, once"
    );
    assert_eq!(number(&sql, APPROVALS, &run).await, 1);
    assert_eq!(number(&sql, EXECUTIONS, &run).await, 1);
    let (_, listed) = server.get(&format!("/api/runs/{}/interactions", text(&run, "runId"))).await;
    let outcomes: Vec<&Value> = listed.as_array().unwrap().iter().map(|i| &i["outcome"]).collect();
    assert_eq!(outcomes, ["accepted", "already_decided"], "{listed}");
    assert_eq!(server.get("/api/proofs").await.1["verdict"], "GO");
}

/// Its prompt, as a reader sees it and as it was published.
async fn assert_asked(server: &Server, sql: &PgPool, run: &Value) {
    let view = gate(server, run).await;
    assert_eq!(
        (&view["state"], &view["topic"]),
        (&json!("PENDING"), &json!(format!("human:{GATE}")))
    );
    assert_eq!((&view["workflowID"], &view["gateKey"]), (&run["workflowID"], &json!(GATE)));
    assert!(
        view["result"].is_null() && view["origin"].is_null() && view["payloadHash"].is_null(),
        "{view}"
    );

    let (prompt, _) = event(sql, run, &format!("ui:{GATE}")).await;
    let prompt = prompt.unwrap();
    assert_eq!((&prompt["schemaVersion"], &prompt["ttlS"]), (&json!(1), &json!(3600)), "{prompt}");
    assert_eq!(
        prompt["deadlineAt"].as_i64().unwrap() - prompt["createdAt"].as_i64().unwrap(),
        3_600_000
    );
    assert_eq!(prompt["formSchema"]["type"], "object");
    let allowed =
        ["schemaVersion", "formSchema", "ttlS", "createdAt", "deadlineAt", "uiHints", "defaults"];
    assert!(keys(&prompt).iter().all(|k| allowed.contains(k)), "{prompt}");
    assert_eq!(view["prompt"], prompt);
}

/// The result, the decision and the row of the reply, which say the same.
async fn assert_published(server: &Server, sql: &PgPool, run: &Value, payload: &Value) {
    let (result, times) = event(sql, run, &format!("ui:{GATE}:result")).await;
    let result = result.unwrap();
    assert_eq!(
        (&result["schemaVersion"], &result["state"], times),
        (&json!(1), &json!("RECEIVED"), 1),
        "{result}"
    );
    assert_eq!(result["payload"], *payload);
    let (decision, times) = event(sql, run, &format!("decision:{GATE}")).await;
    let decision = decision.unwrap();
    assert_eq!((&decision["decision"], times), (&json!("yes"), 1), "{decision}");
    assert_eq!(
        (&decision["schemaVersion"], &decision["payload"]),
        (&json!(1), &json!({"rationale": "looks right"}))
    );
    assert!(decision["at"].is_i64() && result["at"] == decision["at"], "{decision}");
    assert_eq!(event(sql, run, &format!("ui:{GATE}")).await.1, 1, "a prompt is emitted once");

    let row =
        value(sql, "SELECT to_jsonb(i) FROM app.human_interactions i WHERE run_id = $1", run).await;
    assert_eq!(
        (&row["origin"], &row["outcome"], &row["payload"]),
        (&json!("api-shim"), &json!("accepted"), payload)
    );
    assert_eq!(row["payload_hash"], result["payloadHash"]);
    // sha256 of the RFC 8785 text, computed by the database.
    let canonical = r#"{"choice":"yes","rationale":"looks right"}"#;
    let hash: String = sqlx::query_scalar("SELECT encode(sha256(convert_to($1, 'UTF8')), 'hex')")
        .bind(canonical)
        .fetch_one(sql)
        .await
        .unwrap();
    assert_eq!(row["payload_hash"], json!(hash));
    let view = gate(server, run).await;
    assert_eq!(
        (&view["state"], &view["origin"], &view["payloadHash"]),
        (&json!("RESOLVED"), &json!("api-shim"), &json!(hash))
    );
}

#[tokio::test]
async fn a_no_ends_the_run_and_nothing_was_executed() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, "a", json!({})).await;
    let no = json!({"payload": {"choice": "no", "rationale": "too risky"}, "dedupeKey": "k"});
    assert_eq!(reply(&server, &run, &no).await.0, 200);
    let end = server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!((&end["status"], &end["nextAction"]), (&json!("failed"), &json!("REPAIR")), "{end}");
    assert!(text(&end, "error").contains("too risky"), "{end}");
    assert_eq!(event(&sql, &run, &format!("decision:{GATE}")).await.0.unwrap()["decision"], "no");
    for query in [TASKS, APPROVALS, ESCALATIONS] {
        assert_eq!(number(&sql, query, &run).await, 0, "{query}");
    }
    refused(&reply(&server, &run, &yes("k2")).await, 409, "state_conflict");
    let approve = server
        .post(
            &format!("/api/runs/{}/approve-plan", text(&run, "runId")),
            &json!({"approvedBy": "ann"}),
        )
        .await;
    refused(&approve, 409, "state_conflict");
    assert_eq!(number(&sql, TASKS, &run).await, 0);
    assert_eq!(server.get("/api/proofs").await.1["verdict"], "GO");
}

#[tokio::test]
async fn a_choice_that_is_none_is_refused_and_never_a_silent_no() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, "bad", json!({})).await;
    for payload in [
        json!({}),
        json!(null),
        json!("yes"),
        json!(true),
        json!([]),
        json!({"choice": "YES"}),
        json!({"choice": "maybe"}),
        json!({"choice": ""}),
        json!({"choice": true}),
        json!({"choice": "approve"}),
        json!({"approved": "true"}),
        json!({"approved": 1}),
        json!({"approved": null}),
        json!({"decision": "ok"}),
        json!({"choice": "yes", "approved": false}),
        json!({"choice": "yes", "decision": "no"}),
        json!({"choice": "yes", "surprise": 1}),
        json!({"rationale": "because"}),
        json!({"choice": "yes", "rationale": 7}),
    ] {
        let answer = reply(&server, &run, &json!({"payload": payload, "dedupeKey": "k"})).await;
        refused(&answer, 400, "schema_violation");
        assert!(!answer.1["details"].as_array().unwrap().is_empty(), "{}", answer.1);
    }
    let run_id = text(&run, "runId");
    for (path, body, status, code) in [
        (format!("/api/runs/{run_id}/gates/NOT-A-KEY/reply"), yes("k"), 400, "invalid_id"),
        (format!("/api/runs/{run_id}/gates/approve-plan-2/reply"), yes("k"), 404, "not_found"),
        (format!("/api/runs/rn_{}/gates/{GATE}/reply", "0".repeat(32)), yes("k"), 404, "not_found"),
        (
            format!("/api/runs/{run_id}/gates/{GATE}/reply"),
            json!({"payload": {"choice": "yes"}, "dedupeKey": "k", "topic": "human:x"}),
            409,
            "topic_mismatch",
        ),
        (
            format!("/api/runs/{run_id}/gates/{GATE}/reply"),
            json!({"payload": {"choice": "yes"}, "dedupeKey": "k", "topic": format!("sys:{GATE}")}),
            409,
            "topic_mismatch",
        ),
    ] {
        refused(&server.post(&path, &body).await, status, code);
    }
    assert_eq!(number(&sql, INTERACTIONS, &run).await, 0, "what is refused leaves no row");
    assert_eq!(gate(&server, &run).await["state"], "PENDING", "and decides nothing");
    for (n, (payload, decision, status)) in [
        (json!({"approved": true}), "yes", "succeeded"),
        (json!({"decision": "approve"}), "yes", "succeeded"),
        (json!({"decision": "approved"}), "yes", "succeeded"),
        (json!({"decision": "yes"}), "yes", "succeeded"),
        (json!({"approved": false}), "no", "failed"),
        (json!({"decision": "reject"}), "no", "failed"),
        (json!({"decision": "rejected"}), "no", "failed"),
        (json!({"decision": "no"}), "no", "failed"),
        (json!({"choice": "no"}), "no", "failed"),
    ]
    .into_iter()
    .enumerate()
    {
        let run = waiting(&server, &n.to_string(), json!({})).await;
        let body = json!({"payload": payload, "dedupeKey": "k", "topic": format!("human:{GATE}"), "origin": "manual"});
        assert_eq!(reply(&server, &run, &body).await.0, 200, "{payload}");
        assert_eq!(server.wait_terminal(&text(&run, "runId")).await["status"], status, "{payload}");
        let decided = event(&sql, &run, &format!("decision:{GATE}")).await.0.unwrap();
        assert_eq!(decided["decision"], decision, "{payload}");
    }
}

#[tokio::test]
async fn silence_is_a_no_that_escalates_once_and_a_late_answer_is_only_recorded() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, "a", json!({"planApprovalTimeoutS": 1})).await;
    assert_eq!(gate(&server, &run).await["prompt"]["ttlS"], 1);
    let end = server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(end["status"], "failed", "{end}");
    assert!(text(&end, "error").contains("timeout"), "{end}");
    let result = event(&sql, &run, &format!("ui:{GATE}:result")).await.0.unwrap();
    assert_eq!((&result["state"], result.get("payload")), (&json!("TIMED_OUT"), None), "{result}");
    let decision = event(&sql, &run, &format!("decision:{GATE}")).await.0.unwrap();
    assert_eq!(
        (&decision["decision"], &decision["payload"]["rationale"]),
        (&json!("no"), &json!("timeout"))
    );
    refused(&reply(&server, &run, &yes("late")).await, 409, "state_conflict");
    refused(&reply(&server, &run, &yes("late")).await, 409, "state_conflict");
    let approve = server
        .post(
            &format!("/api/runs/{}/approve-plan", text(&run, "runId")),
            &json!({"approvedBy": "ann"}),
        )
        .await;
    refused(&approve, 409, "state_conflict");
    assert_eq!(number(&sql, LATE, &run).await, 2, "each late answer is on record once");
    assert_eq!(number(&sql, ACCEPTED, &run).await, 0);
    assert_eq!(number(&sql, TASKS, &run).await, 0);
    let escalation = format!("esc:{}:{GATE}", text(&run, "workflowID"));
    let escalated = wait_workflow(&server, &escalation).await;
    assert_eq!(escalated["status"], "SUCCESS", "{escalated}");
    assert_eq!(number(&sql, ESCALATIONS, &run).await, 1);
    let audit = event(&sql, &run, &format!("ui:{GATE}:audit")).await.0.unwrap();
    assert_eq!(
        (&audit["schemaVersion"], &audit["event"], &audit["reason"]),
        (&json!(1), &json!("escalated"), &json!("timeout"))
    );
    assert!(audit["at"].is_i64(), "{audit}");
    assert_eq!(server.get("/api/proofs").await.1["verdict"], "GO");
}

async fn wait_workflow(server: &Server, id: &str) -> Value {
    found(&format!("{id} succeeded"), async || {
        let (status, workflow) = server.get(&format!("/api/ops/wf/{id}")).await;
        (status == 200 && workflow["status"] == "SUCCESS").then_some(workflow)
    })
    .await
}

#[tokio::test]
async fn approve_plan_and_the_webhook_are_the_same_lane() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, "approve", json!({})).await;
    let path = format!("/api/runs/{}/approve-plan", text(&run, "runId"));
    let body = json!({"approvedBy": "ann", "notes": "go"});
    let (status, first) = server.post(&path, &body).await;
    assert_eq!(
        (status, &first["accepted"], &first["runId"]),
        (202, &json!(true), &run["runId"]),
        "{first}"
    );
    let again = server.post(&path, &body).await;
    assert_eq!(again, (202, first.clone()), "approving again is the same approval");
    let end = server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    assert_eq!(server.post(&path, &body).await, (202, first), "also when the run is over");
    refused(&server.post(&path, &json!({"approvedBy": "bob"})).await, 409, "state_conflict");
    let row =
        value(&sql, "SELECT to_jsonb(p) FROM app.plan_approvals p WHERE run_id = $1", &run).await;
    assert_eq!(
        (&row["approved_by"], &row["notes"], &row["origin"]),
        (&json!("ann"), &json!("go"), &json!("api-shim"))
    );
    let digest: String = sqlx::query_scalar("SELECT plan_digest FROM app.runs WHERE id = $1")
        .bind(text(&run, "runId"))
        .fetch_one(&sql)
        .await
        .unwrap();
    assert_eq!(row["plan_digest"], json!(digest), "consent is to exactly this plan");

    let run = waiting(&server, "webhook", json!({})).await;
    let event = |dedupe: &str, topic: &str, choice: &str| {
        json!({"workflowId": run["workflowID"], "gateKey": GATE, "topic": topic, "payload": {"choice": choice},
               "dedupeKey": dedupe, "origin": "webhook-ci"})
    };
    let topic = format!("human:{GATE}");
    refused(
        &server.post("/api/events/hitl", &event("k", "human:other", "yes")).await,
        409,
        "topic_mismatch",
    );
    refused(
        &server.post("/api/events/hitl", &event("k", &topic, "perhaps")).await,
        400,
        "schema_violation",
    );
    let accepted = server.post("/api/events/hitl", &event("k", &topic, "yes")).await;
    assert_eq!(accepted, (200, json!({"ok": true, "isReplay": false})));
    assert_eq!(
        server.post("/api/events/hitl", &event("k", &topic, "yes")).await.1["isReplay"],
        true
    );
    refused(
        &server.post("/api/events/hitl", &event("k", &topic, "no")).await,
        409,
        "dedupe_conflict",
    );
    // The other door knows the same reply.
    assert_eq!(reply(&server, &run, &yes("k")).await.1["isReplay"], true);
    assert_eq!(server.wait_terminal(&text(&run, "runId")).await["status"], "succeeded");
    assert_eq!(gate(&server, &run).await["origin"], "webhook-ci");
    let mut nobody = event("k", &topic, "yes");
    nobody["workflowId"] = json!(format!("it_{}", "0".repeat(32)));
    refused(&server.post("/api/events/hitl", &nobody).await, 404, "not_found");
    let value = "id: free\nv: '1'\nplan: {tasks: [{name: t, value: x}]}\n";
    let free = server.run_recipe(value, json!({}), json!({})).await;
    let approve =
        server.post(&format!("/api/runs/{}/approve-plan", text(&free, "runId")), &body).await;
    refused(&approve, 409, "state_conflict");
}

#[tokio::test]
async fn thirty_replies_at_once_make_one_decision() {
    let home = Home::new();
    let server = Arc::new(home.up());
    let sql = server.sql().await;
    let run = Arc::new(waiting(&server, "a", json!({})).await);
    let replies: Vec<_> = (0..30)
        .map(|n| {
            let (server, run) = (Arc::clone(&server), Arc::clone(&run));
            tokio::spawn(async move {
                (n % 6, reply(&server, &run, &yes(&format!("k{}", n % 6))).await)
            })
        })
        .collect();
    let mut answers = Vec::new();
    for reply in replies {
        answers.push(reply.await.unwrap());
    }
    let fresh: Vec<_> = answers.iter().filter(|(_, a)| a.1["isReplay"] == false).collect();
    assert_eq!(fresh.len(), 1, "{answers:?}");
    let winner = fresh[0].0;
    for (key, (status, answer)) in &answers {
        let want = if *key == winner { 200 } else { 409 };
        assert_eq!(*status, want, "{answer}");
    }
    assert_eq!(server.wait_terminal(&text(&run, "runId")).await["status"], "succeeded");
    assert_eq!(number(&sql, INTERACTIONS, &run).await, 6);
    assert_eq!(number(&sql, ACCEPTED, &run).await, 1);
    assert_eq!(number(&sql, APPROVALS, &run).await, 1);
    assert_eq!(number(&sql, EXECUTIONS, &run).await, 1);
    assert_eq!(event(&sql, &run, &format!("decision:{GATE}")).await.1, 1);
    assert_eq!(server.get("/api/proofs").await.1["verdict"], "GO");
}

#[tokio::test]
async fn a_cancel_at_the_gate_ends_run_and_gate_at_once_and_a_resume_opens_both() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, "a", json!({})).await;
    gate(&server, &run).await;
    let (id, workflow) = (text(&run, "runId"), text(&run, "workflowID"));
    let action = json!({"actor": "ann", "reason": "changed my mind"});
    assert_eq!(server.post(&format!("/api/ops/wf/{workflow}/cancel"), &action).await.0, 202);
    // At once: no waiting for a worker.
    let (_, header) = server.get(&format!("/api/runs/{id}")).await;
    assert_eq!(
        (&header["status"], &header["nextAction"]),
        (&json!("canceled"), &json!("NONE")),
        "{header}"
    );
    assert_eq!(header["durableStatus"], "CANCELLED");
    let (_, inbox) = server.get("/api/hitl/inbox").await;
    assert_eq!(inbox, json!([]), "nobody is asked any more");
    let (_, gates) = server.get(&format!("/api/runs/{id}/gates")).await;
    assert_eq!(gates[0]["state"], "CANCELED", "{gates}");
    let (_, one) = server.get(&format!("/api/runs/{id}/gates/{GATE}?timeoutS=30")).await;
    assert_eq!(one["state"], "CANCELED", "it is not waited for either: {one}");
    let shown = home.run(&["gate", "show", &id]);
    let words = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success() && !words.contains("PENDING"), "{words}");
    refused(&reply(&server, &run, &yes("k1")).await, 409, "state_conflict");
    let approve =
        server.post(&format!("/api/runs/{id}/approve-plan"), &json!({"approvedBy": "ann"})).await;
    refused(&approve, 409, "state_conflict");
    assert_eq!(number(&sql, ACCEPTED, &run).await, 0);
    assert_eq!(number(&sql, INTERACTIONS, &run).await, 2, "refused answers are on record");
    assert_eq!(number(&sql, APPROVALS, &run).await, 0);
    assert_eq!(number(&sql, TASKS, &run).await, 0);
    assert_eq!(
        event(&sql, &run, &format!("decision:{GATE}")).await.0,
        None,
        "a cancel is no decision"
    );
    assert_eq!(server.get("/api/proofs").await.1["verdict"], "GO");

    assert_eq!(server.post(&format!("/api/ops/wf/{workflow}/resume"), &action).await.0, 202);
    let header = server
        .wait_for(&id, "waiting again", |h| {
            h["status"] == "waiting_input" && h["durableStatus"] == "PENDING"
        })
        .await;
    assert_eq!(header["nextAction"], "APPROVE_PLAN", "{header}");
    let (_, inbox) = server.get("/api/hitl/inbox").await;
    assert_eq!(inbox.as_array().unwrap().len(), 1, "{inbox}");
    assert_eq!(
        reply(&server, &run, &yes("k2")).await,
        (200, json!({"ok": true, "isReplay": false}))
    );
    let end = server.wait_terminal(&id).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    assert_eq!(event(&sql, &run, &format!("ui:{GATE}")).await.1, 1, "asked once, resumed or not");
    assert_eq!(server.get("/api/proofs").await.1["verdict"], "GO");
}

#[tokio::test]
async fn a_long_poll_returns_when_the_gate_is_decided_and_not_before() {
    let home = Home::new();
    let server = Arc::new(home.up());
    let run = waiting(&server, "a", json!({})).await;
    gate(&server, &run).await;
    let path = format!("/api/runs/{}/gates/{GATE}", text(&run, "runId"));
    let watch = Stopwatch::start();
    let (_, view) = server.get(&format!("{path}?timeoutS=1")).await;
    assert_eq!(view["state"], "PENDING", "{view}");
    assert!(watch.elapsed_ms() >= 900, "it waited {} ms", watch.elapsed_ms());
    let poll = tokio::spawn({
        let server = Arc::clone(&server);
        async move { (server.get(&format!("{path}?timeoutS=30")).await, Stopwatch::start()) }
    });
    clock::sleep(std::time::Duration::from_millis(200)).await;
    assert!(!poll.is_finished(), "nothing is decided yet");
    let watch = Stopwatch::start();
    assert_eq!(reply(&server, &run, &yes("k")).await.0, 200);
    let ((status, view), _) = poll.await.unwrap();
    assert_eq!(status, 200, "{view}");
    assert_ne!(view["state"], "PENDING", "{view}");
    assert!(watch.elapsed_ms() < 5_000, "it took {} ms", watch.elapsed_ms());
}
