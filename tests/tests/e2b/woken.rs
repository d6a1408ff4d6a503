//! Paused sandboxes that the first request to them resumes.

use std::fs;
use std::time::Duration;

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::kept::{erased, files, rest, sealed};
use super::{Caller, answered, gone};
use crate::support::{count, texts, until};

const STAT: &str = "/filesystem.Filesystem/Stat";
const RESUMES: &str = "SELECT count(*) FROM app.audit WHERE op = 'sandbox.resume'";
const SOON: Duration = Duration::from_secs(30);

/// A sandbox that its time pauses and a request resumes, with a file in it.
async fn made(ann: &Caller, more: Value) -> (String, String, Value) {
    let mut body = json!({"templateID": "base", "timeout": 600, "autoPause": true, "autoResume": {"enabled": true}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (status, made) = ann.api("POST", "/v2/sandboxes", Some(body)).await;
    assert_eq!(status, 201, "{made}");
    let (id, token) = (text(&made, "sandboxID"), text(&made, "envdAccessToken"));
    let upload = ann.upload((&id, &token), "/home/user/a").body("kept");
    assert_eq!(answered(upload).await.0, 200);
    (id, token, made)
}

async fn paused(ann: &Caller, id: &str) {
    ann.pause(id).await;
}

async fn state(ann: &Caller, id: &str) -> Value {
    ann.api("GET", &format!("/sandboxes/{id}"), None).await.1["state"].clone()
}

fn stat(ann: &Caller, id: &str, token: &str) -> reqwest::RequestBuilder {
    ann.envd((id, token), STAT, &json!({"path": "/home/user/a"}))
}

fn port(ann: &Caller, id: &str, token: Option<&str>) -> reqwest::RequestBuilder {
    let request = ann.port("GET", (id, 8_000), "/x");
    token
        .into_iter()
        .fold(request, |request, token| request.header("e2b-traffic-access-token", token))
}

#[tokio::test]
async fn requests_at_once_resume_a_paused_sandbox_once_and_all_are_answered() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let ann = Caller::of(&server, "ann").await;
    let (id, token, _) = made(&ann, json!({})).await;
    let (_, detail) = ann.api("GET", &format!("/sandboxes/{id}"), None).await;
    assert_eq!(detail["lifecycle"], json!({"autoResume": true, "onTimeout": "pause"}));
    for round in 1..=2 {
        paused(&ann, &id).await;
        // The last two come to a port, where nothing listens, by headers and by its name.
        let host = format!("8000-{id}.localhost:{}", server.url.rsplit(':').next().unwrap());
        let named = || ann.http.get(format!("{}/x", ann.url)).header("host", &host);
        let all = (0..8).map(|n| match n {
            6 => answered(named()),
            7 => answered(port(&ann, &id, None)),
            _ => answered(stat(&ann, &id, &token)),
        });
        for (n, (status, answer)) in
            futures_util::future::join_all(all).await.into_iter().enumerate()
        {
            match n {
                6 | 7 => {
                    assert_eq!(answer["message"], "The sandbox is running but port is not open")
                }
                _ => assert_eq!((status, &answer["entry"]["size"]), (200, &json!("4")), "{answer}"),
            }
        }
        assert_eq!(count(&sql, RESUMES).await, round);
    }
    // On record: who, why, and for how long.
    let who = "SELECT DISTINCT reason || ' ' || (key_id = (SELECT key_id FROM app.live_sandboxes)) FROM app.audit WHERE op = 'sandbox.resume'";
    assert_eq!(texts(&sql, who).await, ["traffic true"]);
    assert_eq!(count(&sql, "SELECT timeout_ms FROM app.live_sandboxes").await, 600_000);
    let logs = async |path: String| {
        let (status, logs) = ann.api("GET", &path, None).await;
        assert_eq!(status, 200, "{logs}");
        let message = |entry: &Value| {
            let older = entry["line"].as_str().map(|line| serde_json::from_str(line).unwrap());
            text(older.as_ref().unwrap_or(entry), "message")
        };
        logs["logs"].as_array().unwrap().iter().map(message).collect::<Vec<_>>()
    };
    let told = [
        "sandbox created",
        "sandbox paused",
        "sandbox resumed: traffic",
        "sandbox paused",
        "sandbox resumed: traffic",
        "sandbox started",
    ];
    assert_eq!(logs(format!("/sandboxes/{id}/logs")).await, told);
    assert_eq!(
        logs(format!("/v2/sandboxes/{id}/logs?direction=backward&limit=1")).await,
        told[5..]
    );
    assert_eq!(count(&sql, "SELECT count(*) FROM app.runs").await, 3);
    // A resume by hand leaves it the token that its callers hold.
    paused(&ann, &id).await;
    let (status, again) = ann.api("POST", &format!("/sandboxes/{id}/connect"), None).await;
    assert_eq!((status, text(&again, "envdAccessToken")), (201, token.clone()));
    // A fork is another sandbox.
    let (_, forks) = ann.api("POST", &format!("/sandboxes/{id}/fork"), None).await;
    let fork = &forks[0]["sandbox"];
    assert_ne!(text(fork, "envdAccessToken"), token);
    let fork = text(fork, "sandboxID");
    assert_eq!(answered(stat(&ann, &fork, &token)).await.0, 401);
    ann.kill(&fork).await;
    ann.kill(&id).await;
    assert_eq!(answered(stat(&ann, &id, &token)).await.0, 502);
    let last = logs(format!("/v2/sandboxes/{id}/logs?direction=backward&limit=1")).await;
    assert_eq!(last, ["sandbox ended: killed"]);
    erased(&home).await;
    let rows = texts(&sql, "SELECT to_jsonb(l)::text FROM app.live_sandboxes l").await;
    assert!(rows.iter().all(|row| !row.contains(&token)), "no table has a token");
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn a_stranger_wakes_nothing_and_learns_nothing() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let (ann, bob) = (Caller::of(&server, "ann").await, Caller::of(&server, "bob").await);
    let private = json!({"network": {"allowPublicTraffic": false}});
    let (id, token, whole) = made(&ann, private).await;
    let traffic = text(&whole, "trafficAccessToken");
    let (other, others, _) = made(&bob, json!({})).await;
    // One that does not wait for requests.
    let (plain, plains) = ann.create(json!({"templateID": "base", "autoPause": true})).await;
    for one in [&id, &plain] {
        paused(&ann, one).await;
    }
    let none = "0".repeat(20);
    let (_, unknown) = answered(stat(&ann, &none, &token)).await;
    for request in [
        stat(&bob, &id, ""),
        stat(&bob, &id, "x"),
        stat(&bob, &id, &others),
        stat(&bob, &id, &traffic),
        stat(&bob, &id, &bob.key),
        port(&bob, &id, None),
        port(&bob, &id, Some(&token)),
        port(&bob, &id, Some("x")),
        // Who asks whether it runs does not want it to.
        ann.http
            .get(format!("{}/health", ann.url))
            .header("e2b-sandbox-id", &id)
            .header("x-access-token", &token),
        ann.http
            .get(format!("{}/files?path=a&signature=v1_x", ann.url))
            .header("e2b-sandbox-id", &id),
        stat(&ann, &plain, &plains),
        port(&ann, &plain, None),
    ] {
        let (status, answer) = answered(request).await;
        assert_eq!((status, &answer["message"]), (502, &unknown["message"]), "{answer}");
    }
    for one in [&id, &plain] {
        assert_eq!(state(&ann, one).await, "paused");
    }
    assert_eq!(count(&sql, RESUMES).await, 0);
    let (_, closed) = answered(port(&ann, &id, Some(&traffic))).await;
    assert_eq!(closed["message"], "The sandbox is running but port is not open");
    assert_eq!(count(&sql, RESUMES).await, 1);
    assert_eq!(answered(port(&ann, &id, None)).await.0, 403);
    for one in [&id, &plain] {
        ann.kill(one).await;
    }
    bob.kill(&other).await;
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn what_cannot_be_resumed_tells_every_request_why_and_stays_paused() {
    let home = Home::new();
    let server = home.up();
    rest(&home, "0");
    let ann = Caller::of(&server, "ann").await;
    let (id, token, _) = made(&ann, json!({})).await;
    paused(&ann, &id).await;
    let sql = server.sql().await;
    sealed(&sql).await;
    let file = files(&home).remove(0);
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[1..]).unwrap();
    let (one, two) =
        tokio::join!(answered(stat(&ann, &id, &token)), answered(port(&ann, &id, None)));
    for (status, answer) in [one, two] {
        let why = answer["message"].as_str().unwrap();
        assert!(status == 409 && why.contains("cannot be used"), "{answer}");
    }
    assert_eq!(state(&ann, &id).await, "paused");
    fs::write(&file, &whole).unwrap();
    // A key that is revoked makes no run any more, in whoever's hands its sandbox's token is.
    let key = texts(&sql, "SELECT key_id FROM app.live_sandboxes").await.remove(0);
    let second = Caller::of(&server, "ann").await;
    sqlx::query("UPDATE app.api_keys SET revoked_at = now() WHERE key_id = $1")
        .bind(key)
        .execute(&sql)
        .await
        .unwrap();
    let (status, answer) = answered(stat(&second, &id, &token)).await;
    assert!(status == 409 && answer["message"].as_str().unwrap().contains("revoked"), "{answer}");
    // Another key resumes it, with new tokens: the old ones end with the key that they were made for.
    let (status, again) = second.api("POST", &format!("/sandboxes/{id}/connect"), None).await;
    assert_eq!(status, 201, "{again}");
    assert_eq!(answered(stat(&second, &id, &token)).await.0, 401);
    assert_eq!(answered(stat(&second, &id, &text(&again, "envdAccessToken"))).await.0, 200);
    second.kill(&id).await;
    sql.close().await;
    gone(home, server).await;
}

/// Another submitter of a caller's tenant, and its key's id.
async fn beside(server: &Server, caller: &Caller) -> (String, Caller) {
    let named = json!({"tenant": "ann", "roles": ["submitter"], "format": "e2b"});
    let (key_id, key) = server.new_key(&named).await;
    (key_id, Caller { key, http: caller.http.clone(), url: caller.url.clone(), class: None })
}

#[tokio::test]
async fn a3f9_a_running_sandboxs_tokens_end_with_the_key_that_they_were_made_for() {
    let home = Home::new();
    let server = home.up();
    let second = Caller::of(&server, "ann").await;
    let (key_id, first) = beside(&server, &second).await;
    let private = json!({"network": {"allowPublicTraffic": false}});
    let (id, token, answer) = made(&first, private).await;
    let traffic = text(&answer, "trafficAccessToken");
    let (other, others, _) = made(&second, json!({})).await;
    let asked = |id: &str, token: &str| answered(stat(&second, id, token));
    assert_eq!(asked(&id, &token).await.0, 200);
    assert_eq!(answered(port(&second, &id, Some(&traffic))).await.0, 502, "let in, and closed");
    let path = format!("/api/keys/{key_id}?tenant=ann");
    let (status, said) = server.request("DELETE", &path, Some(&server.key), None).await;
    assert_eq!(status, 200, "{said}");
    until("the token ends", SOON, async || asked(&id, &token).await.0 == 401).await;
    assert_eq!(answered(port(&second, &id, Some(&traffic))).await.0, 403);
    assert_eq!(asked(&other, &others).await.0, 200, "another key's stay");
    // Another key of the tenant is told what to do, and does it.
    let connect = format!("/sandboxes/{id}/connect");
    let (status, refused) = second.api("POST", &connect, None).await;
    assert!(
        status == 409 && refused["message"].as_str().unwrap().contains("pause it"),
        "{refused}"
    );
    second.pause(&id).await;
    let (status, again) = second.api("POST", &connect, None).await;
    assert_eq!(status, 201, "{again}");
    assert_eq!(asked(&id, &token).await.0, 401);
    assert_eq!(asked(&id, &text(&again, "envdAccessToken")).await.0, 200);
    for one in [&id, &other] {
        second.kill(one).await;
    }
    gone(home, server).await;
}

/// A sandbox with a program that switches protocols for whoever asks and one that answers without an end.
async fn serving(ann: &Caller, more: Value) -> (String, String, String) {
    let (id, token, answer) = made(ann, more).await;
    let program = "import socket, sys, threading, time\n\
        s = socket.create_server((\"127.0.0.1\", 8000), backlog=64)\n\
        def serve(c):\n  asked = c.recv(65536)\n  \
        if b\"Upgrade\" in asked:\n    c.sendall(b\"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: x\\r\\n\\r\\n\")\n    \
        while True:\n      c.sendall(c.recv(100))\n  \
        c.sendall(b\"HTTP/1.1 200 OK\\r\\n\\r\\n\")\n  \
        while True:\n    c.sendall(b\"x\")\n    time.sleep(0.1)\n\
        while True:\n  threading.Thread(target=serve, args=(s.accept()[0],)).start()\n";
    let upload = ann.upload((&id, &token), "/home/user/serve.py").body(program);
    assert_eq!(answered(upload).await.0, 200);
    let script = "nohup python3 serve.py > /dev/null 2>&1 &";
    let ended = ann.started((&id, &token), "sh", &["-c", script]).await;
    assert!(ended.contains("\"exitCode\":0"), "{ended}");
    (id, token, answer["trafficAccessToken"].as_str().unwrap_or_default().to_owned())
}

/// What is connected to a sandbox, each of which has said something: a command, a port's answer, a tunnel.
struct Connected {
    command: reqwest::Response,
    port: reqwest::Response,
    tunnel: TcpStream,
}

impl Connected {
    async fn to(ann: &Caller, (id, token, traffic): &(String, String, String)) -> Self {
        let script = "while true; do echo tick; sleep 0.1; done";
        let message = json!({"process": {"cmd": "sh", "args": ["-c", script]}, "stdin": false});
        let command = ann.start((id, token), &message).send().await.unwrap();
        assert_eq!(command.status(), 200);
        until("it listens", SOON, async || {
            port(ann, id, Some(traffic)).send().await.unwrap().status() == 200
        })
        .await;
        let port = port(ann, id, Some(traffic)).send().await.unwrap();
        assert_eq!(port.status(), 200);
        let mut tunnel = TcpStream::connect(ann.url.split_once("://").unwrap().1).await.unwrap();
        let head = format!(
            "GET / HTTP/1.1\r\nHost: 8000-{id}.localhost\r\ne2b-traffic-access-token: {traffic}\r\n\
             Connection: Upgrade\r\nUpgrade: x\r\n\r\n"
        );
        tunnel.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(tunnel.read_u8().await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
        Self { command, port, tunnel }
    }

    /// Which of them go on.
    async fn alive(&mut self) -> [bool; 3] {
        let mut echo = [0; 1];
        let tunnel = self.tunnel.write_all(b"x").await.is_ok()
            && self.tunnel.read_exact(&mut echo).await.is_ok();
        let next =
            async |stream: &mut reqwest::Response| matches!(stream.chunk().await, Ok(Some(_)));
        [next(&mut self.command).await, next(&mut self.port).await, tunnel]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a3f9_what_is_connected_by_a_token_ends_with_its_key() {
    let home = Home::new();
    let server = home.up();
    let second = Caller::of(&server, "ann").await;
    let (key_id, first) = beside(&server, &second).await;
    let private = json!({"network": {"allowPublicTraffic": false}});
    let own = serving(&first, private.clone()).await;
    let public = serving(&first, json!({})).await;
    let others = serving(&second, private).await;
    let mut ended = Connected::to(&first, &own).await;
    let mut open = Connected::to(&first, &public).await;
    let mut stays = Connected::to(&second, &others).await;
    for one in [&mut ended, &mut open, &mut stays] {
        assert_eq!(one.alive().await, [true; 3]);
    }
    // An upload that is under way, and never comes to its end.
    let (pieces, body) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(1);
    let body =
        futures_util::stream::unfold(body, async |mut body| Some((body.recv().await?, body)));
    let upload = first.upload((&own.0, &own.1), "/home/user/b");
    let upload = upload.body(reqwest::Body::wrap_stream(Box::pin(body)));
    let upload = tokio::spawn(upload.send());
    pieces.send(Ok(vec![7; 1_000])).await.unwrap();
    let path = format!("/api/keys/{key_id}?tenant=ann");
    let (status, said) = server.request("DELETE", &path, Some(&server.key), None).await;
    assert_eq!(status, 200, "{said}");
    let all_end = until("all of it ends", SOON, async || ended.alive().await == [false; 3]);
    all_end.await;
    let answer = tokio::time::timeout(SOON, upload).await.expect("the upload goes on").unwrap();
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status() == 401));
    // Ports that anybody may reach take no token; another key's sandbox is another one.
    assert_eq!(stays.alive().await, [true; 3]);
    let left = [false, true, true];
    until("its command's stream ends", SOON, async || open.alive().await == left).await;
    drop((ended, open, stays));
    for (id, ..) in [&own, &public, &others] {
        second.kill(id).await;
    }
    gone(home, server).await;
}

/// While its time pauses it, and after its server was started anew.
#[tokio::test]
async fn a_request_finds_its_sandbox_whenever_it_comes() {
    let home = Home::new();
    let mut server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let (id, token, _) = made(&ann, json!({"timeout": 2})).await;
    let sql = server.sql().await;
    // One request at most is under way when everything stops, and ends with an error.
    let mut cut = Vec::new();
    while count(&sql, RESUMES).await == 0 {
        let (status, answer) = answered(stat(&ann, &id, &token)).await;
        cut.extend((status != 200).then_some(answer));
        assert!(cut.len() <= 1, "{cut:?}");
    }
    // At every moment of a resume, and after it.
    for _ in 0..4 {
        paused(&ann, &id).await;
        let all = (0..100).map(|n| {
            let request = stat(&ann, &id, &token);
            async move {
                tokio::time::sleep(Duration::from_millis(4 * n)).await;
                answered(request).await
            }
        });
        for (status, answer) in futures_util::future::join_all(all).await {
            assert_eq!(status, 200, "{answer}");
        }
    }
    // Five minutes at least.
    assert_eq!(count(&sql, "SELECT timeout_ms FROM app.live_sandboxes").await, 300_000);
    paused(&ann, &id).await;
    sql.close().await;
    assert!(server.stop().success());
    let mut server = home.up();
    let again = Caller { url: server.url.clone(), ..ann };
    assert_eq!(answered(stat(&again, &id, &token)).await.0, 200);
    paused(&again, &id).await;
    // Killed while requests wait for it, it is paused still, or has ended as it ran.
    for wait_ms in [20, 60, 120, 200] {
        let request = stat(&again_at(&server, &again), &id, &token);
        let asking = tokio::spawn(async move { request.send().await.is_ok() });
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        server.kill();
        asking.await.unwrap();
        server = home.up();
        let sql = server.sql().await;
        let row = format!(
            "SELECT count(*) FROM app.live_sandboxes l WHERE id = '{id}' AND (ended_at IS NOT NULL OR paused_at IS NOT NULL)"
        );
        until("it is paused or ended", SOON, async || count(&sql, &row).await == 1).await;
        let over =
            count(&sql, "SELECT count(*) FROM app.live_sandboxes WHERE ended_at IS NOT NULL").await
                == 1;
        sql.close().await;
        if over {
            break;
        }
        let caller = again_at(&server, &again);
        assert_eq!(answered(stat(&caller, &id, &token)).await.0, 200, "{wait_ms}");
        paused(&caller, &id).await;
    }
    let _ = again_at(&server, &again).api("DELETE", &format!("/sandboxes/{id}"), None).await;
    until("no file is left", SOON, async || files(&home).is_empty()).await;
    gone(home, server).await;
}

fn again_at(server: &Server, ann: &Caller) -> Caller {
    Caller { http: ann.http.clone(), url: server.url.clone(), key: ann.key.clone(), class: None }
}
