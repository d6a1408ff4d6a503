//! What a dispatch has on record: what was asked, what was held, and what an agent did, however it ended.

use crate::support;

use std::path::Path;
use std::time::Duration;

use cofferdam_tests::programs::write_program;
use cofferdam_tests::{Home, Server, row_counts};
use serde_json::{Value, json};
use support::dispatches::{Project, ended, script, spawn, violation};
use support::{assert_wiped, count, said, texts, until};

/// A stand-in of an agent: what it says, and then what it does.
fn agent(dir: &Path, name: &str, text: &str) -> Value {
    let bin = dir.join(name);
    write_program(&bin, &format!("#!/bin/sh\n{text}"));
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
        ("command", json!({"tools_allowed": ["Read"]}), "tools_allowed", "commands.allowed"),
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

/// The spec of the design's example, for the type that a caller gets who names none.
#[tokio::test(flavor = "multi_thread")]
async fn the_designs_own_example_is_accepted_and_held() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let dir = tempfile::tempdir().unwrap();
    let mounts = agent(dir.path(), "codex", "echo edited > by-shell.txt\n");
    let spec = json!({"tools_allowed": ["Read", "Grep", "Glob", "Bash"], "tools_denied": [],
        "access_mode": "workspace-write", "max_turns": 50, "max_commands": 200, "mounts": mounts});
    let body = json!({"prompt": "p", "project_dir": project.path(), "sandbox_spec": spec});
    let view = ended(&up, &spawn(&up, &body).await).await;
    assert_eq!(
        (&view["status"], &view["agent_type"]),
        (&json!("completed"), &json!("codex")),
        "{view:#}"
    );
    assert_eq!(view["sandbox_spec"], spec, "requested");
    let effective = &view["sandbox_effective"];
    assert_eq!(effective["access_mode"], "workspace-write", "{view:#}");
    let offered = effective["tools_allowed"].as_array().unwrap();
    let asked = spec["tools_allowed"].as_array().unwrap();
    assert!(offered.contains(&json!("Bash")), "{view:#}");
    assert!(offered.iter().all(|tool| asked.contains(tool)), "nothing is widened: {view:#}");
    assert!(kept(&up, &view).await.contains(&"files/by-shell.txt".to_owned()));
}

/// The design's integration test: exactly this spec, to its end, and both columns in the text of `status --json`.
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_with_one_allowed_tool_shows_both_columns_in_its_status() {
    let (home, project) = (Home::new(), Project::new());
    let _up = home.up();
    let prompt = home.path().join("prompt.md");
    std::fs::write(&prompt, "read\n").unwrap();
    let prompt = format!("--prompt-file={}", prompt.display());
    let project = format!("--project={}", project.path());
    let spec = "--sandbox-spec={\"tools_allowed\":[\"Read\"]}";
    let spawned = home.run_json(&["dispatch", "spawn", &prompt, &project, spec, "--json"]);
    let id = spawned["id"].as_str().unwrap();
    // Without codex in the sandbox it fails, which is an end as any other.
    let _ended = home.run(&["dispatch", "wait", id]);
    let view = home.run_json(&["dispatch", "status", id, "--json"]);
    assert!(["completed", "failed"].contains(&view["status"].as_str().unwrap()), "{view:#}");
    assert_eq!(view["sandbox_spec"], json!({"tools_allowed": ["Read"]}), "{view:#}");
    assert_eq!(view["sandbox_effective"]["tools_allowed"], json!(["Read"]), "{view:#}");
}

/// A repository by hand: tests need no git.
fn commit(project: &Project) -> String {
    let git = Path::new(project.path()).join(".git");
    let id = "0123456789abcdef0123456789abcdef01234567".to_owned();
    std::fs::create_dir_all(git.join("refs/heads")).unwrap();
    std::fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    std::fs::write(git.join("refs/heads/main"), format!("{id}\n")).unwrap();
    id
}

async fn is_done(up: &Server) {
    let sql = up.sql().await;
    until("it has done what it does", Duration::from_secs(60), async || {
        let said = "SELECT count(*) FROM app.run_streams WHERE position('all-done' in chunk) > 0";
        count(&sql, said).await > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn base_commit_conflict_and_verdict_are_written_with_the_end() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let id = commit(&project);
    let text = "echo mine > a.txt\nprintf -- '--- VERDICT ---\\nSTATUS: warn\\nSUMMARY: one is slow\\n---\\n'\n";
    let view = ended(&up, &spawn(&up, &script(text, None, &project)).await).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(view["base_repo_commit"], id, "{view:#}");
    assert_eq!(
        (&view["verdict_status"], &view["verdict_summary"]),
        (&json!("warn"), &json!("one is slow"))
    );
    assert!(view.get("conflict_type").is_none(), "only the agent changed it: {view:#}");
    let text = format!("{text}echo all-done\nsleep 300\n");
    let dispatch = spawn(&up, &script(&text, None, &project)).await;
    is_done(&up).await;
    std::fs::write(Path::new(project.path()).join("a.txt"), "theirs\n").unwrap();
    let output = home.run(&["dispatch", "kill", &dispatch]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "killed\n");
    let view = ended(&up, &dispatch).await;
    assert_eq!(view["conflict_type"], "write_write", "{view:#}");
    assert_eq!(view["error_message"], "killed by user", "{view:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn d_r9_edits_are_kept_without_gits_files_and_beyond_the_bound_the_rest_is_listed() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    commit(&project);
    let text = "printf 'node_modules/\\n' > .gitignore\n\
        mkdir -p node_modules/x many/more && echo 1 > node_modules/x/index.js\n\
        echo x > .git/index; echo edit > zz-edit.txt; ln -s a.txt link\n\
        printf '#!/bin/sh\\n' > run.sh; chmod 755 run.sh\n\
        i=0; while [ $i -lt 1100 ]; do echo $i > many/more/$i; i=$((i+1)); done\n";
    let view = ended(&up, &spawn(&up, &script(text, None, &project)).await).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    let run = view["run_id"].as_str().unwrap();
    let query =
        format!("SELECT uri FROM app.artifacts WHERE run_id = '{run}' AND name = 'changes.json'");
    let uri = texts(&up.sql().await, &query).await.concat();
    let (status, list) = up.get(&format!("/api/artifacts/{uri}")).await;
    assert_eq!(status, 200, "{list}");
    assert_eq!(list["executable"], json!(["run.sh"]), "{list}");
    assert_eq!(list["links"], json!({"link": "a.txt"}), "{list}");
    assert_eq!(list["ignored"], json!(["node_modules"]), "{list}");
    assert_eq!(list["leftOut"].as_array().unwrap().len(), 1_103 - 1_000, "{list}");
    let kept = kept(&up, &view).await;
    for name in ["files/zz-edit.txt", "files/run.sh", "files/.gitignore"] {
        assert!(kept.contains(&name.to_owned()), "{name}: {kept:?}");
    }
    let strange = kept.iter().find(|name| name.contains(".git/") || name.contains("node_modules"));
    assert_eq!(strange, None);
}
