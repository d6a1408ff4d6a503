//! Agents that have nothing but `models`: the worker finds their programs and leads them to the endpoint.

use std::fs;

use cofferdam_ambient::env;
use cofferdam_tests::{Home, Server};
use serde_json::{Value, json};

use super::ended;
use crate::support::agents::{Model, Programs, files};
use crate::support::dispatches::Project;
use crate::support::{assert_proven, assert_wiped};

/// Dropped in this order: the server ends first, and the home is looked at last.
pub(super) struct World {
    pub(super) up: Server,
    model: Model,
    pub(super) project: Project,
    pub(super) home: Home,
}

/// A server whose `PATH` has the agents as npm leaves them, and a provider.
pub(super) async fn world(programs: &Programs, protocols: Value) -> World {
    let (home, model, project) = (Home::new(), Model::start(), Project::new());
    let path = env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", programs.bin().display());
    let up = home.up_with(&[], &[("PATH", &path)]);
    let provider = json!({"name": "main", "url": format!("http://{}/v1", model.address),
        "protocols": protocols, "models": [{"model": "scripted"}]});
    let (status, made) = up.post("/api/models", &provider).await;
    assert_eq!(status, 201, "{made}");
    World { up, model, project, home }
}

impl World {
    /// `dispatch spawn` with a spec and nothing else: its exit code and what it printed.
    pub(super) fn spawned(
        &self,
        kind: &str,
        prompt: &str,
        spec: &Value,
        more: &[&str],
    ) -> (Option<i32>, String) {
        let file = self.home.path().join("prompt.md");
        fs::write(&file, prompt).unwrap();
        let spec = format!("--sandbox-spec={spec}");
        let kind = format!("--type={kind}");
        let args =
            ["dispatch", "spawn", &kind, "--prompt-file", file.to_str().unwrap(), "--project"];
        let output = self.home.run(&[&args[..], &[self.project.path(), &spec], more].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.code() {
            Some(0) => (Some(0), text(&output.stdout)),
            code => (code, text(&output.stderr)),
        }
    }
}

pub(super) fn all() -> Value {
    json!(["openai-chat", "openai-responses", "anthropic-messages"])
}

async fn works(kind: &str) {
    let Some(programs) = Programs::installed() else { return };
    let world = world(&programs, all()).await;
    let steps =
        json!([{"sh": "echo hi > out.txt"}, {"write": ["note.md", "one\n"]}, {"text": "finished"}]);
    let prompt = format!("Do this. [[steps: {steps}]]");
    let spec = json!({"models": {"providers": ["main"]}});
    let (code, id) = world.spawned(kind, &prompt, &spec, &[]);
    assert_eq!(code, Some(0), "{id}");
    let view = ended(&world.up, &id).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    let mut left = files(&world.up, &view).await;
    left.sort();
    assert_eq!(left, ["note.md", "out.txt"], "{view:#}");
    let effective = &view["sandbox_effective"];
    // OpenCode asks for its plugins at every start, and no flag of its keeps it from that.
    let is_looked_up = |one: &Value| one["kind"] == "egress_denied" && one["why"] == "name";
    let violations = effective["violations"].as_array().unwrap();
    let is_clean = violations.iter().all(|one| kind == "opencode" && is_looked_up(one));
    assert!(is_clean, "a clean run has none: {view:#}");
    assert_eq!(effective["models"]["called"][0]["model"], "scripted", "{view:#}");
    assert_eq!(view["sandbox_spec"], spec, "what was requested stays as it was: {view:#}");
    let mounts = effective["mounts"].as_array().unwrap();
    assert_eq!(mounts[0]["target"], format!("/opt/agents/bin/{kind}"), "{view:#}");
    assert_proven(&world.home);
    assert_wiped(&world.home, &world.up.sql().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_b1_codex_works_with_models_alone() {
    works("codex").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_b1_claude_works_with_models_alone() {
    works("claude").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_b1_opencode_works_with_models_alone() {
    works("opencode").await;
}

/// The sandbox spec of seed 001, with this project's directory.
fn seed(project: &Project) -> Value {
    json!({
        "tools_allowed": ["Read", "Grep", "Glob", "Bash"],
        "tools_denied": [],
        "working_dir": project.path(),
        "access_mode": "workspace-write",
        "max_turns": 50,
        "max_commands": 200
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_a7_the_seeds_own_spec_is_accepted_as_it_stands_for_every_type() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let file = home.path().join("prompt.md");
    fs::write(&file, "echo done > made.txt\n").unwrap();
    let spec = format!("--sandbox-spec={}", seed(&project));
    for kind in [None, Some("codex"), Some("claude"), Some("opencode"), Some("command")] {
        let mut args = vec!["dispatch", "spawn", "--json", "--project", project.path(), &spec];
        args.extend(kind.into_iter().flat_map(|kind| ["--type", kind]));
        args.extend(["--prompt-file", file.to_str().unwrap()]);
        let made = home.run_json(&args);
        let id = made["id"].as_str().unwrap();
        let view = home.run_json(&["dispatch", "status", id, "--json"]);
        assert_eq!(view["sandbox_spec"], seed(&project), "{kind:?}: {view:#}");
        // Without a program or a model an agent ends at once, or is ended.
        if kind != Some("command") {
            let _ = up.post(&format!("/api/dispatches/{id}/kill"), &json!({})).await;
            continue;
        }
        let view = ended(&up, id).await;
        assert_eq!(view["status"], "completed", "{view:#}");
        let effective = &view["sandbox_effective"];
        assert_eq!(effective["tools_allowed"], json!(["Bash"]), "{view:#}");
        assert_eq!(effective["access_mode"], "workspace-write", "{view:#}");
        assert_eq!(effective["violations"], json!([]), "{view:#}");
        assert_eq!(files(&up, &view).await, ["made.txt"]);
    }
}

/// What a policy calls the tools that the agents offer to their models; the rest changes nothing.
fn policy_name(tool: &str) -> Option<&'static str> {
    Some(match tool {
        "Bash" | "bash" | "exec_command" | "write_stdin" | "shell_command" => "Bash",
        "Read" | "read" | "view_image" => "Read",
        "Grep" | "grep" => "Grep",
        "Glob" | "glob" => "Glob",
        // A question, which ends without an answer; and what opencode says of a tool that it does not offer.
        "request_user_input" | "invalid" => return None,
        _ => "another tool",
    })
}

async fn is_never_widened(kind: &str, wanted: Value) {
    let Some(programs) = Programs::installed() else { return };
    let world = world(&programs, all()).await;
    let steps = json!([{"sh": "echo marked-seed > out.txt"}, {"text": "finished"}]);
    let prompt = format!("Do this. [[steps: {steps}]]");
    let mut spec = seed(&world.project);
    spec["models"] = json!({"providers": ["main"]});
    let (code, id) = world.spawned(kind, &prompt, &spec, &[]);
    assert_eq!(code, Some(0), "{id}");
    let view = ended(&world.up, &id).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(files(&world.up, &view).await, ["out.txt"], "its shell may write: {view:#}");
    let asked = world.model.asked("marked-seed");
    let tools = asked.iter().flat_map(|row| row["tools"].as_array().unwrap());
    let mut offered: Vec<&str> =
        tools.filter_map(|tool| policy_name(tool.as_str().unwrap())).collect();
    offered.sort_unstable();
    offered.dedup();
    let effective = &view["sandbox_effective"];
    let mut said: Vec<&str> = effective["tools_allowed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_str().unwrap())
        .collect();
    said.sort_unstable();
    assert_eq!(said, offered, "the record has what was offered: {asked:#?} {view:#}");
    assert_eq!(json!(said), wanted, "{asked:#?}");
    assert_eq!(effective["tools_used"], json!(["Bash"]), "{view:#}");
    assert_eq!(effective["access_mode"], "workspace-write", "{view:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_a7_codex_is_offered_no_tool_beside_the_seeds() {
    is_never_widened("codex", json!(["Bash", "Read"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_a7_claude_is_offered_no_tool_beside_the_seeds() {
    is_never_widened("claude", json!(["Bash", "Glob", "Grep", "Read"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_a7_opencode_is_offered_no_tool_beside_the_seeds() {
    is_never_widened("opencode", json!(["Bash", "Glob", "Grep", "Read"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_b4_a_provider_or_a_model_that_no_call_could_reach_is_refused_at_the_spawn() {
    let Some(programs) = Programs::installed() else { return };
    let world = world(&programs, json!(["anthropic-messages"])).await;
    let models = |spec: Value| json!({"models": spec});
    for (kind, spec, more, words) in [
        ("claude", json!({"providers": ["absent"]}), &[][..], "no provider absent is known"),
        ("command", json!({"providers": ["main", "absent"]}), &[][..], "models.providers[1]"),
        ("codex", json!({"providers": ["main"]}), &[][..], "codex speaks openai-responses"),
        (
            "claude",
            json!({"providers": ["main"]}),
            &["--model", "opus"][..],
            "its providers offer scripted",
        ),
        ("claude", json!({"providers": ["main"], "models": ["opus"]}), &[][..], "claude speaks"),
    ] {
        let (code, said) = world.spawned(kind, "p", &models(spec), more);
        assert_ne!(code, Some(0), "{said}");
        assert!(said.contains(words), "{words}: {said}");
    }
    let rows = world.home.run_json(&["dispatch", "list", "--json"]);
    assert_eq!(rows["dispatches"], json!([]), "{rows}");
}
