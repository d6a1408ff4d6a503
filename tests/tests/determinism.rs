//! `RANDOM_SEED` pins ids and randomness: the same input gives the same trace, on any host, in any
//! database. What a trace is, is below: everything but times and what the host happens to measure.

use crate::support;

use std::collections::BTreeSet;

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;
use support::texts;

const FAN: &str = "id: fan\nv: \"1\"\nform:\n  type: object\n  properties: {word: {type: string}}\nplan:\n  gate: approve-plan\n  tasks:\n    - name: part-${item}\n      each: ${range(4)}\n      exec: {run: \"echo ${form.word | sh} ${item} | tee out.txt\", timeout: 30s}\n      artifacts: [out.txt]\n    - {name: kept, value: \"${form.word}\"}\n    - name: stubborn\n      exec: {run: \"echo no >&2; exit 3\", timeout: 30s}\n";

/// One gated fan-out that fails, its retry, and a plain success: their whole trace, line by line.
async fn trace(seed: &str) -> Vec<String> {
    trace_and_names(seed).await.0
}

/// The same, and the names of what was there for it: sandboxes and workers.
async fn trace_and_names(seed: &str) -> (Vec<String>, BTreeSet<String>) {
    let home = Home::new();
    let up = home.up_with(&[], &[("RANDOM_SEED", seed)]);
    let first = up.run_recipe(FAN, json!({"word": "seed"}), json!({})).await;
    let first = text(&first, "runId");
    approve(&up, &first).await;
    assert_eq!(up.wait_terminal(&first).await["status"], "failed");
    let (status, retried) = up.post(&format!("/api/runs/{first}/retry"), &json!({})).await;
    assert_eq!(status, 202, "{retried}");
    up.wait_terminal(retried["newRunId"].as_str().unwrap()).await;
    let plain =
        std::fs::read_to_string(cofferdam_tests::repository().join("examples/hello.yaml")).unwrap();
    let plain = up.run_recipe(&plain, json!({}), json!({})).await;
    assert_eq!(up.wait_terminal(plain["runId"].as_str().unwrap()).await["status"], "succeeded");
    let intent = json!({"goal": "by hand", "inputs": {}, "constraints": {}});
    let (status, made) = up.post("/api/intents", &intent).await;
    assert_eq!(status, 201, "{made}");
    let sql = up.sql().await;
    let names =
        "SELECT sandbox_id FROM app.remote_execution_sessions UNION SELECT id FROM app.executors";
    let names = texts(&sql, names).await.into_iter().collect();
    (normalized(&sql).await, names)
}

async fn approve(up: &Server, run: &str) {
    up.wait_for(run, "waiting", |h| h["status"] == "waiting_input").await;
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": "k"});
    let (status, body) =
        up.post(&format!("/api/runs/{run}/gates/approve-plan/reply"), &reply).await;
    assert_eq!(status, 200, "{body}");
}

/// Ids, digests, orders and outcomes out of both schemas.
pub async fn normalized(sql: &PgPool) -> Vec<String> {
    let mut trace = Vec::new();
    for query in [
        "SELECT 'intent ' || id || ' ' || coalesce(intent_hash, '-') || ' ' || goal FROM app.intents ORDER BY goal, id",
        "SELECT concat_ws(' ', 'run', id, workflow_id, status, plan_digest, recipe_hash, retry_of, error) FROM app.runs ORDER BY intent_id, retry_count",
        "SELECT concat_ws(' ', 'step', run_id, step_id, attempt, status, output, error) FROM app.run_steps ORDER BY run_id, step_id, attempt",
        "SELECT concat_ws(' ', 'task', run_id, step_id, attempt, task_key, err_code, response->>'exit', response->>'stdout', request) FROM app.sbx_runs ORDER BY run_id, step_id, attempt",
        "SELECT concat_ws(' ', 'engine', w.workflow_uuid, w.name, w.status, w.queue_name, w.queue_partition_key, w.priority) FROM dbos.workflow_status w ORDER BY w.workflow_uuid",
        "SELECT concat_ws(' ', 'operation', workflow_uuid, function_id, function_name) FROM dbos.operation_outputs ORDER BY workflow_uuid, function_id",
        "SELECT concat_ws(' ', 'interaction', workflow_id, gate_key, topic, dedupe_key, payload_hash, outcome, origin) FROM app.human_interactions ORDER BY 1",
        "SELECT concat_ws(' ', 'gate', workflow_id, gate_key, topic, state, plan_digest, ttl_s) FROM app.human_gates ORDER BY 1",
        // What a sandbox measures about itself differs; the rest is the same to the byte.
        "SELECT concat_ws(' ', 'artifact', uri, idx, kind, CASE WHEN kind NOT IN ('timings', 'raw', 'artifact_index') AND NOT (kind = 'stdout' AND inline LIKE 'hello from %') THEN sha256 END) FROM app.artifacts ORDER BY uri",
    ] {
        trace.extend(texts(sql, query).await);
    }
    let events: Vec<(String, String, String)> = sqlx::query_as(
        "SELECT workflow_uuid, key, value::text FROM dbos.workflow_events_history ORDER BY workflow_uuid, function_id, key",
    )
    .fetch_all(sql)
    .await
    .unwrap();
    for (workflow, key, value) in events {
        let mut value: Value = serde_json::from_str(&value).unwrap();
        // Who answered is a key, and keys are secrets: they never come from the seed.
        for time in ["at", "createdAt", "deadlineAt", "actor"] {
            value.as_object_mut().unwrap().remove(time);
        }
        trace.push(format!("event {workflow} {key} {value}"));
    }
    trace
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_seed_gives_the_same_trace() {
    let (one, other) = tokio::join!(trace("20260119"), trace("20260119"));
    let differs = one.iter().zip(&other).find(|(a, b)| a != b);
    assert!(
        differs.is_none(),
        "the first difference:\n{}\n{}",
        differs.unwrap().0,
        differs.unwrap().1
    );
    assert_eq!(one.len(), other.len());
    for kind in [
        "intent",
        "run",
        "step",
        "task",
        "engine",
        "operation",
        "interaction",
        "gate",
        "artifact",
        "event",
    ] {
        assert!(
            one.iter().any(|line| line.starts_with(&format!("{kind} "))),
            "a trace without any {kind}"
        );
    }
}

/// Two that live at once may have the same seed: a name that both had would be one sandbox for a wipe, and one
/// worker for a fence (decision 0067).
#[tokio::test(flavor = "multi_thread")]
async fn a8_names_of_sandboxes_and_workers_are_outside_the_trace() {
    let (one, other) = tokio::join!(trace_and_names("20260119"), trace_and_names("20260119"));
    assert!(one.1.len() > 6, "five sandboxes, as many again, one more, and a worker: {:?}", one.1);
    assert!(one.1.is_disjoint(&other.1), "one name for two: {:?} {:?}", one.1, other.1);
    for (line, name) in one.0.iter().flat_map(|line| one.1.iter().map(move |name| (line, name))) {
        assert!(!line.contains(name.as_str()), "{name} is in the trace: {line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_seed_gives_other_ids_to_the_same_work() {
    let (one, other) = tokio::join!(trace("1"), trace("2"));
    let runs = |trace: &[String]| -> Vec<String> {
        trace
            .iter()
            .filter(|l| l.starts_with("run "))
            .map(|l| l.split(' ').nth(1).unwrap().to_owned())
            .collect()
    };
    assert_eq!(runs(&one).len(), 2);
    assert!(runs(&one).iter().all(|id| !runs(&other).contains(id)), "{one:?}");
    let digests = |trace: &[String]| -> Vec<String> {
        trace
            .iter()
            .filter(|l| l.starts_with("run "))
            .map(|l| l.split(' ').nth(4).unwrap().to_owned())
            .collect()
    };
    assert_eq!(digests(&one), digests(&other), "what is done does not depend on the seed");
}

/// The command line takes its seed the same way: ids at once, before anything runs.
#[test]
fn a_seeded_detached_run_has_its_ids_before_it_runs() {
    let submitted = |seed: &str| {
        let home = Home::new();
        let mut command = home.command(&["run", "examples/hello.yaml", "--detach", "--json"]);
        let output = command.env("RANDOM_SEED", seed).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let (one, same, other) = (submitted("5"), submitted("5"), submitted("6"));
    assert_eq!(one, same);
    assert_ne!(one["runId"], other["runId"]);
    assert_ne!(one["workflowID"], other["workflowID"]);
}
