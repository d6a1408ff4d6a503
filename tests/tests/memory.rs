//! Memory admission: what a worker's sandboxes may take together, and how tasks wait for it.

use crate::support;

use std::time::Duration;

use cofferdam_tests::Home;
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
