//! Where the known implementation of this design fails, and ours must not: the last section of the
//! contract, failure by failure. (A cancel at the gate is in gates.rs, what bad input leaves behind
//! in http/bodies.rs and its neighbours, each proof made to fail in proofs.rs; that no run takes two seconds
//! is measured by the bench `run_latency`.)
//!
//! One file: the rows of one section, in its order.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_tests::{Home, Server, processes_mentioning, row_counts, superuser, tamper, text};
use serde_json::{Value, json};
use sqlx::{Connection, PgPool};
use support::lose_lead;

const GATED: &str = "
id: gated
v: '1'
plan:
  gate: approve-plan
  tasks: [{name: t, exec: {run: 'echo ran', timeout: 30s}}]
";

async fn waiting(server: &Server, run_key: &str) -> Value {
    let run = server.run_recipe(GATED, json!({}), json!({"runKey": run_key})).await;
    server.wait_for(&text(&run, "runId"), "at its gate", |h| h["status"] == "waiting_input").await
}

async fn approve(server: &Server, run: &Value) {
    let path = format!("/api/runs/{}/approve-plan", text(run, "runId"));
    let (status, answer) = server.post(&path, &json!({"approvedBy": "ann"})).await;
    assert_eq!(status, 202, "{answer}");
}

/// Polls a query that takes one text until it yields `want`; fails after half a minute.
async fn wait_sql<T>(sql: &PgPool, query: &'static str, parameter: &str, want: T)
where
    T: PartialEq
        + std::fmt::Debug
        + Send
        + Unpin
        + for<'r> sqlx::Decode<'r, sqlx::Postgres>
        + sqlx::Type<sqlx::Postgres>,
{
    let watch = Stopwatch::start();
    loop {
        let seen: T = sqlx::query_scalar(query).bind(parameter).fetch_one(sql).await.unwrap();
        if seen == want {
            return;
        }
        assert!(watch.elapsed() < Duration::from_secs(30), "{query}: want {want:?}, got {seen:?}");
        clock::sleep(Duration::from_millis(20)).await;
    }
}

/// The sandboxes that were started for a run, in order.
async fn sandboxes(sql: &PgPool, run: &Value) -> Vec<String> {
    sqlx::query_scalar(
        "SELECT e.sandbox_id FROM app.sbx_executions e JOIN app.sbx_runs s USING (task_key)
          WHERE s.run_id = $1 ORDER BY e.started_at",
    )
    .bind(text(run, "runId"))
    .fetch_all(sql)
    .await
    .unwrap()
}

#[tokio::test]
async fn a_run_at_its_gate_survives_fifteen_killed_workers_and_goes_on_with_one_reply() {
    let home = Home::new();
    let mut server = home.up();
    let run = waiting(&server, "a").await;
    let workflow = text(&run, "workflowID");
    for restart in 1..=15 {
        server.kill();
        server = home.up();
        let sql = server.sql().await;
        let me = server.pid();
        // As if the seconds had passed after which a silent worker is dead.
        sqlx::query("UPDATE app.executors SET heartbeat_at = heartbeat_at - interval '1 minute' WHERE state = 'live' AND pid <> $1")
            .bind(me)
            .execute(&sql)
            .await
            .unwrap();
        lose_lead(&sql).await;
        wait_sql(
            &sql,
            "SELECT w.status || ' by ' || e.pid FROM dbos.workflow_status w LEFT JOIN app.executors e ON e.id = w.executor_id
              WHERE w.workflow_uuid = $1",
            &workflow,
            Some(format!("PENDING by {me}")),
        )
        .await;
        let (_, header) = server.get(&format!("/api/runs/{workflow}")).await;
        assert_eq!(header["status"], "waiting_input", "after {restart} restarts: {header}");
        sql.close().await;
    }
    approve(&server, &run).await;
    let end = server.wait_terminal(&workflow).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    let sql = server.sql().await;
    let attempts: i64 = sqlx::query_scalar(
        "SELECT recovery_attempts::bigint FROM dbos.workflow_status WHERE workflow_uuid = $1",
    )
    .bind(&workflow)
    .fetch_one(&sql)
    .await
    .unwrap();
    assert!(attempts > 11, "it really was recovered: {attempts}");
    assert_eq!(sandboxes(&sql, &run).await.len(), 1);
    let prompts: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM dbos.workflow_events_history WHERE workflow_uuid = $1 AND key = 'ui:approve-plan'",
    )
    .bind(&workflow)
    .fetch_one(&sql)
    .await
    .unwrap();
    assert_eq!(prompts, 1, "a prompt is emitted once, restarts included");
    let report = server.get("/api/proofs").await.1;
    assert_eq!(report["verdict"], "GO", "{report}");
}

#[tokio::test]
async fn unanswered_gates_do_not_block_their_tenant() {
    const FREE: &str = "id: free\nv: '1'\nplan: {tasks: [{name: t, value: x}]}\n";
    let home = Home::new();
    let server = home.up();
    // More than the known five, and more than any default of a pool or a queue.
    let mut gates = Vec::new();
    for n in 0..40 {
        gates.push(server.run_recipe(GATED, json!({}), json!({"runKey": n.to_string()})).await);
    }
    for run in &gates {
        server
            .wait_for(&text(run, "runId"), "at its gate", |h| h["status"] == "waiting_input")
            .await;
    }
    let run = server.run_recipe(FREE, json!({}), json!({})).await;
    let end = server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    approve(&server, &gates[39]).await;
    assert_eq!(server.wait_terminal(&text(&gates[39], "runId")).await["status"], "succeeded");
}

/// Every row of every table but the workers' heartbeats.
async fn all_rows(sql: &PgPool) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    for (table, _) in row_counts(sql).await {
        if table == "app.executors" {
            continue;
        }
        let query = sqlx::AssertSqlSafe(format!("SELECT to_jsonb(t)::text FROM {table} t"));
        let rows: Vec<String> = sqlx::query_scalar(query).fetch_all(sql).await.unwrap();
        all.insert(table, rows.into_iter().collect());
    }
    all
}

#[tokio::test]
async fn a_fork_executes_again_and_leaves_every_row_of_the_original_as_it_was() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, "a").await;
    let workflow = text(&run, "workflowID");
    approve(&server, &run).await;
    server.wait_terminal(&workflow).await;
    let (_, steps) = server.get(&format!("/api/ops/wf/{workflow}/steps")).await;
    let names: Vec<String> = steps.as_array().unwrap().iter().map(|s| text(s, "name")).collect();
    let at = |name: &str| {
        steps.as_array().unwrap().iter().find(|s| s["name"] == name).unwrap()["stepN"]
            .as_i64()
            .unwrap()
    };
    let (opened, resolved, executed) = (at("gate.open"), at("gate.resolve"), at("ExecuteST#1"));
    assert!(0 < opened && opened < resolved && resolved < executed, "{names:?}");
    let before = all_rows(&sql).await;
    let original = sandboxes(&sql, &run).await;
    let mut seen: BTreeSet<String> = original.iter().cloned().collect();
    for step in 0..=executed {
        let body = json!({"actor": "ann", "reason": "again", "stepN": step});
        let (status, answer) = server.post(&format!("/api/ops/wf/{workflow}/fork"), &body).await;
        assert_eq!(status, 202, "{answer}");
        let id = text(&answer, "newRunId");
        // Consent that was given before the step is inherited; a gate at or after it asks again.
        if step <= resolved {
            let fork =
                server.wait_for(&id, "at its gate", |h| h["status"] == "waiting_input").await;
            assert_eq!(
                sandboxes(&sql, &fork).await.len(),
                0,
                "step {step}: nothing before consent"
            );
            approve(&server, &fork).await;
        }
        let end = server.wait_terminal(&id).await;
        assert_eq!(end["status"], "succeeded", "step {step}: {end}");
        assert_ne!(end["runId"], run["runId"]);
        let fresh = sandboxes(&sql, &end).await;
        assert_eq!(fresh.len(), 1, "step {step}: it really executes");
        assert!(fresh.into_iter().all(|s| seen.insert(s)), "step {step}: in a sandbox of its own");
    }
    assert_eq!(sandboxes(&sql, &run).await, original);
    let after = all_rows(&sql).await;
    for (table, rows) in &before {
        let gone: Vec<&String> = rows.difference(&after[table]).collect();
        assert!(gone.is_empty(), "{table} lost or changed {gone:#?}");
    }
    let report = server.get("/api/proofs").await.1;
    assert_eq!(report["verdict"], "GO", "{report}");
}

#[tokio::test]
async fn a_second_retry_works_and_each_really_runs_the_command_again() {
    // What the command does depends on a file that this test changes between the runs.
    let recipe = "
id: verdict
v: '1'
form: {type: object, properties: {dir: {type: string}}}
plan:
  tasks: [{name: t, files: [{from: '${form.dir}', to: /data, live: true}], exec: {run: 'cat /data/word; exit $(cat /data/code)', timeout: 30s}}]
";
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let dir = tempfile::tempdir().unwrap();
    let say = |word: &str, code: &str| {
        std::fs::write(dir.path().join("word"), word).unwrap();
        std::fs::write(dir.path().join("code"), code).unwrap();
    };
    say("first", "7");
    let run = server.run_recipe(recipe, json!({"dir": dir.path()}), json!({})).await;
    let path = format!("/api/runs/{}", text(&run, "runId"));
    let mut end = server.wait_terminal(&text(&run, "runId")).await;
    for (n, (word, code, status)) in
        [("second", "8", "failed"), ("third", "9", "failed"), ("fourth", "0", "succeeded")]
            .into_iter()
            .enumerate()
    {
        assert_eq!((&end["status"], &end["retryCount"]), (&json!("failed"), &json!(n)), "{end}");
        say(word, code);
        let (accepted, answer) =
            server.request("POST", &format!("{path}/retry"), Some(&server.key), None).await;
        assert_eq!(
            (accepted, &answer["accepted"], &answer["newRunId"]),
            (202, &json!(true), &run["runId"]),
            "{answer}"
        );
        end = server.wait_terminal(&text(&run, "runId")).await;
        assert_eq!(end["status"], status, "{word}: {end}");
    }
    let said: Vec<(i32, String, i32)> = sqlx::query_as(
        "SELECT attempt, response->>'stdout', (response->>'exit')::int FROM app.sbx_runs
          WHERE run_id = $1 ORDER BY attempt",
    )
    .bind(text(&run, "runId"))
    .fetch_all(&sql)
    .await
    .unwrap();
    let want = [(1, "first", 7), (2, "second", 8), (3, "third", 9), (4, "fourth", 0)];
    assert_eq!(said, want.map(|(attempt, word, code)| (attempt, word.to_owned(), code)));
    let boxes = sandboxes(&sql, &end).await;
    let boxes: BTreeSet<String> = boxes.into_iter().collect();
    assert_eq!(boxes.len(), 4, "each attempt really ran, in a sandbox of its own: {boxes:?}");
    let (status, answer) =
        server.request("POST", &format!("{path}/retry"), Some(&server.key), None).await;
    assert_eq!(
        (status, &answer["code"]),
        (409, &json!("state_conflict")),
        "a success is not retried: {answer}"
    );
    let report = server.get("/api/proofs").await.1;
    assert_eq!(report["verdict"], "GO", "{report}");
}

#[tokio::test]
async fn a_second_worker_leaves_the_first_ones_live_work_alone() {
    const SLOW: &str = "id: slow\nv: '1'\nplan: {tasks: [{name: s, exec: {run: 'sleep 4; echo woke', timeout: 60s}}]}\n";
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = server.run_recipe(SLOW, json!({}), json!({})).await;
    let id = text(&run, "runId");
    wait_sql(
        &sql,
        "SELECT count(*) FROM app.remote_execution_sessions WHERE run_id = $1 AND state = 'EXECUTING'",
        &id,
        1_i64,
    )
    .await;
    let second = Server::start(&home, &["worker"], &[]);
    assert_eq!(second.url, "worker ready");
    // It is up, has looked for orphans, and beats.
    wait_sql(
        &sql,
        "SELECT count(*) FROM app.executors WHERE state = 'live' AND (pid::text <> $1 OR heartbeat_at > started_at)",
        &second.pid().to_string(),
        2_i64,
    )
    .await;
    let state: String =
        sqlx::query_scalar("SELECT state FROM app.remote_execution_sessions WHERE run_id = $1")
            .bind(&id)
            .fetch_one(&sql)
            .await
            .unwrap();
    assert_eq!(state, "EXECUTING", "it lives on beside the new worker");
    let end = server.wait_terminal(&id).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    assert_eq!(sandboxes(&sql, &run).await.len(), 1, "it was started once");
    let executors: Vec<i32> = sqlx::query_scalar(
        "SELECT DISTINCT e.pid FROM dbos.workflow_status w JOIN app.executors e ON e.id = w.executor_id
          WHERE w.workflow_uuid = $1 OR w.parent_workflow_id = $1",
    )
    .bind(text(&run, "workflowID"))
    .fetch_all(&sql)
    .await
    .unwrap();
    assert_eq!(executors, [server.pid()]);
    let attempts: i64 =
        sqlx::query_scalar("SELECT max(recovery_attempts)::bigint FROM dbos.workflow_status")
            .fetch_one(&sql)
            .await
            .unwrap();
    assert_eq!(attempts, 1, "nothing was recovered");
    drop(second);
}

#[tokio::test]
async fn a_refused_start_leaves_no_intent_and_reading_makes_no_run() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let recipe = "id: r\nv: '1'\nform: {type: object, required: [n], properties: {n: {type: integer}}}\nplan: {tasks: [{name: t, value: x}]}\n";
    let (status, imported) = server.post("/api/recipes/import", &json!({"yaml": recipe})).await;
    assert_eq!(status, 201);
    let before = row_counts(&sql).await;
    let (status, _) =
        server.post("/api/run", &json!({"recipeRef": imported["recipeRef"], "formData": {}})).await;
    assert_eq!(status, 400);
    let opts = json!({"queuePartitionKey": " "});
    let body = json!({"recipeRef": imported["recipeRef"], "formData": {"n": 1}, "opts": opts});
    assert_eq!(server.post("/api/run", &body).await.0, 400);
    for id in [
        format!("it_{}", "a".repeat(32)),
        format!("ih_{}", "a".repeat(64)),
        format!("rn_{}", "a".repeat(32)),
    ] {
        for tail in [
            "",
            "/steps",
            "/artifacts",
            "/gates",
            "/gates/approve-plan",
            "/interactions",
            "/proofs",
            "/repro",
            "/stream/status",
        ] {
            assert_eq!(server.get(&format!("/api/runs/{id}{tail}")).await.0, 404, "{id}{tail}");
        }
    }
    assert_eq!(row_counts(&sql).await, before);
}

#[tokio::test]
async fn a_proof_fails_when_the_ledger_lies() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = server
        .run_recipe("id: v\nv: '1'\nplan: {tasks: [{name: t, value: x}]}\n", json!({}), json!({}))
        .await;
    server.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(server.get("/api/proofs").await.1["verdict"], "GO");
    tamper(&sql, "UPDATE app.runs SET status = 'failed'").await;
    let (_, report) = server.get("/api/proofs").await;
    assert_eq!(report["verdict"], "NO_GO");
    let failed: Vec<String> = report["proofs"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|p| !p["rows"].as_array().unwrap().is_empty())
        .map(|p| text(p, "name"))
        .collect();
    assert_eq!(failed, ["runs_match_engine"], "{report}");
    assert_eq!(home.run(&["prove", "--json"]).status.code(), Some(1));
}

#[tokio::test]
async fn every_status_has_its_check() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = server
        .run_recipe(
            "id: v\nv: '1'\nplan: {tasks: [{name: t, exec: {run: 'true'}}]}\n",
            json!({}),
            json!({}),
        )
        .await;
    server.wait_terminal(&text(&run, "runId")).await;
    // Replica mode leaves out the triggers: what is tested is the CHECK below them.
    for statement in [
        "UPDATE app.runs SET status = 'bogus'",
        "UPDATE app.runs SET next_action = 'bogus'",
        "UPDATE app.run_steps SET status = 'bogus'",
        "UPDATE app.sbx_runs SET err_code = 'BOGUS'",
        "UPDATE app.remote_execution_sessions SET state = 'BOGUS'",
        "UPDATE app.secure_wipe_evidence SET wipe_status = 'bogus'",
        "UPDATE app.recipe_versions SET status = 'bogus'",
        "UPDATE app.executors SET state = 'bogus'",
        "UPDATE app.artifacts SET kind = 'bogus'",
        "UPDATE app.artifacts SET sha256 = 'bogus'",
        "UPDATE app.intents SET origin = 'bogus'",
        "UPDATE app.runs SET origin = 'bogus'",
        "UPDATE app.run_steps SET origin = 'bogus'",
        "UPDATE app.artifacts SET origin = 'bogus'",
        "UPDATE app.sbx_runs SET origin = 'bogus'",
    ] {
        let mut conn = superuser(&sql).await;
        let mut tx = conn.begin().await.unwrap();
        sqlx::query("SET LOCAL session_replication_role = 'replica'")
            .execute(&mut *tx)
            .await
            .unwrap();
        let error = sqlx::query(statement).execute(&mut *tx).await.expect_err(statement);
        let code = error.as_database_error().and_then(|e| e.code().map(|c| c.into_owned()));
        assert_eq!(code.as_deref(), Some("23514"), "{statement}: {error}");
    }
    for statement in [
        "UPDATE app.runs SET status = 'running'",
        "DELETE FROM app.run_steps",
        "UPDATE app.artifacts SET size = 1",
        "UPDATE app.sbx_runs SET response = NULL, err_code = NULL",
        "DELETE FROM app.audit",
        "UPDATE app.secure_wipe_evidence SET reason = 'x'",
    ] {
        let done = sqlx::query(statement).execute(&sql).await;
        let refused = match &done {
            Ok(done) => done.rows_affected() == 0,
            Err(error) => error
                .as_database_error()
                .and_then(|e| e.code().map(|c| c == "23001"))
                .unwrap_or(false),
        };
        assert!(refused, "history is append-only: {statement}: {done:?}");
    }
}

/// The sockets that a process has open, by inode.
fn sockets(pid: i32) -> BTreeSet<String> {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .filter_map(|link| {
            link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned)
        })
        .collect()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[tokio::test]
async fn nothing_listens_but_the_address_that_was_asked_for() {
    let home = Home::new();
    let server = home.up();
    let run = server
        .run_recipe(
            "id: v\nv: '1'\nplan: {tasks: [{name: t, exec: {run: sleep 2}}]}\n",
            json!({}),
            json!({}),
        )
        .await;
    let sql = server.sql().await;
    let live = "SELECT count(*) FROM app.remote_execution_sessions WHERE run_id = $1 AND state = 'EXECUTING'";
    wait_sql(&sql, live, &text(&run, "runId"), 1_i64).await;
    let mut family: BTreeSet<i32> = processes_mentioning(&home.path().to_string_lossy())
        .into_iter()
        .map(|(pid, _)| pid)
        .collect();
    family.insert(server.pid());
    let everybody: Vec<i32> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    loop {
        let more: Vec<i32> = everybody
            .iter()
            .copied()
            .filter(|pid| {
                !family.contains(pid) && parent(*pid).is_some_and(|p| family.contains(&p))
            })
            .collect();
        if more.is_empty() {
            break;
        }
        family.extend(more);
    }
    assert!(family.len() > 3, "server, database and its processes: {family:?}");
    let ours: BTreeSet<String> = family.iter().flat_map(|pid| sockets(*pid)).collect();
    let mut listening = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp", "/proc/net/udp6"] {
        if !Path::new(table).exists() {
            continue;
        }
        for line in std::fs::read_to_string(table).unwrap().lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // 0A is LISTEN; a bound UDP socket has no other state to wait in.
            let waits = table.contains("udp") || fields[3] == "0A";
            if waits && ours.contains(fields[9]) {
                listening.push(format!("{table} {}", fields[1]));
            }
        }
    }
    let port: u16 = server.url.rsplit_once(':').unwrap().1.parse().unwrap();
    assert_eq!(listening, [format!("/proc/net/tcp 0100007F:{port:04X}")]);
    server.wait_terminal(&text(&run, "runId")).await;
}
