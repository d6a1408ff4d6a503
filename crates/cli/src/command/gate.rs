//! `gate ls | show | reply | delegate | undelegate | delegations`.

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
        GateCommand::Reply { run, gate, choice, rationale, edits, dedupe_key, json } => {
            let mut payload = json!({"choice": choice});
            if let (Some(object), Some(text)) = (payload.as_object_mut(), rationale) {
                object.insert("rationale".into(), json!(text));
            }
            if !edits.is_empty()
                && let Some(object) = payload.as_object_mut()
            {
                object.insert("edits".into(), edits_of(edits)?);
            }
            let dedupe = dedupe_key
                .clone()
                .unwrap_or_else(|| format!("cli:{}", cofferdam_ambient::random::secret_hex(8)));
            let body = json!({"payload": payload, "dedupeKey": dedupe, "origin": "manual"});
            let path = format!("/api/runs/{}/gates/{}/reply", segment(run), segment(gate));
            (client.post(&path, &body).await, *json)
        }
        GateCommand::Delegate { to, ttl_s, group, reason, json } => {
            let mut body = json!({"to": to, "ttlS": ttl_s});
            for (name, value) in [("group", group), ("reason", reason)] {
                if let (Some(object), Some(value)) = (body.as_object_mut(), value) {
                    object.insert(name.into(), json!(value));
                }
            }
            (client.post("/api/delegations", &body).await, *json)
        }
        GateCommand::Undelegate { delegation } => {
            (client.delete(&format!("/api/delegations/{delegation}")).await, false)
        }
        GateCommand::Delegations { json } => (client.get("/api/delegations").await, *json),
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

/// `NAME=VALUE` each; a value that is JSON is that, everything else is a text.
fn edits_of(edits: &[String]) -> anyhow::Result<Value> {
    let mut fields = serde_json::Map::new();
    for edit in edits {
        let Some((name, value)) = edit.split_once('=') else {
            anyhow::bail!("--edit {edit:?} is not NAME=VALUE");
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
        fields.insert(name.to_owned(), value);
    }
    Ok(Value::Object(fields))
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
        GateCommand::Delegate { .. } => {
            let id = answer.get("id").and_then(Value::as_i64).unwrap_or(0);
            output::line(&format!("{id}, until {} UTC", time(answer, "expiresAt")));
        }
        GateCommand::Undelegate { .. } => output::line("ended"),
        GateCommand::Delegations { .. } => {
            let rows: Vec<Vec<String>> = rows
                .iter()
                .map(|r| {
                    vec![
                        r.get("id").map(Value::to_string).unwrap_or_default(),
                        text(r, "from"),
                        text(r, "to"),
                        text(r, "group"),
                        time(r, "expiresAt"),
                        time(r, "endedAt"),
                    ]
                })
                .collect();
            output::table(&["ID", "FROM", "TO", "GROUP", "EXPIRES (UTC)", "ENDED (UTC)"], &rows);
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
