//! `gate ls | show | reply`.

use serde_json::{Value, json};

use super::args::{At, GateArgs, GateCommand};
use super::client::segment;
use super::exit::Exit;
use super::output;
use super::session::Session;

pub(crate) async fn gate(at: &At, args: &GateArgs) -> anyhow::Result<Exit> {
    let session = Session::reading(at).await?;
    let client = &session.client;
    let (answer, as_json): (anyhow::Result<Value>, bool) = match &args.command {
        GateCommand::Ls { json } => (client.get("/api/hitl/inbox?limit=200").await, *json),
        GateCommand::Show { run, json } => {
            (client.get(&format!("/api/runs/{}/gates", segment(run))).await, *json)
        }
        GateCommand::Reply { run, gate, choice, rationale, dedupe_key, json } => {
            let mut payload = json!({"choice": choice});
            if let (Some(object), Some(text)) = (payload.as_object_mut(), rationale) {
                object.insert("rationale".into(), json!(text));
            }
            let dedupe = dedupe_key
                .clone()
                .unwrap_or_else(|| format!("cli:{}", cofferdam_ambient::random::secret_hex(8)));
            let body = json!({"payload": payload, "dedupeKey": dedupe, "origin": "manual"});
            let path = format!("/api/runs/{}/gates/{}/reply", segment(run), segment(gate));
            (client.post(&path, &body).await, *json)
        }
    };
    session.close().await?;
    let answer = answer?;
    if as_json {
        output::json(&answer);
    } else {
        print(&args.command, &answer);
    }
    Ok(Exit::Ok)
}

fn print(command: &GateCommand, answer: &Value) {
    let text =
        |row: &Value, name: &str| row.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    let time = |row: &Value, name: &str| {
        row.get(name).and_then(Value::as_i64).map(output::time).unwrap_or_default()
    };
    let rows = answer.as_array().cloned().unwrap_or_default();
    match command {
        GateCommand::Ls { .. } => {
            let rows: Vec<Vec<String>> = rows
                .iter()
                .map(|r| {
                    vec![
                        text(r, "runId"),
                        text(r, "gateKey"),
                        text(r, "slaStatus"),
                        time(r, "deadline"),
                    ]
                })
                .collect();
            output::table(&["RUN", "GATE", "SLA", "DEADLINE (UTC)"], &rows);
        }
        GateCommand::Show { .. } => {
            let rows: Vec<Vec<String>> = rows
                .iter()
                .map(|r| {
                    let decision =
                        r.pointer("/decision/decision").and_then(Value::as_str).unwrap_or("");
                    vec![
                        text(r, "gateKey"),
                        text(r, "state"),
                        decision.to_owned(),
                        time(r, "deadlineAt"),
                    ]
                })
                .collect();
            output::table(&["GATE", "STATE", "DECISION", "DEADLINE (UTC)"], &rows);
        }
        GateCommand::Reply { .. } => {
            let replay = answer.get("isReplay").and_then(Value::as_bool).unwrap_or(false);
            output::line(if replay {
                "replayed: this reply was there already"
            } else {
                "accepted"
            });
        }
    }
}
