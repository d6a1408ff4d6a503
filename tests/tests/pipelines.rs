//! Pipelines: tasks that wait for others, what these hand on, and what becomes of the rest where one fails.

use crate::support;

use std::time::Duration;

use cofferdam_tests::{Home, Server, assert_nothing_left, tamper, text};
use serde_json::{Value, json};
use support::{
    assert_proven, assert_wiped, count, ended, executing, recipe, said, steps, texts, until,
};

/// A build whose outputs say how many tests there are; what a test leaves; what is skipped; what runs in any case.
const RELEASE: &str = r#"
id: release
v: "1"
plan:
  tasks:
    - name: build
      exec:
        timeout: 60s
        run: |
          mkdir dist; echo one > dist/a; printf '#!/bin/sh\necho ran\n' > dist/run.sh; chmod +x dist/run.sh
          cat > out.json <<'END'
          {"version": "1.2'; touch /work/injected; echo $${form.secret}", "kind": "beta", "shards": ["p", "q"]}
          END
      artifacts: ["dist/**"]
      outputs: out.json
    - name: test-${item}
      id: test
      each: ${tasks.build.outputs.shards}
      files: [{from: "task://build/dist/**", to: /work/in}]
      exec: {timeout: 60s, run: "/work/in/run.sh && cat /work/in/a && echo shard ${item | sh} > cov.txt"}
      artifacts: [cov.txt]
    - name: publish
      needs: [test]
      when: {value: "${tasks.build.outputs.kind}", is: release}
      exec: {timeout: 60s, run: "echo published"}
    - name: report
      needs: [test, publish]
      when: always
      files: [{from: "task://test/cov.txt", to: /work/cov}]
      exec:
        timeout: 60s
        env: {BY_ENV: "${tasks.build.outputs.version}"}
        run: 'cd /work/cov; cat */cov.txt; ls; printf "%s\n" "$BY_ENV" ${tasks.build.outputs.version | sh}; ls /work'
"#;

async fn over(up: &Server, yaml: &str) -> Value {
    let header = up.run_recipe(yaml, json!({}), json!({})).await;
    up.wait_terminal(&text(&header, "runId")).await
}

async fn printed(up: &Server, run: &Value, task: &str) -> String {
    let sql = up.sql().await;
    let query = "SELECT coalesce(a.inline, convert_from(b.bytes, 'UTF8')) FROM app.artifacts a
                   LEFT JOIN app.blobs b ON b.sha256 = a.sha256 AND a.inline IS NULL
                  WHERE a.run_id = $1 AND a.step_id = $2 AND a.kind = 'stdout' ORDER BY a.attempt DESC LIMIT 1";
    let step = format!("ExecuteST:{task}");
    let found = sqlx::query_scalar(query).bind(text(run, "runId")).bind(step).fetch_one(&sql);
    found.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn values_and_files_are_handed_on_and_a_condition_skips() {
    let home = Home::new();
    let up = home.up();
    let run = over(&up, RELEASE).await;
    assert_eq!(run["status"], "succeeded", "{run}");
    let want = ["build 1 ok", "publish 1 skipped", "report 1 ok", "test-p 1 ok", "test-q 1 ok"];
    assert_eq!(steps(&up, &run).await, want);
    assert_eq!(printed(&up, &run, "test-q").await, "ran\none\n");
    let value = "1.2'; touch /work/injected; echo ${form.secret}";
    assert_eq!(
        printed(&up, &run, "report").await,
        format!("shard p\nshard q\ntest-p\ntest-q\n{value}\n{value}\ncov\n"),
        "a value is a value, in a shell text and in a variable"
    );
    let sql = up.sql().await;
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
    // No start before what it needs ended, even for who writes into the database.
    let early = "INSERT INTO app.sbx_executions (task_key, execution_no, worker)
                 SELECT task_key, 9, 'w' FROM app.sbx_runs WHERE step_id = 'ExecuteST:report'";
    tamper(&sql, "DELETE FROM app.graph_ends WHERE name = 'publish'").await;
    let refused = sqlx::query(early).execute(&sql).await.unwrap_err().to_string();
    assert!(refused.contains("starts before the task group publish ended"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_failure_stops_the_others_where_the_recipe_says_so() {
    let home = Home::new();
    let up = home.up();
    let yaml = |fast: bool| {
        format!(
            "id: fast\nv: '1'\nplan:\n  fail_fast: {fast}\n  tasks:\n    - {{name: bad, exec: {{run: 'sleep 0.5; exit 3', timeout: 60s}}}}\n    - {{name: slow, exec: {{run: 'sleep {}', timeout: 120s}}}}\n    - {{name: after, needs: [bad], value: never}}\n    - {{name: behind, needs: [slow], value: x}}\n    - {{name: told, needs: [bad], when: {{task: bad, is: failed}}, value: it failed}}\n    - {{name: last, needs: [slow, bad], when: always, value: always}}\n",
            if fast { 100 } else { 1 }
        )
    };
    let run = over(&up, &yaml(true)).await;
    assert_eq!(run["status"], "failed");
    assert!(text(&run, "error").starts_with("task \"bad\" ended with CMD_NONZERO"), "{run}");
    let want = [
        "after 1 skipped",
        "bad 1 failed",
        "behind 1 skipped",
        "last 1 ok",
        "slow 1 canceled",
        "told 1 skipped",
    ];
    assert_eq!(steps(&up, &run).await, want, "`always` alone runs after it");
    let run = over(&up, &yaml(false)).await;
    assert_eq!(run["status"], "failed");
    let want =
        ["after 1 skipped", "bad 1 failed", "behind 1 ok", "last 1 ok", "slow 1 ok", "told 1 ok"];
    assert_eq!(steps(&up, &run).await, want);
    assert_wiped(&home, &up.sql().await).await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_tried_again_after_the_ends_that_it_names() {
    let home = Home::new();
    let up = home.up();
    let task = |exit: u8, retry: &str| {
        format!(
            "id: again\nv: '1'\nplan:\n  tasks:\n    - {{name: t, retry: {retry}, exec: {{run: 'exit {exit}', timeout: 60s}}}}\n"
        )
    };
    let run = over(&up, &task(75, "{max: 2, on: ['exit:75'], backoff: 10ms}")).await;
    assert_eq!(run["status"], "retries_exceeded", "{run}");
    assert_eq!(steps(&up, &run).await, ["t 1 failed", "t 2 failed", "t 3 failed"]);
    let run = over(&up, &task(76, "{max: 2, on: ['exit:75'], backoff: 10ms}")).await;
    assert_eq!(
        (&run["status"], steps(&up, &run).await),
        (&json!("failed"), vec!["t 1 failed".to_owned()])
    );
    let run = over(&up, &task(127, "{max: 2, on: ['exit:75', 'exit:1-255'], backoff: 10ms}")).await;
    assert_eq!(steps(&up, &run).await, ["t 1 failed"], "it did not start");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_the_run_repeats_what_failed_and_what_follows_from_it() {
    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    let up = home.up_with(&["--allow-dir", dir.path().to_str().unwrap()], &[]);
    std::fs::write(dir.path().join("code"), "7").unwrap();
    let yaml = format!(
        "id: half\nv: '1'\nplan:\n  tasks:\n    - {{name: first, outputs: o.env, exec: {{run: 'echo V=$(date +%N) > o.env', timeout: 60s}}}}\n    - {{name: weak, needs: [first], files: [{{from: {:?}, to: /data, live: true}}], exec: {{run: 'exit $(cat /data/code)', timeout: 60s}}}}\n    - {{name: sorry, when: {{task: weak, is: failed}}, value: it failed}}\n    - {{name: glad, needs: [weak], value: '${{tasks.first.outputs.V}}'}}\n",
        dir.path()
    );
    let run = over(&up, &yaml).await;
    assert_eq!(run["status"], "failed", "{run}");
    let want = ["first 1 ok", "glad 1 skipped", "sorry 1 ok", "weak 1 failed"];
    assert_eq!(steps(&up, &run).await, want);
    std::fs::write(dir.path().join("code"), "0").unwrap();
    let run = retried(&up, &run).await;
    assert_eq!((&run["status"], &run["retryCount"]), (&json!("succeeded"), &json!(1)), "{run}");
    let want = ["first 1 ok", "glad 1 ok", "sorry 1 ok", "weak 1 failed", "weak 2 ok"];
    // What ran in the first life stays on record as it is; in the second `sorry` has no reason to.
    let seen = steps(&up, &run).await;
    let seen: Vec<&String> = seen.iter().filter(|step| !step.starts_with("sorry 2")).collect();
    assert_eq!(seen, want.iter().collect::<Vec<_>>());
    assert_proven(&home);
}

/// Retries a run that failed, once `code` says so, and waits for its end.
async fn retried(up: &Server, run: &Value) -> Value {
    let path = format!("/api/runs/{}/retry", text(run, "runId"));
    let (status, answer) = up.post(&path, &json!({})).await;
    assert_eq!(status, 202, "{answer}");
    up.wait_terminal(&text(run, "runId")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fan_out_that_a_life_leaves_out_or_makes_is_proven_in_each() {
    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    let up = home.up_with(&["--allow-dir", dir.path().to_str().unwrap()], &[]);
    let say = |code: &str| std::fs::write(dir.path().join("code"), code).unwrap();
    let head = format!(
        "id: lives\nv: '1'\nplan:\n  tasks:\n    - {{name: build, outputs: o.json, files: [{{from: {:?}, to: /data, live: true}}], exec: {{run: 'echo \"{{\\\"l\\\":[1,2]}}\" > o.json; exit $(cat /data/code)', timeout: 60s}}}}\n",
        dir.path()
    );
    // Skipped in the first life, made in the second; the report is of the second.
    let made = format!(
        "{head}    - {{name: 'test-${{item}}', id: test, each: '${{tasks.build.outputs.l}}', value: x}}\n    - {{name: report, needs: [test], when: always, value: x}}\n"
    );
    say("7");
    let run = over(&up, &made).await;
    assert_eq!(steps(&up, &run).await, ["build 1 failed", "report 1 ok"], "{run}");
    assert_proven(&home);
    say("0");
    let run = retried(&up, &run).await;
    assert_eq!(run["status"], "succeeded", "{run}");
    let want = [
        "build 1 failed",
        "build 2 ok",
        "report 1 ok",
        "report 2 ok",
        "test-1 1 ok",
        "test-2 1 ok",
    ];
    assert_eq!(steps(&up, &run).await, want);
    assert_proven(&home);
    // Made in the first life, of which one fails; left out in the second.
    let left = format!(
        "{}    - {{name: list, outputs: l.json, when: {{task: build, is: failed}}, exec: {{run: 'echo \"{{\\\"l\\\":[1,2]}}\" > l.json', timeout: 60s}}}}\n    - {{name: 'dig-${{item}}', id: dig, each: '${{tasks.list.outputs.l}}', exec: {{run: 'exit ${{index}}', timeout: 60s}}}}\n",
        head.replace("id: lives", "id: left")
    );
    say("7");
    let run = over(&up, &left).await;
    let want = ["build 1 failed", "dig-1 1 ok", "dig-2 1 failed", "list 1 ok"];
    assert_eq!(steps(&up, &run).await, want, "{run}");
    say("0");
    let run = retried(&up, &run).await;
    assert_eq!(run["status"], "succeeded", "{run}");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_that_break_their_bounds_fail_the_task_that_wrote_them() {
    let home = Home::new();
    let up = home.up();
    for (write, why) in [
        (":", "left no such file"),
        ("echo V > o.env", "line 1 of the outputs file is not NAME=value"),
        ("head -c 300000 /dev/zero | tr '\\0' x > o.env", "larger than 262144 bytes"),
        ("printf 'V=\\377\\n' > o.env", "not UTF-8"),
        ("mkdir o.env", "left no such file"),
        ("ln -s /etc/passwd o.env", "left no such file"),
    ] {
        let yaml = format!(
            "id: o\nv: '1'\nplan:\n  tasks:\n    - {{name: t, outputs: o.env, exec: {{run: {write:?}, timeout: 60s}}}}\n    - {{name: u, value: '${{tasks.t.outputs.V}}'}}\n"
        );
        let run = over(&up, &yaml).await;
        let error = text(&run, "error");
        assert!(error.starts_with("task \"t\" ended with DOWNLOAD_FAIL"), "{write}: {error}");
        assert!(error.contains(why), "{write}: {error}");
        assert_eq!(steps(&up, &run).await, ["t 1 failed", "u 1 skipped"], "{write}");
    }
    assert_proven(&home);
}

/// 5 layers of 6 tasks, each of which waits for the whole layer before it.
fn layered() -> String {
    let mut yaml = "id: layers\nv: '1'\ncaps: {concurrency: 4}\nplan:\n  tasks:\n".to_owned();
    for layer in 0..5 {
        let needs = match layer {
            0 => String::new(),
            _ => format!(", needs: [l{}]", layer - 1),
        };
        yaml.push_str(&format!(
            "    - {{name: 'l{layer}-${{item}}', id: l{layer}, each: [a, b, c, d, e, f]{needs}, exec: {{run: 'sleep 0.05; echo {layer}', timeout: 60s}}}}\n"
        ));
    }
    yaml
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_whose_server_is_killed_goes_on_where_it_was() {
    let home = Home::new();
    let mut up = home.up();
    let header = up.run_recipe(&layered(), json!({}), json!({})).await;
    let run = text(&header, "runId");
    for done in [3, 11, 20] {
        let sql = up.sql().await;
        let ended = format!(
            "SELECT count(*) FROM app.sbx_runs WHERE response IS NOT NULL HAVING count(*) >= {done} UNION ALL SELECT 0 LIMIT 1"
        );
        until("some have ended", Duration::from_secs(60), async || {
            count(&sql, &ended).await >= done
        })
        .await;
        sql.close().await;
        up.kill();
        up = home.up();
    }
    let end = up.wait_terminal(&run).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    let sql = up.sql().await;
    let attempts = "SELECT count(*) FROM app.sbx_runs WHERE attempt = 1 AND err_code = 'NONE'";
    assert_eq!(count(&sql, attempts).await, 30, "each once");
    assert_eq!(count(&sql, "SELECT count(*) FROM app.sbx_runs").await, 30, "and no other");
    let order =
        "SELECT group_name FROM app.graph_tasks t JOIN app.sbx_runs s USING (run_id, step_id)
                  GROUP BY group_name ORDER BY max(s.finished_at)";
    assert_eq!(texts(&sql, order).await, ["l0", "l1", "l2", "l3", "l4"]);
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
    up.stop();
    assert_nothing_left(home.path());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_graph_goes_on_once_it_is_resumed() {
    let home = Home::new();
    let up = home.up();
    let yaml = "id: long\nv: '1'\nplan:\n  tasks:\n    - {name: first, value: x}\n    - {name: long, needs: [first], exec: {run: 'sleep 2; echo done', timeout: 60s}}\n    - {name: last, needs: [long], value: z}\n";
    let header = up.run_recipe(yaml, json!({}), json!({})).await;
    let (run, workflow) = (text(&header, "runId"), text(&header, "workflowID"));
    let sql = up.sql().await;
    executing(&sql, Duration::from_secs(30)).await;
    let why = json!({"actor": "ann", "reason": "a test"});
    let (status, answer) = up.post(&format!("/api/ops/wf/{workflow}/cancel"), &why).await;
    assert_eq!(status, 202, "{answer}");
    assert_eq!(up.wait_terminal(&run).await["status"], "canceled");
    until("its sandbox is gone", Duration::from_secs(30), async || {
        steps(&up, &header).await == ["first 1 ok", "long 1 canceled"]
    })
    .await;
    assert_proven(&home);
    let (status, answer) = up.post(&format!("/api/ops/wf/{workflow}/resume"), &why).await;
    assert_eq!(status, 202, "{answer}");
    let end = up.wait_for(&run, "succeeded", |run| run["status"] == "succeeded").await;
    assert_eq!(end["status"], "succeeded", "{end}");
    let want = ["first 1 ok", "last 1 ok", "long 1 canceled", "long 2 ok"];
    assert_eq!(steps(&up, &header).await, want);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn graphs_that_are_none_are_refused_with_their_line() {
    let home = Home::new();
    let _up = home.up();
    let head = "id: g\nv: '1'\nplan:\n  tasks:\n";
    for (tasks, where_, why) in [
        (
            "    - {name: a, needs: [b], value: x}\n    - {name: b, needs: [a], value: x}\n",
            ":5:",
            "a -> b -> a",
        ),
        (
            "    - name: a\n      needs: [a, nobody]\n      value: x\n",
            ":6:",
            "cannot wait for itself",
        ),
        ("    - name: a\n      needs: [nobody]\n      value: x\n", ":6:", "\"nobody\""),
        (
            "    - {name: a, value: x}\n    - {name: b, value: '${tasks.a.outputs.v}'}\n",
            ":6:",
            "has no outputs",
        ),
    ] {
        let path = recipe(home.path(), "g.yaml", &format!("{head}{tasks}"));
        let output = ended(home.command(&["run", &path]), Duration::from_secs(60));
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(where_) && said.contains(why), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_sees_the_graph_and_how_it_ended() {
    let home = Home::new();
    let _up = home.up();
    let path = recipe(home.path(), "release.yaml", RELEASE);
    let output = ended(home.command(&["run", &path]), Duration::from_secs(120));
    let shown = said(&output);
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert!(shown.contains("4 ok, 1 skipped in "), "{shown}");
    let output = ended(home.command(&["show", "last"]), Duration::from_secs(60));
    let shown = said(&output);
    assert!(shown.contains("its condition does not hold"), "{shown}");
    let gated = RELEASE.replace("plan:\n", "plan:\n  gate: approve-plan\n");
    let path = recipe(home.path(), "gated.yaml", &gated.replace("id: release", "id: gated"));
    let output = ended(home.command(&["run", &path, "--detach"]), Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let mut shown = String::new();
    until("it waits", Duration::from_secs(30), async || {
        let output = ended(home.command(&["gate", "show", "last"]), Duration::from_secs(60));
        shown = said(&output);
        shown.contains("group report: waits for")
    })
    .await;
    for line in ["group publish: waits for build, test", "for each item of output shards of build"]
    {
        assert!(shown.contains(line), "{shown}");
    }
}
