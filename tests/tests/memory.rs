//! Memory admission: what a worker's sandboxes may take together, and how tasks wait for it.

use crate::support;

use std::time::Duration;

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use support::{assert_proven, count, texts, until};

fn recipe(id: &str, tasks: u32, run: &str, mem_mb: u32) -> String {
    let tasks: Vec<Value> = (0..tasks)
        .map(|n| {
            json!({"name": format!("t{n}"), "exec": {"run": run}, "limits": {"mem_mb": mem_mb}})
        })
        .collect();
    json!({"id": id, "v": "1", "plan": {"tasks": tasks}}).to_string()
}

#[tokio::test]
async fn h8_sandboxes_whose_limits_exceed_the_hosts_memory_run_after_each_other() {
    let home = Home::new();
    let server = home.up_with(&["--memory-mb", "300"], &[]);
    let run = "date +%s%N; sleep 0.3; date +%s%N";
    let yaml = recipe("crowd", 3, run, 200);
    let started = server.run_recipe(&yaml, json!({}), json!({})).await;
    let ended = server.wait_terminal(started["runId"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "succeeded", "{ended}");
    let sql = server.sql().await;
    let mut spans: Vec<Vec<u64>> = texts(&sql, "SELECT response->>'stdout' FROM app.sbx_runs")
        .await
        .iter()
        .map(|out| out.split_whitespace().map(|n| n.parse().unwrap()).collect())
        .collect();
    spans.sort();
    assert_eq!(spans.len(), 3);
    for pair in spans.windows(2) {
        assert!(pair[0][1] <= pair[1][0], "two of 200 MiB ran at once in 300: {spans:?}");
    }
    assert_proven(&home);
}

#[tokio::test]
async fn h8_a_sandbox_larger_than_the_budget_is_refused_with_the_remedy() {
    let home = Home::new();
    let server = home.up_with(&["--memory-mb", "300"], &[]);
    let yaml = recipe("large", 1, "true", 301);
    let started = server.run_recipe(&yaml, json!({}), json!({})).await;
    let ended = server.wait_terminal(started["runId"].as_str().unwrap()).await;
    assert_ne!(ended["status"], "succeeded", "{ended}");
    let sql = server.sql().await;
    let causes = texts(&sql, "SELECT response->>'cause' FROM app.sbx_runs").await;
    assert!(causes.iter().all(|cause| cause.contains("--memory-mb")), "{causes:?}");
    assert!(!causes.is_empty());
}

/// What a run and its only task say of themselves.
async fn said(server: &Server, run: &str) -> (Value, Value, Value, Value) {
    let header = server.get(&format!("/api/runs/{run}")).await.1;
    let steps = server.get(&format!("/api/runs/{run}/steps")).await.1;
    let task = steps.as_array().unwrap().iter().find(|s| s["taskKey"].is_string()).cloned();
    let task = task.unwrap_or_default();
    let of = |row: &Value| (row["status"].clone(), row["waitsFor"].clone());
    let ((status, waits), (task, task_waits)) = (of(&header), of(&task));
    (status, waits, task, task_waits)
}

async fn started(server: &Server, recipe: &str) -> String {
    let header = server.run_recipe(recipe, json!({}), json!({})).await;
    header["runId"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_only_waits_is_queued_and_says_what_for() {
    let home = Home::new();
    let mut shim = Server::start(&home, &["shim", "--listen", "127.0.0.1:0"], &[]);
    let limit = Duration::from_secs(60);
    let early = started(&shim, &recipe("early", 1, "true", 200)).await;
    let (status, waits, ..) = said(&shim, &early).await;
    assert_eq!((status, waits), (json!("queued"), json!("a worker: none is live")));
    assert!(shim.stop().success());
    let server = home.up_with(&["--memory-mb", "300"], &[]);
    assert_eq!(server.wait_terminal(&early).await["status"], "succeeded");
    let holder = started(&server, &recipe("holds", 1, "sleep 300", 200)).await;
    let executes = (json!("running"), Value::Null, json!("running"), Value::Null);
    until("the first one executes", limit, async || said(&server, &holder).await == executes).await;
    // Memory: of the worker's, by the order in which it is asked for.
    let first = started(&server, &recipe("first", 1, "true", 200)).await;
    let queued = |what: &str| (json!("queued"), json!(what), json!("queued"), json!(what));
    until("it waits", limit, async || said(&server, &first).await == queued("memory")).await;
    let second = started(&server, &recipe("second", 1, "true", 200)).await;
    let behind = queued("memory: 1 before you");
    until("so does the next", limit, async || said(&server, &second).await == behind).await;
    // A place: there are no more than those three have.
    let sql = server.sql().await;
    let places = "UPDATE dbos.queues SET worker_concurrency = 3 WHERE name = 'sbxQ'";
    sqlx::query(places).execute(&sql).await.unwrap();
    let third = started(&server, &recipe("third", 1, "true", 64)).await;
    until("it is queued", limit, async || said(&server, &third).await == queued("a place")).await;
    let fourth = started(&server, &recipe("fourth", 1, "true", 64)).await;
    let behind = (json!("queued"), json!("a place: 1 before you"));
    until("behind that", limit, async || {
        let (status, waits, task, _) = said(&server, &fourth).await;
        (status, waits) == behind && task == "queued"
    })
    .await;
    let shown = home.run(&["ps", "--status", "queued"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert_eq!(shown.matches(" queued (").count(), 4, "{shown}");
    for words in
        ["queued (memory)", "queued (memory: 1 before you)", "queued (a place: 1 before you)"]
    {
        assert!(shown.contains(words), "{shown}");
    }
    let shown = home.run(&["show", &second]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("waits for memory: 1 before you"), "{shown}");
    assert_eq!(home.run(&["cancel", &holder]).status.code(), Some(0));
    for run in [&first, &second, &third, &fourth] {
        let ended = server.wait_terminal(run).await;
        assert_eq!((&ended["status"], &ended["waitsFor"]), (&json!("succeeded"), &Value::Null));
    }
    let left = "SELECT count(*) FROM app.remote_execution_sessions WHERE waits_for IS NOT NULL";
    assert_eq!(count(&sql, left).await, 0, "who has its memory waits for none");
    assert_proven(&home);
}

/// What each task of a run that is queued waits for.
async fn queue_of(server: &Server, run: &str) -> Vec<String> {
    let steps = server.get(&format!("/api/runs/{run}/steps")).await.1;
    let queued = steps.as_array().unwrap().iter().filter(|step| step["status"] == "queued");
    let mut waits: Vec<String> = queued.map(|step| text(step, "waitsFor")).collect();
    waits.sort();
    waits
}

#[tokio::test(flavor = "multi_thread")]
async fn each_task_that_is_queued_says_how_many_are_before_it() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let places = "UPDATE dbos.queues SET worker_concurrency = 1 WHERE name = 'sbxQ'";
    sqlx::query(places).execute(&sql).await.unwrap();
    let run = started(&server, &recipe("crowd", 4, "sleep 300", 64)).await;
    let wanted = ["a place", "a place: 1 before you", "a place: 2 before you"];
    let limit = Duration::from_secs(60);
    until("three are queued", limit, async || queue_of(&server, &run).await == wanted).await;
    let shown = home.run(&["show", &run]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("waits for a place: 2 before you"), "{shown}");
    assert_eq!(home.run(&["cancel", &run]).status.code(), Some(0));
    assert_eq!(server.wait_terminal(&run).await["status"], "canceled");
    assert!(queue_of(&server, &run).await.is_empty(), "what ended waits for nothing");
}

#[tokio::test]
async fn h8_a_task_that_waits_for_memory_is_canceled_at_once() {
    let home = Home::new();
    let server = home.up_with(&["--memory-mb", "300"], &[]);
    let holds = recipe("holds", 1, "sleep 300", 200);
    let holder = server.run_recipe(&holds, json!({}), json!({})).await;
    let holder = holder["runId"].as_str().unwrap().to_owned();
    let sql = server.sql().await;
    let limit = Duration::from_secs(60);
    until("the first one executes", limit, async || {
        count(&sql, "SELECT count(*) FROM app.remote_execution_sessions WHERE state = 'EXECUTING'")
            .await
            == 1
    })
    .await;
    let waits = recipe("waits", 1, "true", 200);
    let waiter = server.run_recipe(&waits, json!({}), json!({})).await;
    let waiter = waiter["runId"].as_str().unwrap().to_owned();
    until("the second one is at its door", limit, async || {
        count(&sql, "SELECT count(*) FROM app.sbx_executions").await == 2
    })
    .await;
    for run in [&waiter, &holder] {
        let ops = server.get(&format!("/api/runs/{run}")).await.1;
        let wid = ops["workflowID"].as_str().unwrap().to_owned();
        let why = json!({"actor": "test", "reason": "not wanted"});
        let (status, said) = server.post(&format!("/api/ops/wf/{wid}/cancel"), &why).await;
        assert_eq!(status, 202, "{said}");
        let ended = server.wait_terminal(run).await;
        assert_eq!(ended["status"], "canceled", "{ended}");
    }
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn s23_a_tenants_tasks_wait_behind_its_own_and_not_behind_anothers() {
    let home = Home::new();
    let server = home.up_with(&["--memory-mb", "300"], &[]);
    let sql = server.sql().await;
    let limit = Duration::from_secs(120);
    let at_the_door = async |what: &str, n: i64| {
        until(what, limit, async || {
            count(&sql, "SELECT count(*) FROM app.sbx_executions").await == n
        })
        .await;
    };
    let (_, flood) =
        server.new_key(&json!({"tenant": "flood", "roles": ["operator", "submitter"]})).await;
    let (_, bravo) = server.new_key(&json!({"tenant": "bravo", "roles": ["submitter"]})).await;
    let start = async |key: &str, recipe: String| {
        let (status, header) = server.start_recipe_as(key, &recipe, json!({}), json!({})).await;
        assert_eq!(status, 201, "{header}");
        header["runId"].as_str().unwrap().to_owned()
    };
    let holder = start(&flood, recipe("holds", 1, "sleep 600", 300)).await;
    at_the_door("the first one executes", 1).await;
    until("it has a sandbox", limit, async || {
        count(&sql, "SELECT count(*) FROM app.remote_execution_sessions WHERE state = 'EXECUTING'")
            .await
            == 1
    })
    .await;
    // The whole budget, again and again.
    start(&flood, recipe("flood", 4, "date +%s%N", 300)).await;
    at_the_door("the flood waits", 5).await;
    start(&bravo, recipe("bravo", 1, "date +%s%N", 300)).await;
    at_the_door("the other tenant waits behind it", 6).await;
    let (_, header) = server.get_as(&flood, &format!("/api/runs/{holder}")).await;
    let workflow = header["workflowID"].as_str().unwrap();
    let why = json!({"actor": "test", "reason": "not wanted"});
    let (status, said) =
        server.post_as(&flood, &format!("/api/ops/wf/{workflow}/cancel"), &why).await;
    assert_eq!(status, 202, "{said}");
    let order = "SELECT tenant_id FROM app.sbx_runs s JOIN app.runs r ON r.id = s.run_id
                  WHERE response->>'stdout' <> '' ORDER BY (response->>'stdout')::numeric";
    until("all of them ran", limit, async || texts(&sql, order).await.len() == 5).await;
    assert_eq!(texts(&sql, order).await, ["bravo", "flood", "flood", "flood", "flood"]);
    until("all runs are over", limit, async || {
        count(&sql, "SELECT count(*) FROM app.runs WHERE finished_at IS NULL").await == 0
    })
    .await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waits_for_anothers_build_holds_no_memory() {
    let home = Home::new();
    let server = home.up_with(&["--memory-mb", "300"], &[]);
    let sql = server.sql().await;
    let limit = Duration::from_secs(60);
    let cached = json!({"id": "cached", "v": "1", "plan": {"tasks": [{
        "name": "t", "files": [{"text": "a==1", "to": "/work/req.txt"}],
        "build": {"run": "sleep 300", "cache": "req.txt", "timeout": "400s"},
        "exec": {"run": "true"}, "limits": {"mem_mb": 150},
    }]}});
    let building = "SELECT count(*) FROM app.remote_execution_sessions WHERE state = 'BUILDING'";
    let mut runs = Vec::new();
    for (key, executions) in [("leads", 1), ("waits", 2)] {
        let started =
            server.run_recipe(&cached.to_string(), json!({}), json!({"runKey": key})).await;
        runs.push(started["workflowID"].as_str().unwrap().to_owned());
        until("it is at its door", limit, async || {
            count(&sql, "SELECT count(*) FROM app.sbx_executions").await == executions
        })
        .await;
        until("the first one builds", limit, async || count(&sql, building).await == 1).await;
    }
    // Half of the memory is the builder's; the other half is nobody's.
    let started = server.run_recipe(&recipe("third", 1, "true", 150), json!({}), json!({})).await;
    let ended = server.wait_terminal(started["runId"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "succeeded", "{ended}");
    assert_eq!(count(&sql, building).await, 1, "the build has not ended meanwhile");
    for workflow in &runs {
        let why = json!({"actor": "test", "reason": "not wanted"});
        let (status, said) = server.post(&format!("/api/ops/wf/{workflow}/cancel"), &why).await;
        assert_eq!(status, 202, "{said}");
        assert_eq!(server.wait_terminal(workflow).await["status"], "canceled");
    }
    assert_proven(&home);
}
