//! A running task asks for a name: a gate opens, a person grants it to one phase until a time, and
//! nothing else changes.

use crate::support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cofferdam_tests::{Home, Server, row_counts, text};
use serde_json::{Value, json};
use support::{assert_proven, assert_wiped, count, said, texts, until};

const LIMIT: Duration = Duration::from_secs(60);

/// A server on loopback: `/` says hello, `/endless` sends until its client goes, which is told.
fn server() -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let cut = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&cut);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, told) = (stream.unwrap(), Arc::clone(&told));
            std::thread::spawn(move || {
                let mut asked = [0; 4096];
                let count = stream.read(&mut asked).unwrap_or(0);
                if String::from_utf8_lossy(&asked[..count]).starts_with("GET /endless ") {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                    while stream.write_all(&[b'x'; 512]).is_ok() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    told.store(true, Ordering::SeqCst);
                } else {
                    let _ =
                        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
                }
            });
        }
    });
    (address, cut)
}

fn recipe(id: &str, task: &str) -> String {
    format!("id: {id}\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n{task}")
}

/// Tries until the name answers, for as long as the test waits at most.
fn insists(path: &str) -> String {
    format!(
        "for i in $(seq 600); do curl -sf http://wanted.example{path} && exit 0; sleep 0.1; done; exit 9"
    )
}

fn up(home: &Home, address: &str) -> Server {
    let table = ["wanted", "other", "third"].map(|name| format!("{name}.example={address}"));
    let mut args: Vec<&str> =
        table.iter().flat_map(|entry| ["--egress-host", entry.as_str()]).collect();
    args.push("--webhook-private");
    home.up_with(&args, &[])
}

async fn started(up: &Server, yaml: &str) -> String {
    let header = up.run_recipe(yaml, json!({}), json!({})).await;
    text(&header, "runId")
}

/// The gates of a run, once there are `n`.
async fn asked(up: &Server, run: &str, n: usize) -> Vec<Value> {
    let mut gates = Vec::new();
    until("the task asks", LIMIT, async || {
        gates = up.get(&format!("/api/runs/{run}/gates")).await.1.as_array().cloned().unwrap();
        gates.len() >= n
    })
    .await;
    gates
}

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

async fn reply(up: &Server, run: &str, payload: Value) -> (u16, Value) {
    let body = json!({"payload": payload, "dedupeKey": payload.to_string()});
    up.post(&format!("/api/runs/{run}/gates/egress-1/reply"), &body).await
}

fn granted(name: &str, for_ms: i64) -> Value {
    json!({"choice": "yes", "grant": {"name": name, "until": now_ms() + for_ms}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_granted_name_is_reached_by_the_task_that_asked_and_stands_in_its_policy_and_the_proofs()
{
    let home = Home::new();
    let (address, _) = server();
    let up = up(&home, &address);
    // Nobody listens there: what would be told is in the ledger.
    let hook = json!({"url": "http://127.0.0.1:9/", "events": ["gate.opened"]});
    assert_eq!(up.post("/api/webhooks", &hook).await.0, 201);
    let yaml = recipe(
        "asks",
        &format!("      exec: {{ask: true, timeout: 90s, run: '{}'}}\n", insists("/")),
    );
    let run = started(&up, &yaml).await;
    let gate = asked(&up, &run, 1).await.remove(0);
    assert_eq!(
        (&gate["gateKey"], &gate["topic"], &gate["state"]),
        (&json!("egress-1"), &json!("human:egress-1"), &json!("PENDING"))
    );
    assert_eq!(gate["prompt"]["uiHints"]["name"], "wanted.example");
    assert_eq!(
        up.get(&format!("/api/runs/{run}")).await.1["status"],
        "running",
        "the task goes on meanwhile"
    );
    let (_, inbox) = up.get("/api/hitl/inbox").await;
    assert_eq!(inbox[0]["gateKey"], "egress-1");
    let sql = up.sql().await;
    assert_told(&home, &up, &run, &gate, &inbox).await;
    assert_not_granted(&up, &run).await;
    let output = home.run(&[
        "gate",
        "reply",
        &run,
        "egress-1",
        "--choice",
        "yes",
        "--grant",
        "wanted.example",
        "--until",
        "5m",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let rows = "SELECT name || ' ' || phase || ' ' || gate_key FROM app.egress_grants";
    assert_eq!(texts(&sql, rows).await, ["wanted.example exec egress-1"]);
    let effective = texts(&sql, "SELECT effective->'granted'->0->>'name' FROM app.sbx_runs").await;
    assert_eq!(effective, ["wanted.example"]);
    let gate = asked(&up, &run, 1).await.remove(0);
    assert_eq!(
        (&gate["state"], &gate["decision"]["decision"]),
        (&json!("RESOLVED"), &json!("yes"))
    );
    let out = texts(&sql, "SELECT response->>'stdout' FROM app.sbx_runs").await;
    assert_eq!(out, ["hello\n"]);
    assert_proven(&home);
    assert_wiped(&home, &sql).await;
}

/// e6: whoever is asked reads what for, wherever the question is met.
async fn assert_told(home: &Home, up: &Server, run: &str, gate: &Value, inbox: &Value) {
    let asks = json!({"name": "wanted.example", "phase": "exec"});
    assert_eq!((&inbox[0]["asks"], &gate["asks"]), (&asks, &asks));
    for args in [vec!["gate", "ls"], vec!["gate", "show", run]] {
        let output = home.run(&args);
        assert!(said(&output).contains("wanted.example (exec)"), "{}", said(&output));
    }
    let body = json!({"for": "Ada", "expiresS": 60});
    let (status, made) = up.post(&format!("/api/runs/{run}/gates/egress-1/links"), &body).await;
    assert_eq!(status, 201, "{made}");
    let (_, view) = up.request("GET", &text(&made, "path"), None, None).await;
    assert_eq!((&view["asks"], view.get("plan")), (&asks, None));
    let sql = up.sql().await;
    let told = "SELECT asked_name FROM app.webhook_deliveries";
    assert_eq!(texts(&sql, told).await, ["wanted.example"], "e6: and whoever is notified");
}

/// What a person may not grant.
async fn assert_not_granted(up: &Server, run: &str) {
    let sql = up.sql().await;
    let before = count(&sql, "SELECT count(*) FROM app.human_interactions").await;
    for bad in [
        json!({"choice": "yes"}),
        granted("other.example", 60_000),
        granted("*.example", 60_000),
        granted("@pip", 60_000),
        granted("127.0.0.1", 60_000),
        json!({"choice": "yes", "grant": {"name": "wanted.example"}}),
        json!({"choice": "yes", "grant": {"name": "wanted.example", "until": "soon"}}),
        json!({"choice": "yes", "grant": {"name": "wanted.example", "until": 1, "phase": "build"}}),
        json!({"grant": {"name": "wanted.example", "until": 1}}),
    ] {
        let (status, answer) = reply(up, run, bad.clone()).await;
        assert_eq!((status, &answer["code"]), (400, &json!("schema_violation")), "{bad}");
    }
    assert_eq!(count(&sql, "SELECT count(*) FROM app.human_interactions").await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_does_not_say_so_asks_nobody_and_a_no_stays_a_no() {
    let home = Home::new();
    let (address, _) = server();
    let up = up(&home, &address);
    let task = "      exec: {egress: [other.example], timeout: 60s, run: 'curl -sf http://wanted.example/ || exit 7'}\n";
    let run = started(&up, &recipe("silent", task)).await;
    assert_eq!(up.wait_terminal(&run).await["status"], "failed");
    assert!(up.get(&format!("/api/runs/{run}/gates")).await.1.as_array().unwrap().is_empty());
    // Refused, the task hears of it; the listed name works all along.
    let task = "      exec: {egress: [other.example], ask: true, timeout: 60s, run: 'until [ -e no ]; do curl -sf http://other.example/ || exit 3; curl -s http://wanted.example/ > said; grep -q \"a person is asked\" said || exit 4; sleep 0.2; [ $((n+=1)) -gt 40 ] && exit 0; done'}\n";
    let run = started(&up, &recipe("told", task)).await;
    asked(&up, &run, 1).await;
    let (status, answer) =
        reply(&up, &run, json!({"choice": "no", "rationale": "not that one"})).await;
    assert_eq!(status, 200, "{answer}");
    let header = up.wait_terminal(&run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let sql = up.sql().await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.egress_grants").await, 0);
    let gate = asked(&up, &run, 1).await.remove(0);
    assert_eq!((&gate["state"], &gate["decision"]["decision"]), (&json!("RESOLVED"), &json!("no")));
    let (status, answer) = reply(&up, &run, granted("wanted.example", 60_000)).await;
    assert_eq!((status, &answer["code"]), (409, &json!("state_conflict")));
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_ends_at_its_time_with_every_connection_and_holds_in_its_own_phase_only() {
    let home = Home::new();
    let (address, cut) = server();
    let up = up(&home, &address);
    // The build phase asks and is granted; the task of the same sandbox lists nothing and asks nothing.
    let build = insists("/");
    let task = format!(
        "      build: {{ask: true, timeout: 90s, run: '{build}'}}\n      exec: {{timeout: 30s, run: 'curl -sf http://wanted.example/ && exit 9; exit 0'}}\n"
    );
    let run = started(&up, &recipe("phased", &task)).await;
    asked(&up, &run, 1).await;
    assert_eq!(reply(&up, &run, granted("wanted.example", 600_000)).await.0, 200);
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    // A stream that would never end is cut when the grant does, and no new one is let through.
    let endless = insists("/endless -o stream").replace("exit 0", "exit 8");
    let task = format!(
        "      exec: {{ask: true, timeout: 60s, run: '{}'}}\n",
        endless.replace("exit 9", "exit 5").replace("seq 600", "seq 100")
    );
    let run = started(&up, &recipe("ends", &task)).await;
    asked(&up, &run, 1).await;
    assert_eq!(reply(&up, &run, granted("wanted.example", 3_000)).await.0, 200);
    until("the stream is cut", LIMIT, async || cut.load(Ordering::SeqCst)).await;
    let sql = up.sql().await;
    let header = up.wait_terminal(&run).await;
    assert_eq!(header["status"], "failed", "{header}");
    let exit = format!("SELECT response->>'exit' FROM app.sbx_runs WHERE run_id = '{run}'");
    assert_eq!(texts(&sql, &exit).await, ["5"], "it was refused to its end, not carried");
    assert_proven(&home);
    assert_wiped(&home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn asks_are_few_exact_and_end_with_their_task() {
    let home = Home::new();
    let (address, _) = server();
    let up = up(&home, &address);
    let ask = "for i in $(seq 20); do curl -s http://n$i.example/; done; for bad in 127.0.0.1 localhost [::1] 10.1.2.3; do curl -s http://$bad:80/; done; curl -s http://n1.example:22/";
    let task = format!("      exec: {{ask: true, timeout: 90s, run: '{ask}; sleep 60'}}\n");
    let run = started(&up, &recipe("greedy", &task)).await;
    let gates = asked(&up, &run, 8).await;
    let names: Vec<String> =
        gates.iter().map(|g| g["prompt"]["uiHints"]["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, (1..=8).map(|n| format!("n{n}.example")).collect::<Vec<_>>());
    let sql = up.sql().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.egress_asks").await, 8);
    let output = home.run(&["cancel", &run]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    up.wait_terminal(&run).await;
    assert_eq!(
        count(&sql, "SELECT count(*) FROM app.human_gates WHERE state <> 'canceled'").await,
        0
    );
    let (status, _) = reply(&up, &run, granted("n1.example", 60_000)).await;
    assert_eq!(status, 409);
    // A task that ends by itself takes its open questions along.
    let task =
        "      exec: {ask: true, timeout: 60s, run: 'curl -s http://wanted.example/; sleep 2'}\n";
    let run = started(&up, &recipe("brief", task)).await;
    asked(&up, &run, 1).await;
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    assert_eq!(
        count(&sql, "SELECT count(*) FROM app.human_gates WHERE state <> 'canceled'").await,
        0
    );
    let before = row_counts(&sql).await;
    let bad = recipe("bad", "      exec: {ask: maybe, run: 'true'}\n");
    let (status, answer) = up.post("/api/recipes/import", &json!({"yaml": bad})).await;
    assert_eq!((status, &answer["code"]), (400, &json!("recipe_invalid")));
    let bad = recipe("bad", "      ask: true\n      exec: {run: 'true'}\n");
    assert_eq!(up.post("/api/recipes/import", &json!({"yaml": bad})).await.0, 400);
    assert_eq!(row_counts(&sql).await, before);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_ends_a_task_ends_its_asks_and_one_who_lost_the_end_to_another_ends_none() {
    let home = Home::new();
    let (address, _) = server();
    let up = up(&home, &address);
    let task = "      exec: {ask: true, timeout: 60s, run: 'curl -s http://wanted.example/; until [ -e /work/never ]; do sleep 0.1; done'}\n";
    let run = started(&up, &recipe("raced", task)).await;
    asked(&up, &run, 1).await;
    let sql = up.sql().await;
    // As a worker that took the task over ends it.
    let end = "UPDATE app.sbx_runs SET err_code = 'CMD_NONZERO', canceled = true, finished_at = clock_timestamp(),
                      response = jsonb_build_object('exit', -1, 'stdout', '', 'stderr', '', 'filesOut', '[]'::jsonb, 'metrics',
                        '{\"wallMs\":0,\"cpuMs\":0,\"memPeakMB\":0}'::jsonb, 'sandboxRef', '', 'errCode', 'CMD_NONZERO',
                        'taskKey', task_key, 'cause', 'by another worker')";
    sqlx::query(end).execute(&sql).await.unwrap();
    assert_eq!(texts(&sql, "SELECT state FROM app.human_gates").await, ["canceled"]);
    // Of the next task the gate stays open, whatever this one's first worker finds at its own end.
    let reopen = "UPDATE app.human_gates SET state = 'open', decided_at = NULL";
    sqlx::query(reopen).execute(&sql).await.unwrap();
    let workflow = format!("SELECT workflow_id FROM app.runs WHERE id = '{run}'");
    let workflow = texts(&sql, &workflow).await.remove(0);
    let cancel = "UPDATE dbos.workflow_status SET status = 'CANCELLED'
                   WHERE workflow_uuid IN (SELECT task_key FROM app.sbx_runs)";
    sqlx::query(cancel).execute(&sql).await.unwrap();
    sqlx::query("SELECT pg_notify('cofferdam', 'x:' || task_key) FROM app.sbx_runs")
        .execute(&sql)
        .await
        .unwrap();
    until("its first worker has ended it", LIMIT, async || {
        count(&sql, "SELECT count(*) FROM app.remote_execution_sessions WHERE ended_at IS NULL")
            .await
            == 0
    })
    .await;
    assert_eq!(texts(&sql, "SELECT state FROM app.human_gates").await, ["open"]);
    let action = json!({"actor": "ann", "reason": "done with it"});
    up.post(&format!("/api/ops/wf/{workflow}/cancel"), &action).await;
    assert_wiped(&home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_run_waits_for_nobody_where_only_its_tasks_had_asked() {
    let home = Home::new();
    let (address, _) = server();
    let up = up(&home, &address);
    let task =
        "      exec: {ask: true, timeout: 60s, run: 'curl -s http://wanted.example/; sleep 15'}\n";
    let run = started(&up, &recipe("resumed", task)).await;
    asked(&up, &run, 1).await;
    let output = home.run(&["cancel", &run]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    up.wait_terminal(&run).await;
    let sql = up.sql().await;
    until("the task has ended", LIMIT, async || {
        count(&sql, "SELECT count(*) FROM app.sbx_runs WHERE response IS NULL").await == 0
    })
    .await;
    let sent = "SELECT count(*) FROM dbos.notifications WHERE topic LIKE 'human:egress-%'";
    assert_eq!(count(&sql, sent).await, 0, "no workflow waits for what a task asks");
    let output = home.run(&["resume", &run]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    // Its task runs again, and asks again by itself.
    asked(&up, &run, 2).await;
    let (_, header) = up.get(&format!("/api/runs/{run}")).await;
    assert_eq!((&header["status"], &header["nextAction"]), (&json!("repairing"), &json!("NONE")));
    let states = "SELECT state FROM app.human_gates ORDER BY gate_key";
    assert_eq!(texts(&sql, states).await, ["canceled", "open"]);
    up.wait_terminal(&run).await;
    assert_eq!(texts(&sql, states).await, ["canceled", "canceled"]);
    assert_proven(&home);
}
