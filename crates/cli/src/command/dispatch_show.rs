//! Dispatches for people.

use std::io::IsTerminal as _;

use cofferdam_contracts::dispatch::DispatchView;
use serde_json::Value;

use super::output;
use super::table::{extra, key, print as print_table, usual};

/// Names stand in a column of this width.
const NAMES: usize = 14;
/// Fields of a spec, below it.
const FIELDS: usize = 20;

/// Prints one dispatch, as JSON or as a line for each field.
pub(crate) fn show(view: &DispatchView, json: bool) {
    if json {
        output::json(&serde_json::to_value(view).unwrap_or(Value::Null));
        return;
    }
    for line in lines(view) {
        output::line(&line);
    }
}

/// Many, a line each. A program that reads them gets id, status, type and name between tabs, and no heads.
pub(crate) fn table(views: &[DispatchView]) {
    if !std::io::stdout().is_terminal() {
        for view in views {
            let name = view.name.as_deref().unwrap_or_default();
            let cells = [view.id.as_str(), view.status.as_str(), &view.agent_type, name];
            output::cells(&cells);
        }
        return;
    }
    let rows = views.iter().map(|view| {
        vec![
            view.id.to_string(),
            view.agent_type.clone(),
            view.status.as_str().to_owned(),
            output::time(view.created_at.saturating_mul(1_000)),
            view.name.clone().unwrap_or_default(),
            view.project_dir.clone(),
        ]
    });
    print_table(
        &[
            key("DISPATCH"),
            usual("TYPE"),
            key("STATUS"),
            extra("CREATED (UTC)"),
            usual("NAME").least(12),
            extra("PROJECT").least(16),
        ],
        rows,
    );
}

fn lines(view: &DispatchView) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |name: &str, text: String| lines.push(format!("{name:<NAMES$}{text}"));
    say("dispatch", view.id.to_string());
    say("type", view.agent_type.clone());
    say("status", view.status.as_str().to_owned());
    say("project", view.project_dir.clone());
    say("sandbox", view.sandbox.clone());
    for (name, spec) in [("requested", &view.sandbox_spec), ("effective", &view.sandbox_effective)]
    {
        match spec {
            None => say(name, "-".to_owned()),
            Some(Value::Object(fields)) => {
                say(name, String::new());
                for (field, value) in fields {
                    let mut field = field.as_str();
                    for text in items(value) {
                        say("", format!("{field:<FIELDS$}{text}"));
                        field = "";
                    }
                }
            }
            Some(other) => say(name, plain(other)),
        }
    }
    let time = |seconds: i64| output::time(seconds.saturating_mul(1_000));
    say("created", time(view.created_at));
    let more = [
        ("started", view.started_at.map(time)),
        ("completed", view.completed_at.map(time)),
        ("pid", view.pid.map(|pid| pid.to_string())),
        ("exit", view.exit_code.map(|code| code.to_string())),
        ("name", view.name.clone()),
        ("model", view.model.clone()),
        ("scope", view.scope_id.clone()),
        ("parent", view.parent_id.clone()),
        ("retry of", view.parent_dispatch_id.clone()),
        ("base", view.base_repo_commit.clone()),
        ("conflict", view.conflict_type.clone()),
        ("verdict", view.verdict_status.clone()),
        ("summary", view.verdict_summary.clone()),
        ("output", view.output_file.clone()),
        ("error", view.error_message.clone()),
        ("run", view.run_id.as_ref().map(ToString::to_string)),
    ];
    for (name, text) in more {
        // An imported row may hold empty texts.
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            say(name, text);
        }
    }
    say("turns", view.turns.to_string());
    say("commands", view.commands.to_string());
    say("messages", view.messages.to_string());
    say("tokens", format!("{} in, {} out", view.in_tokens, view.out_tokens));
    lines
}

/// The lines of a value: one for each violation of a list, one for anything else.
fn items(value: &Value) -> Vec<String> {
    let violation = |item: &Value| {
        let text = |name: &str| item.get(name).map(plain);
        let (kind, subject) = (text("kind")?, text("subject")?);
        let port = text("port").map(|port| format!(":{port}")).unwrap_or_default();
        let why = text("why").map(|why| format!(", {why}")).unwrap_or_default();
        let (count, phase) = (text("count")?, text("phase")?);
        Some(format!("{kind} {subject}{port} ({count} in {phase}{why})"))
    };
    match value {
        Value::Array(all) if !all.is_empty() => {
            all.iter().map(violation).collect::<Option<_>>().unwrap_or_else(|| vec![plain(value)])
        }
        other => vec![plain(other)],
    }
}

/// A value on one line: lists by their items, the rest as JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            items.join(", ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_refused_name_has_its_port_and_reason() {
        let list = json!([{"kind": "egress_denied", "subject": "x.example", "port": 443, "why": "name",
            "phase": "exec", "count": 2}]);
        assert_eq!(items(&list), ["egress_denied x.example:443 (2 in exec, name)"]);
    }

    #[test]
    fn both_specs_stand_after_the_sandbox_in_aligned_columns() {
        let view: DispatchView = serde_json::from_value(json!({
            "id": "abcd1234", "agent_type": "codex", "status": "completed", "project_dir": "/p",
            "turns": 1, "commands": 2, "messages": 3, "in_tokens": 4, "out_tokens": 5,
            "cache_hits": 6, "created_at": 0, "sandbox": "read-only", "retry_count": 0,
            "spawn_depth": 0, "sandbox_spec": {"tools_allowed": ["ls", "cat"]},
            "sandbox_effective": {"turns_used": 1, "violations": [
                {"kind": "tool_denied", "subject": "/usr/bin/curl", "phase": "exec", "count": 2},
                {"kind": "write_denied", "subject": "/usr/x", "phase": "exec", "count": 1},
            ]}
        }))
        .unwrap();
        let lines = lines(&view);
        assert!(lines.iter().any(|line| {
            line.ends_with("violations          tool_denied /usr/bin/curl (2 in exec)")
        }));
        assert!(
            lines
                .iter()
                .any(|line| line.ends_with("                    write_denied /usr/x (1 in exec)"))
        );
        let at = lines.iter().position(|line| line.starts_with("sandbox ")).unwrap();
        assert_eq!(lines[at + 1].trim_end(), "requested");
        assert_eq!(lines[at + 2], "              tools_allowed       ls, cat");
        assert_eq!(lines[at + 3].trim_end(), "effective");
        assert_eq!(lines[at + 4], "              turns_used          1");
    }
}
