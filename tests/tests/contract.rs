//! What clients of the contract rely on, row by row of docs/contract.md.
//!
//! One file: the rows of one page, in its order.

use crate::support;

use std::time::Duration;

use cofferdam_contracts::instant::Instant;
use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;
use support::gates::{
    APPROVALS, INTERACTIONS, TASKS, answer, number, prompt, proven, refused, say, waiting,
};
use support::{texts, until};

const SHIM: &[&str] = &["shim", "--listen", "127.0.0.1:0"];
const SOON: Duration = Duration::from_secs(60);
const GATED: &str = "id: gated\nv: '1'\ntitle: A gated one\nplan:\n  gate: approve-plan\n  tasks: [{name: t, exec: {run: 'echo ran', timeout: 30s}}]\n";
const PLAIN: &str =
    "id: plain\nv: '1'\nplan: {tasks: [{name: t, exec: {run: 'echo plain', timeout: 30s}}]}\n";
const ORIGINS: [&str; 7] =
    ["manual", "engine-dbos", "api-shim", "webhook", "webhook-ci", "external", "unknown"];

async fn get(server: &Server, path: &str) -> Value {
    let (status, body) = server.get(path).await;
    assert_eq!(status, 200, "{path}: {body}");
    body
}

async fn import(server: &Server, yaml: &str) -> Value {
    let (status, body) = server.post("/api/recipes/import", &json!({"yaml": yaml})).await;
    assert_eq!(status, 201, "{body}");
    body
}

async fn audited(sql: &PgPool, op: &str) -> Vec<String> {
    let query = "SELECT target FROM app.audit WHERE op = $1 ORDER BY id";
    sqlx::query_scalar(query).bind(op).fetch_all(sql).await.unwrap()
}

#[tokio::test]
async fn f5_every_origin_is_mandatory_and_from_the_closed_list() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let sql = shim.sql().await;
    let tables = texts(
        &sql,
        "SELECT c.table_name || ' ' || c.is_nullable FROM information_schema.columns c
           JOIN information_schema.tables t USING (table_schema, table_name)
          WHERE c.table_schema = 'app' AND c.column_name = 'origin' AND t.table_type = 'BASE TABLE'
          ORDER BY 1",
    )
    .await;
    let contract = ["intents", "runs", "run_steps", "artifacts", "sbx_runs", "human_gates"];
    let more = ["human_interactions", "plan_approvals", "opencode_calls", "audit", "run_retries"];
    for table in contract.iter().chain(&more) {
        assert!(tables.contains(&format!("{table} NO")), "{table}: {tables:?}");
    }
    for row in &tables {
        let (table, nullable) = row.split_once(' ').unwrap();
        assert_eq!(nullable, "NO", "{table}");
        let checks: Vec<String> = sqlx::query_scalar(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint
              WHERE contype = 'c' AND conrelid = ('app.' || $1)::regclass",
        )
        .bind(table)
        .fetch_all(&sql)
        .await
        .unwrap();
        let check =
            checks.iter().find(|c| c.contains("origin")).unwrap_or_else(|| panic!("{table}"));
        let named: Vec<&str> = check.split('\'').skip(1).step_by(2).collect();
        assert_eq!(named, ORIGINS, "{table}: {check}");
    }
}

#[tokio::test]
async fn f5_a_gates_audit_has_every_event_and_the_newest_on_top() {
    const AUDIT: &str = "SELECT h.value::text FROM dbos.workflow_events_history h
      JOIN app.runs r ON r.workflow_id = h.workflow_uuid
     WHERE r.id = $1 AND h.key = 'ui:approve-plan:audit' ORDER BY h.function_id";
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let events = async |run: &Value| -> Vec<Value> {
        let rows: Vec<String> =
            sqlx::query_scalar(AUDIT).bind(text(run, "runId")).fetch_all(&sql).await.unwrap();
        rows.iter().map(|row| serde_json::from_str(row).unwrap()).collect()
    };
    let named =
        |events: &[Value]| -> Vec<String> { events.iter().map(|e| text(e, "event")).collect() };
    let run = waiting(&server, GATED, json!({}), json!({"runKey": "a"})).await;
    assert_eq!(say(&server, &server.key, &run, "k", "yes").await.0, 200);
    server.wait_terminal(&text(&run, "runId")).await;
    let seen = events(&run).await;
    assert_eq!(named(&seen), ["received"], "{seen:?}");
    assert_eq!((&seen[0]["schemaVersion"], seen[0]["at"].is_i64()), (&json!(1), true));
    assert!(text(&seen[0], "actor").starts_with("k_"), "{seen:?}");
    let late =
        waiting(&server, GATED, json!({}), json!({"runKey": "b", "planApprovalTimeoutS": 1})).await;
    server.wait_terminal(&text(&late, "runId")).await;
    until("the escalation is on record", SOON, async || events(&late).await.len() == 2).await;
    assert_eq!(named(&events(&late).await), ["timed_out", "escalated"]);
    let newest: String = sqlx::query_scalar(
        "SELECT e.value::text FROM dbos.workflow_events e JOIN app.runs r ON r.workflow_id = e.workflow_uuid
          WHERE r.id = $1 AND e.key = 'ui:approve-plan:audit'",
    )
    .bind(text(&late, "runId"))
    .fetch_one(&sql)
    .await
    .unwrap();
    assert_eq!(serde_json::from_str::<Value>(&newest).unwrap()["event"], "escalated");
    let gone = waiting(&server, GATED, json!({}), json!({"runKey": "c"})).await;
    let action = json!({"actor": "ann", "reason": "no more"});
    let steer = |op: &str| format!("/api/ops/wf/{}/{op}", text(&gone, "workflowID"));
    assert_eq!(server.post(&steer("cancel"), &action).await.0, 202);
    assert_eq!(server.post(&steer("resume"), &action).await.0, 202);
    assert_eq!(named(&events(&gone).await), ["canceled", "reopened"]);
    assert_eq!(say(&server, &server.key, &gone, "k", "no").await.0, 200);
    server.wait_terminal(&text(&gone, "runId")).await;
    proven(&server).await;
}

#[tokio::test]
async fn f5_a_topic_is_human_or_sys_and_the_gates_own() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, GATED, json!({}), json!({})).await;
    let path = format!("/api/runs/{}/gates/approve-plan/reply", text(&run, "runId"));
    let reply =
        |topic: &str| json!({"payload": {"choice": "yes"}, "dedupeKey": "k", "topic": topic});
    for topic in ["approve-plan", "robot:approve-plan", "sys:", "human:A", "sys:a b"] {
        refused(&server.post(&path, &reply(topic)).await, 400, "schema_violation");
    }
    for topic in ["sys:cancel", "sys:ci", "human:another"] {
        refused(&server.post(&path, &reply(topic)).await, 409, "topic_mismatch");
    }
    assert_eq!(number(&sql, INTERACTIONS, &run).await, 0, "what is refused leaves no row");
    assert_eq!(server.post(&path, &reply("human:approve-plan")).await.0, 200);
    assert_eq!(server.wait_terminal(&text(&run, "runId")).await["status"], "succeeded");
}

#[tokio::test]
async fn f5_a_replay_that_differs_says_its_drift_at_the_top() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let intent = json!({"goal": "g", "inputs": {"cmd": "true"}, "constraints": {}});
    let made = shim.post("/api/intents", &intent).await.1;
    let mut start = json!({"intentId": made["intentId"], "traceId": "one"});
    assert_eq!(shim.post("/api/runs", &start).await.0, 201);
    start["traceId"] = json!("two");
    let (status, body) = shim.post("/api/runs", &start).await;
    let drift = json!([{"field": "traceId", "existing": "one", "incoming": "two"}]);
    assert_eq!(
        (status, &body["code"], &body["drift"]),
        (409, &json!("conflict"), &drift),
        "{body}"
    );
    assert_eq!(body["details"]["drift"], drift, "where it was before");
    let queues = texts(&shim.sql().await, "SELECT name FROM dbos.queues ORDER BY 1").await;
    assert_eq!(queues, ["controlQ", "intentQ", "sbxQ"], "no queue that nothing is put on");
}

#[tokio::test]
async fn f5_the_interactive_lane_goes_before_the_batch_lane() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let sql = shim.sql().await;
    let mut ids = Vec::new();
    for (n, lane) in ["batch", "batch", "interactive", "interactive"].into_iter().enumerate() {
        let opts = json!({"lane": lane, "runKey": n.to_string()});
        ids.push((text(&shim.run_recipe(PLAIN, json!({}), opts).await, "runId"), lane));
    }
    let lanes = "SELECT priority::text FROM app.runs ORDER BY created_at";
    assert_eq!(texts(&sql, lanes).await, ["1000", "1000", "1", "1"]);
    // One run at a time, as an operator may say: then the order of their ends is that of their claims.
    sqlx::query("UPDATE dbos.queues SET worker_concurrency = 1 WHERE name = 'intentQ'")
        .execute(&sql)
        .await
        .unwrap();
    let worker = Server::start(&home, &["worker"], &[]);
    for (id, _) in &ids {
        assert_eq!(shim.wait_terminal(id).await["status"], "succeeded");
    }
    let order = "SELECT priority::text FROM app.runs ORDER BY finished_at";
    assert_eq!(texts(&sql, order).await, ["1", "1", "1000", "1000"]);
    drop(worker);
}

#[tokio::test]
async fn f5_the_bounds_of_the_wire_hold_at_their_edges() {
    let home = Home::new();
    let server = home.up();
    let run = waiting(&server, GATED, json!({}), json!({})).await;
    let run_path = format!("/api/runs/{}", text(&run, "runId"));
    for (path, lowest, highest) in [
        ("/api/hitl/inbox?limit=".to_owned(), 1, 200),
        (format!("{run_path}/interactions?limit="), 1, 500),
        ("/api/ops/wf?limit=".to_owned(), 1, 200),
        ("/api/ops/throughput?windowS=".to_owned(), 1, 86_400),
    ] {
        for (value, status) in
            [(lowest - 1, 400), (lowest, 200), (highest, 200), (highest + 1, 400)]
        {
            let (got, body) = server.get(&format!("{path}{value}")).await;
            assert_eq!(got, status, "{path}{value}: {body}");
        }
    }
    let gate = format!("{run_path}/gates/approve-plan");
    for (wait, status) in [("-1", 400), ("0", 200), ("31", 400)] {
        assert_eq!(server.get(&format!("{gate}?timeoutS={wait}")).await.0, status, "{wait}");
    }
    let reply = |key: String| json!({"payload": {"choice": "yes"}, "dedupeKey": key});
    for length in [0, 257] {
        let answer = server.post(&format!("{gate}/reply"), &reply("k".repeat(length))).await;
        refused(&answer, 400, "schema_violation");
    }
    assert_eq!(server.post(&format!("{gate}/reply"), &reply("k".repeat(256))).await.0, 200);
    assert_eq!(
        server.get(&format!("{gate}?timeoutS=30")).await.0,
        200,
        "decided: it answers at once"
    );
    server.wait_terminal(&text(&run, "runId")).await;
}

#[tokio::test]
async fn f3_keys_and_recipes_commit_with_their_audit_rows_or_not_at_all() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let sql = shim.sql().await;
    assert_eq!(audited(&sql, "key.create").await.len(), 1, "the state directory's own key");
    let (id, _) = shim.new_key(&json!({"roles": ["auditor"]})).await;
    assert_eq!(audited(&sql, "key.create").await.last(), Some(&id));
    import(&shim, PLAIN).await;
    assert_eq!(audited(&sql, "recipe.import").await, ["plain@1"]);
    // A record that cannot be written takes its change with it.
    let count = "SELECT (SELECT count(*) FROM app.api_keys WHERE revoked_at IS NULL)::text || ' '
                      || (SELECT count(*) FROM app.recipe_versions)::text";
    let before = texts(&sql, count).await;
    sqlx::query("ALTER TABLE app.audit ADD CONSTRAINT no_more CHECK (false) NOT VALID")
        .execute(&sql)
        .await
        .unwrap();
    let roles = json!({"roles": ["auditor"]});
    assert_eq!(shim.post("/api/keys", &roles).await.0 / 100, 5);
    let gone = format!("/api/keys/{id}");
    assert_eq!(shim.request("DELETE", &gone, Some(&shim.key), None).await.0 / 100, 5);
    let other = PLAIN.replace("echo plain", "echo other");
    assert_eq!(shim.post("/api/recipes/import", &json!({"yaml": other})).await.0 / 100, 5);
    let promotion = json!({"v": "1", "to": "stable"});
    assert_eq!(shim.post("/api/recipes/plain/promote", &promotion).await.0 / 100, 5);
    let limit = json!({"value": 3, "expectedVersion": 0, "scope": "global"});
    let path = "/api/config/dispatch.max_spawn_depth";
    assert_eq!(
        shim.request("PUT", path, Some(&shim.key), Some(limit.to_string().into_bytes())).await.0,
        500
    );
    assert_eq!(texts(&sql, count).await, before);
    assert_eq!(get(&shim, path).await["version"], 0);
    sqlx::query("ALTER TABLE app.audit DROP CONSTRAINT no_more").execute(&sql).await.unwrap();
    assert_eq!(shim.request("DELETE", &gone, Some(&shim.key), None).await.0, 200);
    assert_eq!(audited(&sql, "key.revoke").await, [id]);
}

#[tokio::test]
async fn f3_a_stable_recipe_is_promoted_by_a_command_and_immutable_afterwards() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let sql = shim.sql().await;
    let first = import(&shim, PLAIN).await;
    let promote = |more: &[&str]| {
        let mut args = vec!["recipe", "promote", "plain@1", "--reason", "reviewed"];
        args.extend(more);
        home.run(&args)
    };
    assert!(promote(&["--candidate"]).status.success());
    assert!(promote(&[]).status.success());
    assert!(promote(&[]).status.success(), "it is what it is");
    assert_eq!(promote(&["--candidate"]).status.code(), Some(1), "it never goes back");
    assert_eq!(audited(&sql, "recipe.promote").await, ["plain@1", "plain@1"], "two changes");
    let versions = get(&shim, "/api/recipes/plain/versions").await;
    assert_eq!((&versions[0]["status"], &versions[0]["hash"]), (&json!("stable"), &first["hash"]));
    let other = PLAIN.replace("echo plain", "echo other");
    refused(&shim.post("/api/recipes/import", &json!({"yaml": other})).await, 409, "conflict");
    assert_eq!(import(&shim, PLAIN).await["status"], "stable", "its own content is no change");
    let to = |v: &str| json!({"v": v, "to": "stable"});
    refused(&shim.post("/api/recipes/plain/promote", &to("2")).await, 404, "not_found");
    refused(&shim.post("/api/recipes/none/promote", &to("1")).await, 404, "not_found");
    let (_, submitter) = shim.new_key(&json!({"roles": ["submitter"]})).await;
    let answer = shim.post_as(&submitter, "/api/recipes/plain/promote", &to("1")).await;
    refused(&answer, 403, "forbidden");
    // The trigger, for whoever comes past the API.
    for statement in [
        "UPDATE app.recipe_versions SET status = 'draft'",
        "UPDATE app.recipe_versions SET json = '{}'",
        "DELETE FROM app.recipe_versions",
    ] {
        let error = sqlx::query(statement).execute(&sql).await.unwrap_err();
        let code = error.as_database_error().and_then(|e| e.code()).unwrap_or_default().to_string();
        assert_eq!(code, "23001", "{statement}: {error}");
    }
}

#[tokio::test]
async fn f3_limits_on_spawning_are_set_and_taken_back_by_the_host_alone() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let sql = shim.sql().await;
    let limit = "SELECT app.dispatch_limit('dispatch.max_spawn_depth', 5)::text";
    assert_eq!(texts(&sql, limit).await, ["5"]);
    let set = |value: &str, more: &[&str]| {
        let mut args = vec!["config", "set", "dispatch.max_spawn_depth", value];
        args.extend(more);
        home.run(&args)
    };
    assert!(set("2", &["--global"]).status.success());
    assert_eq!(texts(&sql, limit).await, ["2"]);
    assert!(!set("3", &[]).status.success(), "no tenant has its own");
    assert!(!set("\"3\"", &["--global"]).status.success());
    assert!(!set("-1", &["--global"]).status.success());
    assert!(set("null", &["--global"]).status.success());
    assert_eq!(texts(&sql, limit).await, ["5"], "what is taken back is the default again");
    assert_eq!(audited(&sql, "config.set").await.len(), 2);
}

#[tokio::test]
async fn f6_a_note_goes_by_three_names() {
    let home = Home::new();
    let server = home.up();
    for (n, payload, rationale) in [
        (0, json!({"choice": "yes", "notes": "by notes"}), "by notes"),
        (1, json!({"approved": true, "note": "by note"}), "by note"),
        (2, json!({"decision": "approve", "rationale": "as ever"}), "as ever"),
    ] {
        let opts = json!({"runKey": n.to_string()});
        let run = waiting(&server, GATED, json!({}), opts).await;
        let said = answer(&server, &server.key, &run, "approve-plan", "k", payload).await;
        assert_eq!(said.0, 200, "{said:?}");
        server.wait_terminal(&text(&run, "runId")).await;
        let gate =
            get(&server, &format!("/api/runs/{}/gates/approve-plan", text(&run, "runId"))).await;
        assert_eq!(gate["decision"]["payload"]["rationale"], rationale, "{gate}");
    }
}

fn iso(ms: &Value) -> String {
    Instant::from_ms(ms.as_i64().unwrap()).to_string()
}

#[tokio::test]
async fn f6_approvals_and_audits_have_iso_instants_and_the_newest_first() {
    let home = Home::new();
    let server = home.up();
    let run = waiting(&server, GATED, json!({}), json!({})).await;
    let path = format!("/api/ops/wf/{}", text(&run, "workflowID"));
    for op in ["cancel", "resume"] {
        let action = json!({"actor": "ann", "reason": op});
        assert_eq!(server.post(&format!("{path}/{op}"), &action).await.0, 202);
    }
    let audit = get(&server, &path).await["audit"].clone();
    let ops: Vec<&Value> = audit.as_array().unwrap().iter().map(|a| &a["op"]).collect();
    assert_eq!(ops, ["resume", "cancel"], "{audit}");
    for row in audit.as_array().unwrap() {
        assert_eq!(text(row, "at"), iso(&row["atMs"]), "{row}");
    }
    prompt(&server, &run, "approve-plan").await;
    let approve = format!("/api/runs/{}/approve-plan", text(&run, "runId"));
    let (status, body) = server.post(&approve, &json!({"approvedBy": "ann"})).await;
    assert_eq!(status, 202, "{body}");
    assert_eq!(text(&body, "approvedAt"), iso(&body["approvedAtMs"]));
    server.wait_terminal(&text(&run, "runId")).await;
}

/// Stricter: a consent is bound to five digests, which are not there before the gate is.
#[tokio::test]
async fn f6_a_plan_that_is_not_there_yet_is_not_approved() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let sql = shim.sql().await;
    let run = shim.run_recipe(GATED, json!({}), json!({})).await;
    let approve = format!("/api/runs/{}/approve-plan", text(&run, "runId"));
    refused(&shim.post(&approve, &json!({"approvedBy": "ann"})).await, 409, "state_conflict");
    assert_eq!(number(&sql, APPROVALS, &run).await, 0);
}

/// A recipe names its gate, so one for clients that look for `approve-plan-` says so.
#[tokio::test]
async fn f6_a_gates_key_has_the_suffix_that_its_recipe_gives_it() {
    let home = Home::new();
    let server = home.up();
    let yaml = GATED.replace("gate: approve-plan", "gate: approve-plan-main");
    let run = server.run_recipe(&yaml, json!({}), json!({})).await;
    prompt(&server, &run, "approve-plan-main").await;
    let inbox = get(&server, "/api/hitl/inbox").await;
    assert_eq!(inbox[0]["gateKey"], "approve-plan-main", "{inbox}");
    let approve = format!("/api/runs/{}/approve-plan", text(&run, "runId"));
    assert_eq!(server.post(&approve, &json!({"approvedBy": "ann"})).await.0, 202);
    assert_eq!(server.wait_terminal(&text(&run, "runId")).await["status"], "succeeded");
}

/// Stricter: `retries_exceeded` says that attempts are used up, `failed` that somebody said no.
#[tokio::test]
async fn f6_a_refused_run_has_failed_and_may_be_repaired() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, GATED, json!({}), json!({})).await;
    assert_eq!(say(&server, &server.key, &run, "k", "no").await.0, 200);
    let end = server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!((&end["status"], &end["nextAction"]), (&json!("failed"), &json!("REPAIR")), "{end}");
    assert_eq!(number(&sql, TASKS, &run).await, 0);
    let late = say(&server, &server.key, &run, "late", "yes").await;
    refused(&late, 409, "state_conflict");
    assert_eq!(number(&sql, INTERACTIONS, &run).await, 2, "a late reply is on record");
    proven(&server).await;
}

#[tokio::test]
async fn f6_recipes_have_an_overview_and_travel_as_bundles() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    import(&shim, GATED).await;
    import(&shim, &GATED.replace("v: '1'", "v: '2'")).await;
    import(&shim, PLAIN).await;
    let all = get(&shim, "/api/recipes").await;
    assert_eq!(
        (&all[0]["name"], &all[0]["latestV"], &all[0]["versions"]),
        (&json!("A gated one"), &json!("2"), &json!(2)),
        "{all}"
    );
    assert_eq!((&all[1]["name"], all[1]["updatedAt"].is_i64()), (&json!("plain"), true), "{all}");
    let (status, bundle) = shim.post("/api/recipes/export", &json!({"id": "gated"})).await;
    assert_eq!((status, bundle["versions"].as_array().unwrap().len()), (200, 2), "{bundle}");
    let other = Home::empty();
    let there = Server::start(&other, SHIM, &[]);
    let (status, imported) = there.post("/api/recipes/import", &json!({"bundle": bundle})).await;
    assert_eq!((status, imported["versions"].as_array().unwrap().len()), (201, 2), "{imported}");
    let (_, again) = there.post("/api/recipes/export", &json!({"id": "gated"})).await;
    assert_eq!(again, bundle, "export and import are inverse");
    let mut forged = bundle.clone();
    forged["versions"][0]["recipe"]["title"] = json!("another");
    forged["versions"][1]["v"] = json!("3");
    forged["versions"][1]["recipe"]["v"] = json!("3");
    let answer = there.post("/api/recipes/import", &json!({"bundle": forged})).await;
    refused(&answer, 400, "recipe_invalid");
    assert_eq!(get(&there, "/api/recipes/gated/versions").await.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn f6_step_rows_have_the_names_that_clients_read() {
    let home = Home::new();
    let server = home.up();
    let run = server.run_recipe(PLAIN, json!({}), json!({})).await;
    let end = server.wait_terminal(&text(&run, "runId")).await;
    let steps = get(&server, &format!("/api/runs/{}/steps", text(&run, "runId"))).await;
    for step in steps.as_array().unwrap() {
        assert_eq!(step["stepID"], step["stepId"]);
        let began = step["startedAt"].as_i64().unwrap();
        assert!(
            began >= end["createdAt"].as_i64().unwrap() && began <= step["at"].as_i64().unwrap(),
            "{step}"
        );
    }
    let task = steps.as_array().unwrap().iter().find(|s| !s["taskKey"].is_null()).unwrap();
    assert_eq!(task["name"], "t");
    let refs = task["artifactRefs"].as_array().unwrap();
    assert!(refs[0].as_str().unwrap().ends_with("/index.json"), "{refs:?}");
    for uri in refs {
        get(&server, &format!("/api/artifacts/{}", uri.as_str().unwrap())).await;
    }
    assert_eq!(end["executionMode"], "LOCAL_NATIVE", "{end}");
    let shown = home.run(&["show", &text(&run, "runId")]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("LOCAL_NATIVE"), "{shown:?}");
}

#[tokio::test]
async fn f6_queue_depth_and_throughput_are_the_tenants_own() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let (_, stranger) = shim.new_key(&json!({"tenant": "other", "roles": ["auditor"]})).await;
    let run = shim.run_recipe(PLAIN, json!({}), json!({})).await;
    let of = |rows: &Value, queue: &str| {
        rows.as_array().unwrap().iter().find(|q| q["queueName"] == queue).unwrap().clone()
    };
    let depth = get(&shim, "/api/ops/queue-depth").await;
    let waits = of(&depth, "intentQ");
    assert_eq!((&waits["enqueued"], &waits["pending"]), (&json!(1), &json!(0)), "{depth}");
    assert!(waits["oldestAgeMs"].as_i64().unwrap() >= 0, "{depth}");
    let theirs = shim.get_as(&stranger, "/api/ops/queue-depth").await.1;
    assert_eq!(of(&theirs, "intentQ")["enqueued"], 0, "{theirs}");
    let worker = Server::start(&home, &["worker"], &[]);
    shim.wait_terminal(&text(&run, "runId")).await;
    let done = get(&shim, "/api/ops/throughput?windowS=3600").await;
    for field in ["runsStarted", "runsFinished", "runsSucceeded", "tasksFinished"] {
        assert_eq!(done[field], 1, "{done}");
    }
    let theirs = shim.get_as(&stranger, "/api/ops/throughput").await.1;
    assert_eq!((&theirs["runsStarted"], &theirs["windowS"]), (&json!(0), &json!(60)), "{theirs}");
    drop(worker);
}
