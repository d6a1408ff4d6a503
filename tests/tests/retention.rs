//! Rooms that empty: erasures by hand, retention, and what is left of whom.

use crate::hooks::{github, hook, send};
use crate::support;

use std::process::Stdio;
use std::time::Duration;

use cofferdam_tests::{Home, Server, old_runs, text};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor, PgPool};
use support::{assert_proven, code, count, said, texts, until};

/// What no row may hold once it is erased.
const MARK: &str = "zq-marker-7f3a-of-a-tenant";

/// Its form's word goes everywhere: plan, environment, streams, files, a link, a report, outputs, a condition, a failure.
const MARKED: &str = r#"
id: marked
v: "1"
form: {type: object, properties: {word: {type: string}}}
plan:
  gate: approve-plan
  tasks:
    - name: make
      limits: {mem_mb: 300}
      exec:
        timeout: 60s
        env: {WORD: "${form.word}"}
        run: |
          echo "$WORD"; echo "$WORD" >&2
          seq -f "$WORD %g" 2000 > big.txt; ln -s "$WORD" link
          echo '<testsuite name="s"><testcase name="c" time="1"><failure message="'"$WORD"'">'"$WORD"'</failure></testcase></testsuite>' > junit.xml
          echo '{"v": "'"$WORD"'"}' > out.json
      artifacts: [big.txt, link]
      reports: [junit.xml]
      outputs: out.json
    - name: use
      needs: [make]
      when: {value: "${tasks.make.outputs.v}", is: nothing}
      exec: {timeout: 60s, run: "true"}
    - name: fail
      needs: [make]
      exec: {timeout: 60s, run: "echo ${tasks.make.outputs.v | sh}; exit 7"}
"#;

const SMALL: &str = "id: small\nv: \"1\"\nform: {type: object, properties: {n: {type: string}}}\nplan:\n  tasks:\n    - name: t\n      exec: {run: \"head -c 20000 /dev/zero | tr '\\\\0' x > same.bin; echo ${form.n | sh}\", timeout: 60s}\n      artifacts: [same.bin]\n";

/// Every column of both schemas that holds the text.
async fn holding(sql: &PgPool, mark: &str) -> Vec<String> {
    let columns: Vec<(String, String, String)> = sqlx::query_as(
        "SELECT format('%I.%I', c.table_schema, c.table_name), format('%I', c.column_name), c.data_type::text
           FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
          WHERE c.table_schema IN ('app', 'dbos') AND t.table_type = 'BASE TABLE'
            AND c.data_type IN ('text', 'jsonb', 'json', 'bytea', 'ARRAY', 'character varying') ORDER BY 1, 2",
    )
    .fetch_all(sql)
    .await
    .unwrap();
    assert!(columns.len() > 200, "{}", columns.len());
    let mut found = Vec::new();
    for (table, column, kind) in columns {
        let condition = match kind.as_str() {
            "bytea" => format!("position(convert_to('{mark}', 'UTF8') IN {column}) > 0"),
            _ => format!("position('{mark}' IN {column}::text) > 0"),
        };
        let query = format!("SELECT count(*) FROM {table} WHERE {condition}");
        if count(sql, &query).await > 0 {
            found.push(format!("{table}.{column}"));
        }
    }
    found
}

pub async fn over(up: &Server, yaml: &str, form: Value, key: &str) -> String {
    let header = up.run_recipe(yaml, form, json!({"runKey": key})).await;
    let run = text(&header, "runId");
    up.wait_terminal(&run).await;
    run
}

async fn marked(up: &Server) -> String {
    let run = text(&up.run_recipe(MARKED, json!({"word": MARK}), json!({})).await, "runId");
    up.wait_for(&run, "waiting", |h| h["status"] == "waiting_input").await;
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": "k"});
    let path = format!("/api/runs/{run}/gates/approve-plan/reply");
    let (status, body) = up.post(&path, &reply).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(up.wait_terminal(&run).await["status"], "failed");
    run
}

/// The erasure of one run, once it is at rest: its engine and its webhooks end a moment after it.
pub async fn erase(up: &Server, run: &str, what: &str) -> Value {
    let body = json!({"content": what, "why": "a request of its author"});
    let path = format!("/api/runs/{run}/erase");
    let mut answer = (0, Value::Null);
    until("it is erased", Duration::from_secs(30), async || {
        answer = up.post(&path, &body).await;
        answer.0 != 409
    })
    .await;
    assert_eq!(answer.0, 200, "{}", answer.1);
    answer.1
}

pub async fn gone(up: &Server, path: &str) {
    let (status, body) = up.get(path).await;
    assert_eq!((status, &body["code"]), (410, &json!("erased")), "{path}: {body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_erased_is_in_no_column_of_any_table_and_its_record_stays() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let run = marked(&up).await;
    // A delivery says it too, and a schedule's or hook's record has no word of it.
    hook(&up, "push", "github", json!(["push"])).await;
    let body = json!({"after": MARK}).to_string();
    let (status, receipt) = send(&up, "push", &github(&body, "push"), &body).await;
    assert_eq!(status, 201, "{receipt}");
    let pushed = text(&receipt, "runId");
    assert_eq!(up.wait_terminal(&pushed).await["status"], "succeeded");
    let before = holding(&sql, MARK).await;
    for place in [
        "app.intents.inputs",
        "app.sbx_runs.request",
        "app.sbx_runs.response",
        "app.artifacts.inline",
        "app.blobs.bytes",
        "app.run_streams.chunk",
        "app.test_reports.report",
        "app.plan_approvals.parts",
        "app.human_gates.parts",
    ] {
        assert!(before.iter().any(|one| one == place), "{place} is not among {before:#?}");
    }
    let (_, artifacts) = up.get(&format!("/api/runs/{run}/artifacts")).await;
    let uri = text(&artifacts[1], "uri");
    let task = text(&artifacts[1], "taskKey");
    erase(&up, &run, "run").await;
    let output = home.run(&["erase", "run", &pushed, "--why", "a request of its author", "--json"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let after = holding(&sql, MARK).await;
    assert!(after.is_empty(), "{after:#?}");
    for path in [
        format!("/api/artifacts/{uri}"),
        format!("/api/runs/{run}/files"),
        format!("/api/runs/{run}/repro"),
        format!("/api/runs/{run}/gates"),
        format!("/api/runs/{run}/interactions"),
        format!("/api/runs/{run}/stream/all"),
        format!("/api/runs/{task}/stream/stdout"),
    ] {
        gone(&up, &path).await;
    }
    for (path, body) in [
        (format!("/api/runs/{run}/retry"), json!({})),
        (format!("/api/runs/{run}/erase"), json!({"content": "run", "why": "again"})),
    ] {
        let (status, body) = up.post(&path, &body).await;
        assert_eq!((status, &body["code"]), (410, &json!("erased")), "{path}: {body}");
    }
    let (status, rows) = up.get(&format!("/api/runs/{run}/erasures")).await;
    assert_eq!(status, 200, "{rows}");
    assert_eq!(rows.as_array().unwrap().len(), 2, "{rows}");
    for row in rows.as_array().unwrap() {
        assert_eq!(
            (&row["cause"], &row["why"]),
            (&json!("asked"), &json!("a request of its author")),
            "{row}"
        );
        assert!(row["bytes"].as_u64().unwrap() > 100, "{row}");
    }
    let shown = home.run(&["show", &run]);
    assert!(said(&shown).contains("output erased"), "{}", said(&shown));
    assert_eq!(code(&home.run(&["show", &run, "--json"])), 0);
    let hashes = "SELECT count(*) FROM app.artifacts WHERE erased_in IS NOT NULL AND sha256 ~ '^[a-f0-9]{64}$' AND size > 0";
    assert!(count(&sql, hashes).await > 8);
    let kept = texts(&sql, "SELECT DISTINCT id FROM app.recipe_versions").await;
    assert_eq!(kept, ["built"], "a draft that no other run and no hook names goes along");
    // What proofs of usage and of host directories compare is still there.
    let limits = "SELECT count(*) FROM app.sbx_runs WHERE request ? 'erased' AND request #>> '{sandbox,limits,memMB}' = '300'";
    assert_eq!(count(&sql, limits).await, 1);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_a_fork_and_inputs_of_a_removed_schedule_go_too() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let run = marked(&up).await;
    let (_, header) = up.get(&format!("/api/runs/{run}")).await;
    let flow = text(&header, "workflowID");
    let last = format!(
        "SELECT max(function_id)::bigint FROM dbos.operation_outputs WHERE workflow_uuid = '{flow}'"
    );
    let again = json!({"actor": "ada", "reason": "again", "stepN": count(&sql, &last).await});
    let (status, forked) = up.post(&format!("/api/ops/wf/{flow}/fork"), &again).await;
    assert_eq!(status, 202, "{forked}");
    let fork = text(&forked, "newRunId");
    up.wait_terminal(&fork).await;
    let schedule = json!({"recipeRef": {"id": "marked", "v": "1"}, "name": "yearly", "schedule": {"cron": "0 3 1 1 *", "inputs": {"word": MARK}}});
    let (status, row) = up.post("/api/schedules", &schedule).await;
    assert_eq!(status, 201, "{row}");
    assert!(holding(&sql, MARK).await.iter().any(|one| one == "app.triggers.spec"));
    // Copied steps have what the run's tasks said.
    let erase_output = json!({"content": "output", "why": "a request of its author"});
    until("it is refused for its fork", Duration::from_secs(30), async || {
        let (status, refused) = up.post(&format!("/api/runs/{run}/erase"), &erase_output).await;
        assert_eq!((status, &refused["code"]), (409, &json!("state_conflict")), "{refused}");
        refused["error"].as_str().is_some_and(|why| why.contains("fork"))
    })
    .await;
    assert_eq!(up.request("DELETE", "/api/schedules/yearly", Some(&up.key), None).await.0, 200);
    erase(&up, &run, "run").await;
    erase(&up, &fork, "output").await;
    let after = holding(&sql, MARK).await;
    assert!(after.is_empty(), "{after:#?}");
    let late = json!({"payload": {"choice": "no", "note": MARK}, "dedupeKey": "late"});
    let path = format!("/api/runs/{run}/gates/approve-plan/reply");
    let (status, refused) = up.post(&path, &late).await;
    assert_eq!((status, &refused["code"]), (410, &json!("erased")), "{refused}");
    assert!(holding(&sql, MARK).await.is_empty());
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn triggers_let_exactly_an_erasure_through() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let run = marked(&up).await;
    let refused = async |statements: &str| {
        let text = format!("BEGIN; {statements}; ROLLBACK");
        let mut conn = sql.acquire().await.unwrap();
        let failed = conn.execute(AssertSqlSafe(text)).await;
        let _ = conn.execute("ROLLBACK").await;
        let error = failed.expect_err(statements);
        let code =
            error.as_database_error().and_then(|e| e.code()).unwrap_or_default().into_owned();
        assert!(code.starts_with("23"), "{statements}: {error}");
    };
    let erasing = "SELECT set_config('cofferdam.erasure', 'on', true)";
    for table in
        ["intents", "sbx_runs", "artifacts", "human_interactions", "test_reports", "graph_events"]
    {
        refused(&format!("{erasing}; UPDATE app.{table} SET created_at = created_at")).await;
        refused(&format!("{erasing}; DELETE FROM app.{table}")).await;
        refused(&format!("DELETE FROM app.{table}")).await;
    }
    let own = format!(
        "INSERT INTO app.erasures (tenant_id, content, run_id, cause, key_id, reason, bytes, removed, origin)
         SELECT tenant_id, 'output', id, 'asked', 'k', 'why', 0, '{{}}', 'manual' FROM app.runs WHERE id = '{run}'; {erasing}"
    );
    for other in [
        "UPDATE app.sbx_runs SET response = '{}'",
        "UPDATE app.sbx_runs SET task_name = 'x'",
        "UPDATE app.artifacts SET sha256 = repeat('0', 64)",
        "UPDATE app.artifacts SET inline = 'x'",
        "UPDATE app.test_reports SET path = 'x'",
        "UPDATE app.graph_events SET event = '{}'",
    ] {
        refused(&format!("{own}; {other}")).await;
    }
    // The other content of the run stays.
    let mut tx = sql.begin().await.unwrap();
    for statement in own.split("; ") {
        tx.execute(AssertSqlSafe(statement.to_owned())).await.unwrap();
    }
    tx.execute("UPDATE app.sbx_runs SET attempt = attempt").await.unwrap();
    let (requests, responses): (i64, i64) = sqlx::query_as(
        "SELECT count(*) FILTER (WHERE request ? 'erased'), count(*) FILTER (WHERE response ? 'erased') FROM app.sbx_runs",
    )
    .fetch_one(&mut *tx)
    .await
    .unwrap();
    assert_eq!((requests, responses > 0), (0, true));
    tx.rollback().await.unwrap();
    // Once an erasure is written, nobody erases by it again.
    erase(&up, &run, "output").await;
    refused(&format!("{erasing}; UPDATE app.sbx_runs SET attempt = attempt")).await;
    refused("UPDATE app.erasures SET reason = 'x'").await;
    refused("DELETE FROM app.erasures").await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_goes_with_every_run_of_its_intent_and_shared_bytes_stay_with_whom_they_are_left()
{
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let first = over(&up, SMALL, json!({"n": MARK}), "a").await;
    let other = over(&up, SMALL, json!({"n": "else"}), "b").await;
    let (_, header) = up.get(&format!("/api/runs/{first}")).await;
    let path = format!("/api/ops/wf/{}/fork", text(&header, "workflowID"));
    let (status, forked) =
        up.post(&path, &json!({"actor": "ada", "reason": "again", "stepN": 0})).await;
    assert_eq!(status, 202, "{forked}");
    let fork = text(&forked, "newRunId");
    up.wait_terminal(&fork).await;
    erase(&up, &first, "output").await;
    let same =
        "SELECT a.uri FROM app.artifacts a WHERE a.run_id = $1 AND a.name = 'files/same.bin'";
    let uri = async |run: &str| -> String {
        sqlx::query_scalar(same).bind(run).fetch_one(&sql).await.unwrap()
    };
    let (mine, theirs) = (uri(&first).await, uri(&other).await);
    gone(&up, &format!("/api/artifacts/{mine}")).await;
    assert_eq!(
        up.get(&format!("/api/artifacts/{theirs}")).await.0,
        200,
        "other runs have the same bytes"
    );
    assert_eq!(up.get(&format!("/api/runs/{first}/repro")).await.0, 200, "its prompt is there");
    erase(&up, &first, "prompt").await;
    gone(&up, &format!("/api/runs/{fork}/repro")).await;
    assert_eq!(up.get(&format!("/api/runs/{other}/repro")).await.0, 200);
    assert!(
        count(&sql, "SELECT count(*) FROM app.intents WHERE jsonb_typeof(inputs) = 'string'").await
            == 1
    );
    for run in [&fork, &other] {
        erase(&up, run, "output").await;
    }
    let blobs = "SELECT count(*) FROM app.blobs b WHERE NOT EXISTS (SELECT FROM app.artifacts a WHERE a.sha256 = b.sha256 AND a.inline IS NULL AND a.erased_in IS NULL)";
    assert_eq!(count(&sql, blobs).await, 0, "the last one takes them along");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_works_and_another_tenants_are_not_erased() {
    let home = Home::new();
    let up = home.up();
    let yaml = "id: long\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      exec: {run: sleep 60, timeout: 90s}\n";
    let run = text(&up.run_recipe(yaml, json!({}), json!({})).await, "runId");
    let path = format!("/api/runs/{run}/erase");
    let body = json!({"content": "run", "why": "now"});
    let (status, refused) = up.post(&path, &body).await;
    assert_eq!((status, &refused["code"]), (409, &json!("state_conflict")), "{refused}");
    let (_, acme) = up.new_key(&json!({"tenant": "acme", "roles": ["admin"]})).await;
    assert_eq!(up.post_as(&acme, &path, &body).await.0, 404);
    let (_, auditor) = up.new_key(&json!({"tenant": "default", "roles": ["auditor"]})).await;
    assert_eq!(up.post_as(&auditor, &path, &body).await.0, 403);
    for bad in [
        json!({"content": "run"}),
        json!({"content": "run", "why": ""}),
        json!({"content": "all", "why": "x"}),
    ] {
        assert_eq!(up.post(&path, &bad).await.0, 400, "{bad}");
    }
    let cancel = format!("/api/runs/{run}");
    let (_, header) = up.get(&cancel).await;
    let on = format!("/api/ops/wf/{}/cancel", text(&header, "workflowID"));
    assert_eq!(up.post(&on, &json!({"actor": "ada", "reason": "enough"})).await.0, 202);
    up.wait_terminal(&run).await;
    erase(&up, &run, "run").await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_secret_leaves_its_hash_and_reason() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let put =
        json!({"value": "a-value-of-a-secret", "for": ["git.example"]}).to_string().into_bytes();
    let (status, row) = up.request("PUT", "/api/secrets/token", Some(&up.key), Some(put)).await;
    assert_eq!(status, 200, "{row}");
    let output = home.run(&["erase", "secret", "token", "--why", "it leaked"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_eq!(count(&sql, "SELECT count(*) FROM app.secrets WHERE sealed IS NOT NULL").await, 0);
    let kept = "SELECT count(*) FROM app.erasures WHERE secret = 'token' AND reason = 'it leaked' AND removed ->> 'sha256' ~ '^[a-f0-9]{64}$'";
    assert_eq!(count(&sql, kept).await, 1);
    let (status, again) = up.post("/api/secrets/token/erase", &json!({"why": "again"})).await;
    assert_eq!((status, &again["code"]), (410, &json!("erased")), "{again}");
    assert_eq!(up.post("/api/secrets/never/erase", &json!({"why": "again"})).await.0, 404);
    assert_proven(&home);
}

async fn retain(up: &Server, value: Value, version: u32) {
    let put = json!({"value": value, "expectedVersion": version, "scope": "global"})
        .to_string()
        .into_bytes();
    let (status, body) = up.request("PUT", "/api/config/retention", Some(&up.key), Some(put)).await;
    assert_eq!(status, 200, "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_collections_at_once_take_each_run_once_beside_running_work() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    old_runs::write(&sql, "acme", 3_000).await;
    assert_eq!(
        home.run_json(&["gc", "--json"])["erased"]["runs"],
        0,
        "without a rule nothing goes"
    );
    retain(&up, json!({"runs": 1000}), 0).await;
    let due = home.run_json(&["gc", "--dry-run", "--json"]);
    assert_eq!(
        (&due["due"][0]["tenant"], &due["due"][0]["runs"]),
        (&json!("acme"), &json!(2000)),
        "{due}"
    );
    let mut children: Vec<_> = (0..2)
        .map(|_| home.command(&["gc", "--json"]).stdout(Stdio::piped()).spawn().unwrap())
        .collect();
    for n in 0..3 {
        over(&up, SMALL, json!({"n": "beside"}), &format!("beside-{n}")).await;
    }
    let mut runs = 0;
    for child in children.drain(..) {
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 0, "{}", said(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        runs += report["erased"]["runs"].as_u64().unwrap();
    }
    assert_eq!(runs, 2000);
    assert_eq!(count(&sql, "SELECT count(*) FROM app.erasures").await, 4000);
    let oldest = "SELECT count(*) FROM app.runs r WHERE tenant_id = 'acme' AND (erased_at IS NOT NULL) <> (finished_at <= (
        SELECT finished_at FROM app.runs WHERE tenant_id = 'acme' ORDER BY finished_at DESC OFFSET 1000 LIMIT 1))";
    assert_eq!(count(&sql, oldest).await, 0, "the oldest go");
    assert_eq!(
        count(&sql, "SELECT count(*) FROM app.blobs WHERE octet_length(bytes) = 3200").await,
        1000
    );
    let due = home.run_json(&["gc", "--dry-run", "--json"]);
    assert_eq!(due["due"][0]["runs"], 0, "{due}");
    let used = home.run_json(&["df", "--json"]);
    let acme = used["tenants"].as_array().unwrap().iter().find(|t| t["tenant"] == "acme").unwrap();
    assert_eq!(
        (&acme["runs"], &acme["erasedRuns"], &acme["artifacts"]["count"]),
        (&json!(3000), &json!(2000), &json!(7000))
    );
    assert!(used["databaseBytes"].as_u64().unwrap() > 1_000_000, "{used}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_is_killed_goes_on_where_it_was() {
    let home = Home::new();
    let mut up = home.up();
    let sql = up.sql().await;
    old_runs::write(&sql, "acme", 4_000).await;
    retain(&up, json!({"ageDays": 36500, "contentMB": 1}), 0).await;
    let child = home.command(&["gc"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("it has begun", Duration::from_secs(60), async || {
        count(&sql, "SELECT count(*) FROM app.erasures").await > 0
    })
    .await;
    sql.close().await;
    up.kill();
    let _ = child.wait_with_output();
    let up = home.up();
    let sql = up.sql().await;
    let halves = "SELECT count(*) FROM app.runs WHERE erased_at IS NULL AND id IN (SELECT run_id FROM app.erasures)";
    assert_eq!(count(&sql, halves).await, 0, "a run is erased whole or not at all");
    let output = home.run(&["gc"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let left =
        "SELECT coalesce(sum(a.size), 0)::bigint FROM app.artifacts a WHERE a.erased_in IS NULL";
    let bytes = count(&sql, left).await;
    assert!((1_000_000..=1_048_576).contains(&bytes), "{bytes}");
    let twice = "SELECT count(*) FROM (SELECT run_id, content FROM app.erasures GROUP BY 1, 2 HAVING count(*) > 1) x";
    assert_eq!(count(&sql, twice).await, 0);
}

/// What is asked at a start, at a new run and by each collection reads an index, however many old runs there are.
#[tokio::test(flavor = "multi_thread")]
async fn old_runs_cost_nothing_at_a_start_nor_a_new_run() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    old_runs::write(&sql, "acme", 20_000).await;
    for query in [
        "SELECT workflow_id FROM app.runs WHERE NOT app.is_over(status)",
        "SELECT id FROM app.runs WHERE tenant_id = 'acme' ORDER BY created_at DESC LIMIT 20",
        "SELECT id FROM app.runs WHERE tenant_id = 'acme' AND erased_at IS NULL AND finished_at IS NOT NULL AND finished_at <= now() - interval '1 day' ORDER BY finished_at LIMIT 500",
        "SELECT 1 FROM app.artifacts WHERE sha256 = repeat('0', 64) AND inline IS NULL AND object_id IS NULL AND erased_in IS NULL",
        "SELECT id FROM app.stored_objects WHERE store = repeat('0', 32) AND erased_at IS NOT NULL AND file_gone_at IS NULL ORDER BY id LIMIT 256",
        "SELECT workflow_uuid FROM dbos.workflow_status WHERE queue_name = 'intentQ' AND status = 'ENQUEUED' AND queue_partition_key IS NULL ORDER BY priority, created_at LIMIT 5",
        "SELECT 1 FROM app.erasures WHERE run_id = 'rn_0' AND content = 'output'",
        "SELECT task_key FROM app.remote_execution_sessions WHERE ended_at IS NULL AND task_key = 'x'",
    ] {
        let plan: Vec<String> = sqlx::query_scalar(AssertSqlSafe(format!("EXPLAIN {query}")))
            .fetch_all(&sql)
            .await
            .unwrap();
        let plan = plan.join("\n");
        let whole = ["runs", "artifacts", "workflow_status", "remote_execution_sessions"];
        assert!(
            !whole.iter().any(|table| plan.contains(&format!("Seq Scan on {table}"))),
            "{query}: {plan}"
        );
    }
}
