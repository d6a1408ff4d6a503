//! What a tenant may use at once, who is served next, and what each used.

use crate::support;

use std::time::Duration;

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;
use support::{assert_proven, count, texts, until};

const LIMIT: Duration = Duration::from_secs(120);

fn recipe(id: &str, tasks: u32, run: &str, limits: &Value) -> String {
    let tasks: Vec<Value> = (0..tasks)
        .map(|n| json!({"name": format!("t{n}"), "exec": {"run": run, "timeout": "600s"}, "limits": limits}))
        .collect();
    let caps = json!({"concurrency": 400, "steps": 400, "sandbox_minutes": 6_000});
    json!({"id": id, "v": "1", "caps": caps, "plan": {"tasks": tasks}}).to_string()
}

async fn configure(up: &Server, key: &str, name: &str, value: Value, version: u32) -> (u16, Value) {
    let scope = if key == up.key { "global" } else { "tenant" };
    let body = json!({"value": value, "expectedVersion": version, "scope": scope}).to_string();
    up.request("PUT", &format!("/api/config/{name}"), Some(key), Some(body.into_bytes())).await
}

async fn start(up: &Server, key: &str, recipe: &str) -> String {
    let (status, header) = up.start_recipe_as(key, recipe, json!({}), json!({})).await;
    assert_eq!(status, 201, "{header}");
    text(&header, "runId")
}

async fn cancel(up: &Server, key: &str, run: &str) {
    let (_, header) = up.get_as(key, &format!("/api/runs/{run}")).await;
    let path = format!("/api/ops/wf/{}/cancel", text(&header, "workflowID"));
    let (status, answer) = up.post_as(key, &path, &json!({"actor": "a", "reason": "r"})).await;
    assert_eq!(status, 202, "{answer}");
}

async fn waits(sql: &PgPool, run: &str) -> Vec<String> {
    let query = format!("SELECT why FROM app.task_places('{run}') ORDER BY 1");
    texts(sql, &query).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_one_tenant_lets_anothers_first_task_start_next() {
    const TASKS: u32 = 300;
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    sqlx::query("UPDATE dbos.queues SET worker_concurrency = 4 WHERE name = 'sbxQ'")
        .execute(&sql)
        .await
        .unwrap();
    let (_, acme) = up.new_key(&json!({"tenant": "acme", "roles": ["submitter"]})).await;
    let (_, bravo) = up.new_key(&json!({"tenant": "bravo", "roles": ["submitter"]})).await;
    let small = json!({"mem_mb": 64});
    let flood = start(&up, &acme, &recipe("flood", TASKS, "sleep 1", &small)).await;
    let starts = "SELECT count(*) FROM app.remote_execution_sessions WHERE tenant_id = 'acme'";
    until("the flood has begun", LIMIT, async || count(&sql, starts).await >= 8).await;
    let one = start(&up, &bravo, &recipe("one", 1, "true", &small)).await;
    until("the other ends", LIMIT, async || {
        up.get_as(&bravo, &format!("/api/runs/{one}")).await.1["status"] == "succeeded"
    })
    .await;
    // Not by the clock: how many of the flood's began between its queuing, or its submission, and its start.
    let between = |since: &str| {
        format!(
            "SELECT count(*) FROM app.remote_execution_sessions a, app.remote_execution_sessions b
               JOIN app.sbx_runs s ON s.task_key = b.task_key JOIN app.runs r ON r.id = b.run_id
              WHERE b.tenant_id = 'bravo' AND a.tenant_id = 'acme' AND a.created_at >= {since} AND a.created_at < b.created_at"
        )
    };
    let (queued, submitted) = (between("s.created_at"), between("r.created_at"));
    let (queued, submitted) = (count(&sql, &queued).await, count(&sql, &submitted).await);
    assert!(queued <= 8 && submitted <= 40, "{queued} after its queuing, {submitted} in all");
    let left = "SELECT count(*) FROM dbos.workflow_status WHERE queue_name = 'sbxQ' AND status = 'ENQUEUED'";
    assert!(count(&sql, left).await > 100, "the backlog is there still");
    cancel(&up, &acme, &flood).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_wait_for_their_tenants_cores_and_one_that_never_fits_is_refused() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let (_, acme) = up.new_key(&json!({"tenant": "acme", "roles": ["admin"]})).await;
    let all = json!({"acme": {"cpu": 2}, "bravo": {"startsPerMinute": 1}});
    assert_eq!(configure(&up, &up.key, "quota.tenants", all, 0).await.0, 200);
    let (status, answer) = configure(&up, &acme, "quota.cpu", json!(3), 0).await;
    assert_eq!((status, &answer["code"]), (400, &json!("policy_violation")), "{answer}");
    let (status, answer) = configure(&up, &acme, "quota.tenants", json!({}), 1).await;
    assert_eq!((status, &answer["code"]), (403, &json!("forbidden")), "{answer}");
    let (_, seen) = up.get_as(&acme, "/api/config/quota.tenants").await;
    assert_eq!(seen["value"], json!({"acme": {"cpu": 2}}), "another tenant's is not shown");
    // What does not say takes one core.
    let limits = json!({"mem_mb": 64});
    let crowd = start(&up, &acme, &recipe("crowd", 5, "sleep 300", &limits)).await;
    let words = ["cpu", "cpu: 1 before you", "cpu: 2 before you"];
    until("three wait", LIMIT, async || waits(&sql, &crowd).await == words).await;
    let running = "SELECT count(*) FROM app.remote_execution_sessions WHERE ended_at IS NULL";
    until("two run", LIMIT, async || count(&sql, running).await == 2).await;
    let (_, steps) = up.get_as(&acme, &format!("/api/runs/{crowd}/steps")).await;
    let told = steps.as_array().unwrap().iter().filter(|s| s["waitsFor"] == "cpu: 2 before you");
    assert_eq!(told.count(), 1, "{steps}");
    let large = recipe("large", 1, "true", &json!({"cpu": 2.5, "mem_mb": 64}));
    let (status, header) = up.start_recipe_as(&acme, &large, json!({}), json!({})).await;
    let refused = match status {
        201 => {
            let path = format!("/api/runs/{}", text(&header, "runId"));
            let failed = async || up.get_as(&acme, &path).await.1["status"] == "failed";
            until("it is refused", LIMIT, failed).await;
            text(&up.get_as(&acme, &path).await.1, "error")
        }
        _ => header.to_string(),
    };
    assert!(
        refused.contains("limits.cpu is 2.5, quota.tenants") && refused.contains("ask for less"),
        "{refused}"
    );
    let (_, bravo) = up.new_key(&json!({"tenant": "bravo", "roles": ["submitter"]})).await;
    let two = start(&up, &bravo, &recipe("two", 2, "true", &limits)).await;
    until("one waits", LIMIT, async || waits(&sql, &two).await == ["starts"]).await;
    cancel(&up, &acme, &crowd).await;
    until("nothing runs", LIMIT, async || count(&sql, running).await == 0).await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_told_by_tenant_and_day_without_the_time_of_a_pause() {
    let home = Home::new();
    let up = home.up();
    let (_, acme) = up.new_key(&json!({"tenant": "acme", "roles": ["admin"]})).await;
    let run = start(&up, &acme, &recipe("r", 1, "sleep 1; echo x", &json!({"mem_mb": 64}))).await;
    let ended = format!("/api/runs/{run}");
    until("it ends", LIMIT, async || up.get_as(&acme, &ended).await.1["status"] == "succeeded")
        .await;
    let (status, held) = up.post_as(&acme, "/api/sandboxes", &json!({"template": "base"})).await;
    assert_eq!(status, 201, "{held}");
    let of = async || up.get_as(&acme, "/api/usage?by=tenant").await.1[0].clone();
    let (before, path) = (of().await, format!("/api/sandboxes/{}/pause", text(&held, "id")));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ms = |row: &Value| row["sandboxMs"].as_u64().unwrap();
    assert!(ms(&of().await) >= ms(&before) + 300, "one that is up counts until now: {before}");
    assert_eq!(up.post_as(&acme, &path, &json!({})).await.0, 200);
    let life = format!("/api/runs/{}", text(&held, "runId"));
    until("its life is over", LIMIT, async || {
        up.get_as(&acme, &life).await.1["status"] == "succeeded"
    })
    .await;
    let paused = of().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(of().await, paused, "a pause uses nothing");
    let (starts, stored) = (&paused["starts"], paused["storedBytes"].as_u64().unwrap());
    assert!(*starts == 2 && ms(&paused) > 1_000 && stored > 0, "{paused}");
    // Memory by time, as it was asked for: 64 MiB for a second at least.
    assert!(paused["memoryMbS"].as_u64().unwrap() >= 64, "{paused}");
    let rows = up.get_as(&acme, "/api/usage?limit=1").await.1;
    assert_eq!((&rows[0]["tenant"], rows.as_array().unwrap().len()), (&json!("acme"), 1));
    for (query, status) in [
        ("tenant=default", 403),
        ("tenant=*", 403),
        ("tenant=acme", 200),
        ("since=2026-02-30", 400),
        ("by=week", 400),
        ("after=x", 400),
    ] {
        let (found, answer) = up.get_as(&acme, &format!("/api/usage?{query}")).await;
        assert_eq!(found, status, "{query}: {answer}");
    }
    let told = home.run(&["usage", "--tenant", "*", "--by", "tenant", "--json"]);
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(told["usage"][0], paused, "{told}");
    let table = home.run(&["usage", "--tenant", "acme", "--since", "1d"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.starts_with("DAY (UTC)   STARTS  WALL S"), "{table}");
    assert!(table.lines().count() >= 2 && table.lines().all(|line| line.len() <= 80), "{table}");
    assert_proven(&home);
}
