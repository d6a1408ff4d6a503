//! `gate ls | show | link | reply | delegate | undelegate | delegations`.

use cofferdam_ambient::{clock, random};
use cofferdam_contracts::{plan_text, timeout};
use serde_json::{Map, Value, json};

use super::args::{At, GateArgs, GateCommand};
use super::client::{Client, segment};
use super::exit::{Exit, Misuse};
use super::session::Session;
use super::{output, plan_show};

/// What a command asks of the API, at a path.
enum Ask {
    Get,
    Post(Value),
    Delete,
}

pub(crate) async fn gate(at: &At, args: &GateArgs) -> anyhow::Result<Exit> {
    // What is wrong on this side is said before anything is started.
    let (path, ask) = request(&args.command)?;
    let session = Session::reading(at).await?;
    let answer = answer(&session.client, &args.command, &path, &ask).await;
    let plan = match &args.command {
        GateCommand::Show { run, json: false } if answer.is_ok() => {
            plan_show::fetch(&session.client, run).await
        }
        _ => Ok(None),
    };
    if matches!(args.command, GateCommand::Reply { .. }) && answer.is_ok() {
        session.note_if_idle().await;
    }
    session.close().await?;
    let answer = answer?;
    if as_json(&args.command) {
        match rows_of(&args.command) {
            Some(name) => output::json_rows(name, answer),
            None => output::json(&answer),
        }
    } else {
        print(&args.command, &answer);
    }
    if let Some(plan) = plan? {
        output::line("");
        plan_text::lines(&plan).iter().for_each(|line| output::line(line));
    }
    Ok(Exit::Ok)
}

fn request(command: &GateCommand) -> anyhow::Result<(String, Ask)> {
    let of_gate = |run: &str, gate: &str, what: &str| {
        format!("/api/runs/{}/gates/{}/{what}", segment(run), segment(gate))
    };
    Ok(match command {
        GateCommand::Ls { .. } => ("/api/hitl/inbox?limit=200".to_owned(), Ask::Get),
        GateCommand::Show { run, .. } => (format!("/api/runs/{}/gates", segment(run)), Ask::Get),
        GateCommand::Link { run, gate, name, expires, choice, .. } => {
            let ms = timeout::parse(expires).map_err(|why| Misuse(format!("--expires: {why}")))?;
            let mut body = Map::new();
            body.insert("for".into(), json!(name));
            body.insert("expiresS".into(), json!(ms / 1_000));
            if let Some(choice) = choice {
                body.insert("choice".into(), json!(choice));
            }
            (of_gate(run, gate, "links"), Ask::Post(Value::Object(body)))
        }
        GateCommand::Reply {
            run,
            gate,
            choice,
            rationale,
            grant,
            until,
            edits,
            dedupe_key,
            ..
        } => {
            let mut payload = Map::new();
            payload.insert("choice".into(), json!(choice));
            if let Some(text) = rationale {
                payload.insert("rationale".into(), json!(text));
            }
            if let (Some(name), Some(text)) = (grant, until) {
                let ms = timeout::parse(text).map_err(|why| Misuse(format!("--until: {why}")))?;
                let until = clock::now_ms().saturating_add(i64::try_from(ms)?);
                payload.insert("grant".into(), json!({"name": name, "until": until}));
            }
            if !edits.is_empty() {
                payload.insert("edits".into(), edits_of(edits)?);
            }
            let dedupe =
                dedupe_key.clone().unwrap_or_else(|| format!("cli:{}", random::secret_hex(8)));
            let body = json!({"payload": payload, "dedupeKey": dedupe, "origin": "manual"});
            (of_gate(run, gate, "reply"), Ask::Post(body))
        }
        GateCommand::Delegate { to, ttl_s, group, reason, .. } => {
            let mut body = Map::new();
            body.insert("to".into(), json!(to));
            body.insert("ttlS".into(), json!(ttl_s));
            for (name, value) in [("group", group), ("reason", reason)] {
                if let Some(value) = value {
                    body.insert(name.into(), json!(value));
                }
            }
            ("/api/delegations".to_owned(), Ask::Post(Value::Object(body)))
        }
        GateCommand::Undelegate { delegation } => {
            (format!("/api/delegations/{delegation}"), Ask::Delete)
        }
        GateCommand::Delegations { .. } => ("/api/delegations".to_owned(), Ask::Get),
    })
}

async fn answer(
    client: &Client,
    command: &GateCommand,
    path: &str,
    ask: &Ask,
) -> anyhow::Result<Value> {
    let answer: Value = match ask {
        Ask::Get => client.get(path).await?,
        Ask::Post(body) => client.post(path, body).await?,
        Ask::Delete => client.delete(path).await?,
    };
    Ok(match command {
        // As the server says it, unless the caller knows better.
        GateCommand::Link { base: Some(base), .. } => with_url(answer, base.trim_end_matches('/')),
        _ => answer,
    })
}

fn as_json(command: &GateCommand) -> bool {
    match command {
        GateCommand::Ls { json }
        | GateCommand::Show { json, .. }
        | GateCommand::Link { json, .. }
        | GateCommand::Reply { json, .. }
        | GateCommand::Delegate { json, .. }
        | GateCommand::Delegations { json } => *json,
        GateCommand::Undelegate { .. } => false,
    }
}

/// What the rows of a list are.
fn rows_of(command: &GateCommand) -> Option<&'static str> {
    match command {
        GateCommand::Ls { .. } | GateCommand::Show { .. } => Some("gates"),
        GateCommand::Delegations { .. } => Some("delegations"),
        _ => None,
    }
}

/// The whole address by another base.
fn with_url(mut made: Value, base: &str) -> Value {
    let path = made.get("path").and_then(Value::as_str).unwrap_or("").to_owned();
    if let Some(fields) = made.as_object_mut() {
        fields.insert("url".into(), json!(format!("{base}{path}")));
    }
    made
}

/// What a gate asks for: a task's name, or consent to the plan.
fn asked(row: &Value) -> String {
    let said = |path: &str| row.pointer(path).and_then(Value::as_str);
    match (said("/asks/name"), said("/asks/phase")) {
        (Some(name), Some(phase)) => format!("{name} ({phase})"),
        _ => "consent".to_owned(),
    }
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
fn colour(sla: &str) -> Option<&'static str> {
    match sla {
        "CRITICAL" => Some("31"),
        "WARNING" => Some("33"),
        _ => None,
    }
}

/// `NAME=VALUE` each; a value that is JSON is that, everything else is a text.
fn edits_of(edits: &[String]) -> anyhow::Result<Value> {
    let mut fields = Map::new();
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
            let now_ms = clock::now_ms();
            let rows: Vec<Vec<String>> = rows
                .iter()
                .map(|r| {
                    let deadline = r.get("deadline").and_then(Value::as_i64).unwrap_or(now_ms);
                    vec![
                        text(r, "runId"),
                        text(r, "gateKey"),
                        relative(deadline, now_ms),
                        time(r, "deadline"),
                        asked(r),
                        text(r, "slaStatus"),
                    ]
                })
                .collect();
            let head = ["RUN", "GATE", "DUE", "DEADLINE (UTC)", "ASKS FOR", "SLA"];
            output::table_of(&head, &rows, colour);
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
                        asked(r),
                    ]
                })
                .collect();
            output::table(&["GATE", "STATE", "DECISION", "DEADLINE (UTC)", "ASKS FOR"], &rows);
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
