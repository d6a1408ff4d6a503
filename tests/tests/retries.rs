//! A retry is the same run again, from its first step without success.

use crate::support;

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use support::gates::{
    APPROVALS, DECISIONS, EXECUTIONS, PROMPTS, TASKS, number, prompt, proven, say, waiting,
};
use support::texts;

/// Two tasks, of which one does what a file outside says.
const HALF: &str = "
id: half
v: '1'
form: {type: object, properties: {dir: {type: string}}}
plan:
  gate: approve-plan
  tasks:
    - {name: whole, exec: {run: 'echo whole', timeout: 30s}}
    - {name: fragile, files: [{from: '${form.dir}', to: /data, live: true}], exec: {run: 'cat /data/word; exit $(cat /data/code)', timeout: 30s}}
";

fn put(dir: &std::path::Path, word: &str, code: &str) {
    std::fs::write(dir.join("word"), word).unwrap();
    std::fs::write(dir.join("code"), code).unwrap();
}

async fn retry(server: &Server, run: &Value) -> (u16, Value) {
    server.post(&format!("/api/runs/{}/retry", text(run, "runId")), &json!({})).await
}

/// Attempts by task, as `[step, attempt, status]`.
async fn attempts(server: &Server, run: &Value) -> Vec<(String, i64, String)> {
    let (_, steps) = server.get(&format!("/api/runs/{}/steps", text(run, "runId"))).await;
    let rows = steps.as_array().unwrap().iter().filter(|s| !s["taskKey"].is_null());
    let mut rows: Vec<_> = rows
        .map(|s| (text(s, "stepId"), s["attempt"].as_i64().unwrap(), text(s, "status")))
        .collect();
    rows.sort();
    rows
}

#[tokio::test]
async fn f2_a_retry_goes_on_as_the_same_run_where_it_failed() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "first", "7");
    let run = waiting(&server, HALF, json!({"dir": dir.path()}), json!({})).await;
    assert_eq!(say(&server, &server.key, &run, "k", "yes").await.0, 200);
    let failed = server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!((&failed["status"], &failed["nextAction"]), (&json!("failed"), &json!("REPAIR")));
    for (n, word, code, status) in [(1, "second", "8", "failed"), (2, "third", "0", "succeeded")] {
        put(dir.path(), word, code);
        let (accepted, answer) = retry(&server, &run).await;
        assert_eq!(
            (accepted, &answer["newRunId"], &answer["workflowID"], &answer["fromStep"]),
            (202, &run["runId"], &run["workflowID"], &json!("ExecuteST")),
            "{answer}"
        );
        let end = server.wait_terminal(&text(&run, "runId")).await;
        assert_eq!((&end["status"], &end["retryCount"]), (&json!(status), &json!(n)), "{end}");
    }
    let seen = attempts(&server, &run).await;
    let of = |n: usize| -> Vec<(i64, &str)> {
        let mut steps: Vec<&String> = seen.iter().map(|(step, ..)| step).collect();
        steps.dedup();
        let rows = seen.iter().filter(|(step, ..)| step == steps[n]);
        rows.map(|(_, attempt, status)| (*attempt, status.as_str())).collect()
    };
    let (one, other) = if of(0).len() == 1 { (of(0), of(1)) } else { (of(1), of(0)) };
    assert_eq!(one, [(1, "ok")], "what succeeded is not done again");
    assert_eq!(other, [(1, "failed"), (2, "failed"), (3, "ok")], "a new attempt and key each time");
    for (query, want) in [(TASKS, 4), (EXECUTIONS, 4), (APPROVALS, 1), (PROMPTS, 1), (DECISIONS, 1)]
    {
        assert_eq!(number(&sql, query, &run).await, want, "{query}");
    }
    let steps = "SELECT count(*) FROM app.run_steps WHERE run_id = $1 AND step_id = 'ExecuteST'";
    assert_eq!(number(&sql, steps, &run).await, 3, "each end is on record");
    let audit = "SELECT count(*) FROM app.audit a JOIN app.runs r ON r.workflow_id = a.target
                  WHERE r.id = $1 AND a.op = 'retry'";
    assert_eq!(number(&sql, audit, &run).await, 2);
    assert_eq!(retry(&server, &run).await.0, 409, "a success is not retried");
    assert_eq!(number(&sql, audit, &run).await, 2, "what is refused leaves no row");
    proven(&server).await;
}

#[tokio::test]
async fn f2_a_no_stays_a_no_and_a_retry_asks_anew() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "done", "0");
    let run = waiting(&server, HALF, json!({"dir": dir.path()}), json!({})).await;
    assert_eq!(say(&server, &server.key, &run, "k", "no").await.0, 200);
    server.wait_terminal(&text(&run, "runId")).await;
    let (status, answer) = retry(&server, &run).await;
    assert_eq!((status, &answer["fromStep"]), (202, &json!("DecideST")), "{answer}");
    prompt(&server, &run, "approve-plan-r2").await;
    assert_eq!(number(&sql, TASKS, &run).await, 0, "nothing starts without consent");
    let first = format!("/api/runs/{}/gates/approve-plan", text(&run, "runId"));
    assert_eq!(server.get(&first).await.1["state"], "RESOLVED", "the first answer stands");
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": "k"});
    assert_eq!(server.post(&format!("{first}-r2/reply"), &reply).await.0, 200);
    assert_eq!(server.wait_terminal(&text(&run, "runId")).await["status"], "succeeded");
    proven(&server).await;
}

/// The recorded prefix is replayed by whichever worker comes next, in the middle of a retry too.
#[tokio::test]
async fn f2_a_worker_that_is_lost_in_a_retry_loses_none_of_it() {
    let home = Home::new();
    let mut server = home.up();
    let sql = server.sql().await;
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "first", "7");
    let yaml =
        HALF.replace("id: half", "id: slow").replace("cat /data/word;", "sleep 2; cat /data/word;");
    let run = waiting(&server, &yaml, json!({"dir": dir.path()}), json!({})).await;
    assert_eq!(say(&server, &server.key, &run, "k", "yes").await.0, 200);
    server.wait_terminal(&text(&run, "runId")).await;
    put(dir.path(), "second", "0");
    assert_eq!(retry(&server, &run).await.0, 202);
    support::until("the retry executes", std::time::Duration::from_secs(30), async || {
        number(&sql, EXECUTIONS, &run).await == 3
    })
    .await;
    server.kill();
    let server = home.up();
    let end = server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!((&end["status"], &end["retryCount"]), (&json!("succeeded"), &json!(1)), "{end}");
    assert_eq!(number(&sql, TASKS, &run).await, 3, "the attempt kept its key");
    proven(&server).await;
}

/// A recipe that could not be compiled is compiled again, under a key of its own.
#[tokio::test]
async fn f2_a_plan_that_failed_to_compile_is_compiled_again() {
    let home = Home::new();
    let server = home.up();
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("later");
    let yaml = "id: listed
v: '1'
form: {type: object, properties: {dir: {type: string}}}
plan: {tasks: [{name: 'f-${item}', each: '${glob(form.dir, \"*\")}', value: '${item}'}]}
";
    let form = json!({"dir": gone});
    let run = server.run_recipe(yaml, form, json!({})).await;
    let failed = server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(failed["status"], "failed", "{failed}");
    std::fs::create_dir(&gone).unwrap();
    std::fs::write(gone.join("a.txt"), "a").unwrap();
    let (status, answer) = retry(&server, &run).await;
    assert_eq!((status, &answer["fromStep"]), (202, &json!("CompileST")), "{answer}");
    let end = server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    proven(&server).await;
}

/// Whoever is asked, the run goes on with the code that recorded its steps.
#[tokio::test]
async fn a_retry_keeps_the_version_that_recorded_its_steps_and_is_refused_where_nobody_has_it() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "first", "7");
    let run = waiting(&server, HALF, json!({"dir": dir.path()}), json!({})).await;
    assert_eq!(say(&server, &server.key, &run, "k", "yes").await.0, 200);
    let id = text(&run, "runId");
    assert_eq!(server.wait_terminal(&id).await["status"], "failed");
    let workflow = text(&run, "workflowID");
    let recorded = async |version: &str| {
        sqlx::query(
            "UPDATE dbos.workflow_status SET application_version = $2 WHERE workflow_uuid = $1",
        )
        .bind(&workflow)
        .bind(version)
        .execute(&sql)
        .await
        .unwrap();
    };
    let version =
        "SELECT application_version FROM dbos.workflow_status WHERE queue_name = 'intentQ'";
    let own = texts(&sql, version).await.concat();
    recorded("0.0.0-w1").await;
    let (status, refused) = retry(&server, &run).await;
    assert_eq!((status, &refused["code"]), (409, &json!("state_conflict")), "{refused}");
    let why = text(&refused, "error");
    assert!(why.contains("version 0.0.0-w1, which no live worker has"), "{why}");
    assert_eq!(server.get(&format!("/api/runs/{id}")).await.1["status"], "failed");
    // Its recorded steps are copied into no run of another version either.
    let fork = |step: i32| json!({"actor": "a", "reason": "r", "stepN": step});
    let path = format!("/api/ops/wf/{workflow}/fork");
    let (status, refused) = server.post(&path, &fork(1)).await;
    assert_eq!(status, 409, "{refused}");
    assert!(text(&refused, "error").contains("fork it from step 0"), "{refused}");
    let (status, forked) = server.post(&path, &fork(0)).await;
    assert_eq!(status, 202, "{forked}");
    // Where a worker of that version lives, it is that one's.
    sqlx::query(
        "INSERT INTO app.executors (id, host_id, pid, app_version, heartbeat_at)
         VALUES ('ex-0000000000000000', 'elsewhere', 1, '0.0.0-w1', clock_timestamp() + interval '1 hour')",
    )
    .execute(&sql)
    .await
    .unwrap();
    assert_eq!(retry(&server, &run).await.0, 202);
    let kept = format!(
        "SELECT application_version FROM dbos.workflow_status WHERE workflow_uuid = '{workflow}'"
    );
    assert_eq!(texts(&sql, &kept).await, ["0.0.0-w1"]);
    put(dir.path(), "second", "0");
    recorded(&own).await;
    assert_eq!(server.wait_terminal(&id).await["status"], "succeeded");
}
