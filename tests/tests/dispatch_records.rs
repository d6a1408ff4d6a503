//! What a dispatch has on record: what was asked, what was held, and what an agent did, however it ended.

use crate::support;

use std::path::Path;
use std::time::Duration;

use cofferdam_tests::{Home, Server, row_counts};
use serde_json::{Value, json};
use support::dispatches::{Project, ended, script, spawn, violation};
use support::{assert_wiped, count, said, texts, until};

/// A stand-in of an agent: what it says, and then what it does.
fn agent(dir: &Path, name: &str, text: &str) -> Value {
    let bin = dir.join(name);
    std::fs::write(&bin, format!("#!/bin/sh\n{text}")).unwrap();
    std::fs::set_permissions(&bin, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    json!([{"source": bin.to_str().unwrap(), "target": format!("/opt/agents/bin/{name}")}])
}

async fn kept(up: &Server, view: &Value) -> Vec<String> {
    let run = view["run_id"].as_str().unwrap();
    texts(&up.sql().await, &format!("SELECT name FROM app.artifacts WHERE run_id = '{run}'")).await
}

/// What it did and left, on record, however it was ended.
async fn whole_record(up: &Server, view: &Value) {
    let effective = &view["sandbox_effective"];
    assert!(effective["programs_used"]["touch"].as_u64() >= Some(1), "{view:#}");
    assert!(violation(view, "tool_denied")["subject"].as_str().unwrap().ends_with("/env"));
    assert_eq!(violation(view, "write_denied")["subject"], "/etc/planted");
    for peak in ["mem_mb", "wall_ms"] {
        assert!(effective["peaks"][peak].as_u64() > Some(0), "{peak}: {view:#}");
    }
    let kept = kept(up, view).await;
    for name in ["files/part.txt", "changes.json"] {
        assert!(kept.contains(&name.to_owned()), "{name}: {kept:?}");
    }
}

const DEEDS: &str = "/usr/bin/env true\ntouch /etc/planted\ntouch part.txt\n";

#[tokio::test(flavor = "multi_thread")]
async fn d_r6_a_kill_and_a_limit_keep_tools_violations_peaks_and_edits() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let sql = up.sql().await;
    let spec = json!({"commands": {"denied": ["env"]}, "access_mode": "workspace-write"});
    let text = format!("{DEEDS}echo all-done\nsleep 300 & sleep 300\n");
    let id = spawn(&up, &script(&text, Some(spec.clone()), &project)).await;
    until("it has done what it does", Duration::from_secs(60), async || {
        let said = "SELECT count(*) FROM app.run_streams WHERE position('all-done' in chunk) > 0";
        count(&sql, said).await > 0
    })
    .await;
    let output = home.run(&["dispatch", "kill", &id]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let view = ended(&up, &id).await;
    assert_eq!(view["status"], "cancelled", "{view:#}");
    whole_record(&up, &view).await;
    // By a limit that is enforced.
    let dir = tempfile::tempdir().unwrap();
    let turn = "echo '{\"type\":\"turn.started\"}'\n";
    let mounts = agent(dir.path(), "codex", &format!("{DEEDS}{turn}{turn}sleep 300 & sleep 300\n"));
    let mut limited = spec;
    limited["max_turns"] = json!(1);
    limited["mounts"] = mounts;
    let body = json!({"agent_type": "codex", "prompt": "p", "project_dir": project.path(),
        "sandbox_spec": limited, "enforce": true});
    let view = ended(&up, &spawn(&up, &body).await).await;
    assert_eq!(view["status"], "failed", "{view:#}");
    assert!(view["error_message"].as_str().unwrap().contains("max_turns is 1"), "{view:#}");
    whole_record(&up, &view).await;
    assert_wiped(&home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d_r1_an_agent_that_could_run_no_command_has_not_completed() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let dir = tempfile::tempdir().unwrap();
    let said = "echo '{\"type\":\"item.completed\",\"item\":{\"id\":\"i0\",\"type\":\"command_execution\",\"exit_code\":1,\"status\":\"failed\"}}'\n";
    for (more, status) in [("", "failed"), ("/bin/sh -c true\n", "completed")] {
        let mounts = agent(dir.path(), "codex", &format!("{said}{said}{more}"));
        let body = json!({"agent_type": "codex", "prompt": "p", "project_dir": project.path(),
            "sandbox_spec": {"mounts": mounts}});
        let view = ended(&up, &spawn(&up, &body).await).await;
        assert_eq!(view["status"], status, "{view:#}");
        let why = view["error_message"].as_str().unwrap_or_default();
        assert_eq!(
            why.contains("none of its 2 commands could be run"),
            more.is_empty(),
            "{view:#}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d_r4_what_nothing_held_is_not_recorded_as_in_force() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let dir = tempfile::tempdir().unwrap();
    let mounts = agent(dir.path(), "claude", "echo \"$@\" >&2\n/usr/bin/env true\n");
    let denied = json!({"denied": ["env", "no-such-program-anywhere"]});
    let body = json!({"agent_type": "claude", "prompt": "p", "project_dir": project.path(),
        "sandbox_spec": {"mounts": mounts, "commands": denied, "tools_denied": ["WebFetch"]}});
    let view = ended(&up, &spawn(&up, &body).await).await;
    assert_eq!(view["sandbox_spec"]["commands"], denied, "requested");
    let effective = &view["sandbox_effective"];
    assert_eq!(effective["commands"], json!({"denied": ["env"]}), "effective: {view:#}");
    assert_eq!(effective["tools_denied"], json!(["WebFetch"]), "{view:#}");
    let names: Vec<&String> = effective["tools_unenforced"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["no-such-program-anywhere"], "{view:#}");
    assert!(violation(&view, "tool_denied")["subject"].as_str().unwrap().ends_with("/env"));
    let run = view["run_id"].as_str().unwrap();
    let asked = format!("SELECT response->>'stderr' FROM app.sbx_runs WHERE run_id = '{run}'");
    let asked = texts(&up.sql().await, &asked).await.concat();
    assert!(asked.contains("--disallowedTools WebFetch"), "{asked}");
    // What the agent cannot be held to is refused by its field, with the remedy, and writes nothing.
    let rows = row_counts(&up.sql().await).await;
    for (agent, spec, field, remedy) in [
        ("claude", json!({"tools_denied": ["Bash", "curl"]}), "tools_denied[1]", "commands.denied"),
        ("claude", json!({"commands": {"denied": ["Bash"]}}), "commands.denied[0]", "tools_denied"),
        ("codex", json!({"tools_denied": ["Write"]}), "tools_denied", "together"),
        ("command", json!({"tools_allowed": ["Bash"]}), "tools_allowed[0]", "commands.allowed"),
        (
            "codex",
            json!({"commands": {"denied": ["curl"]}, "isolation": {"class_min": "gvisor"}}),
            "commands.denied",
            "class",
        ),
    ] {
        let wrong = json!({"agent_type": agent, "prompt": "p", "project_dir": project.path(), "sandbox_spec": spec});
        let (status, refused) = up.post("/api/dispatches", &wrong).await;
        assert_eq!((status, &refused["code"]), (400, &json!("policy_violation")), "{refused}");
        assert_eq!(refused["details"]["field"], format!("sandbox_spec.{field}"), "{refused}");
        assert!(refused["error"].as_str().unwrap().contains(remedy), "{refused}");
    }
    assert_eq!(row_counts(&up.sql().await).await, rows);
}
