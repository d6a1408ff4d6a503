//! Runs at their gates, and the keys of people who answer them.

use std::time::Duration;

use cofferdam_tests::{Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::until;

/// A key of the default tenant: its id and its secret.
pub async fn key(server: &Server, roles: &[&str], groups: &[&str]) -> (String, String) {
    server.new_key(&json!({"roles": roles, "groups": groups})).await
}

/// A run, once its gate has asked.
pub async fn waiting(server: &Server, yaml: &str, form: Value, opts: Value) -> Value {
    let run = server.run_recipe(yaml, form, opts).await;
    prompt(server, &run, "approve-plan").await;
    run
}

/// The prompt of a gate, once it is out.
pub async fn prompt(server: &Server, run: &Value, gate: &str) -> Value {
    let path = format!("/api/runs/{}/gates/{gate}", text(run, "runId"));
    let mut view = Value::Null;
    until(&path, Duration::from_secs(30), async || {
        view = server.get(&path).await.1;
        !view["prompt"].is_null()
    })
    .await;
    view["prompt"].clone()
}

pub async fn answer(
    server: &Server,
    secret: &str,
    run: &Value,
    gate: &str,
    dedupe: &str,
    payload: Value,
) -> (u16, Value) {
    let path = format!("/api/runs/{}/gates/{gate}/reply", text(run, "runId"));
    server.post_as(secret, &path, &json!({"payload": payload, "dedupeKey": dedupe})).await
}

pub async fn say(
    server: &Server,
    secret: &str,
    run: &Value,
    dedupe: &str,
    choice: &str,
) -> (u16, Value) {
    answer(server, secret, run, "approve-plan", dedupe, json!({"choice": choice})).await
}

#[track_caller]
pub fn refused(answer: &(u16, Value), status: u16, code: &str) {
    assert_eq!((answer.0, &answer.1["code"]), (status, &json!(code)), "{}", answer.1);
}

/// A number of the run `$1`.
pub async fn number(sql: &PgPool, query: &'static str, run: &Value) -> i64 {
    sqlx::query_scalar(query).bind(text(run, "runId")).fetch_one(sql).await.expect(query)
}

/// A JSON value of the run `$1`.
pub async fn value(sql: &PgPool, query: &'static str, run: &Value) -> Value {
    sqlx::query_scalar(query).bind(text(run, "runId")).fetch_one(sql).await.expect(query)
}

/// `GO`, or what is broken.
pub async fn proven(server: &Server) {
    let report = server.get("/api/proofs").await.1;
    let broken: Vec<&Value> = report["proofs"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|p| p["rows"].as_array().is_none_or(|rows| !rows.is_empty()))
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
    assert_eq!(report["verdict"], "GO");
}

pub const TASKS: &str = "SELECT count(*) FROM app.sbx_runs WHERE run_id = $1";
pub const EXECUTIONS: &str = "SELECT count(*) FROM app.sbx_executions e JOIN app.sbx_runs s USING (task_key) WHERE s.run_id = $1";
pub const APPROVALS: &str = "SELECT count(*) FROM app.plan_approvals WHERE run_id = $1";
pub const INTERACTIONS: &str = "SELECT count(*) FROM app.human_interactions WHERE run_id = $1";
pub const VOTES: &str = "SELECT count(*) FROM app.gate_votes WHERE run_id = $1";
pub const PROMPTS: &str = "SELECT count(*) FROM dbos.workflow_events_history h JOIN app.runs r ON r.workflow_id = h.workflow_uuid WHERE r.id = $1 AND h.key LIKE 'ui:%' AND h.key NOT LIKE '%:result' AND h.key NOT LIKE '%:audit'";
pub const DECISIONS: &str = "SELECT count(*) FROM dbos.workflow_events_history h JOIN app.runs r ON r.workflow_id = h.workflow_uuid WHERE r.id = $1 AND h.key LIKE 'decision:%'";
