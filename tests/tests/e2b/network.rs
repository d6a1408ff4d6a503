//! The network of a running sandbox is changed: by the client, under grants, at once, on record, and never half.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cofferdam_tests::{Home, Server, repository};
use serde_json::{Value, json};

use super::{Caller, JAVASCRIPT, PYTHON, answered, gone, installed, javascript, run};
use crate::support::{assert_proven, count, texts, until};

const SOON: Duration = Duration::from_secs(30);

/// A server on loopback: `/` says hello, `/endless` sends until its client goes. How many of the latter are under way.
pub(super) fn greeter() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let open = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&open);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, open) = (stream.unwrap(), Arc::clone(&counted));
            std::thread::spawn(move || {
                let mut asked = [0; 4096];
                let read = stream.read(&mut asked).unwrap_or(0);
                if !String::from_utf8_lossy(&asked[..read]).starts_with("GET /endless ") {
                    let hello = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
                    let _ = stream.write_all(hello);
                    return;
                }
                open.fetch_add(1, Ordering::SeqCst);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                while stream.write_all(&[b'x'; 512]).is_ok() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (address, open)
}

/// A server whose tenants are granted `a.example` and `b.example`, and that finds `c.example` too.
async fn granting(home: &Home, address: &str, env: &[(&str, &str)]) -> Server {
    let table = ["a", "b", "c"].map(|name| format!("--egress-host={name}.example={address}"));
    let server = home.up_with(&[&table[0], &table[1], &table[2]], env);
    let sql = server.sql().await;
    let list = "INSERT INTO app.dynamic_config (key, version, value, actor)
                VALUES ('egress.exec.allowed', 1, '[\"a.example\", \"b.example\"]', 'sec') ON CONFLICT DO NOTHING";
    sqlx::query(list).execute(&sql).await.unwrap();
    sql.close().await;
    server
}

fn base() -> Value {
    json!({"templateID": "base", "timeout": 300})
}

async fn put(who: &Caller, id: &str, body: Value) -> (u16, Value) {
    who.api("PUT", &format!("/sandboxes/{id}/network"), Some(body)).await
}

fn allow(names: &[&str]) -> Value {
    json!({"allowOut": names})
}

/// Starts a download that does not end by itself, in the background of the sandbox.
async fn endless(who: &Caller, at: (&str, &str), name: &str) {
    let script = format!(
        "curl -sS --noproxy '*' -o /dev/null http://{name}/endless >/dev/null 2>&1 & echo begun"
    );
    let said = who.started(at, "sh", &["-c", &script]).await;
    assert!(said.contains("YmVndW4K"), "{said}");
}

async fn by_version(version: &str, kinds: &[&str]) {
    let Some(python) = installed(version) else { return };
    let home = Home::new();
    let (address, _) = greeter();
    let server = granting(&home, &address, &[]).await;
    for kind in kinds {
        let mut command = Command::new(&python);
        command.arg(repository().join("tests/tests/e2b/network.py")).env("KIND", kind);
        let client = format!("{kind}-network");
        run(&server, command, (version == PYTHON[0]).then_some(&client)).await;
    }
    gone(home, server).await;
}

#[tokio::test]
async fn the_python_client_changes_the_network_of_a_running_sandbox() {
    by_version(PYTHON[0], &["sync", "async"]).await;
    for version in &PYTHON[1..3] {
        by_version(version, &["sync"]).await;
    }
}

async fn by_javascript_version(version: &str) {
    let Some(command) = javascript("network.mjs", version) else { return };
    let home = Home::new();
    let (address, _) = greeter();
    let server = granting(&home, &address, &[]).await;
    let client = (version == JAVASCRIPT[0]).then_some("javascript-network");
    run(&server, command, client).await;
    gone(home, server).await;
}

#[tokio::test]
async fn the_javascript_client_changes_the_network_of_a_running_sandbox() {
    for version in JAVASCRIPT {
        by_javascript_version(version).await;
    }
}

#[tokio::test]
async fn a_narrower_network_cuts_at_once_and_each_change_is_on_record_once() {
    let home = Home::new();
    let (address, open) = greeter();
    let server = granting(&home, &address, &[]).await;
    let (ann, bob) = (Caller::of(&server, "ann").await, Caller::of(&server, "bob").await);
    let sql = server.sql().await;
    let (id, token) = ann.create(base()).await;
    let at = (id.as_str(), token.as_str());
    let recorded = "SELECT count(*) FROM app.live_networks";
    assert_eq!(put(&bob, &id, allow(&["a.example"])).await.0, 404);
    assert_eq!(put(&ann, &id, allow(&["a.example", "b.example"])).await.0, 204);
    // What is in force already is no change.
    assert_eq!(put(&ann, &id, allow(&["a.example", "b.example"])).await.0, 204);
    assert_eq!(count(&sql, recorded).await, 1);
    for name in ["a.example", "b.example"] {
        endless(&ann, at, name).await;
    }
    until("both run", SOON, async || open.load(Ordering::SeqCst) == 2).await;
    let (status, refused) = put(&ann, &id, allow(&["a.example", "c.example"])).await;
    assert_eq!(status, 400, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("c.example"), "{refused}");
    assert_eq!((count(&sql, recorded).await, open.load(Ordering::SeqCst)), (1, 2));
    assert_eq!(put(&ann, &id, allow(&["a.example"])).await.0, 204);
    until("one is cut", SOON, async || open.load(Ordering::SeqCst) == 1).await;
    let (_, detail) = ann.api("GET", &format!("/sandboxes/{id}"), None).await;
    assert_eq!(detail["network"]["allowOut"], json!(["a.example"]), "{detail}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(open.load(Ordering::SeqCst), 1, "what stays listed goes on");
    let rows = "SELECT concat_ws(' ', n, before, requested, source, policy_version, approver, outcome, observed, cut)
                  FROM app.live_networks ORDER BY n";
    let want = [
        r#"1 "none" ["a.example", "b.example"] org-policy 1 sec in-force ["a.example", "b.example"] 0"#,
        r#"2 ["a.example", "b.example"] ["a.example"] org-policy 1 sec in-force ["a.example"] 1"#,
    ];
    assert_eq!(texts(&sql, rows).await, want);
    let audit = "SELECT count(*) FROM app.audit u JOIN app.live_networks n ON n.live_id = u.target AND n.key_id = u.key_id
                  WHERE op = 'sandbox.network' AND detail ->> 'n' = n.n::text AND detail -> 'to' = n.requested";
    assert_eq!(count(&sql, audit).await, 2);
    // A grant that is taken away is not had again, and the narrower network is.
    let revoke = "INSERT INTO app.dynamic_config (key, version, value, actor) VALUES ('egress.exec.allowed', 2, '[]', 'sec')";
    sqlx::query(revoke).execute(&sql).await.unwrap();
    assert_eq!(put(&ann, &id, allow(&["b.example"])).await.0, 400);
    assert_eq!(put(&ann, &id, json!({})).await.0, 204);
    until("the other is cut", SOON, async || open.load(Ordering::SeqCst) == 0).await;
    let (_, logs) = ann.api("GET", &format!("/v2/sandboxes/{id}/logs"), None).await;
    let told = logs["logs"].as_array().unwrap().iter().filter(|entry| {
        entry["message"].as_str().unwrap().starts_with("network changed: in-force: ")
    });
    assert_eq!(told.count(), 3, "{logs}");
    // The tenant's commands, of our own API.
    let shown = home.run(&["sandbox", "network", &id]);
    // The admin is of another tenant.
    assert!(!shown.status.success());
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    assert_eq!(put(&ann, &id, json!({})).await.0, 404);
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn the_command_line_changes_a_network_and_lists_who_did() {
    let home = Home::new();
    let (address, _) = greeter();
    let server = granting(&home, &address, &[]).await;
    let ok = |args: &[&str]| {
        let done = home.run(args);
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    let id = ok(&["sandbox", "create", "--timeout", "300"]);
    let id = id.trim();
    let reach = ["sandbox", "exec", id, "--", "curl", "-sf", "http://c.example/"];
    assert!(!home.run(&reach).status.success());
    // The host's own admin needs nobody's consent.
    assert_eq!(ok(&["sandbox", "network", id, "--allow", "c.example"]), "c.example\n");
    assert_eq!(ok(&reach), "hello\n");
    assert_eq!(ok(&["sandbox", "network", id, "--none"]), "none\n");
    assert!(!home.run(&reach).status.success());
    let both = home.run(&["sandbox", "network", id, "--none", "--allow", "a.example"]);
    assert_eq!(both.status.code(), Some(3));
    let listed = ok(&["sandbox", "network", id, "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let changes = listed["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 2, "{listed}");
    assert_eq!(changes[0]["source"], "host-admin", "{listed}");
    assert_eq!(
        (&changes[1]["requested"], &changes[1]["outcome"]),
        (&json!("none"), &json!("in-force"))
    );
    let table = ok(&["sandbox", "network", id]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(home.run(&["sandbox", "rm", id]).status.success());
    gone(home, server).await;
}

#[tokio::test]
async fn changes_at_the_same_time_follow_each_other_and_the_last_one_is_in_force() {
    let home = Home::new();
    let (address, _) = greeter();
    let server = granting(&home, &address, &[]).await;
    let ann = Arc::new(Caller::of(&server, "ann").await);
    let sql = server.sql().await;
    let (id, token) = ann.create(base()).await;
    let lists: [&[&str]; 4] = [&["a.example"], &["b.example"], &["a.example", "b.example"], &[]];
    let asked = (0..24).map(|n| {
        let (ann, id) = (Arc::clone(&ann), id.clone());
        tokio::spawn(async move { put(&ann, &id, allow(lists[n % lists.len()])).await })
    });
    for one in asked.collect::<Vec<_>>() {
        let (status, answer) = one.await.unwrap();
        assert_eq!(status, 204, "{answer}");
    }
    assert_eq!(
        count(
            &sql,
            "SELECT count(*) FROM app.live_networks WHERE outcome IS DISTINCT FROM 'in-force'"
        )
        .await,
        0
    );
    assert!(count(&sql, "SELECT count(*) FROM app.live_networks").await > 3);
    let last = "SELECT coalesce(nullif(requested, '\"none\"'), '[]')::text FROM app.live_networks ORDER BY n DESC LIMIT 1";
    let last: Value = serde_json::from_str(&texts(&sql, last).await[0]).unwrap();
    let script = r#"for name in a b; do curl -sf -m 5 http://$name.example/ >/dev/null && all="$all\"$name.example\","; done; echo "$all""#;
    let said = ann.started((&id, &token), "sh", &["-c", script]).await;
    let reached: String = last.as_array().unwrap().iter().map(|name| format!("{name},")).collect();
    assert!(said.contains(&super::classes::encoded(&format!("{reached}\n"))), "{last}: {said}");
    // One that ends meanwhile: no change is acknowledged after its end, and none stays open.
    let path = format!("/sandboxes/{id}");
    let ended = ann.api("DELETE", &path, None);
    let change = put(&ann, &id, allow(&["b.example", "a.example"]));
    let (ended, (status, answer)) = tokio::join!(ended, change);
    assert_eq!(ended.0, 204);
    // Until its end is on record, it is not to be had for a moment.
    assert!([204, 404, 503].contains(&status), "{answer}");
    assert_eq!(
        count(&sql, "SELECT count(*) FROM app.live_networks WHERE outcome IS NULL").await,
        0
    );
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn hostile_changes_of_a_network_are_refused_by_name_and_change_nothing() {
    let home = Home::new();
    let (address, _) = greeter();
    let server = granting(&home, &address, &[]).await;
    let ann = Caller::of(&server, "ann").await;
    let sql = server.sql().await;
    let (id, _) = ann.create(base()).await;
    let many: Vec<String> = (0..65).map(|n| format!("n{n}.example")).collect();
    for (body, want) in [
        (json!({"surprise": 1}), "surprise"),
        (json!({"allowPublicTraffic": false}), "allowPublicTraffic"),
        (json!({"allowOut": "a.example"}), "body"),
        (json!({"allowOut": [1]}), "body"),
        (json!({"allowOut": ["a.example\u{0}"]}), "allowOut"),
        (json!({"allowOut": ["*.example"]}), "allowOut"),
        (json!({"allowOut": ["a.example/../b"]}), "allowOut"),
        (json!({"allowOut": ["127.0.0.1"]}), "only names"),
        (json!({"allowOut": ["0.0.0.0/0"]}), "only names"),
        (json!({"allowOut": many}), "more than 64"),
        (json!({"denyOut": ["a.example"]}), "denyOut"),
        (json!({"dnsServers": ["8.8.8.8"]}), "dnsServers"),
        (json!({"egressProxy": {"address": "x"}}), "egressProxy"),
        (json!({"rules": {"a.example": []}}), "rules"),
        (json!({"allow_internet_access": "yes"}), "body"),
        (json!([]), "body"),
    ] {
        let (status, answer) = put(&ann, &id, body.clone()).await;
        assert_eq!((status, &answer["code"]), (400, &json!(400)), "{body} {answer}");
        assert!(answer["message"].as_str().unwrap().contains(want), "{body} {answer}");
    }
    for wrong in ["zzzzzzzzzzzzzzzzzzzz", "x", "..%2f..", "%00"] {
        assert_eq!(put(&ann, wrong, json!({})).await.0, 404, "{wrong}");
    }
    let raw =
        ann.http.put(format!("{}/sandboxes/{id}/network", ann.url)).header("x-api-key", &ann.key);
    let raw = raw.header("content-type", "application/json").body("{\"allowOut\":[");
    assert_eq!(answered(raw).await.0, 400);
    let reads = json!({"tenant": "ann", "roles": ["auditor"], "format": "e2b"});
    let (_, key) = server.new_key(&reads).await;
    let auditor = Caller { key, ..Caller::of(&server, "ann").await };
    assert_eq!(put(&auditor, &id, json!({})).await.0, 403);
    // By our own route too: an empty list is not a way to say none.
    let path = format!("{}/api/sandboxes/{id}/network", ann.url);
    for body in
        [json!({}), json!({"net": []}), json!({"net": "all"}), json!({"net": "none", "x": 1})]
    {
        let request = ann.http.put(&path).bearer_auth(&ann.key).json(&body);
        assert_eq!(answered(request).await.0, 400, "{body}");
    }
    let seen = ann.http.get(&path).bearer_auth(&auditor.key);
    assert_eq!(answered(seen).await, (200, json!([])));
    assert_eq!(count(&sql, "SELECT count(*) FROM app.live_networks").await, 0);
    assert_eq!(count(&sql, "SELECT count(*) FROM app.audit WHERE op = 'sandbox.network'").await, 0);
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn a_server_that_dies_within_a_change_leaves_one_that_is_lost_on_record() {
    let home = Home::new();
    let (address, _) = greeter();
    for place in ["network.recorded", "network.changed"] {
        let mut server = granting(&home, &address, &[("COFFERDAM_FAILPOINT", place)]).await;
        let ann = Caller::of(&server, "ann").await;
        let (id, _) = ann.create(base()).await;
        let url = format!("{}/sandboxes/{id}/network", ann.url);
        let asked = ann.http.put(url).header("x-api-key", &ann.key).json(&allow(&["a.example"]));
        assert!(asked.send().await.is_err(), "nobody was told that it is in force");
        until("the server died", SOON, async || server.has_ended()).await;
        let next = granting(&home, &address, &[]).await;
        let sql = next.sql().await;
        let lost = format!(
            "SELECT concat_ws(' ', n, outcome, why) FROM app.live_networks WHERE live_id = '{id}'"
        );
        let want = "1 lost the sandbox ended before this was on record";
        until("it is settled", SOON, async || texts(&sql, &lost).await == [want]).await;
        let ann = Caller::of(&next, "ann").await;
        assert_eq!(put(&ann, &id, json!({})).await.0, 404);
        assert_proven(&home);
        sql.close().await;
        drop(next);
    }
    let server = home.up();
    gone(home, server).await;
}
