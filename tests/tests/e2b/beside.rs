//! Long-lived sandboxes stand beside the queues: they take no place of a task, and have a quota of their own.

use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_tests::e2b::{Caller, answered};
use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::task::JoinSet;

use super::{PYTHON, gone, installed};
use crate::support::{count, ended, said, texts, until};

const TASKS: &str = "id: tasks\nv: '1'\ncaps: {concurrency: 8, steps: 8}\nplan: {tasks: [{name: 't-${item}', each: '${range(8)}', exec: {run: [/bin/true], timeout: 60s}}]}\n";
/// Places of a worker and of a tenant.
const WORKERS: i64 = 32;
const TENANTS: i64 = 24;
/// Of workflows that count in a queue.
const COUNTED: &str = "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('PENDING','ENQUEUED') AND queue_name <> 'liveQ'";
const BESIDE: &str = "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('PENDING','ENQUEUED') AND queue_name = 'liveQ'";
const LIVE: &str =
    "SELECT count(*) FROM app.live_sandboxes WHERE ended_at IS NULL AND paused_at IS NULL";

fn base(seconds: u32) -> Value {
    json!({"templateID": "base", "timeout": seconds})
}

/// So many creations at once: each answer.
async fn at_once(caller: &Caller, many: usize) -> Vec<(u16, Value)> {
    let mut all = JoinSet::new();
    for _ in 0..many {
        let request = caller.http.post(format!("{}/v2/sandboxes", caller.url));
        all.spawn(answered(request.header("x-api-key", &caller.key).json(&base(600))));
    }
    all.join_all().await
}

async fn kill_all(caller: &Caller, all: &[String]) {
    for id in all {
        assert_eq!(caller.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    }
}

async fn quota(server: &Server, key: &str, scope: &str, value: u64, version: u32) -> (u16, Value) {
    let body = json!({"value": value, "expectedVersion": version, "scope": scope}).to_string();
    let path = "/api/config/quota.live_sandboxes";
    server.request("PUT", path, Some(key), Some(body.into_bytes())).await
}

/// Nothing but what lives is counted anywhere.
async fn settled(sql: &PgPool, live: i64) {
    until("the queues are empty", Duration::from_secs(90), async || {
        count(sql, COUNTED).await == 0 && count(sql, BESIDE).await == 2 * live
    })
    .await;
    assert_eq!(count(sql, LIVE).await, live);
}

async fn tasks_run_at_once(server: &Server, sql: &PgPool, (key, opts): (&str, &str)) {
    let (status, run) =
        server.start_recipe_as(key, TASKS, json!({}), json!({"runKey": opts})).await;
    assert_eq!(status, 201, "{run}");
    let query = format!("SELECT status FROM app.runs WHERE id = '{}'", text(&run, "runId"));
    until("the tasks have run", Duration::from_secs(60), async || {
        texts(sql, &query).await == ["succeeded"]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_sandboxes_take_no_place_of_a_task() {
    const IDLE: usize = 40;
    let home = Home::new();
    let mut server = home.up_with(&["--memory-mb", "65536"], &[]);
    let sql = server.sql().await;
    assert!(i64::try_from(IDLE).unwrap() > WORKERS.max(TENANTS));
    let places = format!(
        "SELECT count(*) FROM dbos.queues WHERE name = 'sbxQ' AND worker_concurrency = {WORKERS} AND partition_concurrency = {TENANTS}"
    );
    assert_eq!(count(&sql, &places).await, 1);
    // Fewer runs of a tenant at a time than there are sandboxes, so that their runs must not count either.
    let few = "UPDATE dbos.queues SET partition_concurrency = 16 WHERE name = 'intentQ'";
    sqlx::query(few).execute(&sql).await.unwrap();
    let (ann, bob) = (Caller::of(&server, "ann").await, Caller::of(&server, "bob").await);
    let all = at_once(&ann, IDLE).await;
    let ids: Vec<String> = all
        .iter()
        .map(|(status, made)| {
            assert_eq!(*status, 201, "{made}");
            text(made, "sandboxID")
        })
        .collect();
    settled(&sql, 40).await;
    let running =
        "SELECT count(*) FROM app.runs WHERE recipe_id = 'sandbox' AND status = 'running'";
    assert_eq!(count(&sql, running).await, 40);
    tasks_run_at_once(&server, &sql, (&bob.key, "1")).await;
    tasks_run_at_once(&server, &sql, (&ann.key, "1")).await;
    // A pause, a resume and a fork are lives like the first.
    assert_eq!(ann.api("POST", &format!("/sandboxes/{}/pause", ids[0]), None).await.0, 204);
    settled(&sql, 39).await;
    let connect = format!("/v2/sandboxes/{}/connect", ids[0]);
    assert_eq!(ann.api("POST", &connect, Some(json!({"timeout": 600}))).await.0, 201);
    settled(&sql, 40).await;
    let fork = format!("/sandboxes/{}/fork", ids[0]);
    let (status, forks) = ann.api("POST", &fork, Some(json!({"count": 2, "timeout": 600}))).await;
    assert_eq!(status, 201, "{forks}");
    settled(&sql, 42).await;
    tasks_run_at_once(&server, &sql, (&ann.key, "2")).await;
    kill_all(&ann, &ids).await;
    settled(&sql, 2).await;
    // What is left ends with the worker, which gives nothing back to a queue.
    assert!(server.stop().success());
    let server = home.up();
    settled(&sql, 0).await;
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_live_sandboxes_have_an_exact_quota_that_another_does_not_feel() {
    let home = Home::new();
    let server = home.up_with(&["--memory-mb", "65536"], &[]);
    let sql = server.sql().await;
    let (ann, bob) = (Caller::of(&server, "ann").await, Caller::of(&server, "bob").await);
    assert_eq!(quota(&server, &server.key, "global", 10, 0).await.0, 200);
    let (_, admin) = server.new_key(&json!({"tenant": "bob", "roles": ["admin"]})).await;
    let (status, answer) = quota(&server, &admin, "tenant", 11, 0).await;
    assert_eq!((status, &answer["code"]), (400, &json!("policy_violation")), "{answer}");
    assert_eq!(quota(&server, &admin, "tenant", 3, 0).await.0, 200);
    let (anns, bobs) = tokio::join!(at_once(&ann, 50), at_once(&bob, 6));
    let made = |all: &[(u16, Value)], most: u64| -> Vec<String> {
        for (status, answer) in all.iter().filter(|(status, _)| *status != 201) {
            assert_eq!((*status, &answer["code"]), (429, &json!(429)), "{answer}");
            let words = answer["message"].as_str().unwrap();
            assert!(words.contains(&format!("quota.live_sandboxes is {most}: kill or pause")));
        }
        let made = all.iter().filter(|(status, _)| *status == 201);
        made.map(|(_, answer)| text(answer, "sandboxID")).collect()
    };
    let (mut anns, bobs) = (made(&anns, 10), made(&bobs, 3));
    assert_eq!((anns.len(), bobs.len()), (10, 3));
    assert_eq!(count(&sql, LIVE).await, 13);
    let none = "SELECT count(*) FROM app.intents i WHERE NOT EXISTS (SELECT 1 FROM app.live_sandboxes l JOIN app.runs r ON r.id = l.run_id WHERE r.intent_id = i.id)";
    assert_eq!(count(&sql, none).await, 0, "what is refused has written nothing");
    // Clients are told not to wait for it.
    let again = ann.http.post(format!("{}/v2/sandboxes", ann.url));
    let refused = again.header("x-api-key", &ann.key).json(&base(60)).send().await.unwrap();
    assert_eq!(refused.headers()["should-retry"], "false");
    // Our own API says the same with its code and the numbers.
    let (status, answer) = server
        .post_as(&ann.key, "/api/sandboxes", &json!({"template": "base", "timeoutS": 60}))
        .await;
    assert_eq!((status, &answer["code"]), (429, &json!("too_many_sandboxes")), "{answer}");
    let details = json!({"metric": "live_sandboxes", "limit": 10, "observed": 10});
    assert_eq!(answer["details"], details);
    // One that is paused is not live; its place is another's then, and it stays paused.
    assert_eq!(ann.api("POST", &format!("/sandboxes/{}/pause", anns[0]), None).await.0, 204);
    anns.push(ann.create(base(600)).await.0);
    let connect = format!("/v2/sandboxes/{}/connect", anns[0]);
    let (status, answer) = ann.api("POST", &connect, Some(json!({"timeout": 600}))).await;
    assert_eq!((status, &answer["code"]), (429, &json!(429)), "{answer}");
    let (_, view) = ann.api("GET", &format!("/sandboxes/{}", anns[0]), None).await;
    assert_eq!(view["state"], "paused", "{view}");
    kill_all(&ann, &anns[1..2]).await;
    assert_eq!(ann.api("POST", &connect, Some(json!({"timeout": 600}))).await.0, 201);
    // Of a fork, as many are made as there is room for.
    kill_all(&ann, &anns[2..4]).await;
    let fork = format!("/sandboxes/{}/fork", anns[0]);
    let (_, forks) = ann.api("POST", &fork, Some(json!({"count": 4, "timeout": 600}))).await;
    let refused = forks.as_array().unwrap().iter().filter(|one| one["error"]["code"] == 429);
    assert_eq!(refused.count(), 2, "{forks}");
    assert_eq!(count(&sql, LIVE).await, 13);
    unmodified_client(&server, &ann.key).await;
    // As the next one's, a lower quota takes nothing away.
    assert_eq!(quota(&server, &server.key, "global", 0, 1).await.0, 200);
    assert_eq!(bob.api("POST", "/v2/sandboxes", Some(base(60))).await.0, 429);
    assert_eq!(count(&sql, LIVE).await, 13);
    let left = "SELECT id FROM app.live_sandboxes WHERE ended_at IS NULL AND tenant_id = 'ann'";
    kill_all(&ann, &texts(&sql, left).await).await;
    kill_all(&bob, &bobs).await;
    settled(&sql, 0).await;
    sql.close().await;
    gone(home, server).await;
}

/// Raises what its users expect, and at once.
async fn unmodified_client(server: &Server, key: &str) {
    let Some(python) = installed(PYTHON[0]) else { return };
    let script = "
import time
from e2b import Sandbox, RateLimitException
since = time.monotonic()
try:
    Sandbox.create('base')
    print('made')
except RateLimitException as e:
    print(e, 'at once' if time.monotonic() - since < 3 else 'late')
";
    let mut command = Command::new(python);
    command.args(["-c", script]).env("E2B_API_KEY", key).stdin(Stdio::null());
    command.env("E2B_API_URL", &server.url).env("E2B_SANDBOX_URL", &server.url);
    let limit = Duration::from_secs(60);
    let output = tokio::task::spawn_blocking(move || ended(command, limit)).await.unwrap();
    let words = String::from_utf8_lossy(&output.stdout);
    let is_told = words.contains("quota.live_sandboxes is 10") && words.ends_with("at once\n");
    assert!(output.status.success() && is_told, "{}", said(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_server_held_is_counted_nowhere_afterwards() {
    let home = Home::new();
    let mut server = home.up_with(&["--memory-mb", "65536"], &[]);
    let sql = server.sql().await;
    assert_eq!(quota(&server, &server.key, "global", 6, 0).await.0, 200);
    let (ann, bob) = (Caller::of(&server, "ann").await, Caller::of(&server, "bob").await);
    for caller in [&ann, &bob] {
        let all = at_once(caller, 6).await;
        assert!(all.iter().all(|(status, _)| *status == 201), "{all:?}");
    }
    settled(&sql, 12).await;
    // One worker takes over from another.
    let worker = Server::start(&home, &["worker"], &[]);
    server.kill();
    settled(&sql, 0).await;
    let reasons = "SELECT DISTINCT end_reason FROM app.live_sandboxes";
    let lost = ["its worker was lost or restarted; a sandbox is never made anew"];
    assert_eq!(texts(&sql, reasons).await, lost);
    drop(worker);
    // The same server begins again, and each tenant has its whole quota.
    for turn in ["1", "2"] {
        let mut server = home.up_with(&["--memory-mb", "65536"], &[]);
        settled(&sql, 0).await;
        for caller in [&ann, &bob] {
            let caller = Caller {
                http: caller.http.clone(),
                url: server.url.clone(),
                key: caller.key.clone(),
                class: caller.class,
            };
            let all = at_once(&caller, 7).await;
            let mut statuses: Vec<u16> = all.iter().map(|(status, _)| *status).collect();
            statuses.sort_unstable();
            assert_eq!(statuses, [201, 201, 201, 201, 201, 201, 429], "{all:?}");
        }
        tasks_run_at_once(&server, &sql, (&ann.key, turn)).await;
        server.kill();
    }
    let server = home.up();
    settled(&sql, 0).await;
    sql.close().await;
    gone(home, server).await;
}
