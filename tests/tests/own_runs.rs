//! A submitter ends what it began, and nothing of another's.

use crate::support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

use cofferdam_tests::{Home, Server, text};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use support::{assert_proven, assert_wiped, count, executing, found, recipe, signal};

const SLOW: &str = "id: slow\nv: \"1\"\nplan:\n  tasks:\n    - name: slow\n      exec: {run: \"sleep 300\", timeout: 10m}\n";
const GATED: &str =
    "id: gated\nv: \"1\"\nplan:\n  gate: approve-plan-1\n  tasks: [{name: t, value: kept}]\n";

async fn act(server: &Server, key: &str, on: &str, op: &str) -> (u16, Value) {
    let action = json!({"actor": "ann", "reason": "enough"});
    server.post_as(key, &format!("/api/ops/wf/{on}/{op}"), &action).await
}

async fn start(server: &Server, key: &str, yaml: &str, opts: Value) -> Value {
    let (status, header) = server.start_recipe_as(key, yaml, json!({}), opts).await;
    assert_eq!(status, 201, "{header}");
    header
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submitter_cancels_its_own_runs_and_tasks_and_no_others() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let submitter = json!({"roles": ["submitter"]});
    let (_, ann) = server.new_key(&submitter).await;
    let (_, ben) = server.new_key(&submitter).await;
    let (_, auditor) = server.new_key(&json!({"roles": ["auditor"]})).await;
    let (_, elsewhere) = server.new_key(&json!({"tenant": "acme", "roles": ["submitter"]})).await;
    let run = start(&server, &ann, SLOW, json!({"runKey": "a"})).await;
    executing(&sql, Duration::from_secs(60)).await;
    let (on, id) = (text(&run, "workflowID"), text(&run, "runId"));
    let (_, steps) = server.get(&format!("/api/runs/{id}/steps")).await;
    let mut steps = steps.as_array().unwrap().iter();
    let task = steps.find_map(|step| step["taskKey"].as_str()).unwrap().to_owned();
    for on in [&on, &task] {
        for key in [&ben, &auditor] {
            let (status, answer) = act(&server, key, on, "cancel").await;
            assert_eq!((status, &answer["code"]), (403, &json!("forbidden")), "{answer}");
        }
        assert_eq!(act(&server, &elsewhere, on, "cancel").await.0, 404);
    }
    let canceled = "SELECT count(*) FROM app.audit WHERE op = 'cancel'";
    assert_eq!(count(&sql, canceled).await, 0);
    assert_eq!(server.get(&format!("/api/runs/{id}")).await.1["status"], "running");
    assert_eq!(act(&server, &ann, &on, "cancel").await.0, 202);
    assert_eq!(server.wait_terminal(&id).await["status"], "canceled");
    assert_eq!(count(&sql, canceled).await, 1);
    // What steers otherwise stays the operator's.
    assert_eq!(act(&server, &ann, &on, "resume").await.0, 403);

    let run = start(&server, &ann, SLOW, json!({"runKey": "b"})).await;
    // Of the run before a sandbox may still be ending.
    let steps = format!("/api/runs/{}/steps", text(&run, "runId"));
    let task = found("its task is on record", async || {
        let (_, steps) = server.get(&steps).await;
        let mut steps = steps.as_array()?.iter();
        steps.find_map(|step| step["taskKey"].as_str().map(str::to_owned))
    })
    .await;
    assert_eq!(act(&server, &ann, &task, "cancel").await.0, 202, "one task of it");
    server.wait_terminal(&text(&run, "runId")).await;

    // An escalation speaks for those who were asked.
    let opts = json!({"runKey": "c", "planApprovalTimeoutS": 1});
    let run = start(&server, &ann, GATED, opts).await;
    server.wait_terminal(&text(&run, "runId")).await;
    let inbox = "SELECT escalation_workflow_id FROM app.human_gates WHERE escalation_workflow_id IS NOT NULL";
    let escalation = found("it escalated", async || {
        let found: Option<String> = sqlx::query_scalar(inbox).fetch_optional(&sql).await.unwrap();
        found
    })
    .await;
    let path = format!("/api/ops/wf/{escalation}");
    found("it is known", async || (server.get(&path).await.0 == 200).then_some(())).await;
    assert_eq!(act(&server, &ann, &escalation, "cancel").await.0, 403);
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
}

/// `run` with a key, once it follows its run: the process, its stderr, and the run.
fn following(home: &Home, key: &str) -> (Child, BufReader<ChildStderr>, String) {
    let file = recipe(home.path(), "slow.yaml", SLOW);
    let mut command = home.command(&["run", &file, "--run-key", "one"]);
    command.env("COFFERDAM_KEY", key).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    let run = line.split_whitespace().nth(1).unwrap_or_default().to_owned();
    assert!(run.starts_with("rn_"), "{line}");
    (child, stderr, run)
}

fn interrupted(child: &mut Child, stderr: &mut BufReader<ChildStderr>) -> (Option<i32>, String) {
    listens(child);
    signal(i32::try_from(child.id()).unwrap(), Signal::SIGINT);
    let mut words = String::new();
    stderr.read_to_string(&mut words).unwrap();
    (child.wait().unwrap().code(), words)
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_cancels_the_run_that_was_submitted_or_says_that_it_goes_on() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let submitter = json!({"roles": ["submitter"]});
    let (_, ann) = server.new_key(&submitter).await;
    let (_, ben) = server.new_key(&submitter).await;
    let (mut first, mut first_err, run) = following(&home, &ann);
    executing(&sql, Duration::from_secs(60)).await;
    // The same start by another key is the same run, which is not its own.
    let (mut second, mut second_err, same) = following(&home, &ben);
    assert_eq!(run, same);
    let (code, words) = interrupted(&mut second, &mut second_err);
    assert_eq!(code, Some(2), "{words}");
    assert!(words.contains(&format!("{run} was not canceled and goes on")), "{words}");
    assert!(words.contains("needs the role operator"), "{words}");
    assert_eq!(server.get(&format!("/api/runs/{run}")).await.1["status"], "running");
    let (code, words) = interrupted(&mut first, &mut first_err);
    assert_eq!(code, Some(130), "{words}");
    assert!(words.contains(&format!("canceling {run}")), "{words}");
    assert_eq!(server.wait_terminal(&run).await["status"], "canceled");
    assert_wiped(&home, &sql).await;
}

/// A process that follows catches the signal: before, it would just end.
fn listens(child: &Child) {
    let path = format!("/proc/{}/status", child.id());
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let status = std::fs::read_to_string(&path).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        // SIGINT is signal 2.
        if u64::from_str_radix(caught.trim(), 16).unwrap() & 2 != 0 {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "it does not follow");
        std::thread::sleep(Duration::from_millis(5));
    }
}
