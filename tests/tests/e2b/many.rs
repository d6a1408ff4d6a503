//! Lists of ten thousand sandboxes, readers that do not read and streams that are half open.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use cofferdam_tests::e2b::Caller;
use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::gone;
use crate::support::{count, until};

const MANY: usize = 10_000;
/// Of one page, and of the older list.
const PAGE: usize = 100;
const OLDER: usize = 1_000;
/// Debug builds on two busy cores; a list whose cost grows with its square takes minutes.
const ALL_PAGES: Duration = Duration::from_secs(60);
/// What a server may keep of lists and of readers that do not read.
const KEPT_MIB: u64 = 48;

/// The server's own memory, in MiB.
fn resident(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// So many running sandboxes of a tenant on record, without a process: each with its run, its task and its session.
async fn recorded(sql: &PgPool, tenant: &str) {
    let id = "lpad(to_hex(n), 32, '0')";
    let all = format!(
        "INSERT INTO app.intents (id, tenant_id, goal, inputs, constraints, key_id, origin)
           SELECT 'it_' || {id}, '{tenant}', 'g', '{{}}', '{{}}', 'k', 'manual' FROM generate_series(1, {MANY}) n;
         INSERT INTO app.runs (id, intent_id, workflow_id, tenant_id, status, execution_mode, recipe_id, recipe_v, recipe_hash,
           partition_key, priority, app_version, origin, key_id)
           SELECT 'rn_' || {id}, 'it_' || {id}, 'it_' || {id}, '{tenant}', 'running', 'LOCAL_NATIVE', 'sandbox', '1',
                  repeat('0', 64), '{tenant}', 1, 'v', 'manual', 'k' FROM generate_series(1, {MANY}) n;
         INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, origin)
           SELECT 'rn_' || {id}, 'S', lpad(to_hex(n), 64, '0'), 1, 'hold', 'container', '{{}}', 'manual'
             FROM generate_series(1, {MANY}) n;
         INSERT INTO app.remote_execution_sessions (sandbox_id, task_key, execution_no, run_id, tenant_id, class, host_id,
           state_dir, executor_id, state)
           SELECT 'sb' || lpad(to_hex(n), 20, '0'), lpad(to_hex(n), 64, '0'), 1, 'rn_' || {id}, '{tenant}', 'container', 'h', '/',
                  (SELECT id FROM app.executors WHERE state = 'live'), 'EXECUTING' FROM generate_series(1, {MANY}) n;
         INSERT INTO app.live_sandboxes (id, tenant_id, run_id, key_id, template, metadata, egress, timeout_ms, origin, token_hash,
           executor_id, sandbox_id, limits, started_at, ends_at, created_at)
           SELECT lpad(n::text, 20, 'a'), '{tenant}', 'rn_' || {id}, 'k', 'base', jsonb_build_object('n', (n % 7)::text), '\"none\"',
                  600000, 'manual', repeat('0', 64), (SELECT id FROM app.executors WHERE state = 'live'),
                  'sb' || lpad(to_hex(n), 20, '0'), '{{}}', now(), now() + interval '1 day', now() - n / 3 * interval '1 ms'
             FROM generate_series(1, {MANY}) n;
         -- Their workflows: without one a run and its attempt are stranded, and the leader ends them.
         INSERT INTO dbos.workflow_status (workflow_uuid, status, name, created_at, updated_at, application_version, executor_id)
           SELECT w.uuid, 'PENDING', 'hold', app.ms(now()), app.ms(now()), 'v', (SELECT id FROM app.executors WHERE state = 'live')
             FROM generate_series(1, {MANY}) n, LATERAL (VALUES ('it_' || {id}), (lpad(to_hex(n), 64, '0'))) w(uuid);
         ANALYZE app.live_sandboxes, app.remote_execution_sessions, app.runs, app.sbx_runs"
    );
    sqlx::raw_sql(AssertSqlSafe(all)).execute(sql).await.unwrap();
}

/// A page: its rows, the next one's token and how many run.
async fn page(caller: &Caller, query: &str) -> (Vec<Value>, Option<String>, usize) {
    let request = caller.http.get(format!("{}/v2/sandboxes?{query}", caller.url));
    let answer = request.header("x-api-key", &caller.key).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let header = |name: &str| answer.headers().get(name).map(|v| v.to_str().unwrap().to_owned());
    let (next, running) = (header("x-next-token"), header("x-total-running"));
    let rows: Vec<Value> = answer.json().await.unwrap();
    (rows, next, running.unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_sandboxes_are_listed_in_pages_each_once() {
    let home = Home::new();
    let mut server = home.up();
    let sql = server.sql().await;
    let (ann, bob) = (Caller::of(&server, "ann").await, Caller::of(&server, "bob").await);
    recorded(&sql, "ann").await;
    assert_eq!(page(&bob, "").await, (Vec::new(), None, 0));
    let before = resident(&server);
    let clock = Instant::now();
    // The ms of its creation, counted back from now: three have the same, and then their ids count.
    let age = |id: &str| id.trim_start_matches('a').parse::<usize>().unwrap() / 3;
    for order in ["desc", "asc"] {
        let (mut seen, mut token) = (BTreeSet::new(), None);
        let mut last: Option<(usize, String)> = None;
        loop {
            let after = token.map(|token| format!("&nextToken={token}")).unwrap_or_default();
            let (rows, next, running) =
                page(&ann, &format!("order={order}&limit={PAGE}{after}")).await;
            assert_eq!((rows.len(), running), (PAGE, MANY));
            for row in rows {
                let id = text(&row, "sandboxID");
                let key = (usize::MAX - age(&id), id.clone());
                let ordered = last.as_ref().is_none_or(|last| (*last < key) == (order == "asc"));
                assert!(ordered, "{order}: {key:?} after {last:?}");
                assert!(seen.insert(id), "{key:?} comes twice");
                last = Some(key);
            }
            token = next;
            if token.is_none() {
                break;
            }
        }
        assert_eq!(seen.len(), MANY);
    }
    eprintln!("200 pages of {PAGE} in {:?}", clock.elapsed());
    assert!(clock.elapsed() < ALL_PAGES, "{:?}", clock.elapsed());
    let (rows, _, _) = page(&ann, "metadata=n%3D3&limit=100").await;
    assert!(rows.len() == PAGE && rows.iter().all(|row| row["metadata"]["n"] == "3"));
    let (status, older) = ann.api("GET", "/sandboxes", None).await;
    assert_eq!((status, older.as_array().unwrap().len()), (200, OLDER));
    // What a program changes of a token makes no other list.
    for token in ["x", "1.x", "99999999999999999999.aaaaaaaaaaaaaaaaaaaa", "-1", "%00"] {
        let path = format!("/v2/sandboxes?nextToken={token}");
        assert_eq!(ann.api("GET", &path, None).await.0, 400, "{token}");
    }
    let kept = resident(&server).saturating_sub(before);
    assert!(kept < KEPT_MIB, "the lists left {kept} MiB");
    sql.close().await;
    server.stop();
}

/// The head of a command's start and its message, written by hand.
fn start(caller: &Caller, (id, token): (&str, &str), script: &str) -> Vec<u8> {
    let message =
        json!({"process": {"cmd": "/bin/sh", "args": ["-c", script]}, "stdin": false}).to_string();
    let head = format!(
        "POST /process.Process/Start HTTP/1.1\r\nHost: {}\r\nE2b-Sandbox-Id: {id}\r\nX-Access-Token: {token}\r\n\
         Content-Type: application/connect+json\r\nContent-Length: {}\r\n\r\n",
        caller.url.trim_start_matches("http://"),
        message.len() + 5,
    );
    let mut all = head.into_bytes();
    all.push(0);
    all.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    all.extend(message.into_bytes());
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_do_not_read_and_half_open_streams_cost_their_own_sandbox_alone() {
    let home = Home::new();
    let server = home.up();
    let (ann, bob) = (Caller::of(&server, "ann").await, Caller::of(&server, "bob").await);
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 300})).await;
    let at = (id.as_str(), token.as_str());
    let (other, others) = bob.create(json!({"templateID": "base", "timeout": 300})).await;
    assert!(ann.started(at, "/bin/true", &[]).await.contains("\"exitCode\":0"));
    let before = resident(&server);
    let address = server.url.trim_start_matches("http://").to_owned();
    // Much output, of which nobody reads a byte.
    let mut unread = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(&start(&ann, at, "exec head -c 30000000 /dev/zero")).await.unwrap();
        unread.push(stream);
    }
    // Half open: the sender has ended its side, or half a request is all that there will be.
    for n in 0..20 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let whole = start(&ann, at, "exec sleep 15");
        let sent = if n % 2 == 0 { whole.len() } else { whole.len() - 7 };
        stream.write_all(&whole[..sent]).await.unwrap();
        if n % 4 < 2 {
            stream.shutdown().await.unwrap();
        }
        unread.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    for (caller, at) in [(&ann, at), (&bob, (other.as_str(), others.as_str()))] {
        let clock = Instant::now();
        assert!(caller.started(at, "/bin/echo", &["hi"]).await.contains("\"exitCode\":0"));
        assert!(clock.elapsed() < Duration::from_secs(5), "{:?}", clock.elapsed());
    }
    let kept = resident(&server).saturating_sub(before);
    assert!(kept < KEPT_MIB, "40 streams that nobody reads keep {kept} MiB");
    // A slow reader gets every byte.
    let mut slow = TcpStream::connect(&address).await.unwrap();
    slow.write_all(&start(&ann, at, "head -c 3000000 /dev/zero | tr '\\\\0' x; echo end >&2"))
        .await
        .unwrap();
    let (mut said, mut piece) = (Vec::new(), vec![0; 64 * 1024]);
    while !said.windows(11).any(|part| part == b"\"exitCode\":") {
        let count = slow.read(&mut piece).await.unwrap();
        assert!(count > 0, "it ends after {} bytes", said.len());
        said.extend_from_slice(&piece[..count]);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(said.len() > 4_000_000, "{}", said.len());
    // Once they hang up, their places are others': 52 commands at once.
    drop(unread);
    until("the places come back", Duration::from_secs(30), async || {
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..52 {
            let request = ann.start(
                at,
                &json!({"process": {"cmd": "/bin/sleep", "args": ["0.2"]}, "stdin": false}),
            );
            all.spawn(async move { request.send().await.unwrap().bytes().await.unwrap() });
        }
        all.join_all()
            .await
            .iter()
            .all(|said| String::from_utf8_lossy(said).contains("\"exitCode\":0"))
    })
    .await;
    for (caller, id) in [(&ann, &id), (&bob, &other)] {
        assert_eq!(caller.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    }
    let sql = server.sql().await;
    assert_eq!(
        count(&sql, "SELECT count(*) FROM app.live_sandboxes WHERE ended_at IS NULL").await,
        0
    );
    sql.close().await;
    gone(home, server).await;
}
