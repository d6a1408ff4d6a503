//! What a tenant, a stranger at a port and a program inside may try, and what a lost connection leaves.
//!
//! One file: what was tried against one door, each in a few lines.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cofferdam_tests::{Home, Server, text};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::{Caller, answered, gone};
use crate::support::{count, names, texts, until};

/// Far above what a call takes, far below what one that hangs would.
const AT_ONCE: Duration = Duration::from_secs(20);

async fn one(server: &Server) -> (Caller, String, String) {
    let ann = Caller::of(server, "ann").await;
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 300})).await;
    (ann, id, token)
}

/// A command over our own API: its exit status and output.
async fn exec(caller: &Caller, id: &str, script: &str) -> (i64, String) {
    let body = json!({"cmd": ["sh", "-c", script]});
    let request = caller.http.post(format!("{}/api/sandboxes/{id}/exec", caller.url));
    let request = request.bearer_auth(&caller.key).json(&body);
    let (status, done) = tokio::time::timeout(AT_ONCE, answered(request)).await.expect("it hangs");
    assert_eq!(status, 200, "{done}");
    (done["exit"].as_i64().unwrap(), text(&done, "stdout"))
}

fn address(server: &Server) -> &str {
    server.url.split_once("://").unwrap().1
}

#[tokio::test]
async fn a_key_that_only_reads_is_given_no_token() {
    let home = Home::new();
    let server = home.up();
    let (ann, id, token) = one(&server).await;
    let path = format!("/sandboxes/{id}");
    assert_eq!(ann.api("GET", &path, None).await.1["envdAccessToken"], json!(token));
    for role in ["auditor", "approver", "operator"] {
        let body = json!({"tenant": "ann", "roles": [role], "format": "e2b"});
        let (_, key) = server.new_key(&body).await;
        let reader = Caller { key, http: ann.http.clone(), url: ann.url.clone(), class: None };
        let (status, detail) = reader.api("GET", &path, None).await;
        assert_eq!((status, text(&detail, "sandboxID")), (200, id.clone()), "{role}");
        assert!(!detail.to_string().contains(&token), "{role} {detail}");
        assert_eq!(reader.api("DELETE", &path, None).await.0, 403, "{role}");
    }
    assert_eq!(ann.api("DELETE", &path, None).await.0, 204);
    gone(home, server).await;
}

/// A directory that only the host's root gets through: sandboxes there have no ids of their own.
#[tokio::test]
async fn a3f7_a_pause_on_a_host_without_ranges_of_ids_is_resumed() {
    let temporary = std::env::temp_dir();
    let is_memory = |dir: &Path| statfs(dir).is_ok_and(|of| of.filesystem_type() == TMPFS_MAGIC);
    // Of a state directory on a disk the sandboxes lie elsewhere.
    let below = if is_memory(&temporary) { temporary } else { PathBuf::from("/dev/shm") };
    let closed = tempfile::Builder::new().prefix("cofferdam-test-closed-").tempdir_in(below);
    let closed = closed.unwrap();
    fs::set_permissions(closed.path(), Permissions::from_mode(0o700)).unwrap();
    let home = Home::below(closed.path());
    let server = home.up();
    let (ann, id, _) = one(&server).await;
    let (_, map) = exec(&ann, &id, "cat /proc/self/uid_map; echo kept > /home/user/a").await;
    assert_eq!(map.split_whitespace().nth(1), Some("0"), "it has the host's ids: {map}");
    assert_eq!(ann.api("POST", &format!("/sandboxes/{id}/pause"), None).await.0, 204);
    assert_eq!(ann.resume(&id, json!({"timeout": 60})).await.0, 201);
    assert_eq!(exec(&ann, &id, "cat /home/user/a").await, (0, "kept\n".to_owned()));
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

/// A link is looked at before the first byte of its upload; minutes may lie between that and the last.
#[tokio::test]
async fn a3f9_an_upload_that_began_before_its_key_was_revoked_is_not_kept() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let (template, _) = super::built::opened(&ann, "web").await;
    let role = json!({"tenant": "ann", "roles": ["submitter"], "format": "e2b"});
    let (id, key) = server.new_key(&role).await;
    let own = Caller { key, http: ann.http.clone(), url: ann.url.clone(), class: None };
    let link = format!("/templates/{template}/files/{}", "a".repeat(64));
    let given = own.api("GET", &link, None).await.1;
    let url = text(&given, "url");
    let target = url.strip_prefix(&server.url).unwrap();
    let mut upload = TcpStream::connect(address(&server)).await.unwrap();
    let host = address(&server);
    let head = format!("PUT {target} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 2048\r\n\r\n");
    upload.write_all(head.as_bytes()).await.unwrap();
    upload.write_all(&[b'x'; 1024]).await.unwrap();
    let written = home.path().join("uploads");
    until("its first half is taken", AT_ONCE, async || {
        written.is_dir() && !names(&written).is_empty()
    })
    .await;
    let path = format!("/api/keys/{id}?tenant=ann");
    assert_eq!(server.request("DELETE", &path, Some(&server.key), None).await.0, 200);
    upload.write_all(&[b'x'; 1024]).await.unwrap();
    let mut answer = vec![0; 4096];
    let got = tokio::time::timeout(AT_ONCE, upload.read(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer[..got]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("revoked"), "{answer}");
    let sql = server.sql().await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.template_files").await, 0);
    assert!(names(&written).is_empty(), "its file is gone");
    sql.close().await;
    gone(home, server).await;
}

/// A character that no text of the database can hold.
#[tokio::test]
async fn a3l_a_nul_in_a_callers_words_is_the_callers_fault() {
    let home = Home::new();
    let server = home.up();
    let (ann, id, _) = one(&server).await;
    let snapshots = format!("/sandboxes/{id}/snapshots");
    let labels = json!({"templateID": "base", "timeout": 60, "metadata": {"a": "b\0c"}});
    for (method, path, body) in [
        ("GET", "/v2/sandboxes?metadata=a%2500=b", None),
        ("GET", "/v2/sandboxes?template=%00", None),
        ("GET", "/templates/aliases/%00", None),
        ("POST", snapshots.as_str(), Some(json!({"name": "a\0b"}))),
        ("POST", "/sandboxes", Some(labels)),
    ] {
        let (status, refused) = ann.api(method, path, body).await;
        assert!((400..500).contains(&status), "{method} {path}: {status} {refused}");
    }
    assert!(names(&home.path().join("snapshots")).is_empty(), "nothing was kept for a name");
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_ended_are_no_longer_counted_and_many_at_once_take_turns() {
    let home = Home::new();
    let server = home.up();
    let (ann, id, token) = one(&server).await;
    for n in 0..100 {
        let ended = ann.started((&id, &token), "true", &[]).await;
        assert!(ended.contains("\"exitCode\":0"), "{n}: {ended}");
    }
    let ann = std::sync::Arc::new(ann);
    let mut all = JoinSet::new();
    for _ in 0..80 {
        let (ann, id, token) = (std::sync::Arc::clone(&ann), id.clone(), token.clone());
        all.spawn(async move { ann.started((&id, &token), "sleep", &["1"]).await });
    }
    while let Some(ended) = tokio::time::timeout(AT_ONCE * 3, all.join_next()).await.unwrap() {
        let ended = ended.unwrap();
        assert!(ended.contains("\"exitCode\":0"), "{ended}");
    }
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_at_a_port_keep_its_owner_from_nothing() {
    let home = Home::new();
    let server = home.up();
    let (ann, id, _) = one(&server).await;
    let serve = "truncate -s 64M big; nohup python3 -m http.server 8000 --bind 127.0.0.1 > /dev/null 2>&1 & \
                 until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2> /dev/null; do sleep 0.1; done";
    assert_eq!(exec(&ann, &id, serve).await.0, 0);
    let mut strangers = Vec::new();
    for _ in 0..70 {
        // One that reads nothing, with little room for what it does not read.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let mut stream = socket.connect(address(&server).parse().unwrap()).await.unwrap();
        let head = format!("GET /big HTTP/1.1\r\nHost: 8000-{id}.localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        strangers.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(exec(&ann, &id, "echo here").await, (0, "here\n".to_owned()));
    // Those who found no place are told so.
    let (mut refused, mut head) = (0, [0; 12]);
    for stream in &mut strangers {
        let read = tokio::time::timeout(AT_ONCE, stream.read_exact(&mut head)).await;
        if read.is_ok_and(|read| read.is_ok()) && &head == b"HTTP/1.1 503" {
            refused += 1;
        }
    }
    assert!((1..70).contains(&refused), "{refused}");
    drop(strangers);
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

/// A WebSocket's connection counts as long as it is open, not until it is upgraded.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_connection_keeps_its_place() {
    let home = Home::new();
    let server = home.up();
    let (ann, id, _) = one(&server).await;
    let program = "import socket\ns = socket.create_server((\"127.0.0.1\", 8000), backlog=64)\nkept = []\n\
                   while True:\n  c, _ = s.accept()\n  c.recv(65536)\n  kept.append(c)\n  \
                   c.sendall(b\"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: x\\r\\n\\r\\n\")\n";
    let serve =
        format!("cat > up.py <<'END'\n{program}END\nnohup python3 up.py > /dev/null 2>&1 &");
    assert_eq!(exec(&ann, &id, &serve).await.0, 0);
    let open = async || {
        let mut stream = TcpStream::connect(address(&server)).await.unwrap();
        let head = format!(
            "GET / HTTP/1.1\r\nHost: 8000-{id}.localhost\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        let read = tokio::time::timeout(AT_ONCE, stream.read_exact(&mut status)).await;
        read.ok()?.ok()?;
        (&status == b"HTTP/1.1 101").then_some(stream)
    };
    until("it listens", AT_ONCE, async || open().await.is_some()).await;
    let mut tunnels = Vec::new();
    while tunnels.len() < 20 {
        tunnels.push(open().await.expect("a tunnel"));
    }
    // All other places, and then some: of a thousand at most.
    let mut others = Vec::new();
    for _ in 0..1_000 {
        let mut stream = TcpStream::connect(address(&server)).await.unwrap();
        let _ = stream.write_all(b"GET ").await;
        others.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut open = 0;
    for stream in &mut others {
        let mut byte = [0; 1];
        let read = tokio::time::timeout(Duration::from_millis(5), stream.read(&mut byte)).await;
        open += usize::from(read.is_err());
    }
    assert!(open + tunnels.len() <= 1_000, "{open} besides {}", tunnels.len());
    drop((tunnels, others));
    until("its connections are closed", AT_ONCE, async || {
        names(format!("/proc/{}/fd", server.pid()).as_ref()).len() < 500
    })
    .await;
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

/// What follows a 101 would be no answer of ours: the client's connection would be the program's.
#[tokio::test(flavor = "multi_thread")]
async fn a3l_a_101_that_nobody_asked_for_does_not_leave_the_server() {
    let home = Home::new();
    let server = home.up();
    let (ann, id, _) = one(&server).await;
    let program = "import socket\ns = socket.create_server((\"127.0.0.1\", 8000), backlog=64)\n\
                   while True:\n  c, _ = s.accept()\n  c.recv(65536)\n  \
                   c.sendall(b\"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: x\\r\\n\\r\\n\" + b\"HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\nforged\")\n  c.close()\n";
    let serve =
        format!("cat > up.py <<'END'\n{program}END\nnohup python3 up.py > /dev/null 2>&1 &");
    assert_eq!(exec(&ann, &id, &serve).await.0, 0);
    // Two requests on one connection: the second one's answer must be ours too.
    let asked = async || {
        let mut stream = TcpStream::connect(address(&server)).await.unwrap();
        let head = format!("GET / HTTP/1.1\r\nHost: 8000-{id}.localhost\r\n\r\n");
        let last = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(format!("{head}{last}").as_bytes()).await.unwrap();
        let mut said = Vec::new();
        let read = tokio::time::timeout(AT_ONCE, stream.read_to_end(&mut said)).await;
        read.expect("the connection stays").unwrap();
        String::from_utf8_lossy(&said).into_owned()
    };
    until("it listens", AT_ONCE, async || !asked().await.contains("port is not open")).await;
    for _ in 0..3 {
        let said = asked().await;
        assert!(said.starts_with("HTTP/1.1 502"), "{said}");
        assert!(said.contains("switched protocols without a request for it"), "{said}");
        assert!(!said.contains("HTTP/1.1 101") && !said.contains("forged"), "{said}");
        assert_eq!(said.matches("HTTP/1.1 200 OK").count(), 1, "healthz is ours: {said}");
    }
    ann.kill(&id).await;
    gone(home, server).await;
}

#[tokio::test]
async fn input_that_nobody_reads_waits_with_its_sender() {
    let home = Home::new();
    let server = home.up();
    let (ann, id, token) = one(&server).await;
    let at = (id.as_str(), token.as_str());
    let message = json!({"process": {"cmd": "sleep", "args": ["60"]}, "tag": "s"});
    let follower = ann.start(at, &message);
    let mut follower = follower.send().await.unwrap();
    assert!(follower.chunk().await.unwrap().is_some());
    let input = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        vec![7; 2 * 1024 * 1024],
    );
    let sent = json!({"process": {"tag": "s"}, "input": {"stdin": input}});
    let call = answered(ann.envd(at, "/process.Process/SendInput", &sent));
    let taken = tokio::time::timeout(Duration::from_secs(3), call).await;
    assert!(taken.is_err(), "two mebibytes were taken for a command that reads none: {taken:?}");
    drop(follower);
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

#[tokio::test]
async fn an_upload_that_cannot_be_written_or_breaks_off_is_an_error_and_leaves_nothing() {
    let home = Home::new();
    let server = home.up();
    let (ann, id, token) = one(&server).await;
    let at = (id.as_str(), token.as_str());
    assert_eq!(exec(&ann, &id, "mkfifo fifo").await.0, 0);
    let into = answered(ann.upload(at, "fifo").body("x"));
    let (status, answer) = tokio::time::timeout(AT_ONCE, into).await.expect("the agent hangs");
    assert_eq!(status, 400, "{answer}");
    assert_eq!(exec(&ann, &id, "echo here").await.0, 0);
    let (status, answer) = answered(ann.upload(at, "/usr/lib/none").body("x")).await;
    assert_eq!(status, 400, "{answer}");
    assert!(text(&answer, "message").contains("/usr/lib/none"), "{answer}");
    // Half of it, then the connection is gone.
    let mut stream = TcpStream::connect(address(&server)).await.unwrap();
    let head = format!(
        "POST /files?path=half HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {id}\r\nX-Access-Token: {token}\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: 100\r\n\r\nhalf of it"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    until("it is being written", AT_ONCE, async || exec(&ann, &id, "test -e half").await.0 == 0)
        .await;
    drop(stream);
    until("what broke off is gone", AT_ONCE, async || exec(&ann, &id, "test -e half").await.0 == 1)
        .await;
    // Not gzip, found in the middle.
    let packed = ann.upload(at, "packed").header("content-encoding", "gzip").body("plain");
    assert_eq!(answered(packed).await.0, 400);
    assert_eq!(exec(&ann, &id, "test -e packed").await.0, 1);
    // A form that never comes to a boundary.
    let form = ann.http.post(format!("{}/files?path=form", ann.url));
    let form = form.header("e2b-sandbox-id", &id).header("x-access-token", &token);
    let form = form.header("content-type", "multipart/form-data; boundary=x");
    let (status, answer) = answered(form.body(vec![b'a'; 1024 * 1024])).await;
    assert_eq!(status, 400, "{answer}");
    assert!(text(&answer, "message").contains("boundary"), "{answer}");
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

#[tokio::test]
async fn what_a_house_refuses_everywhere_is_refused_by_this_door_too() {
    let home = Home::new();
    let server = home.up();
    let (ann, id, token) = one(&server).await;
    let at = (id.as_str(), token.as_str());
    // What a page can send unasked is not JSON.
    let plain = ann.http.post(format!("{}/v2/sandboxes", ann.url)).header("x-api-key", &ann.key);
    let plain = plain.header("content-type", "text/plain").body(r#"{"templateID":"base"}"#);
    assert_eq!(answered(plain).await.0, 415);
    let env: serde_json::Map<String, Value> =
        (0..9).map(|n| (format!("V{n}"), json!("x".repeat(128 * 1024)))).collect();
    let large = json!({"templateID": "base", "envVars": env});
    assert_eq!(ann.api("POST", "/v2/sandboxes", Some(large)).await.0, 400);
    let long = json!({"path": "a/".repeat(2_500)});
    for (path, body) in [
        ("/filesystem.Filesystem/Stat", long),
        (
            "/process.Process/SendSignal",
            json!({"process": {"tag": "none"}, "signal": "SIGNAL_SIGHUP"}),
        ),
    ] {
        assert_eq!(answered(ann.envd(at, path, &body)).await.0, 400, "{path}");
    }
    // A name of a sandbox is not one of ours, and ours are none of a sandbox's.
    let pages = ann.http.get(format!("{}/api/runs", ann.url));
    let pages = pages.header("host", format!("8000-{id}.localhost")).bearer_auth(&ann.key);
    assert_eq!(answered(pages).await.0, 502);
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

#[tokio::test]
async fn a_creation_that_found_no_room_can_be_repeated_and_another_request_is_no_repetition() {
    let home = Home::new();
    let server = home.up_with(&["--memory-mb", "900"], &[]);
    let (ann, id, _) = one(&server).await;
    let create = |body: Value| {
        let request = ann.http.post(format!("{}/v2/sandboxes", ann.url));
        let request = request.header("x-api-key", &ann.key).header("idempotency-key", "k");
        answered(request.json(&body))
    };
    let wanted = json!({"templateID": "base", "timeout": 60});
    let (status, answer) = create(wanted.clone()).await;
    assert_eq!(status, 503, "{answer}");
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    let (status, made) = create(wanted.clone()).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(create(wanted).await, (201, made.clone()));
    let other =
        json!({"templateID": "base", "timeout": 60, "network": {"allowPublicTraffic": false}});
    let (status, answer) = create(other).await;
    assert_eq!(status, 409, "{answer}");
    let path = format!("/sandboxes/{}", text(&made, "sandboxID"));
    assert_eq!(ann.api("DELETE", &path, None).await.0, 204);
    gone(home, server).await;
}

/// The request is complete, and its sender gone: it must be made whole or not at all, and found by who repeats it.
#[tokio::test(flavor = "multi_thread")]
async fn a_creation_whose_caller_hung_up_is_found_by_its_key() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let body = json!({"templateID": "base", "timeout": 60}).to_string();
    for (n, after_ms) in [0, 1, 2, 3, 5, 8, 12, 20].into_iter().enumerate() {
        let mut stream = TcpStream::connect(address(&server)).await.unwrap();
        let head = format!(
            "POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {}\r\nIdempotency-Key: k{n}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            ann.key,
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        drop(stream);
        let request = ann.http.post(format!("{}/v2/sandboxes", ann.url));
        let request = request.header("x-api-key", &ann.key);
        let request = request.header("idempotency-key", format!("k{n}"));
        let request = request.header("content-type", "application/json").body(body.clone());
        let (status, made) = answered(request).await;
        assert_eq!(status, 201, "{after_ms} ms: {made}");
        let path = format!("/sandboxes/{}", text(&made, "sandboxID"));
        assert_eq!(ann.api("DELETE", &path, None).await.0, 204);
    }
    let sql = server.sql().await;
    let rows = "SELECT dedup || ' ' || count(*) FROM app.live_sandboxes WHERE started_at IS NOT NULL GROUP BY dedup HAVING count(*) <> 1";
    assert_eq!(texts(&sql, rows).await, Vec::<String>::new());
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_is_acknowledged_only_where_it_holds() {
    let home = Home::new();
    let server = home.up();
    let (ann, id, _) = one(&server).await;
    let ann = std::sync::Arc::new(ann);
    let mut all = JoinSet::new();
    for n in 0..8 {
        let (ann, path) = (std::sync::Arc::clone(&ann), format!("/sandboxes/{id}/timeout"));
        let wanted = if n % 2 == 0 { 1 } else { 600 };
        all.spawn(async move {
            let mut said = Vec::new();
            for _ in 0..20 {
                let body = json!({"timeout": wanted});
                said.push(ann.api("POST", &path, Some(body)).await.0);
            }
            said
        });
    }
    while let Some(said) = all.join_next().await {
        for status in said.unwrap() {
            assert!(status == 204 || status == 404, "{status}");
        }
    }
    // Whatever came last in the record is what happens.
    let sql = server.sql().await;
    let left = "SELECT count(*) FROM app.live_sandboxes WHERE ended_at IS NULL AND ends_at > clock_timestamp() + interval '60 s'";
    let is_long = count(&sql, left).await == 1;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let is_there = ann.api("GET", &format!("/sandboxes/{id}"), None).await.0 == 200;
    assert_eq!(is_there, is_long);
    let expired =
        count(&sql, "SELECT count(*) FROM app.live_sandboxes WHERE ended_at < ends_at").await;
    assert_eq!(expired, 0, "it ended before the time that was acknowledged");
    // Of a kill and extensions at once, no extension comes after the kill's answer.
    let (id, _) = ann.create(json!({"templateID": "base", "timeout": 60})).await;
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    let body = json!({"timeout": 60});
    assert_eq!(ann.api("POST", &format!("/sandboxes/{id}/timeout"), Some(body)).await.0, 404);
    ann.api("DELETE", &format!("/sandboxes/{}", first(&sql).await), None).await;
    sql.close().await;
    gone(home, server).await;
}

async fn first(sql: &sqlx::PgPool) -> String {
    let rows = texts(sql, "SELECT id FROM app.live_sandboxes ORDER BY created_at").await;
    rows.first().cloned().unwrap()
}

#[tokio::test]
async fn who_lost_a_grant_does_not_extend_what_has_it() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let sql = server.sql().await;
    let list = async |version: i32, names: Value| {
        sqlx::query("INSERT INTO app.dynamic_config (key, version, value, actor) VALUES ('egress.exec.allowed', $1, $2, 'sec')")
            .bind(version)
            .bind(names)
            .execute(&sql)
            .await
            .unwrap();
    };
    list(1, json!(["a.example"])).await;
    let body = json!({"templateID": "base", "timeout": 60, "network": {"allowOut": ["a.example"]}});
    let (id, _) = ann.create(body).await;
    let path = format!("/sandboxes/{id}/timeout");
    assert_eq!(ann.api("POST", &path, Some(json!({"timeout": 90}))).await.0, 204);
    list(2, json!([])).await;
    let (status, answer) = ann.api("POST", &path, Some(json!({"timeout": 120}))).await;
    assert_eq!(status, 400, "{answer}");
    assert!(text(&answer, "message").contains("a.example"), "{answer}");
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    sql.close().await;
    gone(home, server).await;
}

/// What was asked of a server that stops is answered, on record, and gone.
#[tokio::test]
async fn a_server_that_stops_ends_its_sandboxes_on_record() {
    let home = Home::new();
    let mut server = home.up();
    let (ann, id, token) = one(&server).await;
    let began = Instant::now();
    server.stop();
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    cofferdam_tests::assert_nothing_left(home.path());
    let server = home.up();
    let sql = server.sql().await;
    let rows = texts(
        &sql,
        "SELECT l.end_reason || ', ' || w.reason || ', ' || w.wipe_status
           FROM app.live_sandboxes l JOIN app.secure_wipe_evidence w ON w.sandbox_id = l.sandbox_id",
    )
    .await;
    assert_eq!(rows, ["the server that held it was stopped, stopped, verified"]);
    assert_eq!(count(&sql, "SELECT count(*) FROM app.remote_execution_sessions").await, 1);
    let ann = Caller { url: server.url.clone(), ..ann };
    assert_eq!(ann.api("GET", &format!("/sandboxes/{id}"), None).await.0, 404);
    let (status, answer) =
        answered(ann.envd((&id, &token), "/process.Process/List", &json!({}))).await;
    assert_eq!((status, text(&answer, "message")), (502, "The sandbox was not found".into()));
    sql.close().await;
    gone(home, server).await;
}
