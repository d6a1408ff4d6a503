//! What commands print: to a reader that goes, to a disk that is full, and as JSON with a version.

use crate::support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};
use std::time::Duration;

use cofferdam_tests::{Home, text};
use serde_json::{Value, json};
use support::{exit_code, recipe, said};

const LIMIT: Duration = Duration::from_secs(120);

/// Its end where nobody reads what it prints from the beginning.
fn unread(home: &Home, args: &[&str]) -> Output {
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let mut command = home.command(args);
    command.stdout(Stdio::from(write)).stderr(Stdio::piped()).output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn e8_a_reader_that_goes_is_left_quietly_by_every_command() {
    let home = Home::new();
    let up = home.up();
    let yaml = std::fs::read_to_string("../examples/value.yaml").unwrap();
    let header = up.run_recipe(&yaml, json!({}), json!({})).await;
    let run = text(&header, "runId");
    up.wait_terminal(&run).await;
    for args in [
        &["completions", "bash"][..],
        &["--help"],
        &["openapi"],
        &["schema", "recipe"],
        &["ps"],
        &["ps", "--json"],
        &["show", &run],
        &["show", &run, "--steps"],
        &["gate", "ls"],
        &["key", "ls"],
        &["config", "ls"],
        &["prove", "--json"],
        &["doctor"],
        &["run", "examples/value.yaml"],
    ] {
        let output = unread(&home, args);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(141), "{args:?}: {}", said(&output));
        assert!(!words.contains("panicked") && !words.contains("roken pipe"), "{args:?}: {words}");
    }
    // Nobody reads the words beside the data either: the work is done all the same.
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let status = home
        .command(&["run", "examples/value.yaml"])
        .stderr(Stdio::from(write))
        .output()
        .unwrap()
        .status;
    assert_eq!(status.code(), Some(0));
    // A disk that takes nothing is an error, and said.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = home.command(&["ps"]);
    let output = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn e8_logs_that_nobody_reads_any_more_end_while_the_run_goes_on() {
    let home = Home::new();
    let up = home.up();
    let yaml = r#"{"id": "slow", "v": "1", "plan": {"tasks": [
        {"name": "t", "exec": {"run": "echo first; sleep 600", "timeout": "15m"}}]}}"#;
    let header = up.run_recipe(yaml, json!({}), json!({})).await;
    let run = text(&header, "runId");
    let mut child = home.command(&["logs", "-f", &run]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n", "it follows a run whose task has not started, too");
    drop(out);
    assert_eq!(exit_code(&mut child, LIMIT), Some(141), "nobody reads it");
    let (_, header) = up.get(&format!("/api/runs/{run}")).await;
    assert_eq!(header["status"], "running", "whoever only looks cancels nothing: {header}");
    assert_eq!(home.run(&["cancel", &run]).status.code(), Some(0));
    up.wait_terminal(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e8_json_is_one_object_with_a_version_everywhere() {
    let home = Home::new();
    let up = home.up();
    let run = home.run_json(&["run", "examples/hello-gated.yaml", "--detach", "--json"]);
    let run = text(&run, "runId");
    up.wait_for(&run, "waiting", |h| h["status"] == "waiting_input").await;
    for args in [
        &["ps", "--json"][..],
        &["show", &run, "--json"],
        &["show", &run, "--steps", "--json"],
        &["gate", "ls", "--json"],
        &["gate", "show", &run, "--json"],
        &["gate", "delegations", "--json"],
        &["gate", "reply", &run, "approve-plan", "--choice", "no", "--json"],
        &["session", "ls", "--json"],
        &["key", "ls", "--json"],
        &["key", "create", "--role", "auditor", "--json"],
        &["webhook", "ls", "--json"],
        &["config", "ls", "--json"],
        &["cache", "ls", "--json"],
        &["image", "ls", "--json"],
        &["dispatch", "list", "--json"],
        &["dispatch", "tokens", "--scope-id", "none", "--json"],
        &["dispatch", "prune", "--older-than=0", "--json"],
        &["prove", "--json"],
        &["doctor", "--json"],
        &["fork", &run, "--step", "0", "--json"],
    ] {
        let output = home.run(args);
        let value: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{args:?}: {e}: {}", said(&output)));
        assert_eq!(value["schemaVersion"], 1, "{args:?}: {value}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e8_what_nobody_executes_is_said_and_steps_are_numbered_as_fork_counts_them() {
    let home = Home::new();
    let mut up = home.up();
    let failing = "id: failing\nv: \"1\"\nplan:\n  tasks:\n    - {name: no, exec: {run: \"exit 4\", timeout: 30s}}\n";
    let file = recipe(home.path(), "failing.yaml", failing);
    let failed = text(&home.run_json(&["run", &file, "--json"]), "runId");
    let gated =
        text(&home.run_json(&["run", "examples/hello-gated.yaml", "--detach", "--json"]), "runId");
    up.wait_for(&gated, "waiting", |h| h["status"] == "waiting_input").await;
    let steps = home.run_json(&["show", &failed, "--steps", "--json"]);
    let steps = steps["recordedSteps"].as_array().unwrap().clone();
    for (n, step) in steps.iter().enumerate() {
        assert_eq!(step["stepN"], json!(n), "{steps:?}");
    }
    let last = (steps.len() - 1).to_string();
    let beyond = steps.len().to_string();
    assert_eq!(home.run(&["fork", &failed, "--step", &last]).status.code(), Some(0));
    let refused = home.run(&["fork", &failed, "--step", &beyond]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && words.contains("show --steps"), "{words}");
    // With a worker nothing is said; engine's words are not used.
    let said_of = |args: &[&str]| {
        let output = home.run(args);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let retried = home.run(&["retry", &failed]);
    let words = String::from_utf8_lossy(&retried.stderr).into_owned();
    assert!(retried.status.success() && !words.contains("no worker runs"), "{words}");
    up.wait_terminal(String::from_utf8_lossy(&retried.stdout).trim()).await;
    let (code, words) = said_of(&["resume", &gated]);
    assert!(code == Some(1) && words.contains("running: it must be canceled"), "{words}");
    let (code, words) = said_of(&["cancel", &failed]);
    assert!(code == Some(1) && words.contains("it must be running or queued"), "{words}");
    for word in ["PENDING", "ENQUEUED", "CANCELLED", "ERROR"] {
        assert!(!words.contains(word), "{words}");
    }
    up.stop();
    for args in [
        &["gate", "reply", &gated, "approve-plan", "--choice", "no"][..],
        &["retry", &failed],
        &["fork", &failed, "--step", "0"],
        &["run", "examples/value.yaml", "--detach"],
    ] {
        let (code, words) = said_of(args);
        assert!(code == Some(0) && words.contains("no worker runs"), "{args:?}: {words}");
        assert!(words.contains("cofferdam up"), "{words}");
    }
}
