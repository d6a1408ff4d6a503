//! What a consent is bound to: what drifts is asked again, what an approver edits is approved as edited.

use crate::support;

use std::path::Path;
use std::process::{Command, Stdio};

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;
use support::gates::{
    APPROVALS, EXECUTIONS, INTERACTIONS, PROMPTS, TASKS, answer, number, prompt, proven, refused,
    say, value, waiting,
};

const PLAIN: &str =
    "id: plain\nv: '1'\nplan:\n  gate: approve-plan\n  tasks: [{name: t, value: one}]\n";
const NETWORK: &str = "id: net\nv: '1'\nplan:\n  gate: approve-plan\n  tasks:\n    - name: t\n      exec: {run: echo one, egress: [one.example], timeout: 30s}\n";

/// A plan card as somebody with the database in hand would leave it: whole, with its own digest.
const FORGE: &str = "WITH c AS (
    SELECT a.*, replace(inline, $2, $3) AS t FROM app.artifacts a WHERE run_id = $1 AND kind = 'plan_card'),
  i AS (
    INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, inline, sha256, size, origin)
    SELECT run_id, step_id, repeat('0', 64), 9, 0, kind, name, replace(uri, task_key, repeat('0', 64)), t,
           encode(sha256(convert_to(t, 'UTF8')), 'hex'), octet_length(t), origin FROM c RETURNING sha256)
  UPDATE app.runs SET plan_digest = (SELECT sha256 FROM i) WHERE id = $1";

async fn forge(sql: &PgPool, run: &Value, from: &str, to: &str) {
    let done = sqlx::query(FORGE).bind(text(run, "runId")).bind(from).bind(to).execute(sql).await;
    assert_eq!(done.unwrap().rows_affected(), 1);
}

fn differences(prompt: &Value) -> Vec<(String, String)> {
    let listed = prompt["uiHints"]["difference"].as_array().unwrap_or_else(|| panic!("{prompt}"));
    listed.iter().map(|d| (text(d, "part"), text(d, "path"))).collect()
}

#[tokio::test]
async fn a_budget_that_drifts_voids_the_consent_and_the_gate_opens_again_with_the_difference() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, PLAIN, json!({}), json!({"budget": {"maxFanout": 1}})).await;
    sqlx::query("UPDATE app.runs SET budget = '{\"maxFanout\": 3}' WHERE id = $1")
        .bind(text(&run, "runId"))
        .execute(&sql)
        .await
        .unwrap();
    let approve = format!("/api/runs/{}/approve-plan", text(&run, "runId"));
    let body = json!({"approvedBy": "ann"});
    assert_eq!(server.post(&approve, &body).await.0, 202);
    let again = prompt(&server, &run, "approve-plan-r2").await;
    assert_eq!(again["uiHints"]["round"], 2, "{again}");
    assert_eq!(
        again["uiHints"]["difference"],
        json!([{"part": "budget", "path": "/budget/maxFanout", "approved": "1", "now": "3"}])
    );
    assert_eq!(number(&sql, TASKS, &run).await, 0, "nothing was started");
    let header = server.get(&format!("/api/runs/{}", text(&run, "runId"))).await.1;
    assert_eq!(
        (&header["status"], &header["nextAction"]),
        (&json!("waiting_input"), &json!("APPROVE_PLAN"))
    );
    // The old yes, said again, is a replay of the old yes and no answer to the new question.
    assert_eq!(server.post(&approve, &body).await.0, 202);
    assert_eq!(number(&sql, INTERACTIONS, &run).await, 1);
    refused(&say(&server, &server.key, &run, "k", "yes").await, 409, "state_conflict");
    let yes = json!({"choice": "yes"});
    assert_eq!(answer(&server, &server.key, &run, "approve-plan-r2", "k", yes).await.0, 200);
    let end = server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    assert_eq!(number(&sql, APPROVALS, &run).await, 2);
    assert_eq!(number(&sql, PROMPTS, &run).await, 2, "each round asks once");
    assert_eq!(number(&sql, EXECUTIONS, &run).await, 1);
    let void =
        value(&sql, "SELECT to_jsonb(v) FROM app.plan_consents_void v WHERE run_id = $1", &run)
            .await;
    assert_eq!((&void["round"], &void["difference"][0]["part"]), (&json!(1), &json!("budget")));
    proven(&server).await;
}

#[tokio::test]
async fn a_plan_a_sandbox_and_an_egress_that_drift_are_shown_field_by_field() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    for (n, from, to, part, path) in [
        (1, "echo one", "echo two", "sandbox", "/0/spec/cmd/2"),
        (2, "one.example", "two.example", "egress", "/0/exec/0"),
        (3, "\"timeoutMs\":30000", "\"timeoutMs\":40000", "sandbox", "/0/spec/timeoutMs"),
    ] {
        let run = waiting(&server, NETWORK, json!({}), json!({"runKey": n.to_string()})).await;
        forge(&sql, &run, from, to).await;
        assert_eq!(say(&server, &server.key, &run, "k", "yes").await.0, 200);
        let again = prompt(&server, &run, "approve-plan-r2").await;
        let found = differences(&again);
        assert!(found.iter().any(|(p, _)| p == "plan"), "{found:?}");
        assert!(found.contains(&(part.to_owned(), path.to_owned())), "{found:?}");
        assert!(found.iter().all(|(p, _)| p == "plan" || p == part), "{found:?}");
        let no = json!({"choice": "no", "rationale": "not what I agreed to"});
        assert_eq!(answer(&server, &server.key, &run, "approve-plan-r2", "k", no).await.0, 200);
        let end = server.wait_terminal(&text(&run, "runId")).await;
        assert_eq!(end["status"], "failed", "{end}");
        assert_eq!(number(&sql, TASKS, &run).await, 0);
    }
    proven(&server).await;
}

fn digest(bytes: &str) -> String {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("coreutils");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), bytes.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap().stdout;
    String::from_utf8(out).unwrap()[..64].to_owned()
}

/// An OCI layout without layers, which differs from another by what it says of its environment.
fn layout(dir: &Path, env: &str) {
    let blobs = dir.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    let put = |text: &str| {
        let name = digest(text);
        std::fs::write(blobs.join(&name), text).unwrap();
        json!({"digest": format!("sha256:{name}"), "size": text.len()})
    };
    let typed = |mut descriptor: Value, kind: &str| {
        descriptor["mediaType"] = json!(format!("application/vnd.oci.image.{kind}.v1+json"));
        descriptor
    };
    let config = json!({"architecture": std::env::consts::ARCH.replace("x86_64", "amd64").replace("aarch64", "arm64"),
        "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}, "config": {"Env": [env]}});
    let manifest = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": typed(put(&config.to_string()), "config"), "layers": []});
    let index =
        json!({"schemaVersion": 2, "manifests": [typed(put(&manifest.to_string()), "manifest")]});
    std::fs::write(dir.join("index.json"), index.to_string()).unwrap();
    std::fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

fn import(home: &Home, env: &str) {
    let dir = tempfile::tempdir().unwrap();
    layout(dir.path(), env);
    let path = dir.path().to_string_lossy().into_owned();
    let output = home.run(&["image", "import", &path, "--name", "base"]);
    assert!(output.status.success(), "{}", support::said(&output));
}

#[tokio::test]
async fn an_image_that_is_another_under_the_same_name_is_asked_again() {
    const IMAGE: &str = "id: img\nv: '1'\nplan:\n  gate: approve-plan\n  tasks:\n    - name: t\n      image: image:base\n      exec: {run: [/none], timeout: 30s}\n";
    let home = Home::new();
    import(&home, "A=1");
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, IMAGE, json!({}), json!({})).await;
    import(&home, "A=2");
    assert_eq!(say(&server, &server.key, &run, "k", "yes").await.0, 200);
    let again = prompt(&server, &run, "approve-plan-r2").await;
    assert_eq!(differences(&again), [("image".to_owned(), "/0/resolved".to_owned())], "{again}");
    let shown = &again["uiHints"]["difference"][0];
    assert!(text(shown, "approved").contains("base@sha256:"), "{shown}");
    assert_ne!(shown["approved"], shown["now"]);
    assert_eq!(number(&sql, TASKS, &run).await, 0);
    let yes = json!({"choice": "yes"});
    assert_eq!(answer(&server, &server.key, &run, "approve-plan-r2", "k", yes).await.0, 200);
    // There is nothing in this image to run; what counts is which one was asked to.
    assert_eq!(server.wait_terminal(&text(&run, "runId")).await["status"], "failed");
    let asked =
        value(&sql, "SELECT jsonb_agg(request) FROM app.sbx_runs WHERE run_id = $1", &run).await;
    let approved = text(shown, "now").trim_matches('"').to_owned();
    assert!(asked.to_string().contains(&approved), "{asked} names {approved}");
    proven(&server).await;
}

#[tokio::test]
async fn what_never_holds_still_is_not_asked_for_ever() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, PLAIN, json!({}), json!({})).await;
    for round in 1..=8 {
        let gate =
            if round == 1 { "approve-plan".into() } else { format!("approve-plan-r{round}") };
        prompt(&server, &run, &gate).await;
        sqlx::query(
            "UPDATE app.runs SET budget = jsonb_build_object('maxFanout', $2::int) WHERE id = $1",
        )
        .bind(text(&run, "runId"))
        .bind(round)
        .execute(&sql)
        .await
        .unwrap();
        let yes = json!({"choice": "yes"});
        assert_eq!(answer(&server, &server.key, &run, &gate, "k", yes).await.0, 200);
    }
    let end = server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(end["status"], "failed", "{end}");
    assert!(text(&end, "error").contains("kept changing"), "{end}");
    assert_eq!(number(&sql, TASKS, &run).await, 0);
}

const EDITABLE: &str = "
id: editable
v: '1'
form: {type: object, additionalProperties: false, properties: {n: {type: integer, default: 1, minimum: 1, maximum: 9}, who: {type: string, default: x}}}
caps: {concurrency: 4, steps: 4, sandbox_minutes: 10}
plan:
  gate: {key: approve-plan, edit: [n]}
  tasks: [{name: 't-${item}', each: '${range(form.n)}', value: 'for ${form.who}'}]
";

async fn edit(
    server: &Server,
    run: &Value,
    gate: &str,
    dedupe: &str,
    edits: Value,
) -> (u16, Value) {
    answer(server, &server.key, run, gate, dedupe, json!({"choice": "yes", "edits": edits})).await
}

#[tokio::test]
async fn an_edit_is_validated_recorded_and_approved_as_edited() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, EDITABLE, json!({}), json!({})).await;
    let asked = prompt(&server, &run, "approve-plan").await;
    assert_eq!(asked["defaults"], json!({"edits": {"n": 1}}), "{asked}");
    assert_eq!(asked["formSchema"]["properties"]["edits"]["properties"]["n"]["maximum"], 9);
    for bad in [
        json!({"n": 10}),
        json!({"n": "3"}),
        json!({"who": "y"}),
        json!({}),
        json!(null),
        json!([1]),
    ] {
        refused(&edit(&server, &run, "approve-plan", "k", bad).await, 400, "schema_violation");
    }
    let no = json!({"choice": "no", "edits": {"n": 2}});
    refused(
        &answer(&server, &server.key, &run, "approve-plan", "k", no).await,
        400,
        "schema_violation",
    );
    assert_eq!(number(&sql, INTERACTIONS, &run).await, 0, "what is refused leaves no row");
    assert_eq!(edit(&server, &run, "approve-plan", "k", json!({"n": 3})).await.0, 200);
    let end = server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    assert_eq!(number(&sql, TASKS, &run).await, 3);
    let row =
        value(&sql, "SELECT jsonb_agg(to_jsonb(e)) FROM app.gate_edits e WHERE run_id = $1", &run)
            .await;
    assert_eq!(row.as_array().unwrap().len(), 1);
    assert_eq!(
        (&row[0]["op"], &row[0]["path"], &row[0]["from_value"], &row[0]["value"]),
        (&json!("replace"), &json!("/n"), &json!(1), &json!(3))
    );
    let bound = value(
        &sql,
        "SELECT jsonb_build_object('same', r.plan_digest = p.plan_digest, 'shown', g.plan_digest = p.plan_digest, 'by', p.key_id)
           FROM app.plan_approvals p JOIN app.runs r ON r.id = p.run_id JOIN app.human_gates g ON g.run_id = r.id WHERE r.id = $1",
        &run,
    )
    .await;
    assert_eq!((&bound["same"], &bound["shown"]), (&json!(true), &json!(false)), "{bound}");
    proven(&server).await;

    let run = waiting(&server, EDITABLE, json!({"n": 2}), json!({})).await;
    assert_eq!(edit(&server, &run, "approve-plan", "k", json!({"n": 2})).await.0, 200);
    assert_eq!(server.wait_terminal(&text(&run, "runId")).await["status"], "succeeded");
    let edits = number(&sql, "SELECT count(*) FROM app.gate_edits WHERE run_id = $1", &run).await;
    assert_eq!(
        (edits, number(&sql, TASKS, &run).await),
        (0, 2),
        "an edit that changes nothing is none"
    );
    proven(&server).await;
}

#[tokio::test]
async fn an_edit_without_a_plan_is_asked_again_and_says_why() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, EDITABLE, json!({}), json!({})).await;
    assert_eq!(edit(&server, &run, "approve-plan", "k", json!({"n": 9})).await.0, 200);
    let again = prompt(&server, &run, "approve-plan-r2").await;
    let why = &again["uiHints"]["difference"][0];
    assert_eq!(why["part"], "edit");
    assert!(text(why, "now").contains("caps.steps is 4"), "{why}");
    assert_eq!(number(&sql, APPROVALS, &run).await, 0);
    assert_eq!(again["defaults"], json!({"edits": {"n": 1}}), "the edit that had no plan is gone");
    assert_eq!(edit(&server, &run, "approve-plan-r2", "k", json!({"n": 4})).await.0, 200);
    assert_eq!(server.wait_terminal(&text(&run, "runId")).await["status"], "succeeded");
    assert_eq!(number(&sql, TASKS, &run).await, 4);
    proven(&server).await;
}

#[tokio::test]
async fn a_fork_that_inherited_an_edited_consent_is_asked_again_with_the_edit() {
    let home = Home::new();
    let shim = Server::start(&home, &["shim", "--listen", "127.0.0.1:0"], &[]);
    let worker = Server::start(&home, &["worker"], &[]);
    let sql = shim.sql().await;
    let run = waiting(&shim, EDITABLE, json!({}), json!({"budget": {"maxFanout": 4}})).await;
    assert_eq!(edit(&shim, &run, "approve-plan", "k", json!({"n": 3})).await.0, 200);
    assert_eq!(shim.wait_terminal(&text(&run, "runId")).await["status"], "succeeded");
    drop(worker);
    const BEHIND: &str =
        "SELECT max(o.function_id)::int8 + 1 FROM dbos.operation_outputs o JOIN app.runs r
        ON r.workflow_id = o.workflow_uuid WHERE r.id = $1 AND o.function_name = 'gate.resolve'";
    let step = number(&sql, BEHIND, &run).await;
    let fork = format!("/api/ops/wf/{}/fork", text(&run, "workflowID"));
    let body = json!({"actor": "ann", "reason": "again", "stepN": step});
    let (status, forked) = shim.post(&fork, &body).await;
    assert_eq!(status, 202, "{forked}");
    let forked = json!({"runId": forked["newRunId"]});
    sqlx::query("UPDATE app.runs SET budget = '{\"maxFanout\": 3}' WHERE id = $1")
        .bind(text(&forked, "runId"))
        .execute(&sql)
        .await
        .unwrap();
    let _worker = Server::start(&home, &["worker"], &[]);
    let again = prompt(&shim, &forked, "approve-plan-r2").await;
    assert_eq!(differences(&again), [("budget".to_owned(), "/budget/maxFanout".to_owned())]);
    assert_eq!(again["defaults"], json!({"edits": {"n": 3}}), "{again}");
    assert_eq!(edit(&shim, &forked, "approve-plan-r2", "k", json!({"n": 2})).await.0, 200);
    assert_eq!(shim.wait_terminal(&text(&forked, "runId")).await["status"], "succeeded");
    assert_eq!(number(&sql, TASKS, &forked).await, 2);
    let from = value(&sql, "SELECT from_value FROM app.gate_edits WHERE run_id = $1", &forked);
    assert_eq!(from.await, json!(3), "what was edited is the edited plan");
    proven(&shim).await;
}
