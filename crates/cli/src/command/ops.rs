//! `cancel`, `resume`, `retry`, `fork`.

use cofferdam_contracts::run::RunHeader;
use serde_json::{Value, json};

use super::args::{ActArgs, At, ForkArgs, IdArgs};
use super::client::{Client, segment};
use super::exit::Exit;
use super::output;
use super::session::Session;

pub(crate) async fn cancel(at: &At, args: &ActArgs) -> anyhow::Result<Exit> {
    act(at, &args.id, "cancel", json!({"actor": "cli", "reason": args.reason}), args.json).await
}

pub(crate) async fn resume(at: &At, args: &ActArgs) -> anyhow::Result<Exit> {
    act(at, &args.id, "resume", json!({"actor": "cli", "reason": args.reason}), args.json).await
}

pub(crate) async fn fork(at: &At, args: &ForkArgs) -> anyhow::Result<Exit> {
    let body = json!({"actor": "cli", "reason": args.reason, "stepN": args.step});
    act(at, &args.id, "fork", body, args.json).await
}

pub(crate) async fn retry(at: &At, args: &IdArgs) -> anyhow::Result<Exit> {
    let session = Session::reading(at).await?;
    let answer: anyhow::Result<Value> =
        session.client.post(&format!("/api/runs/{}/retry", segment(&args.id)), &json!({})).await;
    if answer.is_ok() {
        session.note_if_idle().await;
    }
    session.close().await?;
    let answer = answer?;
    say(&answer, "newRunId", args.json);
    if let Some(step) = answer.get("fromStep").and_then(Value::as_str) {
        output::note(&format!("the run goes on from {step}"));
    }
    Ok(Exit::Ok)
}

async fn act(at: &At, id: &str, op: &str, body: Value, as_json: bool) -> anyhow::Result<Exit> {
    let session = Session::reading(at).await?;
    let outcome = async {
        let workflow = workflow_of(&session.client, id).await?;
        session
            .client
            .post::<Value>(&format!("/api/ops/wf/{}/{op}", segment(&workflow)), &body)
            .await
    }
    .await;
    if outcome.is_ok() && op != "cancel" {
        session.note_if_idle().await;
    }
    session.close().await?;
    let key = if op == "fork" { "newRunId" } else { "workflowID" };
    say(&outcome?, key, as_json);
    Ok(Exit::Ok)
}

/// The engine's id behind whatever the person typed.
async fn workflow_of(client: &Client, id: &str) -> anyhow::Result<String> {
    if !id.starts_with("rn_") {
        return Ok(id.to_owned());
    }
    let header: RunHeader = client.get(&format!("/api/runs/{}", segment(id))).await?;
    Ok(header.workflow_id.into())
}

fn say(answer: &Value, key: &str, as_json: bool) {
    if as_json {
        output::json(answer);
    } else {
        output::line(answer.get(key).and_then(Value::as_str).unwrap_or("accepted"));
    }
}
