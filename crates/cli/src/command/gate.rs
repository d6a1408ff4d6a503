//! `gate ls | show | link | reply | delegate | undelegate | delegations`.

use cofferdam_contracts::timeout;
use serde_json::{Value, json};

use super::args::{At, GateArgs, GateCommand};
use super::client::segment;
use super::exit::{Exit, Misuse};
use super::output;
use super::session::Session;

pub(crate) async fn gate(at: &At, args: &GateArgs) -> anyhow::Result<Exit> {
    let until_ms = match &args.command {
        GateCommand::Reply { until: Some(text), .. } => {
            let ms = timeout::parse(text).map_err(|why| Misuse(format!("--until: {why}")))?;
            let ms = i64::try_from(ms)?;
            Some(cofferdam_ambient::clock::now_ms().saturating_add(ms))
        }
        _ => None,
    };
    let session = Session::reading(at).await?;
    let client = &session.client;
    let (answer, as_json): (anyhow::Result<Value>, bool) = match &args.command {
        GateCommand::Ls { json } => (client.get("/api/hitl/inbox?limit=200").await, *json),
        GateCommand::Show { run, json } => {
            (client.get(&format!("/api/runs/{}/gates", segment(run))).await, *json)
        }
        GateCommand::Link { run, gate, name, expires, choice, base, json } => {
            let path = format!("/api/runs/{}/gates/{}/links", segment(run), segment(gate));
            let answer = match link_body(name, expires, choice.as_deref()) {
                Ok(body) => client.post(&path, &body).await,
                Err(why) => Err(why),
            };
            let base = base.as_deref().unwrap_or_else(|| client.url()).trim_end_matches('/');
            (answer.map(|made| with_url(made, base)), *json)
        }
        GateCommand::Reply {
            run,
            gate,
            choice,
            rationale,
            grant,
            until: _,
            edits,
            dedupe_key,
            json,
        } => {
            let mut payload = json!({"choice": choice});
            if let (Some(object), Some(text)) = (payload.as_object_mut(), rationale) {
                object.insert("rationale".into(), json!(text));
            }
            if let (Some(fields), Some(name), Some(until)) =
                (payload.as_object_mut(), grant, &until_ms)
            {
                fields.insert("grant".into(), json!({"name": name, "until": until}));
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

fn link_body(name: &str, expires: &str, choice: Option<&str>) -> anyhow::Result<Value> {
    let ms = timeout::parse(expires).map_err(|why| Misuse(format!("--expires: {why}")))?;
    let mut body = json!({"for": name, "expiresS": ms / 1_000});
    if let (Some(fields), Some(choice)) = (body.as_object_mut(), choice) {
        fields.insert("choice".into(), json!(choice));
    }
    Ok(body)
}

/// The whole address, which the server cannot know: people may reach it by another one.
fn with_url(mut made: Value, base: &str) -> Value {
    let path = made.get("path").and_then(Value::as_str).unwrap_or("").to_owned();
    if let Some(fields) = made.as_object_mut() {
        fields.insert("url".into(), json!(format!("{base}{path}")));
    }
    made
}

/// A deadline as people read one: `in 4m`, `2h ago`.
fn relative(at_ms: i64, now_ms: i64) -> String {
    let left_s = (at_ms - now_ms).div_euclid(1_000);
    let text = match left_s.unsigned_abs() {
        s @ 0..=59 => format!("{s}s"),
        s @ 60..=3_599 => format!("{}m", s / 60),
        s @ 3_600..=86_399 => format!("{}h{:02}m", s / 3_600, s / 60 % 60),
        s => format!("{}d", s / 86_400),
    };
    if left_s < 0 { format!("{text} ago") } else { format!("in {text}") }
}

/// What is late is red and what soon will be is yellow, on a terminal.
fn mark(sla: &str) -> String {
    let colour = match sla {
        "CRITICAL" => "31",
        "WARNING" => "33",
        _ => return sla.to_owned(),
    };
    output::coloured(&std::io::stdout(), colour, sla)
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
            let now_ms = cofferdam_ambient::clock::now_ms();
            let rows: Vec<Vec<String>> = rows
                .iter()
                .map(|r| {
                    let deadline = r.get("deadline").and_then(Value::as_i64).unwrap_or(now_ms);
                    vec![
                        text(r, "runId"),
                        text(r, "gateKey"),
                        relative(deadline, now_ms),
                        time(r, "deadline"),
                        // Last, since what colours it has a width of its own.
                        mark(&text(r, "slaStatus")),
                    ]
                })
                .collect();
            output::table(&["RUN", "GATE", "DUE", "DEADLINE (UTC)", "SLA"], &rows);
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
        GateCommand::Link { name, .. } => {
            output::line(&text(answer, "url"));
            output::note(&format!(
                "whoever holds it answers as {name}, once, until {} UTC",
                time(answer, "expiresAt")
            ));
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

#[cfg(test)]
mod tests {
    use super::relative;

    #[test]
    fn a_deadline_is_told_by_its_distance() {
        for (at_s, told) in [
            (0, "in 0s"),
            (59, "in 59s"),
            (61, "in 1m"),
            (3_600, "in 1h00m"),
            (7_260, "in 2h01m"),
            (200_000, "in 2d"),
            (-5, "5s ago"),
            (-3_700, "1h01m ago"),
        ] {
            assert_eq!(relative(at_s * 1_000, 0), told);
        }
    }
}
