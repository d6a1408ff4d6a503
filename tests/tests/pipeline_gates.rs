//! Gates between tasks of a pipeline: what opens them, what a yes binds, and what becomes of the rest.

use crate::support;

use std::time::Duration;

use cofferdam_tests::{Home, Server, assert_nothing_left, tamper, text};
use serde_json::{Value, json};
use sqlx::PgPool;
use support::gates::{answer, key, number, prompt, refused, value};
use support::{assert_proven, assert_wiped, ended, recipe, said, steps, until};

/// Builds, and publishes once a person agrees; `report` tells of it in any case.
const RELEASE: &str = r#"
id: release
v: "1"
plan:
  tasks:
    - name: build
      exec: {timeout: 60s, run: "mkdir dist; echo one > dist/a; echo VERSION=1.2 > out.env"}
      artifacts: ["dist/**"]
      outputs: out.env
    - name: publish
      gate: release
      files: [{from: "task://build/dist/**", to: /work/in}]
      exec: {timeout: 60s, run: "cat in/a; echo $V", env: {V: "${tasks.build.outputs.VERSION}"}}
    - name: report
      needs: [publish]
      when: always
      value: told
"#;

/// Two tasks of which the second has this gate.
fn short(gate: &str) -> String {
    format!(
        "id: short\nv: '1'\nplan:\n  tasks:\n    - {{name: first, value: x}}\n    - {{name: second, needs: [first], gate: {gate}, value: y}}\n"
    )
}

async fn start(up: &Server, yaml: &str) -> Value {
    up.run_recipe(yaml, json!({}), json!({})).await
}

async fn parked(up: &Server, run: &Value) -> Value {
    up.wait_for(&text(run, "runId"), "waiting", |run| run["status"] == "waiting_input").await
}

async fn over(up: &Server, run: &Value) -> Value {
    up.wait_terminal(&text(run, "runId")).await
}

async fn say(up: &Server, run: &Value, gate: &str, choice: &str) -> (u16, Value) {
    answer(up, &up.key, run, gate, &format!("{gate} {choice}"), json!({"choice": choice})).await
}

const GATES: &str = "SELECT count(*) FROM app.human_gates WHERE run_id = $1";
const ANSWERS: &str = "SELECT count(*) FROM app.graph_answers WHERE run_id = $1";
const DECISIONS: &str = "SELECT count(*) FROM dbos.workflow_events e JOIN app.runs r ON r.workflow_id = e.workflow_uuid WHERE r.id = $1 AND e.key LIKE 'decision:%'";
const PROMPTS: &str = "SELECT count(*) FROM dbos.workflow_events e JOIN app.runs r ON r.workflow_id = e.workflow_uuid WHERE r.id = $1 AND e.key ~ '^ui:[a-z0-9-]+$'";

async fn asked_once(sql: &PgPool, run: &Value) {
    for query in [GATES, ANSWERS, DECISIONS, PROMPTS] {
        assert_eq!(number(sql, query, run).await, 1, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_behind_a_gate_starts_after_a_yes_to_what_was_built() {
    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("flag"), "no").unwrap();
    let side = "    - {name: side, exec: {run: 'until grep -q go /data/flag; do sleep 0.1; done', timeout: 60s}, files: [{from: DIR, to: /data, live: true}]}\n";
    let up = home.up_with(&["--allow-dir", dir.path().to_str().unwrap()], &[]);
    let yaml = format!("{RELEASE}{}", side.replace("DIR", &format!("{:?}", dir.path())));
    let run = start(&up, &yaml).await;
    let asked = prompt(&up, &run, "release").await;
    // The other task goes on meanwhile, and the one behind the gate says what it waits for.
    let (_, header) = up.get(&format!("/api/runs/{}", text(&run, "runId"))).await;
    assert_eq!(header["status"], "running", "{header}");
    let (_, rows) = up.get(&format!("/api/runs/{}/steps", text(&run, "runId"))).await;
    let publish = rows.as_array().unwrap().iter().find(|row| row["name"] == "publish").unwrap();
    assert_eq!(
        (&publish["status"], &publish["waitsFor"]),
        (&json!("queued"), &json!("a yes: release"))
    );
    std::fs::write(dir.path().join("flag"), "go").unwrap();
    let header = parked(&up, &run).await;
    assert_eq!(
        (&header["nextAction"], &header["waitsFor"]),
        (&json!("APPROVE_PLAN"), &json!("a yes: release"))
    );
    let (_, view) = up.get(&format!("/api/runs/{}/gates/release", text(&run, "runId"))).await;
    let bound = &view["start"];
    assert_eq!(
        (&bound["group"], &bound["tasks"], &bound["files"]),
        (&json!("publish"), &json!(1), &json!(1)),
        "{view}"
    );
    let sum = cofferdam_contracts::canonical::digest_bytes(b"one\n");
    assert_eq!(
        (&bound["listed"][0]["path"], &bound["listed"][0]["sha256"]),
        (&json!("dist/a"), &json!(sum))
    );
    assert_eq!(bound["outputs"][0], json!({"task": "build", "name": "VERSION", "value": "1.2"}));
    assert_eq!(asked["uiHints"]["digest"], bound["digest"]);
    let (_, inbox) = up.get("/api/hitl/inbox").await;
    assert_eq!(
        (&inbox[0]["gateKey"], &inbox[0]["start"]["digest"]),
        (&json!("release"), &bound["digest"])
    );
    assert_eq!(say(&up, &run, "release", "yes").await.0, 200);
    let end = over(&up, &run).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    let want = ["build 1 ok", "publish 1 ok", "report 1 ok", "side 1 ok"];
    assert_eq!(steps(&up, &run).await, want);
    let sql = up.sql().await;
    asked_once(&sql, &run).await;
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
    // No start without it, even for who writes into the database.
    tamper(&sql, "DELETE FROM app.graph_answers").await;
    let early = "INSERT INTO app.sbx_executions (task_key, execution_no, worker)
                 SELECT task_key, 9, 'w' FROM app.sbx_runs WHERE step_id = 'ExecuteST:publish'";
    let why = sqlx::query(early).execute(&sql).await.unwrap_err().to_string();
    assert!(why.contains("without a yes at the gate of its task group publish"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_no_fails_the_task_and_a_retry_asks_again() {
    let home = Home::new();
    let up = home.up();
    let run = start(&up, RELEASE).await;
    parked(&up, &run).await;
    assert_eq!(say(&up, &run, "release", "no").await.0, 200);
    let end = over(&up, &run).await;
    assert_eq!(end["status"], "failed", "{end}");
    assert_eq!(text(&end, "error"), "task group \"publish\" was not approved: no at gate release");
    assert_eq!(steps(&up, &run).await, ["build 1 ok", "publish 1 failed", "report 1 ok"]);
    refused(&say(&up, &run, "release", "yes").await, 409, "state_conflict");
    assert_proven(&home);
    let retry = format!("/api/runs/{}/retry", text(&run, "runId"));
    assert_eq!(up.post(&retry, &json!({})).await.0, 202);
    prompt(&up, &run, "release-r2").await;
    parked(&up, &run).await;
    assert_eq!(say(&up, &run, "release-r2", "yes").await.0, 200);
    let end = over(&up, &run).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    let seen = steps(&up, &run).await;
    assert!(
        seen.contains(&"build 1 ok".to_owned()) && seen.contains(&"publish 1 ok".to_owned()),
        "{seen:?}"
    );
    assert!(!seen.iter().any(|step| step.starts_with("build 2")), "{seen:?}");
    let sql = up.sql().await;
    let bound = "SELECT to_jsonb(count(DISTINCT digest)) FROM app.graph_gates WHERE run_id = $1";
    assert_eq!(value(&sql, bound, &run).await, 1, "the same build was asked for twice");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_yes_holds_for_a_retry_of_what_it_was_for_and_no_longer_for_another_build() {
    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    let up = home.up_with(&["--allow-dir", dir.path().to_str().unwrap()], &[]);
    let say_code = |name: &str, code: &str| std::fs::write(dir.path().join(name), code).unwrap();
    let data = format!("files: [{{from: {:?}, to: /data, live: true}}]", dir.path());
    let yaml = format!(
        "id: holds\nv: '1'\nplan:\n  tasks:\n    - {{name: build, {data}, exec: {{run: 'date +%N > a; exit $(cat /data/build)', timeout: 60s}}, artifacts: [a]}}\n    - {{name: publish, needs: [build], when: {{task: build, is: ended}}, gate: release, {data}, exec: {{run: 'exit $(cat /data/publish)', timeout: 60s}}}}\n"
    );
    say_code("build", "7");
    say_code("publish", "7");
    let run = start(&up, &yaml).await;
    prompt(&up, &run, "release").await;
    assert_eq!(say(&up, &run, "release", "yes").await.0, 200);
    assert_eq!(over(&up, &run).await["status"], "failed");
    let retry = format!("/api/runs/{}/retry", text(&run, "runId"));
    // The build is made anew, so what was agreed to is another one.
    say_code("build", "0");
    assert_eq!(up.post(&retry, &json!({})).await.0, 202);
    prompt(&up, &run, "release-r2").await;
    assert_eq!(say(&up, &run, "release-r2", "yes").await.0, 200);
    until("it failed again", Duration::from_secs(60), async || {
        steps(&up, &run).await.contains(&"publish 2 failed".to_owned())
    })
    .await;
    assert_eq!(over(&up, &run).await["status"], "failed");
    // Now only the publishing is: nobody is asked again.
    say_code("publish", "0");
    assert_eq!(up.post(&retry, &json!({})).await.0, 202);
    let end =
        up.wait_for(&text(&run, "runId"), "succeeded", |run| run["status"] == "succeeded").await;
    assert_eq!(end["retryCount"], 2, "{end}");
    let sql = up.sql().await;
    assert_eq!(number(&sql, GATES, &run).await, 2);
    assert_eq!(number(&sql, ANSWERS, &run).await, 3);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_what_the_recipe_says_of_it_after_reminder_and_escalation() {
    let home = Home::new();
    let up = home.up();
    let run = start(&up, &short("{key: release, deadline: 2s, remind: 1s}")).await;
    let end = over(&up, &run).await;
    assert_eq!(
        text(&end, "error"),
        "task group \"second\" was not approved: timeout at gate release"
    );
    refused(&say(&up, &run, "release", "yes").await, 409, "state_conflict");
    let (_, view) = up.get(&format!("/api/runs/{}/gates/release", text(&run, "runId"))).await;
    assert_eq!(
        (&view["decision"]["decision"], &view["result"]["state"]),
        (&json!("no"), &json!("TIMED_OUT"))
    );
    let sql = up.sql().await;
    let reminded = "SELECT count(*) FROM app.gate_journal WHERE run_id = $1 AND event = 'reminded'";
    assert_eq!(number(&sql, reminded, &run).await, 1);
    let law = "{key: release, deadline: 1s, on_timeout: {escalate: {wait: 1s}, then: approve}}";
    let run = start(&up, &short(law).replace("id: short", "id: then")).await;
    let end = over(&up, &run).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    let escalated =
        "SELECT count(*) FROM app.gate_journal WHERE run_id = $1 AND event = 'escalated'";
    until("it is escalated", Duration::from_secs(30), async || {
        number(&sql, escalated, &run).await == 1
    })
    .await;
    asked_once(&sql, &run).await;
    assert_eq!(
        number(&sql, support::gates::APPROVALS, &run).await,
        0,
        "a yes to a task is none to a plan"
    );
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_people_of_a_group_say_yes_and_a_fan_out_has_one_gate() {
    let home = Home::new();
    let up = home.up();
    let (_, one) = key(&up, &["approver"], &["sre"]).await;
    let (_, two) = key(&up, &["approver"], &["sre"]).await;
    let (_, other) = key(&up, &["approver"], &[]).await;
    let yaml = "id: quorum\nv: '1'\nplan:\n  tasks:\n    - {name: list, outputs: o.json, exec: {run: 'echo \"{\\\"l\\\":[1,2,3]}\" > o.json', timeout: 60s}}\n    - {name: 'ship-${item}', id: ship, each: '${tasks.list.outputs.l}', gate: {key: ship-it, group: sre, quorum: 2, self_approval: deny}, value: x}\n    - {name: last, needs: [ship], value: y}\n";
    let run = start(&up, yaml).await;
    parked(&up, &run).await;
    let yes = json!({"choice": "yes"});
    refused(&answer(&up, &up.key, &run, "ship-it", "0", yes.clone()).await, 403, "forbidden");
    refused(&answer(&up, &other, &run, "ship-it", "1", yes.clone()).await, 403, "forbidden");
    assert_eq!(answer(&up, &one, &run, "ship-it", "2", yes.clone()).await.0, 200);
    refused(&answer(&up, &one, &run, "ship-it", "3", yes.clone()).await, 409, "state_conflict");
    let sql = up.sql().await;
    assert_eq!(number(&sql, ANSWERS, &run).await, 0, "one of two");
    assert_eq!(answer(&up, &two, &run, "ship-it", "4", yes).await.0, 200);
    let end = over(&up, &run).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    let want = ["last 1 ok", "list 1 ok", "ship-1 1 ok", "ship-2 1 ok", "ship-3 1 ok"];
    assert_eq!(steps(&up, &run).await, want);
    asked_once(&sql, &run).await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_at_a_gate_asks_once_and_takes_one_answer() {
    let home = Home::new();
    let mut up = home.up();
    let run = start(&up, RELEASE).await;
    parked(&up, &run).await;
    let before = prompt(&up, &run, "release").await;
    for _ in 0..2 {
        up.kill();
        up = home.up();
        assert_eq!(prompt(&up, &run, "release").await, before);
    }
    // At its moment, before or behind what the answer starts.
    assert_eq!(say(&up, &run, "release", "yes").await.0, 200);
    up.kill();
    up = home.up();
    let end = over(&up, &run).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    let sql = up.sql().await;
    asked_once(&sql, &run).await;
    let attempts = "SELECT count(*) FROM app.sbx_runs WHERE run_id = $1";
    assert_eq!(number(&sql, attempts, &run).await, 3, "each task once");
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
    up.stop();
    assert_nothing_left(home.path());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_closes_the_gate_and_a_resume_opens_it_again() {
    let home = Home::new();
    let up = home.up();
    let run = start(&up, &short("release")).await;
    parked(&up, &run).await;
    let workflow = text(&run, "workflowID");
    let why = json!({"actor": "ann", "reason": "a test"});
    assert_eq!(up.post(&format!("/api/ops/wf/{workflow}/cancel"), &why).await.0, 202);
    assert_eq!(over(&up, &run).await["status"], "canceled");
    let gate = format!("/api/runs/{}/gates/release", text(&run, "runId"));
    assert_eq!(up.get(&gate).await.1["state"], "CANCELED");
    refused(&say(&up, &run, "release", "yes").await, 409, "state_conflict");
    assert_proven(&home);
    assert_eq!(up.post(&format!("/api/ops/wf/{workflow}/resume"), &why).await.0, 202);
    parked(&up, &run).await;
    assert_eq!(up.get(&gate).await.1["state"], "PENDING");
    let yes = json!({"choice": "yes"});
    assert_eq!(answer(&up, &up.key, &run, "release", "again", yes).await.0, 200);
    let end =
        up.wait_for(&text(&run, "runId"), "succeeded", |run| run["status"] == "succeeded").await;
    assert_eq!(steps(&up, &run).await, ["first 1 ok", "second 1 ok"], "{end}");
    asked_once(&up.sql().await, &run).await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_elsewhere_withdraws_the_gate_where_the_recipe_says_so() {
    let home = Home::new();
    let up = home.up();
    let yaml = short("release").replace("plan:\n", "plan:\n  fail_fast: true\n");
    let slow = "    - {name: bad, exec: {run: 'sleep 2; exit 3', timeout: 60s}}\n";
    let run = start(&up, &format!("{yaml}{slow}")).await;
    prompt(&up, &run, "release").await;
    let end = over(&up, &run).await;
    assert!(text(&end, "error").starts_with("task \"bad\" ended with CMD_NONZERO"), "{end}");
    assert_eq!(steps(&up, &run).await, ["bad 1 failed", "first 1 ok", "second 1 skipped"]);
    let gate = format!("/api/runs/{}/gates/release", text(&run, "runId"));
    assert_eq!(up.get(&gate).await.1["state"], "CANCELED");
    refused(&say(&up, &run, "release", "yes").await, 409, "state_conflict");
    // A run's own deadline does it, too.
    let opts = json!({"timeoutMS": 3_000});
    let yaml = short("release").replace("id: short", "id: late");
    let run = up.run_recipe(&yaml, json!({}), opts).await;
    let end = over(&up, &run).await;
    assert_eq!(end["status"], "failed", "{end}");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_lists_a_hundred_files_and_outputs_and_counts_the_rest() {
    let home = Home::new();
    let up = home.up();
    let run = "for i in $(seq 120); do echo $i > f$i; done; echo V=$(head -c 300 /dev/zero | tr '\\0' x) > o.env";
    let yaml = format!(
        "id: many\nv: '1'\nplan:\n  tasks:\n    - {{name: build, outputs: o.env, artifacts: ['f*'], exec: {{run: {run:?}, timeout: 60s}}}}\n    - {{name: publish, needs: [build], gate: release, value: y}}\n"
    );
    let run = start(&up, &yaml).await;
    prompt(&up, &run, "release").await;
    let (_, view) = up.get(&format!("/api/runs/{}/gates/release", text(&run, "runId"))).await;
    let bound = &view["start"];
    assert_eq!((&bound["files"], bound["listed"].as_array().unwrap().len()), (&json!(120), 100));
    assert_eq!(bound["outputs"][0]["value"], "x".repeat(200));
    assert_eq!(say(&up, &run, "release", "yes").await.0, 200);
    assert_eq!(over(&up, &run).await["status"], "succeeded");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_sees_and_answers_the_gate_on_the_terminal() {
    let home = Home::new();
    let _up = home.up();
    let bad = short("approve-plan");
    let path = recipe(home.path(), "bad.yaml", &bad);
    let output = ended(home.command(&["run", &path]), Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("bad.yaml:6:"), "{}", said(&output));
    let path = recipe(home.path(), "release.yaml", RELEASE);
    let output = ended(home.command(&["run", &path, "--detach"]), Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let shown = async |args: &[&str], line: &str| {
        let mut shown = String::new();
        until(line, Duration::from_secs(60), async || {
            shown = said(&ended(home.command(args), Duration::from_secs(60)));
            shown.contains(line)
        })
        .await;
        shown
    };
    let asked = shown(&["gate", "show", "last"], "start of publish with 1 file").await;
    for line in [
        "bound to sha256:",
        "\"dist/a\" of build",
        "output VERSION of build: \"1.2\"",
        "starts after a yes at gate release",
    ] {
        assert!(asked.contains(line), "{asked}");
    }
    shown(&["gate", "ls"], "start of publish").await;
    shown(&["ps"], "a yes: release").await;
    shown(&["show", "last"], "waits for a yes: release").await;
    let reply = ["gate", "reply", "last", "release", "--choice", "yes"];
    let output = ended(home.command(&reply), Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    shown(&["show", "last"], "succeeded").await;
    assert_proven(&home);
}
